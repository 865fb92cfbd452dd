"""The charts of the report as plotly figures, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.traces.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from dxt_replay.traces.store.reader import Capture

Drawing = dict[str, Any]
"""A figure as plotly's plain dictionary: `data` and `layout`."""

MOST_BARS = 6000
"""Bars of a timeline: as many as a notebook draws at once; operations that are close together share one."""


def figure(capture: CaptureOrPath, name: str) -> Figure:
    """One of FIGURES as a plotly figure.

        dxt_replay.figure(capture, "timeline").show()

    `timeline`: bars per rank and lane; `bandwidth`: with operations in flight and shares of time; `heat`: ranks over
    time; `sizes`: of requests; `steps`: where their time went; `lag`: of a replay.
    Raises: UsageError for another name, or when the capture has no steps or is not a replay; MissingDependencyError
    without plotly; CaptureError when the capture is damaged.
    """
    if name not in _DRAWINGS:
        raise UsageError(f"{name!r} is not a figure: choose {', '.join(_DRAWINGS)}")
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise MissingDependencyError("plotly", "a figure", "pip install 'dxt-replay[charts]'") from error
    with opened(capture) as source:
        return Figure(_DRAWINGS[name](source), skip_invalid=False)


def _bandwidth(capture: Capture) -> Drawing:
    from dxt_replay.profiler_merge.analysis.overview import COURSE_BINS
    from dxt_replay.profiler_merge.analysis.timeline import timeline
    from dxt_replay.replay.show.page.figures import course_figure

    return course_figure(timeline(capture, bins=COURSE_BINS), 0)


def _heat(capture: Capture) -> Drawing:
    from dxt_replay.profiler_merge.analysis.overview import HEAT_BINS
    from dxt_replay.profiler_merge.analysis.timeline import timeline
    from dxt_replay.replay.show.page.figures import heat_figure

    return heat_figure(timeline(capture, bins=HEAT_BINS, per_rank=True), 0)


def _sizes(capture: Capture) -> Drawing:
    from dxt_replay.profiler_merge.analysis.queries import made_by_query
    from dxt_replay.profiler_merge.analysis.tables import TABLES
    from dxt_replay.replay.show.page.figures import sizes_figure

    return sizes_figure(made_by_query(capture, TABLES["sizes"]))


def _steps(capture: Capture) -> Drawing:
    from dxt_replay.profiler_merge.analysis.loop import overlap
    from dxt_replay.replay.show.page.figures import steps_figure

    steps = overlap(capture).steps
    if not steps.num_rows:
        raise UsageError(f"{capture.named} has no training steps: merge it with a profile in which steps are marked")
    return steps_figure(steps)


def _lag(capture: Capture) -> Drawing:
    from dxt_replay.replay.show.page.data import lag_course
    from dxt_replay.replay.show.page.figures import lag_figure

    lag = lag_course(capture)
    if lag is None:
        raise UsageError(f"{capture.named} is not a replay: only a replay has operations that were due at some time")
    return lag_figure(lag, 0, None)


def _timeline(capture: Capture) -> Drawing:
    from dxt_replay.profiler_merge.analysis.overview import overview
    from dxt_replay.replay.interface.timeline_figure import timeline_figure

    return timeline_figure(overview(capture, most_bars=MOST_BARS))


_DRAWINGS: dict[str, Callable[[Capture], Drawing]] = {
    "timeline": _timeline,
    "bandwidth": _bandwidth,
    "heat": _heat,
    "sizes": _sizes,
    "steps": _steps,
    "lag": _lag,
}

FIGURES = tuple(_DRAWINGS)
"""Names that `figure` takes."""
