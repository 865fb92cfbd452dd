"""The building blocks of spans for any framework: parts of one kind, joined into the columns of a rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import SPAN_KINDS, UNION_THREAD
from dxt_replay.traces.steps import step_at

STEP, COMPUTE, INPUT_WAIT, PIPELINE, CHECKPOINT, COLLECTIVE, OTHER = (
    SPAN_KINDS.index(kind)
    for kind in ("step", "compute", "input_wait", "pipeline", "checkpoint", "collective", "other")
)

NOT_FETCHED = np.iinfo(np.int64).min
"""`SpanColumns.fetched_ns` if no batch fetch is known to have used the span's product."""

BETWEEN_STEPS = "between_steps"
"""The name in `profiler_merge.recording` of what the loop does between two steps; that module imports nothing
of ours."""

MOST_PER_STEP = 4
"""Annotations of one name that occur more often per step, and more than 64 times, are no phases but details."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanColumns:
    """Spans of one rank, sorted by start; all arrays have one row per span.

    `thread` (int64): the line's id, or UNION_THREAD where several threads take part. `kind` (int8): code of
    SPAN_KINDS. `name` (int32): row of `vocabulary`, whose texts are valid UTF-8. `step` (int32): the step that
    the span starts in, or NO_STEP. `start_ns`, `end_ns` (int64): on the profile's clock. `fetched_ns` (int64): the end
    of the batch fetch that first used what a `pipeline` span made, or NOT_FETCHED.
    """

    thread: np.ndarray
    kind: np.ndarray
    name: np.ndarray
    vocabulary: tuple[str, ...]
    step: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    fetched_ns: np.ndarray

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.start_ns)

    @property
    def names(self) -> np.ndarray:
        """str objects, one per span."""
        return np.array(self.vocabulary, dtype=object)[self.name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanPart:
    """Spans of one kind: one row each; `thread` as in SpanColumns, `name` texts by row of the profile's names.

    `step` (int32): the step of each span, None for the one that it starts in. `fetched`: as `SpanColumns.fetched_ns`,
    None if no span's product is known to have been fetched.
    """

    kind: int
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    name: np.ndarray
    step: np.ndarray | None = None
    fetched: np.ndarray | None = None

    @property
    def intervals(self) -> Intervals:
        return Intervals.union_of(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopParts:
    """The training loop: its steps with their `numbers`, and the phases in which it did not compute."""

    numbers: np.ndarray
    steps: SpanPart
    wait: SpanPart
    collective: SpanPart
    checkpoint: SpanPart
    restore: SpanPart

    def step_at(self, times: np.ndarray) -> np.ndarray:
        """int32 step at each time, NO_STEP outside of all."""
        return step_at(times, self.steps.start, self.steps.end, self.numbers)

    @property
    def bounds(self) -> np.ndarray:
        """Begins and ends of the steps, ascending."""
        return np.unique(np.concatenate([self.steps.start, self.steps.end]))

    def outside(self, busy: Intervals) -> Intervals:
        """The busy times outside of all phases."""
        for part in (self.wait, self.collective, self.checkpoint, self.restore):
            busy = busy.minus(part.intervals)
        return busy

    def phases(self, profile: Profile, rows: np.ndarray) -> np.ndarray:
        """The `rows` (events) whose names are rare enough to be phases of the loop instead of details of the code."""
        counts = np.bincount(profile.name[rows], minlength=len(profile.names))
        rare = counts <= max(64, MOST_PER_STEP * len(self.numbers))
        kept: np.ndarray = rows[rare[profile.name[rows]]]
        return kept


def union_part(kind: int, start: np.ndarray, end: np.ndarray, name: int) -> SpanPart:
    """Spans of several threads together, all of one name."""
    thread = np.full(len(start), UNION_THREAD)
    return SpanPart(kind=kind, start=start, end=end, thread=thread, name=np.full(len(start), name))


def span_columns(parts: Sequence[SpanPart], texts: Sequence[str], steps: SpanPart, numbers: np.ndarray) -> SpanColumns:
    """The parts joined, in order of time. `texts`: the texts that the parts' names index. `numbers`: of the `steps`.

    A span belongs to the step that it starts in, unless its part says otherwise.
    """
    kind = np.concatenate([np.full(len(part.start), part.kind, np.int8) for part in parts])
    start, end, thread, name = (
        np.concatenate([getattr(part, column) for part in parts]) for column in ("start", "end", "thread", "name")
    )
    step = np.concatenate(
        [step_at(part.start, steps.start, steps.end, numbers) if part.step is None else part.step for part in parts]
    )
    fetched = np.concatenate(
        [np.full(len(part.start), NOT_FETCHED) if part.fetched is None else part.fetched for part in parts]
    )
    order = np.lexsort((kind, -end, start))
    used, rows = np.unique(name, return_inverse=True)
    return SpanColumns(
        thread=thread[order].astype(np.int64),
        kind=kind[order],
        name=rows[order].astype(np.int32),
        vocabulary=tuple(_printable(texts[row]) for row in used),
        step=step[order].astype(np.int32),
        start_ns=start[order],
        end_ns=end[order],
        fetched_ns=fetched[order],
    )


def _printable(name: str) -> str:
    """Text as valid UTF-8, which Arrow requires: other bytes become `\\xNN`, as in the contract's
    paths, half pairs `\\uNNNN`."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # JSON can contain one half of a surrogate pair, which stands for no byte
        return name.encode("utf-8", "backslashreplace").decode()


def outermost(start: np.ndarray, end: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The `rows` (sorted by start, outer first) that lie in no earlier one."""
    if len(rows) == 0:
        return rows
    reach = np.maximum.accumulate(end[rows])
    return rows[np.append(True, start[rows][1:] >= reach[:-1])]


def overlaps(start: np.ndarray, end: np.ndarray, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """bool per row: it overlaps one of `others`, which are disjoint and sorted."""
    if len(others) == 0:
        return np.zeros(len(rows), bool)
    following = np.searchsorted(end[others], start[rows], side="right")
    begin = np.append(start[others], np.iinfo(np.int64).max)
    return begin[following] < end[rows]


def joined(profile: Profile, kind: int, rows: np.ndarray, name_from: str = "(?!)") -> SpanPart:
    """The union of events, each interval with its thread and name: of an event in it that matches `name_from`,
    else of the one that opens it."""
    rows = rows[profile.duration_ns[rows] > 0]
    rows = rows[np.lexsort((-profile.duration_ns[rows], profile.start_ns[rows]))]
    merged = Intervals.union_of(profile.start_ns[rows], profile.end_ns[rows])
    interval = np.searchsorted(merged.starts, profile.start_ns[rows], side="right") - 1
    opener = rows[np.searchsorted(interval, np.arange(len(merged)))]
    name = profile.name[opener].astype(np.int64)
    thread = profile.line_ids[profile.line[opener]]
    thread[interval[profile.line[rows] != profile.line[opener][interval]]] = UNION_THREAD
    preferred = profile.names_matching(name_from)[profile.name[rows]]
    name[interval[preferred]] = profile.name[rows[preferred]]
    return SpanPart(kind=kind, start=merged.starts, end=merged.ends, thread=thread, name=name)


def cut(times: Intervals, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of the pieces of the intervals, cut at the distinct instants `cuts`."""
    inner = cuts[times.covered_before(cuts + 1) - times.covered_before(cuts - 1) == 2]
    return np.sort(np.concatenate([times.starts, inner])), np.sort(np.concatenate([times.ends, inner]))


def within(part: SpanPart, times: Intervals) -> SpanPart:
    """The pieces of the part's disjoint spans that lie within `times`, with their threads and names."""
    kept = part.intervals.minus(part.intervals.minus(times))
    start, end = cut(kept, np.unique(np.concatenate([part.start, part.end])))
    owner = np.searchsorted(part.start, start, side="right") - 1
    return replace(part, start=start, end=end, thread=part.thread[owner], name=part.name[owner])


def events_part(profile: Profile, kind: int, rows: np.ndarray) -> SpanPart:
    return SpanPart(
        kind=kind,
        start=profile.start_ns[rows],
        end=profile.end_ns[rows],
        thread=profile.line_ids[profile.line[rows]],
        name=profile.name[rows],
    )


def between_steps(profile: Profile, rows: np.ndarray, main: np.ndarray, steps: int) -> np.ndarray:
    """`rows`, the framework's waits of the loop for input; without any, those that `recording()` marks between the
    steps.

    `steps`: number of steps."""
    marked = rows_of(profile, BETWEEN_STEPS, main)
    # A loop that does not use `step()` has only the first mark, which lasts as long as its first step.
    return rows if len(rows) or 2 * len(marked) < steps else marked


def rows_of(profile: Profile, pattern: str, lines: np.ndarray, but: str = "(?!)") -> np.ndarray:
    """Events on the lines marked in `lines` whose whole name matches `pattern` but not `but`."""
    names = profile.names_matching(pattern) & ~profile.names_matching(but)
    return np.flatnonzero(names[profile.name] & lines[profile.line])


def times_of(profile: Profile, rows: np.ndarray) -> Intervals:
    return Intervals.union_of(profile.start_ns[rows], profile.end_ns[rows])
