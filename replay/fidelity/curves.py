"""Operations in flight and bandwidth over time, in bins of 100 ms, from operations in any order."""

from __future__ import annotations

import numpy as np

from traces.measures.operation_rows import OperationRows
from traces.sums import Sums
from traces.units import NS_PER_MS

BIN_NS = 100 * NS_PER_MS
MAX_BINS = 1 << 22
"""Almost five days."""


class CurveCollector(Sums):
    """Collects both curves from `origin_ns` on; what lies beyond `max_bins` falls into the last bin.

    An operation begins a ramp in its first bin and ends it in its last; what lies between follows by summing up once
    at the end, so that a long operation costs no more than a short one.
    """

    def __init__(self, origin_ns: int, max_bins: int = MAX_BINS) -> None:
        self._origin_ns = origin_ns
        self._last_ns = max_bins * BIN_NS - 1
        # Rows: in flight and bytes, each the share of the bin in which it changes, and the level from the next bin on.
        self._changes = np.zeros((4, 0))

    def add(self, rows: OperationRows) -> None:
        """Add operations."""
        if not len(rows):
            return
        duration = rows.duration_ns
        rate = np.where(duration > 0, rows.length / np.maximum(duration, 1), 0.0)
        self._add_ramps(rows.start_ns, np.ones(len(rows)), rate)
        self._add_ramps(rows.end_ns, np.full(len(rows), -1.0), -rate)
        instant = duration <= 0
        if instant.any():
            place = self._place(rows.start_ns[instant])[0]
            self._changes[2] += np.bincount(place, weights=rows.length[instant], minlength=self._changes.shape[1])

    def _add_ramps(self, times: np.ndarray, level: np.ndarray, rate: np.ndarray) -> None:
        place, rest = self._place(times)
        bins = self._changes.shape[1]
        for row, weights in enumerate((level * rest, level, rate * rest, rate)):
            self._changes[row] += np.bincount(place, weights=weights, minlength=bins)

    def _place(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bin of each time, and what is left of that bin (ns)."""
        since = np.minimum(np.maximum(times - self._origin_ns, 0), self._last_ns)
        # Rounding may put an edge into the bin before it, of which then nothing is left: the same curve.
        place = (since * (1 / BIN_NS)).astype(np.int64)
        bins = int(place.max()) + 1
        if bins > self._changes.shape[1]:
            grown = np.zeros((4, max(bins, 2 * self._changes.shape[1])))
            grown[:, : self._changes.shape[1]] = self._changes
            self._changes = grown
        return place, (place + 1) * BIN_NS - since

    def merge(self, later: CurveCollector) -> None:
        """As `Sums.merge`."""
        short, long = sorted((self._changes, later._changes), key=lambda changes: changes.shape[1])
        added = long.copy()
        added[:, : short.shape[1]] += short
        self._changes = added

    def in_flight(self) -> np.ndarray:
        """Mean number of operations in flight in each bin."""
        return self._curve(0) / BIN_NS

    def bytes_per_bin(self) -> np.ndarray:
        """Bytes in each bin; an operation's bytes are spread evenly over its duration."""
        return self._curve(2)

    def _curve(self, row: int) -> np.ndarray:
        level = np.concatenate(([0.0], np.cumsum(self._changes[row + 1])[:-1])) if self._changes.size else np.zeros(0)
        curve: np.ndarray = self._changes[row] + level * BIN_NS
        return curve


def relative_difference_pct(source: np.ndarray, replay: np.ndarray) -> float | None:
    """Sum of |source - replay| over the bins, in per cent of the source's sum; None where that is 0."""
    bins = max(len(source), len(replay))
    here, there = (np.pad(curve, (0, bins - len(curve))) for curve in (source, replay))
    total = here.sum()
    return float(100 * np.abs(here - there).sum() / total) if total > 0 else None
