"""Figures of the HTML page as plotly's plain dictionaries (`data`, `layout`); the page adds its theme. Pure.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which people with any colour vision can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_bytes, format_duration

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.timeline import Timeline
    from dxt_replay.replay.show.page.data import LagCourse

Figure = dict[str, Any]

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#8A8A8A"
BROWN, SAND, INDIGO = "#8C5A3C", "#C9BB98", "#3D3D8F"

KIND_COLOURS = {
    "read": BLUE,
    "write": VERMILION,
    "metadata": PURPLE,
    "reconstructed": GREY,
    "compute": GREEN,
    "input wait": ORANGE,
    "collective": PURPLE,
    "checkpoint": YELLOW,
    "evaluation": INDIGO,
    "pipeline": SKY,
    "step": BROWN,
}
"""Colours of the bars of a timeline; only kinds that never share a row have the same colour."""

_PATTERNS = {"POSIX": "", "MPIIO": "x", "STDIO": "/", "HDF5": "."}
_STEP_PARTS = {
    "compute": GREEN, "input_wait": ORANGE, "collective": PURPLE, "checkpoint": YELLOW, "rest": SAND,
}  # fmt: skip

MOST_HEAT_ROWS = 64
MOST_STEP_BARS = 300

HEAT_QUANTITIES = {
    "bandwidth": "bandwidth [MiB/s]",
    "io_busy_share": "time with I/O in flight [%]",
    "in_flight_mean": "operations in flight, mean",
    "compute_busy_share": "time in compute [%]",
}


def course_figure(course: Timeline, origin_ns: int) -> Figure:
    """Bandwidth, operations in flight, and shares of time in I/O and compute over time, below each other."""
    x = _seconds(course.edges_ns() - origin_ns)
    column = {name: course.table[name].to_numpy() for name in course.table.column_names}

    def steps(values: np.ndarray, name: str, colour: str, axis: str, unit: str, **more: Any) -> Figure:
        return {
            "type": "scatter", "mode": "lines", "name": name, "x": x, "y": _held(values), "yaxis": axis,
            "line": {"shape": "hv", "color": colour, "width": 1.5, **more.pop("line", {})},
            "hovertemplate": f"%{{y:,.4~g}} {unit}", "legend": f"legend{axis[1:]}", **more,
        }  # fmt: skip

    data = [
        steps(column["read_mib_s"], "read", BLUE, "y", "MiB/s", fill="tozeroy"),
        steps(column["write_mib_s"], "written", VERMILION, "y", "MiB/s", line={"dash": "dot"}),
        steps(column["in_flight_max"], "most", SKY, "y2", "at once", line={"dash": "dot"}),
        steps(column["in_flight_mean"], "mean", BLUE, "y2", "operations", fill="tozeroy"),
        steps(100 * column["io_busy_share"], "I/O in flight", BLUE, "y3", "%", fill="tozeroy"),
    ]
    if course.table["compute_busy_share"].null_count < course.table.num_rows:
        data.append(steps(100 * column["compute_busy_share"], "compute", GREEN, "y3", "%", line={"dash": "dash"}))
    layout = {
        "height": 560, "hovermode": "x unified",
        "xaxis": {"title": {"text": "time [s]"}, "anchor": "y3"},
        "yaxis": {"title": {"text": "bandwidth<br>[MiB/s]"}, "domain": [0.71, 0.96], "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "operations<br>in flight"}, "domain": [0.36, 0.61], "rangemode": "tozero"},
        "yaxis3": {"title": {"text": "share of<br>time [%]"}, "domain": [0.01, 0.26], "range": [0, 102]},
        "legend": _legend(1.0), "legend2": _legend(0.65), "legend3": _legend(0.3),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _legend(top: float) -> Figure:
    return {"orientation": "h", "x": 0, "y": top, "xanchor": "left", "yanchor": "top", "font": {"size": 11}}


def sizes_figure(powers: pa.Table) -> Figure:
    """Requests, and the bytes that they moved, by power of two of their size (the table sizes), read and write side
    by side, by interface; logarithmic, so that a few small requests show beside many large ones."""
    rows = powers.to_pylist()
    bins = _all_between({(row["least_bytes"], row["most_bytes"]) for row in rows})
    labels = [size_label(*limits) for limits in bins]
    data: list[Figure] = []
    for (interface, op, origin), found in groupby(rows, key=lambda row: (row["interface"], row["op"], row["origin"])):
        by_bin = {(row["least_bytes"], row["most_bytes"]): row for row in found}
        present = [by_bin.get(limits) for limits in bins]
        marked = "" if origin == "traced" else f", {origin}"
        words = [f"{row['operations']:,} operations, {format_bytes(row['bytes'])}" if row else "" for row in present]
        for quantity, axis in (("operations", "y"), ("bytes", "y2")):
            data.append(
                {
                    "type": "bar", "name": f"{interface} {op}s{marked}", "x": labels, "yaxis": axis,
                    "y": [row[quantity] or None if row else None for row in present],
                    "legendgroup": f"{interface} {op} {origin}", "showlegend": axis == "y",
                    "text": words, "textposition": "none",
                    "hovertemplate": "%{x}<br>%{text}<extra>%{fullData.name}</extra>",
                    "marker": {
                        "color": BLUE if op == "read" else VERMILION, "opacity": 1 if origin == "traced" else 0.45,
                        "pattern": {"shape": _PATTERNS.get(interface, "")},
                    },
                }
            )  # fmt: skip
    layout = {
        "height": 520, "barmode": "group", "bargap": 0.15,
        "xaxis": {"title": {"text": "request size [B]"}, "type": "category", "categoryarray": labels, "anchor": "y2",
                  "categoryorder": "array", "tickangle": -40, "automargin": True},
        "yaxis": {"title": {"text": "operations"}, "domain": [0.54, 1], **_log_axis(data, "y")},
        "yaxis2": {"title": {"text": "bytes<br>moved [B]"}, "domain": [0, 0.46], "tickformat": "~s",
                   **_log_axis(data, "y2")},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, "showlegend": True,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _log_axis(data: Sequence[Figure], axis: str) -> Figure:
    """A logarithmic axis from half of the smallest value, so that the bar of that value is visible."""
    values = [value for trace in data if trace["yaxis"] == axis for value in trace["y"] if value]
    if not values:
        return {"type": "log", "range": [-0.3, 1]}
    return {"type": "log", "range": [float(np.log10(min(values) / 2)), float(np.log10(max(values) * 1.5))]}


def _all_between(bins: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The bins and those between them that are empty, so that the axis has no holes; 0 has a bin of its own."""
    powers = [least for least, _ in bins if least]
    if not powers:
        return sorted(bins)
    between = range(min(powers).bit_length() - 1, max(powers).bit_length())
    return sorted({*bins, *((1 << power, (2 << power) - 1) for power in between)})


def size_label(least: int, most: int) -> str:
    """`4Ki–8Ki` for 4096 to 8191 bytes, `0 B` for a single size."""
    if least == most:
        return format_bytes(least)
    return f"{_short(least)}–{_short(most + 1)}"


def _short(size: int) -> str:
    """A power of two with its binary prefix: 4096 -> `4Ki`."""
    for power, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << power:
            return f"{size >> power}{unit}"
    return f"{size}"


def heat_figure(by_rank: Timeline, origin_ns: int) -> Figure:
    """Heat maps of rank over time, for each of HEAT_QUANTITIES that is known; one is visible, and `meta` names it."""
    edges = _seconds(by_rank.edges_ns() - origin_ns)
    data: list[Figure] = []
    for name, label in HEAT_QUANTITIES.items():
        matrix, labels = _by_rows(_heat_matrix(by_rank, name), by_rank.ranks)
        if name == "compute_busy_share" and np.isnan(matrix).all():
            continue
        known = matrix[np.isfinite(matrix) & (matrix > 0)]
        top = 100.0 if name.endswith("_share") else float(np.quantile(known, 0.99)) if len(known) else 1.0
        data.append(
            {
                "type": "heatmap", "x": edges, "y": labels, "z": _matrix(matrix), "name": label, "meta": name,
                "zmin": 0, "zmax": top or 1.0, "colorscale": "Cividis", "visible": not data,
                "hoverongaps": False,
                "hovertemplate": f"rank %{{y}}, from %{{x:.4~g}} s<br>%{{z:,.3~g}} {label}<extra></extra>",
                "colorbar": {"title": {"text": label, "side": "right"}, "thickness": 14, "len": 1.0},
            }
        )  # fmt: skip
    rows = len(data[0]["y"]) if data else 0
    layout = {
        "height": 150 + 14 * max(rows, 6),
        "xaxis": {"title": {"text": "time [s]"}},
        "yaxis": {"title": {"text": "rank"}, "type": "category", "autorange": "reversed"},
    }
    return {"data": data, "layout": layout}


def _heat_matrix(by_rank: Timeline, name: str) -> np.ndarray:
    if name == "bandwidth":
        return by_rank.matrix("read_mib_s") + by_rank.matrix("write_mib_s")
    matrix = np.asarray(by_rank.matrix(name), dtype=np.float64)
    return 100 * matrix if name.endswith("_share") else matrix


def _by_rows(matrix: np.ndarray, ranks: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    """At most MOST_HEAT_ROWS rows: means over neighbouring ranks where there are more."""
    if len(ranks) <= MOST_HEAT_ROWS:
        return matrix, [f"{rank}" for rank in ranks]
    parts = np.array_split(np.arange(len(ranks)), MOST_HEAT_ROWS)
    labels = [f"{ranks[part[0]]}–{ranks[part[-1]]}" for part in parts]
    return np.stack([matrix[part].mean(axis=0) for part in parts]), labels


def step_bar_width(steps: int) -> int:
    """Steps that a bar of the step figure joins, so that it has at most MOST_STEP_BARS."""
    return max(-(-steps // MOST_STEP_BARS), 1)


def steps_figure(steps: pa.Table) -> Figure:
    """Where the time of the steps went, mean over the ranks, and the slowest rank (`steps.STEPS_SCHEMA`)."""
    number, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    width = step_bar_width(len(number))
    group = place // width
    count = np.bincount(group)
    x = number[::width].tolist()
    duration = steps["duration_ns"].to_numpy() / NS_PER_MS
    slowest = np.zeros(len(count))
    np.maximum.at(slowest, group, duration)
    data: list[Figure] = []
    for name, colour in _STEP_PARTS.items():
        mean = np.bincount(group, weights=steps[f"{name}_ns"].to_numpy() / NS_PER_MS) / count
        if mean.any():
            label = {"input_wait": "input wait (or reading)", "rest": "rest"}.get(name, name)
            data.append(
                {"type": "bar", "name": label, "x": x, "y": _rounded(mean), "marker": {"color": colour},
                 "width": width, "offset": 0, "hovertemplate": "%{y:,.4~g} ms"}
            )  # fmt: skip
    io = np.bincount(group, weights=steps["io_ns"].to_numpy() / NS_PER_MS) / count
    for label, values, style in (
        *([("I/O in flight", io, {"color": BLUE, "width": 1.5})] if io.any() else []),
        ("slowest rank", slowest, {"color": VERMILION, "width": 1, "dash": "dot"}),
    ):
        middle = [left + width / 2 for left in x]
        data.append(
            {"type": "scatter", "mode": "lines", "name": label, "x": middle, "y": _rounded(values), "line": style,
             "hovertemplate": "%{y:,.4~g} ms"}
        )  # fmt: skip
    top, usual = float(slowest.max()), float(np.quantile(slowest, 0.98))
    layout: Figure = {
        "height": 400, "barmode": "stack", "bargap": 0, "hovermode": "x unified",
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "time per step [ms]"}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    if usual > 0 and top > 3 * usual:
        layout["yaxis"]["range"] = [0, 1.3 * usual]
        layout["meta"] = f"The axis ends above the usual steps; the longest took {format_duration(top * NS_PER_MS)}."
    return {"data": data, "layout": layout}


def lag_figure(lag: LagCourse, origin_ns: int, jitter_us: Mapping[str, float] | None) -> Figure:
    """Lag over time, and the jitter of this machine."""
    edges = lag.start_ns - origin_ns + lag.bin_ns * np.arange(len(lag.mean_us) + 1, dtype=np.int64)
    x = _seconds(edges[:-1] + lag.bin_ns // 2)
    data: list[Figure] = [
        {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": _rounded(np.maximum(values, 1e-3)),
         "line": {"color": colour, "width": 1}, "marker": {"size": 4, "symbol": symbol},
         "hovertemplate": "%{y:,.4~g} us"}
        for name, values, colour, symbol in (
            ("mean", lag.mean_us, BLUE, "circle"), ("most", lag.max_us, VERMILION, "diamond"),
        )
    ]  # fmt: skip
    if jitter_us and "p99" in jitter_us:
        data.append(
            {"type": "scatter", "mode": "lines", "name": "this machine's jitter, p99", "x": [x[0], x[-1]],
             "y": [jitter_us["p99"]] * 2, "line": {"color": GREY, "dash": "dash"}, "hovertemplate": "%{y:,.4~g} us"}
        )  # fmt: skip
    layout = {
        "height": 340, "hovermode": "x unified",
        "xaxis": {"title": {"text": "time [s]"}},
        "yaxis": {"title": {"text": "lag [us]"}, "type": "log"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def align_steps(several: Sequence[Figure]) -> None:
    """Give the step figures of two captures axes of the same height."""
    if len(several) < 2:
        return
    tops = [figure["layout"]["yaxis"].get("range", [0, 1.05 * max(figure["data"][-1]["y"])])[1] for figure in several]
    for figure in several:
        figure["layout"]["yaxis"]["range"] = [0, max(tops)]


def align(several: Sequence[Figure]) -> None:
    """Give figures of two captures axes of the same length, so that equal heights are equal values."""
    if len(several) < 2:
        return
    limits = [(figure["data"][0]["x"][0], figure["data"][0]["x"][-1]) for figure in several]
    window = [min(low for low, _ in limits), max(high for _, high in limits)]
    for figure in several:
        figure["layout"]["xaxis"]["range"] = window
    for axis in ("y", "y2"):
        traces = [trace for figure in several for trace in figure["data"] if trace.get("yaxis") == axis]
        top = max((value for trace in traces for value in trace["y"] if value is not None), default=0)
        for figure in several if top else ():
            figure["layout"][f"yaxis{axis[1:]}"]["range"] = [0, 1.05 * top]
    for name in HEAT_QUANTITIES:
        traces = [trace for figure in several for trace in figure["data"] if trace.get("meta") == name]
        for trace in traces:
            trace["zmax"] = max(other["zmax"] for other in traces)


def _seconds(times_ns: np.ndarray) -> list[float]:
    found: list[float] = np.round(times_ns / NS_PER_S, 9).tolist()
    return found


def _held(values: np.ndarray) -> list[float | None]:
    """Values of bins at their left edges, the last one again at its right edge."""
    return _rounded(np.append(values, values[-1:]))


def _rounded(values: np.ndarray) -> list[float | None]:
    """Six significant digits; None for nan."""
    return [None if not np.isfinite(value) else float(f"{value:.6g}") for value in values.tolist()]


def _matrix(values: np.ndarray) -> list[list[float | None]]:
    """Three significant digits; None for nan and for 0, which stays blank."""
    return [
        [None if not np.isfinite(value) or value == 0 else float(f"{value:.3g}") for value in row]
        for row in values.tolist()
    ]
