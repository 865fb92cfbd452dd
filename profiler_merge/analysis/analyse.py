"""All analyses of a capture in one pass over its op stream, as the input of reports and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dxt_replay.profiler_merge.analysis.collect import Together, collect
from dxt_replay.profiler_merge.analysis.loop import Overlap, OverlapCollector
from dxt_replay.profiler_merge.analysis.patterns import PatternCollector, Patterns
from dxt_replay.profiler_merge.analysis.setting import Setting, setting_of
from dxt_replay.profiler_merge.analysis.summary import Summary, SummaryCollector, with_loop
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """The results of `summarise`, `overlap`, `patterns` and `setting_of` for one capture.

    saved_s: least and most time that infinitely fast storage would save the training, by its causal model; None where
    that is not known.
    """

    summary: Summary
    overlap: Overlap
    patterns: Patterns
    setting: Setting
    saved_s: tuple[float, float] | None = None


def analyse(
    capture: Capture,
    *,
    by: str | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
    workers: Workers = ALONE,
    saved_s: tuple[float, float] | None = None,
) -> Analysis:
    """All analyses but the timeline, which needs a choice of bins. Arguments as of `summarise`; `saved_s` as of
    `Analysis`.

    Raises: CaptureError when the capture is damaged.
    """
    found = collect(
        capture, partial(AnalysisCollector, by=by), without=("lane", "step"), on_rows=on_rows, workers=workers
    )
    return found.analysis(capture, saved_s)


class AnalysisCollector(Together):
    """The collectors of all analyses. `by`: as of `summarise`."""

    def __init__(self, capture: Capture, layers: FileLayers, *, by: str | None = None) -> None:
        self.summary = SummaryCollector(capture, layers, by=by)
        self.overlap = OverlapCollector(capture, layers)
        self.patterns = PatternCollector(capture, layers)
        self.parts = (self.summary, self.overlap, self.patterns)

    def analysis(self, capture: Capture, saved_s: tuple[float, float] | None) -> Analysis:
        """All analyses; `capture`: that of all ranks, `saved_s` as of `Analysis`."""
        overlap = self.overlap.overlap()
        return Analysis(
            summary=with_loop(self.summary.summary(), overlap, capture),
            overlap=overlap,
            patterns=self.patterns.patterns(),
            setting=setting_of(capture),
            saved_s=saved_s,
        )
