"""Moves the spans of a rank to the times of its changed training loop. Pure."""

from __future__ import annotations

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
    dictionary_array,
    table_from_columns,
)

_STEP, _WAIT, _CHECKPOINT, _COLLECTIVE, _OTHER, _COMPUTE = (
    SPAN_KINDS.index(name) for name in ("step", "input_wait", "checkpoint", "collective", "other", "compute")
)
_KIND_OF_EVENT = {FETCH: _WAIT, CHECKPOINT: _CHECKPOINT, COLLECTIVE: _COLLECTIVE}

WAITS_FOR_READERS = "input_wait"  # Name of a batch fetch of a loop whose training thread does not read by itself


def spans_at(
    rank: int,
    recorded: pa.Table | None,
    old: TrainingLoop,
    new: TrainingLoop,
    made_ns: np.ndarray | None,
    *,
    reads_itself: bool,
    renamed: bool,
) -> pa.Table:
    """Rows of `SPANS_SCHEMA` of a rank with the training loop `new`.

    recorded: its rows in the capture with the loop `old`, of which those that are neither steps nor events of the loop
    move with them. None if the loop was not recorded: then what lies between the events of a step is compute.
    made_ns: int64 (2, fetches), begin and end of the making of each batch. reads_itself: whether the training thread
    reads its batches. renamed: whether it did the opposite in the capture."""
    chosen = np.flatnonzero(np.isin(new.kind, list(_KIND_OF_EVENT)))
    kind = np.array([_KIND_OF_EVENT[each] for each in new.kind[chosen].tolist()], dtype=np.int8)
    begin, end, wait = new.begin_ns[chosen], new.end_ns[chosen], READING_WAITS[0] if reads_itself else WAITS_FOR_READERS
    if recorded is None:
        names = [wait if each == _WAIT else SPAN_KINDS[each] for each in kind.tolist()]
        of_steps = {"step": new.step_number, "start_ns": new.step_begin_ns, "end_ns": new.step_end_ns}
        steps = table_from_columns({**of_steps, "rank": rank, "thread": 0, "kind": _STEP, "name": "step"}, SPANS_SCHEMA)
        busy = Intervals.union_of(new.step_begin_ns, new.step_end_ns).minus(Intervals.union_of(begin, end))
        thread, rest = 0, _compute_rows(busy, steps)
    else:
        span_kind, named = codes(recorded, "kind"), [""] * len(chosen)
        for code in np.unique(kind).tolist():  # the last span of its kind that begins before each event ends
            mine = recorded.filter(pa.array(span_kind == code)).sort_by("start_ns")
            place = np.searchsorted(mine["start_ns"].to_numpy(), old.end_ns[chosen], side="left") - 1
            of_kind = mine["name"].to_pylist() or [SPAN_KINDS[code]]
            for at in np.flatnonzero(kind == code).tolist():
                named[at] = of_kind[max(int(place[at]), 0)]
        names = [wait if renamed and each == _WAIT else name for each, name in zip(kind.tolist(), named, strict=True)]
        steps = recorded.filter(pa.array(span_kind == _STEP)).sort_by("start_ns").select(SPANS_SCHEMA.names)
        threads, thread = steps["thread"].to_numpy(), steps["thread"][0].as_py()
        for name, times in (("start_ns", new.step_begin_ns), ("end_ns", new.step_end_ns)):
            steps = steps.set_column(SPANS_SCHEMA.get_field_index(name), SPANS_SCHEMA.field(name), pa.array(times))
        inside = np.searchsorted(old.end_ns, recorded["start_ns"].to_numpy(), side="right") < np.searchsorted(
            old.begin_ns, recorded["end_ns"].to_numpy(), side="left"
        )
        is_event = np.isin(span_kind, (_CHECKPOINT, _COLLECTIVE)) & inside
        is_event &= np.isin(recorded["thread"].to_numpy(), threads)
        # The making of the batches is scheduled anew.
        rest = recorded.filter(pa.array(~is_event & ~np.isin(span_kind, (_STEP, _WAIT))))
        rest = _moved(rest, old, new).filter(pc.not_equal(rest["name"], MAKES_BATCH))
    events = {"kind": kind, "name": names, "step": new.step_at(begin), "start_ns": begin, "end_ns": end}
    tables = [
        steps,
        table_from_columns({**events, "rank": rank, "thread": thread}, SPANS_SCHEMA),
        rest.cast(SPANS_SCHEMA),
    ]
    if made_ns is not None:
        last = max(int(each["thread"].to_numpy().max(initial=0)) for each in tables)
        made = {"start_ns": made_ns[0], "end_ns": made_ns[1], "step": new.step_at(made_ns[0])}
        made |= {"fetched_ns": new.end_ns[new.fetches], "rank": rank, "thread": last + 1}
        tables.append(table_from_columns({**made, "kind": PIPELINE, "name": MAKES_BATCH}, SPANS_SCHEMA))
    return pa.concat_tables(tables)


def _moved(rest: pa.Table, old: TrainingLoop, new: TrainingLoop) -> pa.Table:
    """Spans that are neither steps nor events. A span between two borders of the loop keeps its relative place; beyond
    its ends spans move with these."""
    before = np.concatenate((old.begin_ns, old.end_ns, old.step_begin_ns, old.step_end_ns, [old.exit_ns]))
    after = np.concatenate((new.begin_ns, new.end_ns, new.step_begin_ns, new.step_end_ns, [new.exit_ns]))
    before, first = np.unique(before, return_index=True)
    after = np.maximum.accumulate(after[first])
    columns = {name: rest[name] for name in rest.column_names}
    for name in ("start_ns", "end_ns", "fetched_ns"):
        times = rest[name].fill_null(0).to_numpy()
        within = np.clip(times, before[0], before[-1])
        moved = np.rint(np.interp(within - before[0], before - before[0], after - after[0])).astype(np.int64)
        columns[name] = pa.array(after[0] + moved + times - within, mask=rest[name].is_null().to_numpy())
    # A known loop takes every checkpoint and every collective for an event of the training thread.
    kind = codes(rest, "kind")
    columns["kind"] = dictionary_array(np.where(np.isin(kind, (_CHECKPOINT, _COLLECTIVE)), _OTHER, kind), SPAN_KINDS)
    return pa.table(columns, schema=SPANS_SCHEMA)


def copied_spans(spans: pa.Table) -> pa.Table:
    """Spans of a rank for its copies: steps, events, evaluations and the input pipeline as they are, because the
    causal model follows from them, and one union of its compute.

    The accelerator utilisation stays the same. Other details of threads are left out, so that thousands of copies fit
    into memory."""
    kind = codes(spans, "kind")
    mine = np.isin(kind, (*_KIND_OF_EVENT.values(), _STEP, PIPELINE)) | are_evaluations(spans)
    computed = spans.filter(pa.array(kind == _COMPUTE))
    union = Intervals.union_of(computed["start_ns"].to_numpy(), computed["end_ns"].to_numpy())
    return pa.concat_tables([spans.filter(pa.array(mine)).cast(SPANS_SCHEMA), _compute_rows(union, spans)])


def _compute_rows(compute: Intervals, spans: pa.Table) -> pa.Table:
    """Compute as rows of the rank of `spans`, each in the step in which it begins."""
    if not len(compute):
        return SPANS_SCHEMA.empty_table()
    steps = codes(spans, "kind") == _STEP
    numbers, step = spans["step"].to_numpy()[steps], np.full(len(compute), NO_STEP, dtype=np.int64)
    if len(numbers):
        begins, order = np.unique(spans["start_ns"].to_numpy()[steps], return_index=True)
        place = np.searchsorted(begins, compute.starts, side="right") - 1
        ends = spans["end_ns"].to_numpy()[steps][order]
        inside = (place >= 0) & (compute.starts < ends[place])
        step[inside] = numbers[order][place[inside]]
    columns = {"step": step, "start_ns": compute.starts, "end_ns": compute.ends, "thread": UNION_THREAD}
    return table_from_columns(
        {**columns, "rank": spans["rank"][0].as_py(), "kind": _COMPUTE, "name": "compute"}, SPANS_SCHEMA
    )
