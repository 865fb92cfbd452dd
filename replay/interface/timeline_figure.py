"""The timeline as a plotly figure: a row per rank and lane, and above them the training loop. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.page.figures import KIND_COLOURS
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_bytes

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.bars import Bars
    from dxt_replay.profiler_merge.analysis.overview import Overview

ROW_PIXELS = 22


def timeline_figure(overview: Overview) -> dict[str, Any]:
    """Bars of the operations of each lane and of the training loop (`data` and `layout` of a plotly figure)."""
    loops = overview.loops.tracks.items()
    tracks = [
        *((rank, f"r{rank} loop", kind, bars) for (rank, kind), bars in loops if kind != "step"),
        *((rank, f"r{rank} lane {lane}", kind, bars) for (rank, lane, kind), bars in overview.lanes.tracks.items()),
    ]
    tracks.sort(key=lambda track: track[0])
    rows = list(dict.fromkeys(row for _, row, _, _ in tracks))
    seen: set[str] = set()
    data = []
    for _, row, kind, bars in tracks:
        data.append({**_bars(row, kind, bars, overview.paths), "showlegend": kind not in seen})
        seen.add(kind)
    layout = {
        "height": 160 + ROW_PIXELS * len(rows), "barmode": "overlay", "bargap": 0.15, "hovermode": "closest",
        "xaxis": {"title": {"text": "time of the capture [s]"}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": rows, "autorange": "reversed"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _bars(row: str, kind: str, bars: Bars, paths: list[str]) -> dict[str, Any]:
    """One trace: the bars of a kind in a row, with what hovering shows."""
    texts = []
    for start, end, operations, moved, file_id in zip(
        bars.start_ns.tolist(), bars.end_ns.tolist(), bars.operations.tolist(), bars.bytes.tolist(),
        bars.file_id.tolist(), strict=True,
    ):  # fmt: skip
        what = kind if operations == 1 else f"{operations} x {kind}"
        size = f", {format_bytes(moved)}" if moved else ""
        file = f"<br>{_shown(paths[file_id])}" if file_id >= 0 else ""
        texts.append(f"{what}, {(end - start) / NS_PER_MS:.4g} ms{size}{file}")
    return {
        "type": "bar", "orientation": "h", "name": kind, "legendgroup": kind,
        "base": (bars.start_ns / NS_PER_S).tolist(), "x": ((bars.end_ns - bars.start_ns) / NS_PER_S).tolist(),
        "y": [row] * len(bars), "marker": {"color": KIND_COLOURS.get(kind), "line": {"width": 0}},
        "hovertext": texts, "hoverinfo": "text+y", "textposition": "none",
    }  # fmt: skip


def _shown(path: str) -> str:
    """A path for plotly, which reads tags in its texts."""
    return path.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
