"""One replay, from a staged capture to the capture of the replay. Every process of the job calls `run_replay`."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.ranks import PacedRanks, paced_ranks
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.engine.clock import StopFlag, share_processors
from dxt_replay.replay.engine.jitter import DEFAULT_RATE_PER_S, STALL_RATE_PER_S, JitterProbe
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.ranks.comm import WAIT_PERIOD_S, Communicator, together
from dxt_replay.replay.ranks.mpi_world import node_id
from dxt_replay.replay.ranks.stopping import StopRelay, stop_on_signals
from dxt_replay.replay.ranks.time_limit import TimeLimit
from dxt_replay.replay.run.context import RunContext, choose_layers_together, derive_context
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.prepared import Prepared, prepare
from dxt_replay.replay.run.process import Progress, ReplayProcess
from dxt_replay.replay.run.recording import Tally
from dxt_replay.replay.run.result import CacheState, IoResult, Overhead, RunResult, named_failures, replay_info
from dxt_replay.replay.target import page_cache
from dxt_replay.replay.target.targets import locked_target
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import TrainingTime, training_limits_ns
from dxt_replay.traces.records import generated, percentiles_us
from dxt_replay.traces.schema import COUNTERS, FILES_SCHEMA
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import (
    discard_capture,
    lanes_with_facts,
    publish_capture,
    write_capture_info,
    write_files,
    write_lanes,
    write_spans,
)
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, NS_PER_US, ns_to_seconds

START_MARGIN_NS, LANE_MARGIN_NS = 50 * NS_PER_MS, 100 * NS_PER_US
"""How far ahead the start is set: a constant, and for each lane of the process the time to wake it."""

BEFORE_S, BEFORE_RATE_PER_S = 0.08, 2000.0
"""Seconds for which the machine is measured before the run, and waits a second: 160 make a p99."""

LEAST_MEASURED_NS = NS_PER_S
"""Shorter runs are not worth the measurement before them."""


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
    with TimeLimit(options.timeout_s, comm, "preparing the run") as limit:
        return _run_within(limit, capture, output, options, comm, report_progress, context)


def _run_within(
    limit: TimeLimit,
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    report_progress: Callable[[Progress], None],
    context: RunContext | None,
) -> RunResult | None:
    """See `run_replay`."""
    layers = context.layers if context is not None else choose_layers_together(capture, comm, api=options.api)
    with ExitStack() as held:

        def prepare_first() -> Prepared:
            held.enter_context(locked_target(options.target))  # one process holds it until all are done
            return prepare(capture, output, options, layers)

        prepared: Prepared = comm.broadcast(together(comm, lambda: prepare_first() if comm.rank == 0 else None))
        limit.clean_up = lambda: discard_capture(prepared.working)
        try:
            if context is None:
                context = derive_context(capture, comm, layers, options.pacing.pace)
            run = _Run(
                context=context,
                output=output,
                options=options,
                comm=comm,
                prepared=prepared,
                report_progress=report_progress,
                limit=limit,
            )
            return run.replayed()
        except BaseException:
            if comm.rank == 0:
                discard_capture(prepared.working)
            raise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """One process's part in a run. All methods are collective but `_finish`."""

    context: RunContext
    output: Path
    options: RunOptions
    comm: Communicator
    prepared: Prepared
    report_progress: Callable[[Progress], None]
    limit: TimeLimit

    def replayed(self) -> RunResult | None:
        stop, steps = StopFlag(), self.context.steps
        pacing = nullcontext() if steps is None else paced_ranks(steps, self.comm, stop)
        with pacing as paced:
            process = together(self.comm, lambda: ReplayProcess(self.context, self.prepared, self.options, paced, stop))
            part, zero_ns = self._part(process, paced)
            parts = self.comm.gather(part)
            return together(self.comm, lambda: None if parts is None else self._finish(parts, process, zero_ns))

    def _part(self, process: ReplayProcess, paced: PacedRanks | None) -> tuple[_Part, int]:
        """The results of this process, and when it began (CLOCK_REALTIME in ns)."""
        comm, collectives, doing = self.comm, self.context.collectives, self.limit.doing
        self.limit.where = process.standing
        with doing("dropping the twin from the page cache"):
            dropped = together(comm, process.drop_pages) if self.options.cold else None
            comm.barrier()
        with doing("measuring the page cache"):
            residency = together(comm, process.residency)
        before_ns = self._jitter_before()
        first, processors = comm.first_on_node(), len(os.sched_getaffinity(0)) / comm.processes_on_node()
        probe = JitterProbe(rate_per_s=DEFAULT_RATE_PER_S if first else STALL_RATE_PER_S, processors=processors)
        share_processors(comm.processes_on_node(), process.lane_count)
        together(comm, lambda: process.open_together(collectives))
        with stop_on_signals(process.stop):
            together(comm, process.start)
            wall_zero_ns = time.time_ns() - time.monotonic_ns()
            start_ns = comm.common_start_ns(START_MARGIN_NS + process.lane_count * LANE_MARGIN_NS)
            # The probe runs until all processes are done, because its own process may finish first on its node.
            began, began_cpu = time.monotonic_ns(), time.process_time_ns()
            with doing("replaying, or waiting for the other processes"):
                with probe.running():
                    self._issue(process, paced, start_ns)
                self._end_hung(process)
            load = Load(
                busy_ns=time.process_time_ns() - began_cpu,
                elapsed_ns=time.monotonic_ns() - began,
                processors=frozenset((node_id(), number) for number in os.sched_getaffinity(0)),
            )
            stopped = process.stopped  # a later signal must not end the writing
            with doing("closing files, or waiting for the other processes"):
                together(comm, process.files.close_together)
            with doing("writing the capture of the replay"):
                stored = together(comm, lambda: process.write_operations(self.prepared.working))
        part = _Part(
            tally=process.tally(),
            spans=together(comm, process.spans),
            stored=stored,
            left_out=process.left_out,
            stopped=stopped,
            lanes=process.lane_count,
            residency=residency,
            dropped=dropped,
            io_warnings=(*collectives.warnings, *process.io_warnings),
            backends=process.files.names,
            not_direct=process.not_direct,
            python_lanes=process.python_lanes,
            overhead=process.overhead,
            models=process.models,
            jitter_ns=probe.lateness_ns() if first else Distribution(),
            jitter_before_ns=before_ns,
            load=load,
            stalls=probe.stalls(start_ns),
        )
        return part, wall_zero_ns + start_ns

    def _jitter_before(self) -> Distribution:
        """Lateness with which an idle thread of this node wakes before the replay runs. Collective."""
        comm, pacing = self.comm, self.options.pacing
        if not pacing.pace.follows_recording or pacing.recorded_ns(self.context.recorded_ns) < LEAST_MEASURED_NS:
            return Distribution()
        probe = JitterProbe(rate_per_s=BEFORE_RATE_PER_S) if comm.first_on_node() else None
        if probe is not None:
            with probe.running():
                time.sleep(BEFORE_S)
        all_there = comm.arrive()
        while not all_there():  # The others sleep: waiting in MPI, each would keep a processor busy.
            time.sleep(WAIT_PERIOD_S)
        return Distribution() if probe is None else probe.lateness_ns()

    def _issue(self, process: ReplayProcess, paced: PacedRanks | None, start_ns: int) -> None:
        """Issue all operations; returns when every process has."""
        bound = process.files.collective and self.comm.size > 1
        relay = StopRelay(process.stop, self.comm)

        def issue() -> None:
            try:
                process.run(start_ns, self.report_progress, relay, self.limit, bound=bound, alone=self.comm.size == 1)
            finally:
                if paced is not None:
                    paced.check_relay()  # its failure is why the lanes were stopped

        with paced.relayed() if paced is not None else nullcontext():
            if bound:
                # Not `together`: a process that fails here must not wait for others, which wait for it in MPI.
                issue()
            else:
                together(self.comm, lambda: relay.then_meet(issue))

    def _end_hung(self, process: ReplayProcess) -> None:
        """Raises: ReplayError on all processes if an operation of one of them does not return."""
        found = self.comm.gather(process.hung)
        worst = max((each for each in found or () if each is not None), default=None)
        worst = self.comm.broadcast(worst)
        if worst is not None:
            self.comm.agree(ReplayError(f"{worst[1]}; its output was discarded"))

    def _finish(self, parts: Sequence[_Part], process: ReplayProcess, zero_ns: int) -> RunResult:
        """Write the files that cover the whole replay, and move the output to its place. `zero_ns`: see `_part`."""
        capture, working, options = self.context.capture, self.prepared.working, self.options
        spans = pa.concat_tables([part.spans for part in parts])
        stalls = functools.reduce(Intervals.union, (part.stalls for part in parts))
        result = self._result(parts, process, stalls)
        if options.pacing.pace is Pace.STEPS and not result.stopped:
            limits = training_limits_ns(spans)
            stood_still_ns = int(stalls.covered_within(limits[:1], limits[1:]).sum())
            reasons = (model["evidence"]["doubt"] or "" for model in (result.models or {}).values())
            result = replace(
                result,
                training=TrainingTime.of(
                    capture.spans,
                    spans,
                    longest_log_wait_ns(capture.info, capture.spans),
                    stood_still_ns=stood_still_ns,
                ),
                doubt=doubt_of_capture(capture, self.context.steps if len(parts) == 1 else None, reasons),
            )
        write_spans(working, spans)
        write_files(working, _replayed_files(capture.files))
        stored = sum(part.stored for part in parts)
        write_lanes(working, lanes_with_facts(capture.lanes, ["role"]))
        write_capture_info(working, replay_info(capture, result, zero_ns, stored, options.sources))
        publish_capture(working, self.output, force=options.force)
        return result

    def _result(self, parts: Sequence[_Part], process: ReplayProcess, stalls: Intervals) -> RunResult:
        options = self.options
        drops = [part.dropped for part in parts if part.dropped is not None]
        tally = sum((part.tally for part in parts), Tally())
        return RunResult(
            capture=self.output,
            pacing=options.pacing,
            compute=options.compute,
            tally=tally,
            failures=named_failures(tally.failures, self.context.capture.paths()) if tally.failures else (),
            recorded_ns=self.context.recorded_ns,
            jitter_us=percentiles_us(sum((part.jitter_ns for part in parts), Distribution())),
            jitter_before_us=percentiles_us(sum((part.jitter_before_ns for part in parts), Distribution())),
            processors_pct=processors_pct([part.load for part in parts]),
            stood_still_s=ns_to_seconds(int(stalls.covered_before(np.array([tally.last_end_ns]))[0])),
            cache=CacheState(
                policy="cold" if options.cold else "as found",
                resident_before_pct=sum((part.residency for part in parts), page_cache.Residency()).percent,
                warnings=tuple(dict.fromkeys(text for found in drops for text in found.warnings)),
                keeps_pages=any(found.kept for found in drops),
            ),
            processes=len(parts),
            idle_processes=max(0, len(parts) - len(self.context.capture.ranks)),
            lanes=sum(part.lanes for part in parts),
            io=IoResult(
                api=options.api,
                backends=tuple(sorted({name for part in parts for name in part.backends})),
                direct=options.io.direct,
                not_direct=sum(part.not_direct for part in parts),
                python_lanes=sum(part.python_lanes for part in parts),
                warnings=tuple(dict.fromkeys(text for part in parts for text in part.io_warnings)),
            ),
            overhead=max((part.overhead for part in parts), key=lambda overhead: overhead.busiest_lane_ns),
            models=None
            if self.context.steps is None
            else {rank: model for part in parts for rank, model in (part.models or {}).items()},
            left_out=sum(part.left_out for part in parts),
            stopped=any(part.stopped for part in parts),
            generated=generated(self.context.capture.info),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a process on the machine during the run.

    `busy_ns`: processor time of all its threads.
    `elapsed_ns`: its duration.
    `processors`: the processors that it may use, with the name of their node.
    """

    busy_ns: int
    elapsed_ns: int
    processors: frozenset[tuple[str, int]]


def processors_pct(loads: Sequence[Load]) -> float | None:
    """Share of all their processors that the processes took, in per cent; None for a run of no time."""
    processors = frozenset[tuple[str, int]]().union(*(load.processors for load in loads))
    available_ns = max(load.elapsed_ns for load in loads) * len(processors)
    return 100 * sum(load.busy_ns for load in loads) / available_ns if available_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The results of one process, which process 0 gathers at the end."""

    tally: Tally
    spans: pa.Table
    stored: int
    left_out: int
    stopped: bool
    lanes: int
    residency: page_cache.Residency
    dropped: page_cache.DropResult | None
    io_warnings: tuple[str, ...]
    backends: tuple[str, ...]
    not_direct: int
    python_lanes: int
    overhead: Overhead
    models: Mapping[int, Mapping[str, Any]] | None
    jitter_ns: Distribution
    jitter_before_ns: Distribution
    load: Load
    stalls: Intervals


def _replayed_files(files: pa.Table) -> pa.Table:
    """The files table of the source without the columns that come from Darshan's counters."""
    unknown = {name: pa.nulls(files.num_rows, pa.int64()) for name in COUNTERS}
    unknown["coverage"] = pa.nulls(files.num_rows, pa.float64())
    return pa.Table.from_arrays([unknown.get(name, files[name]) for name in FILES_SCHEMA.names], schema=FILES_SCHEMA)
