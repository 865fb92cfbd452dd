from libc.stdint cimport int32_t, int64_t

from dxt_replay.replay.engine.items cimport Item


cdef struct Lane:
    const Item *items
    const int64_t *durations
    int64_t *begins
    int64_t *ends
    int64_t count
    int64_t at
    int64_t now
    int64_t least        # what it waits for at its counter
    int64_t counter_shift
    int32_t next         # lane that waits at the same counter, or is ready too
    int32_t rank
    int32_t file_shift
    bint watched


cdef class Service:
    cdef int64_t serve(self, int64_t now, const Lane *lane, const Item *item) noexcept nogil
