"""One recorded rank in the replay: its lanes, their plans and the recorders of their results."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.ranks import PacedRanks
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import Lane
from dxt_replay.replay.engine.items import RING_BATCHES, Completed, LoopPace
from dxt_replay.replay.plan.lane_plan import (
    ComputeSource,
    LaneSource,
    RankSource,
    SlotNumbers,
    compute_rows,
)
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.plan.plan_row import is_operation
from dxt_replay.replay.plan.row_queue import SpillFile
from dxt_replay.replay.plan.survey import RankSurvey
from dxt_replay.replay.run.context import RunContext
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process_files import ProcessFiles
from dxt_replay.replay.run.recording import (
    ComputeRecorder,
    ComputeStructure,
    LaneRecorder,
    NoRecorder,
    Tally,
    TimeCollector,
)
from dxt_replay.traces.schema import SPAN_KINDS, codes

LOOP_PACE = {pace: LoopPace[pace.clock] for pace in Pace}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBuffers:
    """Buffers that the lanes of a process share, so that memory does not grow with the number of lanes.

    `spill`: file for rows that exceed memory.
    `times`: collects lag, latency and response.
    `batch_items`: most items of a batch.
    `record_items`: results of a lane that are recorded together.
    """

    spill: SpillFile
    times: TimeCollector
    batch_items: int
    record_items: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessLanes:
    """Objects that the ranks of a process share.

    `gate`: opens at the start of the run.
    `stop`: ends the lanes early.
    `paced`: the causal models with their counters; None for a pace without a model.
    """

    context: RunContext
    options: RunOptions
    files: ProcessFiles
    buffers: LaneBuffers
    gate: StartGate
    stop: StopFlag
    paced: PacedRanks | None

    def lane(self) -> Lane:
        """A lane of the issue loop."""
        counters = None if self.paced is None else self.paced.shared.counters
        pace = LOOP_PACE[self.options.pacing.pace]
        return Lane(self.files.table, pace=pace, start=self.gate, stop=self.stop, counters=counters)


class ReplayedRank:
    """One recorded rank in the replay: its I/O lanes and its compute lane, which use the files of the process.

    `slots`: the numbers of the rank's files in the table of the process.
    """

    def __init__(self, survey: RankSurvey, slots: SlotNumbers, shared: ProcessLanes) -> None:
        self.survey = survey
        context, paced, buffers, pacing = shared.context, shared.paced, shared.buffers, shared.options.pacing
        self._spans = context.spans[survey.rank]
        causal = None if paced is None else paced.steps.lanes(survey.rank, paced.counters[survey.rank], pacing)
        source = RankSource(
            context.capture, survey, slots, pacing, context.begin_ns, buffers.spill, causal, buffers.batch_items
        )
        self.recorders = [
            LaneRecorder(lane, buffers.spill, buffers.times, known=source.known.get(lane)) for lane in survey.lanes
        ]
        self.compute = ComputeRecorder()
        self.lanes = [
            FedLane(
                shared.lane(),
                source.lane(recorder.lane),
                recorder,
                f"{survey.rank}.{recorder.lane}",
                calls_python=shared.files.call_python(survey.lane_backends[recorder.lane]),
                record_items=buffers.record_items,
            )
            for recorder in self.recorders
        ]
        if paced is None:
            rows = compute_rows(self._spans, pacing, shared.options.compute, context.begin_ns)
        else:
            counters = paced.counters[survey.rank]
            rows = paced.steps.script(survey.rank, counters, pacing, shared.options.compute)
            ready = paced.steps.pipeline(survey.rank, counters, pacing)
            if len(ready):
                self.lanes.append(FedLane(shared.lane(), ComputeSource(ready), NoRecorder(), f"{survey.rank}.pipeline"))
        if len(rows):
            self.lanes.append(FedLane(shared.lane(), ComputeSource(rows), self.compute, f"{survey.rank}.compute"))

    @property
    def operations_done(self) -> int:
        """Operations that have ended. Waits and compute are not counted."""
        return sum(lane.operations_done for lane in self.lanes[: len(self.recorders)])

    def tally(self) -> Tally:
        """Totals of the rank, without the distributions of times."""
        starved = [lane.lane.starved_ns for lane in self.lanes]
        totals = sum((recorder.tally(ns) for recorder, ns in zip(self.recorders, starved, strict=False)), Tally())
        failures = tuple(replace(failure, rank=self.survey.rank) for failure in totals.failures)
        return replace(totals, failures=failures) + Tally(last_end_ns=self.compute.last_end_ns)

    def spans(self, compute_speed: float) -> pa.Table:
        """Spans of the rank's training thread in the replay, rows of `SPANS_SCHEMA`. `compute_speed`: of the replay."""
        busy = self._spans.filter(pa.array(codes(self._spans, "kind") == SPAN_KINDS.index("compute")))
        structure = ComputeStructure(
            starts=busy["start_ns"].to_numpy(), ends=busy["end_ns"].to_numpy(), speed=compute_speed
        )
        return self.compute.spans(self.survey.rank, structure)


class FedLane:
    """A lane of the issue loop with the source of its items and the recorder of its results.

    `name`: RANK.LANE, for the name of the thread.
    `calls_python`: whether it calls a back end in Python.
    `record_items`: results that are recorded together, since each call takes the feeder some 300 us.
    """

    def __init__(
        self,
        lane: Lane,
        source: LaneSource,
        recorder: LaneRecorder | ComputeRecorder | NoRecorder,
        name: str,
        *,
        calls_python: bool = False,
        record_items: int = 1,
    ) -> None:
        self.lane = lane
        self.source = source
        self.name = name
        self.calls_python = calls_python
        self._recorder = recorder
        self._record_items = record_items
        self._unrecorded: list[Completed] = []
        self._unrecorded_items = 0
        self._in_flight: deque[np.ndarray] = deque()
        self._collected = 0
        self._operations_collected = 0
        self._waiting: np.ndarray | None = None
        self._finished = False

    def pump(self) -> None:
        """Collect results and fill the lane's ring."""
        self.collect()
        self._feed()

    def collect(self) -> None:
        """Take the available results, and record them once there are enough."""
        while (done := self.lane.collect()) is not None:
            rows = self._in_flight.popleft()[: done.count]
            self._unrecorded.append(done)
            self._unrecorded_items += done.count
            self._collected += done.count
            self._operations_collected += int(np.count_nonzero(is_operation(rows)))
            if self._unrecorded_items >= self._record_items:
                self._record()

    def end(self) -> None:
        """Record the remaining results, after the lane has ended."""
        self.collect()
        if self._unrecorded:
            self._record()

    def _record(self) -> None:
        done = Completed.joined(self._unrecorded)
        self._recorder.record(done.items, done)
        self._unrecorded, self._unrecorded_items = [], 0

    def _feed(self) -> None:
        while not self._finished and len(self._in_flight) < RING_BATCHES:
            rows = self.source.next_rows() if self._waiting is None else self._waiting
            if not len(rows):
                self.lane.finish()
                self._finished = True
            elif self.lane.submit(rows):
                self._in_flight.append(rows)
                self._waiting = None
            else:
                self._waiting = rows
                return

    @property
    def operations_done(self) -> int:
        """Operations that have ended, including those with results not collected yet."""
        found, place = self._operations_collected, self.lane.items_done - self._collected
        for rows in self._in_flight:
            if place <= 0:
                break
            found += int(np.count_nonzero(is_operation(rows[:place])))
            place -= len(rows)
        return found

    def next_row(self) -> np.ndarray | None:
        """The plan's row (a `PLAN_ROW`) of the lane's current item; None without one, or after the end."""
        if self.lane.done:
            return None
        place = self.lane.items_done - self._collected
        for rows in list(self._in_flight):
            if place < len(rows):
                row: np.ndarray = rows[place]
                return row
            place -= len(rows)
        return None

    def behind_ns(self, elapsed_ns: int) -> int:
        """Lag of the lane's next item under pace `timed`, ns; 0 if none is due.

        `elapsed_ns`: time since the start of the run.
        """
        row = self.next_row()
        return 0 if row is None else max(0, elapsed_ns - int(row["due_ns"]))
