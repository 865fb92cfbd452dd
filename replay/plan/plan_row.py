"""The items of a lane by kind, and the one place where they are packed into rows and read out of them again. Pure.

Lanes handle items by the thousand, so a plan is an array of `PLAN_ROW`s, and the issue loop reads every kind of item
from the same five columns (`replay.engine.items`). What a column holds depends on the kind. Outside of this module a
row is made by `operation_rows`, `rows_of_each` or `rows_of_arrays` and is read by a view that names its columns:

    waits = rows_of_arrays(Wait(counter=counters, until=amounts), len(counters))
    waits.view(COUNTER_ROW)["counter"]

`kind`, `step` and `due_ns` are the same in every view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dxt_replay.replay.engine.items import (
    ADD,
    CLOSE,
    DELETE,
    LIST,
    MARK,
    OPEN,
    PLAN_ROW,
    READ_AHEAD,
    READ_AT,
    RENAME,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WAIT,
    WRITE_AT,
)
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS, NO_STEP, OPS, codes

COMPUTE_KINDS = {"sleep": SLEEP, "spin": SPIN}
"""Kind of a gap by the word of the option `--compute`."""

_KINDS = {
    "open": OPEN, "close": CLOSE, "read": READ_AT, "write": WRITE_AT, "stat": STAT, "sync": SYNC, "seek": SEEK,
    "rename": RENAME, "list": LIST, "delete": DELETE,
}  # fmt: skip
_KIND_OF_OP = np.array([_KINDS[op] for op in OPS], dtype=np.uint8)


def _view(**names: str) -> np.dtype:
    """`PLAN_ROW` with other names for its columns: `rows.view(...)` copies nothing."""
    return np.dtype([(names.get(name.removeprefix("_"), name), PLAN_ROW[name]) for name in PLAN_ROW.names or ()])


OPERATION_ROW = _view(
    code="op", api="api", origin="origin", slot="slot", subject="file_id", place="offset", amount="length"
)
"""An operation; its columns are those of the capture. Of a rename, see `RENAME_ROW`."""

RENAME_ROW = _view(
    code="op", api="api", origin="origin", slot="slot", subject="file_id", place="new_slot", amount="new_file_id"
)
"""A rename: of the file in `slot` to the name of the file in `new_slot`."""

GAP_ROW = _view(code="event_kind", subject="event", place="recorded_ns", amount="duration_ns")
"""See `Gap`."""

MARK_ROW = _view(code="event_kind", subject="event", place="is_end")
"""See `Mark`."""

COUNTER_ROW = _view(code="event_kind", subject="event", slot="counter", place="multiple", amount="amount")
"""See `Wait` and `Add`; `amount` is the `until` of a wait."""

EVENT_ROW = _view(code="event_kind", subject="event")
"""Any item but an operation: the event of the training thread that it belongs to, see `NO_EVENT`."""

NO_EVENT = -1
"""Number and kind of an event for an item that belongs to none."""

Int = int | np.ndarray
"""A value of one item, or of each of several items, (n,)."""

_Packed = tuple[Int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """The common columns of items other than operations.

    step: number of the training step, NO_STEP for none.
    event: number of the training thread's event that the item belongs to, NO_EVENT for none.
    event_kind: its kind (`replay.causal.loop`).
    due_ns: see `replay.engine.items.LoopPace`.
    """

    step: Int = NO_STEP
    event: Int = NO_EVENT
    event_kind: Int = NO_EVENT
    due_ns: Int = 0

    def packed(self) -> _Packed:
        """The values in the order of `PLAN_ROW`."""
        raise NotImplementedError

    def _row(self, kind: Int, *, slot: Int = -1, place: Int = 0, amount: Int = 0) -> _Packed:
        return (kind, self.event_kind, 0, 0, slot, self.event, self.step, place, amount, self.due_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(_Item):
    """A stretch of time without I/O.

    kind: SLEEP or SPIN.
    duration_ns: how long the replay spends in it.
    recorded_ns: its begin in the capture; 0 if unused.
    """

    kind: int
    duration_ns: Int
    recorded_ns: Int = 0

    def packed(self) -> _Packed:
        """The values in the order of `PLAN_ROW`."""
        return self._row(self.kind, place=self.recorded_ns, amount=self.duration_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(_Item):
    """A border of a training step. `is_end`: 0 where the step begins, 1 where it ends."""

    is_end: Int

    def packed(self) -> _Packed:
        """The values in the order of `PLAN_ROW`."""
        return self._row(MARK, place=self.is_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(_Item):
    """Wait until a counter stands at `until` or more, which is a multiple of `multiple`."""

    counter: Int
    until: Int
    multiple: Int = 1

    def packed(self) -> _Packed:
        """The values in the order of `PLAN_ROW`."""
        return self._row(WAIT, slot=self.counter, place=self.multiple, amount=self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(_Item):
    """Add `amount` to a counter, and wake the lanes that wait for it where it reaches a multiple of `multiple`."""

    counter: Int
    amount: Int = 1
    multiple: Int = 1

    def packed(self) -> _Packed:
        """The values in the order of `PLAN_ROW`."""
        return self._row(ADD, slot=self.counter, place=self.multiple, amount=self.amount)


Item = Gap | Mark | Wait | Add


def rows_of_each(items: Sequence[Item]) -> np.ndarray:
    """`PLAN_ROW` (n,), one row an item; the items hold single values."""
    return np.array([item.packed() for item in items], dtype=PLAN_ROW)


def rows_of_arrays(items: Item, count: int) -> np.ndarray:
    """`PLAN_ROW` (count,) of items of one kind, whose values are arrays (count,), or single where all share them."""
    rows = np.empty(count, dtype=PLAN_ROW)
    for name, values in zip(PLAN_ROW.names or (), items.packed(), strict=True):
        rows[name] = values
    return rows


KNOWN_ROW = np.dtype([("feeds", "<i4"), ("follows", "<i4"), ("follows_end", "i1"), ("ready_ns", "<i8")])
"""`traces.schema.DEPENDENCY_COLUMNS` of an operation, -1 for null; `follows_end` 0 or 1."""

_NOTHING_KNOWN = np.empty(0, dtype=KNOWN_ROW)

BATCH_COLUMNS = ("lane", "op", "file_id", "length", "start_ns", "end_ns")
"""Columns of the op stream that an `OperationBatch` needs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationBatch:
    """Operations of one rank in start order, each array (n,).

    lane: the recorded thread.
    op: code of the operation (OPS).
    file_id: row of the file in the capture's table of files.
    length: bytes.
    start_ns, end_ns: recorded times.
    known: `KNOWN_ROW` (n,), what the capture says that they wait for; no rows where it says nothing.
    """

    lane: np.ndarray
    op: np.ndarray
    file_id: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    known: np.ndarray = field(default_factory=lambda: _NOTHING_KNOWN)

    @classmethod
    def of(cls, batch: pa.RecordBatch | pa.Table, mask: np.ndarray) -> OperationBatch:
        """The rows `mask` (bool) of a batch of the op stream, which may lack DEPENDENCY_COLUMNS."""
        columns = {name: batch.column(name).to_numpy()[mask] for name in BATCH_COLUMNS if name != "op"}
        known = _NOTHING_KNOWN
        if "feeds" in batch.schema.names:
            known = np.empty(len(columns["lane"]), dtype=KNOWN_ROW)
            for name in DEPENDENCY_COLUMNS:
                known[name] = batch.column(name).cast(pa.int64()).fill_null(-1).to_numpy()[mask]
        return cls(op=codes(batch, "op")[mask], known=known, **columns)

    def part(self, rows: slice) -> OperationBatch:
        """Some of its operations, one after the other; their arrays are views."""
        return OperationBatch(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def rows_by_lane(lane: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The lanes of operations, ascending, each with the indices of its own, ascending."""
    if not len(lane):
        return
    least, most = int(lane.min()), int(lane.max())
    if least == most:
        yield least, np.arange(len(lane))
        return
    # NumPy sorts 16 bits in linear time.
    order = np.argsort(lane.astype(np.int16) if most < 1 << 15 else lane, kind="stable")
    ordered = lane[order]
    begins = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(lane)]
    for begin, until in pairwise(begins):
        yield int(ordered[begin]), order[begin:until]


def operation_rows(
    *,
    op: np.ndarray,
    api: Int,
    origin: Int,
    slot: np.ndarray,
    file_id: np.ndarray,
    step: Int,
    offset: Int,
    length: Int,
) -> np.ndarray:
    """`PLAN_ROW` (n,) of operations as the capture has them, without due times. Renames still lack their new slot: see
    `set_new_slots`."""
    rows = np.zeros(len(op), dtype=PLAN_ROW)
    rows["kind"] = _KIND_OF_OP[op]
    own = rows.view(OPERATION_ROW)
    own["op"], own["api"], own["origin"], own["step"] = op, api, origin, step
    own["slot"], own["file_id"], own["offset"], own["length"] = slot, file_id, offset, length
    return rows


def set_new_slots(rows: np.ndarray, renames: np.ndarray, new_file_id: np.ndarray, new_slot: np.ndarray) -> None:
    """Give the rows `renames` (bool or indices) the file and the slot of their new names."""
    own = rows.view(RENAME_ROW)
    own["new_file_id"][renames], own["new_slot"][renames] = new_file_id, new_slot


def set_advice(rows: np.ndarray, opens: np.ndarray, sequential: np.ndarray) -> None:
    """Let the opens that are `sequential` (bool, for each true one of `opens`) announce sequential reads."""
    rows.view(OPERATION_ROW)["offset"][np.flatnonzero(opens)[sequential]] = READ_AHEAD


def is_operation(rows: np.ndarray) -> np.ndarray:
    """bool (n,): which items are operations, rather than gaps, marks, waits and additions."""
    found: np.ndarray = rows["kind"] < SLEEP
    return found


def recorded_operations(rows: np.ndarray) -> np.ndarray:
    """The operations among items as `OPERATION_ROW`, a copy with the columns as a capture has them: the `offset` of a
    rename is -1, its `length` 0, and no open has READ_AHEAD."""
    own = rows[is_operation(rows)].view(OPERATION_ROW)
    own["offset"][(own["kind"] == OPEN) & (own["offset"] == READ_AHEAD)] = -1
    renames = own["kind"] == RENAME
    if renames.any():
        own["offset"][renames], own["length"][renames] = -1, 0
    return own


def new_file_ids(rows: np.ndarray) -> np.ndarray:
    """int32: for each operation among items the file_id of a rename's new name, -1 for other operations."""
    rows = rows[is_operation(rows)].view(RENAME_ROW)
    return np.where(rows["kind"] == RENAME, rows["new_file_id"], -1).astype(np.int32)
