"""The rows that the parts of a reconstruction exchange: traced operations, and those rebuilt so far."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TypeVar

import numpy as np

NO_OFFSET = -1
"""Offset of a row whose operation has none, or whose offset is not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOperations:
    """Reads and writes sorted by (file, start), int64 (n,) but for `is_write`; `file`: index into the counted files.

    `held`: bool, the file is not opened anew before this one; None if that is not known.
    `ended`, `goes_on_at`: time and offset at which the file's previous operation ended; None if all operations are
    here, so that the previous row has them.
    """

    file: np.ndarray
    start: np.ndarray
    end: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    is_write: np.ndarray
    held: np.ndarray | None = None
    ended: np.ndarray | None = None
    goes_on_at: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of operations."""
        return len(self.file)

    def of_files(self, kept: np.ndarray) -> FileOperations:
        """The operations on the files of a bool mask, with files renumbered from 0."""
        return _of_files(self, kept)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeRows:
    """Reconstructed rows (n,), in no order: `op` int8, `file` index into the counted files, the rest int64.

    `tie` orders the rows of one file that start together.
    """

    op: np.ndarray
    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start: np.ndarray
    end: np.ndarray
    tie: np.ndarray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.op)

    def of_files(self, kept: np.ndarray) -> MadeRows:
        """The rows of the files of a bool mask, with files renumbered from 0."""
        return _of_files(self, kept)


Rows = TypeVar("Rows", FileOperations, MadeRows)


def _of_files(rows: Rows, kept: np.ndarray) -> Rows:
    columns = {each.name: getattr(rows, each.name) for each in fields(rows)}
    mine = kept[rows.file]
    columns = {name: None if values is None else values[mine] for name, values in columns.items()}
    return replace(rows, **columns | {"file": (np.cumsum(kept) - 1)[columns["file"]]})


def made_rows(
    op: int | np.ndarray,
    file: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    *,
    offset: np.ndarray | int = NO_OFFSET,
    length: np.ndarray | int = 0,
    tie: np.ndarray | int = 0,
) -> MadeRows:
    """Rows (n,); scalars are repeated."""

    def column(value: np.ndarray | int, dtype: type = np.int64) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=dtype), len(file))

    return MadeRows(
        op=column(op, np.int8), file=file, offset=column(offset), length=column(length), start=start, end=end,
        tie=column(tie),
    )  # fmt: skip


@cache
def no_operations() -> FileOperations:
    """No operations at all."""
    none = np.empty(0, dtype=np.int64)
    return FileOperations(file=none, start=none, end=none, offset=none, length=none, is_write=none.astype(bool))


@cache
def no_rows() -> MadeRows:
    """No rows at all."""
    return made_rows(0, *(np.empty(0, dtype=np.int64) for _ in range(3)))


def concatenated(parts: list[MadeRows]) -> MadeRows:
    """All rows of the parts."""
    names = [each.name for each in fields(MadeRows)]
    return MadeRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
