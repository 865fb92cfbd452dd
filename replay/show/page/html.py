"""The self-contained HTML page of `dxt-replay report`: plotly's bundle, this package's scripts and data in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.page.body import page
from dxt_replay.replay.show.page.data import LagCourse
from dxt_replay.replay.show.page.document import load_assets

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.replay.fidelity.compare import Comparison

MOST_BYTES = 1_500_000
"""What a page is kept below by shortening its tables; plotly takes 0.66 MB of it."""

TABLE_ROWS = (300, 120, 40)
"""Rows of the tables of ranks and files: the first that keeps the page small enough."""

_SCRIPTS = (
    "inflate.js", "carried.js", "view_state.js", "timeline.js", "offsets.js", "figures.js", "tables.js", "page.js",
)  # fmt: skip


def report_page(
    source: Overview,
    replay: Overview | None = None,
    comparison: Comparison | None = None,
    lag: LagCourse | None = None,
) -> str:
    """The page about a capture, or about a source and its replay side by side, as HTML that needs no network; about
    MOST_BYTES at most.

    `comparison`: `replay.fidelity.compare.compare(...)`; `lag`: `replay.show.page.data.lag_course(...)`.
    """
    assets = load_assets(_SCRIPTS)
    text = ""
    for most_rows in TABLE_ROWS:
        text = page(source, replay, comparison, lag, assets, most_rows)
        if len(text.encode("utf-8", "surrogatepass")) <= MOST_BYTES:
            break
    return text
