# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Passes over int64 columns that NumPy would make with many temporary arrays."""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from *:
    """
    #define GOLDEN 0x9E3779B97F4A7C15ULL
    """
    const uint64_t _GOLDEN "GOLDEN"


def newly_covered(starts, ends, int64_t reach):
    """What intervals in the order of their start cover beyond `reach` and the intervals before them.

    Returns: starts and ends, disjoint and ascending (they may touch), and the largest end so far.
    """
    cdef const int64_t[::1] since = np.ascontiguousarray(starts, dtype=np.int64)
    cdef const int64_t[::1] until = np.ascontiguousarray(ends, dtype=np.int64)
    cdef Py_ssize_t row, count = 0, rows = _alike(since.shape[0], until.shape[0])
    begins, stops = np.empty((2, rows), dtype=np.int64)
    cdef int64_t[::1] begin = begins
    cdef int64_t[::1] stop = stops
    with nogil:
        for row in range(rows):
            if until[row] > max(since[row], reach):
                begin[count] = max(since[row], reach)
                stop[count] = until[row]
                count += 1
            reach = max(reach, until[row])
    return begins[:count], stops[:count], reach


def joined(starts, ends):
    """Intervals that ascend and do not overlap, those that touch joined: new arrays of starts and ends."""
    cdef const int64_t[::1] since = np.ascontiguousarray(starts, dtype=np.int64)
    cdef const int64_t[::1] until = np.ascontiguousarray(ends, dtype=np.int64)
    cdef Py_ssize_t row, count = 0, rows = _alike(since.shape[0], until.shape[0])
    begins, stops = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    cdef int64_t[::1] begin = begins
    cdef int64_t[::1] stop = stops
    with nogil:
        for row in range(rows):
            if not count or stop[count - 1] < since[row]:
                begin[count] = since[row]
                count += 1
            stop[count - 1] = until[row]
    return (begins, stops) if count == rows else (begins[:count].copy(), stops[:count].copy())


def covered_before(starts, ends, times):
    """int64 (n,): the length of disjoint ascending intervals before each of `times` (n,), which are fastest in order."""
    cdef const int64_t[::1] since = np.ascontiguousarray(starts, dtype=np.int64)
    cdef const int64_t[::1] until = np.ascontiguousarray(ends, dtype=np.int64)
    cdef const int64_t[::1] asked = np.ascontiguousarray(times, dtype=np.int64)
    cdef Py_ssize_t row, middle, low, high, count = _alike(since.shape[0], until.shape[0])
    cdef Py_ssize_t begun = 0  # intervals that start at or before the time
    covered = np.zeros(asked.shape[0], dtype=np.int64)
    lengths = np.zeros(count + 1, dtype=np.int64)
    cdef int64_t[::1] found = covered
    cdef int64_t[::1] length = lengths
    with nogil:
        for row in range(count):
            length[row + 1] = length[row] + until[row] - since[row]
        for row in range(asked.shape[0]):
            low, high = begun, count
            if begun and since[begun - 1] > asked[row]:
                low, high = 0, begun - 1
            elif begun == count or since[begun] > asked[row]:
                high = begun
            elif begun + 1 == count or since[begun + 1] > asked[row]:
                low = high = begun + 1
            while low < high:
                middle = (low + high) // 2
                if since[middle] <= asked[row]:
                    low = middle + 1
                else:
                    high = middle
            begun = low
            found[row] = length[begun]
            if begun and until[begun - 1] > asked[row]:
                found[row] -= until[begun - 1] - asked[row]
    return covered


def in_flight(open_ends, starts, ends):
    """How many of the intervals that began, the new one included, have not ended at each start.

    `open_ends`: of those that were in flight before, as this function returned them; `starts`, ascending, and `ends`: of
    the new ones. Returns: int64 (starts,), and the ends of those in flight at the last start.
    """
    cdef const int64_t[::1] start = np.ascontiguousarray(starts, dtype=np.int64)
    cdef const int64_t[::1] end = np.ascontiguousarray(ends, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(start.shape[0], end.shape[0]), size = len(open_ends), place, child
    counts, kept = np.empty(rows, dtype=np.int64), np.empty(size + rows, dtype=np.int64)
    kept[:size] = open_ends
    cdef int64_t[::1] count = counts
    cdef int64_t[::1] heap = kept  # the earliest first; places 2 i + 1 and 2 i + 2 come after place i
    with nogil:
        for row in range(rows):
            while size and heap[0] <= start[row]:
                size -= 1
                place, child = 0, 1
                while child < size:
                    if child + 1 < size and heap[child + 1] < heap[child]:
                        child += 1
                    if heap[size] <= heap[child]:
                        break
                    heap[place] = heap[child]
                    place, child = child, 2 * child + 1
                heap[place] = heap[size]
            place = size
            while place and heap[(place - 1) // 2] > end[row]:
                heap[place] = heap[(place - 1) // 2]
                place = (place - 1) // 2
            heap[place] = end[row]
            size += 1
            count[row] = size
    return counts, kept[:size].copy()


def add_at(int64_t[:] totals, places, amounts):
    """totals[places[i]] += amounts[i]. Raises: IndexError for a place outside of `totals`."""
    cdef const int64_t[::1] place = np.ascontiguousarray(places, dtype=np.int64)
    cdef const int64_t[::1] amount = np.ascontiguousarray(amounts, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(place.shape[0], amount.shape[0])
    for row in range(rows):
        if place[row] < 0 or place[row] >= totals.shape[0]:
            raise IndexError(f"place {place[row]} of {totals.shape[0]} totals")
        totals[place[row]] += amount[row]


def add_to_curves(double[:, ::1] changes, int64_t bin_ns, int64_t origin_ns, starts, ends, lengths):
    """Add operations to two curves over bins of `bin_ns`: how many are in flight, and their bytes, spread evenly. Times
    count from `origin_ns`; those before and after the bins are moved to the first and to the last instant.

    `changes` (bins, 4): of both, the share of the bin in which it changes, and the change of its level from the next bin
    on. Raises: IndexError without bins.
    """
    cdef const int64_t[::1] start = np.ascontiguousarray(starts, dtype=np.int64)
    cdef const int64_t[::1] end = np.ascontiguousarray(ends, dtype=np.int64)
    cdef const int64_t[::1] length = np.ascontiguousarray(lengths, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(start.shape[0], end.shape[0])
    cdef int64_t place, last, since, until, last_ns = changes.shape[0] * bin_ns - 1
    cdef double rate
    _alike(rows, length.shape[0]), _alike(changes.shape[1], 4)
    if rows and last_ns < 0:
        raise IndexError("there are no bins")
    for row in range(rows):
        since = min(max(start[row] - origin_ns, 0), last_ns)
        until = min(max(end[row] - origin_ns, since), last_ns)
        place, last = since // bin_ns, until // bin_ns
        if place == last:
            changes[place, 0] += until - since
            changes[place, 2] += length[row]
        else:
            rate = <double> length[row] / (until - since)
            _change_level(&changes[place, 0], (place + 1) * bin_ns - since, 1, rate)
            _change_level(&changes[last, 0], (last + 1) * bin_ns - until, -1, -rate)


cdef inline void _change_level(double *changes, int64_t rest_ns, double one, double rate) noexcept nogil:
    changes[0] += one * rest_ns
    changes[1] += one
    changes[2] += rate * rest_ns
    changes[3] += rate


def rates(const int64_t[:] lengths, const int64_t[:] durations, double unit):
    """float64, length / duration * unit of each row with both; and how many have a length alone."""
    cdef Py_ssize_t row, count = 0, unmeasured = 0, rows = _alike(lengths.shape[0], durations.shape[0])
    rates_ = np.empty(rows)
    cdef double[::1] rate = rates_
    with nogil:
        for row in range(rows):
            if lengths[row] > 0 and durations[row] > 0:
                rate[count] = <double> lengths[row] / <double> durations[row] * unit
                count += 1
            else:
                unmeasured += lengths[row] > 0
    return rates_[:count], unmeasured


cdef class KeyTable:
    """Numbers by key, `columns` int64 for each, 0 at first: a hash table. A key is int64 and not negative."""

    cdef int64_t *rows  # (places, 1 + columns): key + 1, or 0 in an empty place, and the numbers
    cdef Py_ssize_t places, used, width

    def __cinit__(self, int columns):
        self.width = 1 + columns
        self._resize(64)

    def __dealloc__(self):
        free(self.rows)

    cdef int64_t *numbers(self, int64_t key) except NULL nogil:
        """The numbers of a key, until the next key is asked for. Raises: MemoryError."""
        cdef int64_t *row = self._row(key + 1)
        if not row[0]:
            if 2 * self.used >= self.places:
                self._resize(4 * self.places)
                row = self._row(key + 1)
            row[0] = key + 1
            self.used += 1
        return row + 1

    cdef int64_t *_row(self, int64_t stored) noexcept nogil:
        cdef uint64_t place = (<uint64_t> stored * _GOLDEN) >> 32 & (self.places - 1)
        while self.rows[place * self.width] and self.rows[place * self.width] != stored:
            place = (place + 1) & (self.places - 1)
        return self.rows + place * self.width

    cdef int _resize(self, Py_ssize_t places) except -1 nogil:
        cdef int64_t *old = self.rows
        cdef Py_ssize_t place, before = self.places, size = self.width * sizeof(int64_t)
        cdef int64_t *rows = <int64_t *> calloc(places, size)
        if rows == NULL:
            with gil:
                raise MemoryError
        self.rows, self.places = rows, places
        for place in range(before):
            if old[place * self.width]:
                memcpy(self._row(old[place * self.width]), old + place * self.width, size)
        free(old)
        return 0

    def sorted(self):
        """The keys, ascending, and their numbers: int64 (keys,) and (keys, columns)."""
        cdef Py_ssize_t place, row = 0
        found = np.empty((self.used, self.width), dtype=np.int64)
        cdef int64_t[:, ::1] to = found
        for place in range(self.places):
            if self.rows[place * self.width]:
                memcpy(&to[row, 0], self.rows + place * self.width, self.width * sizeof(int64_t))
                row += 1
        found = found[np.argsort(found[:, 0])]
        return found[:, 0] - 1, found[:, 1:]


cdef inline uint64_t _mixed(uint64_t value) noexcept nogil:
    value = (value ^ (value >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t> 0x94D049BB133111EB
    return value ^ (value >> 31)


cdef inline uint64_t _print(int8_t op, int64_t offset, int64_t length) noexcept nogil:
    return _mixed(_mixed(<uint64_t> offset + _GOLDEN * <uint64_t> (1 + op)) ^ <uint64_t> length)


def mix_prints(values):
    """splitmix64 of each number: uint64 (n,)."""
    cdef Py_ssize_t row
    mixed = np.array(values, dtype=np.uint64)
    cdef uint64_t[::1] value = mixed
    for row in range(value.shape[0]):
        value[row] = _mixed(value[row])
    return mixed


def add_sequences(KeyTable by_file, KeyTable by_lane, files, lanes, ops, offsets, lengths, int read, int write):
    """Continue the sequences of files, and of lanes on files, with operations; `read` and `write`: the codes of those that
    move data. The prints are of these alone.

    `by_file`: (number, print, bytes read, bytes written, and how often each code occurs) by file; `by_lane`: (number,
    print) by file << 32 | lane. Raises: IndexError for a code that `by_file` does not have.
    """
    cdef const int64_t[::1] file = np.ascontiguousarray(files, dtype=np.int64)
    cdef const int32_t[::1] lane = np.ascontiguousarray(lanes, dtype=np.int32)
    cdef const int8_t[::1] op = np.ascontiguousarray(ops, dtype=np.int8)
    cdef const int64_t[::1] offset = np.ascontiguousarray(offsets, dtype=np.int64)
    cdef const int64_t[::1] length = np.ascontiguousarray(lengths, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(op.shape[0], file.shape[0])
    cdef uint64_t printed
    cdef int64_t *sums
    _alike(rows, lane.shape[0]), _alike(rows, offset.shape[0]), _alike(rows, length.shape[0])
    if rows and not 0 <= ops.min() <= ops.max() < by_file.width - 5:
        raise IndexError("an unknown operation")
    with nogil:
        for row in range(rows):
            sums = by_file.numbers(file[row])
            sums[4 + op[row]] += 1
            if op[row] == read or op[row] == write:
                printed = _print(op[row], offset[row], length[row])
                sums[2 + (op[row] == write)] += length[row]
                _continue(sums, printed)
                _continue(by_lane.numbers(file[row] << 32 | lane[row]), printed)


cdef inline void _continue(int64_t *sequence, uint64_t printed) noexcept nogil:
    """Add the next operation's number to (number of operations, print)."""
    printed = _mixed(printed + <uint64_t> sequence[0] * _GOLDEN)
    sequence[1] = <int64_t> (<uint64_t> sequence[1] + printed)
    sequence[0] += 1


def follow_lanes(KeyTable by_lane, lanes, starts, int64_t stride):
    """Continue lanes, (operations, last start) in `by_lane`. Returns: int64, the times between starts on a lane, and the
    rows that are each lane's operation number 0, stride, 2 stride and so on."""
    cdef const int64_t[::1] lane = np.ascontiguousarray(lanes, dtype=np.int64)
    cdef const int64_t[::1] start = np.ascontiguousarray(starts, dtype=np.int64)
    cdef Py_ssize_t row, count = 0, samples = 0, rows = _alike(lane.shape[0], start.shape[0])
    cdef int64_t *last
    gaps, sampled = np.empty((2, rows), dtype=np.int64)
    cdef int64_t[::1] gap = gaps
    cdef int64_t[::1] sample = sampled
    _alike(by_lane.width, 3)
    with nogil:
        for row in range(rows):
            last = by_lane.numbers(lane[row])
            gap[count] = start[row] - last[1]
            count += last[0] > 0
            if last[0] % stride == 0:
                sample[samples] = row
                samples += 1
            last[0] += 1
            last[1] = start[row]
    return gaps[:count], sampled[:samples].copy()


def follow_last_bytes(int64_t[:, ::1] state, ranks, kinds, files, offsets, lengths):
    """Accesses with a known offset, and how many of them are sequential and consecutive in Darshan's sense.

    `kinds`: 0 for a read, 1 for a write, 2 for what sets both last bytes back, others are ignored; `ranks`: of each row,
    or of all. `state`: (2 * files, 3), by file and direction: the last rank, its first offset (-1: set back), and its
    last byte. Raises: IndexError for a file that `state` does not have.
    """
    cdef const int32_t[::1] rank = np.ascontiguousarray(ranks, dtype=np.int32)
    cdef const int8_t[::1] kind = np.ascontiguousarray(kinds, dtype=np.int8)
    cdef const int32_t[::1] file = np.ascontiguousarray(files, dtype=np.int32)
    cdef const int64_t[::1] offset = np.ascontiguousarray(offsets, dtype=np.int64)
    cdef const int64_t[::1] length = np.ascontiguousarray(lengths, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(kind.shape[0], file.shape[0])
    cdef Py_ssize_t way, each = 0 if rank.shape[0] == 1 else 1
    cdef int64_t accesses = 0, sequential = 0, consecutive = 0, before
    cdef int64_t *last
    _alike(rows, offset.shape[0]), _alike(rows, length.shape[0]), _alike(rows if each else 1, rank.shape[0])
    _check_places(file, state.shape[0] // 2)
    with nogil:
        for row in range(rows):
            if kind[row] == 2:
                for way in range(2):
                    last = &state[2 * file[row] + way, 0]
                    if last[0] != rank[each * row]:
                        last[0], last[1] = rank[each * row], -1
                    last[2] = 0
            elif 0 <= kind[row] < 2 and offset[row] >= 0:
                last = &state[2 * file[row] + kind[row], 0]
                if last[0] != rank[each * row]:
                    last[0], last[1], last[2] = rank[each * row], offset[row], 0
                accesses += 1
                sequential += offset[row] > last[2]
                consecutive += offset[row] == last[2] + 1
                last[2] = offset[row] + length[row] - 1
    return accesses, sequential, consecutive


cdef enum:
    _NUMBERS = 8

ORDER_STATE = _NUMBERS
"""Numbers by file and direction: accesses so far, at most 2; offset, length and distance of the last one; offset and
length of the first one and of the second."""


def count_accesses(int64_t[:, ::1] counts, int64_t[:, ::1] order, written, files, offsets, lengths, durations, smalls):
    """Add reads and writes of one rank to `counts` (files, 12 or more): by file the reads, writes, bytes read and written,
    time, sequential, consecutive, strided, restarted and random accesses, small reads and small writes.

    `order`: (2 * files, ORDER_STATE). `smalls`: by file, the size of requests that are not small.
    Raises: IndexError for a file that `counts` does not have.
    """
    cdef const int8_t[::1] write = np.ascontiguousarray(written, dtype=np.int8)
    cdef const int32_t[::1] file = np.ascontiguousarray(files, dtype=np.int32)
    cdef const int64_t[::1] offset = np.ascontiguousarray(offsets, dtype=np.int64)
    cdef const int64_t[::1] length = np.ascontiguousarray(lengths, dtype=np.int64)
    cdef const int64_t[::1] duration = np.ascontiguousarray(durations, dtype=np.int64)
    cdef const int64_t[::1] small = np.ascontiguousarray(smalls, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(write.shape[0], file.shape[0])
    cdef int64_t *sums
    _alike(rows, offset.shape[0]), _alike(rows, length.shape[0]), _alike(rows, duration.shape[0])
    _alike(counts.shape[0], small.shape[0]), _alike(2 * counts.shape[0], order.shape[0])
    _alike(min(counts.shape[1], 12), 12), _alike(order.shape[1], _NUMBERS)
    _check_places(file, counts.shape[0])
    with nogil:
        for row in range(rows):
            sums = &counts[file[row], 0]
            sums[write[row] != 0] += 1
            sums[2 + (write[row] != 0)] += length[row]
            sums[4] += duration[row]
            if length[row] > 0:
                sums[10 + (write[row] != 0)] += length[row] < small[file[row]]
                if offset[row] >= 0:
                    _classify(sums + 5, &order[2 * file[row] + (write[row] != 0), 0], offset[row], length[row], 1)


cdef inline void _classify(int64_t *classes, int64_t *last, int64_t offset, int64_t length, int64_t one) noexcept nogil:
    """Add `one` to the classes of an access: sequential, consecutive, strided, restart, random."""
    cdef int64_t moved
    if last[0]:
        moved = offset - last[1]
        if moved >= last[2]:
            classes[0] += one
        if moved == last[2]:
            classes[1] += one
        elif last[0] > 1 and moved == last[3] and moved:
            classes[2] += one
        elif not offset:
            classes[3] += one
        else:
            classes[4] += one
        last[3] = moved
    if last[0] < 2:
        last[4 + 2 * last[0]], last[5 + 2 * last[0]] = offset, length
        last[0] += 1
    last[1], last[2] = offset, length


cdef int _check_places(const int32_t[::1] places, Py_ssize_t count) except -1:
    cdef Py_ssize_t row
    for row in range(places.shape[0]):
        if places[row] < 0 or places[row] >= count:
            raise IndexError(f"place {places[row]} of {count}")
    return 0


cdef Py_ssize_t _alike(Py_ssize_t one, Py_ssize_t other) except -1:
    if one != other:
        raise ValueError("the columns must be of equal length")
    return one
