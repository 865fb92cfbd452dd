# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# distutils: language = c++
"""The text of many rows at once, from columns of numbers and of texts."""

import numpy as np

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

cdef enum:
    NUMBER_BYTES = 21  # a sign, 19 digits and a point
    MOST_DIGITS = 18
    MINUS = 45  # characters
    POINT = 46
    ZERO = 48


cdef struct Column:
    const char* before
    int64_t before_bytes
    const int64_t* values  # NULL for a constant text
    const uint8_t* present  # NULL if every row has it
    const char* texts  # NULL for numbers
    const int64_t* edges
    int64_t digits


cdef class Texts:
    """The texts that a column chooses from. `sizes`: bytes of each."""

    cdef bytes joined
    cdef object edges, sizes

    def __init__(self, texts):
        self.joined = b"".join(texts)
        self.sizes = np.array([len(text) for text in texts], dtype=np.int64)
        self.edges = np.concatenate([[0], np.cumsum(self.sizes)])


cdef class Part:
    """A column of a row's text: `before`, then a value, for the rows where `present` is true; else nothing.

    `values` int (n,): numbers, with `digits` of them after a point (1500 with three is 1.500), or indices of `texts`.
    Without `values`, `before` alone.
    Raises: IndexError for an index that `texts` does not have, even where it is not present.
    """

    cdef Column column
    cdef int64_t rows  # -1 for a constant text
    cdef bint is_absent  # from all rows
    cdef object most_bytes
    cdef list kept

    def __init__(self, bytes before, values=None, *, Texts texts=None, int digits=0, present=None):
        cdef const int64_t[::1] numbers
        cdef const uint8_t[::1] mask
        if not 0 <= digits <= MOST_DIGITS:
            raise ValueError(f"{digits} digits after a point: at most {MOST_DIGITS}")
        self.rows = -1
        self.most_bytes = 0
        self.kept = [before, texts]
        self.column.before, self.column.before_bytes = before, len(before)
        self.column.digits = digits
        if values is not None:
            numbers = values = np.ascontiguousarray(values, dtype=np.int64)
            self.kept.append(values)
            self.rows = len(numbers)
            self.most_bytes = self.rows * NUMBER_BYTES if texts is None else self._choose(values, texts)
            self.column.values = &numbers[0] if self.rows else NULL
        if present is not None:
            mask = present = np.ascontiguousarray(present, dtype=bool).view(np.uint8)
            self.kept.append(present)
            self.is_absent = not present.any()
            if self.rows not in (-1, len(mask)):
                raise ValueError(f"a mask of {len(mask)} rows for {self.rows} values")
            self.rows = len(mask)
            self.column.present = &mask[0] if self.rows else NULL

    cdef _choose(self, values, Texts texts):
        """Let `values` be indices; returns the bytes of these texts."""
        cdef const int64_t[::1] edges = texts.edges
        if len(values) and not 0 <= values.min() <= values.max() < len(texts.sizes):
            raise IndexError(f"texts {values.min()} to {values.max()} of {len(texts.sizes)}")
        self.column.texts, self.column.edges = texts.joined, &edges[0]
        return int(texts.sizes[values].sum())


def row_text(int64_t rows, parts):
    """The text of `rows` rows, each the concatenation of its parts.

    Returns: a memoryview of the text, and where each row ends in it, int64 (rows,).
    """
    cdef vector[Column] columns
    cdef Part part
    cdef int64_t row
    cdef size_t place
    room = 0
    for part in parts:
        if part.rows not in (-1, rows):
            raise ValueError(f"a part has {part.rows} rows instead of {rows}")
        if part.is_absent:
            continue
        columns.push_back(part.column)
        room += part.most_bytes + part.column.before_bytes * rows
    text = np.empty(max(1, room), dtype=np.uint8)
    ends = np.empty(rows, dtype=np.int64)
    cdef uint8_t[::1] out = text
    cdef int64_t[::1] row_ends = ends
    cdef char* begin = <char*> &out[0]
    cdef char* at = begin
    with nogil:
        for row in range(rows):
            for place in range(columns.size()):
                at = _written(at, &columns[place], row)
            row_ends[row] = at - begin
    return memoryview(text)[: at - begin], ends


cdef inline char* _written(char* at, const Column* column, int64_t row) noexcept nogil:
    cdef int64_t value, first
    if column.present != NULL and not column.present[row]:
        return at
    memcpy(at, column.before, column.before_bytes)
    at += column.before_bytes
    if column.values == NULL:
        return at
    value = column.values[row]
    if column.texts == NULL:
        return _number(at, value, column.digits)
    first = column.edges[value]
    memcpy(at, column.texts + first, column.edges[value + 1] - first)
    return at + column.edges[value + 1] - first


cdef inline char* _number(char* at, int64_t value, int64_t digits) noexcept nogil:
    cdef char[NUMBER_BYTES] room
    cdef char* end = room + NUMBER_BYTES
    cdef char* first = end
    # unsigned: the most negative number has no positive one of its type
    cdef uint64_t left = 0 - <uint64_t> value if value < 0 else <uint64_t> value
    while left or end - first <= digits:
        if digits and end - first == digits:
            first -= 1
            first[0] = POINT
            digits = 0
        first -= 1
        first[0] = <char> (ZERO + left % 10)
        left //= 10
    if value < 0:
        first -= 1
        first[0] = MINUS
    memcpy(at, first, end - first)
    return at + (end - first)
