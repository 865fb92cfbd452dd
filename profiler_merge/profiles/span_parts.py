"""The building blocks of spans for any framework: rows of SPAN, cut and joined into the spans of a rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import step_at
from dxt_replay.traces.schema import SPAN_KINDS, UNION_THREAD

STEP, COMPUTE, INPUT_WAIT, PIPELINE, CHECKPOINT, COLLECTIVE, OTHER = (
    SPAN_KINDS.index(kind)
    for kind in ("step", "compute", "input_wait", "pipeline", "checkpoint", "collective", "other")
)

SPAN = np.dtype([("kind", "i1"), ("thread", "i8"), ("name", "O"), ("step", "i4"), ("start_ns", "i8"),
                 ("end_ns", "i8"), ("fetched_ns", "i8")])  # fmt: skip
"""A span on the profile's clock. `kind`: code of SPAN_KINDS. `thread`: the line's id, or UNION_THREAD where several
threads take part. `name`: valid UTF-8. `step`: the step that it starts in, or NO_STEP. `fetched_ns`: the end of the
batch fetch that first used what a `pipeline` span made, or NOT_FETCHED."""

SpanColumns: TypeAlias = Any
"""`np.recarray` of SPAN; NumPy's own types lose its fields at the first index."""

NOT_FETCHED = np.iinfo(np.int64).min
BY_START = -2
"""The step of a span until `in_order` finds the one that it starts in."""

BETWEEN_STEPS = "between_steps"
"""The name in `profiler_merge.recording` of what the loop does between two steps; that module imports nothing
of ours."""

MOST_PER_STEP = 4
"""Annotations of one name that occur more often per step, and more than 64 times, are no phases but details."""


def made_spans(kind: int, start: np.ndarray, end: np.ndarray, name: Any, thread: Any = UNION_THREAD) -> SpanColumns:
    """Spans of one kind. `name`, `thread`: one for all, or of each."""
    found = np.recarray(len(start), SPAN)
    found.kind, found.start_ns, found.end_ns, found.name, found.thread = kind, start, end, name, thread
    found.step, found.fetched_ns = BY_START, NOT_FETCHED
    return found


def of_intervals(kind: int, times: Intervals, name: str, thread: int = UNION_THREAD) -> SpanColumns:
    """Spans of one thread, or of several together."""
    return made_spans(kind, times.starts, times.ends, name, thread)


def of_events(profile: Profile, kind: int, rows: np.ndarray) -> SpanColumns:
    """A span for each event."""
    names, threads = np.array(profile.names, dtype=object)[profile.name[rows]], profile.line_ids[profile.line[rows]]
    return made_spans(kind, profile.start_ns[rows], profile.end_ns[rows], names, threads)


def covered(spans: SpanColumns) -> Intervals:
    """When any of the spans goes on."""
    return Intervals.union_of(spans.start_ns, spans.end_ns)


def in_order(parts: Sequence[SpanColumns], steps: SpanColumns) -> SpanColumns:
    """All spans of a rank, in order of time. Names become text that Arrow can hold: bytes that are not UTF-8 are
    written `\\xNN`, as in the contract's paths, half pairs of JSON `\\uNNNN`."""
    found: SpanColumns = np.concatenate(parts).view(np.recarray)
    unknown = found.step == BY_START
    found.step[unknown] = step_at(found.start_ns[unknown], steps.start_ns, steps.end_ns, steps.step)
    found = found[np.lexsort((found.kind, -found.end_ns, found.start_ns))]
    texts = {}
    for name in set(found.name.tolist()):
        try:
            texts[name] = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:
            texts[name] = name.encode("utf-8", "backslashreplace").decode()
    if any(name != text for name, text in texts.items()):
        found.name = [texts[name] for name in found.name.tolist()]
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopParts:
    """The training loop: its steps, and the phases in which it did not compute."""

    steps: SpanColumns
    wait: SpanColumns
    collective: SpanColumns
    checkpoint: SpanColumns
    restore: SpanColumns

    @classmethod
    def of(cls, profile: Profile, steps: SpanColumns, wait: SpanColumns, *rows: np.ndarray) -> LoopParts:
        """`rows`: the events of collectives, of checkpoints that are saved, and of those that are read."""
        collective, save, restore = (
            joined(profile, kind, each) for kind, each in zip((COLLECTIVE, CHECKPOINT, CHECKPOINT), rows, strict=True)
        )
        restore.name = "restore"
        return cls(steps=steps, wait=wait, collective=collective, checkpoint=save, restore=restore)

    def step_at(self, times: np.ndarray) -> np.ndarray:
        """int32 step at each time, NO_STEP outside of all."""
        return step_at(times, self.steps.start_ns, self.steps.end_ns, self.steps.step)

    def cut(self, times: Intervals) -> Intervals:
        """The intervals, cut at the begins and ends of steps."""
        return cut(times, np.unique(np.concatenate([self.steps.start_ns, self.steps.end_ns])))

    def outside(self, busy: Intervals) -> Intervals:
        """The busy times outside of all phases, cut at the begins and ends of steps."""
        for part in (self.wait, self.collective, self.checkpoint, self.restore):
            busy = busy.minus(covered(part))
        return self.cut(busy)

    def waits_beside(self, busy: Intervals) -> list[SpanColumns]:
        """The waits outside of the times at which a device works; the rest of them delays nothing, and is `other`."""
        hidden = within(self.wait, busy)
        hidden.kind = OTHER
        return [within(self.wait, covered(self.wait).minus(busy)), hidden]

    def phases(self, profile: Profile, rows: np.ndarray) -> SpanColumns:
        """`other` spans of those `rows` (events) whose names are rare enough to be phases of the loop, not details."""
        counts = np.bincount(profile.name[rows], minlength=len(profile.names))
        rare = counts <= max(64, MOST_PER_STEP * len(self.steps))
        return of_events(profile, OTHER, rows[rare[profile.name[rows]]])


def outermost(start: np.ndarray, end: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The `rows` (sorted by start, outer first) that lie in no earlier one."""
    reach = np.maximum.accumulate(end[rows])
    return rows[np.append(True, start[rows][1:] >= reach[:-1])[: len(rows)]]


def joined(profile: Profile, kind: int, rows: np.ndarray, name_from: str = "(?!)") -> SpanColumns:
    """The union of events, each interval with its thread and name: of an event in it that matches `name_from`,
    else of the one that opens it."""
    rows = rows[profile.duration_ns[rows] > 0]
    rows = rows[np.lexsort((-profile.duration_ns[rows], profile.start_ns[rows]))]
    merged = times_of(profile, rows)
    interval = np.searchsorted(merged.starts, profile.start_ns[rows], side="right") - 1
    opener = rows[np.searchsorted(interval, np.arange(len(merged)))]
    found = of_events(profile, kind, opener)
    found.start_ns, found.end_ns = merged.starts, merged.ends
    found.thread[interval[profile.line[rows] != profile.line[opener][interval]]] = UNION_THREAD
    preferred = profile.names_matching(name_from)[profile.name[rows]]
    found.name[interval[preferred]] = np.array(profile.names, dtype=object)[profile.name[rows[preferred]]]
    return found


def cut(times: Intervals, cuts: np.ndarray) -> Intervals:
    """The pieces of the intervals, cut at the distinct instants `cuts`."""
    inner = cuts[times.covered_before(cuts + 1) - times.covered_before(cuts - 1) == 2]
    starts, ends = (np.sort(np.concatenate([bounds, inner])) for bounds in (times.starts, times.ends))
    return Intervals(starts=starts, ends=ends)


def within(part: SpanColumns, times: Intervals) -> SpanColumns:
    """The pieces of the part's disjoint spans that lie within `times`, with their threads and names."""
    kept = covered(part).minus(covered(part).minus(times))
    pieces = cut(kept, np.unique(np.concatenate([part.start_ns, part.end_ns])))
    found = part[np.searchsorted(part.start_ns, pieces.starts, side="right") - 1]
    found.start_ns, found.end_ns = pieces.starts, pieces.ends
    return found


def between_steps(profile: Profile, rows: np.ndarray, main: np.ndarray, steps: int) -> np.ndarray:
    """`rows`, the framework's waits of the loop for input; without any, those that `recording()` marks between the
    steps, which are `steps` in number."""
    marked = rows_of(profile, BETWEEN_STEPS, main)
    # A loop that does not use `step()` has only the first mark, which lasts as long as its first step.
    return rows if len(rows) or 2 * len(marked) < steps else marked


def rows_of(profile: Profile, pattern: str, lines: np.ndarray, but: str = "(?!)") -> np.ndarray:
    """Events on the lines marked in `lines` whose whole name matches `pattern` but not `but`."""
    names = profile.names_matching(pattern) & ~profile.names_matching(but)
    return np.flatnonzero(names[profile.name] & lines[profile.line])


def times_of(profile: Profile, rows: np.ndarray) -> Intervals:
    """When any of these events goes on."""
    return Intervals.union_of(profile.start_ns[rows], profile.end_ns[rows])
