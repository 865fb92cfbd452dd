from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t


cdef struct Item:  # a row of dxt_replay.replay.plan.plan_row.PLAN_ROW
    uint8_t kind
    int8_t code
    int8_t api
    int8_t origin
    int32_t slot
    int32_t subject
    int32_t step
    int64_t place
    int64_t amount
    int64_t due_ns


cdef class Service:
    cdef int64_t serve(self, int64_t now, int64_t rank, int64_t file_shift, const Item *item) except -1 nogil
