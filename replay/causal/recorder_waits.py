"""Waits that the recording itself made: taken out of a rank's time before dependencies are looked for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.plan_row import OperationBatch
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import SPAN_KINDS, CaptureInfo, codes

_BUSY = [SPAN_KINDS.index(kind) for kind in ("compute", "collective", "checkpoint", "pipeline")]


def recorder_waits(
    info: CaptureInfo, rank: int, spans: pa.Table, batches: Iterator[OperationBatch], origin_ns: int
) -> Intervals:
    """When a rank waited for input since `origin_ns`, did nothing else, and Darshan wrote the log of one of its
    processes.

    `spans`: of the rank; without input waits among them nothing is known. `batches`: its operations. Neither these, nor
    compute, nor the input pipeline goes on in such a wait.
    """
    written = np.array(
        [times for of_rank, *times in info.made_by.get("log_writing", ()) if of_rank == rank], dtype=np.int64
    ).reshape(-1, 2)
    if not len(written) or info.dependencies == "known":
        return Intervals()
    waits = Intervals.union_of(np.maximum(written[:, 0], origin_ns), written[:, 1])
    kind = codes(spans, "kind")
    waits = waits.minus(waits.minus(_of(spans, kind == SPAN_KINDS.index("input_wait"))))
    waits = waits.minus(_of(spans, np.isin(kind, _BUSY)))
    for batch in batches:
        waits = waits.minus(Intervals.union_of(batch.start_ns, batch.end_ns))
    return waits


def _of(spans: pa.Table, chosen: np.ndarray) -> Intervals:
    begin_ns, end_ns = (spans[name].to_numpy()[chosen] for name in ("start_ns", "end_ns"))
    return Intervals.union_of(begin_ns, end_ns)


def without(waits: Intervals, times: np.ndarray) -> np.ndarray:
    """Times, int64 ns (n,), on a clock that stands still during the waits."""
    shortened: np.ndarray = times - waits.covered_before(times)
    return shortened


def batch_without(waits: Intervals, batch: OperationBatch) -> OperationBatch:
    """The same operations on that clock."""
    if not len(waits):
        return batch
    return dataclasses.replace(batch, start_ns=without(waits, batch.start_ns), end_ns=without(waits, batch.end_ns))


def spans_without(waits: Intervals, spans: pa.Table) -> pa.Table:
    """The same spans on that clock."""
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
