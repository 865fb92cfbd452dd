"""The charts of pages and notebooks as plotly's plain dictionaries (`data`, `layout`), and the bars of the timeline.

`layout.meta` is for the page: `time`: the x axis is the page's window of time; `note`: a sentence below the chart. A
trace's `meta` is the number of the choice that shows it. Colours are those of Okabe and Ito
(jfly.uni-koeln.de/color), which people with any colour vision can distinguish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import MIB, NS_PER_MS, NS_PER_S, NS_PER_US, format_bytes, format_duration

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.bars import Bars
    from dxt_replay.profiler_merge.analysis.overview import FileOffsets, Overview
    from dxt_replay.profiler_merge.analysis.timeline import Timeline
    from dxt_replay.traces.storage_limit import StorageLimit
    from dxt_replay.traces.store.reader import Capture

Figure = dict[str, Any]

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#8A8A8A"
BROWN, SAND, INDIGO = "#8C5A3C", "#C9BB98", "#5B5BB5"

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

_STEP_PARTS = {
    "compute": GREEN, "input_wait": ORANGE, "collective": PURPLE, "checkpoint": YELLOW, "rest": SAND,
}  # fmt: skip
_PATTERNS = {"POSIX": "", "MPIIO": "x", "STDIO": "/", "HDF5": "."}
_HEAT = {
    "bandwidth": "bandwidth",
    "io_busy_share": "time with I/O in flight [%]",
    "in_flight_mean": "operations in flight, mean",
    "compute_busy_share": "time in compute [%]",
}
_STORAGE_LINES = {
    "speed": ("all of storage", {"color": BLUE, "width": 2}),
    "bandwidth": ("bandwidth alone", {"color": VERMILION, "width": 1.5, "dash": "dash"}),
    "latency": ("latency alone", {"color": GREY, "width": 1.5, "dash": "dot"}),
}
_LOOP_ROWS = {"step": "steps", "pipeline": "input"}
"""Rows of a rank that kinds of spans are drawn in; all others are in `loop`."""

MOST_ROWS = 64
"""Most rows of a timeline. Ranks that do not fit are left out; the first rank is always there."""
MOST_HEAT_ROWS, MOST_STEP_BARS, LAG_BINS = 64, 300, 300
MOST_BARS = 6000
"""Bars of a timeline in a notebook, as many as it draws at once; operations that are close together share one."""
FIGURES = ("timeline", "bandwidth", "heat", "sizes", "steps", "lag")
"""Names of the charts for notebooks."""
PATH_TAIL = 70
"""The charts show so many characters of a path: its end, because the files of a data set differ there."""

_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}


def _lines(name: str, x: Sequence[float], y: Sequence[float | None], unit: str, **more: Any) -> Figure:
    hover = {"hovertemplate": f"%{{y:,.4~g}} {unit}"}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **hover, **more}


def _axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, **more}


def _to(values: Iterable[float | None], room: float = 1.05) -> list[float]:
    """The range of an axis from 0 to a little above the largest value."""
    return [0, room * max((value for value in values if value is not None), default=0) or 1]


def course_figure(course: Timeline, origin_ns: int, axis: str = "time [s]") -> Figure:
    """Bandwidth, operations in flight, and shares of time in I/O and compute over time, below each other."""
    x = _seconds(course.edges_ns() - origin_ns)
    column = {name: course.table[name].to_numpy() for name in course.table.column_names}
    data: list[Figure] = []
    for name, values, colour, place, unit, more in (
        ("read", column["read_mib_s"], BLUE, "y", "MiB/s", {"fill": "tozeroy"}),
        ("written", column["write_mib_s"], VERMILION, "y", "MiB/s", {"dash": "dot"}),
        ("most", column["in_flight_max"], SKY, "y2", "at once", {"dash": "dot"}),
        ("mean", column["in_flight_mean"], BLUE, "y2", "operations", {"fill": "tozeroy"}),
        ("I/O in flight", 100 * column["io_busy_share"], BLUE, "y3", "%", {"fill": "tozeroy"}),
        ("compute", 100 * column["compute_busy_share"], GREEN, "y3", "%", {"dash": "dash"}),
    ):
        if np.isfinite(values).any():
            line = {"shape": "hv", "color": colour, "width": 1.5, "dash": more.get("dash", "solid")}
            held = _rounded(np.append(values, values[-1:]))
            look = {"fill": more.get("fill", "none"), "legend": f"legend{place[1:]}", "yaxis": place}
            data.append(_lines(name, x, held, unit, line=line, **look))
    tops = {place: _to(y for trace in data if trace["yaxis"] == place for y in trace["y"]) for place in ("y", "y2")}
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "top", "font": {"size": 11}}
    layout = {
        "height": 520, "hovermode": "x unified", "meta": {"time": True},
        "xaxis": _axis(axis, anchor="y3"),
        "yaxis": _axis("bandwidth", domain=[0.71, 0.95], range=tops["y"], **_rate_ticks(tops["y"][1])),
        "yaxis2": _axis("operations<br>in flight", domain=[0.36, 0.6], range=tops["y2"]),
        "yaxis3": _axis("share of<br>time [%]", domain=[0.01, 0.25], range=[0, 102]),
        "legend": {**legend, "y": 1.0}, "legend2": {**legend, "y": 0.65}, "legend3": {**legend, "y": 0.3},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def heat_figure(by_rank: Timeline, origin_ns: int, axis: str = "time [s]") -> Figure:
    edges = _seconds(by_rank.edges_ns() - origin_ns)
    parts = np.array_split(np.arange(len(by_rank.ranks)), min(MOST_HEAT_ROWS, len(by_rank.ranks)))
    ends = [(by_rank.ranks[part[0]], by_rank.ranks[part[-1]]) for part in parts]
    labels = [f"{first}" if first == last else f"{first}–{last}" for first, last in ends]
    data: list[Figure] = []
    for name, label in _HEAT.items():
        share = name.endswith("_share")
        if name == "bandwidth":
            matrix = by_rank.matrix("read_mib_s") + by_rank.matrix("write_mib_s")
        else:
            matrix = np.asarray(by_rank.matrix(name), dtype=np.float64) * (100 if share else 1)
        if np.isnan(matrix).all():
            continue
        rows = np.stack([matrix[part].mean(axis=0) for part in parts])
        known = rows[np.isfinite(rows) & (rows > 0)]
        top = 100.0 if share else float(np.quantile(known, 0.99)) if len(known) else 1.0
        ticks, unit = (_rate_ticks(top, 4), "MiB/s") if name == "bandwidth" else ({"nticks": 5}, label)
        data.append(
            {
                "type": "heatmap", "x": edges, "y": labels, "z": _blank(rows), "name": label, "meta": len(data),
                "zmin": 0, "zmax": top, "colorscale": "Cividis", "visible": not data, "hoverongaps": False,
                "hovertemplate": f"rank %{{y}}, from %{{x:.4~g}} s<br>%{{z:,.3~g}} {unit}<extra></extra>",
                # above it, so that this chart is as wide as the others of time
                "colorbar": {"orientation": "h", "y": 1, "yanchor": "bottom", "ypad": 4, "thickness": 10, **ticks},
            }
        )  # fmt: skip
    layout = {
        "height": 130 + 14 * max(len(labels), 6), "meta": {"time": True},
        "xaxis": _axis(axis), "yaxis": _axis("rank", type="category", autorange="reversed"),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _blank(values: np.ndarray) -> list[list[float | None]]:
    """Three significant digits; None for nan and for 0, which stays blank."""
    return [[float(f"{value:.3g}") if np.isfinite(value) and value else None for value in row] for row in values]


def sizes_figure(powers: pa.Table) -> Figure:
    """Requests, and the bytes that they moved, by power of two of their size (the table sizes), by interface and
    direction; logarithmic, so that a few small requests show beside many large ones."""
    rows = powers.to_pylist()
    bins = {(row["least_bytes"], row["most_bytes"]) for row in rows}
    nonzero = [least for least, _ in bins if least]
    if nonzero:  # the axis has no holes
        bins |= {(1 << n, (2 << n) - 1) for n in range(min(nonzero).bit_length() - 1, max(nonzero).bit_length())}
    ordered = sorted(bins)
    labels = [size_label(*limits) for limits in ordered]
    data: list[Figure] = []
    for (interface, op, origin), found in groupby(rows, key=lambda row: (row["interface"], row["op"], row["origin"])):
        by_bin = {(row["least_bytes"], row["most_bytes"]): row for row in found}
        present = [by_bin.get(limits) for limits in ordered]
        words = [f"{row['operations']:,} operations, {format_bytes(row['bytes'])}" if row else "" for row in present]
        traced = origin == "traced"
        for quantity, axis in (("operations", "y"), ("bytes", "y2")):
            data.append(
                {
                    "type": "bar", "name": f"{interface} {op}s{'' if traced else f', {origin}'}", "x": labels,
                    "y": [row[quantity] or None if row else None for row in present], "yaxis": axis,
                    "legendgroup": f"{interface} {op} {origin}", "showlegend": axis == "y",
                    "text": words, "textposition": "none",
                    "hovertemplate": "%{x}<br>%{text}<extra>%{fullData.name}</extra>",
                    "marker": {
                        "color": BLUE if op == "read" else VERMILION, "opacity": 1 if traced else 0.45,
                        "pattern": {"shape": _PATTERNS.get(interface, "")},
                    },
                }
            )  # fmt: skip
    operations, moved = ([y for each in data if each["yaxis"] == a for y in each["y"] if y] for a in ("y", "y2"))
    layout = {
        "height": 500, "barmode": "group", "bargap": 0.15, "showlegend": True, "legend": _LEGEND, "meta": {},
        "xaxis": _axis("size of a request", type="category", categoryorder="array", categoryarray=labels, anchor="y2",
                       tickangle=-40, automargin=True),
        "yaxis": _axis("requests", domain=[0.54, 1], dtick=1, **_from_half(operations)),
        "yaxis2": _axis("bytes moved", domain=[0, 0.46], **_byte_ticks(moved, log=True), **_from_half(moved)),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _from_half(values: Sequence[int]) -> Figure:
    """A logarithmic axis from half of the smallest value, so that the bar of that value is visible."""
    ends = [np.log10(min(values) / 2), np.log10(max(values) * 1.5)] if values else [-0.3, 1]
    return {"type": "log", "range": [float(end) for end in ends]}


def _byte_ticks(values: Sequence[int], most: int = 6, *, log: bool = False) -> Figure:
    """Ticks at binary multiples of a byte, at most about so many."""
    top = max(values, default=1) or 1
    if log:
        low, high = min(values, default=1).bit_length() - 1, top.bit_length()
        places = [1 << power for power in range(low, high + 1, max(-(-(high - low) // most), 1))]
    else:
        step = 1 << max((top // most).bit_length(), 0)
        places = list(range(0, top + step, step))
    return {"tickvals": places, "ticktext": [binary(place) for place in places]}


def _rate_ticks(top_mib_s: float, most: int = 6) -> Figure:
    """Ticks of an axis of MiB/s in binary units."""
    ticks = _byte_ticks([round(top_mib_s * MIB)], most)
    return {"tickvals": [each / MIB for each in ticks["tickvals"]], "ticktext": [f"{t}/s" for t in ticks["ticktext"]]}


def size_label(least: int, most: int) -> str:
    """`4–8 KiB` for 4096 to 8191 bytes, `0 B` for a single size."""
    if least == most:
        return binary(least)
    low, high = binary(least), binary(most + 1)
    return f"{low.split()[0] if low.split()[1] == high.split()[1] else low}–{high}"


def binary(size: int) -> str:
    """A size without rounding it: `1.5 MiB`."""
    power = max(size.bit_length() - 1, 0) // 10
    return f"{size / (1 << 10 * power):g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"


def steps_figure(steps: pa.Table) -> Figure:
    number, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    width = max(-(-len(number) // MOST_STEP_BARS), 1)
    x, group = number[::width].tolist(), place // width
    count = np.bincount(group)
    column = {name: steps[name].to_numpy() / NS_PER_MS for name in steps.column_names if name.endswith("_ns")}
    slowest, whole = np.zeros(len(count)), np.bincount(group, weights=column["duration_ns"]) / count
    np.maximum.at(slowest, group, column["duration_ns"])
    data: list[Figure] = []
    for name, colour in _STEP_PARTS.items():
        mean = np.bincount(group, weights=column[f"{name}_ns"]) / count
        if mean.any():
            data.append(
                {"type": "bar", "name": {"input_wait": "input wait (or reading)"}.get(name, name), "x": x,
                 "y": _rounded(mean), "marker": {"color": colour}, "width": width, "offset": 0,
                 "hovertemplate": "%{y:,.4~g} ms"}
            )  # fmt: skip
    middle = [left + width / 2 for left in x]
    io = np.bincount(group, weights=column["io_ns"]) / count
    for label, values, line in (
        ("I/O in flight", io, {"color": BLUE, "width": 1.5}),
        ("slowest rank", slowest, {"color": VERMILION, "width": 1.5, "dash": "dot"}),
    ):
        if values.any():
            data.append(_lines(label, middle, _rounded(values), "ms", line=line, yaxis="y2", legend="legend2"))
    note, tops = "", []
    for values in (whole, np.maximum(slowest, io)):
        usual, top = float(np.quantile(values, 0.98)), float(values.max())
        cut = 0 < 3 * usual < top
        tops.append([0, 1.3 * usual] if cut else _to([top]))
        note = f"The axes end above the usual steps; the longest took {format_duration(top * NS_PER_MS)}." * cut
    layout: Figure = {
        "height": 440, "barmode": "stack", "bargap": 0, "hovermode": "x unified", "meta": {"note": note},
        "xaxis": _axis("step"),
        "yaxis": _axis("mean step [ms]", domain=[0, 0.64], range=tops[0]),
        "yaxis2": _axis("[ms]", domain=[0.72, 0.97], range=tops[1]),
        "legend": {**_LEGEND, "y": -0.2, "yanchor": "top", "traceorder": "normal"}, "legend2": {**_LEGEND, "y": 0.98},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def storage_figure(limit: StorageLimit) -> Figure:
    """The time of the training by the speed of storage, a line for each quantity, so that 1 x is the recorded time."""
    shift_ns = limit.recorded_ns - limit.model_ns
    times_s = {
        (point.quantity, point.multiple): round((point.elapsed_ns + shift_ns) / NS_PER_S, 6) for point in limit.points
    }
    multiples = sorted({multiple for _, multiple in times_s if multiple is not None})
    data: list[Figure] = []
    for quantity, (name, line) in _STORAGE_LINES.items():
        x = [multiple for multiple in multiples if (quantity, multiple) in times_s]
        y = [times_s[quantity, multiple] for multiple in x]
        if x:
            data.append({**_lines(name, x, y, "s", line=line), "mode": "lines+markers"})
    fastest = next(time for (_, multiple), time in times_s.items() if multiple is None)
    ends = [multiples[0], multiples[-1]]
    data.append(_lines("infinitely fast", ends, [fastest] * 2, "s", line={"color": GREY, "width": 1}))
    layout = {
        "height": 340, "hovermode": "x unified", "legend": _LEGEND, "meta": {},
        "xaxis": _axis("speed of storage [x recorded]", type="log", tickvals=multiples, tickangle=0,
                       ticktext=[f"{each:g}" for each in multiples]),
        "yaxis": _axis("training [s]", range=_to(y for trace in data for y in trace["y"])),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def offsets_figure(
    found: Sequence[FileOffsets], paths: Sequence[str], origin_ns: int, axis: str = "time [s]"
) -> Figure:
    """Where the busiest files were read and written over time: a line for each operation, from its first byte when it
    begins to its last byte when it ends; one file is visible."""
    data: list[Figure] = []
    for number, file in enumerate(found):
        for name, written, colour in (("read", 0, BLUE), ("write", 1, VERMILION)):
            own = file.written == written
            if own.any():
                x = np.stack([file.start_ns[own], file.end_ns[own]], axis=1) - origin_ns
                y = np.stack([file.offset[own], file.offset[own] + file.length[own]], axis=1)
                blank = [None] * int(own.sum())
                data.append(
                    {
                        "type": "scatter", "mode": "lines+markers", "name": name, "meta": number,
                        "visible": number == 0, "connectgaps": False, "line": {"color": colour, "width": 2},
                        "marker": {"size": 3, "color": colour},
                        "x": _flat(*zip(*(x / NS_PER_S).round(9).tolist(), strict=True), blank),
                        "y": _flat(*zip(*y.tolist(), strict=True), blank),
                        "customdata": _flat(file.rank[own].tolist(), file.rank[own].tolist(), blank),
                        "hovertemplate": "offset %{y:,} B at %{x:.6f} s, rank %{customdata}",
                    }
                )  # fmt: skip
    top = [int((file.offset + file.length).max()) for file in found]
    choices = [
        f"{printable(paths[file.file_id])[-PATH_TAIL:]} ("
        + (f"1 in {file.one_in:,} of {file.operations:,}" if file.one_in > 1 else f"all {file.operations:,}")
        + " operations)"
        for file in found
    ]
    layout = {
        "height": 340, "hovermode": "closest", "showlegend": True, "legend": _LEGEND,
        "meta": {"time": True, "choices": choices, "axes": [_byte_ticks([size]) for size in top]},
        "xaxis": _axis(axis), "yaxis": _axis("offset", rangemode="tozero", fixedrange=True, **_byte_ticks(top[:1])),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _flat(*columns: Sequence[Any]) -> list[Any]:
    return [value for row in zip(*columns, strict=True) for value in row]


def lag_course(replay: Capture) -> dict[str, np.ndarray] | None:
    """How late the operations of a replay began, in LAG_BINS bins of equal width by the time at which they were due:
    `due_ns` (middle of a bin), `mean_us`, `most_us` (nan without operations). None if the capture has no due times.

    Raises: CaptureError when a part is damaged.
    """

    def due_and_lag() -> Iterable[tuple[np.ndarray, np.ndarray]]:
        for batch in replay.operations(columns=["start_ns", "due_ns"]):
            known = batch.filter(batch.column("due_ns").is_valid())
            due = known.column("due_ns").to_numpy()
            if len(due):
                yield due, known.column("start_ns").to_numpy() - due

    limits = [(int(due.min()), int(due.max())) for due, _ in due_and_lag()]
    if not limits:
        return None
    first, last = min(low for low, _ in limits), max(high for _, high in limits)
    width = (last - first) // LAG_BINS + 1
    count, total, most = np.zeros(LAG_BINS), np.zeros(LAG_BINS), np.full(LAG_BINS, -np.inf)
    for due, lag in due_and_lag():
        place = (due - first) // width
        count += np.bincount(place, minlength=LAG_BINS)
        total += np.bincount(place, weights=lag, minlength=LAG_BINS)
        np.maximum.at(most, place, lag)
    with np.errstate(invalid="ignore"):
        mean = total / np.where(count, count, np.nan)
    middles = first + width // 2 + width * np.arange(LAG_BINS, dtype=np.int64)
    return {"due_ns": middles, "mean_us": mean / NS_PER_US, "most_us": np.where(count, most, np.nan) / NS_PER_US}


def lag_figure(
    lag: Mapping[str, np.ndarray], origin_ns: int, jitter_us: Mapping[str, float] | None, axis: str = "time [s]"
) -> Figure:
    x = _seconds(lag["due_ns"] - origin_ns)
    data = [
        {**_lines(name, x, _rounded(np.maximum(lag[f"{name}_us"], 1e-3)), "us", line={"color": colour, "width": 1}),
         "mode": "lines+markers", "marker": {"size": 4, "symbol": symbol}}
        for name, colour, symbol in (("mean", BLUE, "circle"), ("most", VERMILION, "diamond"))
    ]  # fmt: skip
    if jitter_us and "p99" in jitter_us:
        line = {"color": GREY, "dash": "dash"}
        data.append(_lines("this machine's jitter, p99", [x[0], x[-1]], [jitter_us["p99"]] * 2, "us", line=line))
    layout = {
        "height": 320, "hovermode": "x unified", "legend": _LEGEND, "meta": {"time": True},
        "xaxis": _axis(axis), "yaxis": _axis("lag [us]", type="log"),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def align(figures: Sequence[Figure]) -> None:
    """Give the same figure of two captures equal axes, so that equal heights are equal values."""
    for name in {name for each in figures for name in each["layout"] if name.startswith("yaxis")}:
        axes = [each["layout"][name] for each in figures]
        if len(axes) > 1 and all("range" in axis and axis.get("type") != "log" for axis in axes):
            highest = max(axes, key=lambda axis: axis["range"][1])
            for axis in axes:
                axis.update({key: highest[key] for key in ("range", "tickvals", "ticktext") if key in highest})
    for heat in zip(*(each["data"] for each in figures), strict=False):
        if heat[0]["type"] == "heatmap":
            highest = max(heat, key=lambda trace: trace["zmax"])
            for trace in heat:
                trace.update(zmax=highest["zmax"], colorbar=highest["colorbar"])


def timeline(overview: Overview, origin_ns: int, *, estimates: bool = True) -> dict[str, Any]:
    """Rows and tracks of a timeline; times in ns from `origin_ns`, starts as differences to the one before.

    A track without `operations`, `bytes` or `file` has one operation, no bytes or no file in each bar. `estimates`:
    whether operations are drawn that only counters show.
    """
    rows: dict[int, dict[str, str]] = {}
    for rank, kind in overview.loops.tracks:
        rows.setdefault(rank, {})[_LOOP_ROWS.get(kind, "loop")] = f"r{rank} {_LOOP_ROWS.get(kind, 'loop')}"
    drawn = {track: bars for track, bars in overview.lanes.tracks.items() if estimates or track[2] != "reconstructed"}
    for rank, lane, _ in drawn:
        role = overview.roles.get((rank, lane))
        rows.setdefault(rank, {})[f"lane {lane}"] = f"r{rank} lane {lane}{f' ({role})' if role else ''}"
    places: dict[tuple[int, str], int] = {}
    labels: list[str] = []
    for rank in sorted(rows):
        if labels and len(labels) + len(rows[rank]) > MOST_ROWS:
            break
        for name, label in rows[rank].items():
            places[rank, name] = len(labels)
            labels.append(label)
    found = [((rank, _LOOP_ROWS.get(kind, "loop")), kind, bars) for (rank, kind), bars in overview.loops.tracks.items()]
    found += [((rank, f"lane {lane}"), kind, bars) for (rank, lane, kind), bars in drawn.items()]
    kept = [(places[row], kind, bars) for row, kind, bars in found if row in places]
    files = sorted({int(each) for _, _, bars in kept for each in np.unique(bars.file_id)})
    first, last = overview.course.edges_ns()[[0, -1]].tolist()
    return {
        "rows": labels,
        "lanes": [name.startswith("lane ") for _, name in places],
        "ranks": [rank for rank, _ in places],
        "tracks": [{"row": row, "kind": kind, **_columns(bars, origin_ns)} for row, kind, bars in kept],
        "from_ns": first - origin_ns,
        "until_ns": last - origin_ns,
        "files": {str(each): printable(overview.paths[each])[-PATH_TAIL:] for each in files if each >= 0},
        "windows": [
            {"name": window.name, "from_ns": window.from_ns - origin_ns, "until_ns": window.until_ns - origin_ns}
            for window in overview.lanes.windows
        ],
    }


def _columns(bars: Bars, origin_ns: int) -> dict[str, Any]:
    length = bars.end_ns - bars.start_ns
    columns = {"start": np.diff(bars.start_ns, prepend=origin_ns).tolist(), "length": length.tolist()}
    if (bars.operations != 1).any():
        columns["operations"] = bars.operations.tolist()
        columns["idle"] = np.maximum(length - bars.busy_ns, 0).tolist()
    optional = {"bytes": (bars.bytes, 0), "file": (bars.file_id, -1), "offset": (bars.offset, -1)}
    return columns | {name: each.tolist() for name, (each, none) in optional.items() if (each != none).any()}


def timeline_figure(overview: Overview) -> Figure:
    """The timeline as a plotly figure: bars of the operations of each lane and of the training loop."""
    line = timeline(overview, 0)
    data: list[Figure] = []
    for track in line["tracks"]:
        kind, row = track["kind"], line["rows"][track["row"]]
        count = len(track["start"])
        texts = []
        for length, operations, moved, file in zip(
            track["length"],
            *(track.get(name, [none] * count) for name, none in (("operations", 1), ("bytes", 0), ("file", -1))),
            strict=True,
        ):
            what = kind if operations == 1 else f"{operations} x {kind}"
            size = f", {format_bytes(moved)}" if moved else ""
            # Plotly reads tags in its texts.
            path = f"<br>{escape(line['files'][str(file)], quote=False)}" if file >= 0 else ""
            texts.append(f"{what}, {length / NS_PER_MS:.4g} ms{size}{path}")
        data.append(
            {
                "type": "bar", "orientation": "h", "name": kind, "legendgroup": kind,
                "showlegend": kind not in {trace["name"] for trace in data},
                "base": (np.cumsum(track["start"]) / NS_PER_S).tolist(),
                "x": (np.array(track["length"]) / NS_PER_S).tolist(), "y": [row] * count,
                "marker": {"color": KIND_COLOURS[kind], "line": {"width": 0}},
                "hovertext": texts, "hoverinfo": "text+y", "textposition": "none",
            }
        )  # fmt: skip
    layout = {
        "height": 160 + 22 * len(line["rows"]), "barmode": "overlay", "bargap": 0.15, "hovermode": "closest",
        "xaxis": _axis("time [s]"), "legend": _LEGEND,
        "yaxis": {
            "type": "category", "categoryorder": "array", "categoryarray": line["rows"], "autorange": "reversed",
        },
    }  # fmt: skip
    return {"data": data, "layout": layout}


def drawing(capture: Capture, name: str) -> Figure:
    """One of FIGURES for plotly. Raises: UsageError when the capture has no steps or is not a replay."""
    from dxt_replay.profiler_merge.analysis import loop, overview, queries, tables
    from dxt_replay.profiler_merge.analysis.timeline import timeline as course

    if name == "timeline":
        return timeline_figure(overview.overview(capture, most_bars=MOST_BARS))
    if name == "bandwidth":
        return course_figure(course(capture, bins=overview.COURSE_BINS), 0)
    if name == "heat":
        return heat_figure(course(capture, bins=overview.HEAT_BINS, per_rank=True), 0)
    if name == "sizes":
        return sizes_figure(queries.made_by_query(capture, tables.TABLES["sizes"]))
    if name == "steps":
        steps = loop.overlap(capture).steps
        if steps.num_rows:
            return steps_figure(steps)
        raise UsageError(f"{capture.named} has no training steps: merge it with a profile in which steps are marked")
    lag = lag_course(capture)
    if lag is None:
        raise UsageError(f"{capture.named} is not a replay: only a replay has operations that were due at some time")
    return lag_figure(lag, 0, None)


def _seconds(times_ns: np.ndarray) -> list[float]:
    found: list[float] = np.round(times_ns / NS_PER_S, 9).tolist()
    return found


def _rounded(values: np.ndarray) -> list[float | None]:
    """Six significant digits; None for nan."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
