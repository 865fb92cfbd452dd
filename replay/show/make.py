"""The words of commands that make or check something: merge, record, generate, fit, anonymize, verify, doctor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.section import (
    MAX_GROUPS,
    WARNINGS,
    Column,
    Figure,
    Kind,
    Section,
    facts,
    figures,
    listing,
    prose,
    share,
    table,
)
from dxt_replay.traces.plain import plain
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.export.exported import Exported
    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.replay.anonymize import Anonymized
    from dxt_replay.replay.commands.looking import Report
    from dxt_replay.replay.commands.making import GeneratedCapture, Recorded
    from dxt_replay.replay.commands.sharing import FittedWorkload
    from dxt_replay.replay.doctor import Diagnosis
    from dxt_replay.replay.jobs import JobSummaries, MergedJobs
    from dxt_replay.replay.verify import Verified, VerifiedPlace
    from dxt_replay.traces.schema import RankClock
    from dxt_replay.workloads.source import ListedWorkload

# --------------------------------------------------------------------------------------------------------------- merge

_WHOLE = 0.99995
"""Least coverage that prints as 100.00 %."""

MERGED = figures("""
    capture | {capture} | path of the capture that was written
    ranks | {ranks} | how many ranks the capture has
    operations traced | {operations.traced} | reads and writes of the trace
    operations from counters | {operations.reconstructed} | operations rebuilt from counters
    files | {files} | files that are named in the capture
    spans | {spans} | steps, compute, input waits, collectives and checkpoints
    trace coverage, bytes | {coverage.bytes:share} | traced share of the counted bytes
    trace coverage, operations | {coverage.operations:share} | traced share of the counted operations
""")
CLOCKS = figures("""
    rank | {ranks}
    process | {process}
    method | {method}
    offset | {offset_ns}
    known within | {interval_ns}
""")


def merge_sections(merged: MergeResult) -> list[Section]:
    shown = MERGED
    if nothing_recorded(merged.info.coverage.unseen):
        shown = tuple(each for each in MERGED if each.label in ("capture", "ranks", "spans"))
    return [
        table(_merged(merged), shown, merged.as_json()),
        *([_clocks(merged)] if merged.operations else []),
        prose(WARNINGS, merged.info.warnings),
    ]


def _merged(merged: MergeResult) -> str:
    """The number of ranks and operations, the trace coverage and the error of the clocks, in one sentence."""
    coverage = merged.info.coverage
    ranks = format_counted(len(merged.info.ranks), "rank")
    if nothing_recorded(coverage.unseen):
        return f"Merged the steps of {ranks}: no I/O was recorded"
    if not merged.operations:
        totals = "; ".join(
            f"{name} {format_count(found['reads'])} reads of {format_bytes(found['bytes_read'])} and "
            f"{format_count(found['writes'])} writes of {format_bytes(found['bytes_written'])}"
            for name, found in merged.counted.items()
        )
        counters = f"it holds Darshan's counters alone ({totals or 'all of them 0'})"
        return f"Merged {ranks}, but no DXT in this log: {counters}"
    said = [f"Merged {ranks}, {format_counted(merged.operations, 'operation')}"]
    known = [share for share in coverage.traceable if share is not None]
    if not known or (coverage.unseen and coverage.traceable[0] is None):
        traced = merged.recorded_by != "darshan"
        why = "a trace has no counters to be held against" if traced else "the log has no counters"
        why = "some I/O is in no trace" if coverage.unseen else why
        said.append(f"trace coverage unknown, as {why}")
    elif min(known) >= _WHOLE:
        whole = [each for each in (coverage.bytes, coverage.operations) if each is not None]
        streams = ", the rest went through C streams, which DXT does not trace" if min(whole) < _WHOLE else ""
        half = " of the operations (of the bytes it is not known)" if coverage.traceable[0] is None else ""
        said.append(f"trace coverage {share(min(whole)) if streams else '100 %'}{half}{streams}")
    else:
        said.append(f"but the trace is partial: coverage {share(min(known))}")
    if merged.spans and merged.info.clock:
        widest = max((each for each in merged.info.clock), key=_width)
        said.append(f"clocks known within {format_duration(_width(widest))}")
    return ", ".join(said)


def _clocks(merged: MergeResult) -> Section:
    """Alignment of each rank's clock; equal ranks share a row."""
    groups: dict[tuple[str, int, int], list[RankClock]] = {}
    for found in merged.info.clock:
        groups.setdefault((found.method, found.offset_ns, _width(found)), []).append(found)
    workers = any(found.worker for found in merged.info.clock)
    rows = []
    for (method, offset_ns, width_ns), members in groups.items():
        numbers = {found.worker for found in members}
        own, of = [*(["its own"] if 0 in numbers else [])], sorted(numbers - {0})
        named = [f"{'worker' if len(of) == 1 else 'workers'} {_ranges(of)}"] if of else []
        ranks = _ranges(found.rank for found in members)
        row = {"ranks": ranks, "method": method, "offset_ns": offset_ns, "interval_ns": width_ns}
        rows.append(row | ({"process": ", ".join([*own, *named])} if workers else {}))
    note = "There is no profile to align with: the offsets only matter between these processes."
    return listing("Clocks", CLOCKS, rows, notes=[note] * (not merged.spans))


def _width(clock: RankClock) -> int:
    low, high = clock.interval_ns
    return high - low


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as 0-3, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    return listed(shown, MAX_GROUPS)


RECORDED = figures("""
    tracer | {tracer.name} {tracer.version:-} | name of the tracer
    found in | {tracer.program} ({tracer.found_in}) | path of the tracer
    exit status of the job | {exit_status} | the job's, 128 + N if signal N ended it
    logs | {logs} in {folder} | number of the tracer's files
    profiles | {profiles} | folders whose profiles were merged
""")


def record_sections(recorded: Recorded) -> list[Section]:
    note = recorded.job.tracer.note
    return [
        table("Recorded", RECORDED, recorded.as_json()),
        *([prose("What this tracer costs and loses", [note])] if note else []),
        *(merge_sections(recorded.merged) if recorded.merged is not None else []),
    ]


# ----------------------------------------------------------------------------------------------------------- many jobs

JOBS = figures("""
    job | {name}
    ranks | {ranks}
    time | {run_time_s:?}
    read | {bytes_read}
    written | {bytes_written}
    I/O | {io_pct}
    ~bandwidth | {bandwidth_mib_s}
    steps | {steps:+}
    compute | {compute_pct}
    storage limits | {storage_limit_pct}
    ~program | {program}
""")
MERGED_JOBS = figures("""
    captures written | {merged} | jobs that were merged
    there already, of the same logs | {present} | jobs that had a capture of the same logs already
    jobs that failed | {failed} | jobs that could not be merged
    logs of helper processes, left out | {helpers} | logs of processes that did no I/O of their own
    operations traced | {traced}
    operations from counters | {rebuilt}
""")


def job_sections(summaries: JobSummaries) -> list[Section]:
    jobs = [plain(job) for job in summaries.jobs if job.error is None]
    failed = {job.name: job.error for job in summaries.jobs if job.error is not None}
    sections = []
    if jobs:
        read, written = (sum(job[name] or 0 for job in jobs) for name in ("bytes_read", "bytes_written"))
        title = f"{format_counted(len(jobs), 'job')} read {format_bytes(read)} and wrote {format_bytes(written)}"
        notes = [
            "I/O: share of the run time in which a rank had traced reads or writes in flight. Compute, and what "
            "infinitely fast storage would save (storage limits): shares of the training loop."
        ]
        if summaries.helpers:
            notes.append(f"left out: {format_counted(summaries.helpers, 'log')} of helper processes")
        sections.append(listing(title, JOBS, jobs, notes=notes))
    return [*sections, *_failures(failed, "read")]


def merged_job_sections(merged: MergedJobs) -> list[Section]:
    done = [job for job in merged.jobs if job.error is None]
    found = {**merged.counts, "helpers": merged.helpers}
    found |= {name: sum(getattr(job, name) for job in done) for name in ("traced", "rebuilt")}
    failed = {str(job.logs[0]): job.error for job in merged.jobs if job.error is not None}
    return [table(f"Merged into {merged.output}", MERGED_JOBS, found), *_failures(failed, "merged")]


def _failures(failed: Mapping[str, str], done: str) -> Sequence[Section]:
    """A line for each failure, with the name of its file. `failed`: name -> reason; `done`: "read" or "merged"."""
    if not failed:
        return ()
    lines = [text if name in text else f"{name}: {text}" for name, text in list(failed.items())[:MAX_GROUPS]]
    more = len(failed) - len(lines)
    left = [f"{format_count(more)} more: --json has all"] if more else []
    return (prose(f"{format_counted(len(failed), 'job')} could not be {done}", [*lines, *left]),)


# ------------------------------------------------------------------------------------------------------- descriptions

GENERATED = figures("""
    capture | {capture} | path of the capture
    workload | {workload} | name or file of the description
    steps of a rank | {steps} | training steps of each rank
    files | {files} | number of files
    operations | {operations} | number of operations of all ranks
    bytes read | {bytes_read} | bytes read by all ranks
    bytes written | {bytes_written} | bytes written by all ranks
    time on the assumed device | {elapsed_s} | duration of the run on the assumed device
""")
_NOTES = {
    "read as": "Read otherwise than it is written",
    "without effect": "Without effect",
    "unknown": "Unknown keys",
    "not expressed": "Not expressed by the capture",
}
"""Kind of a note -> title of its lines."""
WORKLOADS = figures("""
    name | {name}
    reads | {reads}
    files | {files}
    data set | {bytes}
    ~batch | {batch_size}
    compute of a step | {compute}
    MB/s of a rank | {needs}
""")


def generate_sections(made: GeneratedCapture) -> list[Section]:
    """The tables of `dxt-replay generate`: what was made, and what of the description it left out."""
    found, generated = made.as_json(), made.generated
    ranks, operations = format_counted(generated.ranks, "rank"), format_counted(generated.operations, "operation")
    notes = [
        prose(title, [f"{note.key} {note.value}: {note.why}" for note in made.notes if note.kind == kind])
        for kind, title in _NOTES.items()
    ]
    others = [note.key for note in made.notes if note.kind == "not I/O"]
    return [
        table(f"Generated {ranks}, {operations}", GENERATED, found),
        *notes,
        prose("Keys that change no request", [", ".join(others)] if others else []),
        prose(WARNINGS, generated.warnings),
    ]


def listing_section(workloads: Sequence[ListedWorkload]) -> Section:
    rows: list[dict[str, Any]] = []
    for each in workloads:
        row: dict[str, Any] = {"name": each.name, "reads": each.format.replace("_", " ") or "checkpoints"}
        if each.batch_size:
            row |= {"files": each.files, "bytes": each.bytes, "batch_size": each.batch_size}
            row["compute"] = f"{each.compute_s:g} s"
        if (needs := each.needs_bytes_per_s) is not None:
            row["needs"] = f"{needs / 1e6:,.{0 if needs >= 1e7 else 2}f}"
        rows.append(row)
    notes = (
        "MB/s of a rank: batch * record length / compute, what an accelerator reads that never waits (10^6 bytes).",
        "The first lines of a workload's file say what it is and where it is from; --json has them as title.",
    )
    made = listing("Shipped workloads", WORKLOADS, rows, notes=notes)
    # A name that is shortened could not be typed.
    return Section(title=made.title, columns=(Column(head="name"), *made.columns[1:]), rows=made.rows, notes=made.notes)


def fit_sections(fitted: FittedWorkload) -> list[Section]:
    """How near the description is, its keys, and notes. The evidence of each key stands in the file."""
    keys = ((key, value if isinstance(value, str) else json.dumps(value)) for key, (value, _) in fitted.keys.items())
    return [
        prose("", [fitted.closeness]),
        facts("Description", keys),
        prose("Notes", fitted.notes),
        prose("", [f"Wrote {fitted.output}"]),
    ]


def report_sections(made: Report) -> list[Section]:
    return [prose("", [f"{made.path}: {format_bytes(made.bytes)}, open it in a browser"])]


def export_sections(made: Exported) -> list[Section]:
    size = format_bytes(sum(file.bytes for file in made.files))
    files, operations = format_counted(len(made.files), "file"), format_counted(made.operations, "operation")
    return [prose("", [f"Wrote {operations} as {made.format} to {made.output}: {files}, {size}", *made.notes])]


ANONYMIZED = figures("""
    operations, unchanged | {operations} | its operations, those of the original
    files | {files} | its files
    spans | {spans} | its spans
    parts of paths replaced | {replaced_parts} | distinct parts of paths and dataset names that were replaced
    names of spans replaced | {replaced_spans} | distinct names of spans that were replaced
    key
""")


def anonymized_sections(anonymized: Anonymized) -> list[Section]:
    kept = "the given one; a person who has it can test guesses of names"
    key = "random, not kept" if anonymized.random_key else kept
    title = f"Wrote {anonymized.path}: it keeps the sizes, times and known extensions of the job"
    return [table(title, ANONYMIZED, anonymized.as_json(), {"key": key})]


# --------------------------------------------------------------------------------------------------------------- checks

MOST = 20
"""Differences of each place that are listed; --json has all that were kept."""

CHECKED = figures("""
    of | {path}
    part | {part}
    checked | {units}
    read | {bytes:+}
    different | {different}
    note | {note}
""")
DIFFERENCES = figures("""
    file | {file}
    what | {place}
    expected | {expected}
    found | {found}
""")


def verified_sections(verified: Verified) -> list[Section]:
    """The tables of `dxt-replay verify`: a verdict, what was checked, and what differs."""
    places = verified.places
    different = sum(place.different for place in places)
    verdict = f"failed: {format_counted(different, 'difference')}" if different else "passed: nothing differs"
    rows = [
        {**plain(part), "path": str(place.path), "units": format_counted(part.checked, part.unit)}
        for place in places
        for part in place.parts
    ]
    return [listing(verdict, CHECKED, rows), *(_differences(place) for place in places if place.different)]


def _differences(place: VerifiedPlace) -> Section:
    shown = [each for part in place.parts for each in part.differences][:MOST]
    rows = [
        {**plain(each), "place": each.what if each.offset is None else f"{each.what} from {each.offset}"}
        for each in shown
    ]
    left = place.different - len(shown)
    notes = [f"and {format_counted(left, 'more difference')}"] if left else []
    return listing(f"What differs in {place.path}", DIFFERENCES, rows, notes=notes)


def doctor_sections(diagnosis: Diagnosis) -> list[Section]:
    """The verdict with what to do, and a table of the checks of each part."""
    checks = [check for part in diagnosis.parts for check in part.checks]
    states = [check.state.value for check in checks]
    failed, warnings = states.count("failed"), states.count("warning")
    verdict = f"failed: {format_counted(failed, 'check')} found something broken" if failed else "passed"
    doubts = f"{format_counted(warnings, 'warning')}" if warnings else "nothing to change"
    wrong = [check for check in checks if check.state.value in ("failed", "warning")]
    remedies = [f"{check.name}: {check.found}; {check.remedy}" for check in wrong]
    columns = tuple(Column(kind=Kind.TEXT) for _ in range(3))
    parts = [
        Section(
            title=part.name,
            columns=columns,
            rows=tuple(
                (each.name, each.state.value, f"{each.found}; {each.remedy}" if each.remedy else each.found)
                for each in part.checks
            ),
            brief=(),
        )
        for part in diagnosis.parts
    ]
    return [prose(verdict, [doubts, *remedies]), *parts]


FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "merge": MERGED,
    "record": RECORDED,
    "generate": GENERATED,
    "anonymize": ANONYMIZED,
}
"""Schema -> the figures of its object."""
