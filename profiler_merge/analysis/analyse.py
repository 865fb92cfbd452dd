"""All analyses of a capture in one pass over its op stream, as the input of reports and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dxt_replay.profiler_merge.analysis.collect import Collector, collect
from dxt_replay.profiler_merge.analysis.overlap import Overlap, OverlapCollector
from dxt_replay.profiler_merge.analysis.patterns import PatternCollector, Patterns
from dxt_replay.profiler_merge.analysis.setting import Setting, setting_of
from dxt_replay.profiler_merge.analysis.sizes import RequestSizes, SizeCollector
from dxt_replay.profiler_merge.analysis.summary import Summary, SummaryCollector, with_loop
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """The results of `summarise`, `request_sizes`, `overlap`, `patterns` and `setting_of` for one capture.

    saved_s: time that infinitely fast storage would save the training, by its causal model; None where that is not
    known.
    """

    summary: Summary
    sizes: RequestSizes
    overlap: Overlap
    patterns: Patterns
    setting: Setting
    saved_s: float | None = None


def analyse(
    capture: Capture,
    *,
    by: str | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
    workers: Workers = ALONE,
    saved_s: float | None = None,
) -> Analysis:
    """All analyses but the timeline, which needs a choice of bins. Arguments as of `summarise`; `saved_s` as of
    `Analysis`.

    Raises: CaptureError when the capture is damaged.
    """

    begin = partial(_Collectors, by=by)
    without = ("lane",) if by == "step" else ("lane", "step")
    found = collect(capture, begin, without=without, on_rows=on_rows, workers=workers)
    overlap = found.overlap.overlap()
    return Analysis(
        summary=with_loop(found.summary.summary(), overlap, capture),
        sizes=found.sizes.sizes(),
        overlap=overlap,
        patterns=found.patterns.patterns(),
        setting=setting_of(capture),
        saved_s=saved_s,
    )


class _Collectors(Collector):
    def __init__(self, capture: Capture, layers: FileLayers, *, by: str | None) -> None:
        self.summary = SummaryCollector(capture, layers, by=by)
        self.sizes = SizeCollector()
        self.overlap = OverlapCollector(capture, layers)
        self.patterns = PatternCollector(capture, layers)
        self.takes_several_ranks = self.summary.takes_several_ranks

    def add(self, rows: OperationRows) -> None:
        """Hand rows to all collectors."""
        self.summary.add(rows)
        self.sizes.add(rows)
        self.overlap.add(rows)
        for each in rows.each_rank():
            self.patterns.add(each)

    def merge(self, later: _Collectors) -> None:
        """As `Sums.merge`."""
        self.summary.merge(later.summary)
        self.sizes.merge(later.sizes)
        self.overlap.merge(later.overlap)
        self.patterns.merge(later.patterns)
