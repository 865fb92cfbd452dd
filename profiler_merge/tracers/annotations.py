"""Spans from the events that a program annotated for DFTracer: the `ai` interface of pydftracer, and DLIO's names.

Arguments such as `step` and `epoch` are stale or wrong in several releases: steps are numbered by their order.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict

import numpy as np

from dxt_replay.profiler_merge.profiles.span_parts import (
    CHECKPOINT,
    COLLECTIVE,
    COMPUTE,
    INPUT_WAIT,
    MOST_PER_STEP,
    OTHER,
    STEP,
    SpanColumns,
    covered,
    cut,
    in_order,
    made_spans,
    of_intervals,
)
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import READING_WAITS

MOST_EVENTS = 1 << 16
"""Most events of an unknown name that are kept: more are details of the code."""

_ROLES = {
    "wait": re.compile(r"data_?loader/fetch|data_?loader/loop\.iter"),
    "compute": re.compile(r"compute/.*|ai_framework/\w*Framework\.compute"),
    "checkpoint": re.compile(
        r"checkpoint/(capture|restart)|checkpoint/\w+\.(save|load)_\w+|ai_framework/\w+\.checkpoint"
    ),
    "collective": re.compile(r"comm/.*"),
    "epoch": re.compile(r"pipeline/epoch\.block|dlio_benchmark/\w+\._train"),
    "": re.compile(r"(storage|reader|config)/.*|.*\.__\w+__|data_?loader/.*|pipeline/.*|.*\.(trace_object|get_loader)"),
}
"""The role of an event, by category/name; "" for events that are never a span."""


class Annotations:
    """The annotated events of all processes."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[int, str | None]] = {}
        """Category/name -> number and role."""
        self._counts: Counter[str] = Counter()
        self._values: dict[int, array[int]] = defaultdict(lambda: array("q"))

    def add(self, name: str, process: int, tid: int, start_ns: int, end_ns: int) -> None:
        """Keep one event. `name`: category/name."""
        if name not in self.names:
            role = next((role for role, is_it in _ROLES.items() if is_it.fullmatch(name)), None)
            self.names[name] = len(self.names), role
        number, role = self.names[name]
        self._counts[name] += 1
        if role != "" and (role is not None or self._counts[name] <= MOST_EVENTS):
            self._values[process].extend((tid, number, start_ns, end_ns))

    def of_process(self, process: int) -> dict[str, np.ndarray]:
        """int64 columns `tid`, `name`, `start`, `end` of a process's events, by start."""
        rows = np.array(self._values[process], dtype=np.int64).reshape(-1, 4)
        rows = rows[np.lexsort((-rows[:, 3], rows[:, 2]))]
        return dict(zip(("tid", "name", "start", "end"), rows.T, strict=True))

    def is_role(self, role: str | None) -> np.ndarray:
        """bool by number of a name: whether its events have this role."""
        return np.array([own == role for _, own in self.names.values()], dtype=bool)


def annotated_spans(annotations: Annotations, process: int, *, reads_itself: bool) -> SpanColumns | None:
    """The spans of a process in CLOCK_REALTIME; None if it has no annotations of a training loop.

    A step lasts from one wait for a batch to the next. Under DLIO, whose last batches have no wait, it lasts until its
    compute ends, and the time before compute counts as the wait.
    `reads_itself`: whether the process itself, not its workers, reads the batches.
    """
    events = annotations.of_process(process)

    def times(role: str | None) -> Intervals:
        mine = annotations.is_role(role)[events["name"]]
        return Intervals.union_of(events["start"][mine], events["end"][mine])

    waits, compute, epochs = times("wait"), times("compute"), times("epoch")
    if not len(waits) and not len(compute):
        return None
    is_dlio = any(name.startswith("ai_framework/") for name in annotations.names) and len(compute) > 0
    starts, ends = _until_compute_ends(compute, epochs) if is_dlio else _from_wait_to_wait(waits, compute, epochs)
    if is_dlio:
        unmarked = waits.covered_within(starts, ends) == 0
        before = Intervals.union_of(starts[unmarked], ends[unmarked]).minus(compute)
        waits = Intervals.union_of(np.append(waits.starts, before.starts), np.append(waits.ends, before.ends))
    steps = made_spans(STEP, starts, ends, "step")
    steps.step = np.arange(len(steps))
    phases = [
        of_intervals(INPUT_WAIT, waits, READING_WAITS[0] if reads_itself else "wait for a batch"),
        of_intervals(CHECKPOINT, times("checkpoint"), "checkpoint"),
        of_intervals(COLLECTIVE, times("collective"), "collective"),
    ]
    busy = compute
    for part in phases:
        busy = busy.minus(covered(part))
    pieces = cut(busy, np.unique(np.concatenate([starts, ends])))
    others = _others(annotations, events, len(starts))
    return in_order([steps, *phases, of_intervals(COMPUTE, pieces, "compute"), others], steps)


def _until_compute_ends(compute: Intervals, epochs: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the steps: from the end of the previous compute, or the begin of the epoch, to the end of
    compute."""
    starts = np.append(compute.starts[:1], compute.ends[:-1])
    if len(epochs):
        epoch = np.searchsorted(epochs.starts, compute.starts, side="right") - 1
        starts = np.where(epoch >= 0, np.maximum(starts, epochs.starts[epoch]), starts)
        first = epochs.starts[max(int(epoch[0]), 0)]
        starts[0] = min(int(first), int(compute.starts[0]))
    return starts, compute.ends


def _from_wait_to_wait(waits: Intervals, compute: Intervals, epochs: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the steps: from a wait to the next one, or to the end of its epoch or of all compute."""
    if not len(waits):
        return compute.starts, compute.ends
    last = max(int(waits.ends[-1]), int(compute.ends[-1]) if len(compute) else 0)
    ends = np.append(waits.starts[1:], last)
    if len(epochs):
        epoch = np.searchsorted(epochs.ends, waits.starts, side="right")
        inside = epoch < len(epochs)
        bound = epochs.ends[np.minimum(epoch, len(epochs) - 1)]
        ends = np.where(inside, np.minimum(ends, bound), ends)
    return waits.starts, np.maximum(ends, waits.ends)


def _others(annotations: Annotations, events: dict[str, np.ndarray], steps: int) -> SpanColumns:
    """The program's own annotations that are rare enough to be phases of the loop."""
    mine = annotations.is_role(None)[events["name"]]
    counts = np.bincount(events["name"], minlength=len(annotations.names))
    rows = np.flatnonzero(mine & (counts[events["name"]] <= max(64, MOST_PER_STEP * steps)))
    texts = np.array([name.partition("/")[2] for name in annotations.names], dtype=object)[events["name"][rows]]
    return made_spans(OTHER, events["start"][rows], events["end"][rows], texts, events["tid"][rows])
