from libc.stdint cimport int32_t, int64_t

from dxt_replay.replay.engine.items cimport Item


cdef class Service:
    cdef int64_t serve(self, int64_t now, int64_t rank, int64_t file_shift, const Item *item) except -1 nogil
