"""The ranks of a capture as they are read for a change, and as they are written after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.paced_ranks import derive_steps
from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.plan.survey import survey_rank
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.transform.changed_capture import RankRows
from dxt_replay.replay.transform.loop_schedule import Scheduled
from dxt_replay.replay.transform.new_spans import loop_spans, spans_of, wait_name
from dxt_replay.replay.transform.rank_changes import Pipeline
from dxt_replay.replay.transform.rank_work import NOTHING, RankWork
from dxt_replay.replay.transform.source_work import RankLoop, source_work
from dxt_replay.traces.schema import OPS_SCHEMA, table_from_columns
from dxt_replay.traces.store.reader import Capture


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankState:
    """A rank between reading and writing.

    work, loop: its operations and its training loop. pipeline: how its batches came in the capture.
    spans: rows of `SPANS_SCHEMA`, as in the capture; None for a rank that has another loop than any recorded one.
    readers, ahead: lanes that read its batches now, and how many batches ahead.
    """

    work: RankWork
    loop: RankLoop
    pipeline: Pipeline
    spans: pa.Table | None
    readers: int
    ahead: int


def source_rank(capture: Capture, rank: int, layers: LayerChoice, spans: pa.Table, begin_ns: int) -> RankState:
    """A rank as it was captured. Raises: CaptureError when a part is damaged, or the rank has no training steps."""
    survey = survey_rank(capture, rank, layers)
    steps = derive_steps(capture, [survey], {rank: spans}, begin_ns, Solo())
    tables = [pa.Table.from_batches([batch.filter(layers.replayed(batch))]) for batch in capture.operations(rank)]
    rows = pa.concat_tables(tables) if tables else OPS_SCHEMA.empty_table()
    model = steps.models[rank]
    work, loop = source_work(rows, model, begin_ns)
    pipeline = Pipeline.of(model, work)
    return RankState(
        work=work, loop=loop, pipeline=pipeline, spans=spans, readers=pipeline.readers, ahead=pipeline.ahead
    )


def as_recorded(capture: Capture, rank: int, state: RankState) -> RankRows:
    """The rank as the capture has it, all of its rows."""
    assert state.spans is not None

    def operations() -> Iterator[pa.Table]:
        for batch in capture.operations(rank):
            yield pa.Table.from_batches([batch])

    return RankRows(rank=rank, operations=operations, spans=state.spans)


def as_scheduled(rank: int, state: RankState, times: Scheduled) -> RankRows:
    """The rank at its new times."""
    if state.spans is None:
        spans = loop_spans(rank, times.loop, own_reads=not state.readers)
    else:
        name = wait_name(state.readers, state.pipeline.readers)
        spans = spans_of(state.spans, state.loop.loop, times.loop, name)
    return RankRows(rank=rank, operations=lambda: [_table(rank, state.work, times)], spans=spans)


def _table(rank: int, work: RankWork, times: Scheduled) -> pa.Table:
    order = np.argsort(times.start_ns, kind="stable")
    work, start = work.rows(order), times.start_ns[order]
    columns = {
        "rank": np.full(len(work), rank, dtype=np.int32),
        **{name: getattr(work, name) for name in ("lane", "op", "api", "file_id", "offset", "length", "origin")},
        "start_ns": start,
        "end_ns": start + work.duration_ns,
        "step": times.loop.step_at(start),
        "feeds": np.ma.masked_equal(work.feeds, NOTHING),
        "follows": np.ma.masked_equal(work.follows, NOTHING),
        "ready_ns": np.ma.masked_equal(np.where(_ends_batch(work), work.busy_ns, 0), 0),
    }
    return table_from_columns(columns, OPS_SCHEMA)


def _ends_batch(work: RankWork) -> np.ndarray:
    """bool (n,): the last operation of each batch in each lane."""
    found = np.zeros(len(work), dtype=bool)
    for lane in np.unique(work.lane).tolist():
        mine = np.flatnonzero((work.lane == lane) & (work.feeds != NOTHING))
        found[mine[np.flatnonzero(np.diff(work.feeds[mine], append=NOTHING))]] = True
    return found
