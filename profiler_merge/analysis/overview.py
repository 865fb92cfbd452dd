"""The contents of a page about a capture: its analyses, its course over time, and bars for a timeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.analyse import Analysis, AnalysisCollector
from dxt_replay.profiler_merge.analysis.bars import (
    MOST_BARS,
    KeyCollector,
    LaneBars,
    LoopBars,
    bar_collector,
    loop_bars,
)
from dxt_replay.profiler_merge.analysis.collect import Begin, Together, collect
from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.findings import findings_of
from dxt_replay.profiler_merge.analysis.offset_samples import FileOffsets, file_offsets
from dxt_replay.profiler_merge.analysis.patterns import MountTotals, mount_totals
from dxt_replay.profiler_merge.analysis.queries import made_by_query
from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.analysis.timeline import Timeline, TimelineCollector, timeline_collector
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.storage_limit import Limit
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

COURSE_BINS = 400
HEAT_BINS = 240
MOST_SHOWN_RANKS = 16

_QUIET_SHARE = 0.001
"""Share of all bytes, and of all time in I/O and in compute, below which the beginning of a capture is quiet."""
_LEAST_QUIET_SHARE = 0.1
"""Least share of the charts' time that a quiet beginning must have to be cut off."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overview:
    """The data of a page about one capture.

    `course`: over all ranks; `by_rank`: per rank, in wider bins.
    `lanes`, `loops`: of `shown_ranks` only: all ranks if there are few. `roles`: of their lanes, by (rank, lane), as
    far as they are known.
    `offsets`: operations of the busiest files; `mounts`: file systems, the busiest first. `sizes`: the
    table of that name.
    `quiet_until_ns`: end of a start-up with almost no I/O and compute; else the beginning of `course`.
    `paths`: of the files by file_id.
    `storage_limit`: of the training; None if it has no meaning.
    """

    name: str
    info: CaptureInfo
    analysis: Analysis
    findings: tuple[Finding, ...]
    course: Timeline
    by_rank: Timeline
    lanes: LaneBars
    loops: LoopBars
    roles: Mapping[tuple[int, int], str]
    shown_ranks: tuple[int, ...]
    offsets: tuple[FileOffsets, ...]
    mounts: tuple[MountTotals, ...]
    sizes: pa.Table
    quiet_until_ns: int
    paths: list[str]
    storage_limit: Limit | None = None

    def summary_json(self) -> dict[str, Any]:
        """The object of `dxt-replay summary --json`."""
        found = self.analysis.summary.as_json()
        return found if self.storage_limit is None else {**found, "storage_limit": self.storage_limit.as_json()}

    @property
    def waits_are_real(self) -> bool:
        """Whether the operations wait for each other as in training."""
        return waits_are_real(self.info)


def overview(
    capture: Capture,
    *,
    most_bars: int = MOST_BARS,
    on_rows: Callable[[int], None] = lambda rows: None,
    workers: Workers = ALONE,
    limit: Limit | None = None,
) -> Overview:
    """The data of a page about a capture, from several passes over its op stream.

    `on_rows` receives how many rows of the first pass are done. `limit`: the storage limit, from the causal model.
    Raises: CaptureError when the capture is damaged.
    """
    saved_s = None if limit is None else limit.saved_between_s
    few_ranks = len(capture.ranks) <= MOST_SHOWN_RANKS
    begin = partial(
        _FirstPass,
        course=timeline_collector(capture, bins=COURSE_BINS),
        by_rank=timeline_collector(capture, bins=HEAT_BINS, per_rank=True),
        with_keys=few_ranks,
    )
    without = ("step",) if few_ranks else ("lane", "step")
    first = collect(capture, begin, without=without, on_rows=on_rows, workers=workers)
    found, course = first.analyses.analysis(capture, saved_s), first.course.timeline()
    shown = shown_ranks(found)
    few = capture if shown == capture.ranks or not capture.operation_count() else part_of(capture, Part(ranks=shown))
    keys = first.keys if few is capture else None
    bars = bar_collector(
        few,
        keys or collect(few, KeyCollector, without=("step",), workers=workers),
        most_bars=most_bars,
        centres_ns=moments(found, course),
        window_operations=most_bars * 3 // 16,
    )
    return Overview(
        name=capture.path.name,
        info=capture.info,
        analysis=found,
        findings=findings_of(found),
        course=course,
        by_rank=first.by_rank.timeline(),
        lanes=collect(few, bars, without=("step",), workers=workers).lane_bars(),
        loops=loop_bars(capture.spans, shown, most_bars * 3 // 4),
        roles=roles_of(capture, shown),
        shown_ranks=shown,
        offsets=file_offsets(capture, found.patterns.files, most_points=most_bars // 4),
        mounts=mount_totals(capture.files, found.patterns.files),
        sizes=made_by_query(capture, TABLES["sizes"]),
        quiet_until_ns=quiet_until_ns(course, found),
        paths=capture.paths(),
        storage_limit=limit,
    )


class _FirstPass(Together):
    """All analyses, both timelines, and the keys of the bars if all ranks are shown."""

    def __init__(
        self,
        capture: Capture,
        layers: FileLayers,
        *,
        course: Begin[TimelineCollector],
        by_rank: Begin[TimelineCollector],
        with_keys: bool,
    ) -> None:
        self.analyses = AnalysisCollector(capture, layers)
        self.course, self.by_rank = course(capture, layers), by_rank(capture, layers)
        self.keys = KeyCollector(capture, layers) if with_keys else None
        self.parts = (self.analyses, self.course, self.by_rank, *([self.keys] if self.keys else []))


def quiet_until_ns(course: Timeline, analysis: Analysis) -> int:
    """Begin of the charts: after a start-up with almost no I/O and compute, but not after the first step.

    The beginning of `course` if the start-up is shorter than _LEAST_QUIET_SHARE."""
    column = {name: course.table[name].to_numpy() for name in course.table.column_names}
    moved = column["bytes_read"] + column["bytes_written"]
    quiet = course.bins
    for amount in (moved, column["io_busy_share"], np.nan_to_num(column["compute_busy_share"])):
        if amount.any():
            done = np.cumsum(amount, dtype=np.float64)
            quiet = min(quiet, int((done <= _QUIET_SHARE * done[-1]).sum()))
    until = course.start_ns + quiet * course.bin_ns
    if analysis.overlap.steps.num_rows:
        until = min(until, int(analysis.overlap.steps["start_ns"].to_numpy().min()))
    long_enough = until - course.start_ns >= _LEAST_QUIET_SHARE * course.bins * course.bin_ns
    return until if long_enough and quiet < course.bins else course.start_ns


def shown_ranks(analysis: Analysis, most: int = MOST_SHOWN_RANKS) -> tuple[int, ...]:
    """Ranks whose lanes are shown: all of them, or a half with the most I/O and a half evenly spread."""
    ranks = analysis.overlap.ranks["rank"].to_numpy().astype(np.int64)
    if len(ranks) <= most:
        return tuple(ranks.tolist())
    io_ns = analysis.overlap.ranks["io_ns"].to_numpy()
    busiest = ranks[np.argsort(-io_ns, kind="stable")[: most // 2]]
    others = np.setdiff1d(ranks, busiest)
    spread = others[np.linspace(0, len(others) - 1, most - len(busiest)).astype(np.int64)]
    return tuple(np.union1d(busiest, spread).tolist())


def roles_of(capture: Capture, ranks: Collection[int]) -> dict[tuple[int, int], str]:
    """(rank, lane) -> role of each lane of some ranks whose role is known."""
    found = capture.lanes.filter(pc.is_in(capture.lanes["rank"], pa.array(ranks, pa.int32())))
    columns = (found[name].to_pylist() for name in ("rank", "lane", "role"))
    return {(rank, lane): role for rank, lane, role in zip(*columns, strict=True) if role is not None}


def moments(analysis: Analysis, course: Timeline) -> list[tuple[str, int, int]]:
    """Stretches to show in full detail, (name, from, until) in ns: the bin that moved the most, and the slowest
    step."""
    found = []
    moved = course.table["bytes_read"].to_numpy() + course.table["bytes_written"].to_numpy()
    if len(moved) and moved.any():
        begin = course.start_ns + course.bin_ns * int(moved.argmax())
        found.append(("busiest moment", begin, begin + course.bin_ns))
    slowest = analysis.overlap.slowest(1)
    if slowest.num_rows:
        begin, duration, evaluation = (
            slowest[name][0].as_py() for name in ("start_ns", "duration_ns", "evaluation_ns")
        )
        found.append(("slowest step", begin, begin + duration + evaluation))
    return found
