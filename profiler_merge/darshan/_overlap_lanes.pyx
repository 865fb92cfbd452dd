# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# distutils: language = c++
"""Lanes of one rank's operations if the log does not name the issuing threads, one stretch after the other."""

import numpy as np

from libc.stdint cimport INT64_MIN, int32_t, int64_t
from libcpp.queue cimport priority_queue
from libcpp.utility cimport pair

ctypedef pair[int64_t, int32_t] Lane


cdef class OverlapLanes:
    """The fewest lanes on which no operations of a rank overlap, for operations that come in the order of their start.

    Each operation takes the lane that became free most recently (a reader that goes on reading is likely to be the
    same thread), the lowest of several. Where all operations before one have ended, it takes lane 0. Operations that
    touch (end == start) may share a lane.
    """

    cdef priority_queue[Lane] busy  # minus the end, and the lane: what ends first is on top
    cdef priority_queue[Lane] free  # since when, and minus the lane
    cdef int64_t latest
    cdef int32_t used

    def __cinit__(self):
        self.latest = INT64_MIN

    cdef int32_t _taken(self, int64_t start, int64_t end) except -1 nogil:
        """The lane of an operation (ns) that starts no earlier than the one before. Fails only without memory."""
        cdef int32_t lane
        while not self.busy.empty() and -self.busy.top().first <= start:
            self.free.push(Lane(-self.busy.top().first, -self.busy.top().second))
            self.busy.pop()
        if start >= self.latest:
            self.used = 0
            while not self.free.empty():
                self.free.pop()
        if self.free.empty():
            lane = self.used
            self.used += 1
        else:
            lane = -self.free.top().second
            self.free.pop()
        self.busy.push(Lane(-end, lane))
        self.latest = max(self.latest, end)
        return lane

    def following(self, start_ns, end_ns):
        """Assign lanes to the next batch, which follows those of earlier calls.

        Returns: int32 lane of each operation (times in int64 ns).
        """
        cdef const int64_t[::1] starts = np.ascontiguousarray(start_ns, dtype=np.int64)
        cdef const int64_t[::1] ends = np.ascontiguousarray(end_ns, dtype=np.int64)
        cdef int64_t row
        if len(ends) != len(starts):
            raise ValueError("an end is needed for each start")
        lanes = np.zeros(len(starts), dtype=np.int32)
        cdef int32_t[::1] found = lanes
        with nogil:
            for row in range(starts.shape[0]):
                found[row] = self._taken(starts[row], ends[row])
        return lanes
