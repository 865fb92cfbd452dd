"""The page of `dxt-replay capacity --html`: the answer, its curves by number of ranks, and all figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dxt_replay.replay.show.capacity_sections import capacity_headline, capacity_sections
from dxt_replay.replay.show.page.charts import framed
from dxt_replay.replay.show.page.document import Part, document, load_assets
from dxt_replay.replay.show.page.figures import BLUE, GREEN, GREY, ORANGE, VERMILION, Figure
from dxt_replay.replay.show.page.html_tables import html_text, section_table

if TYPE_CHECKING:
    from dxt_replay.replay.capacity.result import Capacity

_SCRIPTS = ("inflate.js", "carried.js", "figures.js", "capacity.js")
_PLACE = "capacity-ranks"
_NOTE = (
    "Points are runs. A line leads through the median of each number of ranks. Throughput is over the whole replay. "
    "Latency is of all operations."
)


def capacity_page(found: Capacity) -> str:
    """The whole page as HTML that needs no network."""
    figure = capacity_figure(found)
    label = "Accelerator utilisation, throughput and latency by number of ranks"
    chart = framed(_PLACE, label, "", "", _NOTE if found.runs else "", figure["layout"]["height"])
    tables = "".join(section_table(section) for section in capacity_sections(found)[1:])
    shown = [
        Part(id="answer", name="Answer", html=f'<p class="verdict">{html_text(capacity_headline(found))}</p>{chart}'),
        Part(id="figures", name="Figures", html=f'<div class="columns">{tables}</div>'),
    ]
    name = f"Capacity for {found.capture.name}"
    summary = {"schema_version": 1, **found.as_json()}
    return document(f"dxt-replay: {name}", name, shown, summary, {"figures": {_PLACE: figure}}, load_assets(_SCRIPTS))


def capacity_figure(found: Capacity) -> Figure:
    """Utilisation, throughput and latency against ranks, below each other; a dry run has utilisation alone."""
    with_io = [run for run in found.runs if run.storage]
    measured = {
        "utilisation": ("y", BLUE, [(run.ranks, run.utilisation_pct) for run in with_io]),
        "throughput": ("y2", GREEN, [(run.ranks, run.mib_s) for run in with_io]),
        **{
            f"latency {name}": ("y3", colour, [(run.ranks, run.latency_us[name]) for run in with_io if run.latency_us])
            for name, colour in (("p50", ORANGE), ("p99", VERMILION))
        },
    }
    data: list[Figure] = []
    for name, (axis, colour, points) in measured.items():
        if points:
            data += [_line(name, axis, colour, points), _points(name, axis, {"color": colour}, points)]
    if without := [(run.ranks, run.utilisation_pct) for run in found.runs if not run.storage]:
        data.append(_points("utilisation without I/O", "y", {"color": GREY, "symbol": "x"}, without, legend=True))
    if found.simulated:
        simulated = [(each.ranks, each.utilisation_pct) for each in found.simulated]
        mark = {"color": GREY, "symbol": "circle-open"}
        data.append(_points("simulated utilisation", "y", mark, simulated, legend=True))
    ranks = sorted({x for trace in data for x in trace["x"]})
    limit = {"x": [ranks[0], ranks[-1]], "y": [found.limit_pct] * 2, "line": {"color": GREY, "dash": "dash"}}
    data.append({"type": "scatter", "mode": "lines", "name": "limit", "yaxis": "y", **limit})
    panels = {"yaxis": "utilisation<br>[%]", "yaxis2": "throughput<br>[MiB/s]", "yaxis3": "latency<br>[us]"}
    panels = panels if found.runs else {"yaxis": panels["yaxis"]}
    layout: Figure = {
        "height": 480 if found.runs else 260,
        "xaxis": {"title": {"text": "ranks"}, "anchor": f"y{len(panels)}".replace("y1", "y"), "tickformat": "d"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    for number, (axis, title) in enumerate(panels.items()):
        top = 1 - number / len(panels)
        layout[axis] = {"title": {"text": title}, "domain": [top - 0.9 / len(panels), top], "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _points(
    name: str, axis: str, mark: Mapping[str, str], points: list[tuple[int, float]], *, legend: bool = False
) -> Figure:
    x, y = zip(*points, strict=True)
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "yaxis": axis, "marker": mark,
        "showlegend": legend, "hovertemplate": "%{x} ranks: %{y:,.4~g}",
    }  # fmt: skip


def _line(name: str, axis: str, colour: str, points: list[tuple[int, float]]) -> Figure:
    """A line through the median of each number of ranks."""
    x = sorted({ranks for ranks, _ in points})
    y = [statistics.median(value for ranks, value in points if ranks == each) for each in x]
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "yaxis": axis,
        "line": {"color": colour, "width": 1.5}, "hoverinfo": "skip",
    }  # fmt: skip
