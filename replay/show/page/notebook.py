"""The charts of the report for notebooks, each from a capture."""

from __future__ import annotations

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.overview import COURSE_BINS, HEAT_BINS, overview
from dxt_replay.profiler_merge.analysis.queries import made_by_query
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.replay.show.page import chart_data as charts
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture

FIGURES = ("timeline", "bandwidth", "heat", "sizes", "steps", "lag")
"""Names that `figure` takes."""

MOST_BARS = 6000
"""Bars of a timeline: as many as a notebook draws at once; operations that are close together share one."""


def drawing(capture: Capture, name: str) -> charts.Figure:
    """One of FIGURES for plotly. Raises: UsageError when the capture has no steps or is not a replay."""
    if name == "timeline":
        return charts.timeline_figure(overview(capture, most_bars=MOST_BARS))
    if name == "bandwidth":
        return charts.course_figure(timeline(capture, bins=COURSE_BINS), 0)
    if name == "heat":
        return charts.heat_figure(timeline(capture, bins=HEAT_BINS, per_rank=True), 0)
    if name == "sizes":
        return charts.sizes_figure(made_by_query(capture, TABLES["sizes"]))
    if name == "steps":
        steps = overlap(capture).steps
        if steps.num_rows:
            return charts.steps_figure(steps)
        raise UsageError(f"{capture.named} has no training steps: merge it with a profile in which steps are marked")
    lag = charts.lag_course(capture)
    if lag is None:
        raise UsageError(f"{capture.named} is not a replay: only a replay has operations that were due at some time")
    return charts.lag_figure(lag, 0, None)
