"""What a rank's training thread did, from its spans: the events that the causal pacing hangs operations on. Pure.

The thread's time is cut at its *points*, which do not overlap: the entry to the loop, the *takes* (a step waits for its
batch and obtains it at the end of its input wait), checkpoints and collectives. Everything between two points is busy.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traces.errors import CaptureError
from traces.measures.intervals import Intervals
from traces.schema import SPAN_KINDS, codes
from traces.steps import step_at

ENTRY, TAKE, CHECKPOINT, COLLECTIVE, EVALUATION = range(5)
"""Kinds of a point. ENTRY: from the capture's start to the first step; what is read meanwhile is loaded first.
EVALUATION: a pause between two steps in which files are read that the loop does not read."""

PAUSE_STEPS = 2.0
"""What lies between two steps is a pause from so many times the median step on."""

OPENING = (TAKE, CHECKPOINT, EVALUATION)
"""Kinds of points at whose begin operations of the training thread may begin."""

STEP, INPUT_WAIT = SPAN_KINDS.index("step"), SPAN_KINDS.index("input_wait")
PIPELINE = SPAN_KINDS.index("pipeline")
_KIND_OF_SPAN = {
    INPUT_WAIT: TAKE,
    SPAN_KINDS.index("checkpoint"): CHECKPOINT,
    SPAN_KINDS.index("collective"): COLLECTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingLoop:
    """One rank's loop. Points (p,) ascend and are disjoint, point 0 is the ENTRY: `kind` int8; `begin_ns`, `end_ns`.

    `step_number`, `step_begin_ns`, `step_end_ns`: its steps, ascending. `exit_ns`: the end of the last step or point.
    `input_waits`: whether the takes come from input waits; else each step takes its batch when it begins.
    `made_begin_ns`, `made_end_ns` (takes,): when the pipeline's last thread made the batch of each take, from its own
    spans; both empty where no thread did something once a take.
    """

    kind: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    step_number: np.ndarray
    step_begin_ns: np.ndarray
    step_end_ns: np.ndarray
    exit_ns: int
    input_waits: bool
    made_begin_ns: np.ndarray
    made_end_ns: np.ndarray

    @property
    def entry_ns(self) -> int:
        """When the first step begins."""
        return int(self.end_ns[0])

    @property
    def takes(self) -> np.ndarray:
        """Points that are takes, ascending."""
        return np.flatnonzero(self.kind == TAKE)

    @property
    def checkpoints(self) -> np.ndarray:
        """Points that are checkpoints, ascending."""
        return np.flatnonzero(self.kind == CHECKPOINT)

    @property
    def blocking(self) -> np.ndarray:
        """Points whose operations the training thread itself waits for, ascending: checkpoints and evaluations."""
        return np.flatnonzero(np.isin(self.kind, (CHECKPOINT, EVALUATION)))

    @property
    def collectives(self) -> np.ndarray:
        """Points that are collectives, ascending."""
        return np.flatnonzero(self.kind == COLLECTIVE)

    @property
    def openings_ns(self) -> np.ndarray:
        """When the thread lets operations of its own begin (int64): at the end of the entry, the begin of each take,
        checkpoint and evaluation, and at the exit. Ascending."""
        begins = self.begin_ns[np.isin(self.kind, OPENING)]
        return np.concatenate(([self.entry_ns], begins, [self.exit_ns]))

    @property
    def take_ends_ns(self) -> np.ndarray:
        """When each step had its batch. Ascending."""
        return self.end_ns[self.takes]

    @property
    def pauses(self) -> Intervals:
        """What lies between two steps and outside of all points, where it lasts longer than steps do."""
        begin, end = self.step_end_ns[:-1], self.step_begin_ns[1:]
        free = Intervals.union_of(begin, np.maximum(begin, end)).minus(Intervals.union_of(self.begin_ns, self.end_ns))
        long = free.ends - free.starts > PAUSE_STEPS * np.median(self.step_end_ns - self.step_begin_ns)
        return Intervals.union_of(free.starts[long], free.ends[long])

    def with_evaluations(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> TrainingLoop:
        """The loop with these pauses as points."""
        kind = np.concatenate((self.kind, np.full(len(begin_ns), EVALUATION, dtype=np.int8)))
        begin, end = np.concatenate((self.begin_ns, begin_ns)), np.concatenate((self.end_ns, end_ns))
        order = np.lexsort((end, begin))
        return dataclasses.replace(self, kind=kind[order], begin_ns=begin[order], end_ns=end[order])

    def step_at(self, times: np.ndarray) -> np.ndarray:
        """Step (int32) in which each time lies, NO_STEP outside."""
        return step_at(times, self.step_begin_ns, self.step_end_ns, self.step_number)


def training_loop(spans: pa.Table, origin_ns: int) -> TrainingLoop:
    """The loop of one rank from its rows of `SPANS_SCHEMA`; `origin_ns` is the recorded time that the replay begins at.

    A checkpoint counts where the training thread itself was in it; one beside the loop blocks nothing. Of points that
    overlap the later one begins when the earlier ends.
    Raises: CaptureError without steps.
    """
    kind = codes(spans, "kind")
    thread, number = spans["thread"].to_numpy(), spans["step"].to_numpy()
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    steps = np.flatnonzero(kind == STEP)
    if not len(steps):
        raise CaptureError("the capture has no training steps, so that nothing ties its reads to a loop")
    steps = steps[np.argsort(start_ns[steps], kind="stable")]
    begins, ends = start_ns[steps], end_ns[steps]
    entry_ns = max(int(begins[0]), origin_ns)
    threads = set(thread[steps].tolist())
    chosen = np.isin(kind, list(_KIND_OF_SPAN)) & (end_ns > entry_ns)
    beside = (kind == SPAN_KINDS.index("checkpoint")) & ~np.isin(thread, list(threads))
    chosen &= ~beside
    point_kind, point_begin, point_end = _points(kind[chosen], start_ns[chosen], end_ns[chosen], entry_ns)
    input_waits = bool((point_kind == TAKE).any())
    if not input_waits:
        point_kind, point_begin, point_end = _with_takes(point_kind, point_begin, point_end, begins)
    pipeline = spans.filter(pa.array(kind == PIPELINE))
    made_begin, made_end = _made(pipeline, point_end[point_kind == TAKE])
    return TrainingLoop(
        kind=np.concatenate(([ENTRY], point_kind)).astype(np.int8),
        begin_ns=np.concatenate(([origin_ns], point_begin)),
        end_ns=np.concatenate(([entry_ns], point_end)),
        step_number=number[steps],
        step_begin_ns=begins,
        step_end_ns=ends,
        exit_ns=max(int(ends.max()), int(point_end.max(initial=0))),
        input_waits=input_waits,
        made_begin_ns=made_begin,
        made_end_ns=made_end,
    )


def _made(pipeline: pa.Table, take_ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends of what the pipeline did once a take: the spans of one name, the k-th of which ended before take
    k did. Of several names the one that ended last on the whole, which is the nearest to the loop; else empty."""
    found, latest = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)), -np.inf
    takes = len(take_ends_ns)
    names = pipeline["name"].combine_chunks().dictionary_encode()
    starts, ends, name = pipeline["start_ns"].to_numpy(), pipeline["end_ns"].to_numpy(), names.indices.to_numpy()
    for code, count in enumerate(np.bincount(name).tolist()):
        # A few more were made than taken; two or more a take would be parts of a batch.
        if not takes or not takes <= count < 2 * takes:
            continue
        mine = np.flatnonzero(name == code)
        mine = mine[np.argsort(ends[mine], kind="stable")][:takes]
        if (ends[mine] <= take_ends_ns).all() and ends[mine].mean() > latest:
            found, latest = (starts[mine], ends[mine]), ends[mine].mean()
    return found


def _points(
    span_kind: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, entry_ns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds, begins and ends of disjoint points in ascending order: spans of one kind are joined where they overlap."""
    kinds, begins, ends = [], [], []
    for code, point in _KIND_OF_SPAN.items():
        mine = span_kind == code
        joined = Intervals.union_of(np.maximum(start_ns[mine], entry_ns), end_ns[mine])
        kinds.append(np.full(len(joined), point, dtype=np.int8))
        begins.append(joined.starts)
        ends.append(joined.ends)
    kind, begin, end = np.concatenate(kinds), np.concatenate(begins), np.concatenate(ends)
    order = np.lexsort((end, begin))
    kind, begin, end = kind[order], begin[order], end[order]
    begin = np.maximum(begin, np.concatenate(([entry_ns], np.maximum.accumulate(end)[:-1]))[: len(begin)])
    whole = begin < end
    return kind[whole], begin[whole], end[whole]


def _with_takes(
    kind: np.ndarray, begin: np.ndarray, end: np.ndarray, step_begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points, and a take without duration where each step begins: the profile has no input waits."""
    outside = Intervals.union_of(begin, end).covered_within(step_begins, step_begins + 1) == 0
    takes = step_begins[outside]
    kind = np.concatenate((kind, np.full(len(takes), TAKE, dtype=np.int8)))
    begin, end = np.concatenate((begin, takes)), np.concatenate((end, takes))
    order = np.argsort(begin, kind="stable")
    return kind[order], begin[order], end[order]
