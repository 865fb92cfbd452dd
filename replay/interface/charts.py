"""The charts of the report as plotly figures, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.show.page.notebook import FIGURES, drawing
from dxt_replay.traces.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def figure(capture: CaptureOrPath, name: str) -> Figure:
    """One of FIGURES as a plotly figure.

        dxt_replay.figure(capture, "timeline").show()

    `timeline`: bars per rank and lane; `bandwidth`: with operations in flight and shares of time; `heat`: ranks over
    time; `sizes`: of requests; `steps`: where their time went; `lag`: of a replay.
    Raises: UsageError for another name, or when the capture has no steps or is not a replay; MissingDependencyError
    without plotly; CaptureError when the capture is damaged.
    """
    if name not in FIGURES:
        raise UsageError(f"{name!r} is not a figure: choose {', '.join(FIGURES)}")
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise MissingDependencyError("plotly", "a figure", "pip install 'dxt-replay[charts]'") from error
    with opened(capture) as source:
        return Figure(drawing(source, name), skip_invalid=False)
