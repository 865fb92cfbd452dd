"""Keeps operations in the order of a trace in a temporary file, and returns those of a rank."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Collection
from itertools import pairwise

import numpy as np

TRACED_ROW = np.dtype(
    [
        ("process", np.int32),
        ("thread", np.int32),
        ("file", np.int32),
        ("op", np.int8),
        ("api", np.int8),
        ("offset", np.int64),
        ("length", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("other_file", np.int32),
        ("open_flags", np.int16),
    ]
)
"""One operation. `process`, `thread`, `file`: numbers that the reader assigns. `other_file`: number of a rename's new
name, else -1. `open_flags`: -1 where they are not known. Times are CLOCK_REALTIME; the rest is as in
`traces.schema.OPS_SCHEMA`."""

BLOCK_ROWS = 1 << 16
_MOST = 1 << 62
"""Limit that all offsets, lengths and times stay below."""


class TracedRows:
    """Takes operations one at a time and returns them by process. Only one block of BLOCK_ROWS is in memory.

    The blocks are in a temporary file without a name, which ends with the object.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the object)
        self._pending: list[tuple[int, ...]] = []
        self._pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._bytes = 0
        self._flushed = 0

    def add(self, row: tuple[int, ...]) -> int:
        """Keep one operation; values in the order of TRACED_ROW. Returns its number.

        Raises: ValueError for an impossible one."""
        if not (-1 <= row[5] < _MOST and 0 <= row[6] < _MOST and 0 <= row[7] <= row[8] < _MOST):
            raise ValueError(row)
        if len(self._pending) >= BLOCK_ROWS:
            self._flush()
        self._pending.append(row)
        return self._flushed + len(self._pending) - 1

    def add_open_flags(self, number: int, flags: int) -> None:
        """Add flags to the open with this number, unless it is already written."""
        place = number - self._flushed
        if place >= 0:
            row = self._pending[place]
            self._pending[place] = (*row[:-1], max(row[-1], 0) | flags)

    def of_processes(self, processes: Collection[int]) -> np.ndarray:
        """All operations of these processes as TRACED_ROW (n,), by start, the longest first where several start."""
        self._flush()
        places = sorted(place for process in processes for place in self._pieces.get(process, ()))
        rows = np.empty(sum(size for _, size in places) // TRACED_ROW.itemsize, dtype=TRACED_ROW)
        bytes_of_rows, filled = rows.view(np.uint8).data, 0
        for at, size in places:
            os.preadv(self._file.fileno(), [bytes_of_rows[filled : filled + size]], at)
            filled += size
        # The sort is stable, so rows with equal times stay in the order of the trace.
        order = np.lexsort((-rows["end_ns"], rows["start_ns"]))
        return rows if bool((order[1:] > order[:-1]).all()) else rows[order]

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = np.array(self._pending, dtype=TRACED_ROW)
        self._flushed += len(self._pending)
        self._pending.clear()
        rows = rows[np.argsort(rows["process"], kind="stable")]
        self._file.write(rows.tobytes())
        self._file.flush()
        cuts = [0, *(np.flatnonzero(np.diff(rows["process"])) + 1).tolist(), len(rows)]
        for first, last in pairwise(cuts):
            size = (last - first) * TRACED_ROW.itemsize
            self._pieces[int(rows["process"][first])].append((self._bytes + first * TRACED_ROW.itemsize, size))
        self._bytes += len(rows) * TRACED_ROW.itemsize
