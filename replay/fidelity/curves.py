"""Operations in flight and bandwidth over time, in bins of 100 ms, from operations in any order."""

from __future__ import annotations

import numpy as np

from dxt_replay.traces.measures._passes import add_to_curves
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
        self._max_bins = max_bins
        # By bin, of in flight and of bytes: the share of a bin in which it changes, and the level from the next one on.
        self._changes = np.zeros((0, 4))

    def add(self, rows: OperationRows) -> None:
        """Add operations."""
        if not len(rows):
            return
        last_ns = int(rows.end_ns.max()) - self._origin_ns
        bins, known = min(max(last_ns // BIN_NS + 1, 1), self._max_bins), len(self._changes)
        if bins > known:
            size = min(max(bins, 2 * known), self._max_bins)
            self._changes = np.pad(self._changes, ((0, size - known), (0, 0)))
        add_to_curves(self._changes, BIN_NS, self._origin_ns, rows.start_ns, rows.end_ns, rows.length)

    def merge(self, later: CurveCollector) -> None:
        """As `Sums.merge`."""
        short, long = sorted((self._changes, later._changes), key=len)
        added = long.copy()
        added[: len(short)] += short
        self._changes = added

    def in_flight(self) -> np.ndarray:
        """Mean number of operations in flight in each bin."""
        return self._curve(0) / BIN_NS

    def bytes_per_bin(self) -> np.ndarray:
        """Bytes in each bin; an operation's bytes are spread evenly over its duration."""
        return self._curve(2)

    def _curve(self, column: int) -> np.ndarray:
        level = np.concatenate(([0.0], np.cumsum(self._changes[:, column + 1])))[:-1]
        curve: np.ndarray = self._changes[:, column] + level * BIN_NS
        return curve


def relative_difference_pct(source: np.ndarray, replay: np.ndarray) -> float | None:
    """Sum of |source - replay| over the bins, in per cent of the source's sum; None where that is 0."""
    bins = max(len(source), len(replay))
    here, there = (np.pad(curve, (0, bins - len(curve))) for curve in (source, replay))
    total = here.sum()
    return float(100 * np.abs(here - there).sum() / total) if total > 0 else None
