"""Reads a recorded rank: its operations, their dependencies by the causal model, and its input pipeline. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.dependencies import Moments
from dxt_replay.replay.causal.dependency_pass import DependencyPass
from dxt_replay.replay.causal.model import LoopModel, starts_batch
from dxt_replay.replay.causal.paced_ranks import Steps
from dxt_replay.replay.causal.training_loop import EVALUATION, FETCH, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch
from dxt_replay.replay.transform.rank_work import (
    BY_BATCH,
    BY_FILE,
    ENTERED,
    EXITED,
    NOTHING,
    BatchMaking,
    RankLoop,
    RankState,
    RankWork,
    fetch_numbers,
)
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import codes


def source_state(rows: pa.Table, steps: Steps, rank: int) -> RankState:
    """A rank as captured.

    rows: the rows that a replay issues (`OPS_SCHEMA`), in start order. steps: the causal models.
    """
    model = steps.models[rank]
    recorded = OperationBatch.of(rows, np.ones(rows.num_rows, dtype=bool))
    batch = steps.placed(rank, recorded)
    work, loop = _source_work(rows, batch, model, steps.origin_ns)
    if model.production is not None:
        work, loop = _produced(work, loop, model, steps.dependencies(rank), recorded)
    dealing = model.dealing
    if dealing is not None:
        readers, ahead, deal = dealing.workers, dealing.workers * dealing.prefetch, BY_BATCH
        first: np.ndarray | None = _pass_first(model)
    else:
        feeding = work.data_reads & (work.feeds != NOTHING)
        # A loop that always waits for its readers looks like one that reads itself. Dependency columns tell them apart.
        own = model.synchronous and (model.known is None or bool((work.follows == 2 * work.feeds)[feeding].all()))
        readers = 0 if own else len(np.unique(work.lane[feeding]))
        ahead = 0 if own else _ahead(work, loop, model, feeding)
        deal = BY_BATCH if own or _whole_batches(work, feeding) else BY_FILE
        first = None if own or model.known is None else _known_pass_first(work, model)
    return RankState(
        work=work,
        loop=loop,
        model=model,
        spans=steps.spans[rank],
        readers=readers,
        ahead=ahead,
        deal=deal,
        pass_first=first,
    )


def _source_work(rows: pa.Table, batch: OperationBatch, model: LoopModel, origin_ns: int) -> tuple[RankWork, RankLoop]:
    """The operations of a rank and its loop."""
    loop = _with_evaluations_fetched(model.loop)
    found = model.dependencies()(batch)
    follows, think_ns, held = _waits(batch, found, model, origin_ns)
    need = found["need"]
    feeds = np.where(need == NO_EVENT, NOTHING, fetch_numbers(loop)[need])
    work = RankWork(
        lane=batch.lane,
        op=batch.op,
        api=codes(rows, "api"),
        file_id=batch.file_id,
        offset=rows["offset"].to_numpy(),
        length=batch.length,
        origin=codes(rows, "origin"),
        other_file_id=rows["other_file_id"].fill_null(-1).to_numpy(),
        open_flags=rows["open_flags"].fill_null(-1).to_numpy(),
        start_ns=batch.start_ns,
        duration_ns=batch.end_ns - batch.start_ns,
        think_ns=think_ns,
        feeds=feeds,
        follows=_in_fetches(model.moments, loop)[follows],
        made=np.full(len(batch.lane), NOTHING, dtype=np.int64),
        blocks=np.where((need == NO_EVENT) | (feeds != NOTHING), NOTHING, need),
        busy_ns=found["ready_ns"] if model.known is not None else np.zeros(len(batch.lane), dtype=np.int64),
        held=held,
    )
    ready_ns = model.ready_ns[loop.fetches] if model.known is not None else _ready(model, loop, found, feeds)
    return work, RankLoop(loop=loop, residual_ns=model.residual_ns, ready_ns=ready_ns)


def _with_evaluations_fetched(loop: TrainingLoop) -> TrainingLoop:
    """The loop with a batch fetch for each evaluation, because the thread waits there for its reads."""
    kind = np.where(loop.kind == EVALUATION, FETCH, loop.kind).astype(np.int8)
    return dataclasses.replace(loop, kind=kind)


def _waits(
    batch: OperationBatch, found: np.ndarray, model: LoopModel, origin_ns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The moment of the loop that each operation follows, the time from it to the begin, and whether it delayed the
    operation. `found`: `DEPENDENCY` (n,)."""
    moments = model.moments
    let_ns, found, follows = moments.time_ns[found["follows"]], found.copy(), found["follows"].copy()
    think, held = np.zeros(len(found), dtype=np.int64), np.zeros(len(found), dtype=bool)
    for lane in np.unique(batch.lane).tolist():
        mine = np.flatnonzero(batch.lane == lane)
        start, let = batch.start_ns[mine], let_ns[mine]
        previous = np.concatenate(([origin_ns], batch.end_ns[mine][:-1]))
        gap = np.maximum(start - previous, 0)
        free = np.zeros(len(mine), dtype=bool)
        if model.is_worker(lane):
            previous = previous + np.concatenate(([0], found["ready_ns"][mine][:-1]))
        else:
            first = starts_batch(NO_EVENT, found["need"][mine])
            follows[mine], free = model.unheld(moments, found[mine], let, previous, gap, first)
        held[mine] = ~free & (let > previous)
        think[mine] = np.where(free, gap, np.clip(start - np.maximum(previous, let), 0, gap))
    return follows, think, held


def _in_fetches(moments: Moments, loop: TrainingLoop) -> np.ndarray:
    """int64 (moments of the loop + 1,): each moment as `follows` of `RankWork`; NOTHING for the last one, NO_MOMENT.

    `loop`: the same events, with a batch fetch for each evaluation.
    """
    number = fetch_numbers(loop)
    moment = np.stack((2 * number, 2 * number + 1), axis=1)
    moment[number == NOTHING] = NOTHING
    found = np.full(len(moments.time_ns), NOTHING)
    found[: moment.size] = moment.ravel()
    # The first opening is the end of the entry, the last one the exit.
    found[moments.openings[[0, -1]]] = 0, EXITED
    return found


def _produced(
    work: RankWork, loop: RankLoop, model: LoopModel, dependencies: DependencyPass, batch: OperationBatch
) -> tuple[RankWork, RankLoop]:
    """Operations and loop of a rank whose batches are made beside its readers, as the causal model has them."""
    made, moments = model.production, model.moments
    assert made is not None
    follows, think, held = work.follows.copy(), work.think_ns.copy(), work.held.copy()
    for _, mine, found in dependencies.lanes(batch):
        follows[mine], think[mine] = found.follows, found.after_ns
        held[mine] = work.held[mine] & found.waits
    first = 2 * len(model.loop.kind) + 1
    of_loop = _in_fetches(moments, loop.loop)
    room = np.where(made.follows == moments.openings[0], ENTERED, of_loop[made.follows])
    making = BatchMaking(room=room, delay_ns=made.delay_ns, head_ns=made.head_ns, tail_ns=made.tail_ns)
    work = dataclasses.replace(
        work,
        follows=of_loop[follows],
        made=np.where(follows >= first, follows - first, NOTHING),
        think_ns=think,
        held=held,
    )
    return work, dataclasses.replace(loop, making=making)


def _ready(model: LoopModel, loop: TrainingLoop, found: np.ndarray, feeds: np.ndarray) -> np.ndarray:
    """int64 (fetches,): time to make the batch of each fetch ready, ns."""
    ready: np.ndarray = model.ready_ns[loop.fetches].copy()
    fed = feeds != NOTHING
    np.maximum.at(ready, feeds[fed], found["ready_ns"][fed])
    return ready


def _whole_batches(work: RankWork, feeding: np.ndarray) -> bool:
    """Whether each batch is read in one lane."""
    batches = distinct_rows(work.feeds[feeding], work.lane[feeding]).values[:, 0]
    return len(np.unique(batches)) == len(batches)


def _ahead(work: RankWork, loop: RankLoop, model: LoopModel, feeding: np.ndarray) -> int:
    """How many batches ahead of the loop the capture lets its readers be."""
    if loop.making is not None:
        return max(loop.making.ahead, 1)
    if model.known is None:
        return model.lead + 1
    gated = feeding & (work.follows != NOTHING)
    # The begin of fetch n comes after the end of the one before it.
    ahead = work.feeds[gated] - (work.follows[gated] - 1) // 2
    return max(int(ahead.max(initial=1)), 1)


def _known_pass_first(work: RankWork, model: LoopModel) -> np.ndarray:
    """`_pass_first` from the dependency columns: reads of a pass wait for its first fetch."""
    begins = (work.feeds != NOTHING) & (work.follows != NOTHING) & (work.follows % 2 == 0)
    return _last_of(work.follows[begins] // 2, len(model.loop.fetches))


def _last_of(starts: np.ndarray, fetches: int) -> np.ndarray:
    """int64 (fetches,): the last of `starts` up to each fetch; 0 is always one."""
    starts = np.unique(np.append(starts, 0))
    found: np.ndarray = starts[np.searchsorted(starts, np.arange(fetches), side="right") - 1]
    return found


def _pass_first(model: LoopModel) -> np.ndarray:
    """int64 (fetches,): the first fetch of the pass over the data that contains each fetch."""
    loop = model.loop
    number = np.cumsum(np.isin(loop.kind, (FETCH, EVALUATION))) - 1
    assert model.dealing is not None
    begins = [number[deal.after_event[deal.is_early]] for deal in model.dealing.lanes.values()]
    return _last_of(np.concatenate(begins), int(number[-1]) + 1)
