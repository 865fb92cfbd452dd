"""Removes waits that the recording itself caused from a rank's time, before dependencies are inferred. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.plan_row import OperationBatch
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import log_waits
from dxt_replay.traces.schema import SPAN_KINDS, CaptureInfo, codes

_BUSY = [SPAN_KINDS.index(kind) for kind in ("compute", "collective", "checkpoint", "pipeline")]


def recorder_waits(
    info: CaptureInfo, rank: int, spans: pa.Table, batches: Iterable[OperationBatch], origin_ns: int
) -> Intervals:
    """Waits for input since `origin_ns` in which Darshan wrote the log of a process of the rank.

    `spans`: of the rank; without input waits the result is empty. `batches`: its operations. During such a wait no
    operation, compute or work of the input pipeline goes on.
    """
    waits = (log_waits(info, spans) or {}).get(rank, Intervals())
    if not len(waits):
        return waits
    waits = waits.minus(Intervals.union_of(waits.starts[:1], np.array([origin_ns])))
    busy = np.isin(codes(spans, "kind"), _BUSY)
    waits = waits.minus(Intervals.union_of(*(spans[name].to_numpy()[busy] for name in ("start_ns", "end_ns"))))
    for batch in batches:
        waits = waits.minus(Intervals.union_of(batch.start_ns, batch.end_ns))
    return waits


def without(waits: Intervals, times: np.ndarray) -> np.ndarray:
    """Times, int64 ns (n,), on a clock that stands still during the waits."""
    shortened: np.ndarray = times - waits.covered_before(times)
    return shortened


def batch_without(waits: Intervals, batch: OperationBatch) -> OperationBatch:
    """The operations on the clock of `without`."""
    if not len(waits):
        return batch
    return dataclasses.replace(batch, start_ns=without(waits, batch.start_ns), end_ns=without(waits, batch.end_ns))


def spans_without(waits: Intervals, spans: pa.Table) -> pa.Table:
    """The spans on the clock of `without`."""
    if not len(waits):
        return spans
    for name in ("start_ns", "end_ns", "fetched_ns"):
        place = spans.schema.get_field_index(name)
        if place >= 0:
            column = spans[name].combine_chunks()
            known = column.is_valid().to_numpy(zero_copy_only=False)
            times = without(waits, column.fill_null(0).to_numpy())
            spans = spans.set_column(place, spans.schema.field(name), pa.array(times, mask=~known))
    return spans
