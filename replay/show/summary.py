"""The words of `dxt-replay summary`: what ran and what storage cost it, the figures, findings, and the causal model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dxt_replay.profiler_merge.analysis.finding import LEAST_UTILISATION_PCT, MATERIAL_PCT, SERIOUS_PCT
from dxt_replay.replay.show.section import (
    MAX_GROUPS,
    WARNINGS,
    Figure,
    Section,
    figures,
    listing,
    mib_s,
    of_generated,
    or_dash,
    percent,
    prose,
    seconds,
    table,
    values_of,
)
from dxt_replay.traces.layers import OBJECT_STORES, called
from dxt_replay.traces.plain import plain
from dxt_replay.traces.storage_limit import UNKNOWN, Doubt, HiddenWaitError, Limit, NoStorageLimitError, StorageLimit
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration, format_signed
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.interfaces import InterfaceTotals
    from dxt_replay.profiler_merge.analysis.queries import GroupTotals
    from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
    from dxt_replay.profiler_merge.analysis.summary import Summary

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
_PAST_TRACE = {
    "mapped": "through a mapping",
    "socket": "received on sockets",
    "objects": "moved by calls of an object store",
    "process": "read by processes without a log, or past it",
}
_SOURCES = {"counters": "Darshan's counters", "operations": "the traced operations"}

# ------------------------------------------------------------------------------------------------ what each figure is

JOB = figures("""
    command | {job.exe} | command line of the job
    ranks | {job.nprocs} | processes of the job
    run time of the job | {job.run_time_s:?} | from the start of the program to its end, by its recorder
    *I/O
    trace coverage, bytes | {coverage.bytes:share} | traced share of the counted bytes
    trace coverage, operations | {coverage.operations:share} | traced share of the counted operations
    not recorded
    *not traced
    *complete
""")
TRAINING = figures("""
    *steps | {steps.count:+}, mean {steps.mean_s:-} | training steps of the rank with the most
    extended steps | {steps.extended:+}: inferred, see the warnings | steps outside of the profile
    *evaluations | {loop.evaluations:+}, {loop.evaluation_s} | evaluations of the rank with the most
    *accelerator utilisation | {loop.benchmark_utilisation_pct} by DLIO's rule, without the first steps of each epoch
    compute | {loop.compute_pct} of the training | time in compute
    GPU had work left | at the end of {loop.gpu_behind_steps} steps | steps at whose end a GPU had work left
    GPU busy | {loop.gpu_busy_pct} of {loop.gpu_profile_s} | time in which something ran on a GPU, of its profile
    first step, longer than usual by | {loop.warm_up_s:+} | excess of the first step, if it is a warm-up
    steady loop | {loop.loop_s}: without that excess and evaluations | the training without warm-up and evaluations
    input wait | {loop.input_wait_pct} of the steady loop | time in which the training waits for a batch
    compute, whole training | {compute.busy_s_per_rank_mean:+} | time in compute, mean of the ranks
    input wait, whole training | {compute.input_wait_s_per_rank_mean:+} | time without a batch, mean of the ranks
    I/O time inside compute | {compute.io_hidden_pct} | share of the I/O time, overlaps counted once
""")
IO = figures("""
    *reads | {operations.read}, {bytes.read} in all | traced reads
    *writes | {operations.write}, {bytes.written} in all | traced writes
    other operations | {operations.other:+} | traced opens, closes, stats, syncs and seeks
    rebuilt from counters, in no other line
    files | {files} | files that were read or written
    I/O time of a rank, overlaps once | mean {io_time_s.union_per_rank_mean}, max {io_time_s.union_per_rank_max}
    I/O time of a rank, all added | mean {io_time_s.sum_per_rank_mean}, max {io_time_s.sum_per_rank_max}
    I/O in flight on any rank | {in_flight_s} | time in which any rank had a read or write in flight
    *bandwidth while I/O is in flight | {aggregate_bandwidth_mib_s:-} | bytes moved by that time
    transfer size | {transfer_size_bytes.min} to {transfer_size_bytes.max}, median {transfer_size_bytes.median}
    bandwidth of one operation | median {bandwidth_per_op_mib_s.median}, mean {bandwidth_per_op_mib_s.mean}
    sequential | {sequential_pct} | accesses at a higher offset than the previous one
    consecutive | {consecutive_pct} | accesses that begin at the byte after the previous one
    too short to measure | {unmeasured_operations:+} operations | operations with a recorded duration of 0
""")
INTERFACES = figures("""
    interface | {interface}
    reads | {reads}
    writes | {writes}
    bytes | {bytes:?}
    from | {source}
    time of all ranks | {all_s}
    slowest rank | {slowest}
""")
GROUPS = figures("""
    group | {group}
    reads | {reads}
    writes | {writes}
    bytes | {bytes}
    I/O time, all added | {io_time_s}
""")
FIGURES = (*JOB, *TRAINING, *IO)


# ---------------------------------------------------------------------------------------------------------- the answer


def summary_sections(summary: Summary, limit: Limit | None = None) -> list[Section]:
    """The tables of `dxt-replay summary`. `limit`: of the training; None if it was not requested."""
    found, traced = summary.as_json(), has_trace(summary)
    sections = [prose("", headline(summary, limit)), _job(summary, found), _training(summary, found)]
    if io_recorded(summary) and traced:
        sections += [_io(summary, found), _per_operation(summary)]
    # Totals by counters alone stand in no first line unless they were rebuilt.
    sections.append(replace(_interfaces(summary), brief=not traced and not summary.reconstructed.pct))
    if summary.groups is not None:
        sections.append(_breakdown(summary.groups, summary.by or ""))
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
    cost, rest = storage_cost(summary, limit), rests_on_counters(summary)
    job, steps = summary.job, summary.steps.count
    ran = f"Training of {format_counted(steps, 'step')}" if steps else "A run"
    took = (
        "how long the job took is not known"
        if job.run_time_s is None
        else f"the whole job took {seconds(job.run_time_s)}"
    )
    ran = f"{ran} on {format_counted(job.nprocs, 'rank')}; {took}."
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
    return [*_gain(summary, limit), *_waits(summary, limit)]


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
    shares = {what: worst[name] / all_s for name, what in _TIMES.items() if (worst[name] or 0.0) > 0.0005 * all_s}
    if shares:
        parts = ", ".join(f"{100 * part:.1f} % in {what}" for what, part in shares.items())
        yield f"Of that time of all ranks, {parts}."
    yield "No DXT trace: whether the program waited for this I/O is not known."


def _gain(summary: Summary, limit: Limit | None) -> Iterable[str]:
    loop, run_s = summary.loop, summary.job.run_time_s
    if loop is not None:
        doubted = [] if limit is None else limit.doubt.sentences
        yield from doubted
        if isinstance(limit, StorageLimit):
            yield limit_text(limit, with_compute=not loop.compute_at_most)
        elif not isinstance(limit, HiddenWaitError):  # which has a bound of its own
            # A bound beside "not known" is no verdict.
            yield _gain_text(loop.storage_gain_s, loop.storage_gain_pct, "steady loop", judged=not doubted)
            if limit is not None and not doubted:
                yield f"This is an upper bound: {limit}."
        waited_s = loop.recording_wait_s or 0.0
        if 100 * waited_s >= LONG_WAIT_PCT * loop.loop_s:
            yield (
                f"Besides, training waited {seconds(waited_s)} while Darshan wrote the logs of worker processes that "
                "had ended: a cost of the recording, which all figures leave out."
            )
        if loop.input_wait_pct >= LONG_WAIT_PCT and isinstance(limit, StorageLimit) and limit.limit_pct < MATERIAL_PCT:
            if limit.prepared:
                yield "Training waits for input to be prepared."
            elif not doubted:
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
        return f"{found}; compute takes {used:.1f} % of it." if used is not None else f"{found}."
    found = f"Storage limits this training by {pct:.1f} %: with infinitely fast storage it would take "
    found += f"{format_duration(limit.recorded_ns - limit.saved_ns)} instead of {now}"
    computes = "" if used is None else f", and compute {then:.1f} % of it instead of {used:.1f} %"
    return f"{found}{computes}."


def _gain_text(gain_s: float, pct: float, of: str, *, judged: bool = True) -> str:
    verdict = "limits" if pct >= SERIOUS_PCT else "slows" if pct >= MATERIAL_PCT else "does not limit"
    saved = f"at most {seconds(gain_s)}, {pct:.1f} % of the {of}" if gain_s else "nothing"
    return f"Infinitely fast storage would save {saved}{f': storage {verdict} this run' if judged else ''}."


def _waits(summary: Summary, limit: Limit | None = None) -> Iterable[str]:
    """The wait for input, and the compute unless the sentence on the storage limit has it."""
    loop = summary.loop
    if loop is None:
        return
    told = isinstance(limit, StorageLimit) and limit.utilisation_pct is not None and not loop.compute_at_most
    computes = "" if loop.compute_pct is None or told else f" and {_computes(loop)}"
    if summary.compute.input_wait_s_per_rank_mean:
        yield f"Training waits for input {loop.input_wait_pct:.1f} % of the steady loop{computes}."
    else:
        yield f"No waits for input are shown, so how long training waits is not known{computes}."


# --------------------------------------------------------------------------------------------------------- the figures


def _job(summary: Summary, found: Mapping[str, Any]) -> Section:
    if not io_recorded(summary):
        return table("Job", JOB[:4], found, {"I/O": "not recorded"})
    said: dict[str, str | None] = {}
    if summary.recorded_by == "darshan":
        said["not recorded"] = "files below /etc, /usr, /opt, /var and other folders of the system, unless included"
    if summary.coverage.unseen:
        said["not traced"] = "; ".join(
            f"{_PAST_TRACE[each.kind]}, {'how much is not known' if each.bytes is None else format_bytes(each.bytes)}"
            f"{' at least' if each.bytes else ''}: {each.name}"
            for each in summary.coverage.unseen
        )
    if summary.partial:
        said["complete"] = "no: the capture is partial"
    made = table("Job", JOB, found, said)
    # The first lines tell what was not traced where it leaves the cost of storage unknown.
    return replace(made, brief=("complete",)) if summary.not_judged else made


def _computes(loop: SteadyLoop) -> str:
    on_gpu = loop.compute_at_most or loop.gpu_busy_pct is not None
    at_most = "at most " * loop.compute_at_most
    return f"{'its accelerator is busy' if on_gpu else 'it computes'} {at_most}{loop.compute_pct:.1f} % of the training"


def _training(summary: Summary, found: Mapping[str, Any]) -> Section:
    loop, said = summary.loop, dict[str, str | None]()
    if loop is not None and loop.compute_at_most and loop.compute_pct is not None:
        gaps = "with the gaps between the kernels of a step"
        said["compute"] = f"at most {loop.compute_pct:.1f} % of the training, {gaps}"
    if loop is not None and not summary.compute.input_wait_s_per_rank_mean:
        said["input wait"] = "not known: none is shown"
    elif loop is not None and loop.input_wait_s and io_recorded(summary):
        in_wait = loop.io_in_wait_pct
        busy = "I/O in it: not known" if in_wait is None else f"I/O in {in_wait:.1f} % of it"
        said["input wait"] = f"{loop.input_wait_pct:.1f} % of the steady loop ({busy})"
    return table("Training", TRAINING, found, said)


def _io(summary: Summary, found: Mapping[str, Any]) -> Section:
    rebuilt, said = summary.reconstructed, dict[str, str | None]()
    if count := rebuilt.read + rebuilt.write + rebuilt.other:
        size = format_bytes(rebuilt.bytes_read + rebuilt.bytes_written)
        said["rebuilt from counters, in no other line"] = f"{format_counted(count, 'operation')}, {size}"
    if summary.sequential_pct is not None:
        source = _SOURCES[summary.access_pattern_source]
        said["sequential"] = f"{percent(summary.sequential_pct)} (from {source})"
    return table("I/O", IO, found, said)


def _per_operation(summary: Summary) -> Section:
    spreads = (summary.transfer_size_bytes, format_bytes), (summary.bandwidth_per_op_mib_s, mib_s)
    cells = [[or_dash(value, text) for value in astuple(spread)] for spread, text in spreads]
    rows = (("transfer size", *cells[0]), ("bandwidth", *cells[1]))
    return Section(title="Per operation", columns=("", "min", "median", "mean", "max"), rows=rows)


def _counted(interfaces: Mapping[str, InterfaceTotals], quantity: str) -> int:
    return sum(getattr(found, quantity) for found in interfaces.values() if found.source == "counters")


def _interfaces(summary: Summary) -> Section:
    interfaces, notes = summary.interfaces, []
    if "POSIX" in interfaces and any(name in interfaces for name in ("MPIIO", "HDF5", "PNETCDF")):
        notes.append("HDF5, PnetCDF and MPI-IO requests are carried out as POSIX requests: the rows do not add up.")
    if any(name in interfaces for name in OBJECT_STORES):
        notes.append(
            "DFS keeps files in DAOS objects, and other interfaces can lead to either: the rows do not add up."
        )
    streams = interfaces.get("STDIO")
    if streams is not None and streams.source == "counters" and streams.reconstructed < streams.operations:
        left = format_count(streams.operations - streams.reconstructed)
        notes.append(
            f"STDIO: {left} of {format_counted(streams.operations, 'operation')} are in this table alone. DXT does not "
            "trace C streams, and standard output and the files of profilers are not replayed."
        )
    rows = []
    for name, each in interfaces.items():
        counted = summary.counted_times.get(name, {})
        known = [counted[part] for part in _TIMES if counted.get(part) is not None]
        row = {"interface": name, "source": _SOURCES[each.source], "bytes": each.bytes}
        if known:
            which = "" if counted["slowest_rank"] is None else f", rank {counted['slowest_rank']}"
            slowest = "not known" if counted["slowest_s"] is None else f"{seconds(counted['slowest_s'])}{which}"
            row |= {"all_s": sum(known), "slowest": slowest if summary.job.nprocs > 1 else None}
        rows.append(plain(each) | row)
    return listing("Interfaces", INTERFACES, rows, notes=notes)


def _breakdown(groups: Sequence[GroupTotals], by: str) -> Section:
    """Sizes and steps stay in their order; other groups are sorted by I/O time."""
    shown = sorted(groups, key=lambda group: -group.io_time_s)[:MAX_GROUPS]
    kept = [group for group in groups if group in shown] if by in ("size", "step") else shown
    left = len(groups) - len(kept)
    rows = [
        plain(each)
        | {"bytes": each.bytes_read + each.bytes_written}
        | {"group": "none" if by == "step" and str(each.group) == "-1" else str(each.group)}
        for each in kept
    ]
    named = (Figure(by, "{group}"), *GROUPS[1:])
    notes = (f"and {format_count(left)} more with less I/O time: --json, or -o FILE.csv, has all",) if left else ()
    return listing(f"By {by}", named, rows, bar_of=lambda row: float(row["io_time_s"]), notes=notes, brief=True)


# -------------------------------------------------------------------------------------------------------- the findings

NOTHING = "Nothing stands out: no finding has 1 % of the run or more at stake."
SHOWN_FILES, MOST_BRIEF = 3, 4
"""Files of a finding, and findings of a block without --details."""
_EFFORT = ("input-bound", "no-overlap", "one-reader", "small-reads", "small-writes", "metadata-time")
"""Codes of findings whose remedy is an argument of the program's input, the least work first; others change files."""
_APART = ("warm-up", "checkpoint-blocking")
"""Codes of findings whose time no other remedy gains."""


def finding_blocks(found: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """The findings by what is at stake, each block with its sentence, the most first; remedies by their effort.

    Times of one block are not added: they are the same waits, for which there are several remedies.
    """
    blocks: dict[str, list[Finding]] = {}
    for each in found:
        known = each.at_stake_s is not None
        blocks.setdefault(each.code if each.code in _APART else each.at_stake_of if known else "", []).append(each)
    said = []
    for members in blocks.values():
        most = max(members, key=lambda each: each.at_stake_s or 0.0)
        if most.at_stake_s is None:
            said.append((0.0, f"{format_counted(len(members), 'finding')} of unknown cost", members))
            continue
        share = "" if most.at_stake_pct is None else f", {most.at_stake_pct:.1f} % of the {most.at_stake_of},"
        ways = "" if len(members) == 1 else f": {len(members)} ways to get it, the least work first"
        members.sort(key=lambda each: _EFFORT.index(each.code) if each.code in _EFFORT else len(_EFFORT))
        said.append((most.at_stake_s, f"At most {seconds(most.at_stake_s)}{share} at stake{ways}", members))
    return [(text, members) for _, text, members in sorted(said, key=lambda each: -each[0])]


def stake_text(finding: Finding) -> str:
    if finding.at_stake_s is None:
        return ""
    share = "" if finding.at_stake_pct is None else f", {finding.at_stake_pct:.1f} % of the {finding.at_stake_of}"
    return f"at most {seconds(finding.at_stake_s)}{share}"


def finding_sections(found: Sequence[Finding], summary: Summary) -> list[Section]:
    """A section for each block, with the remedies; --details adds evidence, thresholds and files."""
    if not found:
        why, loop = summary.not_judged, summary.loop is not None
        unknown = f"Storage was not judged: {why}." if loop else f"Nothing was judged: no training steps, and {why}."
        said = [*([unknown] if why else []), *([NOTHING] if loop or not why else [])]
        return [prose("Findings", [" ".join(said)])]
    sections, blocks = [], finding_blocks(found)
    if len(blocks) > 1:
        counted = f"{format_counted(len(found), 'finding')}. Those under one heading are ways to save the same time."
        sections.append(prose("", [counted]))
    for text, members in blocks:
        most_s = max(each.at_stake_s or 0.0 for each in members)
        lines = []
        for each in members[:MOST_BRIEF]:
            less = "" if each.at_stake_s in (None, most_s) else f" (at most {seconds(each.at_stake_s)} of it)"
            first_sentence = re.match(r".*?[.:](?= [A-Z]|$)|.*", each.remedy)[0].rstrip(".:")  # type: ignore[index]
            lines.append(f"{each.severity}: {each.title}{less}. {first_sentence}.")
        if len(members) > MOST_BRIEF:
            lines.append(f"and {format_counted(len(members) - MOST_BRIEF, 'more finding')}")
        sections.append(prose(text, lines, brief=True))
    for each in found:
        lines = [each.evidence, each.remedy, f"Reported because: {each.threshold}.", *each.files[:SHOWN_FILES]]
        sections.append(Section(title=each.title, rows=tuple((line,) for line in lines), prose=True, brief=()))
    return sections


# ---------------------------------------------------------------------------------------------------- the storage limit

_TITLES = {
    "speed": "Training time by the speed of storage",
    "bandwidth": "Training time by bandwidth, at the recorded latency",
    "latency": "Training time by latency, at the recorded bandwidth",
}
POINTS = figures("""
    speed | {speed}
    training | {elapsed_ns}
    above the fastest | {above_fastest_pct}
    utilisation | {utilisation_pct}
""")


def limit_sections(limit: Limit | None) -> list[Section]:
    """The curves, and the speed above which faster storage gains little; without curves, the reason.

    `limit`: None for a capture without a training that waits.
    """
    if limit is None or isinstance(limit, NoStorageLimitError):
        reason = limit or "the capture shows no training that waits"
        return [prose("", Doubt(state=UNKNOWN, reason=str(reason)).sentences)]
    sections = [prose("", [*limit.doubt.sentences, limit_text(limit), *enough_texts(limit.enough)])]
    for quantity, found in groupby(limit.points, key=lambda point: point.quantity):
        rows = [
            plain(point)
            # At the recorded speed the training takes as long as everywhere else, not as long as its model.
            | {"elapsed_ns": point.elapsed_ns + limit.recorded_ns - limit.model_ns}
            | {"speed": "infinite" if point.multiple is None else f"{point.multiple:g} x"}
            for point in found
        ]
        sections.append(listing(_TITLES[quantity], POINTS, rows, bar_of=lambda row: float(row["elapsed_ns"])))
    note = (
        "Speeds are multiples of the recorded one: at 2 each operation takes half as long. Compute and decoding keep "
        "their recorded times."
    )
    return [*sections, prose("", [note])]


def enough_texts(enough: Mapping[str, float | None]) -> Iterator[str]:
    """A sentence for each quantity: the speed above which faster storage gains little. `enough`: see `StorageLimit`."""
    for quantity, multiple in enough.items():
        what = {"speed": "storage", "bandwidth": "its bandwidth alone", "latency": "its latency alone"}[quantity]
        if multiple is None:
            yield f"Even at 64 times the recorded speed, {what} costs more than 2 %."
        elif multiple <= 0.25:
            yield f"At a quarter of the recorded speed, {what} still costs at most 2 %."
        else:
            yield f"From {multiple:.2g} times the recorded speed on, {what} costs at most 2 %."


# ----------------------------------------------------------------------------------------------------- the causal model

MODEL = figures("""
    part of the model | {name}
    value | {value}
""")


def model_sections(explained: Mapping[str, Any]) -> list[Section]:
    """A model, from its JSON object: how well it predicts, and its values by their keys, with units."""
    if parts := explained["held_out"]:
        errors = [format_signed(choose(part["error_pct"] for part in parts), 1) for choose in (min, max)]
        predicts = f"The model predicts each quarter of the steps from the others: {' to '.join(errors)} % off."
    else:
        predicts = "How well the model predicts this run is not known: it has too few steps or reads."
    found = explained["ranks"]
    rules = dict.fromkeys(f"Which reads feed which step: {model['feed_rule']}" for model in found.values())
    rows = [
        {"name": f"rank {rank}: {key.replace('.', ', ')}", "value": text}
        for rank, model in found.items()
        for key, text in values_of(model)
        if key != "feed_rule"
    ]
    rows += [{"name": f"collectives: {key}", "value": text} for key, text in values_of(explained["meetings"])]
    return [
        prose("", [*Doubt(**explained["doubt"]).sentences, predicts, *rules]),
        listing("Causal model", MODEL, rows),
        prose(WARNINGS, explained["warnings"]),
    ]
