"""The input of a lane (items) and its output (results).

Lanes handle items by the thousand, so a plan is an array of `PLAN_ROW`s, and the issue loop reads every kind of item
from the same columns. What a column holds depends on the kind: a row is made by `operation_rows`, or by `gap`, `mark`,
`wait` and `add`, and is read by a view that names its columns:

    waits = rows_of_arrays(wait(counter=counters, until=amounts), len(counters))
    waits.view(COUNTER_ROW)["counter"]

`kind`, `step` and `due_ns` are the same in every view.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.schema import NO_STEP, OPS

READ_AT, WRITE_AT, OPEN, CLOSE, STAT, SYNC, SEEK, RENAME, LIST, DELETE, SLEEP, SPIN, MARK, WAIT, ADD = range(15)
"""Kinds of an item. Those below SLEEP are operations: one call each, timed like a read.

READ_AT, WRITE_AT: move `amount` bytes at `place` of the file in `slot`. A read of 0 bytes met the end of its file when
    it was recorded: it asks for 4096 bytes where the file ends at or before `place`, else for 0 bytes.
OPEN: makes a new handle each time, with the access of the slot. If the file is not open, the handle becomes the file's
    own. Otherwise it is kept as a spare handle until a CLOSE. Where `place` is READ_AHEAD, sequential reads are
    announced (POSIX_FADV_SEQUENTIAL): after a POSIX open, which also holds for a mapping of it, and before a mapping.
    Where it is READ_NO_FURTHER, a mapping is of random reads (MADV_RANDOM): a fault reads its page alone.
CLOSE: closes one handle of the file, but never a handle that another lane is using: a spare one, else the file's own,
    else, where other lanes hold the file, a new one.
STAT: looks at the path, whether the file is open or not.
SYNC, SEEK (to `place`) and CLOSE: first open a file that is not open. As for a read, this is not part of the latency.
RENAME: gives the slot's file the name of the slot in `place`. Both slots must be writable (else EROFS), so that files
    that are only read are never moved. Both files are closed first, which is not part of the latency. The next use
    opens the file that then has the name.
LIST: lists the folder at the slot's path once, not the folders in it.
DELETE: removes the file at the slot's path, which must be writable (else EROFS). As for a rename, it is closed first.
SLEEP, SPIN: pause for `amount` ns, asleep or busy.
MARK: a time stamp, begin = end.
WAIT: wait until the counter in `slot` is at least `amount`. The end is when the counter got there, even where the lane
    woke up later.
ADD: add `amount` to the counter in `slot`. Lanes that wait for it are woken where it reaches a multiple of `place`.

The lanes share the counters. All items of a counter have the same `place`, and each `amount` that is waited for is a
multiple of it."""

READ_AHEAD, READ_NO_FURTHER = -2, -3  # Values of `place` of an OPEN; no recorded offset is below -1
PLAN_ROW = np.dtype(
    [
        ("kind", "u1"),
        ("_code", "i1"),
        ("_api", "i1"),
        ("_origin", "i1"),
        ("_slot", "<i4"),
        ("_subject", "<i4"),
        ("step", "<i4"),
        ("_place", "<i8"),
        ("_amount", "<i8"),
        ("due_ns", "<i8"),
    ]
)
"""One item, 40 bytes: the struct `Item` of the compiled cores (`items.pxd`). The loop reads `kind`, `_slot` (the index
of a file or counter, -1 for none), `_place`, `_amount` and `due_ns` (see `LoopPace`)."""


def _view(**names: str) -> np.dtype:
    """`PLAN_ROW` with other names for its columns: `rows.view(...)` copies nothing."""
    return np.dtype([(names.get(name.removeprefix("_"), name), PLAN_ROW[name]) for name in PLAN_ROW.names or ()])


OPERATION_ROW = _view(
    code="op", api="api", origin="origin", slot="slot", subject="file_id", place="offset", amount="length"
)
"""An operation; its columns are those of the capture."""

RENAME_ROW = _view(
    code="op", api="api", origin="origin", slot="slot", subject="file_id", place="new_slot", amount="new_file_id"
)
"""A rename: of the file in `slot` to the name of the file in `new_slot`."""

GAP_ROW = _view(code="event_kind", subject="event", place="recorded_ns", amount="duration_ns")
MARK_ROW = _view(code="event_kind", subject="event", place="is_end")
COUNTER_ROW = _view(code="event_kind", subject="event", slot="counter", place="multiple", amount="amount")
EVENT_ROW = _view(code="event_kind", subject="event")
"""Any item but an operation: the event of the training thread that it belongs to, see `NO_EVENT`."""

NO_EVENT = -1  # Number and kind of an event for an item that belongs to none
COMPUTE_KINDS = {"sleep": SLEEP, "spin": SPIN}
"""Kind of a gap by the word of the option `--compute`."""

_KINDS = {
    "open": OPEN, "close": CLOSE, "read": READ_AT, "write": WRITE_AT, "stat": STAT, "sync": SYNC, "seek": SEEK,
    "rename": RENAME, "list": LIST, "delete": DELETE,
}  # fmt: skip
_KIND_OF_OP = np.array([_KINDS[op] for op in OPS], dtype=np.uint8)

BATCH_ITEMS = 8192  # Most items of a batch
RING_BATCHES = 8  # Most batches of one lane that are submitted and not yet collected
NO_OPEN, OPENS, AWAITS_OPEN = range(3)
"""What a lane does for its next item: nothing, it opens the file, or it waits while another lane opens it."""

MAX_TIME_NS = 1 << 61  # Limit of due times and compute: 73 years, so that sums stay in int64
Values = np.ndarray | int  # A value of one item, or of each of several items, (n,)
Packed = tuple[Values, ...]  # An item, or several of one kind: the columns of `PLAN_ROW`


class LoopPace(enum.IntEnum):
    """When an item is due.

    ABSOLUTE: at t0 + due_ns.
    THINK: due_ns after the previous item of the lane ended; the first item at t0 + due_ns.
    NONE: at once. The due time in the results is then the begin.
    """

    ABSOLUTE = 0
    THINK = 1
    NONE = 2


def loop_items(
    kind: Values, slot: Values, count: int, *, place: Values = 0, amount: Values = 0, due_ns: Values = 0
) -> np.ndarray:
    """`PLAN_ROW` (count,) of items that no capture has; each value is an array (count,), or stands for all."""
    items = np.zeros(count, dtype=PLAN_ROW)
    items["kind"], items["_slot"], items["_place"] = kind, slot, place
    items["_amount"], items["due_ns"] = amount, due_ns
    return items


def _packed(
    kind: Values,
    place: Values = 0,
    amount: Values = 0,
    slot: Values = -1,
    *,
    step: Values = NO_STEP,
    event: Values = NO_EVENT,
    event_kind: Values = NO_EVENT,
    due_ns: Values = 0,
) -> Packed:
    return (kind, event_kind, 0, 0, slot, event, step, place, amount, due_ns)


def gap(*, kind: Values, duration_ns: Values, recorded_ns: Values = 0, **common: Values) -> Packed:
    """A stretch of time without I/O. `kind`: SLEEP or SPIN; `recorded_ns`: its begin in the capture; `common`: `step`,
    `event`, `event_kind` and `due_ns`."""
    return _packed(kind, recorded_ns, duration_ns, **common)


def mark(*, is_end: Values, **common: Values) -> Packed:
    """A border of a training step. `is_end`: 0 where the step begins, 1 where it ends."""
    return _packed(MARK, is_end, **common)


def wait(*, counter: Values, until: Values, multiple: Values = 1, **common: Values) -> Packed:
    """Wait until a counter stands at `until` or more, which is a multiple of `multiple`."""
    return _packed(WAIT, multiple, until, counter, **common)


def add(*, counter: Values, amount: Values = 1, multiple: Values = 1, **common: Values) -> Packed:
    """Add `amount` to a counter, and wake the lanes that wait for it where it reaches a multiple of `multiple`."""
    return _packed(ADD, multiple, amount, counter, **common)


def rows_of_each(items: Sequence[Packed]) -> np.ndarray:
    """`PLAN_ROW` (n,), one row an item; the items hold single values."""
    return np.array(items, dtype=PLAN_ROW)


def rows_of_arrays(items: Packed, count: int) -> np.ndarray:
    """`PLAN_ROW` (count,) of items of one kind, whose values are arrays (count,), or single where all share them."""
    rows = np.empty(count, dtype=PLAN_ROW)
    for name, values in zip(PLAN_ROW.names or (), items, strict=True):
        rows[name] = values
    return rows


def operation_rows(
    *,
    op: np.ndarray,
    api: Values,
    origin: Values,
    slot: np.ndarray,
    file_id: np.ndarray,
    step: Values,
    offset: Values,
    length: Values,
) -> np.ndarray:
    """`PLAN_ROW` (n,) of operations as the capture has them, without due times. Renames still lack their new slot."""
    return rows_of_arrays((_KIND_OF_OP[op], op, api, origin, slot, file_id, step, offset, length, 0), len(op))


def is_operation(rows: np.ndarray) -> np.ndarray:
    """bool (n,): which items are operations, rather than gaps, marks, waits and additions."""
    found: np.ndarray = rows["kind"] < SLEEP
    return found


def check_items(items: np.ndarray) -> None:
    """Check a batch, `PLAN_ROW` (n,).

    Raises: ReplayError for times beyond MAX_TIME_NS; ValueError for too many items or none, or an unknown kind.
    """
    if not 0 < len(items) <= BATCH_ITEMS:
        raise ValueError(f"a batch holds 1 to {BATCH_ITEMS} items, not {len(items)}")
    kind, due_ns = items["kind"], items["due_ns"]
    highest = kind.max()
    if highest > ADD:
        raise ValueError(f"a batch holds an item of unknown kind {highest}")
    longest = items["_amount"][kind >= SLEEP].max() if highest >= SLEEP else 0
    if highest >= WAIT and items["_place"][kind >= WAIT].min() < 1:
        raise ValueError("an item of a counter has a multiple below 1")
    if due_ns.min() < -MAX_TIME_NS or max(due_ns.max(), longest) > MAX_TIME_NS:
        raise ReplayError("an operation is due more than 73 years from the start: the capture's times are damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The results of the first `count` items of a batch: of all items, unless the lane was stopped.

    items: the batch as submitted, `PLAN_ROW`.
    due_ns, begin_ns, end_ns: int64 (count,), ns from t0. `due_ns` is when the item was really due at its pace.
    result: int64 (count,), bytes moved or -errno; 0 for items that move no bytes, -EINVAL for an unknown counter.
    """

    items: np.ndarray
    due_ns: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    result: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Completed]) -> Completed:
        """The results of one batch of a lane or more, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = ("due_ns", "begin_ns", "end_ns", "result")
        return cls(
            items=np.concatenate([part.items[: part.count] for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
        )

    @property
    def count(self) -> int:
        """Items that are done: fewer than len(items) when the lane was stopped."""
        return len(self.result)
