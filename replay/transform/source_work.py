"""The operations of a recorded rank, with what each waits for as the causal model of the capture has it. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.dependencies import FETCHES, OPENINGS, Dependencies
from dxt_replay.replay.causal.model import LoopModel, starts_batch
from dxt_replay.replay.causal.training_loop import EVALUATION, FETCH, OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, known_rows
from dxt_replay.replay.transform.rank_work import NOTHING, RankWork
from dxt_replay.traces.schema import codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLoop:
    """The training loop of a rank, with what its events last beyond their operations.

    loop: its events and steps; an evaluation is a batch fetch of its own.
    residual_ns: int64 (events,), how long an event lasts after all that it waits for.
    ready_ns: int64 (fetches,), how long making the batch of each fetch ready takes after its last read.
    """

    loop: TrainingLoop
    residual_ns: np.ndarray
    ready_ns: np.ndarray


def source_work(rows: pa.Table, model: LoopModel, origin_ns: int) -> tuple[RankWork, RankLoop]:
    """The operations of a rank and its loop. `rows`: those that a replay issues (`OPS_SCHEMA`), in start order."""
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    batch = model.placed(
        OperationBatch(
            lane=rows["lane"].to_numpy(),
            op=codes(rows, "op"),
            file_id=rows["file_id"].to_numpy(),
            length=rows["length"].to_numpy(),
            start_ns=start_ns,
            end_ns=end_ns,
            known=known_rows(rows, np.ones(rows.num_rows, dtype=bool)),
        )
    )
    loop = _with_evaluations_fetched(model.loop)
    dependencies = model.dependencies().dependencies(batch)
    if model.production is not None:
        dependencies = model.production.in_fetches(dependencies)
    gate, gate_count, think_ns, held = _gates(batch, dependencies, model, origin_ns)
    fetch_number = np.where(loop.kind == FETCH, np.cumsum(loop.kind == FETCH) - 1, NOTHING)
    need = dependencies.need
    feeds = np.where(need == NO_EVENT, NOTHING, fetch_number[need])
    work = RankWork(
        lane=batch.lane,
        op=batch.op,
        api=codes(rows, "api"),
        file_id=batch.file_id,
        offset=rows["offset"].to_numpy(),
        length=batch.length,
        origin=codes(rows, "origin"),
        start_ns=batch.start_ns,
        duration_ns=end_ns - start_ns,
        think_ns=think_ns,
        feeds=feeds,
        follows=_moments(model.loop, loop, gate, gate_count),
        blocks=np.where((need == NO_EVENT) | (feeds != NOTHING), NOTHING, need),
        busy_ns=dependencies.ready_ns if model.known else np.zeros(len(batch.lane), dtype=np.int64),
        held=held,
    )
    ready_ns = model.ready_ns[loop.fetches] if model.known else _ready(model, loop, dependencies, feeds)
    return work, RankLoop(loop=loop, residual_ns=model.residual_ns, ready_ns=ready_ns)


def _with_evaluations_fetched(loop: TrainingLoop) -> TrainingLoop:
    """The loop with a batch fetch for each evaluation: the thread waits there for what it reads."""
    kind = np.where(loop.kind == EVALUATION, FETCH, loop.kind).astype(np.int8)
    return dataclasses.replace(loop, kind=kind)


def _gates(
    batch: OperationBatch, dependencies: Dependencies, model: LoopModel, origin_ns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What each operation waits for, how often that must have happened, how long after it the operation began, and
    whether that held it back.

    As the lanes of a replay have it (`replay.causal.causal_items`): a read that began because its lane was free may run
    ahead of the loop by the depth of the buffer.
    """
    fetch_number = np.where(model.loop.kind == FETCH, np.cumsum(model.loop.kind == FETCH) - 1, NOTHING)
    fed = np.where(dependencies.need == NO_EVENT, NOTHING, fetch_number[dependencies.need])
    count, think = dependencies.gate_count.copy(), np.zeros(len(batch.lane), dtype=np.int64)
    held = np.zeros(len(batch.lane), dtype=bool)
    within, between = model.long_think_ns
    for lane in np.unique(batch.lane).tolist():
        mine = np.flatnonzero(batch.lane == lane)
        start, gate_ns = batch.start_ns[mine], dependencies.gate_ns[mine]
        previous = np.concatenate(([origin_ns], batch.end_ns[mine][:-1]))
        gap = np.maximum(start - previous, 0)
        free = np.zeros(len(mine), dtype=bool)
        if model.is_worker(lane):
            previous = previous + np.concatenate(([0], dependencies.ready_ns[mine][:-1]))
        else:
            first = starts_batch(NO_EVENT, dependencies.need[mine])
            free = (gate_ns <= previous) | (gap <= np.where(first, between, within))
            free &= (dependencies.gate[mine] == FETCHES) & (fed[mine] != NOTHING)
            count[mine] = np.where(free, np.clip(fed[mine] - model.lead, 0, count[mine]), count[mine])
        held[mine] = ~free & (gate_ns > previous)
        think[mine] = np.where(free, gap, np.clip(start - np.maximum(previous, gate_ns), 0, gap))
    return dependencies.gate, count, think, held


def _moments(recorded: TrainingLoop, loop: TrainingLoop, gate: np.ndarray, count: np.ndarray) -> np.ndarray:
    """int64 (n,): `follows` of operations that wait for the `count`-th opening or batch fetch of the recorded loop.

    `loop`: the same events, with a batch fetch for each evaluation.
    """
    number = np.where(loop.kind == FETCH, np.cumsum(loop.kind == FETCH) - 1, NOTHING)
    opened = number[np.isin(recorded.kind, OPENING)]
    # The first opening is the end of the entry, the last one the exit.
    moment = np.concatenate(([0], np.where(opened == NOTHING, NOTHING, 2 * opened), [2 * int(number.max()) + 1]))
    follows = np.full(len(gate), NOTHING, dtype=np.int64)
    by_opening, by_fetch = (gate == OPENINGS) & (count > 0), (gate == FETCHES) & (count > 0)
    follows[by_opening] = moment[count[by_opening] - 1]
    follows[by_fetch] = 2 * number[recorded.fetches[count[by_fetch] - 1]] + 1
    return follows


def _ready(model: LoopModel, loop: TrainingLoop, dependencies: Dependencies, feeds: np.ndarray) -> np.ndarray:
    """int64 (fetches,): how long making the batch of each fetch ready took."""
    ready: np.ndarray = model.ready_ns[loop.fetches].copy()
    if model.production is not None:
        ready = model.production.tail_ns.copy()
    fed = feeds != NOTHING
    np.maximum.at(ready, feeds[fed], dependencies.ready_ns[fed])
    return ready
