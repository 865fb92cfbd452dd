"""The HTML page as text: its sections, and the scripts and data that it carries within itself. Pure."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from replay.show.comparison_sections import comparison_sections
from replay.show.data_tables import FILES, RANKS, STEPS
from replay.show.page import figures, parts
from replay.show.page.data import LagCourse, drawn_lanes, drawn_ranks, timeline_json
from replay.show.page.html_tables import data_table, html_text, section_table
from traces.units import format_count, format_duration

if TYPE_CHECKING:
    from profiler_merge.analysis.overview import Overview

SLOWEST_STEPS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """What the page carries: plotly's own bundle, and this package's script and style sheet."""

    plotly: str
    script: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One of the captures. `key` (source or replay) is part of the ids, `title` is shown where there are two."""

    key: str
    title: str
    overview: Overview
    origin_ns: int

    @property
    def steps(self) -> bool:
        """Whether its steps are known."""
        return bool(self.overview.analysis.overlap.steps.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section of the page: `id`, name in the menu, HTML."""

    id: str
    name: str
    html: str


def sides_of(source: Overview, replay: Overview | None) -> tuple[Side, ...]:
    """The sides of a page. One alone keeps its capture's times; of two, both begin at their first event."""
    if replay is None:
        return (Side(key="source", title="", overview=source, origin_ns=0),)
    return tuple(
        Side(key=key, title=key.capitalize(), overview=found, origin_ns=found.course.start_ns)
        for key, found in (("source", source), ("replay", replay))
    )


def page(
    source: Overview,
    replay: Overview | None,
    comparison: Mapping[str, Any] | None,
    lag: LagCourse | None,
    assets: Assets,
    most_rows: int,
) -> str:
    """The whole page. `comparison`: the object of `dxt-replay compare --json`; `lag`: of the replay; `most_rows`: of a
    table of ranks or files."""
    sides = sides_of(source, replay)
    shown = figures_of(sides, comparison, lag)
    timelines = {side.key: timeline_json(side.overview, side.origin_ns) for side in sides}
    longest = max(timeline["until_ns"] for timeline in timelines.values())
    data = {
        "timelines": {key: {**timeline, "until_ns": longest} for key, timeline in timelines.items()},
        "figures": shown,
        "colours": figures.KIND_COLOURS,
        "linked": replay is not None,
    }
    sections = [part for part in _parts(sides, shown, comparison, most_rows) if part.html]
    summaries = {side.key: side.overview.analysis.summary.as_json() for side in sides}
    title = "dxt-replay: " + " and ".join(side.overview.name for side in sides)
    return _document(title, sections, sides, summaries, data, assets)


def figures_of(
    sides: Sequence[Side], comparison: Mapping[str, Any] | None, lag: LagCourse | None
) -> dict[str, figures.Figure]:
    """Figures by the id of their place; those of two sides have axes of the same length."""
    found: dict[str, figures.Figure] = {}
    for side in sides:
        overview, origin = side.overview, side.origin_ns
        found[f"course-{side.key}"] = figures.course_figure(overview.course, origin)
        if overview.analysis.sizes.classes:
            found[f"sizes-{side.key}"] = figures.sizes_figure(overview.analysis.sizes.powers())
        found[f"heat-{side.key}"] = figures.heat_figure(overview.by_rank, origin)
        if side.steps:
            found[f"steps-{side.key}"] = figures.steps_figure(overview.analysis.overlap.steps)
    if lag is not None:
        jitter = comparison["timing"]["jitter_us"] if comparison else None
        found["lag-replay"] = figures.lag_figure(lag, sides[-1].origin_ns, jitter)
    for name in ("course", "heat"):
        figures.align([found[f"{name}-{side.key}"] for side in sides])
    figures.align_steps([found[f"steps-{side.key}"] for side in sides if side.steps])
    return found


def _parts(
    sides: Sequence[Side], shown: Mapping[str, figures.Figure], comparison: Mapping[str, Any] | None, most_rows: int
) -> list[Part]:
    def each(html: Any) -> str:
        return _side_by_side(sides, html)

    def chart(name: str, note: str, controls: str = "") -> str:
        if not any(f"{name}-{side.key}" in shown for side in sides):
            return ""
        return f'<p class="note">{note}</p>' + each(
            lambda side: _chart(f"{name}-{side.key}", shown, name, side.title, controls)
        )

    return [
        Part(id="job", name="Job", html=each(lambda side: parts.tiles(side.overview) + parts.job(side.overview))),
        Part(id="health", name="Health", html=each(lambda side: parts.health(side.overview))),
        Part(id="fidelity", name="Fidelity", html=_fidelity(comparison)),
        Part(id="lag", name="Lag", html=_lag(shown)),
        Part(id="findings", name="Findings", html=each(lambda side: parts.findings(side.overview.findings))),
        Part(id="timeline", name="Timeline", html=_timelines(sides)),
        Part(id="course", name="Bandwidth", html=chart("course", _COURSE_NOTE, _LOG)),
        Part(id="sizes", name="Request sizes", html=chart("sizes", _SIZES_NOTE, _LOG)),
        Part(id="heat", name="Heat map", html=chart("heat", _HEAT_NOTE)),
        Part(id="steps", name="Steps", html=_steps(sides, shown)),
        Part(id="ranks", name="Ranks", html=_tables(sides, "Ranks", RANKS, parts.rank_rows, most_rows)),
        Part(id="files", name="Files", html=_tables(sides, "Files", FILES, parts.file_rows, most_rows)),
        Part(id="totals", name="Totals", html=each(lambda side: parts.totals(side.overview))),
    ]


_LOG = '<button type="button" data-log aria-pressed="false">logarithmic</button>'
_COURSE_NOTE = (
    "Bytes are spread over the bins that an operation covers, so that the areas are the totals. "
    "Only traced reads and writes; one layer a file."
)
_SIZES_NOTE = (
    "Bins of powers of two; each bar is all requests of its interface, direction and origin. "
    "Layers overlap: bars of MPI-IO or HDF5 are carried out as requests of POSIX."
)
_HEAT_NOTE = "Blank where there is nothing. Colours of rates end at the 99th percentile; pointing shows the value."


def _side_by_side(sides: Sequence[Side], html: Any) -> str:
    if len(sides) == 1:
        return str(html(sides[0]))
    blocks = "".join(
        f'<div class="side"><h3>{escape(side.title)}: {html_text(side.overview.name)}</h3>{html(side)}</div>'
        for side in sides
    )
    return f'<div class="sides">{blocks}</div>'


def _chart(place: str, shown: Mapping[str, figures.Figure], name: str, title: str, controls: str = "") -> str:
    if place not in shown:
        return '<p class="note">Nothing to show.</p>'
    figure = shown[place]
    meta = figure["layout"].get("meta", "")
    note = f'<p class="note">{escape(meta)}</p>' if meta else ""
    if name == "heat" and len(figure["data"]) > 1:
        options = "".join(
            f'<option value="{number}">{escape(trace["name"])}</option>' for number, trace in enumerate(figure["data"])
        )
        controls += f"<label>show <select data-quantity>{options}</select></label>"
    bar = f'<div class="controls" data-for="{place}">{controls}</div>' if controls else ""
    label = escape(f"{name} {title}".strip())
    height = figure["layout"]["height"]
    style = f"min-height:{height}px"
    return f'{bar}<div class="chart" id="{place}" role="img" aria-label="{label}" style="{style}"></div>{note}'


def _timelines(sides: Sequence[Side]) -> str:
    legend = "".join(
        f'<label class="kind"><input type="checkbox" checked data-kind="{escape(kind)}">'
        f'<span class="swatch" style="background:{figures.KIND_COLOURS[kind]}"></span>{escape(kind)}</label>'
        for kind in _kinds(sides)
    )
    windows = dict.fromkeys(window.name for side in sides for window in side.overview.lanes.windows)
    jumps = "".join(f'<button type="button" data-window="{escape(name)}">{escape(name)}</button>' for name in windows)
    controls = (
        '<div class="controls" id="timeline-controls">'
        '<button type="button" data-zoom="all">all</button>'
        '<button type="button" data-zoom="in" aria-label="zoom in">+</button>'
        '<button type="button" data-zoom="out" aria-label="zoom out">−</button>'
        '<button type="button" data-zoom="left" aria-label="earlier">◀</button>'
        '<button type="button" data-zoom="right" aria-label="later">▶</button>'
        f"{jumps}</div>"
    )
    charts = "".join(
        (f"<h3>{escape(side.title)}: {html_text(side.overview.name)}</h3>" if side.title else "")
        + f'<p class="status" id="timeline-{side.key}-status" aria-live="polite"></p>'
        + f'<div class="chart" id="timeline-{side.key}" role="img" aria-label="timeline {escape(side.title)}"></div>'
        + f'<p class="note">{escape(sampling_rule(side.overview))}</p>'
        for side in sides
    )
    intro = (
        '<p class="note">Drag over a stretch to zoom in, double-click for all of it. r0 is rank 0; its steps, its '
        "training loop, work on input, and the I/O of its lanes (threads). Zoomed out, a bin is filled as high as the "
        "share of its time that was spent so; zoomed in, each bar is an operation or what is joined to one.</p>"
    )
    return f'{intro}{controls}<div class="legend" id="timeline-legend">{legend}</div>{charts}'


def _kinds(sides: Sequence[Side]) -> list[str]:
    present = {kind for side in sides for _, kind in side.overview.loops.tracks}
    present |= {kind for side in sides for _, _, kind in drawn_lanes(side.overview).tracks}
    return [kind for kind in figures.KIND_COLOURS if kind in present]


def sampling_rule(overview: Overview) -> str:
    """How the bars of a timeline came from the operations, in sentences."""
    lanes, drawn, ranks = drawn_lanes(overview), drawn_ranks(overview), overview.analysis.overlap.ranks
    all_ = "All" if len(drawn) == len(ranks) else "Of the ranks shown, all"
    words = []
    if lanes.resolution_ns == 0:
        words.append(f"{all_} {format_count(lanes.operations)} operations are in this timeline, each by itself.")
    else:
        limit = format_duration(lanes.resolution_ns)
        words.append(
            f"{all_} {format_count(lanes.operations)} operations are in this timeline, in "
            f"{format_count(lanes.bars)} bars: neighbours on a lane that are shorter than {limit}, with a gap shorter "
            f"than {limit}, are joined to one."
        )
        if lanes.windows:
            names = ", ".join(
                f"{window.name} ({window.from_ns / 1e9:.6f} to {window.until_ns / 1e9:.6f} s of the capture)"
                for window in lanes.windows
            )
            words.append(f"Every operation is by itself in: {names}.")
        words.append("A page with --from and --until shows any other stretch in full.")
    if overview.loops.resolution_ns:
        limit = format_duration(overview.loops.resolution_ns)
        words.append(f"Stretches of compute and waits shorter than {limit} that are as close are joined to one bar.")
    if len(drawn) < len(overview.shown_ranks):
        words.append(f"There is room for the lanes of {len(drawn)} of {format_count(len(ranks))} ranks.")
    elif len(drawn) < len(ranks):
        words.append(
            f"Shown are {len(drawn)} of {format_count(len(ranks))} ranks: half of them those with the most I/O time, "
            "half evenly spread."
        )
    if len(drawn) < len(ranks):
        words.append("--ranks shows others.")
    return " ".join(words)


def _steps(sides: Sequence[Side], shown: Mapping[str, figures.Figure]) -> str:
    if not any(side.steps for side in sides):
        return ""

    def chart(side: Side) -> str:
        return _chart(f"steps-{side.key}", shown, "steps", side.title)

    tables = "".join(
        data_table(
            f"Slowest steps {side.title.lower()}".strip(),
            STEPS,
            _slowest(side),
            SLOWEST_STEPS,
        )
        for side in sides
        if side.steps
    )
    note = (
        "The parts add up to the mean duration over the ranks; a step is above the median of its own rank. "
        f"Above {figures.MOST_STEP_BARS} steps, a bar is the mean of several."
    )
    return f'<p class="note">{note}</p>{_side_by_side(sides, chart)}{tables}'


def _slowest(side: Side) -> list[dict[str, Any]]:
    """Rows of `tables.STEPS`, on the clock of the figures."""
    rows = side.overview.analysis.overlap.slowest(SLOWEST_STEPS).to_pylist()
    return [{**row, "start_ns": row["start_ns"] - side.origin_ns} for row in rows]


def _tables(sides: Sequence[Side], name: str, columns: Any, rows: Any, most_rows: int) -> str:
    found = [(f"{name} {side.title.lower()}".strip(), *rows(side.overview, most_rows)) for side in sides]
    return "".join(data_table(caption, columns, first, most_rows, whole) for caption, first, whole in found)


def _fidelity(comparison: Mapping[str, Any] | None) -> str:
    if comparison is None:
        return ""
    tables = [section_table(section) for section in comparison_sections(comparison)]
    return f'<div class="columns">{"".join(tables)}</div>'


def _lag(shown: Mapping[str, figures.Figure]) -> str:
    if "lag-replay" not in shown:
        return ""
    note = "Lag is begin - due: how late the replayer issued an operation, whatever the storage then took."
    return f'<p class="note">{note}</p>{_chart("lag-replay", shown, "lag", "")}'


def _document(
    title: str,
    sections: Sequence[Part],
    sides: Sequence[Side],
    summaries: Mapping[str, Any],
    data: Mapping[str, Any],
    assets: Assets,
) -> str:
    packed = {"plotly": packed_text(assets.plotly), "data": packed_text(_json(data))}
    plain = _json({"schema_version": 1, **summaries})
    menu = "".join(f'<a href="#{part.id}">{escape(part.name)}</a>' for part in sections)
    body = "".join(
        f'<section id="{part.id}" aria-labelledby="{part.id}-head"><h2 id="{part.id}-head">{escape(part.name)}</h2>'
        f"{part.html}</section>"
        for part in sections
    )
    nonce = hashlib.sha256("".join([body, plain, *packed.values()]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    # Only scripts with this word run, and nothing is ever fetched: whatever a recorded path holds stays text.
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    carried = "".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in packed.items())
    heads = f"<h1>{html_text(_headline(sides))}</h1>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html_text(title)}</title><link rel="icon" href="data:,"><style>{assets.style}</style></head>\n'
        f'<body><header>{heads}<nav aria-label="sections">{menu}</nav></header>\n<main>'
        '<noscript><p class="note">Pictures and sorting need JavaScript; the tables do not.</p></noscript>'
        f'<p id="trouble" class="note" hidden></p>{body}</main>\n'
        f'<script type="application/json" id="summary">{plain}</script>\n{carried}\n'
        f'<script nonce="{nonce}">{assets.script}</script></body></html>\n'
    )


def _headline(sides: Sequence[Side]) -> str:
    return " and its replay ".join(side.overview.name.removesuffix(".capture") for side in sides)


def packed_text(text: str) -> str:
    """gzip in base64: what a browser's DecompressionStream takes."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 9, mtime=0)).decode("ascii")


def _json(value: Any) -> str:
    """JSON that may stand inside of a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
