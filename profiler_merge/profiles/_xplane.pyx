# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled XPlane core: protobuf wire bytes in, NumPy columns out; no policy.

Every read is checked against the end of the enclosing message, so damaged bytes end in DamageError("... at byte N").
A field whose number is beyond those of its message is one of a later version: it is skipped and counted. Any other
field that the format lacks is damage: a flipped tag must not silently drop an event. Field numbers are those of
`xplane.FIELDS`; here they appear as whole tags, number << 3 | wire type.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import DamageError

cdef extern from "<endian.h>" nogil:
    uint64_t le64toh(uint64_t value)

cdef enum:  # wire types; groups do not occur in proto3, fixed32 only in fields that are skipped
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5

cdef enum:
    EVENT_FIELDS = 5  # the largest numbers in XEvent and XStat
    STAT_FIELDS = 7
    LARGEST_FIELD = (1 << 29) - 1  # protobuf's own, as are the bytes of a tag
    TAG_BYTES = 5

cdef enum Problem:
    NONE
    CUT
    FOREIGN_FIELD
    UNKNOWN_NAME
    UNKNOWN_TEXT

cdef dict _PROBLEMS = {
    CUT: "is cut off",
    FOREIGN_FIELD: "has a field that the format lacks",
    UNKNOWN_NAME: "has a stat whose name is not in its plane",
    UNKNOWN_TEXT: "has a stat whose text is not in its plane",
}

cdef int64_t UNTIMED = <int64_t>(<uint64_t>1 << 63)  # offset of an event that carries num_occurrences and so no time

ctypedef const uint8_t* Bytes

cdef struct Number:
    uint64_t value
    Bytes after

cdef struct Field:
    uint64_t number
    int wire
    uint64_t value
    Bytes begin
    Bytes end

cdef struct Event:
    int64_t metadata_id
    int64_t offset
    int64_t duration

cdef struct Stats:  # the kept ones of all events; the caller has made room
    int32_t* event
    uint8_t* key
    uint8_t* kind
    uint64_t* value
    Py_ssize_t size
    int64_t skipped_in_events
    int64_t skipped_in_stats


cdef Number long_number(Bytes at, Bytes end) noexcept nogil:
    """A number and the byte after it, NULL when it is cut off or too long. By value: callers keep registers."""
    cdef Number number
    cdef uint64_t byte
    cdef int shift
    number.value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = at[0]
        at += 1
        number.value |= (byte & 0x7F) << shift  # the tenth byte keeps its lowest bit, as in protobuf
        if byte < 0x80:
            number.after = at
            return number
    number.after = NULL
    return number


cdef inline Bytes read_number(Bytes at, Bytes end, uint64_t* value) noexcept nogil:
    """Reads a varint between `at` and `end`; returns the byte after it, NULL when it is cut off or too long."""
    cdef Number number
    if at < end and at[0] < 0x80:  # most numbers have one byte
        value[0] = at[0]
        return at + 1
    number = long_number(at, end)
    value[0] = number.value
    return number.after


cdef inline Bytes read_double(Bytes at, Bytes end, uint64_t* value) noexcept nogil:
    """Reads the bits of a fixed64, little endian; returns the byte after it, NULL when it is cut off."""
    if end - at < 8:
        return NULL
    memcpy(value, at, 8)
    value[0] = le64toh(value[0])
    return at + 8


cdef inline Bytes read_length(Bytes at, Bytes end, uint64_t* length) noexcept nogil:
    """Reads a length and returns the byte after it; NULL when damaged, or when so many bytes do not follow."""
    at = read_number(at, end, length)
    return NULL if at == NULL or length[0] > <uint64_t>(end - at) else at


cdef Bytes read_field(Bytes at, Bytes end, Field* field) noexcept nogil:
    """Reads a tag and its payload; returns the byte after it, NULL when damaged. Parts are not looked into."""
    cdef uint64_t tag = 0, length = 0
    cdef Bytes begin = at
    field.value = 0
    field.begin = field.end = NULL
    at = read_number(at, end, &tag)
    if at == NULL or at - begin > TAG_BYTES or tag >> 3 > LARGEST_FIELD:
        return NULL
    field.number = tag >> 3
    field.wire = tag & 7
    if field.wire == VARINT:
        return read_number(at, end, &field.value)
    if field.wire == FIXED64:
        return read_double(at, end, &field.value)
    if field.wire == FIXED32:
        return at + 4 if end - at >= 4 else NULL
    if field.wire != BYTES:
        return NULL
    at = read_length(at, end, &length)
    if at == NULL:
        return NULL
    field.begin = at
    field.end = at + length
    return field.end


cdef Bytes skip_newer(Bytes at, Bytes end, uint64_t largest, int64_t* skipped) noexcept nogil:
    """The byte after a field whose number is beyond `largest`, counted; NULL for any other and a damaged one."""
    cdef Field field
    at = read_field(at, end, &field)
    if at == NULL or field.number <= largest:
        return NULL
    skipped[0] += 1
    return at


cdef inline Problem read_stat(
    Bytes base, Bytes at, Bytes end, Bytes stat_class, int64_t known, int32_t row, Stats* stats
) noexcept nogil:
    """One XStat; the last member of its oneof counts. A text is stored as its position << 32 | length."""
    cdef int64_t key = 0
    cdef uint64_t value = 0, number = 0, length = 0
    cdef uint8_t kind = 0, tag
    while at < end:
        tag = at[0]
        at += 1
        if tag == (1 << 3 | VARINT) or tag == (3 << 3 | VARINT) or tag == (4 << 3 | VARINT) or tag == (7 << 3 | VARINT):
            at = read_number(at, end, &number)
            if tag == (1 << 3 | VARINT):
                key = <int64_t>number
            else:
                kind = tag >> 3
                value = number
        elif tag == (2 << 3 | FIXED64):
            at = read_double(at, end, &value)
            kind = 2
        elif tag == (5 << 3 | BYTES) or tag == (6 << 3 | BYTES):
            at = read_length(at, end, &length)
            if at == NULL:
                return CUT
            kind = tag >> 3
            value = <uint64_t>(at - base) << 32 | length
            at += length
        else:
            at = skip_newer(at - 1, end, STAT_FIELDS, &stats.skipped_in_stats)
            if at == NULL:
                return FOREIGN_FIELD
        if at == NULL:
            return CUT
    if key < 0 or key >= known or stat_class[key] == 0:
        return UNKNOWN_NAME
    if kind == 7 and (value >= <uint64_t>known or stat_class[value] == 0):
        return UNKNOWN_TEXT
    if stat_class[key] >= 2 and kind:
        stats.event[stats.size] = row
        stats.key[stats.size] = stat_class[key] - 2
        stats.kind[stats.size] = kind
        stats.value[stats.size] = value
        stats.size += 1
    return NONE


cdef Problem read_event(
    Bytes base, Bytes at, Bytes end, Bytes stat_class, int64_t known, int32_t row, Event* event, Stats* stats
) noexcept nogil:
    """One XEvent and its stats."""
    cdef uint64_t number = 0
    cdef uint8_t tag
    cdef Problem problem
    event.metadata_id = event.offset = event.duration = 0
    while at < end:
        tag = at[0]
        if tag > (EVENT_FIELDS << 3 | 7):
            at = skip_newer(at, end, EVENT_FIELDS, &stats.skipped_in_events)
            if at == NULL:
                return FOREIGN_FIELD
            continue
        at = read_number(at + 1, end, &number)
        if at == NULL:
            return CUT
        if tag == (4 << 3 | BYTES):
            if number > <uint64_t>(end - at):
                return CUT
            problem = read_stat(base, at, at + number, stat_class, known, row, stats)
            if problem != NONE:
                return problem
            at += number
        elif tag == (1 << 3 | VARINT):
            event.metadata_id = <int64_t>number
        elif tag == (2 << 3 | VARINT):
            event.offset = <int64_t>number
        elif tag == (3 << 3 | VARINT):
            event.duration = <int64_t>number
        elif tag == (5 << 3 | VARINT):
            event.offset = UNTIMED
        else:
            return FOREIGN_FIELD
    return NONE


cdef Bytes base_of(const uint8_t[::1] buffer) except? NULL:
    """Where the buffer begins. Positions are stored in 32 bits, hence the limit (protobuf's own)."""
    if buffer.shape[0] == 0 or buffer.shape[0] > 0x7FFFFFFF:
        raise DamageError(f"{buffer.shape[0]} bytes, which is not between 1 and 2**31 - 1")
    return &buffer[0]


cdef int check_range(const uint8_t[::1] buffer, Py_ssize_t begin, Py_ssize_t end) except -1:
    if begin < 0 or end < begin or end > buffer.shape[0]:
        raise DamageError(f"bytes {begin} to {end} are not inside the file")
    return 0


cdef Bytes next_field(Bytes base, Bytes at, Bytes end, Field* field, const uint8_t[::1] wires) except NULL:
    """The next field of a message whose fields `wires` lists, or one whose number is beyond them."""
    cdef Bytes after = read_field(at, end, field)
    if after == NULL:
        raise DamageError(f"the field at byte {at - base} is cut off or longer than what holds it")
    if field.number < <uint64_t>wires.shape[0] and not (wires[field.number] >> field.wire) & 1:
        raise DamageError(
            f"the field at byte {at - base} (number {field.number}, wire type {field.wire}) is one that the format lacks"
        )
    return after


def split(const uint8_t[::1] buffer, Py_ssize_t begin, Py_ssize_t end, const uint8_t[::1] wires):
    """All fields of one message, in order: (numbers, begins, ends) of its parts; see `_xplane.pyi`."""
    cdef Bytes base = base_of(buffer), at = base + begin
    cdef Field field
    cdef Py_ssize_t n = 0, skipped = 0
    check_range(buffer, begin, end)
    while at < base + end:
        at = next_field(base, at, base + end, &field, wires)
        if field.number < <uint64_t>wires.shape[0]:
            n += 1
        else:
            skipped += 1
    numbers, begins, ends = (np.zeros(n, np.int64) for _ in range(3))
    cdef int64_t[::1] number = numbers, start = begins, stop = ends
    at = base + begin
    n = 0
    while n < number.shape[0]:
        at = next_field(base, at, base + end, &field, wires)
        if field.number >= <uint64_t>wires.shape[0]:
            continue
        number[n] = <int64_t>field.number
        if field.begin != NULL:
            start[n] = field.begin - base
            stop[n] = field.end - base
        n += 1
    return numbers, begins, ends, skipped


def pick(const uint8_t[::1] buffer, const int64_t[::1] begins, const int64_t[::1] ends, const uint8_t[::1] wires):
    """The last value of each field number, for many messages of one type: four (n, len(wires)) arrays."""
    cdef Bytes base = base_of(buffer), at
    cdef Field field
    cdef Py_ssize_t i, skipped = 0
    shape = (begins.shape[0], wires.shape[0])
    values = np.zeros(shape, np.uint64)
    starts, stops, counts = (np.zeros(shape, np.int64) for _ in range(3))
    cdef uint64_t[:, ::1] value = values
    cdef int64_t[:, ::1] start = starts, stop = stops, count = counts
    for i in range(begins.shape[0]):
        check_range(buffer, begins[i], ends[i])
        at = base + begins[i]
        while at < base + ends[i]:
            at = next_field(base, at, base + ends[i], &field, wires)
            if field.number >= <uint64_t>wires.shape[0]:
                skipped += 1
                continue
            value[i, field.number] = field.value
            start[i, field.number] = 0 if field.begin == NULL else field.begin - base
            stop[i, field.number] = 0 if field.begin == NULL else field.end - base
            count[i, field.number] += 1
    return values, starts, stops, counts, skipped


def events(
    const uint8_t[::1] buffer,
    const int64_t[::1] begins,
    const int64_t[::1] ends,
    Py_ssize_t capacity,
    const uint8_t[::1] stat_class,
):
    """All events of the XLines at begins..ends and their wanted stats, in file order; see `_xplane.pyi`."""
    columns = tuple(np.empty(capacity, np.int64) for _ in range(3))
    stat_columns = _resized(None, max(capacity, 64))
    cdef int64_t[::1] metadata_id = columns[0], offset = columns[1], duration = columns[2]
    cdef Bytes base = base_of(buffer), at, end
    cdef Field field
    cdef Event event
    cdef Stats stats
    cdef Problem problem
    cdef Py_ssize_t n = 0, i, room = len(stat_columns[0])
    stats.size = stats.skipped_in_events = stats.skipped_in_stats = 0
    point_to(&stats, stat_columns)
    for i in range(begins.shape[0]):
        check_range(buffer, begins[i], ends[i])
        at = base + begins[i]
        end = base + ends[i]
        while at < end:
            at = read_field(at, end, &field)
            if at == NULL:
                raise DamageError(f"the line at byte {begins[i]} is cut off")
            if field.number != 4 or field.wire != BYTES:
                continue  # the header, which `pick` has read and checked
            if n >= capacity:
                raise DamageError(f"there are more events than were counted at byte {field.begin - base}")
            if field.end - field.begin > 2 * (room - stats.size):  # a stat has at least its tag and its length
                room = 2 * room + (field.end - field.begin)
                stat_columns = _resized(stat_columns, room)
                point_to(&stats, stat_columns)
            problem = read_event(
                base, field.begin, field.end, &stat_class[0], stat_class.shape[0], <int32_t>n, &event, &stats
            )
            if problem != NONE:
                raise DamageError(f"the event at byte {field.begin - base} {_PROBLEMS[problem]}")
            metadata_id[n] = event.metadata_id
            offset[n] = event.offset
            duration[n] = event.duration
            n += 1
    skipped = stats.skipped_in_events, stats.skipped_in_stats
    return *(column[:n] for column in columns), *(column[: stats.size] for column in stat_columns), *skipped


cdef int point_to(Stats* stats, columns) except -1:
    """Lets `stats` write into the columns of `_resized`, which must outlive it."""
    cdef int32_t[::1] event = columns[0]
    cdef uint8_t[::1] key = columns[1], kind = columns[2]
    cdef uint64_t[::1] value = columns[3]
    stats.event = &event[0]
    stats.key = &key[0]
    stats.kind = &kind[0]
    stats.value = &value[0]
    return 0


def _resized(old, size):
    """Stat columns (event, key, kind, value) with room for `size` rows, the first ones those of `old`."""
    columns = tuple(np.empty(size, dtype) for dtype in (np.int32, np.uint8, np.uint8, np.uint64))
    for column, previous in zip(columns, old or ()):
        column[: len(previous)] = previous
    return columns
