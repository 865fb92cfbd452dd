"""What each lane of a rank does, in batches: the op stream of a capture turned into items for the issue loop.

One stream per rank is read once and shared out to its lanes; a lane that falls behind waits in a `RowQueue`, so memory
stays bounded whatever the pace. Nothing here knows a clock, a file descriptor or MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.backends.base import FileSlot
from replay.items import BATCH_ITEMS, MARK, READ, SLEEP, SPIN, WRITE, Batch
from replay.pacing import LaneClock, Pace, Pacing
from replay.placement import Placement
from replay.row_queue import RowQueue
from replay.survey import RankSurvey
from traces.errors import UsageError
from traces.intervals import Intervals
from traces.ops import NO_STEP, SPAN_KINDS, codes
from traces.ops import WRITE as WRITE_OP
from traces.store import Capture

COMPUTE_LANE = -1
"""The lane of a rank's compute; its items are no operations and leave no rows."""

COMPUTE_KINDS = {"sleep": SLEEP, "spin": SPIN}

PLAN_ROW = np.dtype(
    [
        ("kind", "u1"),
        ("op", "i1"),
        ("api", "i1"),
        ("origin", "i1"),
        ("slot", "<i4"),
        ("file_id", "<i4"),
        ("step", "<i4"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("due_ns", "<i8"),
    ]
)
"""One planned item: what the loop needs and what the recorded row must carry again. 56 bytes."""

_COLUMNS = ("lane", "op", "api", "file_id", "offset", "length", "start_ns", "end_ns", "step", "origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Choices of the user that shape a plan. `compute`: sleep, spin or skip. `origin_ns`: recorded time of the start.

    Raises: UsageError for another compute.
    """

    pacing: Pacing
    compute: str = "sleep"
    origin_ns: int = 0

    def __post_init__(self) -> None:
        if self.compute not in (*COMPUTE_KINDS, "skip"):
            raise UsageError(f"--compute {self.compute!r}: choose sleep, spin or skip")


def batch_of(rows: np.ndarray) -> Batch:
    """The columns that the loop reads, from rows of `PLAN_ROW`."""
    return Batch(
        kind=np.ascontiguousarray(rows["kind"]),
        slot=np.ascontiguousarray(rows["slot"]),
        offset=np.ascontiguousarray(rows["offset"]),
        length=np.ascontiguousarray(rows["length"]),
        due_ns=np.ascontiguousarray(rows["due_ns"]),
    )


def file_slots(survey: RankSurvey, placements: Sequence[Placement]) -> tuple[list[FileSlot], np.ndarray]:
    """The rank's file slots, and int32 slot by file_id (-1 where the rank does not use the file).

    A file that is written is opened for writing, and made where it does not exist: only read files were staged.
    """
    slot_of_file = np.full(len(survey.layers.of_file), -1, dtype=np.int32)
    slots = []
    for slot, (file, uses) in enumerate(sorted(survey.uses.items())):
        slot_of_file[file] = slot
        writable = file in survey.writes
        slots.append(FileSlot(path=placements[file].path, writable=writable, create=writable, uses=uses))
    return slots, slot_of_file


class LaneSource:
    """Where a lane's items come from, in order."""

    def next_rows(self) -> np.ndarray:
        """Up to BATCH_ITEMS rows of `PLAN_ROW`; empty when there are no more."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of buffers and temporary files."""


class RankSource:
    """Shares one rank's op stream out to its lanes. `spill`: directory for rows of lanes that lag behind."""

    def __init__(
        self,
        capture: Capture,
        survey: RankSurvey,
        slot_of_file: np.ndarray,
        options: PlanOptions,
        spill: Path | None = None,
    ) -> None:
        self._batches = self._planned(capture, survey, slot_of_file)
        self._queues = {lane: RowQueue(PLAN_ROW, folder=spill) for lane in survey.lanes}
        self._left = dict(survey.lane_operations)
        self._clocks = {lane: LaneClock(options.pacing, options.origin_ns) for lane in survey.lanes}

    def lane(self, lane: int) -> LaneSource:
        """The items of one lane."""
        return _QueuedLane(self, lane)

    def _planned(
        self, capture: Capture, survey: RankSurvey, slot_of_file: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Per row group: rows without due times, their lanes, recorded starts and ends."""
        for batch in capture.operations(survey.rank, columns=list(_COLUMNS)):
            mask = survey.layers.undertaken(batch)
            columns = {
                name: batch.column(name).to_numpy()[mask] for name in _COLUMNS if name not in ("op", "api", "origin")
            }
            rows = np.zeros(int(mask.sum()), dtype=PLAN_ROW)
            for name in ("op", "api", "origin"):
                rows[name] = codes(batch, name)[mask]
            for name in ("file_id", "step", "offset", "length"):
                rows[name] = columns[name]
            rows["kind"] = np.where(rows["op"] == WRITE_OP, WRITE, READ)
            rows["slot"] = slot_of_file[rows["file_id"]]
            yield rows, columns["lane"], columns["start_ns"], columns["end_ns"]

    def pull(self, lane: int) -> np.ndarray:
        queue = self._queues[lane]
        # A lane that has had all of its operations must not read on to the end of the rank's stream to learn so.
        while self._left[lane] and not len(queue):
            planned = next(self._batches, None)
            if planned is None:
                break
            rows, lanes, start_ns, end_ns = planned
            for other in np.unique(lanes).tolist():
                mine = lanes == other
                own = rows[mine]
                own["due_ns"] = self._clocks[other].due_ns(start_ns[mine], end_ns[mine])
                self._queues[other].append(own)
        rows = queue.pop(BATCH_ITEMS)
        self._left[lane] -= len(rows)
        return rows

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()


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


def compute_rows(spans: pa.Table, rank: int, options: PlanOptions) -> np.ndarray:
    """The items of a rank's compute lane, as `PLAN_ROW`: a gap for each busy stretch, a mark at each step's borders.

    Marks carry the step in `step` and 0 (begin) or 1 (end) in `offset`; gaps the step that they begin in, and their
    recorded start in `offset`. Marks sort before what starts with them. Empty with compute `skip`, and without pace:
    what the storage can do does not wait for compute.
    """
    if options.compute == "skip" or options.pacing.pace is Pace.NONE:
        return np.empty(0, dtype=PLAN_ROW)
    mine = spans.filter(pc.equal(spans["rank"], rank))
    kind, step = codes(mine, "kind"), mine["step"].to_numpy()
    start_ns, end_ns = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
    is_step = kind == SPAN_KINDS.index("step")
    borders = np.concatenate((start_ns[is_step], end_ns[is_step]))
    gap_starts, gap_ends = _cut(busy_intervals(kind, start_ns, end_ns), borders)
    marks, gaps = len(borders), len(gap_starts)
    rows = np.zeros(marks + gaps, dtype=PLAN_ROW)
    rows["slot"] = rows["file_id"] = -1
    times = np.concatenate((borders, gap_starts))
    rows["kind"] = np.repeat(np.array([MARK, COMPUTE_KINDS[options.compute]], dtype=np.uint8), [marks, gaps])
    rows["step"][:marks] = np.tile(step[is_step], 2)
    rows["step"][marks:] = _step_at(gap_starts, start_ns[is_step], end_ns[is_step], step[is_step])
    rows["offset"] = np.concatenate((np.repeat([0, 1], marks // 2), gap_starts))
    durations = np.zeros(len(rows), dtype=np.int64)
    durations[marks:] = gap_ends - gap_starts
    rows["length"] = options.pacing.scaled_ns(durations)
    # At one instant a step ends, the next begins, then its compute starts.
    rank_at_instant = np.concatenate((np.repeat([1, 0], marks // 2), np.full(gaps, 2)))
    order = np.lexsort((rank_at_instant, times))
    rows, times, durations = rows[order], times[order], durations[order]
    rows["due_ns"] = LaneClock(options.pacing, options.origin_ns).due_ns(times, times + durations)
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


def _step_at(times: np.ndarray, begins: np.ndarray, ends: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Step in which each time lies (int32), NO_STEP outside; steps are disjoint."""
    if not len(begins):
        return np.full(len(times), NO_STEP, dtype=np.int32)
    order = np.argsort(begins)
    begins, ends, steps = begins[order], ends[order], steps[order]
    found = np.searchsorted(begins, times, side="right") - 1
    inside = (found >= 0) & (times < ends[found])
    return np.where(inside, steps[found], NO_STEP).astype(np.int32)
