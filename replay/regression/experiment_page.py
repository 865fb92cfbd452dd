"""The page of `dxt-replay regress --html`, from the object that `--json` prints: verdict, runs, ratios and settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regression.regression_sections import UNIT_TEXTS, compared_with, regression_sections
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import microseconds, or_dash, percent
from dxt_replay.replay.show.page.charts import framed
from dxt_replay.replay.show.page.document import Part, document, load_assets
from dxt_replay.replay.show.page.figures import BLUE, GREEN, GREY, VERMILION, Figure
from dxt_replay.replay.show.page.html_tables import html_text, section_table
from dxt_replay.replay.show.section import Column, Kind, Section
from dxt_replay.traces.units import format_count

_SCRIPTS = ("inflate.js", "carried.js", "figures.js", "experiment.js")

_MARKS = {BASELINE: (BLUE, "circle"), CANDIDATE: (VERMILION, "square")}
"""Colour and shape of the runs of a side."""

_BAND = "rgba(0, 158, 115, 0.3)"
"""GREEN, through which the points show."""

_RUNS_NOTE = (
    "In the order in which the runs were made. A line joins the two runs of a pair; dotted lines are the medians "
    "of the sides. The baseline of a comparison with a record was run in an earlier session."
)
_INTERVALS_NOTE = (
    "The estimate of each metric with its interval; the dashed lines are the threshold. Less is better for times, more "
    "for a bandwidth."
)
_RATIOS_NOTE = (
    "Each point is the candidate against the baseline of one pair. The verdict rests on the estimate and its interval: "
    "above the upper threshold is slower, or, for a bandwidth, faster."
)


def experiment_page(result: Mapping[str, Any]) -> str:
    """The whole page as HTML that needs no network. `result`: the object of `dxt-replay regress --json`."""
    figures = {"runs": runs_figure(result, result["primary"])}
    if result["primary"] in result["metrics"] and not result.get("against"):
        figures["ratios"] = ratios_figure(result)
    if any(metric["ci"][0] is not None for metric in result["metrics"].values()):
        figures["intervals"] = intervals_figure(result)
    others_by_run = {f"runs-{name}": name for name in result["metrics"] if name != result["primary"]}
    figures |= {place: runs_figure(result, name) for place, name in others_by_run.items()}
    verdict, metrics, *rest = regression_sections(result)
    if metrics.title != "Figures":  # no pair came to its end
        metrics, rest = Section(title="", rows=()), [metrics, *rest]
    shown = [
        Part(id="verdict", name="Verdict", html=_verdict([row[0] for row in verdict.rows])),
        Part(id="by-run", name="Runs", html=_chart("runs", "Figure that decides, by run", _RUNS_NOTE, figures)),
        Part(id="by-pair", name="Pairs", html=_chart("ratios", "Change in each pair of runs", _RATIOS_NOTE, figures)),
        Part(
            id="metrics",
            name="Metrics",
            html=(section_table(metrics) if metrics.rows else "")
            + _chart("intervals", "Change of each metric with its interval", _INTERVALS_NOTE, figures),
        ),
        Part(
            id="other-runs",
            name="Other metrics",
            html="".join(_chart(place, METRICS[name].meaning, "", figures) for place, name in others_by_run.items()),
        ),
        Part(id="settings", name="Settings", html=_tables(rest)),
        Part(id="table", name="Table of runs", html=section_table(runs_section(result))),
    ]
    name = f"{result['candidate']} against {compared_with(result)}"
    summary = {"schema_version": 1, **result}
    assets = load_assets(_SCRIPTS)
    sections = [part for part in shown if part.html]
    return document(f"dxt-replay: {name}", name, sections, summary, {"figures": figures}, assets)


def _verdict(sentences: Sequence[str]) -> str:
    first, *others = sentences
    reasons = "".join(f'<p class="note">{html_text(sentence)}</p>' for sentence in others)
    return f'<p class="verdict">{html_text(first)}</p>{reasons}'


def _chart(name: str, label: str, note: str, figures: Mapping[str, Figure]) -> str:
    return framed(name, label, "", "", note, figures[name]["layout"]["height"]) if name in figures else ""


def _tables(sections: Sequence[Section]) -> str:
    return f'<div class="columns">{"".join(section_table(section) for section in sections)}</div>'


def runs_figure(result: Mapping[str, Any], name: str) -> Figure:
    """A metric of each run in order, with the median of each side. Runs without it, such as a stopped one, have no
    point."""
    placed = [(number, run) for number, run in enumerate(result["runs"], start=1) if name in run["metrics"]]
    data = [] if result.get("against") else [_pair_lines(placed, name)]
    data += _medians(placed, name)
    for side, warm_up in product(_MARKS, (False, True)):
        colour, symbol = _MARKS[side]
        own = [(number, run) for number, run in placed if run["side"] == side and run["warmup"] == warm_up]
        if not own:
            continue
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": f"{side}, warm-up" if warm_up else side,
                "x": [number for number, _ in own], "y": [run["metrics"][name] for _, run in own],
                "text": [f"pair {run['pair']}" if run["pair"] else "warm-up" for _, run in own],
                "hovertemplate": f"run %{{x}}, {side}, %{{text}}: %{{y:,.4~g}} {METRICS[name].unit}<extra></extra>",
                "marker": {
                    "size": 9, "color": colour, "line": {"color": colour, "width": 1.5},
                    "symbol": f"{symbol}-open" if warm_up else symbol,
                },
            }
        )  # fmt: skip
    title = f"{METRICS[name].meaning} [{METRICS[name].unit}]" if name in METRICS else name
    return {"data": data, "layout": _layout("run", len(result["runs"]), title)}


def _medians(placed: Sequence[tuple[int, Mapping[str, Any]]], name: str) -> list[Figure]:
    """A line at the median of the runs of each side that count, from the first to the last of them."""
    lines = []
    for side, (colour, _) in _MARKS.items():
        own = [(number, run["metrics"][name]) for number, run in placed if run["side"] == side and run["pair"]]
        if own:
            ends = [own[0][0] - 0.4, own[-1][0] + 0.4]
            median = statistics.median(value for _, value in own)
            lines.append(
                {
                    "type": "scatter", "mode": "lines", "name": f"{side}, median", "x": ends, "y": [median, median],
                    "line": {"color": colour, "width": 1.5, "dash": "dot"}, "hoverinfo": "skip", "showlegend": False,
                }
            )  # fmt: skip
    return lines


def intervals_figure(result: Mapping[str, Any]) -> Figure:
    """The change of each metric with its interval, in per cent, and the threshold on both sides."""
    known = {name: metric for name, metric in result["metrics"].items() if metric["ci"][0] is not None}
    changes = [_change_pct(metric["ratio"]) for metric in known.values()]
    above = [_change_pct(metric["ci"][1]) - change for metric, change in zip(known.values(), changes, strict=True)]
    below = [change - _change_pct(metric["ci"][0]) for metric, change in zip(known.values(), changes, strict=True)]
    limits = [result["rule"]["threshold_pct"], _change_pct(1 / (1 + result["rule"]["threshold_pct"] / 100))]
    points = {
        "type": "scatter", "mode": "markers", "name": "estimate and interval", "x": changes,
        "y": [METRICS[name].meaning for name in known], "marker": {"size": 9, "color": VERMILION, "symbol": "diamond"},
        "error_x": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 5},
        "hovertemplate": "%{y}: %{x:+.2f} %<extra></extra>", "showlegend": False,
    }  # fmt: skip
    layout = {
        "height": 120 + 32 * len(known), "hovermode": "closest",
        "xaxis": {"title": {"text": "change [%]"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "shapes": [
            {
                "type": "line", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "yref": "paper",
                "line": {"width": 1.5, "dash": "dash", "color": GREY},
            }
            for limit in limits
        ],
    }  # fmt: skip
    return {"data": [points], "layout": layout}


def _pair_lines(placed: Sequence[tuple[int, Mapping[str, Any]]], name: str) -> Figure:
    """A line between the two runs of each pair; None ends a line."""
    x: list[int | None] = []
    y: list[float | None] = []
    pairs: dict[int, list[tuple[int, float]]] = {}
    for number, run in placed:
        if run["pair"]:
            pairs.setdefault(run["pair"], []).append((number, run["metrics"][name]))
    for points in pairs.values():
        x += [*(number for number, _ in points), None]
        y += [*(value for _, value in points), None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": GREY, "width": 1}, "hoverinfo": "skip",
        "showlegend": False,
    }  # fmt: skip


def ratios_figure(result: Mapping[str, Any]) -> Figure:
    """Change of the metric that decides in each pair, in per cent, with estimate, interval and threshold."""
    metric, rule = result["metrics"][result["primary"]], result["rule"]
    pairs = list(zip(metric["baseline"], metric["candidate"], strict=True))
    ends = [0.5, len(pairs) + 0.5]
    upper, lower = rule["threshold_pct"], _change_pct(1 / (1 + rule["threshold_pct"] / 100))
    data = [
        _level(ends, upper, "threshold", GREY, "dash"),
        _level(ends, lower, "threshold", GREY, "dash", showlegend=False),
        _level(ends, _change_pct(metric["ratio"]), "estimate", GREEN, "solid"),
    ]
    low, high = metric["ci"]
    if low is not None:
        name = f"{100 * (1 - rule['alpha']):g} % interval"
        band = _level(ends, _change_pct(high), name, _BAND, "dot", fill="tonexty", fillcolor=_BAND)
        data = [_level(ends, _change_pct(low), name, _BAND, "dot", showlegend=False), band, *data]
    data.append(
        {
            "type": "scatter", "mode": "markers", "name": "pair of runs",
            "x": list(range(1, len(pairs) + 1)), "y": [_change_pct(after / before) for before, after in pairs],
            "marker": {"size": 9, "color": VERMILION, "symbol": "diamond"},
            "hovertemplate": "pair %{x}: %{y:+.2f} %<extra></extra>",
        }
    )  # fmt: skip
    return {"data": data, "layout": _layout("pair", len(pairs), f"change of {METRICS[result['primary']].meaning} [%]")}


def _change_pct(ratio: float) -> float:
    return 100 * (ratio - 1)


def _level(ends: Sequence[float], value: float, name: str, colour: str, dash: str, **more: Any) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": list(ends), "y": [value, value],
        "line": {"color": colour, "width": 1.5, "dash": dash}, "hovertemplate": f"{name}: %{{y:+.2f}} %<extra></extra>",
        **more,
    }  # fmt: skip


def _layout(x: str, count: int, y: str) -> Figure:
    return {
        "height": 380, "hovermode": "closest",
        "xaxis": {"title": {"text": x}, "tick0": 0, "dtick": -(-count // 12) or 1, "range": [0.5, count + 0.5]},
        "yaxis": {"title": {"text": y}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip


def runs_section(result: Mapping[str, Any]) -> Section:
    """A table of all runs in order."""
    primary = result["primary"]
    text = UNIT_TEXTS[METRICS[primary].unit] if primary in METRICS else str
    return Section(
        title="All runs",
        columns=(
            Column(head="run", kind=Kind.NUMBER),
            "pair",
            Column(head="side", kind=Kind.TEXT),
            METRICS[primary].meaning if primary in METRICS else primary,
            "lag p99",
            "failed",
            "cached before",
        ),
        rows=tuple(
            (
                str(number),
                str(run["pair"]) if run["pair"] else "warm-up",
                f"{run['side']}, stopped" if run["stopped"] else run["side"],
                or_dash(run["metrics"].get(primary), text),
                or_dash((run["lag_us"] or {}).get("p99"), microseconds),
                format_count(run["failed"]),
                or_dash(run["cache"]["resident_before_pct"], percent),
            )
            for number, run in enumerate(result["runs"], start=1)
        ),
    )
