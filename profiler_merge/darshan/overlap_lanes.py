"""Lanes of one rank's operations where the log does not say which threads issued them, a stretch after the other.

`PythonOverlap` is the specification of the compiled core, `profiler_merge.darshan._overlap_lanes`.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import numpy as np

_NOTHING_YET = int(np.iinfo(np.int64).min)


class OverlapLanes(Protocol):
    """The fewest lanes on which no operations of a rank overlap, for operations that come in the order of their start.

    Each operation takes the lane that became free most recently (a reader that goes on reading is likely to be the
    same thread), the lowest of several. Where all operations before one have ended, it takes lane 0. Operations that
    touch (end == start) may share a lane.
    """

    def following(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """int32 lane of each operation (int64 ns) that follows those of earlier calls."""
        ...


class PythonOverlap:
    """`OverlapLanes` in Python. A heap of the lanes in use by their end, and one of the free ones, latest first."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []
        self._free: list[tuple[int, int]] = []
        self._latest = _NOTHING_YET
        self._used = 0

    def following(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """As `OverlapLanes.following`."""
        lanes = np.zeros(len(start_ns), dtype=np.int32)
        if not len(lanes):
            return lanes
        # An operation that begins after all before it have ended, and has ended when the next begins, needs no search.
        latest = np.maximum(np.maximum.accumulate(end_ns), self._latest)
        before = np.append(self._latest, latest[:-1])
        fresh = start_ns >= before
        bounds = np.append(np.flatnonzero(fresh | (np.arange(len(lanes)) == 0)), len(lanes))
        searched = (np.diff(bounds) > 1) | ~fresh[bounds[:-1]]
        searched[-1] = True  # later calls go on with it
        for piece in np.flatnonzero(searched).tolist():
            first, last = bounds[piece : piece + 2].tolist()
            if fresh[first]:
                self._busy, self._free, self._used = [], [], 0
            self._colour(start_ns, end_ns, lanes, first, last)
        self._latest = int(latest[-1])
        return lanes

    def _colour(self, start_ns: np.ndarray, end_ns: np.ndarray, lanes: np.ndarray, first: int, last: int) -> None:
        """Greedy interval colouring of rows that go on with what is in flight, into `lanes`."""
        busy, free = self._busy, self._free
        ranges = zip(start_ns[first:last].tolist(), end_ns[first:last].tolist(), strict=True)
        for index, (start, end) in enumerate(ranges, first):
            while busy and busy[0][0] <= start:
                ended, lane = heapq.heappop(busy)
                heapq.heappush(free, (-ended, lane))
            if free:
                lane = heapq.heappop(free)[1]
            else:
                lane, self._used = self._used, self._used + 1
            lanes[index] = lane
            heapq.heappush(busy, (end, lane))


def overlap_lanes() -> OverlapLanes:
    """The compiled core, or the Python one where it was not compiled; nothing is in flight."""
    try:
        from dxt_replay.profiler_merge.darshan._overlap_lanes import CompiledOverlap
    except ImportError:
        return PythonOverlap()
    return CompiledOverlap()
