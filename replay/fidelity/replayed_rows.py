"""The rows of a capture that a replay issues: what a comparison looks at, on both sides.

`replay.plan.chosen_layers` decides; a replay's own rows all pass, because it issued nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.plan.chosen_layers import choose_layers
from traces.measures.operation_rows import ROW_COLUMNS, OperationRows, read_ahead, rows_of_batch
from traces.results import is_refused
from traces.schema import READ, WRITE, codes
from traces.store.rank_pieces import only_ranks
from traces.store.reader import Capture

NOT_GIVEN = np.iinfo(np.int64).min
"""Value in `due_ns` where an operation has no due time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedRows:
    """Reads and writes of one rank in start order. `due_ns` and `failed` (n,): of replays; `rows.length`: what was
    really transferred, 0 for a failed operation. `others`: opens, closes and the like; `others_failed` (m,): theirs."""

    rows: OperationRows
    due_ns: np.ndarray
    failed: np.ndarray
    others: OperationRows
    others_failed: np.ndarray

    def __len__(self) -> int:
        return len(self.rows) + len(self.others)


class ReplayedCapture:
    """A capture as its replay sees it; `replay.plan.chosen_layers` explains `api` and `reconstruct`.

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

    def rows(self, rank: int) -> Iterator[ReplayedRows]:
        """The replayed rows of a rank, a batch at a time; the next one is read meanwhile.

        Raises: CaptureError when a part is damaged.
        """
        batches = self.capture.operations(rank, columns=[*ROW_COLUMNS, "due_ns", "result"])
        return read_ahead(_replayed(batch, rank, self.capture, self._layers.replayed(batch)) for batch in batches)


def _replayed(batch: pa.RecordBatch, rank: int, capture: Capture, mask: np.ndarray) -> ReplayedRows:
    rows = rows_of_batch(batch, rank)
    due_ns = _values(batch, "due_ns")
    result = _values(batch, "result")
    given = result != NOT_GIVEN
    if given.any():
        moved = np.where(given, np.maximum(result, 0), rows.length)
        rows = dataclasses.replace(rows, length=moved)
    data, others = mask & rows.data, mask & ~rows.data
    failed = given & (result < 0) & ~is_refused(rows.op, rows.origin, result)
    return ReplayedRows(
        rows=rows.where(data),
        due_ns=due_ns[data],
        failed=failed[data],
        others=rows.where(others),
        others_failed=failed[others],
    )


def _values(batch: pa.RecordBatch, column: str) -> np.ndarray:
    """A nullable int64 column with NOT_GIVEN for null."""
    data = batch.column(column)
    if data.null_count == len(data):
        return np.full(len(data), NOT_GIVEN, dtype=np.int64)
    values: np.ndarray = data.fill_null(NOT_GIVEN).to_numpy()
    return values


def first_start_ns(capture: Capture) -> int:
    """Start of the first read or write of any rank, 0 without one. Reads a row group or two a rank.

    Raises: CaptureError when a part is damaged.
    """
    firsts = []
    for rank in capture.ranks:
        for batch in capture.operations(rank, columns=["op", "start_ns"]):
            data = np.isin(codes(batch, "op"), (READ, WRITE))
            if data.any():
                firsts.append(int(batch.column("start_ns").to_numpy()[data.argmax()]))
                break
    return min(firsts, default=0)
