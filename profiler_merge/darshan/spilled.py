"""Columns that are too long for memory, in files without a name: a process holds only the pages that it uses."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import TargetError

CHUNK_ROWS = 1 << 18
"""Rows of a column that are processed together."""


class ColumnFile:
    """A column that grows at its end and is read once complete. Raises: TargetError when the disk refuses."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._folder, self._dtype, self._rows = folder, dtype, 0
        with _refusals(folder):
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def append(self, values: np.ndarray) -> None:
        """Add values of the column's type."""
        with _refusals(self._folder):
            self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._rows += len(values)

    def column(self) -> np.ndarray:
        """The column, at least one row; it exists as long as something refers to it."""
        with _refusals(self._folder), self._file as file:
            file.flush()
            return np.memmap(file, dtype=self._dtype, mode="r+", shape=(self._rows,))


class EmptyColumns(dict[str, np.ndarray]):
    """Columns of zeros, at least one row, with reserved disk space. Raises: TargetError when there is not enough."""

    def __init__(self, folder: Path, dtypes: Mapping[str, type], rows: int) -> None:
        super().__init__()
        self._folder, self._files = folder, dict[str, IO[bytes]]()
        for name, dtype in dtypes.items():
            with _refusals(folder):
                self._files[name] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
                _reserve(self._files[name].fileno(), rows * np.dtype(dtype).itemsize)
                self[name] = np.memmap(self._files[name], dtype=dtype, mode="r+", shape=(rows,))

    def write(self, name: str, first: int, values: np.ndarray) -> None:
        """Set the rows of a column from `first` on. Assigning to mapped pages instead costs a page fault each."""
        rest = np.ascontiguousarray(values, dtype=self[name].dtype).data.cast("B")
        place = first * self[name].itemsize
        with _refusals(self._folder):
            while rest:
                done = os.pwrite(self._files[name].fileno(), rest, place)
                rest, place = rest[done:], place + done


def _reserve(descriptor: int, size: int) -> None:
    """Reserve disk space for a file: without it, writing to a mapped page of a full disk would kill the process."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        # Not `os.write`: it may write less than requested without reporting the full disk.
        with open(descriptor, "wb", closefd=False) as file:
            for part in chunks(size, 1 << 20):
                file.write(bytes(part.stop - part.start))


def is_spilled(column: np.ndarray) -> bool:
    """Whether a column is in a file."""
    return isinstance(column, np.memmap)


def release(*columns: np.ndarray) -> None:
    """Release the memory of columns in files; their contents stay in the files."""
    for column in columns:
        pages = getattr(column, "_mmap", None)
        if isinstance(pages, mmap.mmap):
            pages.madvise(mmap.MADV_DONTNEED)


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep up to 256 MiB of freed memory for the next arrays, also those of Arrow: pages that
    come back from the system are cleared, which takes a tenth of the time of a merge."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD
        pa.set_memory_pool(pa.system_memory_pool())


def return_freed_memory() -> None:
    """Return freed memory to the system if the C library keeps it (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def chunks(rows: int, size: int = CHUNK_ROWS) -> Iterator[slice]:
    """The rows of a column in order, at most `size` at a time."""
    return (slice(begin, min(begin + size, rows)) for begin in range(0, rows, size))


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetError(
            f"cannot keep the operations of a large rank in files under {folder}: {error.strerror or error}; free "
            "space there (some 110 bytes an operation), or choose another place for the output"
        ) from error
