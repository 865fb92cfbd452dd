"""The page of `dxt-replay report`: what stands on it, for the templates beside this module. Pure.

A page is one file without links to the network. The templates escape every value, so a recorded path stays text, and
the page's policy lets no script run but its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dxt_replay.replay.show.compare import comparison_sections
from dxt_replay.replay.show.glossary import WORDS
from dxt_replay.replay.show.page import chart_data as charts
from dxt_replay.replay.show.section import Kind, Section, seconds, tone_of
from dxt_replay.replay.show.summary import (
    enough_texts,
    finding_blocks,
    finding_sections,
    has_trace,
    headline,
    stake_text,
    storage_cost,
    summary_sections,
)
from dxt_replay.replay.show.tables import DataColumn, Row, columns_on_page, used_columns
from dxt_replay.traces.layers import called
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.storage_limit import BOUNDED, UNKNOWN, StorageLimit
from dxt_replay.traces.store.relation import Relation
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    import jinja2

    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.replay.compare.comparison import Comparison

TABLE_ROWS, SLOWEST_STEPS = 300, 25
"""Rows of the tables of ranks and files, and of steps. Bars are limited too, so that a page has 3 MB at most."""
MOST_PATH = 200
"""Characters of a path that a table shows; of a longer one its end."""

_PLOTLY = "vendor/plotly-cartesian-4.1.1.min.js.gz"
_LANES = {
    "pthread_id": "the threads that the log names",
    "overlap": "inferred: operations of a rank that overlap are on different ones",
    "recorded": "those of the replayed capture",
}

_CHARTS = {
    "course": ("timeline", "Bandwidth, operations in flight, and shares of time over time"),
    "heat": ("timeline", "Heat map of ranks over time"),
    "lag": ("comparison", "Lag of the replayed operations over time"),
    "storage": ("findings", "Training time by the speed of storage"),
    "steps": ("steps", "Where the time of each training step went"),
    "sizes": ("sizes", "Number of requests and bytes moved by request size"),
    "offsets": ("files", "Offsets of a file's reads and writes over time"),
}
"""The section of each chart, and its name for screen readers."""

Part = tuple[str, str, float]
"""A part of the bar of the answer: style, name and seconds."""


class Side(NamedTuple):
    """One of the captures on a page. `title` is shown where there are two; times begin at `origin_ns`."""

    key: str
    title: str
    overview: Overview
    origin_ns: int

    @property
    def steps(self) -> pa.Table:
        return self.overview.analysis.overlap.steps

    @property
    def traced(self) -> bool:
        """Whether it is known when any I/O happened: a chart of it would else show 0, or estimates."""
        summary = self.overview.analysis.summary
        return has_trace(summary) and not nothing_recorded(summary.coverage.unseen)


def report_page(
    source: Overview,
    replay: Overview | None = None,
    comparison: Comparison | None = None,
    lag: Mapping[str, np.ndarray] | None = None,
) -> str:
    """The page about a capture, or about two side by side.

    `comparison`: `replay.compare.comparison.compare(...)`; `lag`: `chart_data.lag_course(...)`.
    """
    sides, axis = [Side("source", "", source, 0)], "time [s]"
    if replay is not None:
        # Both begin at their first step, or else at their first event: what happened before has negative times.
        replayed = comparison is None or comparison.relation == Relation.REPLAY.value
        titles = ("Source", "Replay") if replayed else ("First", "Second")
        steps = [each.analysis.overlap.steps["start_ns"].to_numpy() for each in (source, replay)]
        known = all(len(each) for each in steps)
        axis = f"time since the first {'step' if known else 'event'} [s]"
        begins = [int(each.min()) for each in steps] if known else [source.course.start_ns, replay.course.start_ns]
        sides = list(map(Side, ("source", "replay"), titles, (source, replay), begins))
    lines = {side.key: charts.timeline(side.overview, side.origin_ns, estimates=side.traced) for side in sides}
    whole = [min(line["from_ns"] for line in lines.values()), max(line["until_ns"] for line in lines.values())]
    data = {
        "axis": axis,
        "colours": charts.KIND_COLOURS,
        "figures": _figures(sides, comparison, lag, axis),
        "home": [min(side.overview.quiet_until_ns - side.origin_ns for side in sides), whole[1]],
        "timelines": {key: line for key, line in lines.items() if line["tracks"]},
        "whole": whole,
    }
    summaries = {side.key: side.overview.summary_json() for side in sides}
    contents = _contents(sides, comparison, data)
    return rendered("report.html.j2", {"schema_version": 1, **summaries}, data, contents)


def _figures(
    sides: Sequence[Side], comparison: Comparison | None, lag: Mapping[str, np.ndarray] | None, axis: str
) -> dict[str, charts.Figure]:
    found: dict[str, dict[str, charts.Figure]] = {}
    for side in sides:
        overview, origin, limit = side.overview, side.origin_ns, side.overview.storage_limit
        if side.traced:
            found.setdefault("course", {})[side.key] = charts.course_figure(overview.course, origin, axis)
            if len(overview.by_rank.ranks) > 1:
                found.setdefault("heat", {})[side.key] = charts.heat_figure(overview.by_rank, origin, axis)
        if overview.sizes.num_rows:
            found.setdefault("sizes", {})[side.key] = charts.sizes_figure(overview.sizes)
        offsets = [each for each in overview.offsets if len(each.rank)]
        if offsets:
            found.setdefault("offsets", {})[side.key] = charts.offsets_figure(offsets, overview.paths, origin, axis)
        if side.steps.num_rows:
            found.setdefault("steps", {})[side.key] = charts.steps_figure(side.steps)
        if isinstance(limit, StorageLimit) and limit.points:
            found.setdefault("storage", {})[side.key] = charts.storage_figure(limit)
    if lag is not None:
        jitter = comparison.timing.jitter_us if comparison else None
        found["lag"] = {"replay": charts.lag_figure(lag, sides[-1].origin_ns, jitter, axis)}
    for alike in found.values():
        charts.align(list(alike.values()))
    return {f"{name}-{key}": each for name, alike in found.items() for key, each in alike.items()}


def _contents(sides: Sequence[Side], comparison: Comparison | None, data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows; it asks for the parts of a side where they stand."""
    recorded = [not nothing_recorded(side.overview.analysis.summary.coverage.unseen) for side in sides]
    answers = {side.key: _answer(side.overview) for side in sides}
    names = [side.overview.name.removesuffix(".capture") for side in sides]
    kinds = {track["kind"] for line in data["timelines"].values() for track in line["tracks"]}
    there = {
        "answer": "Answer",
        "timeline": "Timeline",
        "comparison": "Comparison" if comparison else "",
        "findings": "Findings",
        "steps": "Steps" if any(side.steps.num_rows for side in sides) else "",
        "sizes": "Request sizes" if any(name.startswith("sizes-") for name in data["figures"]) else "",
        "files": "Files" if any(recorded) else "",
        "unseen": "What was not seen",
        "numbers": "All numbers",
    }
    return {
        "title": comparison.headline if comparison else answers["source"]["title"],
        "subject": (" and its replay " if sides[-1].title == "Replay" else " beside ").join(names),
        "sections": {id: name for id, name in there.items() if name},
        "sides": sides,
        "recorded": [side for side, io in zip(sides, recorded, strict=True) if io],
        "answers": answers,
        "longest_s": max(answer["whole_s"] for answer in answers.values()),
        "comparison": [] if comparison is None else _compared(comparison),
        "figures": data["figures"],
        "labels": _CHARTS,
        "timelines": data["timelines"],
        "kinds": {kind: colour for kind, colour in charts.KIND_COLOURS.items() if kind in kinds},
        "words": WORDS,
        "of": {
            "drawn": _drawn, "blocks": finding_blocks, "nothing": finding_sections, "stake": stake_text,
            "enough": _enough, "slowest": _slowest, "files": _files, "ranks": _ranks, "seen": _seen, "job": _job,
            "tables": summary_sections,
        },
    }  # fmt: skip


# ---- the answer ----


def _answer(overview: Overview) -> dict[str, Any]:
    """What storage cost, in words, as a number, and as parts of the whole time."""
    summary, limit = overview.analysis.summary, overview.storage_limit
    if overview.waits_are_real:
        said = headline(summary, limit)
        cost = storage_cost(summary, limit) or ["What storage cost this run is not known."]
        bounded = isinstance(limit, StorageLimit) and limit.doubt.state == BOUNDED and len(cost) > 1
        title = cost[1 if bounded else 0]
        reasons = [sentence for sentence in said if sentence != title]
        title = title.replace("Storage limits it by", "Storage limits this training by")
    else:
        title = f"I/O was in flight for {_share(overview.analysis.overlap.io_of_run_pct)} of the run time."
        reasons = [
            "At this pace no operation waits for another: the replay shows how long the storage took, not what "
            "training would wait for."
        ]
    if summary.loop is not None:
        number, of, parts = _training(overview)
    elif has_trace(summary):
        number, of, parts = _run(overview)
    else:
        number, of, parts = _counted(overview)
    whole_s = sum(spent for _, _, spent in parts)
    return {
        "title": title, "reasons": reasons, "number": number, "of": of, "whole_s": whole_s,
        "parts": [
            {"style": style, "name": name, "seconds": spent, "text": f"{seconds(spent)}, {100 * spent / whole_s:.1f} %"}
            for style, name, spent in parts if spent > 0.0005 * whole_s
        ],
    }  # fmt: skip


def _training(overview: Overview) -> tuple[str, str, list[Part]]:
    """The number of the answer, what it is of, and the parts of the training, means of its ranks.

    Storage that is infinitely fast would save the part that waits for it. What it would save in checkpoints stays in
    theirs. A wait that the model does not explain, or for which there is none, is not known.
    """
    summary, limit = overview.analysis.summary, overview.storage_limit
    loop, ranks = summary.loop, overview.analysis.overlap.ranks
    assert loop is not None
    in_loop = ranks["loop_ns"].to_numpy() > 0

    def mean_s(column: str) -> float:
        return float(ranks[column].to_numpy()[in_loop].mean()) / NS_PER_S

    wait, checkpoints, others = (mean_s(f"{name}_in_loop_ns") for name in ("input_wait", "checkpoint", "collective"))
    compute, evaluation = mean_s("compute_in_loop_ns"), mean_s("evaluation_ns")
    bound = f"at most {loop.storage_gain_pct:.1f} %"
    of = "of the training would be saved by infinitely fast storage"
    judged = not summary.not_judged and bool(summary.operations.read or summary.operations.write)
    if isinstance(limit, StorageLimit) and limit.doubt.state != UNKNOWN and judged:
        least, most = limit.saved_between_s
        number = f"{limit.limit_pct:.1f} %"
        if 100 * (most - least) * NS_PER_S >= limit.recorded_ns:
            number = " to ".join(f"{100 * each * NS_PER_S / limit.recorded_ns:.1f}" for each in (least, most)) + " %"
    elif not judged or (limit is not None and limit.doubt.sentences):
        least, most, number = 0.0, wait, "not known"
        of = "what infinitely fast storage would save" + (f": {bound} of the training" if judged else "")
    else:
        least, most, number = 0.0, loop.storage_gain_s, bound
    in_checkpoints = mean_s("io_in_checkpoint_ns")
    storage, perhaps = (min(max(saved - in_checkpoints, 0.0), wait) for saved in (least, most))
    parts = [
        ("compute", "compute", compute),
        ("storage", "waiting for storage", storage),
        ("unknown", "waiting, perhaps for storage: not known", perhaps - storage),
        ("other", "waiting for other reasons", wait - perhaps),
        ("collective", "waiting in collectives", others),
        ("checkpoint", "checkpoints", checkpoints),
        ("evaluation", "evaluations", evaluation),
    ]
    whole = limit.recorded_ns / NS_PER_S if isinstance(limit, StorageLimit) else mean_s("loop_ns") + evaluation
    rest = max(whole - sum(spent for _, _, spent in parts), 0.0)
    marked = [name for name, known in (("compute", compute), ("waits", wait)) if not known]
    unmarked = f"not known: {' and '.join(marked)} not marked"
    return number, of, [*parts, ("unknown", unmarked, rest) if marked else ("rest", "none of these", rest)]


def _run(overview: Overview) -> tuple[str, str, list[Part]]:
    """The same of a run without known steps: the time with I/O, and the time without."""
    summary = overview.analysis.summary
    whole = summary.job.run_time_s
    if not whole or nothing_recorded(summary.coverage.unseen):
        return "not known", "what storage cost this run", []
    flying = min(summary.in_flight_s, whole)
    calls = min(summary.other_io_s, whole - flying)
    number, of = (
        f"at most {_share(100 * (flying + calls) / whole)}",
        "of the run would be saved by infinitely fast storage",
    )
    if not overview.waits_are_real:
        number, of = _share(overview.analysis.overlap.io_of_run_pct), "of the run had I/O in flight, mean of the ranks"
    elif summary.not_judged:
        number, of = "not known", "what infinitely fast storage would save"
    return number, of, [
        ("storage", "reads and writes in flight", flying),
        ("checkpoint", "opens, closes and other calls", calls),
        ("unknown", "no I/O in flight: what the job did is not known", whole - flying - calls),
    ]  # fmt: skip


def _counted(overview: Overview) -> tuple[str, str, list[Part]]:
    """The same of a log without a trace: the time in the calls that the program makes, by Darshan's counters."""
    summary = overview.analysis.summary
    ranks, whole = max(summary.job.nprocs, 1), summary.job.run_time_s
    found = called(summary.counted_times, ranks)
    if found is None or not whole:
        return "not known", "what storage cost this run", []
    interface, times = found
    names = {"read_s": "reads", "write_s": "writes and syncs", "metadata_s": "metadata", "wait_s": "waits for requests"}
    styles = dict(zip(names, ("storage", "write", "checkpoint", "other"), strict=True))
    parts = [(styles[key], f"{name}, mean of the ranks", (times[key] or 0.0) / ranks) for key, name in names.items()]
    spent = sum(each for _, _, each in parts)
    longest = times["slowest_s"]
    number = _share(100 * (spent if longest is None else longest) / whole)
    who = "mean of the ranks" if longest is None else "slowest rank" if ranks > 1 else "by Darshan's counters"
    rest = ("unknown", "outside of these calls: what the job did is not known", max(whole - spent, 0.0))
    return number, f"of the run in {interface} calls, {who}", [*parts, rest]


def _date(start_ns: int) -> str:
    return datetime.fromtimestamp(start_ns / NS_PER_S, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _share(value: float | None) -> str:
    """`12.3 %`; two digits below 0.1 %, `not known` for None."""
    return "not known" if value is None else f"{value:.1f} %" if value >= 0.1 or value == 0 else f"{value:.2g} %"


# ---- what is below it ----


def _drawn(side: Side, line: Mapping[str, Any] | None) -> str:
    """How the bars of the timeline came from the operations, in sentences."""
    if line is None and side.traced:
        return "The capture holds nothing to draw."
    if line is None or not side.traced:
        recorded = not nothing_recorded(side.overview.analysis.summary.coverage.unseen)
        return "No trace: when the I/O happened is not known." if recorded else "No I/O was recorded."
    lanes = [track for track in line["tracks"] if line["lanes"][track["row"]]]
    bars = sum(len(track["start"]) for track in lanes)
    count = sum(sum(track.get("operations", [1] * len(track["start"]))) for track in lanes)
    words = f"{format_counted(count, 'operation')}, each as a bar of its own."
    if bars < count:
        limit = format_duration(side.overview.lanes.resolution_ns)
        words = f"{format_counted(count, 'operation')} in {format_counted(bars, 'bar')}: neighbours on a lane that are "
        words += f"shorter than {limit} and no further apart share one. A page of a part of the capture shows more."
    ranks, shown = len(side.overview.analysis.overlap.ranks), len(set(line["ranks"]))
    half = "half of them with the most I/O time, half evenly spread, as far as there is room"
    return words if shown == ranks else f"{words} Shown are {shown} of {format_count(ranks)} ranks: {half}."


def _enough(overview: Overview) -> list[str]:
    limit = overview.storage_limit
    return list(enough_texts(limit.enough)) if isinstance(limit, StorageLimit) and limit.points else []


def _seen(overview: Overview) -> list[tuple[str, str]]:
    """What the numbers rest on: coverage, clocks, profiles and lanes."""
    info, summary, coverage = overview.info, overview.analysis.summary, overview.info.coverage
    shares = {"bytes": coverage.bytes, "operations": coverage.operations}
    known = [f"{100 * share:.2f} % of the {what}" for what, share in shares.items() if share is not None]
    rows = [("traced", ", ".join(known) or "how much is not known: nothing counted the I/O")]
    for each in coverage.unseen:
        amount = "how much is not known" if each.bytes is None else f"at least {format_bytes(each.bytes)}"
        rows.append(("not traced", f"{each.name}: {amount}"))
    rebuilt = summary.reconstructed
    if count := rebuilt.read + rebuilt.write + rebuilt.other:
        rows.append(("from counters", f"{format_counted(count, 'operation')}, in no total: their times are estimates"))
    if info.clock:
        widest = max(clock.interval_ns[1] - clock.interval_ns[0] for clock in info.clock)
        methods = ", ".join(sorted({clock.method for clock in info.clock}))
        rows.append(("clocks", f"aligned by {methods}, known within {format_duration(widest)}"))
    profiled, ranks = summary.compute.profiled_ranks, len(overview.analysis.overlap.ranks)
    some = " show some of the steps" if summary.steps.extended else ""
    unknown = "none: compute, waits and steps are not known"
    rows.append(("marks or profiles", f"{profiled} of {format_counted(ranks, 'rank')}{some}" if profiled else unknown))
    rows.append(("lanes", _LANES.get(info.lanes, info.lanes)))
    return rows


def _job(overview: Overview) -> list[tuple[str, str]]:
    info, record = overview.info, replay_record(overview.info)
    made = [str(info.made_by[name]) for name in ("program", "version", "command") if info.made_by.get(name)]
    made += [] if record is None else [f"pace {record.pace}", f"speed {record.speed:g}", f"api {record.api}"]
    mounts = (
        f"{each.mount or 'unknown mount'} ({each.fs_type or 'unknown type'}): {format_counted(each.files, 'file')}, "
        f"{format_bytes(each.bytes_read)} read, {format_bytes(each.bytes_written)} written"
        for each in overview.mounts
    )
    sources = (f"{each.name} ({each.kind}, {each.sha256[:12]})" for each in info.sources)
    rows = [
        ("capture", overview.name),
        ("program", info.job.exe),
        ("job", str(info.job.job_id or "")),
        ("began", _date(info.job.start_ns) if info.job.start_ns > 0 else ""),
        ("file systems", "; ".join(mounts)),
        ("sources", ", ".join(sources)),
        ("made by", ", ".join(made)),
    ]
    return [(name, text) for name, text in rows if text]


def _compared(comparison: Comparison) -> list[Section]:
    """The tables of `dxt-replay compare`; its headline is the title of the page."""
    first, *others = comparison_sections(comparison)
    said = tuple(row for row in first.rows if row[0] != comparison.headline)
    timing = comparison.timing
    elapsed = f"From the first operation to the last: {seconds(timing.source_elapsed_s)} in the first capture, "
    elapsed += f"{seconds(timing.replay_elapsed_s)} in the second."
    return [Section(title="", rows=(*said, (elapsed,)), prose=True), *others]


# ---- tables ----


def _table(name: str, caption: str, rows: Sequence[Row], rows_in_all: int, sums: Row | None = None) -> dict[str, Any]:
    """A table whose heads sort it; with `sums` a last row over all, also over rows that are not shown."""
    shown = used_columns(columns_on_page(name), rows if sums is None else [sums])

    def cell(column: DataColumn, value: Any) -> dict[str, Any]:
        number = column.kind is Kind.NUMBER
        if value is None:
            return {"text": "-", "number": number}
        if number:
            return {"text": column.text(value), "number": True, "value": value}
        text = str(value)
        return {"text": text if len(text) <= MOST_PATH else f"...{text[3 - MOST_PATH :]}", "number": False}

    foot = []
    if sums is not None and rows_in_all > 1:
        foot = [
            cell(each, each.value(sums) or 0) if each.total else {"text": "", "number": False} for each in shown[1:]
        ]
    return {
        "caption": caption, "foot": foot, "rows_in_all": rows_in_all, "left": rows_in_all - len(rows),
        "heads": [(column.head, column.kind is Kind.NUMBER) for column in shown],
        "rows": [[cell(column, column.value(row)) for column in shown] for row in rows],
    }  # fmt: skip


def _slowest(side: Side) -> dict[str, Any] | None:
    found = side.overview.analysis.overlap.slowest(SLOWEST_STEPS).to_pylist()
    rows = [{**row, "start_ns": row["start_ns"] - side.origin_ns} for row in found]
    if not rows:
        return None
    table = _table("steps", "Slowest steps", rows, len(rows))
    ends = (row["start_ns"] + row["duration_ns"] + row["evaluation_ns"] for row in rows)
    return {**table, "windows": [(row["start_ns"], end) for row, end in zip(rows, ends, strict=True)]}


def _ranks(overview: Overview) -> dict[str, Any]:
    """Where there are more than TABLE_ROWS, those with the most I/O time first."""
    names = ["io_hidden_ns", "compute_ns", "input_wait_ns"]
    found = overview.analysis.overlap.ranks.select(["rank", "io_ns", *names]).to_pylist()
    times = {row.pop("rank"): {"union_ns": row.pop("io_ns"), **row} for row in found}
    rows = [{**row, **times[row["rank"]]} for row in overview.analysis.patterns.ranks.to_pylist()]
    sums = {name: sum(row[name] for row in rows) for name in rows[0]} if rows else None
    if len(rows) > TABLE_ROWS:
        rows.sort(key=lambda row: -row["union_ns"])
    return _table("ranks", "Ranks", rows[:TABLE_ROWS], len(rows), sums)


def _files(overview: Overview) -> dict[str, Any]:
    """The files that moved most, the most first."""
    table = overview.analysis.patterns.files
    moved = sum(table[name].to_numpy() for name in ("bytes_read", "bytes_written", "reconstructed_bytes"))
    most = np.argsort(-moved, kind="stable")[:TABLE_ROWS]
    sums = {name: _sum_or_any(table[name]) for name in table.column_names} if table.num_rows else None
    return _table("files", "Files", table.take(pa.array(most)).to_pylist(), table.num_rows, sums)


def _sum_or_any(column: pa.ChunkedArray) -> int | str | None:
    """Sum of whole numbers, however large; of texts any one, None without any."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy().astype(np.int64)
        return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
    texts = column.drop_null()
    return texts[0].as_py() if len(texts) else None


# ---- the file ----


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    folder = files(__package__)
    names = ("page.html.j2", "parts.html.j2", "report.html.j2", "regress.html.j2")
    made = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.DictLoader({name: (folder / name).read_text(encoding="utf-8") for name in names}),
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    made.filters["tone"] = tone_of
    return made


def rendered(
    template: str, summary: Mapping[str, Any], data: Mapping[str, Any] | None, contents: Mapping[str, Any]
) -> str:
    """The whole page. `summary`: an object that other programs can read from it; `data`: what its script draws."""
    from markupsafe import Markup

    folder = files(__package__)
    plain = _json(summary)
    carried = {}
    if data is not None:
        packed = gzip.compress(_json(data).encode("utf-8", "surrogatepass"), 9, mtime=0)
        contained = {"plotly": (folder / _PLOTLY).read_bytes(), "data": packed}
        carried = {name: Markup(base64.b64encode(each).decode("ascii")) for name, each in contained.items()}
    secret = "".join([repr(contents["subject"]), plain, *carried.values()]).encode("utf-8", "surrogatepass")
    return _environment().get_template(template).render(
        # Only scripts with this word run: who writes a path into a log cannot know it.
        nonce=hashlib.sha256(secret).hexdigest()[:32],
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")) if carried else "",
        summary=Markup(plain),
        carried=carried,
        **contents,
    )  # fmt: skip


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
