"""The pace `steps` for the ranks of one process: their causal models, and the counters at which their lanes wait.

Waits that the recording itself caused are removed from a rank's time before dependencies are inferred.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.columns import ColumnsContradictError, RankColumns
from dxt_replay.replay.causal.dealing import Worker
from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.items import Meetings, RankCounters, ready_rows, script_rows, split
from dxt_replay.replay.causal.loop import Batches, TrainingLoop, known_loop, training_loop
from dxt_replay.replay.causal.model import LoopModel, derive_model, known_model
from dxt_replay.replay.causal.production import pipeline_spans
from dxt_replay.replay.engine.clock import FIRST_RANK_COUNTER, StopFlag
from dxt_replay.replay.plan.layers import LayerChoice, RankSurvey, choose_layers, spans_by_rank, survey_rank
from dxt_replay.replay.plan.operations import (
    BATCH_COLUMNS,
    OperationBatch,
    Planned,
    Slots,
    Split,
    planned_operations,
    planned_together,
)
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.ranks.mpi import Communicator, MeetingRelay, SharedCounters, Solo, together
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import log_waits
from dxt_replay.traces.row_order import few_together
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS, SPAN_KINDS, CaptureInfo, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_duration

MAX_CHECKED_OPERATIONS = 5_000_000
"""Operations up to which `expected_elapsed_ns` works out a model: it needs a second per million of them."""

HELD_OPERATIONS, HELD_ITEMS = 1 << 22, 1 << 20
"""Operations up to which those of a rank are read once and held, 150 MB, while its model is derived; a larger rank is
read for each pass. And those of small ranks together, with their items."""

OUTSIDE_SHARE = 0.1
"""Share of the loop's bytes that steps outside of the profile consume, from which on there is a warning."""

Lanes = dict[Hashable, tuple[np.ndarray, np.ndarray]]
"""Items (`PLAN_ROW`) and recorded durations of each lane."""

_COLUMNS = [*BATCH_COLUMNS, "api", "offset", "origin"]
_BUSY = [SPAN_KINDS.index(kind) for kind in ("compute", "collective", "checkpoint", "pipeline")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankNotes:
    """What the other ranks and the user must know of the model of a rank.

    collectives_ns: int64, durations of its collectives in order. step_number: int32, its profiled steps.
    recorder_ns: how long it waited for the recording. outside_share: the share of the loop's bytes that steps outside
    of the profile consume. input_waits, doubt: as of its loop and model. unshown: for how many reads
    the loop may wait where the capture does not show it.
    """

    collectives_ns: np.ndarray
    step_number: np.ndarray
    input_waits: bool
    recorder_ns: int
    outside_share: float
    doubt: str
    unshown: int = 0

    @classmethod
    def of(cls, model: LoopModel, waits: Intervals) -> RankNotes:
        """The notes of a model. `waits`: as of `Steps`."""
        loop, feed = model.loop, model.feed
        return cls(
            collectives_ns=loop.end_ns[loop.collectives] - loop.begin_ns[loop.collectives],
            step_number=loop.step_number,
            input_waits=loop.input_waits,
            recorder_ns=waits.length_ns,
            outside_share=feed.outside_bytes / feed.loop_bytes if feed.loop_bytes else 0.0,
            doubt=model.doubt,
            unshown=model.unshown,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """What the ranks of this process need for the pace `steps`.

    models, surveys, waits: by rank; `waits` are waits that the recording itself caused, which no item repeats.
    spans: by rank, rows of `SPANS_SCHEMA`, at the times of a clock that stands still during these waits.
    meetings: the collectives of all ranks of the replay. origin_ns: recorded time of the replay's start.
    warnings: sentences about the models, for the user.
    """

    models: Mapping[int, LoopModel]
    surveys: Mapping[int, RankSurvey]
    waits: Mapping[int, Intervals]
    spans: Mapping[int, pa.Table]
    meetings: Meetings
    origin_ns: int
    warnings: tuple[str, ...]

    @property
    def operations(self) -> int:
        """Of all ranks."""
        return sum(survey.operations for survey in self.surveys.values())

    def counters(self, base: int) -> dict[int, RankCounters]:
        """The counters of each rank, from number `base` on."""
        placed = {}
        for rank, survey in self.surveys.items():
            placed[rank] = RankCounters(base=base, lanes=survey.lanes)
            base += placed[rank].count
        return placed

    def placed(self, rank: int, batch: OperationBatch) -> OperationBatch:
        """Operations of a rank, moved to the times of its model."""
        return self.models[rank].placed(batch_without(self.waits[rank], batch))

    def columns(self, rank: int, *, together: bool = True) -> RankColumns:
        """The dependencies of a rank's operations, from its first one on."""
        operations, placed = self.surveys[rank].lane_operations, partial(self.placed, rank)
        return RankColumns(self.models[rank], operations, self.origin_ns, placed, together=together)

    def lanes(self, rank: int, counters: RankCounters, pacing: Pacing) -> Split:
        """Turns a rank's operations into items of its lanes."""
        return partial(split, self.columns(rank), counters, pacing)

    def pipeline(self, rank: int, counters: RankCounters, pacing: Pacing) -> np.ndarray:
        """The input pipeline of a rank as items, see `replay.causal.items.ready_rows`."""
        return ready_rows(self.models[rank], counters, pacing)

    def script(self, rank: int, counters: RankCounters, pacing: Pacing, compute: str = "sleep") -> np.ndarray:
        """The training thread of a rank as items. `compute`: sleep or spin."""
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
    count = sum(each.count for each in steps.counters(base=0).values())
    shared = comm.counters(count, FIRST_RANK_COUNTER)
    leaders, meetings = shared.leaders, steps.meetings
    meet = leaders is not None and len(meetings.cost_ns) > 0
    relay = together(
        comm, lambda: MeetingRelay(leaders, shared.counters, meetings.ranks, stop) if leaders and meet else None
    )
    yield PacedRanks(steps=steps, shared=shared, counters=steps.counters(shared.base), relay=relay)
    shared.free()  # not after an error: it is collective, and the other processes may not call it


# ------------------------------------------------------------------------------------------------------ the models
def derive_steps(
    capture: Capture, surveys: Sequence[RankSurvey], spans: Mapping[int, pa.Table], origin_ns: int, comm: Communicator
) -> Steps:
    """The models of the surveyed ranks. Collective: ranks of all processes meet at collectives.

    `spans`: of each surveyed rank. `origin_ns`: recorded time of the replay's start.
    Raises: CaptureError on all processes when a rank has no training steps, or a part is damaged.
    """

    def derived(survey: RankSurvey) -> tuple[LoopModel, Intervals, pa.Table]:
        def read() -> Iterator[OperationBatch]:
            return (batch for _, _, batch in rank_rows(capture, survey.rank, survey.layers))

        held = tuple(read()) if survey.operations <= HELD_OPERATIONS else ()
        return _own_model(capture, survey.rank, spans[survey.rank], origin_ns, (lambda: held) if held else read)

    found = dict(together(comm, lambda: [(each.rank, derived(each)) for each in surveys]))
    meetings, warnings = meetings_of({rank: RankNotes.of(*each[:2]) for rank, each in found.items()}, comm)
    return Steps(
        models={rank: each[0] for rank, each in found.items()},
        surveys={survey.rank: survey for survey in surveys},
        waits={rank: each[1] for rank, each in found.items()},
        spans={rank: each[2] for rank, each in found.items()},
        meetings=meetings,
        origin_ns=origin_ns,
        warnings=warnings,
    )


def steps_of(capture: Capture, layers: LayerChoice | None = None) -> Steps:
    """The models of all ranks of a capture, in this process. `layers`: chosen already. Raises: as `derive_steps`."""
    layers = choose_layers(capture) if layers is None else layers
    surveys = [survey_rank(capture, rank, layers) for rank in capture.ranks]
    spans = spans_by_rank(capture.spans, capture.ranks)
    return derive_steps(capture, surveys, spans, capture.time_span_ns[0], Solo())


def _own_model(
    capture: Capture, rank: int, spans: pa.Table, origin_ns: int, batches: Batches, *, for_items: bool = False
) -> tuple[LoopModel, Intervals, pa.Table]:
    """The model of a rank alone, from its spans and the operations that a replay issues; `Steps.waits` and `spans`.

    `for_items`: see `known_model`."""
    waits = recorder_waits(capture.info, rank, spans, batches(), origin_ns)
    spans = spans_without(waits, spans)
    loop, files = rank_loop(capture, rank, spans, origin_ns), capture.files.num_rows

    def moved() -> Iterator[OperationBatch]:
        return (batch_without(waits, batch) for batch in batches())

    if capture.info.dependencies == "known":
        try:
            return known_model(loop, moved, files, spans, for_items=for_items), waits, spans
        except ColumnsContradictError as error:
            raise ColumnsContradictError(
                f"{capture.named}: rank {rank}: {error}; make the capture again, or replay with --pace timed"
            ) from error
    model = derive_model(
        loop,
        moved,
        files,
        threads_known=capture.info.lanes == "pthread_id",
        workers=partial(_workers, capture, rank),
        pipeline=pipeline_spans(spans, loop),
    )
    return model, waits, spans


def _workers(capture: Capture, rank: int, lanes: Iterable[int]) -> list[Worker]:
    """The worker processes of a rank, by start, that have some of these lanes, which read for the loop.

    Processes have ascending ids as they start, unless a clock of its own gives each a number. Operations rebuilt from
    counters may have lanes beside the one in which a worker reads.
    """
    clocks = [clock for clock in capture.info.clock if clock.rank == rank and clock.worker > 0]
    late_ns = [max(clock.offset_ns - clock.interval_ns[0], 0) for clock in clocks]
    known = capture.lanes
    mine = known.filter(pc.and_(pc.equal(known["role"], "worker"), pc.is_valid(known["pid"])))
    mine = mine.filter(pc.equal(mine["rank"], rank))
    if len(mine):
        # Lanes of operations that counters hold are no threads: they only keep apart what may have overlapped.
        used = capture.usage(rank)
        read = used.filter(pc.and_(pc.equal(used["op"], "read"), pc.equal(used["origin"], "traced")))["lane"]
        mine = mine.filter(pc.is_in(mine["lane"], value_set=read if len(read) else mine["lane"]))
    pids = dict(zip(mine["lane"].to_pylist(), mine["pid"].to_pylist(), strict=True))
    groups: dict[int, list[int]] = {}
    for lane in sorted(lanes):
        if lane in pids:
            groups.setdefault(pids[lane], []).append(lane)
    if not late_ns:
        return [(tuple(groups[pid]), 0) for pid in sorted(groups)]
    made = list(groups.values()) if groups else [[lane] for lane in sorted(lanes)]
    return [(tuple(own), late) for own, late in zip(reversed(made), reversed(late_ns), strict=False)][::-1]


def meetings_of(notes: Mapping[int, RankNotes], comm: Communicator | None = None) -> tuple[Meetings, tuple[str, ...]]:
    """The meetings of all ranks from the notes of each process, and warnings about the models. Collective.

    comm: None if this process has all ranks.
    """
    comm = comm or Solo()
    own = [each.collectives_ns for each in notes.values()]
    gathered = comm.gather((own, all(each.input_waits for each in notes.values())))
    found: tuple[Meetings, tuple[str, ...]] | None = None
    if gathered is not None:
        durations = [each for process, _ in gathered for each in process]
        meetings, warnings = Meetings.of(durations), []
        if any(map(len, durations)) and not len(meetings.cost_ns):
            counts = sorted({len(each) for each in durations})
            warnings.append(
                f"the ranks took part in different numbers of collectives ({counts[0]} to {counts[-1]}): no rank waits "
                "for another, and collectives take the recorded time"
            )
        if not all(waits for _, waits in gathered):
            warnings.append("the profile has no input waits: each step is assumed to fetch its batch when it begins")
        found = meetings, tuple(warnings)
    shared: tuple[Meetings, tuple[str, ...]] = comm.broadcast(found)
    meetings, common = shared
    return meetings, (*common, *_warnings_of(notes))


def _warnings_of(notes: Mapping[int, RankNotes]) -> Iterator[str]:
    """What the recording cost the rank that waited longest for it, and the rank that read most outside the profile."""
    if not notes:
        return
    rank = max(notes, key=lambda each: notes[each].recorder_ns)
    if notes[rank].recorder_ns:
        yield (
            f"rank {rank} waited {format_duration(notes[rank].recorder_ns)} for input while Darshan wrote the logs of "
            "processes that had ended, and did nothing else: this cost of the recording is left out"
        )
    rank = max(notes, key=lambda each: notes[each].outside_share)
    steps, share = notes[rank].step_number, notes[rank].outside_share
    if share >= OUTSIDE_SHARE:
        yield (
            f"rank {rank}: the profile shows steps {steps[0]} to {steps[-1]}, and {100 * share:.0f} % of the loop's "
            "reads belong to other steps. Outside the profile each thread keeps its think times, as if compute hid no "
            f"read; --part steps={steps[0]}-{steps[-1]} replays only the profiled part"
        )


def rank_loop(capture: Capture, rank: int, spans: pa.Table, origin_ns: int) -> TrainingLoop:
    """The training loop of a rank from its spans. Raises: CaptureError when the rank has no steps."""
    try:
        return (known_loop if capture.info.dependencies == "known" else training_loop)(spans, origin_ns)
    except CaptureError as error:
        raise CaptureError(
            f"{capture.named}: rank {rank}: {error}; merge with a profile, or replay with --pace think or timed"
        ) from error


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


# ------------------------------------------------------------------------------------------------------- the items
def expected_elapsed_ns(capture: Capture, steps: Steps, pacing: Pacing | None = None) -> int | None:
    """The run time by the model with the recorded durations of the operations; None for too many operations.

    `pacing`: the speeds; None for the recorded ones. Needs all ranks of the capture, because they wait for each other.
    """
    if steps.operations > MAX_CHECKED_OPERATIONS:
        return None
    lanes = planned_lanes(capture, steps, pacing or Pacing(pace=Pace.STEPS))
    return max(int(each.end_ns[-1]) for each in schedule(lanes).values() if len(each.end_ns))


def planned_lanes(capture: Capture, steps: Steps, pacing: Pacing) -> Lanes:
    """The items of all lanes of the ranks, and the recorded durations of operations, int64 ns by item. Without file
    placements.

    Named (rank, lane), (rank, "pipeline") and (rank, "training").
    """
    lanes: Lanes = {}
    known, slots = capture.info.dependencies == "known", _no_slots(capture)
    for rank, counters in steps.counters(base=FIRST_RANK_COUNTER).items():
        planned = planned_operations(capture, steps.surveys[rank], slots, with_known=known)
        of_rank = _lanes_of(steps.lanes(rank, counters, pacing), steps.pipeline(rank, counters, pacing), planned)
        script = steps.script(rank, counters, pacing)
        of_rank["training"] = script, np.zeros(len(script), dtype=np.int64)
        lanes |= {(rank, lane): made for lane, made in of_rank.items()}
    return lanes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankItems:
    """The items of a recorded rank by itself, as if it were the only one. Its counters begin at FIRST_RANK_COUNTER.

    lanes: the items of its I/O lanes and of its input pipeline (`PLAN_ROW`). script: those of its training thread,
    without meetings. counters: how many counters it uses. operations: of all its lanes.
    """

    lanes: Sequence[np.ndarray]
    script: np.ndarray
    counters: int
    operations: int
    notes: RankNotes


def items_of_ranks(
    capture: Capture, ranks: Sequence[int], layers: LayerChoice, origin_ns: int, pacing: Pacing
) -> list[RankItems]:
    """The items of each rank alone. The operations of small ranks are read once, and those of all `ranks` at once.

    Memory: 40 bytes an item, of which an operation has one to three, and 8 more while those of its rank are made.
    Raises: CaptureError when a rank has no training steps, or a part is damaged.
    """
    spans, slots, known = spans_by_rank(capture.spans, ranks), _no_slots(capture), capture.info.dependencies == "known"
    found = []
    for group in few_together(ranks, capture.stored_rows, HELD_ITEMS):
        small = group if capture.stored_rows(group[0]) <= HELD_ITEMS else ()
        held = planned_together(capture, small, layers, slots, with_known=known)
        for rank in group:
            planned: Callable[[], Iterable[Planned]]
            if rank in held:
                planned = partial(list, own := held.pop(rank))
                lanes = np.concatenate([np.empty(0, dtype=np.int32), *(batch.lane for _, batch in own)])
                operations = dict(zip(*(each.tolist() for each in np.unique(lanes, return_counts=True)), strict=True))
            else:
                survey = survey_rank(capture, rank, layers)
                planned = partial(planned_operations, capture, survey, slots, with_known=known)
                operations = dict(survey.lane_operations)
            batches = partial(_operations, planned)
            model, waits, _ = _own_model(capture, rank, spans[rank], origin_ns, batches, for_items=bool(small))
            counters = RankCounters(base=FIRST_RANK_COUNTER, lanes=tuple(operations))

            def placed(batch: OperationBatch, model: LoopModel = model, waits: Intervals = waits) -> OperationBatch:
                return model.placed(batch_without(waits, batch))

            columns = RankColumns(model, operations, origin_ns, placed)
            made = _lanes_of(partial(split, columns, counters, pacing), ready_rows(model, counters, pacing), planned())
            found.append(
                RankItems(
                    lanes=[items for items, _ in made.values() if len(items)],
                    script=script_rows(model, counters, pacing, "sleep", None),
                    counters=counters.count,
                    operations=sum(operations.values()),
                    notes=RankNotes.of(model, waits),
                )
            )
    return found


def _operations(planned: Callable[[], Iterable[Planned]]) -> Iterator[OperationBatch]:
    return (batch for _, batch in planned() if len(batch.lane))


def _no_slots(capture: Capture) -> Slots:
    """For operations without file placements."""
    return {0: np.full(capture.files.num_rows, -1, dtype=np.int32)}


def _lanes_of(causal: Split, ready: np.ndarray, planned: Iterable[Planned]) -> Lanes:
    """The lanes of a rank, ascending, and "pipeline", from its planned operations. `ready`: the items of its
    pipeline."""
    parts: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for rows, batch in planned:
        for lane, items, durations in causal(rows, batch):
            parts.setdefault(lane, []).append((items, durations))
    lanes: Lanes = {}
    for lane, made in sorted(parts.items()):
        items, durations = (np.concatenate(columns) for columns in zip(*made, strict=True))
        lanes[lane] = (items, durations)
    lanes["pipeline"] = (ready, np.zeros(len(ready), dtype=np.int64))
    return lanes


# ------------------------------------------------------------------------------------- waits that the recording made
def recorder_waits(
    info: CaptureInfo, rank: int, spans: pa.Table, batches: Iterable[OperationBatch], origin_ns: int
) -> Intervals:
    """Waits for input since `origin_ns` in which Darshan wrote the log of a process of the rank.

    `spans`: of the rank; without input waits the result is empty. `batches`: its operations. During such a wait no
    operation, compute or work of the input pipeline goes on.
    """
    waits = (log_waits(info, spans) or {}).get(rank, Intervals())
    if not len(waits):
        return waits
    waits = waits.minus(Intervals.union_of(waits.starts[:1], np.array([origin_ns])))
    busy = np.isin(codes(spans, "kind"), _BUSY)
    waits = waits.minus(Intervals.union_of(*(spans[name].to_numpy()[busy] for name in ("start_ns", "end_ns"))))
    for batch in batches:
        waits = waits.minus(Intervals.union_of(batch.start_ns, batch.end_ns))
    return waits


def batch_without(waits: Intervals, batch: OperationBatch) -> OperationBatch:
    """The operations on a clock that stands still during the waits."""
    if not len(waits):
        return batch
    start, end = (times - waits.covered_before(times) for times in (batch.start_ns, batch.end_ns))
    return dataclasses.replace(batch, start_ns=start, end_ns=end)


def spans_without(waits: Intervals, spans: pa.Table) -> pa.Table:
    """The spans on the clock of `batch_without`."""
    if not len(waits):
        return spans
    for name in ("start_ns", "end_ns", "fetched_ns"):
        place = spans.schema.get_field_index(name)
        if place >= 0:
            column = spans[name].combine_chunks()
            known = column.is_valid().to_numpy(zero_copy_only=False)
            times = column.fill_null(0).to_numpy()
            shortened = pa.array(times - waits.covered_before(times), mask=~known)
            spans = spans.set_column(place, spans.schema.field(name), shortened)
    return spans
