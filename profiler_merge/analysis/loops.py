"""The activity of each rank, from its spans: sets of times by kind, and the time of each step by activity. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.rank_line import RankLine, rank_lines
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import are_evaluations, are_log_waits, are_on_gpu
from dxt_replay.traces.schema import NO_STEP, READING_WAITS, SPAN_KINDS, codes

_TIMES = ("evaluation", "apart", "wait", "collective", "checkpoint", "compute", "pipeline")
_IN_ORDER = {"wait": "input_wait", "collective": "collective", "checkpoint": "checkpoint", "compute": "compute"}
"""Sets of a `RankLoop` and the kinds of their spans. An instant in several sets belongs to the first, but a wait in
which a GPU works is none."""

_NO_STEPS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLoop:
    """The spans of one rank as sets of times.

    step, start_ns, end_ns: int64 (steps,), in order.
    evaluation, wait, collective, checkpoint, compute: disjoint; an instant in several belongs to the first.
    apart: evaluations, and waits for logs of the recording, neither of which is part of the loop.
    pipeline: input being produced, by other threads or by the loop itself (a wait of READING_WAITS).
    """

    step: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    start_ns: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    end_ns: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    evaluation: Intervals = field(default_factory=Intervals)
    apart: Intervals = field(default_factory=Intervals)
    wait: Intervals = field(default_factory=Intervals)
    collective: Intervals = field(default_factory=Intervals)
    checkpoint: Intervals = field(default_factory=Intervals)
    compute: Intervals = field(default_factory=Intervals)
    pipeline: Intervals = field(default_factory=Intervals)

    @property
    def loop_ns(self) -> int:
        """From the start of the first step to the end of the last, without times `apart`; 0 without steps."""
        if not len(self.step):
            return 0
        first, last = self.start_ns.min(keepdims=True), self.end_ns.max(keepdims=True)
        return int((last - first - self.apart.covered_within(first, last))[0])

    @property
    def steps_ns(self) -> np.ndarray:
        """Duration of each step, without times `apart`."""
        durations = self.end_ns - self.start_ns - self.apart.covered_within(self.start_ns, self.end_ns)
        return durations


def rank_loops(spans: pa.Table) -> dict[int, RankLoop]:
    """The loop of each rank that has spans."""
    if not spans.num_rows:
        return {}
    ranks = np.unique(spans["rank"].to_numpy()).tolist()
    lines = rank_lines(ranks, pc.min(spans["start_ns"]).as_py(), pc.max(spans["end_ns"]).as_py())
    return {rank: loop for line in lines for rank, loop in _of_each(loops_on_line(spans, line), line)}


def loops_on_line(spans: pa.Table, line: RankLine) -> RankLoop:
    """The loops of the ranks of a line as one loop, with all times on the line."""
    rank = spans["rank"].to_numpy()
    mine = np.flatnonzero(np.isin(rank, line.ranks)) if len(rank) else np.zeros(0, dtype=np.int64)
    place = line.places(rank[mine])
    return _loop(
        codes(spans, "kind")[mine],
        spans["step"].to_numpy()[mine].astype(np.int64),
        line.put(spans["start_ns"].to_numpy()[mine], place),
        line.put(spans["end_ns"].to_numpy()[mine], place),
        _produced(spans)[mine],
        are_evaluations(spans)[mine],
        are_log_waits(spans)[mine],
        are_on_gpu(spans)[mine],
    )


def _of_each(loops: RankLoop, line: RankLine) -> Iterator[tuple[int, RankLoop]]:
    """Each rank of the line and its loop, in its own times."""
    edges = line.edges()
    places = line.places_at(loops.start_ns)
    steps = loops.step, line.taken(loops.start_ns, places), line.taken(loops.end_ns, places)
    cuts = np.searchsorted(loops.start_ns, edges).tolist()
    times = {name: _cut(getattr(loops, name), line) for name in _TIMES}
    for place, rank in enumerate(line.ranks.tolist()):
        step, start_ns, end_ns = (column[cuts[place] : cuts[place + 1]] for column in steps)
        own = {name: found[place] for name, found in times.items()}
        yield rank, RankLoop(step=step, start_ns=start_ns, end_ns=end_ns, **own)


def _cut(times: Intervals, line: RankLine) -> list[Intervals]:
    """The times of each rank of the line."""
    places = line.places_at(times.starts)
    starts, ends = line.taken(times.starts, places), line.taken(times.ends, places)
    cuts = np.searchsorted(times.starts, line.edges()).tolist()
    return [Intervals(starts=starts[begin:end], ends=ends[begin:end]) for begin, end in pairwise(cuts)]


def _produced(spans: pa.Table) -> np.ndarray:
    """Mask of the spans in which input was produced: pipeline work, and waits in which the loop itself reads."""
    kind = codes(spans, "kind")
    reading = pc.is_in(spans["name"], pa.array(READING_WAITS)).to_numpy()
    produced: np.ndarray = (kind == SPAN_KINDS.index("input_wait")) & reading
    return produced | (kind == SPAN_KINDS.index("pipeline"))


def _loop(
    kind: np.ndarray,
    step: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    produced: np.ndarray,
    evaluates: np.ndarray,
    waits_for_log: np.ndarray,
    on_gpu: np.ndarray,
) -> RankLoop:
    def times(mask: np.ndarray) -> Intervals:
        return Intervals.union_of(start[mask], end[mask])

    steps = np.flatnonzero((kind == SPAN_KINDS.index("step")) & (step != NO_STEP))
    steps = steps[np.argsort(start[steps], kind="stable")]
    evaluation = times(evaluates)
    taken = apart = evaluation.union(times(waits_for_log))
    disjoint = {}
    for name, span_kind in _IN_ORDER.items():
        whole = times(kind == SPAN_KINDS.index(span_kind))
        if name == "wait":
            whole = whole.minus(times(on_gpu))
        disjoint[name], taken = whole.minus(taken), taken.union(whole)
    return RankLoop(
        step=step[steps],
        start_ns=start[steps],
        end_ns=end[steps],
        evaluation=evaluation,
        apart=apart,
        **disjoint,
        pipeline=times(produced),
    )
