"""Prints the results of `merge --each` and of `summary` of several jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import mib_s, or_dash, run_time
from dxt_replay.replay.show.section import MAX_GROUPS, Column, Kind, Section, facts
from dxt_replay.traces.units import format_bytes, format_count, format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.jobs import JobSummaries, JobSummary, MergedJobs

_JOB = Column(head="job", kind=Kind.PATH)
_COLUMNS = (
    "I/O: share of the run time in which a rank had traced reads or writes in flight. Compute, and what infinitely "
    "fast storage would save (storage limits): shares of the training loop."
)
_PROGRAM = Column(head="program", kind=Kind.PATH, spare=True)
_STATUSES = {
    "merged": "captures written",
    "present": "there already, of the same logs",
    "failed": "jobs that failed",
}
"""Status of a `MergedJob` -> label of the number of jobs that have it."""


def job_sections(summaries: JobSummaries) -> list[Section]:
    """The table of jobs of `dxt-replay summary` of several captures or logs."""
    jobs = [job for job in summaries.jobs if job.error is None]
    failed = {job.name: job.error for job in summaries.jobs if job.error is not None}
    sections = []
    if jobs:
        read, written = (sum(getattr(job, name) or 0 for job in jobs) for name in ("bytes_read", "bytes_written"))
        title = f"{format_counted(len(jobs), 'job')} read {format_bytes(read)} and wrote {format_bytes(written)}"
        heads = (_JOB, "ranks", "time", "read", "written", "I/O", "bandwidth", "steps", "compute", "storage limits")
        columns = (heads[0], *(Column(head=str(head), spare=head == "bandwidth") for head in heads[1:]), _PROGRAM)
        rows = tuple(_job_row(job) for job in jobs[:MAX_GROUPS])
        sections.append(Section(title=title, rows=rows, columns=columns, notes=_notes(summaries, len(jobs))))
    return [*sections, *_failures(failed, "read")]


def _job_row(job: JobSummary) -> tuple[str, ...]:
    return (
        job.name,
        or_dash(job.ranks, format_count),
        run_time(job.run_time_s),
        or_dash(job.bytes_read, format_bytes),
        or_dash(job.bytes_written, format_bytes),
        or_dash(job.io_pct, _percent),
        or_dash(job.bandwidth_mib_s, mib_s),
        format_count(job.steps) if job.steps else "-",
        or_dash(job.compute_pct, _percent),
        or_dash(job.storage_limit_pct, _percent),
        job.program or "-",
    )


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _notes(summaries: JobSummaries, jobs: int) -> tuple[str, ...]:
    notes = [_COLUMNS]
    if jobs > MAX_GROUPS:
        notes.append(f"{format_count(jobs - MAX_GROUPS)} more: --csv and --json have all jobs and columns")
    if summaries.helpers:
        notes.append(f"left out: {format_counted(summaries.helpers, 'log')} of helper processes")
    return tuple(notes)


def merged_job_sections(merged: MergedJobs) -> list[Section]:
    """The totals and the failures of `dxt-replay merge --each`."""
    done = [job for job in merged.jobs if job.error is None]
    failed = {job.logs[0]: job.error for job in merged.jobs if job.error is not None}
    rows = [
        *((label, format_count(merged.counts[status])) for status, label in _STATUSES.items()),
        ("logs of helper processes, left out", format_count(merged.helpers)),
        ("operations traced", format_count(sum(job.traced for job in done))),
        ("operations from counters", format_count(sum(job.rebuilt for job in done))),
    ]
    return [
        facts(f"Merged into {merged.output}", rows),
        *_failures({str(log): why for log, why in failed.items()}, "merged"),
    ]


def _failures(failed: Mapping[str, str], done: str) -> Sequence[Section]:
    """A line for each failure, with the name of its file. `failed`: name -> reason; `done`: "read" or "merged"."""
    if not failed:
        return ()
    lines = tuple((text if name in text else f"{name}: {text}",) for name, text in list(failed.items())[:MAX_GROUPS])
    more = len(failed) - len(lines)
    notes = (f"{format_count(more)} more: --json has all",) if more else ()
    title = f"{format_counted(len(failed), 'job')} could not be {done}"
    return (Section(title=title, rows=lines, prose=True, notes=notes),)
