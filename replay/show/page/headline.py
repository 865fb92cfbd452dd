"""The first lines of the HTML page: the program, the cost of storage, and the main figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import or_dash, run_time, seconds
from dxt_replay.replay.show.finding_sections import stake_text
from dxt_replay.replay.show.page.html_tables import html_text
from dxt_replay.replay.show.summary_sections import counted_below, has_trace, rests_on_counters, storage_cost
from dxt_replay.traces.layers import called
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.text import program_of
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.profiler_merge.analysis.summary import Summary
    from dxt_replay.replay.fidelity.compare import Comparison

Tile = tuple[str, str, str]
"""Name, value and note."""

_GRAVEST = 3
"""Findings in the first lines."""


def headline(overview: Overview) -> str:
    """A sentence on the program, the cost of storage, and the gravest findings."""
    judged, reason = verdict(overview)
    return (
        f'<p class="lead">{html_text(what_ran(overview))}</p><p class="verdict">{html_text(judged)}</p>'
        f'<p class="note">{html_text(reason)}</p>{_gravest(overview.findings)}'
    )


def what_ran(overview: Overview) -> str:
    """Program, ranks, steps, files and bytes, and when."""
    info, summary = overview.info, overview.analysis.summary
    record = replay_record(info)
    program = program_of(info.job.exe).rsplit("/", 1)[-1] or "a job"
    words = f"A run of {program}" if record is None else f"A replay of {program} at pace {record.pace}"
    words = f"{summary.generated} {words}" if summary.generated else words
    words += f" on {format_counted(summary.job.nprocs, 'rank')}"
    if summary.job.run_time_s is not None:
        words += f" for {seconds(summary.job.run_time_s)}"
    if summary.steps.count:
        words += f", with {format_counted(summary.steps.count, 'training step')}"
    counted = _counted_bytes(summary)
    if nothing_recorded(summary.coverage.unseen):
        words += ". No I/O was recorded."
    elif counted is None:
        words += (
            f". It read {format_bytes(summary.bytes.read)} and wrote {format_bytes(summary.bytes.written)} "
            f"in {format_counted(summary.files, 'file')}."
        )
    else:
        words += f". By its counters it read {format_bytes(counted[0])} and wrote {format_bytes(counted[1])}."
    return f"{words} It began at {date(info.job.start_ns)}." if info.job.start_ns > 0 else words


def date(start_ns: int) -> str:
    """A day and time in UTC; `-` where it is not known."""
    if start_ns <= 0:
        return "-"
    return datetime.fromtimestamp(start_ns / NS_PER_S, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def verdict(overview: Overview) -> tuple[str, str]:
    """(cost of storage in the words of `dxt-replay summary`, evidence for it)."""
    if not overview.waits_are_real:
        return (
            f"I/O was in flight for {percent(overview.analysis.overlap.io_of_run_pct)} of the run time.",
            (
                "At this pace no operation waits for another: the replay shows how long the storage took, not what "
                "training would wait for."
            ),
        )
    summary = overview.analysis.summary
    cost, *reasons = storage_cost(summary, overview.storage_limit) or ["What storage cost this run is not known."]
    return cost, " ".join([*reasons, *rests_on_counters(summary)])


def _gravest(found: Sequence[Finding]) -> str:
    """The first findings in a line each, with what is at stake."""
    lines = "".join(
        f'<li><span class="mark {escape(each.severity)}">{escape(each.severity)}</span> {html_text(each.title)}'
        f"{html_text(f': {stake}') if (stake := stake_text(each, found[:place])) else ''}</li>"
        for place, each in enumerate(found[:_GRAVEST])
    )
    more = f" ({format_count(len(found) - _GRAVEST)} more)" if len(found) > _GRAVEST else ""
    return f'<p class="counts"><a href="#findings">Findings</a>{more}: {"" if found else "none"}</p>' + (
        f'<ul class="gravest">{lines}</ul>' if found else ""
    )


def tiles(overview: Overview, elapsed_s: float | None = None) -> str:
    """The main figures. `elapsed_s`: from the first operation to the last; None to show the run time of the job. A
    source and its replay are compared by `elapsed_s`."""
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong><span>{escape(note)}</span></dd></div>"
        for name, value, note in _tiles(overview, elapsed_s)
    )
    return f'<dl class="tiles">{cards}</dl>'


def _tiles(overview: Overview, elapsed_s: float | None) -> list[Tile]:
    summary, shares = overview.analysis.summary, overview.analysis.overlap
    ranks, rebuilt = format_counted(summary.job.nprocs, "rank"), summary.reconstructed
    if elapsed_s is None:
        found = [("run time", run_time(summary.job.run_time_s), ranks)]
    else:
        found = [("elapsed", seconds(elapsed_s), f"first to last operation, {ranks}")]
    counted = _counted_bytes(summary)
    if counted is not None and summary.counted_times and elapsed_s is None:
        longest = called(summary.counted_times, summary.job.nprocs)
        longest_s = None if longest is None else longest[1]["slowest_s"]
        return [
            *found,
            ("read", format_bytes(counted[0]), "counted by Darshan, not traced"),
            ("written", format_bytes(counted[1]), "counted by Darshan, not traced"),
            ("I/O time", or_dash(longest_s, seconds), "of the slowest rank, by Darshan's counters"),
        ]
    if nothing_recorded(summary.coverage.unseen):
        return [*found, ("I/O", "-", "not recorded"), *_loop_tiles(overview)]
    found += [
        ("read", format_bytes(summary.bytes.read), _operations(summary.operations.read, "read", rebuilt.bytes_read)),
        (
            "written",
            format_bytes(summary.bytes.written),
            _operations(summary.operations.write, "write", rebuilt.bytes_written),
        ),
    ]
    if elapsed_s is None:
        found.append(("I/O in flight", percent(shares.io_of_run_pct), "of the run time, mean of the ranks (union)"))
    else:
        io_ns = shares.total("io_ns") / max(len(shares.ranks), 1)
        found.append(("I/O in flight", format_duration(io_ns), "mean of the ranks (union)"))
    if shares.io_hidden_pct is not None:
        found.append(("I/O hidden", percent(shares.io_hidden_pct), "of the I/O time lies inside compute"))
    found += _loop_tiles(overview)
    if summary.aggregate_bandwidth_mib_s is not None:
        found.append(("bandwidth", f"{summary.aggregate_bandwidth_mib_s:,.4g} MiB/s", "while any I/O was in flight"))
    return found


def _loop_tiles(overview: Overview) -> list[Tile]:
    summary = overview.analysis.summary
    if not overview.waits_are_real:
        return [("input wait", "-", "not replayed at this pace")]
    if summary.loop is None:
        return []
    shown = summary.compute.input_wait_s_per_rank_mean
    waits = percent(summary.loop.input_wait_pct) if shown else "-"
    at_most = "at most, " if summary.loop.compute_at_most else ""
    return [
        ("input wait", waits, "of the training loop" if shown else "not known: the profile shows none"),
        ("compute", or_dash(summary.loop.compute_pct, percent), f"{at_most}of the training loop"),
    ]


def _counted_bytes(summary: Summary) -> tuple[int, int] | None:
    """(read, written) of a capture without a trace, by Darshan's counters; None of one with a trace."""
    if has_trace(summary):
        return None
    counted = counted_below(summary).values()
    if not counted:
        return summary.reconstructed.bytes_read, summary.reconstructed.bytes_written
    return sum(each["bytes_read"] or 0 for each in counted), sum(each["bytes_written"] or 0 for each in counted)


def _operations(count: int, noun: str, rebuilt_bytes: int) -> str:
    """Number of traced operations, and the bytes of further ones that only counters show."""
    besides = f"; and {format_bytes(rebuilt_bytes)} by counters alone" if rebuilt_bytes else ""
    return f"{format_counted(count, noun)}{besides}"


def percent(value: float | None) -> str:
    """`12.3 %`; two digits below 0.1 %, `-` for None."""
    return "-" if value is None else f"{value:.1f} %" if value >= 0.1 or value == 0 else f"{value:.2g} %"


def replay_verdict(comparison: Comparison) -> str:
    """The result of the comparison in its own words, and how long both took, as paragraphs."""
    source_s, replay_s = comparison.timing.source_elapsed_s, comparison.timing.replay_elapsed_s
    words = f"From the first operation to the last: {seconds(source_s)} in the first capture, "
    words += f"{seconds(replay_s)} in the second."
    return f'<p class="verdict">{html_text(comparison.headline)}</p><p class="note">{escape(words)}</p>'
