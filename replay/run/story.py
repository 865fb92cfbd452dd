"""One replay, from a staged capture to the capture of the replay, in the order in which it happens.

Every process of the job calls `run_replay`, and replays its share of the recorded ranks:
layers -> context -> staging checked -> lanes and files -> page cache -> issue -> write -> finish.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.engine.clock import StartGate, StopFlag, share_processors
from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, READ_AT, RING_BATCHES, LoopPace, loop_items
from dxt_replay.replay.engine.jitter import DEFAULT_RATE_PER_S, STALL_RATE_PER_S, JitterProbe
from dxt_replay.replay.engine.limits import allow_open_files, check_direct, require_descriptors, require_threads
from dxt_replay.replay.plan import layers as chosen
from dxt_replay.replay.plan.layers import MPIIO_COLLECTIVE, LayerChoice
from dxt_replay.replay.plan.operations import RankPlan, batch_items_of, compute_rows, process_slots
from dxt_replay.replay.plan.pacing import Pace, RunOptions
from dxt_replay.replay.plan.spill import SpillFile
from dxt_replay.replay.ranks.mpi import WAIT_PERIOD_S, Communicator, first_does, node_id, share_of, together
from dxt_replay.replay.ranks.stopping import StopRelay, TimeLimit, stop_on_signals
from dxt_replay.replay.run.feeder import FedLane, Feeder, Progress, rows_of_lane
from dxt_replay.replay.run.recorded import ComputeRecorder, LaneRecorder, TimeCollector, rank_rows
from dxt_replay.replay.run.result import RunResult, Tally, named_failures, replay_info
from dxt_replay.replay.target import page_cache
from dxt_replay.replay.target.placement import Placements
from dxt_replay.replay.target.stage import check_staged, prepare_run
from dxt_replay.replay.target.targets import locked_target, open_target
from dxt_replay.traces import units
from dxt_replay.traces.errors import CaptureError, ReplayError, TargetError, UsageError
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import TrainingTime, training_limits_ns
from dxt_replay.traces.records import generated
from dxt_replay.traces.schema import COUNTERS, FILES_SCHEMA, READ, SPANS_SCHEMA, WRITE, codes
from dxt_replay.traces.store import writer
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.replay.causal.ranks import PacedRanks, Steps

START_MARGIN_NS = 50 * units.NS_PER_MS  # how far ahead the start is set,
LANE_MARGIN_NS = 100 * units.NS_PER_US  # and for each lane of the process the time to wake it
BEFORE_S, BEFORE_RATE_PER_S = 0.08, 2000.0  # the machine is measured before the run: 160 waits make a p99
LEAST_MEASURED_NS = units.NS_PER_S  # Shorter runs are not worth the measurement before them
PREPARED_BYTES = 64 << 20  # most write data made before the run; those of larger writes are made when they are due
CALIBRATED_ITEMS, CALIBRATIONS = 4096, 9  # other programs can only make a round slower: the quickest counts


def run_replay(
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    report_progress: Callable[[Progress], None] = lambda progress: None,
    context: RunContext | None = None,
) -> RunResult | None:
    """Replay `capture` on `options.target` and write `output`. Returns the result on process 0, None on the others.

    `context`: from `derive_context`, for several runs with the same choices; None to derive it here.
    SIGINT and SIGTERM end the run in order. The capture then holds the operations until then, and is marked partial.
    Raises: DxtReplayError on every process when one of them cannot start or finish, or hangs.
    """
    with TimeLimit(options.timeout_s, comm, "preparing the run") as limit, ExitStack() as held:
        layers = context.layers if context is not None else choose_layers_together(capture, comm, api=options.api)

        def prepare_first() -> tuple[Placements, Path]:
            held.enter_context(locked_target(options.target))  # one process holds it until all are done
            return _prepared(capture, output, options, layers)

        placements, working = first_does(comm, prepare_first)
        limit.clean_up = lambda: writer.discard_capture(working)
        try:
            if context is None:
                context = derive_context(capture, comm, layers, options.pacing.pace)
            stop, paced = StopFlag(), None
            if context.steps is not None:
                from dxt_replay.replay.causal.ranks import paced_ranks

                paced = held.enter_context(paced_ranks(context.steps, comm, stop))
            process = together(comm, lambda: _Process(context, options, placements, working, paced, stop))
            *part, zero_ns = _issued(process, comm, limit, report_progress)
            parts = comm.gather(part)
            return together(comm, lambda: None if parts is None else _finished(parts, process, output, zero_ns))
        except BaseException:
            if comm.rank == 0:
                writer.discard_capture(working)
            raise


def run_repeatedly(
    capture: Capture,
    outputs: Sequence[Path],
    options: RunOptions,
    comm: Communicator,
    report_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[RunResult]:
    """Replay into each of `outputs` from the same state: files of a run are created anew, and `cold` drops the twin's
    pages. What is derived from the capture is shared by several runs.

    Returns the results on process 0, none on the others. A stopped run is the last one.
    Raises: as `run_replay`. The captures of the earlier runs stay.
    """
    context = None
    if len(outputs) > 1:
        layers = choose_layers_together(capture, comm, api=options.api)
        context = derive_context(capture, comm, layers, options.pacing.pace)
    runs: list[RunResult] = []
    for place in outputs:
        result = run_replay(capture, place, options, comm, report_progress, context)
        runs += [] if result is None else [result]
        if comm.broadcast(result is not None and result.stopped):
            break
    return runs


def outputs_of(output: Path, times: int) -> list[Path]:
    """Paths of the captures of several runs, counted from 1: `OUT.1.capture`, `OUT.2.capture` beside `OUT.capture`."""
    return [output.with_name(f"{output.stem}.{number}{output.suffix}") for number in range(1, times + 1)]


# --------------------------------------------------------------------------------------- what the capture asks for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext:
    """What one process derives from the capture before it replays. Runs that differ only in their target share it.

    `layers`: at which layer each file is replayed. `notes`: on collective operations, for the user.
    `written`: bool by file, whether some rank writes it; of files of collective operations.
    `begin_ns`, `end_ns`: recorded times at which the replay starts and ends, the same on all processes.
    `surveys`, `spans`: of each rank that this process replays; `spans` by rank, rows of `SPANS_SCHEMA`.
    `steps`: the causal models of these ranks; None for a pace that does not follow the training loop.
    """

    capture: Capture
    layers: LayerChoice
    written: np.ndarray
    notes: tuple[str, ...]
    begin_ns: int
    end_ns: int
    surveys: Sequence[chosen.RankSurvey]
    spans: Mapping[int, pa.Table]
    steps: Steps | None

    @property
    def recorded_ns(self) -> int:
        return self.end_ns - self.begin_ns


def choose_layers_together(capture: Capture, comm: Communicator, *, api: str) -> LayerChoice:
    """`choose_layers` on process 0, and its result on all. Collective.

    Raises: on all processes as `choose_layers`, and CaptureError for a capture without recorded I/O.
    """

    def chosen_layers() -> LayerChoice:
        if nothing_recorded(capture.info.coverage.unseen):
            raise CaptureError(
                f"{capture.named} was made of marks or profiles alone, so that there is no I/O to replay: merge them "
                "with the job's Darshan log or another trace"
            )
        return chosen.choose_layers(capture, api=api)

    return first_does(comm, chosen_layers)


def derive_context(capture: Capture, comm: Communicator, layers: LayerChoice, pace: Pace) -> RunContext:
    """The context of this process, which replays its share of the capture's ranks. Collective.

    Raises: CaptureError on all processes when a part is damaged, or `pace` needs steps that a rank does not have.
    """
    ranks = share_of(capture.ranks, comm.rank, comm.size)
    begin_ns, end_ns = first_does(comm, lambda: capture.time_span_ns)
    surveys = together(comm, lambda: [chosen.survey_rank(capture, rank, layers) for rank in ranks])
    collective, written, notes = chosen.choose_collectives(capture, surveys, layers, comm)
    if collective.any():
        layers = replace(layers, collective=collective)
        surveys = together(comm, lambda: [chosen.survey_rank(capture, rank, layers) for rank in ranks])
    spans, steps = together(comm, lambda: chosen.spans_by_rank(capture.spans, ranks)), None
    if pace.follows_training:
        from dxt_replay.replay.causal.ranks import derive_steps

        steps = derive_steps(capture, surveys, spans, begin_ns, comm)
    return RunContext(
        capture=capture,
        layers=layers,
        written=written,
        notes=notes,
        begin_ns=begin_ns,
        end_ns=end_ns,
        surveys=surveys,
        spans=spans,
        steps=steps,
    )


# ------------------------------------------------------------------------------------------ the target and the output


def _prepared(capture: Capture, output: Path, options: RunOptions, layers: LayerChoice) -> tuple[Placements, Path]:
    """Check the target, and begin the output: the place of each file, and the directory in which it is written.

    The caller holds the target's lock.
    Raises: UsageError, CaptureError, TargetError (also for a full disk); then no file is left behind.
    """
    if os.path.exists(output) and os.path.samefile(output, capture.path):
        raise UsageError(f"{output} is the capture to be replayed: give the replay another name")
    writer.check_capture_output(output, force=options.force)
    placements = check_staged(capture, options.target, options.maps, layers.chunks if options.api == "hdf5" else None)
    if options.direct:
        check_direct(Path(options.target), map(placements.path, range(len(placements))))
    working = writer.begin_capture(output, force=options.force)
    try:
        prepare_run(options.target, placements)
        if options.api != "null":
            _check_room(capture, options.target, placements)
    except BaseException:
        writer.discard_capture(working)
        raise
    return placements, working


def _check_room(capture: Capture, target: str | Path, placements: Placements) -> None:
    """Raises: TargetError if the counted writes of the run exceed the free space.

    A file counts with the most bytes on disk after its writes; with 0 where no counter has all written bytes, because
    a write far behind the end of a file leaves a hole.
    """
    with open_target(target) as opened:
        free = opened.room().free_bytes
    if free is None:
        return
    reach, counted = np.zeros((2, capture.files.num_rows), dtype=np.int64)
    for rank in capture.ranks:
        used = capture.usage(rank)
        writes = codes(used, "op") == WRITE
        np.maximum.at(reach, used["file_id"].to_numpy()[writes], used["reach"].to_numpy()[writes])
    for name in ("posix_bytes_written", "stdio_bytes_written", "mpiio_bytes_written"):
        np.maximum(counted, capture.files[name].fill_null(0).to_numpy(), out=counted)
    sizes, needed = np.minimum(reach, counted), 0
    for file in np.flatnonzero(sizes).tolist():
        if not placements[file].mapped:
            path = placements.path(file)
            there = os.lstat(path).st_blocks * 512 if os.path.lexists(path) else 0
            needed += max(int(sizes[file]) - there, 0)
    if needed > free:
        raise TargetError(
            f"the run writes {units.format_bytes(needed)} and {units.format_bytes(free)} are free on {target}: free "
            "space, choose another --target, replay a part (--part), or nothing but the timing (--api null)"
        )


# ------------------------------------------------------------------------------------------------- lanes and files


class _Process:
    """The ranks, lanes and files of one process of the replay, ready to run.

    Raises: DxtReplayError if a back end is not available, or a limit of the system too low.
    """

    def __init__(
        self,
        context: RunContext,
        options: RunOptions,
        placements: Placements,
        working: Path,
        paced: PacedRanks | None,
        stop: StopFlag,
    ) -> None:
        capture, surveys, pacing, self._placements = context.capture, context.surveys, options.pacing, placements
        self.context, self.options, self.paced, self.stop, self.working = context, options, paced, stop, working
        self.lane_count = lanes = sum(len(survey.lanes) for survey in surveys)
        # Queues of a lane: one for its plan, one for its results, and a third for dependency columns.
        queues = 3 if capture.info.dependencies == "known" else 2
        self.spill = SpillFile(working, queues=queues * lanes)

        self.slots, writable, slots = process_slots(surveys)
        # Each rank reads its own part of the capture through one more open file.
        allow_open_files(len(self.slots) + len(surveys))
        used = self.slots["backend"].tolist()
        self.backends = {code: chosen.backend_of(code, options) for code in sorted(set(used))}
        # A file that is written is opened for writing, and made where it does not exist: only read files were staged.
        made = zip(self.slots["file_id"].tolist(), writable.tolist(), self.slots["uses"].tolist(), strict=True)
        files = (FileSlot(path=placements.path(file), writable=w, create=w, uses=uses) for file, w, uses in made)
        self.files = Files(files, [self.backends[code] for code in used])
        require_descriptors(lanes + len(surveys))
        require_threads(lanes)
        sizes = capture.files["size"].to_numpy()
        if payload := max((int(sizes[survey.writes].max(initial=0)) for survey in surveys), default=0):
            self.files.prepare_payload(min(payload, PREPARED_BYTES))

        self.times = TimeCollector()
        self.recorders: dict[int, list[LaneRecorder]] = {}
        self.compute: dict[int, ComputeRecorder] = {}
        self.plans: list[RankPlan] = []
        self.operation_lanes: list[FedLane] = []
        fed: list[FedLane] = []
        gate, pace = StartGate(), LoopPace[pacing.pace.clock]
        shared = None if paced is None else paced.shared.counters
        batch_items = batch_items_of(lanes)
        loop = functools.partial(Lane, self.files, pace=pace, start=gate, stop=stop, counters=shared)
        for survey, numbers in zip(surveys, slots, strict=True):
            rank, ready = survey.rank, np.empty(0)
            if paced is None:
                causal = None
                script = compute_rows(context.spans[rank], pacing, options.compute, context.begin_ns)
            else:
                steps, counters = paced.steps, paced.counters[rank]
                causal = steps.lanes(rank, counters, pacing)
                script = steps.script(rank, counters, pacing, options.compute)
                ready = steps.pipeline(rank, counters, pacing)
            plan = RankPlan(capture, survey, numbers, pacing, context.begin_ns, self.spill, causal, batch_items)
            self.plans.append(plan)
            self.recorders[rank], self.compute[rank] = [], ComputeRecorder()
            for lane in survey.lanes:
                recorder = LaneRecorder(rank, lane, self.spill, self.times, plan.known.get(lane))
                self.recorders[rank].append(recorder)
                in_python = any(isinstance(self.backends[code], Backend) for code in survey.lane_backends[lane])
                fed.append(
                    FedLane(
                        loop(),
                        f"{rank}.{lane}",
                        functools.partial(plan.pull, lane),
                        recorder.record,
                        calls_python=in_python,
                        # As many as in its ring, but no more than a large batch has.
                        record_items=min(BATCH_ITEMS, RING_BATCHES * batch_items),
                    )
                )
                self.operation_lanes.append(fed[-1])
            if len(ready):
                fed.append(FedLane(loop(), f"{rank}.pipeline", rows_of_lane(ready)))
            if len(script):
                fed.append(FedLane(loop(), f"{rank}.compute", rows_of_lane(script), self.compute[rank].record))
        self.expected_ns = pacing.recorded_ns(context.recorded_ns)
        total = sum(survey.operations for survey in surveys)
        self.feeder = Feeder(fed, self.path_of, gate, stop, pace, total, self.expected_ns)
        self.cost_ns = {which: per_operation_ns(in_python=which) for which in {lane.calls_python for lane in fed}}

        # Files that the run itself makes have no pages yet, and those of an object store have none on this machine.
        read = np.unique(np.concatenate([np.empty(0, dtype=np.int32), *(survey.reads for survey in surveys)]))
        there = [not options.on_objects and os.path.exists(placements.path(file)) for file in read.tolist()]
        self._read = read[np.array(there, dtype=bool)]

    def path_of(self, slot: int) -> bytes:
        return self._placements.path(int(self.slots["file_id"][slot]))

    def paths_read(self) -> Iterator[bytes]:
        """Paths of the files that this process reads and that existed before the run."""
        return map(self._placements.path, self._read.tolist())

    @property
    def collective(self) -> Any:
        """The back end of collective operations, which wait for the other processes; None without any."""
        return self.backends.get(MPIIO_COLLECTIVE)

    def open_together(self) -> None:
        """Open the files of collective operations, in the order of the slots. Collective."""
        if self.collective is not None:
            files = self.slots["file_id"][self.slots["backend"] == MPIIO_COLLECTIVE].tolist()
            written = self.context.written.tolist()
            paths = {file: self._placements.path(file) for file in files}
            slots = [FileSlot(path=path, writable=written[file], create=written[file]) for file, path in paths.items()]
            self.collective.open_together(slots)

    def write_operations(self) -> int:
        # Close it in any case: NFS and FUSE keep a directory that has an open file without a name.
        with closing(self.spill), writer.OpsWriter(self.working) as stored:
            for rank, recorders in self.recorders.items():
                for table in rank_rows(rank, [recorder.rows for recorder in recorders]):
                    stored.write(table)
        return stored.rows

    def spans(self) -> pa.Table:
        speed, source = self.options.pacing.of_compute, self.context.spans
        tables = [compute.spans(rank, source[rank], speed) for rank, compute in self.compute.items()]
        return pa.concat_tables([SPANS_SCHEMA.empty_table(), *tables])


def per_operation_ns(*, in_python: bool = False) -> float:
    """The engine's own cost of an operation, ns: the quickest round of null operations without pauses.

    `in_python`: the cost with a back end in Python.
    """
    items = loop_items(READ_AT, 0, CALIBRATED_ITEMS, place=np.arange(CALIBRATED_ITEMS), amount=4096)
    nothing = type("_NoCalls", (Backend,), dict.fromkeys(Backend.__abstractmethods__, lambda *_, **__: 0))
    best = float("inf")
    for _ in range(CALIBRATIONS):
        start, files = StartGate(), Files([FileSlot(path=b"null")], nothing() if in_python else "null")
        start.open(time.monotonic_ns())
        lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
        lane.submit(items)
        lane.finish()
        lane.run()
        done = lane.collect()
        if done is not None and done.count:
            best = min(best, float(done.end_ns[-1] - done.begin_ns[0]) / done.count)
    return best


# --------------------------------------------------------------------------------------------------------- issue


def _issued(
    process: _Process, comm: Communicator, limit: TimeLimit, report_progress: Callable[[Progress], None]
) -> tuple[Tally, pa.Table, int]:
    """Issue all operations. Returns this process's totals and spans, and when it began (CLOCK_REALTIME in ns).
    Collective."""
    context, options, feeder, doing = process.context, process.options, process.feeder, limit.doing
    limit.where = feeder.standing
    with doing("dropping the twin from the page cache"):
        dropped = together(comm, lambda: page_cache.drop(process.paths_read())) if options.cold else None
        comm.barrier()
    with doing("measuring the page cache"):
        residency = together(comm, lambda: page_cache.resident(process.paths_read()))
    before_ns = _jitter_before(process, comm)
    first, available = comm.first_on_node(), os.sched_getaffinity(0)
    sharing = comm.processes_on_node()
    probe = JitterProbe(
        rate_per_s=DEFAULT_RATE_PER_S if first else STALL_RATE_PER_S, processors=len(available) / sharing
    )
    share_processors(sharing, process.lane_count)
    together(comm, process.open_together)
    with stop_on_signals(process.stop):
        together(comm, feeder.start)
        wall_zero_ns = time.time_ns() - time.monotonic_ns()
        start_ns = comm.common_start_ns(START_MARGIN_NS + process.lane_count * LANE_MARGIN_NS)
        began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        with doing("replaying, or waiting for the other processes"):
            # The probe runs until all processes are done, because its own process may finish first on its node.
            with probe.running():
                _feed_together(process, comm, limit, report_progress, start_ns)
            hung = max((each for each in comm.gather(feeder.hung) or () if each is not None), default=None)
            if (hung := comm.broadcast(hung)) is not None:
                comm.agree(ReplayError(f"{hung[1]}; its output was discarded"))
        busy_ns, elapsed_ns = time.process_time_ns() - began_cpu_ns, time.monotonic_ns() - began_ns
        stopped = process.stop.is_set()  # a later signal must not end the writing
        with doing("closing files, or waiting for the other processes"):
            collective = process.collective
            not_closed = together(comm, lambda: [] if collective is None else collective.close_together())
        with doing("writing the capture of the replay"):
            stored = together(comm, process.write_operations)
    not_closed += [(path, number) for _, path, call, number in process.files.failures() if call == "close"]
    lanes, each = feeder.lanes, [recorder.tally for of_rank in process.recorders.values() for recorder in of_rank]
    costs = [(process.cost_ns[lane.calls_python], lane.loop.items_done) for lane in lanes]
    of_process = Tally(
        close_errors=Counter(number for _, number in not_closed),
        last_end_ns=max(compute.last_end_ns for compute in process.compute.values()) if process.compute else 0,
        starved_ns=sum(lane.loop.starved_ns for lane in process.operation_lanes),
        lanes=process.lane_count,
        stored=stored,
        left_out=sum(survey.left_out for survey in context.surveys),
        not_direct=sum(lane.loop.not_direct for lane in lanes),
        python_lanes=sum(lane.calls_python for lane in lanes),
        backends=frozenset(chosen.BACKENDS[code] for code in process.backends),
        cost_ns=max(((cost * items, cost) for cost, items in costs), default=(0.0, 0.0)),
        busy_ns=busy_ns,
        elapsed_ns=elapsed_ns,
        processors=frozenset((node_id(), number) for number in available),
        residency=residency,
        jitter_ns=probe.lateness_ns() if first else Distribution(),
        jitter_before_ns=before_ns,
        stalls=probe.stalls(start_ns),
        stopped=stopped,
        warnings=_warnings(process, not_closed),
    )
    if dropped is not None:
        of_process.cache_warnings, of_process.keeps_pages = dropped.warnings, bool(dropped.kept)
    if context.steps is not None:
        from dxt_replay.replay.causal.explain import rank_model

        of_process.models = {rank: rank_model(model) for rank, model in context.steps.models.items()}
    tally = sum(each, of_process) + process.times.tally()
    return tally, together(comm, process.spans), wall_zero_ns + start_ns


def _jitter_before(process: _Process, comm: Communicator) -> Distribution:
    """Lateness with which an idle thread of this node wakes before the replay runs. Collective."""
    if not process.options.pacing.pace.follows_recording or process.expected_ns < LEAST_MEASURED_NS:
        return Distribution()
    probe = JitterProbe(rate_per_s=BEFORE_RATE_PER_S) if comm.first_on_node() else None
    if probe is not None:
        with probe.running():
            time.sleep(BEFORE_S)
    all_there = comm.arrive()
    while not all_there():  # The others sleep: waiting in MPI, each would keep a processor busy.
        time.sleep(WAIT_PERIOD_S)
    return Distribution() if probe is None else probe.lateness_ns()


def _feed_together(
    process: _Process, comm: Communicator, limit: TimeLimit, report_progress: Callable[[Progress], None], start_ns: int
) -> None:
    """Feed the lanes until those of every process are done, and close the files of independent operations."""
    bound = process.collective is not None and comm.size > 1
    relay, paced = StopRelay(process.stop, comm), process.paced

    def feed() -> None:
        try:
            process.feeder.run(start_ns, report_progress, relay, limit, bound=bound, alone=comm.size == 1)
            if process.feeder.hung is None:
                for plan in process.plans:
                    plan.close()
                process.files.close_all()
        finally:
            if paced is not None:
                paced.check_relay()  # its failure is why the lanes were stopped

    with nullcontext() if paced is None else paced.relayed():
        if bound:
            # Not `together`: a process that fails here must not wait for others, which wait for it in MPI.
            feed()
        else:
            together(comm, lambda: relay.then_meet(feed))


def _warnings(process: _Process, not_closed: Sequence[tuple[bytes, int]]) -> tuple[str, ...]:
    """Warnings about the way in which operations were issued. `not_closed`: path and errno of each failed close."""
    context = process.context
    found = list(context.notes)
    if any(getattr(backend, "takes_turns", False) for backend in process.backends.values()):
        found.append("the MPI library lacks MPI_THREAD_MULTIPLE, so the lanes of a process called it one at a time")
    if context.surveys:
        found += context.layers.chunks.notes(context.capture)
        if refused := context.layers.files.refused:
            found.append(
                f"the job's store refused {units.format_counted(refused, 'request')}: such requests are left out"
            )
    if context.steps is not None:
        found += context.steps.warnings
    if not_closed:
        path, number = not_closed[0]
        which = os.fsdecode(path)
        if len(not_closed) > 1:
            which = f"{units.format_count(len(not_closed))} files, the first {which},"
        why = f"({os.strerror(number)}): what was written may not be stored"
        found.append(f"{which} reported an error at the close {why}")
    return tuple(found)


# --------------------------------------------------------------------------------------------------------- finish


def _finished(parts: Sequence[tuple[Tally, pa.Table]], process: _Process, output: Path, zero_ns: int) -> RunResult:
    """Write the files that cover the whole replay, and move the output to its place. `parts`, `zero_ns`: of
    `_issued`."""
    context, options, working = process.context, process.options, process.working
    capture = context.capture
    tally, spans = sum((part for part, _ in parts), Tally()), pa.concat_tables([spans for _, spans in parts])
    result = RunResult(
        capture=output,
        pacing=options.pacing,
        compute=options.compute,
        tally=tally,
        recorded_ns=context.recorded_ns,
        processes=len(parts),
        ranks=len(capture.ranks),
        api=options.api,
        direct=options.direct,
        cold=options.cold,
        failures=named_failures(tally.failures, capture.paths()) if len(tally.failures) else (),
        generated=generated(capture.info),
    )
    if options.pacing.pace.follows_training and not tally.stopped:
        from dxt_replay.replay.causal.model import unshown
        from dxt_replay.replay.causal.storage_limit import doubt_of_capture

        limits = training_limits_ns(spans)
        training = TrainingTime.of(
            capture.spans,
            spans,
            longest_log_wait_ns(capture.info, capture.spans),
            stood_still_ns=int(tally.stalls.covered_within(limits[:1], limits[1:]).sum()),
        )
        evidence = [model["evidence"] for model in tally.models.values()]
        steps = context.steps if len(parts) == 1 else None
        doubt = doubt_of_capture(capture, steps, (each["doubt"] or "" for each in evidence))
        if context.steps is not None and training is not None and READ in tally.latency_by_op:
            reads = max((model.unshown for model in context.steps.models.values()), default=0)  # its ranks are alike
            reading_ns = reads * tally.latency_by_op[READ].mean
            doubt = doubt.doubted_for(unshown(reading_ns, 1e9 * training.replayed_s, "would last up to"))
        result = replace(result, training=training, doubt=doubt)
    writer.write_spans(working, spans)
    # The files of the source without the columns that come from Darshan's counters.
    unknown = {name: pa.nulls(capture.files.num_rows, pa.int64()) for name in COUNTERS}
    unknown["coverage"] = pa.nulls(capture.files.num_rows, pa.float64())
    columns = [unknown.get(name, capture.files[name]) for name in FILES_SCHEMA.names]
    writer.write_files(working, pa.Table.from_arrays(columns, schema=FILES_SCHEMA))
    writer.write_lanes(working, writer.lanes_with_facts(capture.lanes, ["role"]))
    writer.write_capture_info(working, replay_info(capture, result, zero_ns, options.sources))
    writer.publish_capture(working, output, force=options.force)
    return result
