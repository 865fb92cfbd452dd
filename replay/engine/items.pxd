"""Items for the compiled cores: see items.py. The core of the issue loop compares both at its import."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cdef enum:
    READ_AT, WRITE_AT, OPEN, CLOSE, STAT, SYNC, SEEK, RENAME, LIST, DELETE, SLEEP, SPIN, MARK, WAIT, ADD

cdef struct Item:
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

cdef enum:
    ABSOLUTE, THINK, NONE  # of LoopPace

cdef enum:
    RING_BATCHES = 8

cdef enum:
    READ_AHEAD = -2  # of OPEN
    READ_NO_FURTHER = -3

cdef enum:
    NO_OPEN, OPENS, AWAITS_OPEN
