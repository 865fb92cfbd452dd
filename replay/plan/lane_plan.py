"""What each lane of a rank does, in batches: the op stream of a capture turned into items for the issue loop.

One stream per rank is read once and shared out to its lanes; a lane that falls behind waits in a `RowQueue`, so memory
stays bounded whatever the pace. Nothing here knows a clock, a file descriptor or MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from replay.engine.backends.base import FileSlot
from replay.engine.items import (
    BATCH_ITEMS,
    CLOSE,
    MARK,
    OPEN,
    READ,
    RENAME,
    RING_BATCHES,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WRITE,
    Batch,
)
from replay.plan.pacing import LaneClock, Pace, Pacing
from replay.plan.plan_row import PLAN_ROW, OperationBatch
from replay.plan.row_queue import RowQueue, SpillFile
from replay.plan.survey import RankSurvey
from replay.twin.placement import Placement
from traces.measures.intervals import Intervals
from traces.schema import OPS, SPAN_KINDS, codes
from traces.steps import step_at
from traces.store.reader import Capture

COMPUTE_KINDS = {"sleep": SLEEP, "spin": SPIN}

_KINDS = {
    "open": OPEN, "close": CLOSE, "read": READ, "write": WRITE, "stat": STAT, "sync": SYNC, "seek": SEEK,
    "rename": RENAME,
}  # fmt: skip
KIND_OF_OP = np.array([_KINDS[op] for op in OPS], dtype=np.uint8)
"""Kind of an item by the code of the recorded operation."""

PROCESS_ITEMS = 1 << 19
"""Items in the rings of a process's lanes, about 50 MB with what is remembered of them."""

LEAST_BATCH_ITEMS = 64

_COLUMNS = ("lane", "op", "api", "file_id", "offset", "length", "start_ns", "end_ns", "step", "origin")


def batch_of(rows: np.ndarray) -> Batch:
    """The columns that the loop reads, from rows of `PLAN_ROW`."""
    return Batch(
        kind=np.ascontiguousarray(rows["kind"]),
        slot=np.ascontiguousarray(rows["slot"]),
        offset=np.ascontiguousarray(rows["offset"]),
        length=np.ascontiguousarray(rows["length"]),
        due_ns=np.ascontiguousarray(rows["due_ns"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotNumbers:
    """Which slot of the table of files a rank's file has: int32 by file_id, -1 for none, for each back end it uses."""

    of: Mapping[int, np.ndarray]

    def of_rows(self, backend: np.ndarray, file_id: np.ndarray) -> np.ndarray:
        """int32 (n,) from the codes of back ends and the files."""
        if len(self.of) == 1:
            (only,) = self.of.values()
            return np.asarray(only[file_id])
        slot = np.full(len(file_id), -1, dtype=np.int32)
        for code, numbers in self.of.items():
            mine = backend == code
            slot[mine] = numbers[file_id[mine]]
        return slot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessSlots:
    """The files of a process's ranks in one table, which knows all descriptors. `backends`: code by slot; `numbers`: by
    rank in the order given."""

    slots: Sequence[FileSlot]
    backends: Sequence[int]
    numbers: Sequence[SlotNumbers]


def process_file_slots(surveys: Sequence[RankSurvey], placements: Sequence[Placement]) -> ProcessSlots:
    """The slots of each rank follow those of the rank before; a file has one for each back end that a rank uses it by.

    A file that is written is opened for writing, and made where it does not exist: only read files were staged.
    """
    slots: list[FileSlot] = []
    backends: list[int] = []
    numbers = []
    for survey in surveys:
        of: dict[int, np.ndarray] = {}
        for use in survey.slots:
            if use.backend not in of:
                of[use.backend] = np.full(len(survey.layers.files.of_file), -1, dtype=np.int32)
            of[use.backend][use.file_id] = len(slots)
            writable = use.file_id in survey.writes
            path = placements[use.file_id].path
            slots.append(FileSlot(path=path, writable=writable, create=writable, uses=use.uses))
            backends.append(use.backend)
        numbers.append(SlotNumbers(of=of))
    return ProcessSlots(slots=slots, backends=backends, numbers=numbers)


class LaneSource:
    """Where a lane's items come from, in order."""

    def next_rows(self) -> np.ndarray:
        """Up to BATCH_ITEMS rows of `PLAN_ROW`; empty when there are no more."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of buffers and temporary files."""


_Planned = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def batch_items_of(lanes: int) -> int:
    """How many items a batch of each of so many lanes has, so that what is in flight stays below PROCESS_ITEMS."""
    return min(BATCH_ITEMS, max(LEAST_BATCH_ITEMS, PROCESS_ITEMS // (RING_BATCHES * max(lanes, 1))))


class CausalLanes(Protocol):
    """What ties the operations of a rank's lanes to its training loop (`replay.causal.items`)."""

    def split(self, rows: np.ndarray, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Lane, items as `PLAN_ROW` and recorded durations, for the `PLAN_ROW`s of these operations."""
        ...


class RankSource:
    """Shares one rank's op stream out to its lanes. `origin_ns`: recorded time of the replay's start.

    `spill`: for rows of lanes that lag behind.

    `causal`: ties the operations to the training loop (pace `steps`); without it they have due times of their own.
    `batch_items`: see `batch_items_of`.
    """

    def __init__(
        self,
        capture: Capture,
        survey: RankSurvey,
        slots: SlotNumbers,
        pacing: Pacing,
        origin_ns: int,
        spill: SpillFile | None = None,
        causal: CausalLanes | None = None,
        batch_items: int = BATCH_ITEMS,
    ) -> None:
        # By `map`, which holds on to no row group until it is asked for the next: there may be many ranks.
        self._batches = map(partial(_planned, survey, slots), capture.operations(survey.rank, columns=list(_COLUMNS)))
        self._batch_items = batch_items
        self._causal = causal
        self._queues = {lane: RowQueue(PLAN_ROW, spill=spill) for lane in survey.lanes}
        self._left = dict(survey.lane_operations)
        self._clocks = {lane: LaneClock(pacing, origin_ns) for lane in survey.lanes}

    def lane(self, lane: int) -> LaneSource:
        """The items of one lane."""
        return _QueuedLane(self, lane)

    def pull(self, lane: int) -> np.ndarray:
        queue = self._queues[lane]
        # A lane that has had all of its operations must not read on to the end of the rank's stream to learn so.
        while self._left[lane] and not len(queue):
            planned = next(self._batches, None)
            if planned is None:
                break
            for other, own in self._shared_out(*planned):
                self._queues[other].append(own)
        rows = queue.pop(self._batch_items)
        self._left[lane] -= int((rows["kind"] < SLEEP).sum())
        return rows

    def _shared_out(
        self, rows: np.ndarray, lanes: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Lane and items, for each lane of a row group."""
        if self._causal is not None:
            operations = OperationBatch(
                lane=lanes,
                op=rows["op"],
                file_id=rows["file_id"],
                length=rows["length"],
                start_ns=start_ns,
                end_ns=end_ns,
            )
            yield from ((lane, items) for lane, items, _ in self._causal.split(rows, operations))
            return
        for lane in np.unique(lanes).tolist():
            mine = lanes == lane
            own = rows[mine]
            own["due_ns"] = self._clocks[lane].due_ns(start_ns[mine], end_ns[mine])
            yield lane, own

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()


def _planned(survey: RankSurvey, slots: SlotNumbers, batch: pa.RecordBatch) -> _Planned:
    """Of a row group: rows without due times, their lanes, recorded starts and ends."""
    mask = survey.layers.replayed(batch)
    columns = {name: batch.column(name).to_numpy()[mask] for name in _COLUMNS if name not in ("op", "api", "origin")}
    rows = np.zeros(int(mask.sum()), dtype=PLAN_ROW)
    for name in ("op", "api", "origin"):
        rows[name] = codes(batch, name)[mask]
    for name in ("file_id", "step", "offset", "length"):
        rows[name] = columns[name]
    rows["kind"] = KIND_OF_OP[rows["op"]]
    backend = survey.layers.backends(rows["api"], rows["file_id"])
    rows["slot"] = slots.of_rows(backend, rows["file_id"])
    renames = rows["kind"] == RENAME
    if renames.any():
        # The loop wants the new name's slot; what the record needs waits where nobody looks.
        new_name = rows["offset"][renames]
        rows["length"][renames] = new_name
        rows["offset"][renames] = slots.of_rows(backend[renames], new_name)
    return rows, columns["lane"], columns["start_ns"], columns["end_ns"]


class _QueuedLane(LaneSource):
    def __init__(self, source: RankSource, lane: int) -> None:
        self._source = source
        self._lane = lane

    def next_rows(self) -> np.ndarray:
        return self._source.pull(self._lane)

    def close(self) -> None:
        self._source.close()


class ComputeSource(LaneSource):
    """A rank's compute lane: what its training thread did apart from waiting, and marks at the steps' borders."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def next_rows(self) -> np.ndarray:
        rows, self._rows = self._rows[:BATCH_ITEMS], self._rows[BATCH_ITEMS:]
        return rows


def compute_rows(spans: pa.Table, pacing: Pacing, compute: str, origin_ns: int) -> np.ndarray:
    """The items of a rank's compute lane, from its spans: a gap for each busy stretch, a mark at each step's borders.

    Marks carry the step in `step` and 0 (begin) or 1 (end) in `offset`; gaps the step that they begin in, and their
    recorded start in `offset`. Marks sort before what starts with them. Empty with compute `skip`, and without pace:
    what the storage can do does not wait for compute.
    """
    if compute == "skip" or pacing.pace is Pace.NONE:
        return np.empty(0, dtype=PLAN_ROW)
    kind, step = codes(spans, "kind"), spans["step"].to_numpy()
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    is_step = kind == SPAN_KINDS.index("step")
    borders = np.concatenate((start_ns[is_step], end_ns[is_step]))
    gap_starts, gap_ends = _cut(busy_intervals(kind, start_ns, end_ns), borders)
    marks, gaps = len(borders), len(gap_starts)
    rows = np.zeros(marks + gaps, dtype=PLAN_ROW)
    rows["slot"] = rows["file_id"] = -1
    times = np.concatenate((borders, gap_starts))
    rows["kind"] = np.repeat(np.array([MARK, COMPUTE_KINDS[compute]], dtype=np.uint8), [marks, gaps])
    rows["step"][:marks] = np.tile(step[is_step], 2)
    rows["step"][marks:] = step_at(gap_starts, start_ns[is_step], end_ns[is_step], step[is_step])
    rows["offset"] = np.concatenate((np.repeat([0, 1], marks // 2), gap_starts))
    durations = np.zeros(len(rows), dtype=np.int64)
    durations[marks:] = gap_ends - gap_starts
    rows["length"] = pacing.compute_ns(durations)
    # At one instant a step ends, the next begins, then its compute starts.
    rank_at_instant = np.concatenate((np.repeat([1, 0], marks // 2), np.full(gaps, 2)))
    order = np.lexsort((rank_at_instant, times))
    rows, times, durations = rows[order], times[order], durations[order]
    clock = LaneClock(pacing, origin_ns, pacing.compute_ns)
    rows["due_ns"] = clock.due_ns(times, times + durations)
    return rows


def busy_intervals(kind: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> Intervals:
    """The compute gaps to replay, from one rank's spans: steps and compute, less input wait, collectives, checkpoints.

    What lies inside a step besides those is the framework's own work on the training thread; to the storage it is
    a gap like compute.
    """

    def union(*names: str) -> Intervals:
        chosen = np.isin(kind, [SPAN_KINDS.index(name) for name in names])
        return Intervals.union_of(start_ns[chosen], end_ns[chosen])

    return union("step", "compute").minus(union("input_wait", "collective", "checkpoint"))


def _cut(busy: Intervals, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the intervals, cut where a border lies inside: a mark must not wait for a gap to end."""
    inside = borders[busy.covered_within(borders, borders + 1) > 0]
    starts = np.union1d(busy.starts, inside)
    ends = np.union1d(busy.ends, inside[~np.isin(inside, busy.starts)])
    return starts, ends
