"""Schedules changed operations and the training loop by the rules of the causal model. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
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
from dxt_replay.replay.plan.plan_row import EVENT_ROW, MARK_ROW, NO_EVENT, is_operation, operation_rows
from dxt_replay.replay.transform.rank_work import ENTERED, EXITED, NOTHING, RankState, RankWork
from dxt_replay.traces.schema import READ

TRAINING = "training"
"""Name of the training thread among the lanes of a schedule."""

PIPELINE = "pipeline"
"""Name of what makes the batches of a rank beside its readers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outline:
    """A rank without its operations, as its schedule needs it.

    model: of the training thread and the pipeline. lanes: the operations of each lane, ascending, in *runs*, which are
    numbered on: within a run the lane neither waits nor lets anything go, so a run is scheduled as one operation. Their
    dependencies; int64 (runs,), from the begin of the first operation of each to the end of the last.
    """

    model: LoopModel
    lanes: Mapping[int, tuple[LaneDependencies, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scheduled:
    """A rank as scheduled.

    run_ns: int64 (runs,), when each run of operations begins. loop: the training loop at new times.
    made_ns: int64 (2, fetches), when the making of each batch began and ended; None without `RankLoop.making`.
    end_ns: when the last operation and the loop have ended.
    """

    run_ns: np.ndarray
    end_ns: int
    loop: TrainingLoop
    made_ns: np.ndarray | None


def with_batches_in_order(work: RankWork) -> RankWork:
    """The operations with `feeds` that never falls in a lane, which is a rule of a capture's columns.

    What a lane reads for a later batch before it reads for an earlier one holds that one up: it feeds it, too.
    """
    feeds = work.feeds.copy()
    for lane in np.unique(work.lane).tolist():
        mine = np.flatnonzero((work.lane == lane) & (feeds != NOTHING))
        feeds[mine] = np.minimum.accumulate(feeds[mine][::-1])[::-1]
    return dataclasses.replace(work, feeds=feeds)


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


def outlined(state: RankState) -> tuple[Outline, np.ndarray, np.ndarray]:
    """The outline of a rank. Also int64 (n,): the run of each operation, and the time from the begin of the run to the
    begin of the operation, ns."""
    work, loop = state.work, state.loop.loop
    lanes = np.unique(work.lane).tolist()
    # The event that waits for each operation, NOTHING for none.
    needs = np.where(work.feeds == NOTHING, work.blocks, loop.fetches[work.feeds])
    moments = _moments_of(loop)
    run, since_ns = np.empty((2, len(work)), dtype=np.int64)
    found, runs = {}, 0
    for lane in lanes:
        mine = np.flatnonzero(work.lane == lane)
        found[lane], of_lane, since_ns[mine] = _lane_runs(work, mine, needs[mine], loop, moments)
        run[mine] = runs + of_lane
        runs += len(found[lane][1])
    return Outline(model=_scheduled_model(state, needs, lanes), lanes=found), run, since_ns


def _moments_of(loop: TrainingLoop) -> Moments:
    """The moments of a loop and of the making of its batches, whose times are not known yet."""
    return Moments.of(loop, np.zeros(2 * len(loop.fetches), dtype=np.int64))


def _lane_runs(
    work: RankWork, mine: np.ndarray, need: np.ndarray, loop: TrainingLoop, moments: Moments
) -> tuple[tuple[LaneDependencies, np.ndarray], np.ndarray, np.ndarray]:
    """The runs of the operations `mine` of a lane, the number of the run of each, and the time since the run began.
    `need`: the events that wait for them."""
    events = len(loop.kind)
    floor = np.minimum.accumulate(np.where(need == NOTHING, events, need)[::-1])[::-1]
    made = work.made[mine]
    follows = _moments(work.follows[mine], work.blocks[mine], loop)
    follows = np.where(made == NOTHING, follows, 2 * events + 1 + made)
    lets_go = np.diff(np.append(floor, events), prepend=0)
    busy_ns = np.concatenate(([0], work.busy_ns[mine]))
    waits = moments.new_waits(follows)
    begins = waits | (lets_go[:-1] > 0) | (busy_ns[:-1] > 0)
    begins[:1] = True
    first, run = np.flatnonzero(begins), np.cumsum(begins) - 1
    duration, think = work.duration_ns[mine], work.think_ns[mine]
    ends = np.cumsum(think + duration)
    starts = ends - duration
    last = np.append(first[1:], len(mine)) - 1
    borders = np.append(first, len(mine))
    nothing = np.zeros(len(first), dtype=np.int64)
    dependencies = LaneDependencies(
        need=need[first],
        follows=follows[first],
        waits=waits[first],
        before_ns=nothing,
        after_ns=think[first],
        lets_go=lets_go[borders],
        busy_ns=busy_ns[borders],
        is_end=True,
        behind=np.full(len(first), NO_EVENT),
    )
    return (dependencies, ends[last] - starts[first]), run, starts - starts[first][run]


def scheduled(outlines: Mapping[int, Outline], pacing: Pacing, origin_ns: int) -> dict[int, Scheduled]:
    """Schedule all ranks: together if they meet at their collectives, else one by one.

    pacing: the speed of compute.
    Raises: ReplayError when operations and loop wait for each other in a circle.
    """
    loops = [outline.model.loop for outline in outlines.values()]
    meetings = Meetings.of([loop.end_ns[loop.collectives] - loop.begin_ns[loop.collectives] for loop in loops])
    ranks = list(outlines)
    groups = [ranks] if len(meetings.cost_ns) else [[rank] for rank in ranks]
    found: dict[int, Scheduled] = {}
    for group in groups:
        items: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
        base = FIRST_RANK_COUNTER
        for rank in group:
            counters = RankCounters(base=base, lanes=tuple(outlines[rank].lanes))
            base += counters.count
            items |= {(rank, name): made for name, made in _items(outlines[rank], counters, pacing, meetings)}
        times = schedule(items)
        found |= {rank: _of_rank(rank, outlines[rank], items, times, origin_ns) for rank in group}
    return found


def _items(
    outline: Outline, counters: RankCounters, pacing: Pacing, meetings: Meetings
) -> Iterator[tuple[Hashable, tuple[np.ndarray, np.ndarray]]]:
    """The lanes of a rank, TRAINING and PIPELINE: the items of each and their durations."""
    model, moments = outline.model, _moments_of(outline.model.loop)
    for lane, (dependencies, duration_ns) in outline.lanes.items():
        n = len(duration_ns)
        nothing = np.zeros(n, dtype=np.int64)
        rows = operation_rows(
            op=np.full(n, READ), api=0, origin=0, slot=nothing, file_id=nothing, step=-1, offset=0, length=0
        )
        yield (
            lane,
            lane_items(dependencies, rows, duration_ns, moments, counters, lane, Pacing(pace=Pace.STEPS)),
        )
    script = script_rows(model, counters, pacing, "sleep", meetings)
    yield TRAINING, (script, np.zeros(len(script), dtype=np.int64))
    if model.production is not None:
        pipeline = ready_rows(model, counters, pacing)
        yield PIPELINE, (pipeline, np.zeros(len(pipeline), dtype=np.int64))


def _moments(follows: np.ndarray, blocks: np.ndarray, loop: TrainingLoop) -> np.ndarray:
    """The moment that lets each operation begin: that of `follows`, or the begin of the event around it."""
    event = np.where(follows == NOTHING, np.maximum(blocks, 0), nth(loop.fetches, follows // 2))
    none = (follows == NOTHING) & (blocks <= 0)
    moment = np.where(none, NO_MOMENT, 2 * event + np.maximum(follows, 0) % 2)
    return np.where(follows == EXITED, 2 * len(loop.kind), moment)


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
    outline: Outline,
    items: Mapping[Hashable, tuple[np.ndarray, np.ndarray]],
    found: Mapping[Hashable, LaneTimes],
    origin_ns: int,
) -> Scheduled:
    of_run = {lane: is_operation(items[rank, lane][0]) for lane in outline.lanes}
    begins = [found[rank, lane].begin_ns[mine] for lane, mine in of_run.items()]
    ends = [int(found[rank, lane].end_ns[mine].max()) + origin_ns for lane, mine in of_run.items()]
    script, times = items[rank, TRAINING][0], found[rank, TRAINING]
    made = None
    if (rank, PIPELINE) in items:
        adds = items[rank, PIPELINE][0]["kind"] == ADD
        made = found[rank, PIPELINE].end_ns[adds].reshape(-1, 2).T + origin_ns
    loop = _moved(outline.model.loop, script, times, origin_ns)
    return Scheduled(
        run_ns=np.concatenate([*begins, np.empty(0, dtype=np.int64)]) + origin_ns,
        end_ns=max([loop.exit_ns, *ends]),
        loop=loop,
        made_ns=made,
    )


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
