"""Extends the spans of a rank with some profiled steps over the reads of the other steps. Pure.

Extended spans are marked as reconstructed: their times come from the reads, their contents from the profiled steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.recording import ANNOTATION
from dxt_replay.profiler_merge.unprofiled.fetch_times import FetchTimes, fetch_times
from dxt_replay.profiler_merge.unprofiled.loop_reads import loop_reads
from dxt_replay.profiler_merge.unprofiled.profiled_steps import Phase, ProfiledSteps, phases_after_fetch, profiled_steps
from dxt_replay.profiler_merge.unprofiled.read_clock import read_clock
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import evaluations_by_rank
from dxt_replay.traces.schema import (
    READ,
    RECONSTRUCTED,
    SPAN_KINDS,
    SPANS_SCHEMA,
    TRACED,
    WRITE,
    codes,
    table_from_columns,
)
from dxt_replay.traces.units import NS_PER_MS, format_count

_STEP, _WAIT, _COMPUTE, _CHECKPOINT, _PIPELINE = (
    SPAN_KINDS.index(kind) for kind in ("step", "input_wait", "compute", "checkpoint", "pipeline")
)
_SAVED_BYTES = 1 << 18
"""Writes of the training process that move this much, with gaps of at most `_SAVING_GAP_NS`, are a checkpoint."""
_SAVING_GAP_NS = 20 * NS_PER_MS
_PAUSES = 5
"""Usual steps without a step after which the training had ended, or paused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extended:
    """The spans of a rank (`SPANS_SCHEMA`) with those of the steps that were not profiled.

    first, last: numbers of its first and last step.
    steps, profiled: number of its steps, and of the profiled ones.
    unsure: relative error of the number of steps, 0.1 for 10 %; 0 if the reads show each batch.
    """

    spans: pa.Table
    first: int
    last: int
    steps: int
    profiled: int
    unsure: float


def text_of(extended: Extended) -> str:
    """The sentence for people."""
    added = extended.steps - extended.profiled
    share = min(100 * added / extended.steps, 99.9)
    unsure = f", of which there may be {100 * extended.unsure:.0f} % more or fewer" if extended.unsure >= 0.01 else ""
    return (
        f"the profile shows {format_count(extended.profiled)} training steps; the other {format_count(added)} of steps "
        f"{extended.first} to {extended.last} ({share:.3g} %) are inferred{unsure}: their starts from the "
        "reads, their compute times from the profiled steps"
    )


def extended_spans(
    spans: pa.Table,
    operations: dict[str, np.ndarray],
    process: np.ndarray,
    path: Callable[[int], str],
    limits: tuple[int, int] | None = None,
) -> Extended | str | None:
    """The spans of one rank with those of the steps outside of its profile.

    None if the reads show no others; a text if they may exist but the evidence does not place them. `operations`,
    `process`, `path`: as for `loop_reads`. `limits`: first and last step, if another rank shows them.
    """
    steps = profiled_steps(spans)
    if steps is None or _saw_all_reads(spans, operations):
        return None
    reads = loop_reads(operations, process, path, steps).outside(_untrained(spans, steps))
    clock = read_clock(reads, steps)
    if isinstance(clock, str):
        return clock if _outside(operations, steps) else None
    times = fetch_times(clock, steps, limits)
    if times is None:
        return None
    added = _spans(spans, steps, times, _checkpoints(operations, process))
    field = SPANS_SCHEMA.field("origin")
    traced = table_from_columns({"origin": np.full(spans.num_rows, TRACED, np.int8)}, pa.schema([field]))
    marked = spans.set_column(SPANS_SCHEMA.get_field_index("origin"), field, traced["origin"])
    return Extended(
        spans=pa.concat_tables([marked, added]),
        first=int(times.number[0]),
        last=int(times.number[-1]),
        steps=len(times.number),
        profiled=len(steps),
        unsure=clock.amount.unsure,
    )


def _saw_all_reads(spans: pa.Table, operations: dict[str, np.ndarray]) -> bool:
    """Whether tf.data's own events cover all reads of the files that they read.

    If so, reads beyond the last step were made ahead, for batches that were never fetched.
    """
    seen = spans.filter(spans["fetched_ns"].is_valid())
    if not seen.num_rows:
        return False
    begin, end = seen["start_ns"].to_numpy().min(), seen["end_ns"].to_numpy().max()
    pipeline = spans.filter(pa.array(codes(spans, "kind") == _PIPELINE))
    end = max(end, pipeline["end_ns"].to_numpy().max())
    read = (operations["op"] == READ) & (operations["origin"] == TRACED)
    start, file_id = operations["start_ns"][read], operations["file_id"][read]
    inside = (start >= begin) & (start < end)
    return not np.isin(file_id[~inside], file_id[inside]).any()


def _untrained(spans: pa.Table, steps: ProfiledSteps) -> Intervals:
    """Times in which the profile shows that the rank did not train: evaluations, and what follows the last step for as
    long as the profile goes on."""
    shown = spans.filter(pc.invert(pc.starts_with(spans["name"], ANNOTATION)))  # anchors need no profile around them
    last, end = steps.end_ns[-1:], shown["end_ns"].to_numpy().max(keepdims=True)
    found = evaluations_by_rank(spans).get(int(spans["rank"][0].as_py()), Intervals())
    # A pipeline reads ahead for the next step until the profiler has stopped.
    goes_on = end - last > _PAUSES * np.median(steps.end_ns - steps.begin_ns)
    return found.union(Intervals.union_of(last[goes_on], end[goes_on]))


def _outside(operations: dict[str, np.ndarray], steps: ProfiledSteps) -> bool:
    """Whether much was read before or after the profiled steps, compared with the reads during them."""
    start, read = operations["start_ns"], (operations["op"] == READ) & (operations["origin"] == TRACED)
    inside = read & (start >= steps.begin_ns[0]) & (start < steps.end_ns[-1])
    after = read & (start >= steps.end_ns[-1])
    before = read & (start < steps.begin_ns[0]) & (steps.number[0] > 1)
    return bool(max(after.sum(), before.sum()) > inside.sum())


def _checkpoints(operations: dict[str, np.ndarray], process: np.ndarray) -> Intervals:
    """Times at which the training process wrote checkpoints."""
    start, end = operations["start_ns"], operations["end_ns"]
    writes = np.flatnonzero((process == 0) & (operations["op"] == WRITE))
    if not len(writes):
        return Intervals()
    joined = Intervals.union_of(start[writes], end[writes] + _SAVING_GAP_NS)
    place = np.searchsorted(joined.starts, start[writes], side="right") - 1
    moved = np.bincount(place, weights=operations["length"][writes], minlength=len(joined))
    large = moved >= _SAVED_BYTES
    return Intervals.union_of(joined.starts[large], joined.ends[large] - _SAVING_GAP_NS)


def _spans(spans: pa.Table, steps: ProfiledSteps, times: FetchTimes, saved: Intervals) -> pa.Table:
    """The rows of the steps that were not profiled."""
    begin, end = _bounds(steps, times)
    phases = phases_after_fetch(spans, steps)
    rows: list[tuple[int, int, str, int, int, int]] = []
    for row in np.flatnonzero(~times.profiled).tolist():
        number, like = int(times.number[row]), int(times.like[row])
        fetch, until = int(times.fetch_ns[row]), int(end[row])
        rows.append((steps.thread, _STEP, steps.name, number, int(begin[row]), until))
        if steps.waits:
            rows.append((steps.thread, _WAIT, steps.wait_name, number, int(times.wait_ns[row]), fetch))
        inside = _within(saved, fetch, until)
        rows += [(steps.thread, _CHECKPOINT, "checkpoint", number, int(a), int(b)) for a, b in _pairs(inside)]
        free = until - fetch - inside.length_ns
        for phase in phases[like]:
            rows += _placed(phase, number, fetch, until, inside, min(1.0, free / max(int(steps.busy_ns[like]), 1)))
    thread, kind, name, step, start_ns, end_ns = zip(*rows, strict=True)
    return table_from_columns(
        {
            "rank": np.full(len(rows), int(spans["rank"][0].as_py()), np.int32),
            "thread": np.array(thread, np.int64),
            "kind": np.array(kind, np.int8),
            "name": list(name),
            "step": np.array(step, np.int32),
            "start_ns": np.array(start_ns, np.int64),
            "end_ns": np.array(end_ns, np.int64),
            "origin": np.full(len(rows), RECONSTRUCTED, np.int8),
        },
        SPANS_SCHEMA,
    )


def _bounds(steps: ProfiledSteps, times: FetchTimes) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of every step.

    A step begins as long before its wait as profiled steps do. It ends where the next begins or, at the end of a
    stretch, after its busy time."""
    lead = max(int(np.median(steps.wait_ns - steps.begin_ns)), 0)
    begin = times.wait_ns - lead
    begin[times.profiled] = steps.begin_ns
    begin = np.maximum(begin, np.concatenate((begin[:1], times.fetch_ns[:-1])))
    end = np.append(begin[1:], times.fetch_ns[-1] + steps.busy_ns[times.like[-1]])
    last_profiled = np.flatnonzero(times.profiled)
    end[last_profiled] = steps.end_ns
    after = last_profiled[(last_profiled + 1 < len(begin))] + 1
    begin[after] = np.maximum(begin[after], end[after - 1])
    return begin, np.maximum(begin, end)


def _placed(
    phase: Phase, number: int, fetch: int, until: int, inside: Intervals, scale: float
) -> list[tuple[int, int, str, int, int, int]]:
    """The spans of a phase, moved to another step. Compute is one stretch of the same length; other kinds keep their
    places."""
    if phase.kind == _COMPUTE:
        busy = int((phase.end_ns - phase.begin_ns).sum() * scale)
        begin = fetch + int(phase.begin_ns[0] * scale)
        parts = Intervals.union_of(np.array([begin]), np.array([min(begin + busy, until)])).minus(inside)
        return [(phase.thread, phase.kind, phase.name, number, int(a), int(b)) for a, b in _pairs(parts)]
    begins, ends = (fetch + (times * scale).astype(np.int64) for times in (phase.begin_ns, phase.end_ns))
    return [
        (phase.thread, phase.kind, phase.name, number, int(a), int(max(min(b, until), a + 1)))
        for a, b in zip(begins, ends, strict=True)
    ]


def _within(times: Intervals, begin: int, end: int) -> Intervals:
    """The part of the times that lies in [begin, end)."""
    starts, ends = np.maximum(times.starts, begin), np.minimum(times.ends, end)
    kept = starts < ends
    return Intervals.union_of(starts[kept], ends[kept])


def _pairs(times: Intervals) -> list[tuple[int, int]]:
    return list(zip(times.starts.tolist(), times.ends.tolist(), strict=True))
