"""Rows of one rank's op stream as NumPy columns, a batch at a time: the input of every measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import READ, REFUSED, WRITE, codes
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.store.reader import Capture

T = TypeVar("T", bound=Sized)

FEW_ROWS = 1 << 15
"""Rows that the reading thread hands over at once: a hand-over costs as much as the work on a short batch."""

ROW_COLUMNS = ("lane", "op", "api", "file_id", "offset", "length", "start_ns", "end_ns", "step", "origin")
TIME_COLUMNS = ("op", "api", "file_id", "start_ns", "end_ns", "origin")
"""Those that tell when an operation that counts was in flight."""

_ENUMERATED = ("op", "api", "origin")
_NOT_READ = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationRows:
    """Columns (n,) of `traces.schema.OPS_SCHEMA` in start order, all of one rank; enumerated columns as int8 codes.

    A column that was not requested is empty. `ranks`: the rank of each row if the batch holds several ranks. They
    ascend, each has all of its rows, and `rank` is the first. Empty for one rank.
    """

    rank: int
    op: np.ndarray
    api: np.ndarray
    file_id: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    origin: np.ndarray
    offset: np.ndarray = field(default_factory=lambda: _NOT_READ)
    length: np.ndarray = field(default_factory=lambda: _NOT_READ)
    lane: np.ndarray = field(default_factory=lambda: _NOT_READ)
    step: np.ndarray = field(default_factory=lambda: _NOT_READ)
    ranks: np.ndarray = field(default_factory=lambda: _NOT_READ)

    def __len__(self) -> int:
        return len(self.op)

    def where(self, mask: np.ndarray) -> OperationRows:
        """The rows for which the boolean `mask` (n,) holds; no copy if it holds for all."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)  # one scan of the mask serves all columns
        columns = {name: getattr(self, name) for name in (*ROW_COLUMNS, "ranks")}
        rank = int(self.ranks[rows[0]]) if len(self.ranks) and len(rows) else self.rank
        return OperationRows(
            rank=rank, **{name: column.take(rows) if len(column) else column for name, column in columns.items()}
        )

    def each_rank(self) -> Iterator[OperationRows]:
        """The rows of one rank after another, without a copy."""
        if not len(self.ranks):
            yield self
            return
        columns = {name: getattr(self, name) for name in ROW_COLUMNS}
        for first, last in pairwise([*runs(self.ranks).tolist(), len(self)]):
            own = {name: column[first:last] if len(column) else column for name, column in columns.items()}
            yield OperationRows(rank=int(self.ranks[first]), **own)

    @property
    def duration_ns(self) -> np.ndarray:
        """end - start, int64."""
        return self.end_ns - self.start_ns

    @property
    def data(self) -> np.ndarray:
        """Mask of the reads and writes, without those that a store refused."""
        mask: np.ndarray = ((self.op == READ) | (self.op == WRITE)) & (self.api != REFUSED)
        return mask


def operation_rows(
    capture: Capture, ranks: Iterable[int] | None = None, *, without: Collection[str] = ()
) -> Iterator[OperationRows]:
    """The op stream of `ranks` (all when None), rank by rank, a batch at a time; a thread reads the next batch
    meanwhile.

    `without`: columns not to read, of `lane` and `step`. Memory: three row groups.
    """
    names = [name for name in ROW_COLUMNS if name not in without]
    batches = capture.rank_operations(ranks, names)
    return read_ahead(rows_of_batch(batch, rank, names) for rank, batch in batches if len(batch))


def rows_together(capture: Capture, *, without: Collection[str] = ()) -> Iterator[OperationRows]:
    """As `operation_rows` of all ranks, but the rows of many small ranks at once, with `OperationRows.ranks`."""
    names = [name for name in ROW_COLUMNS if name not in without]
    return read_ahead(_joined(capture, names))


def _joined(capture: Capture, names: list[str]) -> Iterator[OperationRows]:
    waiting: list[tuple[int, pa.RecordBatch]] = []
    rows = 0
    for rank, batch in capture.rank_operations(columns=names):
        whole = capture.index.is_single(rank)
        if waiting and (not whole or rows + len(batch) > FEW_ROWS):
            yield _rows_of_ranks(waiting, names)
            waiting, rows = [], 0
        if whole:
            waiting.append((rank, batch))
            rows += len(batch)
        else:
            yield rows_of_batch(batch, rank, names)
    if waiting:
        yield _rows_of_ranks(waiting, names)


def _rows_of_ranks(batches: list[tuple[int, pa.RecordBatch]], names: list[str]) -> OperationRows:
    """All rows of some ranks as one batch."""
    rank, batch = batches[0]
    if len(batches) == 1:
        return rows_of_batch(batch, rank, names)
    table = pa.Table.from_batches([batch for _, batch in batches]).combine_chunks()
    ranks = np.repeat([rank for rank, _ in batches], [len(batch) for _, batch in batches]).astype(np.int32)
    return dataclasses.replace(rows_of_batch(table, rank, names), ranks=ranks)


def rows_of_batch(batch: pa.RecordBatch | pa.Table, rank: int, names: Collection[str] = ROW_COLUMNS) -> OperationRows:
    """Columns `names` of a batch of one rank."""
    return OperationRows(
        rank=rank,
        **{name: codes(batch, name) if name in _ENUMERATED else batch.column(name).to_numpy() for name in names},
    )


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items while another thread makes the next ones, several short ones at a time.

    An error of the source is raised at the place of its item."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as reader:
        coming = reader.submit(_next_few, items)
        while True:
            few, error = coming.result()
            if error is None and few:
                coming = reader.submit(_next_few, items)
            yield from few
            if error is not None:
                raise error
            if not few:
                return


def _next_few(items: Iterator[T]) -> tuple[list[T], Exception | None]:
    """The next items, of FEW_ROWS rows together, or those before an error; empty at the end."""
    few: list[T] = []
    rows = 0
    try:
        while rows < FEW_ROWS and (item := next(items, None)) is not None:
            few.append(item)
            rows += len(item)
    except Exception as error:
        return few, error
    return few, None
