"""The output of `merge --each` and of `summary` of several jobs for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxt_replay.replay.show.cells import mib_s, or_dash, run_time
from dxt_replay.replay.show.section import MAX_GROUPS, Column, Kind, Section, facts
from dxt_replay.traces.units import format_bytes, format_count, format_counted

_JOB = Column(head="job", kind=Kind.PATH)
_COLUMNS = (
    "I/O: share of the run time in which a rank had traced reads or writes in flight. Compute, and what infinitely "
    "fast storage would save (storage limits): shares of the training loop."
)
_PROGRAM = Column(head="program", kind=Kind.PATH, spare=True)


def catalogue_sections(catalogue: Mapping[str, Any]) -> list[Section]:
    """The table of jobs, from the JSON object of `dxt-replay summary` of several captures or logs."""
    jobs = [job for job in catalogue["jobs"] if job["error"] is None]
    failed = {job["name"]: job["error"] for job in catalogue["jobs"] if job["error"] is not None}
    sections = []
    if jobs:
        read, written = (sum(job[name] or 0 for job in jobs) for name in ("bytes_read", "bytes_written"))
        title = f"{format_counted(len(jobs), 'job')} read {format_bytes(read)} and wrote {format_bytes(written)}"
        heads = (_JOB, "ranks", "time", "read", "written", "I/O", "bandwidth", "steps", "compute", "storage limits")
        columns = (heads[0], *(Column(head=str(head), spare=head == "bandwidth") for head in heads[1:]), _PROGRAM)
        rows = tuple(_job_row(job) for job in jobs[:MAX_GROUPS])
        sections.append(Section(title=title, rows=rows, columns=columns, notes=_notes(catalogue, len(jobs))))
    return [*sections, *_failures(failed, "read")]


def _job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        job["name"],
        format_count(job["ranks"]),
        run_time(job["run_time_s"]),
        or_dash(job["bytes_read"], format_bytes),
        or_dash(job["bytes_written"], format_bytes),
        or_dash(job["io_pct"], _percent),
        or_dash(job["bandwidth_mib_s"], mib_s),
        format_count(job["steps"]) if job["steps"] else "-",
        or_dash(job["compute_pct"], _percent),
        or_dash(job["storage_limit_pct"], _percent),
        job["program"] or "-",
    )


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _notes(catalogue: Mapping[str, Any], jobs: int) -> tuple[str, ...]:
    notes = [_COLUMNS]
    if jobs > MAX_GROUPS:
        notes.append(f"{format_count(jobs - MAX_GROUPS)} more: --csv, --parquet and --json have all jobs and columns")
    if catalogue["helpers"]:
        notes.append(f"left out: {format_counted(catalogue['helpers'], 'log')} of helper processes")
    return tuple(notes)


def merged_archive_sections(merged: Mapping[str, Any]) -> list[Section]:
    """The totals and the failures, from the JSON object of `dxt-replay merge --each`."""
    done = [job for job in merged["jobs"] if job["error"] is None]
    failed = {str(job["logs"][0]): job["error"] for job in merged["jobs"] if job["error"] is not None}
    rows = [
        ("captures written", format_count(merged["merged"])),
        ("there already, of the same logs", format_count(merged["present"])),
        ("jobs that failed", format_count(merged["failed"])),
        ("logs that cannot be read", format_count(len(merged["unread"]))),
        ("logs of helper processes, left out", format_count(merged["helpers"])),
        ("operations traced", format_count(sum(job["traced"] for job in done))),
        ("operations from counters", format_count(sum(job["rebuilt"] for job in done))),
    ]
    return [facts(f"Merged into {merged['output']}", rows), *_failures({**failed, **merged["unread"]}, "merged")]


def _failures(failed: Mapping[str, str], done: str) -> Sequence[Section]:
    """Each failure on a line, with the name of its file. `done`: what could not be done to it."""
    if not failed:
        return ()
    lines = tuple((text if name in text else f"{name}: {text}",) for name, text in list(failed.items())[:MAX_GROUPS])
    more = len(failed) - len(lines)
    notes = (f"{format_count(more)} more: --json has all",) if more else ()
    title = f"{format_counted(len(failed), 'job')} could not be {done}"
    return (Section(title=title, rows=lines, prose=True, notes=notes),)
