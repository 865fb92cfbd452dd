"""Waits that the recording caused: training waits for input while Darshan writes the logs of ended processes. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import union_by_rank, whole_steps
from dxt_replay.traces.schema import LOG_WRITING, NO_STEP, SPAN_KINDS, UNION_THREAD, CaptureInfo, table_from_columns


def log_waits(info: CaptureInfo, spans: pa.Table) -> dict[int, Intervals] | None:
    """Rank -> its input waits in `spans` while logs were written; None where the merge could not know it."""
    if not (rows := info.made_by.get("log_writing")):
        return None
    rank, begin_ns, end_ns = np.array(rows, dtype=np.int64).T
    waits = union_by_rank(spans, "input_wait")
    found = {}
    for each in np.unique(rank).tolist():
        wrote = Intervals.union_of(begin_ns[rank == each], end_ns[rank == each])
        found[each] = wrote.minus(wrote.minus(waits.get(each, Intervals())))
    return found


def with_log_waits(info: CaptureInfo, spans: pa.Table) -> pa.Table:
    """The spans, and such waits as `other` spans LOG_WRITING, which measures of the loop leave out like evaluations."""
    found = [spans]
    for rank, waits in (log_waits(info, spans) or {}).items():
        if len(waits):
            columns = {"rank": rank, "thread": UNION_THREAD, "name": LOG_WRITING, "step": NO_STEP}
            kind = np.full(len(waits), SPAN_KINDS.index("other"), dtype=np.int8)
            columns |= {"kind": kind, "start_ns": waits.starts, "end_ns": waits.ends}
            found.append(table_from_columns(columns, spans.schema))
    return pa.concat_tables(found)


def longest_log_wait_ns(info: CaptureInfo, spans: pa.Table) -> int | None:
    """Longest such wait of any rank between the begin of the first step and the end of the last, ns.

    None where the merge could not know it, or without steps.
    """
    steps, waits = whole_steps(spans), log_waits(info, spans)
    if waits is None or not steps.num_rows:
        return None
    begin, end = np.array([steps["start_ns"].to_numpy().min()]), np.array([steps["end_ns"].to_numpy().max()])
    return max(int(each.covered_within(begin, end)[0]) for each in waits.values())
