"""The page of `dxt-replay history --html`: each metric over the records, with levels and change points. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dxt_replay.replay.history.history_sections import change_section, history_sections, level_section
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.page.charts import framed
from dxt_replay.replay.show.page.document import Part, document, load_assets
from dxt_replay.replay.show.page.figures import BLUE, GREEN, GREY, VERMILION, Figure
from dxt_replay.replay.show.page.html_tables import html_text, section_table
from dxt_replay.replay.show.section import Section

_SCRIPTS = ("inflate.js", "carried.js", "figures.js", "experiment.js")
_MOST_POINTS = 5000
"""Runs that are drawn of a metric; of more, every second, third ... one."""

_MOST_ROWS = 1000
_NOTE = (
    "Points are runs, squares the medians of the records with their intervals, the line is the level between change "
    "points, which are dashed."
)


def history_page(history: Mapping[str, Any]) -> str:
    """The whole page as HTML that needs no network. `history`: the object of `dxt-replay history --json`."""
    figures: dict[str, Figure] = {}
    parts = [Part(id="verdict", name="Verdict", html=_sentences([one["headline"] for one in history["series"]]))]
    for number, series in enumerate(history["series"], start=1):
        name = series["capture"] if len(history["series"]) == 1 else f"{number}. {series['capture']}"
        own = {f"s{number}-{metric}": metric for metric in series["metrics"]}
        figures |= {key: levels_figure(series, metric) for key, metric in own.items()}
        charts = "".join(
            framed(key, METRICS[metric].meaning, "", "", _NOTE if metric == series["primary"] else "", 320)
            for key, metric in own.items()
        )
        tables = [change_section(series), level_section(series, series["primary"], _MOST_ROWS)]
        shown = "".join(section_table(section) for section in tables if section.rows)
        parts.append(Part(id=f"series-{number}", name=name, html=_about(series) + charts + shown))
    rule = history_sections(history)[-1]
    parts.append(Part(id="rule", name="Rule", html=section_table(rule)))
    summary = {"schema_version": 1, **history}
    return document("dxt-replay: history", "history of records", parts, summary, {"figures": figures},
                    load_assets(_SCRIPTS))  # fmt: skip


def _sentences(sentences: Sequence[str]) -> str:
    return "".join(f'<p class="verdict">{html_text(sentence)}</p>' for sentence in sentences)


def _about(series: Mapping[str, Any]) -> str:
    rows = (("capture", series["capture"]), ("target", series["target"]), ("pace", series["pace"]))
    warnings = "".join(f'<p class="note">{html_text(text)}</p>' for text in series["warnings"])
    return section_table(Section(title="", rows=rows, prose=True)) + warnings


def levels_figure(series: Mapping[str, Any], name: str) -> Figure:
    """The runs of one metric by record in order, with medians, levels and change points."""
    metric = series["metrics"][name]
    runs = [(place, value) for place, values in enumerate(metric["values"], start=1) for value in values]
    runs = runs[:: -(-len(runs) // _MOST_POINTS) or 1]
    levels = [(place, level) for place, level in enumerate(metric["levels"], start=1) if level is not None]
    unit = metric["unit"]
    hover = f"%{{text}}: %{{y:,.4~g}} {unit}<extra></extra>"
    names = [f"{record['record']}, {record['date']}, kernel {record['kernel']}" for record in series["records"]]
    data = [
        {
            "type": "scatter", "mode": "markers", "name": "run", "x": [place for place, _ in runs],
            "y": [value for _, value in runs], "marker": {"size": 4, "color": GREY}, "hoverinfo": "skip",
        },
        {
            "type": "scatter", "mode": "markers", "name": "median", "x": [place for place, _ in levels],
            "y": [level["median"] for _, level in levels], "marker": {"size": 7, "color": BLUE, "symbol": "square"},
            "text": [html_text(names[place - 1]) for place, _ in levels], "hovertemplate": hover,
            "error_y": _error_bars([level for _, level in levels]),
        },
        _stretches(metric),
    ]  # fmt: skip
    layout = {
        "height": 320, "hovermode": "closest",
        "xaxis": {"title": {"text": "record"}, "range": [0.5, len(names) + 0.5], "tickformat": "d"},
        "yaxis": {"title": {"text": f"{METRICS[name].meaning} [{unit}]"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [
            {
                "type": "line", "x0": change["at"] + 0.5, "x1": change["at"] + 0.5, "y0": 0, "y1": 1, "yref": "paper",
                "line": {"width": 1.5, "dash": "dash", "color": VERMILION},
            }
            for change in metric["changes"]
        ],
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _error_bars(levels: Sequence[Mapping[str, Any]]) -> Figure:
    ends = [(level["median"] if level[end] is None else level[end] for level in levels) for end in ("high", "low")]
    above, below = (list(values) for values in ends)
    return {
        "type": "data", "symmetric": False, "thickness": 1, "width": 3,
        "array": [high - level["median"] for high, level in zip(above, levels, strict=True)],
        "arrayminus": [level["median"] - low for low, level in zip(below, levels, strict=True)],
    }  # fmt: skip


def _stretches(metric: Mapping[str, Any]) -> Figure:
    """A horizontal line at the median of all runs between two change points; None ends a line."""
    x: list[float | None] = []
    y: list[float | None] = []
    for first, last in pairwise([0, *(change["at"] for change in metric["changes"]), len(metric["values"])]):
        values = [value for found in metric["values"][first:last] for value in found]
        if values:
            level = statistics.median(values)
            x += [first + 0.5, last + 0.5, None]
            y += [level, level, None]
    return {
        "type": "scatter", "mode": "lines", "name": "level", "x": x, "y": y, "line": {"color": GREEN, "width": 2},
        "hoverinfo": "skip",
    }  # fmt: skip
