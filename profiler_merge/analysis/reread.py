"""Bytes of each file that were read at least once. Pure, in bounded memory."""

from __future__ import annotations

import numpy as np

from dxt_replay.traces.measures.intervals import BoundedUnion, Intervals
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.sums import Sums

_BETWEEN_FILES = 1 << 30
"""Free space between two files on the line: gaps between files are closed after those within a file."""


class ByteLine:
    """All files on one line of bytes, one after the other, so that one union of ranges serves all of them.

    `sizes`: int64 (files,), at least the end of the last read of each.
    """

    def __init__(self, sizes: np.ndarray) -> None:
        room = np.maximum(sizes, 0) + _BETWEEN_FILES
        self.begin = np.cumsum(room) - room
        self.end = self.begin + np.maximum(sizes, 0)

    def ranges(self, rows: OperationRows) -> Intervals:
        """The bytes that rows touch; those without a known offset touch none."""
        rows = rows.where((rows.offset >= 0) & (rows.length > 0))
        begin = self.begin[rows.file_id] + rows.offset
        limit = self.end[rows.file_id]
        return Intervals.union_of(np.minimum(begin, limit), np.minimum(begin + rows.length, limit))


class UniqueBytes(Sums):
    """Union of byte ranges on a line."""

    STAY = ("_line",)

    def __init__(self, line: ByteLine) -> None:
        self._line = line
        self._union = BoundedUnion()

    def add(self, ranges: Intervals) -> None:
        """Add ranges of the same line."""
        self._union.add_union(ranges)

    def ranges(self) -> Intervals:
        """The ranges of the line that were added."""
        return self._union.intervals()

    def merge(self, later: UniqueBytes) -> None:
        """As `Sums.merge`."""
        self._union.merge(later._union)

    def per_file(self) -> np.ndarray:
        """int64 (files,): bytes of each file in the union; the total is too large by at most `error_bytes`."""
        covered: np.ndarray = self._union.intervals().covered_within(self._line.begin, self._line.end)
        return covered

    @property
    def error_bytes(self) -> int:
        """Largest number of bytes counted that were not read."""
        self._union.intervals()
        return self._union.closed_ns
