"""What goes into a lane and what comes out: batches of items, and their results."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.errors import ReplayError

READ_AT, WRITE_AT, OPEN, CLOSE, STAT, SYNC, SEEK, RENAME, SLEEP, SPIN, MARK, WAIT, ADD = range(13)
"""Kinds of an item. Those below SLEEP are operations.

READ_AT, WRITE_AT: move `length` bytes at `offset` of the file in `slot`.
OPEN to RENAME: see `replay.engine.lane_files`.
SLEEP, SPIN: pause for `length` ns, asleep or busy.
MARK: a time stamp, begin = end.
WAIT: wait until the counter in `slot` is at least `length`. The end is when the counter got there, even where the lane
    woke up later.
ADD: add `length` to the counter in `slot`. Lanes that wait for it are woken where it reaches a multiple of `offset`.

The lanes share the counters. All items of a counter have the same `offset`, and each `length` that is waited for is a
multiple of it. `replay.plan.plan_row` makes items with a named field for each of these values."""

BATCH_ITEMS = 8192
"""Most items of a batch."""

RING_BATCHES = 8
"""Most batches of one lane that are submitted and not yet collected."""

MAX_TIME_NS = 1 << 61
"""Limit of due times and compute: 73 years, so that sums stay in int64."""


class LoopPace(enum.IntEnum):
    """When an item is due.

    ABSOLUTE: at t0 + due_ns.
    THINK: due_ns after the previous item of the lane ended; the first item at t0 + due_ns.
    NONE: at once. The due time in the results is then the begin.
    """

    ABSOLUTE = 0
    THINK = 1
    NONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """1 to BATCH_ITEMS items of one lane, in order. Contiguous arrays (n,), which must not change once submitted.

    kind: uint8, see above.
    slot: int32, index of the file or counter; -1 for none.
    offset: int64, bytes; for a counter, the multiple.
    length: int64, bytes or ns; for a counter, the amount. A read of length 0 met the end of its file when it was
        recorded: it asks for 4096 bytes where the file ends at or before `offset`, else for 0 bytes.
    due_ns: int64, see `LoopPace`.
    Raises: ReplayError for times beyond MAX_TIME_NS; ValueError for arrays of the wrong shape, type or kind.
    """

    kind: np.ndarray
    slot: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    due_ns: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.kind)
        if not 0 < count <= BATCH_ITEMS:
            raise ValueError(f"a batch holds 1 to {BATCH_ITEMS} items, not {count}")
        for name, dtype in (
            ("kind", np.uint8), ("slot", np.int32), ("offset", np.int64), ("length", np.int64), ("due_ns", np.int64),
        ):  # fmt: skip
            array = getattr(self, name)
            if array.shape != (count,) or array.dtype != dtype or not array.flags.c_contiguous:
                raise ValueError(f"{name} of a batch is not a contiguous {np.dtype(dtype)}[{count}]")
        highest = self.kind.max()
        if highest > ADD:
            raise ValueError(f"a batch holds an item of unknown kind {highest}")
        longest = self.length[self.kind >= SLEEP].max() if highest >= SLEEP else 0
        if highest >= WAIT and self.offset[self.kind >= WAIT].min() < 1:
            raise ValueError("an item of a counter has a multiple below 1")
        if self.due_ns.min() < -MAX_TIME_NS or max(self.due_ns.max(), longest) > MAX_TIME_NS:
            raise ReplayError("an operation is due more than 73 years from the start: the capture's times are damaged")

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The results of the first `count` items of a batch: of all items, unless the lane was stopped.

    batch: the batch as submitted.
    due_ns, begin_ns, end_ns: int64 (count,), ns from t0. `due_ns` is when the item was really due at its pace.
    result: int64 (count,), bytes moved or -errno; 0 for items that move no bytes, -EINVAL for an unknown counter.
    """

    batch: Batch
    due_ns: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    result: np.ndarray

    @property
    def count(self) -> int:
        """Items that are done: fewer than len(batch) when the lane was stopped."""
        return len(self.result)
