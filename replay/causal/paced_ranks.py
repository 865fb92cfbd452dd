"""The pace `steps` for the ranks of one process: their causal models, and the counters at which their lanes wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.causal_items import CausalLanes, Meetings, RankCounters, ready_rows, script_rows
from dxt_replay.replay.causal.check import schedule
from dxt_replay.replay.causal.dependency_pass import DependencyPass
from dxt_replay.replay.causal.known import ColumnsContradictError
from dxt_replay.replay.causal.model import LoopModel, derive_model, known_model
from dxt_replay.replay.causal.production import PipelineSpans
from dxt_replay.replay.causal.recorder_waits import batch_without, recorder_waits, spans_without
from dxt_replay.replay.causal.training_loop import TrainingLoop, known_loop, training_loop
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.wait_counters import FIRST_RANK_COUNTER
from dxt_replay.replay.plan.chosen_layers import LayerChoice, choose_layers
from dxt_replay.replay.plan.lane_plan import SlotNumbers, planned_operations
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.plan_row import BATCH_COLUMNS, OperationBatch
from dxt_replay.replay.plan.survey import RankSurvey, spans_by_rank, survey_rank
from dxt_replay.replay.ranks.comm import Communicator, SharedCounters, Solo, together
from dxt_replay.replay.ranks.meeting_relay import MeetingRelay
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_duration
from dxt_replay.traces.unseen import unseen_of, why_not_judged

MAX_CHECKED_OPERATIONS = 5_000_000
"""Operations up to which `expected_elapsed_ns` works out a model: it needs a second per million of them."""

OUTSIDE_SHARE = 0.1
"""Share of the loop's bytes that steps outside of the profile consume, from which on there is a warning."""

_COLUMNS = [*BATCH_COLUMNS, "api", "offset", "origin"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """What the ranks of this process need for the pace `steps`.

    models, surveys, waits: by rank; `waits` are waits that the recording itself caused, which no item repeats.
    spans: by rank, rows of `SPANS_SCHEMA`, at the times of a clock that stands still during these waits.
    meetings: the collectives of all ranks of the replay.
    origin_ns: recorded time of the replay's start.
    warnings: sentences about the models, for the user.
    """

    models: Mapping[int, LoopModel]
    surveys: Mapping[int, RankSurvey]
    waits: Mapping[int, Intervals]
    spans: Mapping[int, pa.Table]
    meetings: Meetings
    origin_ns: int
    warnings: tuple[str, ...]

    def counters(self, base: int) -> dict[int, RankCounters]:
        """The counters of each rank, from number `base` on."""
        placed = {}
        for rank, survey in self.surveys.items():
            placed[rank] = RankCounters(base=base, lanes=survey.lanes)
            base += placed[rank].count
        return placed

    @property
    def counter_count(self) -> int:
        """How many counters the ranks need."""
        return sum(counters.count for counters in self.counters(0).values())

    def placed(self, rank: int, batch: OperationBatch) -> OperationBatch:
        """Operations of a rank, moved to the times of its model."""
        return self.models[rank].placed(batch_without(self.waits[rank], batch))

    def dependencies(self, rank: int) -> DependencyPass:
        """The dependencies of a rank's operations, from its first one on."""
        operations = self.surveys[rank].lane_operations
        return DependencyPass(self.models[rank], operations, self.origin_ns, partial(self.placed, rank))

    def lanes(self, rank: int, counters: RankCounters, pacing: Pacing) -> CausalLanes:
        """Turns a rank's operations into items of its lanes."""
        return CausalLanes(self.dependencies(rank), counters, pacing)

    def pipeline(self, rank: int, counters: RankCounters, pacing: Pacing) -> np.ndarray:
        """The input pipeline of a rank as items, see `replay.causal.causal_items.ready_rows`."""
        return ready_rows(self.models[rank], counters, pacing)

    def script(self, rank: int, counters: RankCounters, pacing: Pacing, compute: str = "sleep") -> np.ndarray:
        """The training thread of a rank as items. `compute`: sleep, spin, or skip for empty gaps."""
        return script_rows(self.models[rank], counters, pacing, compute, self.meetings)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacedRanks:
    """Paces the lanes of one process in a run: its models, and the counters that all its lanes share.

    `relay`: carries arrivals at collectives to the other nodes; None if no other node waits for them.
    """

    steps: Steps
    shared: SharedCounters
    counters: Mapping[int, RankCounters]
    relay: MeetingRelay | None

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """While the run lasts, arrivals at collectives travel between the nodes."""
        if self.relay is None:
            yield
            return
        self.relay.start()
        try:
            yield
        finally:
            self.relay.stop()

    def check_relay(self) -> None:
        """Raises: ReplayError when the relay failed and ended the run."""
        if self.relay is not None:
            self.relay.check()


@contextmanager
def paced_ranks(steps: Steps, comm: Communicator, stop: StopFlag) -> Iterator[PacedRanks]:
    """The ranks of this process with counters for one run, which end with the context. Collective.

    `stop`: ends this process's lanes. Raises: ReplayError on all processes when MPI lacks what several nodes need.
    """
    shared = comm.counters(steps.counter_count, FIRST_RANK_COUNTER)
    leaders, meetings = shared.leaders, steps.meetings
    meet = leaders is not None and len(meetings.cost_ns) > 0
    relay = together(
        comm, lambda: MeetingRelay(leaders, shared.counters, meetings.ranks, stop) if leaders and meet else None
    )
    yield PacedRanks(steps=steps, shared=shared, counters=steps.counters(shared.base), relay=relay)
    shared.free()  # not after an error: it is collective, and the other processes may not call it


def derive_steps(
    capture: Capture,
    surveys: Sequence[RankSurvey],
    spans: Mapping[int, pa.Table],
    origin_ns: int,
    comm: Communicator,
) -> Steps:
    """The models of the surveyed ranks. Collective: ranks of all processes meet at collectives.

    `spans`: of each surveyed rank. `origin_ns`: recorded time of the replay's start.
    Raises: CaptureError on all processes when a rank has no training steps, or a part is damaged.
    """
    found = together(
        comm, lambda: {each.rank: _derive_rank(capture, each, spans[each.rank], origin_ns) for each in surveys}
    )
    models = {rank: model for rank, (model, _, _) in found.items()}
    waits = {rank: each for rank, (_, each, _) in found.items()}
    meetings, warnings = _meetings([each.loop for each in models.values()], comm)
    return Steps(
        models=models,
        surveys={survey.rank: survey for survey in surveys},
        waits=waits,
        spans={rank: table for rank, (_, _, table) in found.items()},
        meetings=meetings,
        origin_ns=origin_ns,
        warnings=(*warnings, *_of_recorder(waits), *_outside(models), *_not_traced(capture), *doubts(models)),
    )


def steps_of(capture: Capture, layers: LayerChoice | None = None) -> Steps:
    """The models of all ranks of a capture, in this process. `layers`: chosen already. Raises: as `derive_steps`."""
    layers = choose_layers(capture) if layers is None else layers
    surveys = [survey_rank(capture, rank, layers) for rank in capture.ranks]
    spans = spans_by_rank(capture.spans, capture.ranks)
    return derive_steps(capture, surveys, spans, capture.time_span_ns[0], Solo())


def _derive_rank(
    capture: Capture, survey: RankSurvey, spans: pa.Table, origin_ns: int
) -> tuple[LoopModel, Intervals, pa.Table]:
    """The model of a rank, the waits that the recording caused, and the spans without them."""
    rank = survey.rank
    waits = recorder_waits(capture.info, rank, spans, rank_batches(capture, rank, survey.layers), origin_ns)
    spans = spans_without(waits, spans)
    return _model(capture, survey, rank_loop(capture, rank, spans, origin_ns), spans, waits), waits, spans


def _model(capture: Capture, survey: RankSurvey, loop: TrainingLoop, spans: pa.Table, waits: Intervals) -> LoopModel:
    def batches() -> Iterator[OperationBatch]:
        return map(partial(batch_without, waits), rank_batches(capture, survey.rank, survey.layers))

    if capture.info.dependencies == "known":
        try:
            return known_model(loop, batches, capture.files.num_rows, spans)
        except ColumnsContradictError as error:
            raise ColumnsContradictError(
                f"{capture.named}: rank {survey.rank}: {error}; make the capture again, or replay with --pace timed"
            ) from error
    return derive_model(
        loop,
        batches,
        capture.files.num_rows,
        threads_known=capture.info.lanes == "pthread_id",
        workers_late_ns=_workers_late_ns(capture, survey.rank),
        pipeline=PipelineSpans.of(spans, loop),
    )


def _workers_late_ns(capture: Capture, rank: int) -> tuple[int, ...]:
    """Possible lateness of the clock of each worker process of a rank, ns, in the order of the workers."""
    clocks = [clock for clock in capture.info.clock if clock.rank == rank and clock.worker > 0]
    return tuple(max(clock.offset_ns - clock.interval_ns[0], 0) for clock in clocks)


def _meetings(loops: Sequence[TrainingLoop], comm: Communicator) -> tuple[Meetings, tuple[str, ...]]:
    """The meetings of all ranks from the loops of each process, and warnings about them. Collective."""
    own = [loop.end_ns[loop.collectives] - loop.begin_ns[loop.collectives] for loop in loops]
    gathered = comm.gather((own, all(loop.input_waits for loop in loops)))
    found: tuple[Meetings, tuple[str, ...]] | None = None
    if gathered is not None:
        durations = [each for process, _ in gathered for each in process]
        meetings, warnings = Meetings.of(durations), []
        if any(map(len, durations)) and not len(meetings.cost_ns):
            counts = sorted({len(each) for each in durations})
            warnings.append(
                f"the ranks took part in {counts[0]} to {counts[-1]} collectives: they are replayed as they were "
                "recorded, and no rank waits for another"
            )
        if not all(waits for _, waits in gathered):
            warnings.append("the profile has no input waits: each step is assumed to fetch its batch when it begins")
        found = meetings, tuple(warnings)
    shared: tuple[Meetings, tuple[str, ...]] = comm.broadcast(found)
    return shared


def doubts(models: Mapping[int, LoopModel]) -> list[str]:
    """Warnings about models that the recording contradicts: for each reason the first rank."""
    first: dict[str, int] = {}
    for rank, model in models.items():
        if model.doubt:
            first.setdefault(model.doubt, rank)
    found = sorted(first.items(), key=lambda each: each[1])[:1]
    return [f"rank {rank}: how long training takes on other storage is not known: {text}" for text, rank in found]


def _of_recorder(waits: Mapping[int, Intervals]) -> list[str]:
    """A warning with the cost of the recording for the rank that waited longest for it."""
    rank = max(waits, key=lambda each: waits[each].length_ns, default=None)
    if rank is None or not len(waits[rank]):
        return []
    return [
        f"rank {rank} waited {format_duration(waits[rank].length_ns)} for input while Darshan wrote the logs of "
        "processes that had ended, and did nothing else: this is taken for a cost of the recording and left out"
    ]


def _not_traced(capture: Capture) -> list[str]:
    """A warning if the job read data that the capture does not hold."""
    why = why_not_judged(capture.info.coverage, unseen_of(capture.info, capture.files))
    return [f"how long training takes on other storage is not known: {why}"] if why else []


def _outside(models: Mapping[int, LoopModel]) -> list[str]:
    """A warning if much was read for steps outside the profile; it names the rank with the most."""
    shares = {rank: model.outside_bytes / model.loop_bytes for rank, model in models.items() if model.loop_bytes}
    most = max(shares, key=lambda rank: shares[rank], default=None)
    if most is None or shares[most] < OUTSIDE_SHARE:
        return []
    steps = models[most].loop.step_number
    return [
        f"rank {most}: the profile shows steps {steps[0]} to {steps[-1]}, and {100 * shares[most]:.0f} % of the "
        "loop's reads belong to other steps. Outside the profile each thread keeps its think times, as if compute hid "
        f"no read; --steps {steps[0]}-{steps[-1]} replays only the profiled part"
    ]


def rank_loop(capture: Capture, rank: int, spans: pa.Table, origin_ns: int) -> TrainingLoop:
    """The training loop of a rank from its spans. Raises: CaptureError when the rank has no steps."""
    try:
        return (known_loop if capture.info.dependencies == "known" else training_loop)(spans, origin_ns)
    except CaptureError as error:
        raise CaptureError(
            f"{capture.named}: rank {rank}: {error}; merge with a profile, or replay with --pace think or timed"
        ) from error


def rank_batches(capture: Capture, rank: int, layers: LayerChoice) -> Iterator[OperationBatch]:
    """The operations of a rank that a replay issues. Raises: CaptureError when a part is damaged."""
    for _, _, operations in rank_rows(capture, rank, layers):
        yield operations


def rank_rows(
    capture: Capture, rank: int, layers: LayerChoice
) -> Iterator[tuple[pa.RecordBatch, np.ndarray, OperationBatch]]:
    """Batches of the op stream of a rank, the mask of rows that a replay issues (bool), and these rows as operations.

    Raises: CaptureError when a part is damaged.
    """
    known = DEPENDENCY_COLUMNS if capture.info.dependencies == "known" else ()
    for batch in capture.operations(rank, columns=[*_COLUMNS, *known]):
        mine = layers.replayed(batch)
        if mine.any():
            yield batch, mine, OperationBatch.of(batch, mine)


def expected_elapsed_ns(capture: Capture, steps: Steps, pacing: Pacing | None = None) -> int | None:
    """The run time by the model with the recorded durations of the operations; None for too many operations.

    `pacing`: the speeds; None for the recorded ones. Needs all ranks of the capture, because they wait for each other.
    """
    if sum(survey.operations for survey in steps.surveys.values()) > MAX_CHECKED_OPERATIONS:
        return None
    lanes = planned_lanes(capture, steps, pacing or Pacing(pace=Pace.STEPS))
    return max(int(each.end_ns[-1]) for each in schedule(lanes).values() if len(each.end_ns))


def planned_lanes(capture: Capture, steps: Steps, pacing: Pacing) -> dict[Hashable, tuple[np.ndarray, np.ndarray]]:
    """The items of all lanes of the ranks, and the recorded durations of operations, int64 ns by item. Without file
    placements.

    Named (rank, lane), (rank, "pipeline") and (rank, "training").
    """
    lanes: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
    for rank, counters in steps.counters(base=FIRST_RANK_COUNTER).items():
        lanes |= {(rank, lane): made for lane, made in io_lanes(capture, steps, rank, counters, pacing).items()}
        script = steps.script(rank, counters, pacing)
        lanes[rank, "training"] = (script, np.zeros(len(script), dtype=np.int64))
    return lanes


def io_lanes(
    capture: Capture, steps: Steps, rank: int, counters: RankCounters, pacing: Pacing
) -> dict[Hashable, tuple[np.ndarray, np.ndarray]]:
    """Lanes of a rank, ascending, and "pipeline" -> items and durations, as in `planned_lanes`."""
    no_slots = SlotNumbers(of={0: np.full(capture.files.num_rows, -1, dtype=np.int32)})
    causal = steps.lanes(rank, counters, pacing)
    parts: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for rows, batch in planned_operations(
        capture, steps.surveys[rank], no_slots, with_known=capture.info.dependencies == "known"
    ):
        for lane, items, durations in causal.split(rows, batch):
            parts.setdefault(lane, []).append((items, durations))
    lanes: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
    for lane, made in sorted(parts.items()):
        items, durations = (np.concatenate(columns) for columns in zip(*made, strict=True))
        lanes[lane] = (items, durations)
    ready = steps.pipeline(rank, counters, pacing)
    lanes["pipeline"] = (ready, np.zeros(len(ready), dtype=np.int64))
    return lanes
