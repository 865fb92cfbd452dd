"""The rows of a capture that a replay issues: what a comparison looks at, on both sides.

`replay.plan.layers` decides; a replay's own rows all pass, because it issued nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.traces.measures.lane_times import least_stride
from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, OperationRows, read_ahead, rows_of_batch
from dxt_replay.traces.records import is_refused
from dxt_replay.traces.schema import OPS_SCHEMA, READ, WRITE, codes
from dxt_replay.traces.store.part_capture import only_ranks
from dxt_replay.traces.store.reader import Capture

_COLUMNS = [*ROW_COLUMNS, "due_ns", "result"]

_TIMES = ["op", "start_ns"]
_RANKS_TOGETHER = 64

NOT_GIVEN = np.iinfo(np.int64).min
"""Value in `due_ns` where an operation has no due time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedRows:
    """Reads and writes of one rank in start order, or all of several ranks. `due_ns` and `failed` (n,): of replays;
    `rows.length`: what was really transferred, 0 for a failed operation. `others`: opens, closes and the like;
    `others_failed` (m,): theirs."""

    rows: OperationRows
    due_ns: np.ndarray
    failed: np.ndarray
    others: OperationRows
    others_failed: np.ndarray


class ReplayedCapture:
    """A capture as its replay sees it; `replay.plan.layers` explains `api` and `reconstruct`.

    Raises: CaptureError when the capture is damaged; UsageError for an unknown `api`.
    """

    def __init__(self, capture: Capture, *, api: str = "auto", reconstruct: bool = True) -> None:
        self.capture = capture
        self._layers = choose_layers(capture, api=api, reconstruct=reconstruct)

    def of_ranks(self, ranks: Sequence[int]) -> ReplayedCapture:
        """The same of some ranks alone."""
        part = copy(self)
        part.capture = only_ranks(self.capture, ranks)
        return part

    def least_stride(self) -> int:
        """The stride that samples of the starts of the reads and writes have at least, by the stored counts; 1 where
        these do not say it. Raises: CaptureError when a part is damaged."""
        if self.capture.whole is not self.capture or self._layers.chunks.layouts:
            return 1
        transfers = rows = 0
        for table in self.capture.usages():
            data = self._layers.replayed(table) & np.isin(codes(table, "op"), (READ, WRITE))
            transfers += int(table["operations"].to_numpy()[data].sum())
            rows += len(data)
        return least_stride(transfers, most_lanes=rows)

    def rows(self, rank: int) -> Iterator[ReplayedRows]:
        """The replayed rows of a rank, a batch at a time; the next one is read meanwhile.

        Raises: CaptureError when a part is damaged.
        """
        for batch in read_ahead(self.capture.operations(rank, columns=_COLUMNS)):
            yield _replayed(batch, self._layers.replayed(batch), rank)

    def rows_together(self, ranks: Sequence[int]) -> ReplayedRows:
        """All replayed rows of several ranks, with `ranks` in them. Raises: CaptureError when a part is damaged."""
        parts = list(self.capture.rank_operations(ranks, _COLUMNS))
        if not parts:
            return _replayed(OPS_SCHEMA.empty_table(), np.zeros(0, dtype=bool), 0)
        table = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks()
        each = np.repeat([rank for rank, _ in parts], [len(batch) for _, batch in parts]).astype(np.int32)
        return _replayed(table, self._layers.replayed(table), int(each[0]), each)


def _replayed(
    batch: pa.RecordBatch | pa.Table, mask: np.ndarray, rank: int, ranks: np.ndarray | None = None
) -> ReplayedRows:
    """`mask`: the rows of the batch that a replay issues."""
    rows = rows_of_batch(batch, rank)
    if ranks is not None:
        rows = dataclasses.replace(rows, ranks=ranks)
    due_ns = _values(batch, "due_ns")
    result = _values(batch, "result")
    failed = np.zeros(len(rows), dtype=bool)
    given = result != NOT_GIVEN
    if given.any():
        moved = np.where(given, np.maximum(result, 0), rows.length)
        rows = dataclasses.replace(rows, length=moved)
        failed = given & (result < 0) & ~is_refused(rows.op, rows.origin, result)
    data = mask & rows.data
    others = mask & ~data
    kept = slice(None) if data.all() else data
    return ReplayedRows(
        rows=rows.where(data),
        due_ns=due_ns[kept],
        failed=failed[kept],
        others=rows.where(others),
        others_failed=failed[others],
    )


def _values(batch: pa.RecordBatch | pa.Table, column: str) -> np.ndarray:
    """A nullable int64 column with NOT_GIVEN for null."""
    data = batch.column(column)
    if data.null_count == len(data):
        return np.broadcast_to(NOT_GIVEN, len(data))
    values: np.ndarray = data.fill_null(NOT_GIVEN).to_numpy()
    return values


def first_start_ns(capture: Capture) -> int:
    """Start of the first read or write of any rank, 0 without one.

    Reads a row group or two of each rank that begins earlier than the first read or write of those before it.
    Raises: CaptureError when a part is damaged.
    """
    begins = capture.index.first_starts()
    first: int | None = None
    for begin in range(0, len(begins), _RANKS_TOGETHER):
        next_ones = begins[begin : begin + _RANKS_TOGETHER]
        ranks = [rank for begin_ns, rank in next_ones if first is None or begin_ns < first]
        short = sorted(rank for rank in ranks if capture.index.is_single(rank))
        found = [_first_data_ns(capture.operations([rank], _TIMES)) for rank in set(ranks) - set(short)]
        found += [_first_data_ns([batch]) for batch in capture.operations(short, _TIMES)]
        first = min((time for time in (first, *found) if time is not None), default=None)
    return first or 0


def _first_data_ns(batches: Iterable[pa.RecordBatch]) -> int | None:
    """Start of the first read or write of a rank; None without one."""
    for batch in batches:
        data = np.isin(codes(batch, "op"), (READ, WRITE))
        if data.any():
            return int(batch.column("start_ns").to_numpy()[data.argmax()])
    return None
