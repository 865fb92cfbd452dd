"""The figure of the page that shows how long training takes on faster and slower storage. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dxt_replay.replay.show.page.figures import BLUE, GREY, VERMILION, Figure
from dxt_replay.traces.storage_limit import LimitPoint
from dxt_replay.traces.units import NS_PER_S

_LOOKS = {
    "speed": ("all of storage", {"color": BLUE, "width": 2}),
    "bandwidth": ("bandwidth alone", {"color": VERMILION, "width": 1.5, "dash": "dash"}),
    "latency": ("latency alone", {"color": GREY, "width": 1.5, "dash": "dot"}),
}


def storage_figure(curve: Sequence[LimitPoint]) -> Figure:
    """Training time by the multiple of the recorded speed, a line for each quantity."""
    data: list[Figure] = []
    for quantity, (name, line) in _LOOKS.items():
        points = [point for point in curve if point.quantity == quantity and point.multiple is not None]
        if points:
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": name, "line": line,
                    "x": [point.multiple for point in points],
                    "y": [round(point.elapsed_ns / NS_PER_S, 6) for point in points],
                    "hovertemplate": "%{x:g} x: %{y:,.4~g} s",
                }
            )  # fmt: skip
    multiples = sorted({point.multiple for point in curve if point.multiple is not None})
    fastest_s = next(point.elapsed_ns for point in curve if point.multiple is None) / NS_PER_S
    data.append(
        {
            "type": "scatter", "mode": "lines", "name": "infinitely fast", "x": [multiples[0], multiples[-1]],
            "y": [round(fastest_s, 6)] * 2, "line": {"color": GREY, "width": 1},
            "hovertemplate": "infinitely fast: %{y:,.4~g} s",
        }
    )  # fmt: skip
    layout = {
        "height": 360,
        "xaxis": {"title": {"text": "speed, multiple of the recorded one"}, "type": "log",
                  "tickvals": multiples, "ticktext": [f"{each:g} x" for each in multiples]},
        "yaxis": {"title": {"text": "training time [s]"}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": data, "layout": layout}
