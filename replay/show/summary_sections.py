"""The output of `dxt-replay summary` for people: what ran and what storage cost it, then the figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from dxt_replay.profiler_merge.analysis.finding import LEAST_UTILISATION_PCT, MATERIAL_PCT, SERIOUS_PCT
from dxt_replay.replay.show.cells import mib_s, or_dash, percent, run_time, seconds, share
from dxt_replay.replay.show.section import (
    BAR,
    MAX_GROUPS,
    WARNINGS,
    Column,
    Kind,
    Section,
    bar,
    facts,
    of_generated,
    prose,
)
from dxt_replay.traces.layers import OBJECT_STORES, called, lowest
from dxt_replay.traces.storage_limit import UNKNOWN, Doubt, Limit, StorageLimit
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.interfaces import InterfaceTotals
    from dxt_replay.profiler_merge.analysis.queries import GroupTotals
    from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
    from dxt_replay.profiler_merge.analysis.summary import Summary
    from dxt_replay.traces.measures.distribution import Spread

LIMITS_PCT, SLOWS_PCT = SERIOUS_PCT, MATERIAL_PCT
"""Gain of infinitely fast storage, per cent, from which it limits or slows a run: the severities of findings."""

LONG_WAIT_PCT = 100 - LEAST_UTILISATION_PCT
"""Input wait, per cent of the loop, that MLPerf Storage does not accept."""

LEAST_REBUILT_PCT = 1.0
"""Per cent of the reads and writes. The summary mentions those rebuilt from counters if they are at least this many."""

_LEAST_LIMIT_PCT = 0.05
"""A storage limit below this, per cent, would be printed as 0.0."""

_TIMES = {
    "read_s": "reads",
    "write_s": "writes and syncs",
    "metadata_s": "metadata",
    "wait_s": "waits for non-blocking requests",
}

_BRIEF_JOB = ("I/O", "complete")
_BRIEF_LOOP = ("steps", "evaluations", "accelerator utilisation", "input wait")
_BRIEF_IO = (
    "reads",
    "writes",
    "bandwidth while I/O is in flight",
    "reads, counted",
    "writes, counted",
    "bytes, counted",
)

_PAST_TRACE = {
    "mapped": "through a mapping",
    "socket": "received on sockets",
    "objects": "moved by calls of an object store",
    "process": "read by processes without a log, or past it",
}

_SOURCES = {"counters": "Darshan's counters", "operations": "the traced operations"}


def summary_sections(summary: Summary, limit: Limit | None = None) -> list[Section]:
    """The tables of `dxt-replay summary`. `limit`: of the training; None if it was not requested."""
    traced, recorded = has_trace(summary), io_recorded(summary)
    past = (f"not traced: {how}" for how in _PAST_TRACE.values())
    partly = () if summary.coverage.bytes == 1 else ("trace coverage, bytes",)
    sections = [
        prose("", headline(summary, limit)),
        facts("Job", _job_rows(summary), brief=(*_BRIEF_JOB, *past, *partly)),
        facts("Training loop", _loop_rows(summary), brief=_BRIEF_LOOP),
        *([facts("I/O", _io_rows(summary) if traced else _counted_rows(summary), brief=_BRIEF_IO)] if recorded else []),
        *([_per_operation(summary)] if traced and recorded else []),
        _interfaces(summary.interfaces),
    ]
    if summary.groups is not None:
        sections.append(_breakdown(summary.groups, summary.by or ""))
    if summary.warnings:
        sections.append(prose(WARNINGS, summary.warnings, brief=True))
    return of_generated(sections, summary.generated)


def has_trace(summary: Summary) -> bool:
    """Whether any read or write was traced, or none was counted either."""
    operations = summary.operations
    return bool(operations.read or operations.write) or not _counted(summary.interfaces, "operations")


def io_recorded(summary: Summary) -> bool:
    """Whether anything recorded I/O: not so of profiles alone."""
    return not nothing_recorded(summary.coverage.unseen)


def headline(summary: Summary, limit: Limit | None = None) -> list[str]:
    """Sentences on the job, on the cost of storage, and on the evidence for it, as far as the capture shows them."""
    cost, ran, rest = storage_cost(summary, limit), _what_ran(summary), rests_on_counters(summary)
    if has_trace(summary) and ((limit is not None and limit.doubt.sentences) or summary.not_judged):
        return [*cost, ran, *rest]
    return [ran, *cost, *rest] if has_trace(summary) else [*rest, *cost, ran]


def rests_on_counters(summary: Summary) -> list[str]:
    """One sentence on reads and writes that were rebuilt from counters; none below LEAST_REBUILT_PCT."""
    rebuilt = summary.reconstructed
    pct, count = rebuilt.pct or 0.0, rebuilt.read + rebuilt.write
    if pct < LEAST_REBUILT_PCT:
        return []
    size = format_bytes(rebuilt.bytes_read + rebuilt.bytes_written)
    if not has_trace(summary):
        return [
            f"Rebuilt from counters, not traced: {format_count(count)} reads and writes, {size}. Number and bytes are "
            "counted; times and order are estimates."
        ]
    return [
        f"{pct:.0f} % of the I/O ({format_count(count)} reads and writes, {size}) is rebuilt from counters: its times "
        "and order are estimates, and the traced figures leave it out."
    ]


def storage_cost(summary: Summary, limit: Limit | None = None) -> list[str]:
    """Sentences on the time that infinitely fast storage would save, and on the evidence; none if it is not known.

    For a capture with training steps `limit` has that time. If `limit` is unknown, the time is at most `storage_gain_s`
    of the summary's loop, which the findings use too.
    """
    if not has_trace(summary):
        return list(_counted_cost(summary))
    if summary.not_judged:
        doubt = Doubt(state=UNKNOWN, reason=summary.not_judged)
        unknown = f"What storage cost this run is not known: {summary.not_judged}."
        return [*([unknown] if limit is None else doubt.sentences), *_waits(summary), *_unmarked(summary)]
    if not summary.operations.read and not summary.operations.write:
        none = "The capture holds no reads and no writes: what storage cost this run is not known."
        return [none, *_waits(summary)]
    return [*_gain(summary, limit), *_waits(summary)]


def _counted_cost(summary: Summary) -> Iterable[str]:
    """Time in I/O by Darshan's counters, for a capture without a trace."""
    found, run_s, ranks = called(summary.counted_times, summary.job.nprocs), summary.job.run_time_s, summary.job.nprocs
    if found is None:
        yield "No DXT trace: what storage cost this run is not known. The totals are Darshan's counters."
        return
    interface, worst = found
    all_s = sum(worst[name] or 0.0 for name in _TIMES)
    of_run = f" of {seconds(run_s)}" if run_s else ""
    number = "" if worst["slowest_rank"] is None else f", {worst['slowest_rank']},"
    who = f"the slowest rank{number}" if ranks > 1 else "the job"
    mean = f"; the mean of the ranks is {seconds(all_s / ranks)}" if ranks > 1 else ""
    if worst["slowest_s"] is None:
        yield f"By Darshan's counters all ranks together spent {seconds(all_s)} in {interface} calls{mean}."
    else:
        yield f"By Darshan's counters {who} spent {seconds(worst['slowest_s'])}{of_run} in {interface} calls{mean}."
    parts = ", ".join(
        f"{100 * worst[name] / all_s:.1f} % in {what}"
        for name, what in _TIMES.items()
        if (worst[name] or 0.0) > 0.0005 * all_s
    )
    if parts:
        yield f"Of that time of all ranks, {parts}."
    yield "No DXT trace: whether the program waited for this I/O is not known."


def counted_below(summary: Summary) -> dict[str, Any]:
    """Of `counted_times` those of the interfaces that carry out all others."""
    counted = summary.counted_times
    moved = {name: (each["bytes_read"] or 0) + (each["bytes_written"] or 0) for name, each in counted.items()}
    return {name: counted[name] for name in lowest(moved)}


def _what_ran(summary: Summary) -> str:
    job, steps = summary.job, summary.steps.count
    ranks, time = format_counted(job.nprocs, "rank"), job.run_time_s
    training = f"Training of {format_counted(steps, 'step')}" if steps else "A run"
    return f"{training} on {ranks}; " + (
        "how long the job took is not known." if time is None else f"the whole job took {seconds(time)}."
    )


def _log_waits(loop: SteadyLoop) -> Iterable[str]:
    """On waits that the recording itself caused, if they are long beside the loop."""
    waited_s = loop.recording_wait_s or 0.0
    if 100 * waited_s >= LONG_WAIT_PCT * loop.loop_s:
        yield (
            f"Besides, training waited {seconds(waited_s)} while Darshan wrote the logs of worker processes that had "
            "ended: a cost of the recording, which all figures leave out."
        )


def _gain(summary: Summary, limit: Limit | None) -> Iterable[str]:
    loop, run_s = summary.loop, summary.job.run_time_s
    if loop is not None:
        yield from limit.doubt.sentences if limit is not None else ()
        if isinstance(limit, StorageLimit):
            yield limit_text(limit, with_compute=not loop.compute_at_most)
        else:
            # A bound beside "not known" is no verdict.
            known = limit is None or not limit.doubt.sentences
            yield _gain_text(loop.storage_gain_s, loop.storage_gain_pct, "loop", judged=known)
            if limit is not None and not limit.doubt.sentences:
                yield f"This is an upper bound: {limit}."
        yield from _log_waits(loop)
        if loop.input_wait_pct >= LONG_WAIT_PCT and isinstance(limit, StorageLimit) and limit.limit_pct < SLOWS_PCT:
            if limit.prepared:
                yield "Training waits for input to be prepared."
            elif not limit.doubt.sentences:
                yield "What else training waits for is not known."
    elif not summary.steps.count and run_s:
        gain_s = min(summary.in_flight_s + summary.other_io_s, run_s)
        yield _gain_text(gain_s, 100 * gain_s / run_s, "run")
        yield from _unmarked(summary)
        if not summary.compute.profiled_ranks:
            yield "No training steps are known, so whether training waited for the I/O is not known."


def _unmarked(summary: Summary) -> Iterable[str]:
    if summary.compute.profiled_ranks and not summary.steps.count:
        yield (
            "The profile marks no training steps, so whether training waited for input is not known: run the loop in "
            "recording(), or fit with keras_recording()."
        )


def limit_text(limit: StorageLimit, *, with_compute: bool = True) -> str:
    """A sentence on the effect of infinitely fast storage."""
    pct, now = limit.limit_pct, format_duration(limit.recorded_ns)
    least, most = limit.saved_between_ns
    if 100 * (most - least) >= limit.recorded_ns:
        shares = " to ".join(f"{100 * each / limit.recorded_ns:.1f}" for each in (least, most))
        return (
            f"Storage limits it by {shares} %: with infinitely fast storage it would take "
            f"{format_duration(limit.recorded_ns - most)} to {format_duration(limit.recorded_ns - least)} "
            f"instead of {now}."
        )
    used, then = (limit.utilisation_pct, limit.fastest_utilisation_pct) if with_compute else (None, None)
    if pct < _LEAST_LIMIT_PCT:
        found = f"Storage does not limit this training: infinitely fast storage would not shorten its {now}"
        return f"{found}; compute takes {used:.1f} % of the loop." if used is not None else f"{found}."
    found = f"Storage limits this training by {pct:.1f} %: with infinitely fast storage it would take "
    found += f"{format_duration(limit.recorded_ns - limit.saved_ns)} instead of {now}"
    computes = "" if used is None else f", and compute {then:.1f} % of the loop instead of {used:.1f} %"
    return f"{found}{computes}."


def _gain_text(gain_s: float, pct: float, of: str, *, judged: bool = True) -> str:
    verdict = "limits" if pct >= LIMITS_PCT else "slows" if pct >= SLOWS_PCT else "does not limit"
    saved = f"at most {seconds(gain_s)}, {pct:.1f} % of the {of}" if gain_s else "nothing"
    return f"Infinitely fast storage would save {saved}{f': storage {verdict} this run' if judged else ''}."


def _waits(summary: Summary) -> Iterable[str]:
    loop = summary.loop
    if loop is not None and not summary.compute.input_wait_s_per_rank_mean:
        computes = "" if loop.compute_pct is None else f"; {_computes(loop, 'it')} of the loop"
        yield f"No waits for input are shown, so how long training waits for it is not known{computes}."
    elif loop is not None:
        after = " after the first step" if loop.warm_up_s else ""
        of = "the whole loop" if after else "it"
        computes = "" if loop.compute_pct is None else f" and {_computes(loop)} of {of}"
        yield f"Training waits for input {loop.input_wait_pct:.1f} % of the loop{after}{computes}."


def _job_rows(summary: Summary) -> Iterable[tuple[str, str]]:
    job, coverage = summary.job, summary.coverage
    if job.exe:
        yield "command", job.exe
    yield "ranks", format_count(job.nprocs)
    yield "run time of the job", run_time(job.run_time_s)
    if not io_recorded(summary):
        yield "I/O", "not recorded"
        return
    yield "trace coverage, bytes", share(coverage.bytes)
    yield "trace coverage, operations", share(coverage.operations)
    if summary.recorded_by == "darshan":
        yield "not recorded", "files below /etc, /usr, /opt, /var and other folders of the system, unless included"
    for each in coverage.unseen:
        how = _PAST_TRACE[each.kind]
        known = "how much is not known" if each.bytes is None else f"at least {format_bytes(each.bytes)}"
        yield f"not traced: {how}", f"{known}, {each.name}"
    if summary.partial:
        yield "complete", "no: the capture is partial"


def _computed(loop: SteadyLoop) -> str:
    return f"{'at most ' * loop.compute_at_most}{loop.compute_pct:.1f} %"


def _computes(loop: SteadyLoop, subject: str = "") -> str:
    on_gpu = loop.compute_at_most or loop.gpu_busy_pct is not None
    return f"{'its accelerator is busy' if on_gpu else f'{subject} computes'.strip()} {_computed(loop)}"


def _loop_rows(summary: Summary) -> Iterable[tuple[str, str]]:
    steps, compute, loop = summary.steps, summary.compute, summary.loop
    if steps.count:
        yield "steps", f"{format_count(steps.count)}, mean {or_dash(steps.mean_s, seconds)}"
        if steps.extended:
            yield (
                "extended steps",
                f"{format_count(steps.extended)} of {format_count(steps.count)}: not profiled, see the warnings",
            )
    if loop is not None:
        if loop.evaluations:
            spent = f"{format_count(loop.evaluations)}, {seconds(loop.evaluation_s)}"
            yield "evaluations", f"{spent}, no part of the loop and its steps"
        used = "not known: none is shown" if loop.compute_pct is None else f"{_computed(loop)} of the loop"
        gaps = ", with the gaps between the kernels of a step" if loop.compute_at_most else ""
        if loop.gpu_busy_pct is not None:
            gaps = ": kernels, copies and collectives on the accelerator"
        by_rule = loop.benchmark_utilisation_pct
        yield "compute" if by_rule is not None else "compute (accelerator utilisation)", used + gaps
        if by_rule is not None:
            yield "accelerator utilisation", f"{by_rule:.1f} % by DLIO's rule: the first steps of each epoch apart"
        if loop.gpu_behind_steps is not None:
            yield "GPU had work left", f"at the end of {format_counted(loop.gpu_behind_steps, 'step')}"
        if loop.evaluations and loop.gpu_busy_pct is not None and loop.gpu_profile_s is not None:
            yield "GPU busy, with evaluations", f"{loop.gpu_busy_pct:.1f} % of {seconds(loop.gpu_profile_s)}"
        if loop.warm_up_s:
            yield "first step, above the usual", f"{seconds(loop.warm_up_s)}, not part of the next two lines"
        yield "loop", seconds(loop.loop_s)
        busy = ""
        if loop.input_wait_s and io_recorded(summary):
            known = loop.io_in_wait_pct is not None
            busy = (
                f"; storage busy in {loop.io_in_wait_pct:.1f} % of it" if known else "; storage busy in it: not known"
            )
        waits = bool(compute.input_wait_s_per_rank_mean)
        yield "input wait", f"{loop.input_wait_pct:.1f} % of the loop{busy}" if waits else "not known: none is shown"
    if compute.profiled_ranks:
        which = "with the first step" if loop is not None and loop.warm_up_s else "mean of the ranks"
        if compute.busy_s_per_rank_mean:
            yield f"compute, {which}", or_dash(compute.busy_s_per_rank_mean, seconds)
        if loop is not None and compute.input_wait_s_per_rank_mean:
            yield f"input wait, {which}", or_dash(compute.input_wait_s_per_rank_mean, seconds)
        if compute.busy_s_per_rank_mean:
            yield "I/O time inside compute", or_dash(compute.io_hidden_pct, percent)


def _io_rows(summary: Summary) -> Iterable[tuple[str, str]]:
    operations, moved, io_time = summary.operations, summary.bytes, summary.io_time_s
    rebuilt = summary.reconstructed
    yield "reads", f"{format_count(operations.read)}, {format_bytes(moved.read)} in all"
    yield "writes", f"{format_count(operations.write)}, {format_bytes(moved.written)} in all"
    if operations.other:
        yield "other operations", format_count(operations.other)
    if any(astuple(rebuilt)):
        count = rebuilt.read + rebuilt.write + rebuilt.other
        size = rebuilt.bytes_read + rebuilt.bytes_written
        yield "besides, from counters", f"{format_counted(count, 'operation')}, {format_bytes(size)}"
    yield "files", format_count(summary.files)
    yield "I/O time of a rank, union", _mean_and_max(io_time.union_per_rank_mean, io_time.union_per_rank_max)
    yield "I/O time of a rank, sum", _mean_and_max(io_time.sum_per_rank_mean, io_time.sum_per_rank_max)
    if summary.job.nprocs > 1:
        yield "I/O in flight on any rank", seconds(summary.in_flight_s)
    yield "bandwidth while I/O is in flight", or_dash(summary.aggregate_bandwidth_mib_s, mib_s)
    source = _SOURCES[summary.access_pattern_source]
    yield "sequential", f"{or_dash(summary.sequential_pct, percent)} (from {source})"
    yield "consecutive", or_dash(summary.consecutive_pct, percent)
    if summary.unmeasured_operations:
        yield "too short to measure", format_counted(summary.unmeasured_operations, "operation")
    yield from _counted_times(summary)


def _counted_rows(summary: Summary) -> Iterable[tuple[str, str]]:
    """Totals of a log without a trace, of the interfaces that carry out all others."""
    interfaces = summary.interfaces
    counted = {name: interfaces[name] for name in lowest({name: each.bytes or 0 for name, each in interfaces.items()})}
    yield "reads, counted", format_count(_counted(counted, "reads"))
    yield "writes, counted", format_count(_counted(counted, "writes"))
    unknown = any(each.bytes is None for each in counted.values())
    yield "bytes, counted", "not known" if unknown else format_bytes(_counted(counted, "bytes"))
    yield from _counted_times(summary)
    if summary.sequential_pct is not None:
        yield "sequential", percent(summary.sequential_pct)
        yield "consecutive", or_dash(summary.consecutive_pct, percent)


def _counted_times(summary: Summary) -> Iterable[tuple[str, str]]:
    """Time in untraced calls by Darshan's counters, by interface."""
    ranks = max(summary.job.nprocs, 1)
    for name, each in summary.counted_times.items():
        known = {what: each[key] for key, what in _TIMES.items() if each[key] is not None}
        total_s = sum(known.values())
        shares = ", ".join(f"{seconds(spent)} {what}" for what, spent in known.items())
        yield f"{name}: time of all ranks", f"{seconds(total_s)}: {shares}"
        if ranks > 1:
            who = "" if each["slowest_rank"] is None else f", rank {each['slowest_rank']}"
            slowest = "not known" if each["slowest_s"] is None else f"{seconds(each['slowest_s'])}{who}"
            yield f"{name}: slowest rank", f"{slowest}; mean {seconds(total_s / ranks)}"
        if each["slowest_s"] and None not in (each["bytes_read"], each["bytes_written"]):
            speed = mib_s((each["bytes_read"] + each["bytes_written"]) / each["slowest_s"] / (1 << 20))
            yield f"{name}: bandwidth by the slowest rank", speed


def _counted(interfaces: Mapping[str, InterfaceTotals], quantity: str) -> int:
    return sum(getattr(found, quantity) for found in interfaces.values() if found.source == "counters")


def _per_operation(summary: Summary) -> Section:
    return Section(
        title="Per operation",
        columns=("", "min", "median", "mean", "max"),
        rows=(
            ("transfer size", *_spread(summary.transfer_size_bytes, format_bytes)),
            ("bandwidth", *_spread(summary.bandwidth_per_op_mib_s, mib_s)),
        ),
    )


def _interfaces(interfaces: Mapping[str, InterfaceTotals]) -> Section:
    layered = "POSIX" in interfaces and any(name in interfaces for name in ("MPIIO", "HDF5", "PNETCDF"))
    stored = any(name in interfaces for name in OBJECT_STORES)
    return Section(
        title="Interfaces",
        columns=("", "reads", "writes", "bytes", Column(head="from", kind=Kind.TEXT)),
        rows=tuple(
            (
                name,
                format_count(found.reads),
                format_count(found.writes),
                "not known" if found.bytes is None else format_bytes(found.bytes),
                _SOURCES[found.source],
            )
            for name, found in interfaces.items()
        ),
        notes=(*((_LAYERED,) * layered), *((_STORED,) * stored), *_streams(interfaces.get("STDIO"))),
    )


_LAYERED = "HDF5, PnetCDF and MPI-IO requests are carried out as POSIX requests: the rows do not add up."
_STORED = "DFS keeps files in DAOS objects, and other interfaces can lead to either: the rows do not add up."


def _streams(found: InterfaceTotals | None) -> Iterable[str]:
    """A note if only counters show some operations on C streams."""
    if found is None or found.source != "counters" or found.reconstructed >= found.operations:
        return
    left = format_count(found.operations - found.reconstructed)
    yield (
        f"STDIO: {left} of {format_counted(found.operations, 'operation')} are in this table alone. DXT does not "
        "trace C streams, and standard output and the files of profilers are not replayed."
    )


def _breakdown(groups: Sequence[GroupTotals], by: str) -> Section:
    """Sizes and steps stay in their order; other groups are sorted by I/O time."""
    shown = sorted(groups, key=lambda group: -group.io_time_s)[:MAX_GROUPS]
    kept = [group for group in groups if group in shown] if by in ("size", "step") else shown
    left = len(groups) - len(kept)
    longest = max((group.io_time_s for group in kept), default=0.0) or 1.0
    return Section(
        title=f"By {by}",
        brief=True,
        columns=(
            Column(head=by, kind=Kind.PATH if by == "file" else Kind.TEXT),
            *("reads", "writes", "bytes", "I/O time, sum"),
            BAR,
        ),
        rows=tuple(
            (
                "none" if by == "step" and str(group.group) == "-1" else str(group.group),
                format_count(group.reads),
                format_count(group.writes),
                format_bytes(group.bytes_read + group.bytes_written),
                seconds(group.io_time_s),
                bar(group.io_time_s / longest, 12),
            )
            for group in kept
        ),
        notes=(f"and {format_count(left)} more with less I/O time: --json and --csv have all",) if left else (),
    )


def _spread(spread: Spread, text: Callable[[float], str]) -> tuple[str, ...]:
    return tuple(or_dash(value, text) for value in (spread.min, spread.median, spread.mean, spread.max))


def _mean_and_max(mean_s: float, max_s: float) -> str:
    return f"mean {seconds(mean_s)}, max {seconds(max_s)}"
