# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `profiler_merge.darshan.overlap_lanes`, which says what it does: the same lanes."""

import numpy as np

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc

cdef struct Lane:
    int64_t key   # when its operation ends; in the heap of free lanes the negative of that
    int32_t lane

cdef int64_t NOTHING_YET = np.iinfo(np.int64).min


cdef inline bint less(Lane one, Lane other) noexcept nogil:
    return one.key < other.key or (one.key == other.key and one.lane < other.lane)


cdef inline void push(Lane *heap, int64_t count, Lane item) noexcept nogil:
    """Put an item into a heap of `count`."""
    cdef int64_t place = count, above
    while place > 0:
        above = (place - 1) >> 1
        if not less(item, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = item


cdef inline Lane pop(Lane *heap, int64_t count) noexcept nogil:
    """Take the least item from a heap of `count`, at least one."""
    cdef Lane found = heap[0], item = heap[count - 1]
    cdef int64_t place = 0, below
    count -= 1
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and less(heap[below + 1], heap[below]):
            below += 1
        if not less(heap[below], item):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = item
    return found


cdef class CompiledOverlap:
    """`OverlapLanes`, compiled."""

    cdef Lane *busy
    cdef Lane *idle
    cdef int64_t n_busy, n_idle, room, latest
    cdef int32_t used

    def __cinit__(self):
        self.busy = self.idle = NULL
        self.n_busy = self.n_idle = self.room = 0
        self.latest = NOTHING_YET
        self.used = 0

    def __dealloc__(self):
        free(self.busy)
        free(self.idle)

    cdef bint _grow(self) noexcept nogil:
        """Room for twice the lanes. Returns whether there is memory for that."""
        cdef int64_t room = 2 * self.room if self.room else 16
        cdef Lane *grown = <Lane *> realloc(self.busy, room * sizeof(Lane))
        if grown == NULL:
            return False
        self.busy = grown
        grown = <Lane *> realloc(self.idle, room * sizeof(Lane))
        if grown == NULL:
            return False
        self.idle = grown
        self.room = room
        return True

    cdef int _colour(self, const int64_t *start, const int64_t *end, int32_t *lanes, int64_t count) noexcept nogil:
        cdef int64_t row
        cdef Lane item
        for row in range(count):
            if start[row] >= self.latest:
                self.n_busy = self.n_idle = 0
                self.used = 0
            while self.n_busy and self.busy[0].key <= start[row]:
                item = pop(self.busy, self.n_busy)
                self.n_busy -= 1
                item.key = -item.key
                push(self.idle, self.n_idle, item)
                self.n_idle += 1
            if self.n_idle:
                item = pop(self.idle, self.n_idle)
                self.n_idle -= 1
            else:
                if self.used == self.room and not self._grow():
                    return -1
                item.lane = self.used
                self.used += 1
            lanes[row] = item.lane
            item.key = end[row]
            push(self.busy, self.n_busy, item)
            self.n_busy += 1
            self.latest = max(self.latest, end[row])
        return 0

    def following(self, start_ns, end_ns):
        """As `OverlapLanes.following`."""
        cdef const int64_t[::1] starts = np.ascontiguousarray(start_ns, dtype=np.int64)
        cdef const int64_t[::1] ends = np.ascontiguousarray(end_ns, dtype=np.int64)
        cdef int64_t count = starts.shape[0]
        if ends.shape[0] != count:
            raise ValueError("an end is needed for each start")
        lanes = np.zeros(count, dtype=np.int32)
        cdef int32_t[::1] found = lanes
        cdef int failed = 0
        if count:
            with nogil:
                failed = self._colour(&starts[0], &ends[0], &found[0], count)
        if failed:
            raise MemoryError
        return lanes
