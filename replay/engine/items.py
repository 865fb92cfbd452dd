"""The input of a lane (items) and its output (results)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.errors import ReplayError

READ_AT, WRITE_AT, OPEN, CLOSE, STAT, SYNC, SEEK, RENAME, LIST, DELETE, SLEEP, SPIN, MARK, WAIT, ADD = range(15)
"""Kinds of an item. Those below SLEEP are operations: one call each, timed like a read.

READ_AT, WRITE_AT: move `amount` bytes at `place` of the file in `slot`. A read of 0 bytes met the end of its file when
    it was recorded: it asks for 4096 bytes where the file ends at or before `place`, else for 0 bytes.
OPEN: makes a new handle each time, with the access of the slot. If the file is not open, the handle becomes the file's
    own. Otherwise it is kept as a spare handle until a CLOSE. Where `place` is READ_AHEAD, sequential reads are
    announced (POSIX_FADV_SEQUENTIAL): after a POSIX open, which also holds for a mapping of it, and before a mapping.
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
multiple of it. `replay.plan.plan_row` makes items with a named field for each of these values."""

READ_AHEAD = -2
"""Value of `place` of an OPEN; no recorded offset is below -1."""

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
of a file or counter, -1 for none), `_place`, `_amount` and `due_ns` (see `LoopPace`); `replay.plan.plan_row` has the
rest, and names for the columns of each kind."""

BATCH_ITEMS = 8192
"""Most items of a batch."""

RING_BATCHES = 8
"""Most batches of one lane that are submitted and not yet collected."""

NO_OPEN, OPENS, AWAITS_OPEN = range(3)
"""What a lane does for its next item: nothing, it opens the file, or it waits while another lane opens it."""

MAX_TIME_NS = 1 << 61
"""Limit of due times and compute: 73 years, so that sums stay in int64."""


Values = np.ndarray | int


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
