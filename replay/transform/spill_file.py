"""Keeps the operations of ranks in a file without a name, while other ranks are read, changed or scheduled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType

import numpy as np

from dxt_replay.traces.errors import TargetError

CHUNK_ROWS = 1 << 16
"""Rows that are written or read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Columns in a spill file. row: the dtype of one row, with a field for each column. place: their first byte in the
    file. rows: number of rows."""

    row: np.dtype
    place: int
    rows: int


class SpillFile:
    """Takes columns of any number of ranks and returns them in any order. A context manager: the file ends with it.

    folder: where the file is made. Raises: TargetError when the disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._refusal(error) from error
        self._size = 0

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):  # its rows are not needed any more
            self._file.close()

    def put(self, columns: Mapping[str, np.ndarray]) -> Kept:
        """Keep columns of equal length. Raises: TargetError when the disk refuses."""
        row = np.dtype([(name, values.dtype) for name, values in columns.items()])
        rows = len(next(iter(columns.values())))
        kept = Kept(row=row, place=self._size, rows=rows)
        for first in range(0, rows, CHUNK_ROWS):
            part = np.empty(min(CHUNK_ROWS, rows - first), dtype=row)
            for name, values in columns.items():
                part[name] = values[first : first + len(part)]
            self._write(part.view(np.uint8).data)
        return kept

    def take(self, kept: Kept, first: int = 0, until: int | None = None) -> dict[str, np.ndarray]:
        """The columns, or their rows from `first` up to and without `until`. Raises: TargetError for a disk error."""
        until = kept.rows if until is None else until
        columns = {name: np.empty(until - first, dtype=kept.row[name]) for name in kept.row.names or ()}
        # Read instead of mapped: a disk error would be a SIGBUS.
        for begin in range(first, until, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, until)
            part = self._read(kept.place + begin * kept.row.itemsize, (end - begin) * kept.row.itemsize)
            rows = part.view(kept.row)
            for name, values in columns.items():
                values[begin - first : end - first] = rows[name]
        return columns

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, self._size)
                self._size, data = self._size + written, data[written:]
        except OSError as error:
            raise self._refusal(error) from error

    def _read(self, place: int, size: int) -> np.ndarray:
        part = np.empty(size, dtype=np.uint8)
        data = part.data
        try:
            while data:
                count = os.preadv(self._file.fileno(), [data], place)
                if not count:
                    raise OSError("the file has become shorter")
                place, data = place + count, data[count:]
        except OSError as error:
            raise self._refusal(error) from error
        return part

    def _refusal(self, error: OSError) -> TargetError:
        return TargetError(
            f"cannot keep the operations of the ranks in a file under {self._folder}: {error.strerror or error}; free "
            "space there (up to 300 bytes an operation), or choose another place for the output"
        )
