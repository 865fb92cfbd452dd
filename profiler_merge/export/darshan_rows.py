"""Groups the operations of one rank by file, on disk if they are many."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType

import numpy as np

from dxt_replay.traces.schema import OPS
from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order

ROW = np.dtype(
    [
        ("file_id", "i4"),
        ("other_file_id", "i4"),
        ("lane", "i4"),
        ("op", "i1"),
        ("api", "i1"),
        ("traced", "?"),
        ("offset", "i8"),
        ("length", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
    ],
    align=True,
)
"""The columns of an operation that a Darshan log keeps. `traced` rows go into DXT, the others only into counters.
`other_file_id`: the file of a rename's other name, -1 for other operations."""

RENAME = OPS.index("rename")
RENAMED = len(OPS)
"""`op` of the other side of a rename: a row of the new name, whose `other_file_id` is the old one."""

GROUP_ROWS = 1 << 19
"""Rows that are processed at a time, or all of one file if it has more."""


def is_one_of(code: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """bool (n,): which codes are among a few. Of these comparisons are faster than `numpy.isin`."""
    return np.logical_or.reduce([code == one for one in wanted])


class RowsByFile:
    """Takes the rows of a rank in any order and returns them file by file. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._rows = 0
        # a piece is a run of rows of one file: its file, its first row in the temporary file
        self._files: list[np.ndarray] = []
        self._begins: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        """Keep `rows` (n,) of ROW; rows of one file stay in the order of arrival."""
        if not len(rows):
            return
        # `take`: NumPy indexes structured rows field by field, eight times as slowly
        ordered = rows.take(stable_order(rows["file_id"]))
        firsts = runs(ordered["file_id"])
        self._files.append(ordered["file_id"][firsts])
        self._begins.append(firsts + self._rows)
        self._rows += len(rows)
        self._file.write(ordered.view(np.uint8).data)

    def groups(self, group_rows: int = GROUP_ROWS) -> Iterator[np.ndarray]:
        """Arrays of ROW, each with all rows of some files, by file_id ascending."""
        if not self._rows:
            return
        self._file.flush()
        files, begins = np.concatenate(self._files), np.concatenate(self._begins)
        counts = np.diff(begins, append=self._rows)
        order = stable_order(files)
        files, begins, counts = files[order], begins[order], counts[order]
        # a group ends before the file that would overfill it
        full = np.cumsum(counts) // group_rows
        last_of_file = np.append(files[1:] != files[:-1], True)
        ends = np.flatnonzero(last_of_file) + 1
        ends = ends[np.append(full[ends[1:] - 1] != full[ends[:-1] - 1], True)]
        for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            yield self._pieces(begins[first:end], counts[first:end])

    def _pieces(self, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The rows of these pieces, one after the other. Read instead of mapped: a disk error would be a SIGBUS.

        The files of a group are adjacent in the output of one `add`, so there is one call for each.
        """
        order = np.argsort(begins)
        ordered, sizes = begins[order], counts[order]
        ends = ordered + sizes
        first_of_run = np.flatnonzero(np.append(True, ordered[1:] != ends[:-1]))
        stored = np.empty(int(sizes.sum()), dtype=ROW)
        filled = 0
        runs_of_rows = np.add.reduceat(sizes, first_of_run).tolist()
        for begin, rows in zip(ordered[first_of_run].tolist(), runs_of_rows, strict=True):
            self._read_into(stored[filled : filled + rows], begin)
            filled += rows
        places = np.empty_like(begins)
        places[order] = np.cumsum(sizes) - sizes
        return stored.take(_places(places, counts))

    def _read_into(self, rows: np.ndarray, begin: int) -> None:
        """Raises: OSError."""
        room, offset = rows.view(np.uint8).data, begin * ROW.itemsize
        while room:
            read = os.preadv(self._file.fileno(), [room], offset)
            if not read:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            room, offset = room[read:], offset + read

    def __enter__(self) -> RowsByFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _places(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """begin, begin + 1 ... of each piece, one after the other."""
    return np.repeat(begins, counts) + places_in_groups(counts)
