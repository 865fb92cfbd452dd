"""Moves the spans of a rank to the times of its changed training loop. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, FETCH, PIPELINE, TrainingLoop
from dxt_replay.replay.causal.production import MAKES_BATCH
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import are_evaluations
from dxt_replay.traces.schema import (
    NO_STEP,
    READING_WAITS,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    codes,
    table_from_columns,
)

_STEP, _WAIT, _CHECKPOINT, _COLLECTIVE, _OTHER = (
    SPAN_KINDS.index(name) for name in ("step", "input_wait", "checkpoint", "collective", "other")
)
_KIND_OF_EVENT = {FETCH: _WAIT, CHECKPOINT: _CHECKPOINT, COLLECTIVE: _COLLECTIVE}

_EVENTS, _COMPUTE = tuple(_KIND_OF_EVENT.values()), SPAN_KINDS.index("compute")

WAITS_FOR_READERS = "input_wait"
"""Name of a batch fetch of a loop whose training thread no longer reads itself."""


def wait_name(readers: int, readers_before: int) -> str | None:
    """Name of the batch fetches with this number of readers; None if their old names are still right."""
    if bool(readers) == bool(readers_before):
        return None
    return WAITS_FOR_READERS if readers else READING_WAITS[0]


def spans_of(spans: pa.Table, old: TrainingLoop, new: TrainingLoop, wait_name: str | None) -> pa.Table:
    """The rank's rows of `SPANS_SCHEMA`: the steps and events of `new`, and all other spans, moved with them.

    wait_name: name of the batch fetches; None keeps their names.
    """
    kind = codes(spans, "kind")
    steps = spans.filter(pa.array(kind == _STEP))
    thread = steps["thread"].to_numpy()
    is_event = np.isin(kind, (_STEP, _WAIT)) | (
        np.isin(kind, (_CHECKPOINT, _COLLECTIVE)) & _inside(spans, old) & np.isin(spans["thread"].to_numpy(), thread)
    )
    rest = _moved(spans.filter(pa.array(~is_event)), old, new)
    # The making of the batches is scheduled anew (`making_spans`).
    rest = rest.filter(pc.not_equal(rest["name"], MAKES_BATCH))
    events = _events(spans, old, new, wait_name, int(thread[0]))
    return pa.concat_tables([_steps(steps, new), events, rest])


def _inside(spans: pa.Table, loop: TrainingLoop) -> np.ndarray:
    """bool: spans that overlap an event of the loop."""
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    found: np.ndarray = np.searchsorted(loop.end_ns, start, side="right") < np.searchsorted(
        loop.begin_ns, end, side="left"
    )
    return found


def _steps(steps: pa.Table, loop: TrainingLoop) -> pa.Table:
    order = np.argsort(steps["start_ns"].to_numpy(), kind="stable")
    columns = {name: steps[name].take(pa.array(order)) for name in SPANS_SCHEMA.names}
    columns["start_ns"], columns["end_ns"] = pa.array(loop.step_begin_ns), pa.array(loop.step_end_ns)
    return pa.table(columns, schema=SPANS_SCHEMA)


def _events(spans: pa.Table, old: TrainingLoop, new: TrainingLoop, wait_name: str | None, thread: int) -> pa.Table:
    """A span for each batch fetch, checkpoint and collective."""
    chosen = np.flatnonzero(np.isin(new.kind, list(_KIND_OF_EVENT)))
    kind = np.array([_KIND_OF_EVENT[each] for each in new.kind[chosen].tolist()], dtype=np.int8)
    names = _names(spans, old, chosen, kind)
    if wait_name is not None:
        names = [wait_name if each == _WAIT else name for each, name in zip(kind.tolist(), names, strict=True)]
    begin = new.begin_ns[chosen]
    return _rows(spans["rank"][0].as_py(), thread, kind, names, new.step_at(begin), begin, new.end_ns[chosen])


def _rows(
    rank: int,
    thread: int,
    kind: np.ndarray | int,
    name: Sequence[str] | str,
    step: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    **more: np.ndarray,
) -> pa.Table:
    """Spans of one thread; kind and name of each, or of all."""
    count = len(start_ns)
    columns = {
        "rank": np.full(count, rank, dtype=np.int32),
        "thread": np.full(count, thread, dtype=np.int64),
        "kind": np.full(count, kind, dtype=np.int8),
        "name": [name] * count if isinstance(name, str) else name,
    }
    return table_from_columns({**columns, "step": step, "start_ns": start_ns, "end_ns": end_ns, **more}, SPANS_SCHEMA)


def _names(spans: pa.Table, loop: TrainingLoop, events: np.ndarray, kind: np.ndarray) -> list[str]:
    """The name of the last span of its kind that begins before each event ends."""
    found = [""] * len(events)
    span_kind = codes(spans, "kind")
    for code in np.unique(kind).tolist():
        mine = spans.filter(pa.array(span_kind == code)).sort_by("start_ns")
        place = np.searchsorted(mine["start_ns"].to_numpy(), loop.end_ns[events], side="left") - 1
        names = mine["name"].to_pylist()
        for at in np.flatnonzero(kind == code).tolist():
            found[at] = names[max(int(place[at]), 0)] if names else SPAN_KINDS[code]
    return found


def _moved(rest: pa.Table, old: TrainingLoop, new: TrainingLoop) -> pa.Table:
    """Spans that are neither steps nor events. A span between two borders of the loop keeps its relative place."""
    if not rest.num_rows:
        return rest
    before = np.concatenate((old.begin_ns, old.end_ns, old.step_begin_ns, old.step_end_ns, [old.exit_ns]))
    after = np.concatenate((new.begin_ns, new.end_ns, new.step_begin_ns, new.step_end_ns, [new.exit_ns]))
    before, first = np.unique(before, return_index=True)
    after = np.maximum.accumulate(after[first])
    kind = codes(rest, "kind")
    columns = {name: rest[name] for name in rest.column_names}
    for name in ("start_ns", "end_ns", "fetched_ns"):
        times = _at(rest[name].fill_null(0).to_numpy(), before, after)
        columns[name] = pa.array(times, mask=rest[name].is_null().to_numpy())
    # A known loop takes every checkpoint and every collective for an event of the training thread.
    kinds = np.where(np.isin(kind, (_CHECKPOINT, _COLLECTIVE)), _OTHER, kind).astype(np.int8)
    columns["kind"] = table_from_columns({"kind": kinds}, pa.schema([SPANS_SCHEMA.field("kind")]))["kind"]
    return pa.table(columns, schema=SPANS_SCHEMA)


def _at(times: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """int64: old times as new times. Times outside the loop move with its ends."""
    place = np.clip(np.searchsorted(before, times, side="right") - 1, 0, max(len(before) - 2, 0))
    from_ns, to_ns = before[place], after[place]
    behind = np.minimum(place + 1, len(before) - 1)
    length, new_length = before[behind] - from_ns, after[behind] - to_ns
    within = np.clip(times - from_ns, 0, length)
    moved = to_ns + np.rint(within * (new_length / np.maximum(length, 1))).astype(np.int64)
    beyond = times - from_ns - within
    shifted: np.ndarray = moved + beyond
    return shifted


def loop_spans(rank: int, loop: TrainingLoop, own_reads: bool) -> pa.Table:
    """The rows of a rank that was not recorded: steps, events and compute. own_reads: the training thread reads its
    batches itself."""
    chosen = np.flatnonzero(np.isin(loop.kind, list(_KIND_OF_EVENT)))
    kind = np.array([_KIND_OF_EVENT[each] for each in loop.kind[chosen].tolist()], dtype=np.int8)
    wait = READING_WAITS[0] if own_reads else WAITS_FOR_READERS
    kinds = np.concatenate((np.full(len(loop.step_begin_ns), _STEP, dtype=np.int8), kind))
    names = [wait if each == _WAIT else SPAN_KINDS[each] for each in kinds.tolist()]
    step = np.concatenate((loop.step_number, loop.step_at(loop.begin_ns[chosen])))
    begin = np.concatenate((loop.step_begin_ns, loop.begin_ns[chosen]))
    end = np.concatenate((loop.step_end_ns, loop.end_ns[chosen]))
    return training_spans(_rows(rank, 0, kinds, names, step, begin, end))


def making_spans(spans: pa.Table, loop: TrainingLoop, made_ns: np.ndarray) -> pa.Table:
    """The making of each batch as `pipeline` spans MAKES_BATCH, in a thread of its own beside `spans` of the rank.

    made_ns: int64 (2, fetches), when it began and ended.
    """
    begin, end = made_ns
    rank, thread, kind = spans["rank"][0].as_py(), int(spans["thread"].to_numpy().max()) + 1, PIPELINE
    fetched_ns = loop.end_ns[loop.fetches]
    return _rows(rank, thread, kind, MAKES_BATCH, loop.step_at(begin), begin, end, fetched_ns=fetched_ns)


def training_spans(spans: pa.Table) -> pa.Table:
    """Steps, batch fetches, collectives and checkpoints of a rank, and compute in the rest of each step."""
    kind = codes(spans, "kind")
    kept = spans.filter(pa.array(np.isin(kind, (*_EVENTS, _STEP))))
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    steps, events = kind == _STEP, np.isin(kind, _EVENTS)
    compute = Intervals.union_of(start[steps], end[steps]).minus(Intervals.union_of(start[events], end[events]))
    if not len(compute):
        return kept
    return pa.concat_tables([kept.cast(SPANS_SCHEMA), _compute_rows(compute, spans)])


def copied_spans(spans: pa.Table) -> pa.Table:
    """Spans of a rank for its copies: steps, events, evaluations and the input pipeline as they are, because the
    causal model follows from them, and one union of its compute.

    The accelerator utilisation stays the same. Other details of threads are left out, so that thousands of copies fit
    into memory.
    """
    kind = codes(spans, "kind")
    mine = np.isin(kind, (*_EVENTS, _STEP, PIPELINE)) | are_evaluations(spans)
    kept = spans.filter(pa.array(mine)).cast(SPANS_SCHEMA)
    computed = spans.filter(pa.array(kind == _COMPUTE))
    if not computed.num_rows:
        return kept
    union = Intervals.union_of(computed["start_ns"].to_numpy(), computed["end_ns"].to_numpy())
    return pa.concat_tables([kept, _compute_rows(union, spans)])


def _compute_rows(compute: Intervals, spans: pa.Table) -> pa.Table:
    """Compute as rows of the rank of `spans`, each in the step in which it begins."""
    steps = codes(spans, "kind") == _STEP
    numbers, step = spans["step"].to_numpy()[steps], np.full(len(compute), NO_STEP, dtype=np.int64)
    if len(numbers):
        begins, order = np.unique(spans["start_ns"].to_numpy()[steps], return_index=True)
        place = np.searchsorted(begins, compute.starts, side="right") - 1
        ends = spans["end_ns"].to_numpy()[steps][order]
        inside = (place >= 0) & (compute.starts < ends[place])
        step[inside] = numbers[order][place[inside]]
    rank = spans["rank"][0].as_py()
    return _rows(rank, UNION_THREAD, _COMPUTE, "compute", step, compute.starts, compute.ends)
