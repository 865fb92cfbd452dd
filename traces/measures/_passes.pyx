# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Passes over int64 columns that NumPy would make with many temporary arrays."""

import numpy as np

from libc.stdint cimport int64_t


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


def in_flight(known, starts):
    """How many of the intervals that began, the new one included, have not ended at each start.

    `known`: the ends of those that were in flight before and of the new ones, ascending; `starts`: of the new ones,
    ascending. Returns: int64 (starts,), and how many of `known` lie at or before the last start.
    """
    cdef const int64_t[::1] end = np.ascontiguousarray(known, dtype=np.int64)
    cdef const int64_t[::1] start = np.ascontiguousarray(starts, dtype=np.int64)
    cdef Py_ssize_t row, ended = 0, earlier = end.shape[0] - start.shape[0]
    counts = np.empty(start.shape[0], dtype=np.int64)
    cdef int64_t[::1] count = counts
    with nogil:
        for row in range(start.shape[0]):
            while ended < end.shape[0] and end[ended] <= start[row]:
                ended += 1
            count[row] = earlier + row + 1 - ended
    return counts, ended


def add_at(int64_t[::1] totals, places, amounts):
    """totals[places[i]] += amounts[i]. Raises: IndexError for a place outside of `totals`."""
    cdef const int64_t[::1] place = np.ascontiguousarray(places, dtype=np.int64)
    cdef const int64_t[::1] amount = np.ascontiguousarray(amounts, dtype=np.int64)
    cdef Py_ssize_t row, rows = _alike(place.shape[0], amount.shape[0])
    for row in range(rows):
        if place[row] < 0 or place[row] >= totals.shape[0]:
            raise IndexError(f"place {place[row]} of {totals.shape[0]} totals")
        totals[place[row]] += amount[row]


cdef Py_ssize_t _alike(Py_ssize_t one, Py_ssize_t other) except -1:
    if one != other:
        raise ValueError("the columns must be of equal length")
    return one
