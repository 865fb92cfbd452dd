"""The sections of the page of `dxt-replay report`, and the data that its charts draw. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.comparison_sections import comparison_sections
from dxt_replay.replay.show.data_tables import FILES, RANKS, STEPS
from dxt_replay.replay.show.limit_sections import enough_texts
from dxt_replay.replay.show.page import charts, figures, parts
from dxt_replay.replay.show.page.charts import Side
from dxt_replay.replay.show.page.data import LagCourse, offsets_json, step_times_json, timeline_json, with_schedule
from dxt_replay.replay.show.page.document import Assets, Part, document
from dxt_replay.replay.show.page.headline import headline, replay_verdict, tiles
from dxt_replay.replay.show.page.html_tables import data_table, html_text, section_table
from dxt_replay.replay.show.page.storage_figure import storage_figure
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.storage_limit import StorageLimit
from dxt_replay.traces.store.relation import Relation

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.replay.fidelity.compare import Comparison

SLOWEST_STEPS = 25


def sides_of(
    source: Overview, replay: Overview | None, titles: tuple[str, str] = ("Source", "Replay")
) -> tuple[Side, ...]:
    """A side for each capture. A single one keeps its times; the times of two begin at the first event of each."""
    if replay is None:
        return (Side(key="source", title="", overview=source, origin_ns=0),)
    return tuple(
        Side(key=key, title=title, overview=found, origin_ns=found.course.start_ns)
        for key, title, found in zip(("source", "replay"), titles, (source, replay), strict=True)
    )


def page(
    source: Overview,
    replay: Overview | None,
    comparison: Comparison | None,
    lag: LagCourse | None,
    assets: Assets,
    most_rows: int,
) -> str:
    """The whole page.

    `comparison`: None for one capture.
    `lag`: how late the replay was over time.
    `most_rows`: rows of the tables of ranks and of files.
    """
    replayed = comparison is None or comparison.relation == Relation.REPLAY.value
    sides = sides_of(source, replay) if replayed else sides_of(source, replay, ("First", "Second"))
    shown = figures_of(sides, comparison, lag)
    timelines = {side.key: timeline_json(side.overview, side.origin_ns) for side in sides}
    record = None if replay is None else replay_record(replay.info)
    if replay is not None and record is not None and record.pace == "timed" and record.speed == 1:
        timelines["replay"] = timeline_json(with_schedule(replay, source), replay.course.start_ns)
    longest = max(timeline["until_ns"] for timeline in timelines.values())
    data = {
        "timelines": {key: {**timeline, "until_ns": longest} for key, timeline in timelines.items()},
        "home_ns": [source.quiet_until_ns - sides[0].origin_ns, longest],
        "offsets": {side.key: offsets_json(side.overview, side.origin_ns) for side in sides},
        "steps": {side.key: step_times_json(side.overview, side.origin_ns) for side in sides if side.steps},
        "figures": shown,
        "colours": figures.KIND_COLOURS,
    }
    sections = [part for part in _parts(sides, shown, comparison, most_rows) if part.html]
    summaries = {side.key: side.overview.summary_json() for side in sides}
    title = "dxt-replay: " + " and ".join(side.overview.name for side in sides)
    return document(title, _heading(sides), sections, {"schema_version": 1, **summaries}, data, assets)


def figures_of(
    sides: Sequence[Side], comparison: Comparison | None, lag: LagCourse | None
) -> dict[str, figures.Figure]:
    """Figures by the id of their HTML element. Figures of two sides that show the same have equal axes."""
    found: dict[str, figures.Figure] = {}
    for side in sides:
        overview, origin = side.overview, side.origin_ns
        if side.io:
            found[f"course-{side.key}"] = figures.course_figure(overview.course, origin)
            found[f"heat-{side.key}"] = figures.heat_figure(overview.by_rank, origin)
        if overview.sizes.num_rows:
            found[f"sizes-{side.key}"] = figures.sizes_figure(overview.sizes)
        if side.steps:
            found[f"steps-{side.key}"] = figures.steps_figure(overview.analysis.overlap.steps)
        if overview.storage_limit is not None and overview.storage_limit.points:
            found[f"storage-{side.key}"] = storage_figure(overview.storage_limit.points)
    if lag is not None:
        jitter = comparison.timing.jitter_us if comparison else None
        found["lag-replay"] = figures.lag_figure(lag, sides[-1].origin_ns, jitter)
    for name in ("course", "heat"):
        figures.align([found[f"{name}-{side.key}"] for side in sides if side.io])
    figures.align_steps([found[f"steps-{side.key}"] for side in sides if side.steps])
    return found


def _parts(
    sides: Sequence[Side], shown: Mapping[str, figures.Figure], comparison: Comparison | None, most_rows: int
) -> list[Part]:
    def each(html: Callable[[Side], str]) -> str:
        return _side_by_side(sides, html)

    return [
        Part(id="job", name="Job", html=_head(sides, comparison)),
        Part(id="timeline", name="Timeline", html=charts.timelines(sides)),
        Part(id="findings", name="Findings", html=each(lambda side: parts.findings(side.overview.findings))),
        Part(id="figures", name="Figures", html=_figures(sides, comparison)),
        Part(id="fidelity", name="Fidelity", html=_fidelity(comparison)),
        _chart_part("lag", "Lag", sides, shown),
        Part(id="health", name="Health", html=each(lambda side: parts.health(side.overview))),
        _chart_part("storage", "Faster storage", sides, shown, _enough(sides)),
        Part(id="offsets", name="Offsets", html=charts.offsets(sides)),
        _chart_part("course", "Bandwidth", sides, shown),
        _chart_part("heat", "Heat map", sides, shown),
        _chart_part("steps", "Steps", sides, shown, _slowest_steps(sides)),
        _chart_part("sizes", "Request sizes", sides, shown),
        Part(id="ranks", name="Ranks", html=_tables(sides, "Ranks", RANKS, parts.rank_rows, most_rows)),
        Part(id="files", name="Files", html=_tables(sides, "Files", FILES, parts.file_rows, most_rows)),
        Part(id="totals", name="Totals", html=each(lambda side: parts.totals(side.overview))),
        Part(id="glossary", name="Glossary", html=parts.glossary()),
    ]


def _side_by_side(sides: Sequence[Side], html: Callable[[Side], str]) -> str:
    if len(sides) == 1:
        return html(sides[0])
    blocks = "".join(
        f'<div class="side"><h3>{escape(side.title)}: {html_text(side.overview.name)}</h3>{html(side)}</div>'
        for side in sides
    )
    return f'<div class="sides">{blocks}</div>'


def _figures(sides: Sequence[Side], comparison: Comparison | None) -> str:
    timing = comparison.timing if comparison else None

    def html(side: Side) -> str:
        elapsed_s = getattr(timing, f"{side.key}_elapsed_s") if timing is not None else None
        return tiles(side.overview, elapsed_s) + parts.job(side.overview)

    return _side_by_side(sides, html)


def _head(sides: Sequence[Side], comparison: Comparison | None) -> str:
    found = _side_by_side(sides, lambda side: headline(side.overview))
    return (replay_verdict(comparison) if comparison else "") + found


def _chart_part(
    id: str, name: str, sides: Sequence[Side], shown: Mapping[str, figures.Figure], after: str = ""
) -> Part:
    if not any(f"{id}-{side.key}" in shown for side in sides):
        return Part(id=id, name=name, html="")
    drawn = [side for side in sides if f"{id}-{side.key}" in shown] if id == "lag" else sides
    found = "".join(charts.chart(id, side, shown) for side in drawn) if id == "lag" else ""
    found = found or _side_by_side(sides, lambda side: charts.chart(id, side, shown))
    return Part(id=id, name=name, html=f'<p class="note">{charts.NOTES[id]}</p>{found}{after}')


def _enough(sides: Sequence[Side]) -> str:
    """The speed above which faster storage gains little."""

    def html(side: Side) -> str:
        limit = side.overview.storage_limit
        texts = enough_texts(limit.enough) if isinstance(limit, StorageLimit) else ()
        return "".join(f'<p class="note">{html_text(text)}</p>' for text in texts)

    return _side_by_side(sides, html)


def _slowest_steps(sides: Sequence[Side]) -> str:
    return "".join(
        data_table(f"Slowest steps {side.title.lower()}".strip(), STEPS, _slowest(side), SLOWEST_STEPS)
        for side in sides
        if side.steps
    )


def _slowest(side: Side) -> list[dict[str, Any]]:
    """Rows of `data_tables.STEPS`; their times begin where those of the figures begin."""
    rows = side.overview.analysis.overlap.slowest(SLOWEST_STEPS).to_pylist()
    return [{**row, "start_ns": row["start_ns"] - side.origin_ns} for row in rows]


def _tables(sides: Sequence[Side], name: str, columns: Any, rows: Any, most_rows: int) -> str:
    found = [(f"{name} {side.title.lower()}".strip(), *rows(side.overview, most_rows)) for side in sides if side.io]
    return "".join(data_table(caption, columns, first, most_rows, whole) for caption, first, whole in found)


def _fidelity(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    tables = [section_table(section) for section in comparison_sections(comparison)]
    return f'<div class="columns">{"".join(tables)}</div>'


def _heading(sides: Sequence[Side]) -> str:
    joined = " and its replay " if sides[-1].title == "Replay" else " beside "
    return joined.join(side.overview.name.removesuffix(".capture") for side in sides)
