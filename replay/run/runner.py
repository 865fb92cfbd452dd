"""One replay, from a staged capture to the capture of what happened. Every process of the job calls `run_replay`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.causal.paced_ranks import PacedRanks, derive_steps, paced_ranks
from replay.engine.clock import StopFlag
from replay.engine.jitter import JitterProbe
from replay.plan.collectives import Collectives, choose_collectives
from replay.plan.pacing import Pace
from replay.plan.survey import RankSurvey, survey_rank
from replay.ranks.comm import Communicator, share_of, together
from replay.ranks.stopping import StopRelay, stop_on_signals
from replay.run.options import RunOptions
from replay.run.prepared import Prepared, prepare
from replay.run.process import Progress, ReplayProcess
from replay.run.recording import Tally
from replay.run.result import CacheState, IoResult, Overhead, RunResult, percentiles_us, replay_info
from replay.twin import page_cache
from replay.twin.containment import locked_target
from traces.measures.distribution import Distribution
from traces.schema import COUNTERS, FILES_SCHEMA
from traces.store.reader import Capture
from traces.store.writer import (
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_spans,
)
from traces.units import NS_PER_MS

START_MARGIN_NS = 50 * NS_PER_MS


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
    with ExitStack() as held:

        def prepare_first() -> Prepared:
            held.enter_context(locked_target(options.target))  # by one process for all of them, until all are done
            return prepare(capture, output, options)

        prepared = comm.broadcast(together(comm, lambda: prepare_first() if comm.rank == 0 else None))
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
    prepared: Prepared,
    report_progress: Callable[[Progress], None],
) -> RunResult | None:
    ranks = share_of(capture.ranks, comm.rank, comm.size)
    surveys = together(comm, lambda: [survey_rank(capture, rank, prepared.layers) for rank in ranks])
    collectives = choose_collectives(capture, surveys, prepared.layers, comm)
    if collectives.files.any():
        layers = replace(prepared.layers, collective=collectives.files)
        surveys = together(comm, lambda: [survey_rank(capture, rank, layers) for rank in ranks])
    stop = StopFlag()
    with _paced(capture, surveys, options, comm, stop) as paced:
        process = together(comm, lambda: ReplayProcess(capture, surveys, prepared, options, paced, stop))
        return _replayed(capture, output, options, comm, prepared, process, collectives, report_progress)


@contextmanager
def _paced(
    capture: Capture, surveys: Sequence[RankSurvey], options: RunOptions, comm: Communicator, stop: StopFlag
) -> Iterator[PacedRanks | None]:
    """What paces the ranks of this process where the pace follows the training loop, else None. Collective."""
    if options.plan.pacing.pace is not Pace.STEPS:
        yield None
        return
    steps = together(comm, lambda: derive_steps(capture, surveys, options.plan.origin_ns))
    with paced_ranks(steps, comm, stop) as paced:
        yield paced


def _replayed(
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    prepared: Prepared,
    process: ReplayProcess,
    collectives: Collectives,
    report_progress: Callable[[Progress], None],
) -> RunResult | None:
    cache_warnings = together(comm, process.drop_pages) if options.cold else ()
    comm.barrier()
    residency = together(comm, process.residency)
    probe = JitterProbe() if comm.first_on_node() else None
    together(comm, lambda: process.open_together(collectives))
    bound = process.files.collective and comm.size > 1
    relay = StopRelay(process.stop, comm)
    with stop_on_signals(process.stop):
        together(comm, process.start)
        wall_zero_ns = time.time_ns() - time.monotonic_ns()
        start_ns = comm.common_start_ns(START_MARGIN_NS)
        paced = process.paced
        relaying = paced.relayed() if paced is not None else nullcontext()

        def issue() -> None:
            try:
                process.run(start_ns, report_progress, relay, bound=bound)
            finally:
                if paced is not None:
                    paced.check_relay()  # its failure is why the lanes were stopped

        # Until the last process of all is done: the first may have less to do than the others on its node.
        with relaying, probe.running() if probe is not None else nullcontext():
            if bound:
                # Not `together`: who fails here must not wait for processes that wait for it. Its error ends them all.
                issue()
            else:
                together(comm, lambda: relay.then_meet(issue))
        stopped = process.stopped  # later, a signal must not end the writing
        together(comm, process.files.close_together)
        stored = together(comm, lambda: process.write_operations(prepared.working))
    spans = together(comm, process.spans)
    parts = comm.gather(
        _Part(
            tally=process.tally(),
            spans=spans,
            stored=stored,
            left_out=process.left_out,
            stopped=stopped,
            lanes=process.lane_count,
            residency=residency,
            cache_warnings=cache_warnings,
            io_warnings=(*collectives.warnings, *process.io_warnings),
            backends=process.files.names,
            not_direct=process.not_direct,
            python_lanes=process.python_lanes,
            overhead=process.overhead,
            models=process.models,
            jitter_ns=Distribution() if probe is None else probe.lateness_ns(),
        )
    )
    result = together(
        comm,
        lambda: (
            None
            if parts is None
            else _finish(capture, output, options, prepared, parts, process, wall_zero_ns + start_ns)
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
    io_warnings: tuple[str, ...]
    backends: tuple[str, ...]
    not_direct: int
    python_lanes: int
    overhead: Overhead
    models: Mapping[int, Mapping[str, Any]] | None
    jitter_ns: Distribution


def _finish(
    capture: Capture,
    output: Path,
    options: RunOptions,
    prepared: Prepared,
    parts: Sequence[_Part],
    process: ReplayProcess,
    zero_ns: int,
) -> RunResult:
    """Write what belongs to the whole replay, and let it take its place. `zero_ns`: the start, CLOCK_REALTIME."""
    total_bytes = sum(part.residency.total_bytes for part in parts)
    resident_bytes = sum(part.residency.resident_bytes for part in parts)
    result = RunResult(
        capture=output,
        options=options.plan,
        tally=sum((part.tally for part in parts), Tally()),
        recorded_ns=prepared.end_ns - prepared.begin_ns,
        jitter_us=percentiles_us(sum((part.jitter_ns for part in parts), Distribution())),
        cache=CacheState(
            policy="cold" if options.cold else "as found",
            resident_before_pct=100.0 * resident_bytes / total_bytes if total_bytes else None,
            warnings=tuple(dict.fromkeys(text for part in parts for text in part.cache_warnings)),
        ),
        processes=len(parts),
        idle_processes=max(0, len(parts) - len(capture.ranks)),
        lanes=sum(part.lanes for part in parts),
        core=process.core,
        io=IoResult(
            api=options.api,
            reconstruct=options.reconstruct,
            backends=tuple(sorted({name for part in parts for name in part.backends})),
            direct=options.io.direct,
            not_direct=sum(part.not_direct for part in parts),
            vectored=options.io.pieces or None,
            python_lanes=sum(part.python_lanes for part in parts),
            warnings=tuple(dict.fromkeys(text for part in parts for text in part.io_warnings)),
        ),
        overhead=max((part.overhead for part in parts), key=lambda overhead: overhead.busiest_lane_ns),
        models=None
        if process.paced is None
        else {rank: model for part in parts for rank, model in (part.models or {}).items()},
        left_out=sum(part.left_out for part in parts),
        stopped=any(part.stopped for part in parts),
    )
    write_spans(prepared.working, pa.concat_tables([part.spans for part in parts]))
    write_files(prepared.working, _replayed_files(capture.files))
    stored = sum(part.stored for part in parts)
    write_capture_info(prepared.working, replay_info(capture, result, zero_ns, stored, options.sources))
    publish_capture(prepared.working, output, force=options.force)
    return result


def _replayed_files(files: pa.Table) -> pa.Table:
    """The source's files without what only its log counted."""
    unknown = {name: pa.nulls(files.num_rows, pa.int64()) for name in COUNTERS}
    unknown["coverage"] = pa.nulls(files.num_rows, pa.float64())
    return pa.Table.from_arrays([unknown.get(name, files[name]) for name in FILES_SCHEMA.names], schema=FILES_SCHEMA)
