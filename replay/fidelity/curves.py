"""Operations in flight and bandwidth over time, in bins of 100 ms, from operations in any order."""

from __future__ import annotations

import numpy as np

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import NS_PER_MS

BIN_NS = 100 * NS_PER_MS
MAX_BINS = 1 << 22
"""Almost five days."""


class CurveCollector(Sums):
    """Collects both curves from `origin_ns` on; what lies beyond `max_bins` falls into the last bin.

    The collector keeps a difference array: an operation changes only its first and last bin, and a cumulative sum at
    the end fills the bins between. So a long operation costs no more than a short one.
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
        begin, since = self._place(rows.start_ns)
        end, until = self._place(rows.end_ns)
        within = begin == end
        if within.all():
            self._add(begin, until - since, rows.length)
            return
        self._add(begin[within], (until - since)[within], rows.length[within])
        beyond = ~within
        rate = rows.length[beyond] / rows.duration_ns[beyond]
        for place, time, sign in ((begin[beyond], since[beyond], 1), (end[beyond], until[beyond], -1)):
            rest = (place + 1) * BIN_NS - time
            self._add(place, sign * rest, sign * rate * rest, np.full(len(place), sign), sign * rate)

    def _add(self, place: np.ndarray, *changes: np.ndarray) -> None:
        """Changes of in flight and bytes in a bin and, where they are not over there, of their levels after it."""
        for row, weights in zip((0, 2, 1, 3), changes, strict=False):
            self._changes[row] += np.bincount(place, weights=weights, minlength=self._changes.shape[1])

    def _place(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bin of each time, and the time since the origin (ns)."""
        since = np.minimum(np.maximum(times - self._origin_ns, 0), self._last_ns)
        # Rounding may put an edge into the bin before it, of which then nothing is left: the same curve.
        place = (since * (1 / BIN_NS)).astype(np.int64)
        bins = int(place.max()) + 1
        if bins > self._changes.shape[1]:
            grown = np.zeros((4, max(bins, 2 * self._changes.shape[1])))
            grown[:, : self._changes.shape[1]] = self._changes
            self._changes = grown
        return place, since

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
