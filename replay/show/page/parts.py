"""Parts of the HTML page that are words: the job, the health of a capture, findings, totals. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.show.data_tables import CLOCKS
from dxt_replay.replay.show.finding_sections import stake_text
from dxt_replay.replay.show.glossary import WORDS
from dxt_replay.replay.show.page.headline import date
from dxt_replay.replay.show.page.html_tables import Whole, data_table, html_text, section_table
from dxt_replay.replay.show.summary_sections import summary_sections
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.profiler_merge.analysis.patterns import MountTotals

Check = tuple[str, str]
"""State (ok, warn, bad or info) and sentence."""

_STATE_WORDS = {"ok": "fine", "warn": "take care", "bad": "wrong", "info": "note"}
_LANES = {
    "pthread_id": "lanes are the threads that the log names",
    "overlap": "lanes are inferred: operations of a rank that overlap are on different ones",
    "recorded": "lanes are those of the replayed capture",
}
_CLOCK_ERROR_NS = 1_000_000
_SHOWN_FILES = 5
_CLOCK_ROWS = 64


def job(overview: Overview) -> str:
    """The job, its file systems, and the sources of the capture."""
    info = overview.info
    rows = [
        ("capture", overview.name),
        ("program", info.job.exe or "-"),
        ("job", str(info.job.job_id) if info.job.job_id else "-"),
        ("began", date(info.job.start_ns)),
        ("file systems", "; ".join(_mount(found) for found in overview.mounts) or "-"),
        (
            "sources",
            ", ".join(f"{source.name} ({source.kind}, {source.sha256[:12]})" for source in info.sources) or "-",
        ),
        ("made by", _made_by(info)),
    ]
    body = "".join(
        f'<tr><th scope="row">{name}</th><td class="text">{html_text(text)}</td></tr>' for name, text in rows
    )
    return f'<details class="facts"><summary>Job and sources</summary><table><tbody>{body}</tbody></table></details>'


def _mount(found: MountTotals) -> str:
    count = f"{format_count(found.files)} file{'' if found.files == 1 else 's'}"
    read, written = format_bytes(found.bytes_read), format_bytes(found.bytes_written)
    return (
        f"{found.mount or 'unknown mount'} ({found.fs_type or 'unknown type'}): {count}, {read} read, {written} written"
    )


def _made_by(info: CaptureInfo) -> str:
    made = info.made_by
    words = [str(made[name]) for name in ("program", "version") if made.get(name)]
    words += [f"command {made['command']}"] if made.get("command") else []
    record = replay_record(info)
    if record is not None:
        words += [f"pace {record.pace}", f"speed {record.speed:g}", f"api {record.api}"]
    return ", ".join(words) or "-"


def health(overview: Overview) -> str:
    """The limits of the numbers: coverage, clocks, profiles."""
    items = "".join(
        f'<li class="{state}"><span class="mark {state}">{_STATE_WORDS[state]}</span> {html_text(text)}</li>'
        for state, text in checks(overview)
    )
    return f'<ul class="health">{items}</ul>{_clock_table(overview.info)}'


def checks(overview: Overview) -> Iterator[Check]:
    """Coverage, clocks, profile and lanes of a capture, and its warnings."""
    info, summary = overview.info, overview.analysis.summary
    if info.partial or summary.partial:
        yield "bad", "the capture is partial: it does not hold the whole run"
    shares = (info.coverage.bytes, info.coverage.operations)
    for what, share, traceable in zip(("bytes", "operations"), shares, info.coverage.traceable, strict=True):
        if share is None:
            yield "info", f"how many of the {what} were traced is not known: nothing counted them"
        else:
            whole = traceable is None or traceable >= 0.995
            yield "ok" if whole else "warn", f"{100 * share:.2f} % of the counted {what} were traced"
    yield from _clock_checks(info)
    profiled, ranks = summary.compute.profiled_ranks, len(overview.analysis.overlap.ranks)
    if summary.steps.extended:
        yield "warn", f"profiles of {profiled} of {ranks} ranks, which show some of the training steps"
    elif profiled == ranks and ranks:
        yield "ok", "a profile of every rank: compute, input wait and steps are known"
    elif profiled:
        yield "warn", f"profiles of {profiled} of {ranks} ranks: shares of compute cover only these"
    else:
        yield "info", "no profile: compute, input wait and steps are not known"
    yield "info", _LANES.get(info.lanes, f"lanes: {info.lanes}")
    rebuilt = summary.reconstructed
    count = rebuilt.read + rebuilt.write + rebuilt.other
    if count:
        yield "info", f"{format_count(count)} operations are reconstructed from counters; no total counts them"
    for warning in summary.warnings:
        yield "warn", warning


def _clock_checks(info: CaptureInfo) -> Iterator[Check]:
    if not info.clock:
        yield "info", "one clock: nothing had to be aligned"
        return
    widest = max(clock.interval_ns[1] - clock.interval_ns[0] for clock in info.clock)
    methods = ", ".join(sorted({clock.method for clock in info.clock}))
    text = f"clocks of the ranks aligned by {methods}, known within {format_duration(widest)}"
    yield ("ok" if widest <= _CLOCK_ERROR_NS else "warn"), text


def _clock_table(info: CaptureInfo) -> str:
    if not info.clock:
        return ""
    rows = [
        {
            "rank": clock.rank,
            "method": clock.method,
            "offset_ns": clock.offset_ns,
            "interval_ns": clock.interval_ns[1] - clock.interval_ns[0],
        }
        for clock in info.clock
    ]
    return f"<details><summary>Clocks by rank</summary>{data_table('Clocks', CLOCKS, rows, _CLOCK_ROWS)}</details>"


def totals(overview: Overview) -> str:
    """The tables of `dxt-replay summary`."""
    sections = [part for part in summary_sections(overview.analysis.summary) if part.title not in ("", "Warnings")]
    return f'<div class="columns">{"".join(section_table(section) for section in sections)}</div>'


def findings(found: tuple[Finding, ...]) -> str:
    """A card for each finding, the gravest first."""
    if not found:
        return '<p class="note">No finding passed its threshold.</p>'
    return "".join(_finding(finding, found[:place]) for place, finding in enumerate(found))


def _finding(finding: Finding, before: tuple[Finding, ...]) -> str:
    files = "".join(f"<li>{html_text(path)}</li>" for path in finding.files[:_SHOWN_FILES])
    left = len(finding.files) - _SHOWN_FILES
    more = f"<li>and {format_count(left)} more</li>" if left > 0 else ""
    listed = f'<ul class="paths">{files}{more}</ul>' if files else ""
    stake = stake_text(finding, before)
    gain = f"<p><b>At stake:</b> {html_text(stake)}</p>" if stake else ""
    return (
        f'<article class="finding {escape(finding.severity)}"><h4><span class="mark {escape(finding.severity)}">'
        f"{escape(finding.severity)}</span> {html_text(finding.title)}</h4><p>{html_text(finding.evidence)}</p>"
        f"{gain}{listed}"
        f'<p><b>What helps:</b> {html_text(finding.remedy)}</p><p class="note">Reported because: '
        f"{html_text(finding.threshold)}</p></article>"
    )


def glossary() -> str:
    """The words of the page, explained."""
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS.items())
    return f"<details><summary>Words of this page</summary><dl>{words}</dl></details>"


def rank_rows(overview: Overview, most_rows: int) -> tuple[list[dict[str, Any]], Whole]:
    """Rows of `data_tables.RANKS`; where there are more than `most_rows`, those with the most I/O time first."""
    names = ["io_hidden_ns", "compute_ns", "input_wait_ns"]
    found = overview.analysis.overlap.ranks.select(["rank", "io_ns", *names]).to_pylist()
    overlap = {rank["rank"]: rank for rank in found}
    rows: list[dict[str, Any]] = overview.analysis.patterns.ranks.to_pylist()
    for row in rows:
        rank = overlap[row["rank"]]
        row.update({"union_ns": rank["io_ns"], **{name: rank[name] for name in names}})
    whole = Whole(rows=len(rows), sums={name: sum(row[name] for row in rows) for name in rows[0]} if rows else {})
    return (rows if len(rows) <= most_rows else sorted(rows, key=lambda row: -row["union_ns"])), whole


def file_rows(overview: Overview, most_rows: int) -> tuple[list[dict[str, Any]], Whole]:
    """The `most_rows` rows of `data_tables.FILES` that moved most, the most first."""
    files = overview.analysis.patterns.files
    moved = sum(files[name].to_numpy() for name in ("bytes_read", "bytes_written", "reconstructed_bytes"))
    most = np.argsort(-moved, kind="stable")[:most_rows]
    rows: list[dict[str, Any]] = files.take(pa.array(most)).to_pylist()
    return rows, Whole(rows=files.num_rows, sums={name: _sum_or_any(files[name]) for name in files.column_names})


def _sum_or_any(column: pa.ChunkedArray) -> int | str | None:
    """Sum of whole numbers, however large; of texts any one, None without any."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy().astype(np.int64)
        return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
    texts = column.drop_null()
    return texts[0].as_py() if len(texts) else None
