"""Operations as batches of one rank, from row groups that are read one by one, or many small ones at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.few_together import few_together
from dxt_replay.traces.store.checks import operations
from dxt_replay.traces.store.row_groups import RowGroup

TOGETHER_ROWS = 1 << 16
"""Rows of small row groups that are read at once: those of a rank with few operations cost more than its operations."""

RankBatch = tuple[int, pa.RecordBatch]
"""A rank, and operations of it."""


def together(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """The row groups as runs that are read at once: of one part, with at most TOGETHER_ROWS, or a single one."""
    return few_together(groups, _rows, TOGETHER_ROWS, fit=_in_one_part)


def ranks_together(ranks: Iterable[Sequence[RowGroup]]) -> Iterator[list[RowGroup]]:
    """The row groups of one rank after another, joined where those of several ranks are one run of `together`."""
    used = (groups for groups in ranks if groups)
    for run in few_together(
        used, lambda groups: sum(map(_rows, groups)), TOGETHER_ROWS, fit=lambda one, other: _in_one_part(*one, *other)
    ):
        yield [group for groups in run for group in groups]


def _rows(group: RowGroup) -> int:
    return group.rows


def _in_one_part(*groups: RowGroup) -> bool:
    return all(group.footer is groups[0].footer for group in groups)


def read_row_groups(
    file: pq.ParquetFile, groups: Sequence[RowGroup], columns: list[str] | None, files: int
) -> list[RankBatch]:
    """The operations of some row groups of one part, a batch for each. `files`: rows of the files table.

    Raises: CaptureError where one is damaged, with its number.
    """
    if len(groups) == 1:
        return [(groups[0].rank, _read_one(file, groups[0], columns, files))]
    try:
        return _read_several(file, groups, columns, files)
    except (CaptureError, pa.ArrowException, OSError, ValueError):
        # One by one, so that the error names the row group.
        return [(group.rank, _read_one(file, group, columns, files)) for group in groups]


def _read_one(file: pq.ParquetFile, group: RowGroup, columns: list[str] | None, files: int) -> pa.RecordBatch:
    try:
        table = file.read_row_group(group.index, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CaptureError(f"{group.part} is damaged (row group {group.index}): {error}") from error
    found = operations(table, f"{group.part} (row group {group.index})", rank=group.rank, files=files, columns=columns)
    group.check(found)
    return _one_batch(found)


def _read_several(
    file: pq.ParquetFile, groups: Sequence[RowGroup], columns: list[str] | None, files: int
) -> list[RankBatch]:
    table = file.read_row_groups([group.index for group in groups], columns=columns, use_threads=False)
    ends = np.cumsum([group.rows for group in groups])
    if table.num_rows != ends[-1]:
        raise CaptureError(f"{groups[0].part} is damaged: it has {table.num_rows} rows, and not {ends[-1]}")
    begins = ends - [group.rows for group in groups]
    rank = np.repeat(np.array([group.rank for group in groups], dtype=np.int32), ends - begins)
    found = operations(table, groups[0].part, rank=rank, files=files, columns=columns, begins=begins[1:])
    _check_claims(found, groups, begins, ends)
    whole = _one_batch(found)
    return [(group.rank, whole.slice(begin, group.rows)) for group, begin in zip(groups, begins.tolist(), strict=True)]


def _check_claims(rows: pa.Table, groups: Sequence[RowGroup], begins: np.ndarray, ends: np.ndarray) -> None:
    """As `RowGroup.check`, of several at once."""
    claimed = [(group.first_ns, group.last_start_ns, group.last_end_ns) for group in groups]
    first, last_start, last_end = np.array(claimed, dtype=np.int64).T
    agree = True
    if "start_ns" in rows.column_names:
        start = rows["start_ns"].to_numpy()
        agree = np.array_equal(start[begins], first) and np.array_equal(start[ends - 1], last_start)
    if agree and "end_ns" in rows.column_names:
        agree = np.array_equal(np.maximum.reduceat(rows["end_ns"].to_numpy(), begins), last_end)
    if not agree:
        raise CaptureError(f"{groups[0].part} is damaged: its footer contradicts its rows")


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    (batch,) = rows.to_batches()
    return batch
