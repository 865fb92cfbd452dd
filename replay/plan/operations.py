"""From the op stream of a capture to batches of items for the lanes of a rank.

One stream per rank is read once and shared out to its lanes; a lane that falls behind waits in a `RowQueue`, so memory
stays bounded whatever the pace. Nothing here knows a clock, a file descriptor or MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.engine.items import (
    BATCH_ITEMS,
    COMPUTE_KINDS,
    OPEN,
    OPERATION_ROW,
    PLAN_ROW,
    READ_AHEAD,
    READ_NO_FURTHER,
    RENAME,
    RENAME_ROW,
    RING_BATCHES,
    gap,
    is_operation,
    mark,
    operation_rows,
    rows_of_arrays,
)
from dxt_replay.replay.plan.layers import SLOT_USE, LayerChoice, RankSurvey
from dxt_replay.replay.plan.pacing import Pacing, due_ns
from dxt_replay.replay.plan.spill import RowQueue, SpillFile
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import few_together, step_at
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS, OPEN_FLAGS, SPAN_KINDS, codes
from dxt_replay.traces.store.reader import Capture

PROCESS_ITEMS = 1 << 19  # in the rings of a process's lanes, about 50 MB with what is remembered of them
LEAST_BATCH_ITEMS = 64
_TOGETHER_OPERATIONS = 1 << 16  # Operations of small ranks whose rows are made at once
BATCH_COLUMNS = ("lane", "op", "file_id", "length", "start_ns", "end_ns")
"""Columns of the op stream that an `OperationBatch` needs."""

_COLUMNS = (*BATCH_COLUMNS, "api", "offset", "step", "origin", "other_file_id", "open_flags")
_SEQUENTIAL, _RANDOM = (1 << OPEN_FLAGS.index(flag) for flag in ("sequential", "random"))

KNOWN_ROW = np.dtype([("feeds", "<i4"), ("follows", "<i4"), ("follows_end", "i1"), ("ready_ns", "<i8")])
"""`traces.schema.DEPENDENCY_COLUMNS` of an operation, -1 for null; `follows_end` 0 or 1."""

_NOTHING_KNOWN = np.empty(0, dtype=KNOWN_ROW)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationBatch:
    """Operations of one rank in start order, each array (n,) as the column of the capture; `op` in codes.

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
        chosen: Any = slice(None) if mask.all() else mask  # no copies
        columns = {name: batch.column(name).to_numpy()[chosen] for name in BATCH_COLUMNS if name != "op"}
        known = _NOTHING_KNOWN
        if "feeds" in batch.schema.names:
            known = np.empty(len(columns["lane"]), dtype=KNOWN_ROW)
            for name in DEPENDENCY_COLUMNS:
                known[name] = batch.column(name).cast(pa.int64()).fill_null(-1).to_numpy()[chosen]
        return cls(op=codes(batch, "op")[chosen], known=known, **columns)

    def part(self, rows: slice) -> OperationBatch:
        return OperationBatch(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


Planned = tuple[np.ndarray, OperationBatch]
"""The operations of a row group: `PLAN_ROW`s without due times, and what was recorded."""

Split = Callable[[np.ndarray, OperationBatch], Iterator[tuple[int, np.ndarray, np.ndarray]]]
"""Makes the operations of a rank's lanes depend on its training loop (`replay.causal.items.split`): lane, items as
`PLAN_ROW` and recorded durations, for the `PLAN_ROW`s of these operations."""


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


# ------------------------------------------------------------------------------------------------- the table of files


Slots = Mapping[int, np.ndarray]
"""The slots of a rank's files in the table of files: for each back end int32 by file_id, -1 for none."""


def slots_of(slots: Slots, backend: np.ndarray, file_id: np.ndarray) -> np.ndarray:
    """The slot of each operation, int32 (n,)."""
    if len(slots) == 1:
        (only,) = slots.values()
        return np.asarray(only[file_id])
    found = np.full(len(file_id), -1, dtype=np.int32)
    for code, numbers in slots.items():
        mine = backend == code
        found[mine] = numbers[file_id[mine]]
    return found


def process_slots(surveys: Sequence[RankSurvey]) -> tuple[np.ndarray, np.ndarray, list[Slots]]:
    """The one table of files of a process's ranks, which knows all descriptors: its `SLOT_USE` by slot, and whether
    it is written; and the slots of each rank.

    The slots of each rank follow those of the rank before; a file has one for each back end that a rank uses it by.
    """
    uses = np.concatenate([np.empty(0, dtype=SLOT_USE), *(survey.slots for survey in surveys)])
    written = [np.isin(survey.slots["file_id"], survey.writes) for survey in surveys]
    found, count = list[Slots](), 0
    for survey in surveys:
        of: dict[int, np.ndarray] = {}
        number = np.arange(count, count + len(survey.slots), dtype=np.int32)
        for backend in np.unique(survey.slots["backend"]).tolist():
            mine = survey.slots["backend"] == backend
            of[backend] = np.full(len(survey.layers.files.of_file), -1, dtype=np.int32)
            of[backend][survey.slots["file_id"][mine]] = number[mine]
        count += len(survey.slots)
        found.append(of)
    return uses, np.concatenate([np.empty(0, dtype=bool), *written]), found


# --------------------------------------------------------------------------------------------------- columns to items


def planned_operations(capture: Capture, survey: RankSurvey, slots: Slots, *, with_known: bool) -> Iterator[Planned]:
    """The replayed operations of a rank, a row group at a time. with_known: with the dependency columns."""
    columns = [*_COLUMNS, *(DEPENDENCY_COLUMNS if with_known else ())]
    # `map` frees each row group before it reads the next; a generator frame would keep it for every rank.
    return map(partial(_planned, survey.layers, slots), capture.operations(survey.rank, columns=columns))


def planned_together(
    capture: Capture, ranks: Sequence[int], layers: LayerChoice, slots: Slots, *, with_known: bool
) -> dict[int, list[Planned]]:
    """As `planned_operations` of each of these ranks, held; the rows of many small row groups are made at once."""
    columns = [*_COLUMNS, *(DEPENDENCY_COLUMNS if with_known else ())]
    found: dict[int, list[Planned]] = {rank: [] for rank in ranks}
    for read in few_together(capture.rank_operations(ranks, columns), lambda each: len(each[1]), _TOGETHER_OPERATIONS):
        together = pa.Table.from_batches([batch for _, batch in read]).combine_chunks()
        rows, operations = _planned(layers, slots, together)
        recorded = np.cumsum([0, *(len(batch) for _, batch in read)])
        limits = np.append(0, np.cumsum(layers.replayed(together)))[recorded].tolist()
        for (rank, _), (begin, until) in zip(read, pairwise(limits), strict=True):
            if begin < until:
                found[rank].append((rows[begin:until], operations.part(slice(begin, until))))
    return found


def _planned(layers: LayerChoice, slots: Slots, batch: pa.RecordBatch | pa.Table) -> Planned:
    mask = layers.replayed(batch)
    operations = OperationBatch.of(batch, mask)
    api, origin = codes(batch, "api")[mask], codes(batch, "origin")[mask]
    backend = layers.backends(api, operations.file_id)
    rows = operation_rows(
        op=operations.op,
        api=api,
        origin=origin,
        slot=slots_of(slots, backend, operations.file_id),
        file_id=operations.file_id,
        step=batch.column("step").to_numpy()[mask],
        offset=batch.column("offset").to_numpy()[mask],
        length=operations.length,
    )
    opens = rows["kind"] == OPEN
    if opens.any():
        flags = batch.column("open_flags").fill_null(0).to_numpy()[mask]
        for flag, advice in ((_SEQUENTIAL, READ_AHEAD), (_RANDOM, READ_NO_FURTHER)):
            rows.view(OPERATION_ROW)["offset"][opens & (flags & flag > 0)] = advice
    renames = rows["kind"] == RENAME
    if renames.any():
        new_file_id = batch.column("other_file_id").fill_null(-1).to_numpy()[mask][renames]
        own = rows.view(RENAME_ROW)
        own["new_file_id"][renames] = new_file_id
        own["new_slot"][renames] = slots_of(slots, backend[renames], new_file_id)
    return rows, operations


def batch_items_of(lanes: int) -> int:
    """Items in a batch of each lane, so that all lanes together have less than PROCESS_ITEMS in flight."""
    return min(BATCH_ITEMS, max(LEAST_BATCH_ITEMS, PROCESS_ITEMS // (RING_BATCHES * max(lanes, 1))))


class RankPlan:
    """Shares one rank's op stream out to its lanes.

    origin_ns: recorded time of the replay's start.
    spill: for rows of lanes that lag behind.
    causal: makes the operations depend on the training loop (pace `steps`); without it each has a due time of its own.
    known: by lane, the dependency columns of its operations, in order; empty without these columns or `causal`.
    batch_items: most items that `pull` returns.
    """

    def __init__(
        self,
        capture: Capture,
        survey: RankSurvey,
        slots: Slots,
        pacing: Pacing,
        origin_ns: int,
        spill: SpillFile,
        causal: Split | None = None,
        batch_items: int = BATCH_ITEMS,
    ) -> None:
        known = causal is not None and capture.info.dependencies == "known"
        self._batches = planned_operations(capture, survey, slots, with_known=known)
        self.known = {lane: RowQueue(KNOWN_ROW, spill) for lane in survey.lanes} if known else {}
        self._batch_items = batch_items
        self._causal, self._pacing, self._origin_ns = causal, pacing, origin_ns
        self._queues = {lane: RowQueue(PLAN_ROW, spill) for lane in survey.lanes}
        self._left = dict(survey.lane_operations)
        self._previous_end_ns = dict.fromkeys(survey.lanes, origin_ns)

    def pull(self, lane: int) -> np.ndarray:
        """The next items of a lane, `PLAN_ROW`; empty when there are no more."""
        queue = self._queues[lane]
        # A lane that has had all of its operations must not read to the end of the rank's stream to find that out.
        while self._left[lane] and not len(queue):
            planned = next(self._batches, None)
            if planned is None:
                break
            for other, own in self._shared_out(*planned):
                self._queues[other].append(own)
        rows = queue.pop(self._batch_items)
        self._left[lane] -= int(np.count_nonzero(is_operation(rows)))
        return rows

    def _shared_out(self, rows: np.ndarray, operations: OperationBatch) -> Iterator[tuple[int, np.ndarray]]:
        for lane, known in self.known.items():
            known.append(operations.known[operations.lane == lane])
        if self._causal is not None:
            yield from ((lane, items) for lane, items, _ in self._causal(rows, operations))
            return
        for lane, mine in rows_by_lane(operations.lane):
            own, start_ns, end_ns = rows[mine], operations.start_ns[mine], operations.end_ns[mine]
            own["due_ns"] = due_ns(self._pacing, start_ns, end_ns, self._origin_ns, self._previous_end_ns[lane])
            self._previous_end_ns[lane] = int(end_ns[-1])
            yield lane, own

    def close(self) -> None:
        for queue in (*self._queues.values(), *self.known.values()):
            queue.close()


# ------------------------------------------------------------------------------------------------ the training thread


def compute_rows(spans: pa.Table, pacing: Pacing, compute: str, origin_ns: int) -> np.ndarray:
    """The items of a rank's compute lane, from its spans: a gap for each busy stretch, a mark at each step's borders.

    A gap carries the step that it begins in. Marks come before a gap that begins with them. Empty
    with a pace that does not follow the recording: what the storage can do does not wait for compute.
    """
    if not pacing.pace.follows_recording:
        return np.empty(0, dtype=PLAN_ROW)
    kind, step = codes(spans, "kind"), spans["step"].to_numpy()
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    is_step = kind == SPAN_KINDS.index("step")
    borders = np.concatenate((start_ns[is_step], end_ns[is_step]))
    busy = busy_intervals(kind, start_ns, end_ns)
    # Cut the gaps where a border lies inside: a mark must not wait for a gap to end.
    inside = borders[busy.covered_within(borders, borders + 1) > 0]
    gap_starts = np.union1d(busy.starts, inside)
    gap_ends = np.union1d(busy.ends, inside[~np.isin(inside, busy.starts)])
    marks, gaps = len(borders), len(gap_starts)
    is_end = np.repeat([0, 1], marks // 2)
    stretches = gap(
        kind=COMPUTE_KINDS[compute],
        duration_ns=pacing.compute_ns(gap_ends - gap_starts),
        recorded_ns=gap_starts,
        step=step_at(gap_starts, start_ns[is_step], end_ns[is_step], step[is_step]),
    )
    border = mark(is_end=is_end, step=np.tile(step[is_step], 2))
    rows = np.concatenate((rows_of_arrays(border, marks), rows_of_arrays(stretches, gaps)))
    times = np.concatenate((borders, gap_starts))
    durations = np.concatenate((np.zeros(marks, dtype=np.int64), gap_ends - gap_starts))
    # At one instant a step ends, the next begins, then its compute starts.
    rank_at_instant = np.concatenate((1 - is_end, np.full(gaps, 2)))
    order = np.lexsort((rank_at_instant, times))
    rows, times, durations = rows[order], times[order], durations[order]
    rows["due_ns"] = due_ns(pacing, times, times + durations, origin_ns, origin_ns, pacing.compute_ns)
    return rows


def busy_intervals(kind: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> Intervals:
    """The compute gaps to replay, from one rank's spans: steps and compute, less input wait, collectives, checkpoints.

    The rest of a step is the framework's own work on the training thread. For the storage it is a gap like compute.
    """

    def union(*names: str) -> Intervals:
        chosen = np.isin(kind, [SPAN_KINDS.index(name) for name in names])
        return Intervals.union_of(start_ns[chosen], end_ns[chosen])

    return union("step", "compute").minus(union("input_wait", "collective", "checkpoint"))
