"""Schedules changed operations and the training loop by the rules of the causal model. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.causal_items import Meetings, RankCounters, lane_items, ready_rows, script_rows
from dxt_replay.replay.causal.check import schedule
from dxt_replay.replay.causal.dependencies import NO_MOMENT, Moments, nth
from dxt_replay.replay.causal.dependency_pass import LaneDependencies
from dxt_replay.replay.causal.lane_events import LaneTimes
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.training_loop import TrainingLoop
from dxt_replay.replay.engine.items import ADD, MARK
from dxt_replay.replay.engine.wait_counters import FIRST_RANK_COUNTER
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.plan_row import EVENT_ROW, MARK_ROW, is_operation, operation_rows
from dxt_replay.replay.transform.rank_work import ENTERED, NOTHING, RankState, RankWork

TRAINING = "training"
"""Name of the training thread among the lanes of a schedule."""

PIPELINE = "pipeline"
"""Name of what makes the batches of a rank beside its readers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scheduled:
    """A rank as scheduled.

    start_ns: int64 (n,), when each operation begins. loop: the training loop at new times.
    made_ns: int64 (2, fetches), when the making of each batch began and ended; None without `RankLoop.making`.
    """

    start_ns: np.ndarray
    loop: TrainingLoop
    made_ns: np.ndarray | None


def with_ready(work: RankWork, ready_ns: np.ndarray) -> RankWork:
    """The operations; the lane stays busy after the last one of each batch until the batch is ready.

    ready_ns: int64 (fetches,). A batch without operations is ready together with the batch before it.
    """
    fed = np.flatnonzero(work.feeds != NOTHING)
    last = np.full(len(ready_ns), -1, dtype=np.int64)
    np.maximum.at(last, work.feeds[fed], fed)
    busy = work.busy_ns.copy()
    has = last >= 0
    busy[last[has]] += ready_ns[has]
    return dataclasses.replace(work, busy_ns=busy)


def scheduled(ranks: Mapping[int, RankState], pacing: Pacing, origin_ns: int) -> dict[int, Scheduled]:
    """Schedule all ranks together, because they meet at their collectives.

    pacing: the speed of compute.
    Raises: ReplayError when operations and loop wait for each other in a circle.
    """
    loops = {rank: state.loop.loop for rank, state in ranks.items()}
    met = [(loop.begin_ns[loop.collectives], loop.end_ns[loop.collectives]) for loop in loops.values()]
    meetings = Meetings.of([ends - begins for begins, ends in met])
    items: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
    base = FIRST_RANK_COUNTER
    for rank, state in ranks.items():
        work, loop = state.work, loops[rank]
        lanes = tuple(np.unique(work.lane).tolist())
        counters = RankCounters(base=base, lanes=lanes)
        base += counters.count
        # The event that waits for each operation, NOTHING for none.
        needs = np.where(work.feeds == NOTHING, work.blocks, loop.fetches[work.feeds])
        for lane in lanes:
            items[rank, lane] = _lane_items(work, lane, needs, loop, counters)
        model = _scheduled_model(state, needs, lanes)
        script = script_rows(model, counters, pacing, "sleep", meetings)
        items[rank, TRAINING] = (script, np.zeros(len(script), dtype=np.int64))
        if model.production is not None:
            pipeline = ready_rows(model, counters, pacing)
            items[rank, PIPELINE] = (pipeline, np.zeros(len(pipeline), dtype=np.int64))
    found = schedule(items)
    return {rank: _of_rank(rank, state.work, loops[rank], items, found, origin_ns) for rank, state in ranks.items()}


def _lane_items(
    work: RankWork, lane: int, needs: np.ndarray, loop: TrainingLoop, counters: RankCounters
) -> tuple[np.ndarray, np.ndarray]:
    """The operations of one lane with the waits and additions between them, and the duration of each item."""
    mine = np.flatnonzero(work.lane == lane)
    events, need = len(loop.kind), needs[mine]
    floor = np.minimum.accumulate(np.where(need == NOTHING, events, need)[::-1])[::-1]
    moments = Moments.of(loop, np.zeros(2 * len(loop.fetches), dtype=np.int64))
    made = work.made[mine]
    follows = _moments(work.follows[mine], work.blocks[mine], loop)
    follows = np.where(made == NOTHING, follows, 2 * events + 1 + made)
    nothing = np.zeros(len(mine), dtype=np.int64)
    found = LaneDependencies(
        need=need,
        follows=follows,
        waits=moments.count[follows] > 0,
        before_ns=nothing,
        after_ns=work.think_ns[mine],
        lets_go=np.diff(np.append(floor, events), prepend=0),
        busy_ns=np.concatenate(([0], work.busy_ns[mine])),
        is_end=True,
    )
    rows = operation_rows(op=work.op[mine], api=0, origin=0, slot=nothing, file_id=nothing, step=-1, offset=0, length=0)
    return lane_items(found, rows, work.duration_ns[mine], moments, counters, lane, Pacing(pace=Pace.STEPS))


def _moments(follows: np.ndarray, blocks: np.ndarray, loop: TrainingLoop) -> np.ndarray:
    """The moment that lets each operation begin: that of `follows`, or the begin of the event around it."""
    event = np.where(follows == NOTHING, np.maximum(blocks, 0), nth(loop.fetches, follows // 2))
    none = (follows == NOTHING) & (blocks <= 0)
    return np.where(none, NO_MOMENT, 2 * event + np.maximum(follows, 0) % 2)


def _scheduled_model(state: RankState, needs: np.ndarray, lanes: Sequence[int]) -> LoopModel:
    """The model of the training thread and of its pipeline, with the events that wait for these operations."""
    loop = state.loop.loop
    needed = {}
    for lane in lanes:
        needed[lane] = np.zeros(len(loop.kind), dtype=bool)
        mine = needs[state.work.lane == lane]
        needed[lane][mine[mine != NOTHING]] = True
    # Batches without a `making` are made ready in the lanes of their readers (`with_ready`).
    return dataclasses.replace(
        state.model,
        loop=loop,
        residual_ns=state.loop.residual_ns,
        ready_ns=np.zeros(len(loop.kind), dtype=np.int64),
        needed=needed,
        production=_production(state),
    )


def _production(state: RankState) -> Production | None:
    """The production of the rank's model as it is changed."""
    made, making, loop = state.model.production, state.loop.making, state.loop.loop
    if made is None or making is None:
        return None
    room = making.room
    by_fetch = 2 * nth(loop.fetches, room // 2) + room % 2
    unknown = np.zeros(len(room), dtype=np.int64)
    return dataclasses.replace(
        made,
        begin_ns=unknown,
        end_ns=unknown,
        follows=np.where(room >= 0, by_fetch, np.where(room == ENTERED, Moments.of(loop).openings[0], NO_MOMENT)),
        delay_ns=making.delay_ns,
        head_ns=making.head_ns,
        tail_ns=making.tail_ns,
    )


def _of_rank(
    rank: int,
    work: RankWork,
    loop: TrainingLoop,
    items: Mapping[Hashable, tuple[np.ndarray, np.ndarray]],
    found: Mapping[Hashable, LaneTimes],
    origin_ns: int,
) -> Scheduled:
    start = np.empty(len(work), dtype=np.int64)
    for lane in np.unique(work.lane).tolist():
        start[work.lane == lane] = found[rank, lane].begin_ns[is_operation(items[rank, lane][0])] + origin_ns
    script, times = items[rank, TRAINING][0], found[rank, TRAINING]
    made = None
    if (rank, PIPELINE) in items:
        adds = items[rank, PIPELINE][0]["kind"] == ADD
        made = found[rank, PIPELINE].end_ns[adds].reshape(-1, 2).T + origin_ns
    return Scheduled(start_ns=start, loop=_moved(loop, script, times, origin_ns), made_ns=made)


def _moved(loop: TrainingLoop, script: np.ndarray, times: LaneTimes, origin_ns: int) -> TrainingLoop:
    """The loop at the times of its script."""
    begins, ends = times.begin_ns + origin_ns, times.end_ns + origin_ns
    event = script.view(EVENT_ROW)["event"]
    of_event = np.flatnonzero((event >= 0) & (script["kind"] != MARK))
    begin, end = np.full(len(loop.kind), np.iinfo(np.int64).max), np.zeros(len(loop.kind), dtype=np.int64)
    np.minimum.at(begin, event[of_event], begins[of_event])
    np.maximum.at(end, event[of_event], ends[of_event])
    begin[0] = origin_ns
    marks = np.flatnonzero(script["kind"] == MARK)
    is_end = script.view(MARK_ROW)["is_end"][marks] == 1
    return dataclasses.replace(
        loop,
        begin_ns=begin,
        end_ns=end,
        step_begin_ns=begins[marks[~is_end]],
        step_end_ns=begins[marks[is_end]],
        exit_ns=int(ends[-1]),
    )
