"""One replay, from a staged capture to the capture of what happened. Every process of the job calls `run_replay`."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay import page_cache
from replay.clock import StartGate, StopFlag
from replay.comm import Communicator, share_of, together
from replay.issue import Core, Lane, allow_open_files, choose_core, make_files, make_lane
from replay.items import Pace as LoopPace
from replay.jitter import JitterProbe
from replay.pacing import Pace
from replay.placement import PathMap, Placement
from replay.plan import ComputeSource, LaneSource, PlanOptions, RankSource, batch_of, compute_rows, file_slots
from replay.recording import ComputeRecorder, ComputeStructure, LaneRecorder, Tally, rank_rows
from replay.result import CacheState, RunResult, replay_info
from replay.stage import check_staged, prepare_run
from replay.survey import LayerChoice, RankSurvey, choose_layers, survey_rank
from traces.errors import UsageError
from traces.ops import COUNTERS, FILES_SCHEMA, SPAN_KINDS, SPANS_SCHEMA, codes
from traces.store import (
    Capture,
    OpsWriter,
    begin_capture,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_spans,
)
from traces.units import NS_PER_MS

START_MARGIN_NS = 50 * NS_PER_MS
LOOP_PACE = {Pace.TIMED: LoopPace.ABSOLUTE, Pace.THINK: LoopPace.THINK, Pace.NONE: LoopPace.NONE}

FEED_PERIOD_S = 0.004
"""How often the feeder looks after the lanes; a full ring lasts 60 ms at a million operations a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose. `cold`: drop the twin's pages first."""

    target: Path
    plan: PlanOptions
    maps: tuple[PathMap, ...] = ()
    cold: bool = False
    core: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far this process has come: operations done of total, time since the start and as recorded."""

    done: int
    total: int
    elapsed_ns: int
    expected_ns: int


def run_replay(
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    report_progress: Callable[[Progress], None] = lambda progress: None,
) -> RunResult | None:
    """Replay `capture` on `options.target` and write `output`; the result on process 0, None on the others.

    SIGINT and SIGTERM end the run in order: the capture then holds what was done and is marked partial.
    Raises: DxtReplayError on every process when one of them cannot start or finish.
    """
    prepared = together(comm, lambda: _prepare(capture, output, options) if comm.rank == 0 else None)
    prepared = comm.broadcast(prepared)
    options = replace(options, plan=replace(options.plan, origin_ns=prepared.begin_ns))
    try:
        return _run(capture, output, options, comm, prepared, report_progress)
    except BaseException:
        if comm.rank == 0:
            discard_capture(prepared.working)
        raise


def _run(
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    prepared: _Prepared,
    report_progress: Callable[[Progress], None],
) -> RunResult | None:
    ranks = share_of(capture.ranks, comm.rank, comm.size)
    process = together(comm, lambda: _Process(capture, ranks, prepared, options))
    cache_warnings = together(comm, process.drop_pages) if options.cold else ()
    comm.barrier()
    residency = together(comm, process.residency)
    probe = JitterProbe() if comm.first_on_node() else None
    with _stop_on_signals(process.stop):
        together(comm, process.start)
        wall_zero_ns = time.time_ns() - time.monotonic_ns()
        start_ns = comm.common_start_ns(START_MARGIN_NS)
        together(comm, lambda: process.run(start_ns, probe, report_progress))
    stored = together(comm, lambda: process.write_operations(prepared.working))
    spans = together(comm, process.spans)
    parts = comm.gather(
        _Part(
            tally=process.tally(),
            spans=spans,
            stored=stored,
            left_out=process.left_out,
            stopped=process.stopped,
            lanes=process.lane_count,
            residency=residency,
            cache_warnings=cache_warnings,
        )
    )
    result = together(
        comm,
        lambda: (
            None
            if parts is None
            else _finish(capture, output, options, prepared, parts, process, probe, wall_zero_ns + start_ns)
        ),
    )
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one process hands to the first at the end."""

    tally: Tally
    spans: pa.Table
    stored: int
    left_out: int
    stopped: bool
    lanes: int
    residency: page_cache.Residency
    cache_warnings: tuple[str, ...]


def _finish(
    capture: Capture,
    output: Path,
    options: RunOptions,
    prepared: _Prepared,
    parts: Sequence[_Part],
    process: _Process,
    probe: JitterProbe | None,
    zero_ns: int,
) -> RunResult:
    """Write what belongs to the whole replay, and let it take its place. `zero_ns`: the start, CLOCK_REALTIME."""
    total_bytes = sum(part.residency.total_bytes for part in parts)
    resident_bytes = sum(part.residency.resident_bytes for part in parts)
    result = RunResult(
        capture=output,
        options=options.plan,
        tally=sum((part.tally for part in parts), Tally()),
        recorded_ns=process.expected_ns,
        jitter_us=probe.result() if probe is not None else None,
        cache=CacheState(
            policy="cold" if options.cold else "as found",
            resident_before_pct=100.0 * resident_bytes / total_bytes if total_bytes else None,
            warnings=tuple(dict.fromkeys(text for part in parts for text in part.cache_warnings)),
        ),
        processes=len(parts),
        lanes=sum(part.lanes for part in parts),
        core=process.core,
        left_out=sum(part.left_out for part in parts),
        stopped=any(part.stopped for part in parts),
    )
    write_spans(prepared.working, pa.concat_tables([part.spans for part in parts]))
    write_files(prepared.working, _replayed_files(capture.files))
    stored = sum(part.stored for part in parts)
    write_capture_info(prepared.working, replay_info(capture, result, zero_ns, stored))
    publish_capture(prepared.working, output)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What one process found out for all of them."""

    placements: Sequence[Placement]
    layers: LayerChoice
    working: Path
    begin_ns: int
    end_ns: int


def _prepare(capture: Capture, output: Path, options: RunOptions) -> _Prepared:
    """Look at the capture and the target, and make a working directory for the output."""
    if output.exists() and output.samefile(capture.path):
        raise UsageError(f"{output} is the capture to be replayed: give the replay another name")
    placements = check_staged(capture, options.target, options.maps)
    layers = choose_layers(capture)
    begin_ns, end_ns = capture.time_span_ns
    working = begin_capture(output)
    prepare_run(options.target, placements)
    return _Prepared(placements=placements, layers=layers, working=working, begin_ns=begin_ns, end_ns=end_ns)


class _Process:
    """The ranks, lanes and files of one process of the replay."""

    def __init__(
        self,
        capture: Capture,
        ranks: Sequence[int],
        prepared: _Prepared,
        options: RunOptions,
    ) -> None:
        self._capture = capture
        self._options = options
        self.stop = StopFlag()
        self._gate = StartGate()
        self.core = choose_core(options.core)
        self.surveys = [survey_rank(capture, rank, prepared.layers) for rank in ranks]
        lanes = sum(len(survey.lanes) for survey in self.surveys)
        # Each lane may spill its plan and its results, each rank reads a part.
        allow_open_files(sum(len(survey.uses) for survey in self.surveys) + 2 * lanes + len(ranks))
        self._ranks: list[_Rank] = [
            _Rank(capture, survey, prepared.placements, prepared.working, options, self.core, self._gate, self.stop)
            for survey in self.surveys
        ]
        self._paths = [prepared.placements[file].path for survey in self.surveys for file in survey.reads]
        self._total = sum(survey.operations for survey in self.surveys)
        self.expected_ns = options.plan.pacing.recorded_ns(prepared.end_ns - prepared.begin_ns)
        self._threads: list[threading.Thread] = []

    @property
    def left_out(self) -> int:
        return sum(survey.left_out for survey in self.surveys)

    @property
    def stopped(self) -> bool:
        return self.stop.is_set()

    @property
    def _lanes(self) -> list[_RunningLane]:
        return [lane for rank in self._ranks for lane in rank.lanes]

    @property
    def lane_count(self) -> int:
        return sum(len(survey.lanes) for survey in self.surveys)

    def drop_pages(self) -> tuple[str, ...]:
        """Drop the pages of the files that this process reads; what could not be dropped."""
        return page_cache.drop(self._paths).warnings

    def residency(self) -> page_cache.Residency:
        """How much of the files that this process reads is in the page cache."""
        return page_cache.resident(self._paths)

    def start(self) -> None:
        """Fill the lanes and start their threads, which open their first files and wait for the gate."""
        for lane in self._lanes:
            lane.pump()
            thread = threading.Thread(target=lane.lane.run, name=f"lane-{lane.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def run(self, start_ns: int, probe: JitterProbe | None, report_progress: Callable[[Progress], None]) -> None:
        """Issue everything; returns when all lanes are done or stopped."""
        lanes = self._lanes
        if probe is not None:
            probe.start()
        self._gate.open(start_ns)
        try:
            while any(thread.is_alive() for thread in self._threads):
                for lane in lanes:
                    lane.pump()
                report_progress(self._progress(time.monotonic_ns() - start_ns))
                time.sleep(FEED_PERIOD_S)
        except BaseException:
            self.stop.set()
            raise
        finally:
            for thread in self._threads:
                thread.join()
            if probe is not None:
                probe.stop()
        for lane in lanes:
            lane.pump()
            lane.source.close()
        for rank in self._ranks:
            rank.files.close_all()

    def _progress(self, elapsed_ns: int) -> Progress:
        done = sum(rank.operations_done for rank in self._ranks)
        return Progress(done=done, total=self._total, elapsed_ns=elapsed_ns, expected_ns=self.expected_ns)

    def write_operations(self, output: Path) -> int:
        """Write the ops of this process's ranks; returns how many."""
        with OpsWriter(output) as writer:
            for rank in self._ranks:
                for table in rank_rows(rank.survey.rank, [recorder.rows for recorder in rank.recorders]):
                    writer.write(table)
        return writer.rows

    def tally(self) -> Tally:
        return sum((rank.tally() for rank in self._ranks), Tally())

    def spans(self) -> pa.Table:
        tables = [rank.spans(self._capture, self._options.plan) for rank in self._ranks]
        return pa.concat_tables([SPANS_SCHEMA.empty_table(), *tables])


class _Rank:
    """One captured rank in the replay: its files, its I/O lanes, its compute lane."""

    def __init__(
        self,
        capture: Capture,
        survey: RankSurvey,
        placements: Sequence[Placement],
        spill: Path,
        options: RunOptions,
        core: Core,
        gate: StartGate,
        stop: StopFlag,
    ) -> None:
        self.survey = survey
        slots, slot_of_file = file_slots(survey, placements)
        self.files = make_files(slots, core=core.name)
        source = RankSource(capture, survey, slot_of_file, options.plan, spill)
        self.recorders = [LaneRecorder(lane, spill) for lane in survey.lanes]
        self.compute = ComputeRecorder()
        pace = LOOP_PACE[options.plan.pacing.pace]

        def make() -> Lane:
            return make_lane(self.files, pace=pace, start=gate, stop=stop)

        self.lanes = [
            _RunningLane(make(), source.lane(recorder.lane), recorder, f"{survey.rank}.{recorder.lane}")
            for recorder in self.recorders
        ]
        rows = compute_rows(capture.spans, survey.rank, options.plan)
        if len(rows):
            self.lanes.append(_RunningLane(make(), ComputeSource(rows), self.compute, f"{survey.rank}.compute"))

    @property
    def operations_done(self) -> int:
        return sum(lane.lane.items_done for lane in self.lanes[: len(self.recorders)])

    def tally(self) -> Tally:
        starved = [lane.lane.starved_ns for lane in self.lanes]
        totals = sum((recorder.tally(ns) for recorder, ns in zip(self.recorders, starved, strict=False)), Tally())
        return totals + Tally(last_end_ns=self.compute.last_end_ns)

    def spans(self, capture: Capture, plan: PlanOptions) -> pa.Table:
        mine = capture.spans.filter(pc.equal(capture.spans["rank"], self.survey.rank))
        busy = mine.filter(pa.array(codes(mine, "kind") == SPAN_KINDS.index("compute")))
        structure = ComputeStructure(
            starts=busy["start_ns"].to_numpy(), ends=busy["end_ns"].to_numpy(), speed=plan.pacing.speed
        )
        return self.compute.spans(self.survey.rank, structure)


class _RunningLane:
    """A lane of the loop, where its items come from and where its results go."""

    def __init__(self, lane: Lane, source: LaneSource, recorder: LaneRecorder | ComputeRecorder, name: str) -> None:
        self.lane = lane
        self.source = source
        self.name = name
        self._recorder = recorder
        self._in_flight: deque[np.ndarray] = deque()
        self._waiting: np.ndarray | None = None
        self._finished = False

    def pump(self) -> None:
        """Take what is done and fill the lane's ring."""
        while (done := self.lane.collect()) is not None:
            self._recorder.record(self._in_flight.popleft(), done)
        while not self._finished:
            rows = self.source.next_rows() if self._waiting is None else self._waiting
            if not len(rows):
                self.lane.finish()
                self._finished = True
            elif self.lane.submit(batch_of(rows)):
                self._in_flight.append(rows)
                self._waiting = None
            else:
                self._waiting = rows
                return


def _replayed_files(files: pa.Table) -> pa.Table:
    """The source's files without what only its log counted."""
    unknown = {name: pa.nulls(files.num_rows, pa.int64()) for name in COUNTERS}
    unknown["coverage"] = pa.nulls(files.num_rows, pa.float64())
    return pa.Table.from_arrays([unknown.get(name, files[name]) for name in FILES_SCHEMA.names], schema=FILES_SCHEMA)


@contextmanager
def _stop_on_signals(stop: StopFlag) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in order; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, previous[number])

    for number in map(int, (signal.SIGINT, signal.SIGTERM)):
        previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
