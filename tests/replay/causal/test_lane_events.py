"""Lanes without a clock: the longest path through what waits for what, and where the time of a lane goes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import CODES, KINDS, EventLane, LaneTimes, StuckLanesError, Watch, run_lanes
from dxt_replay.replay.engine import items
from dxt_replay.replay.engine.clock import ARRIVALS, FIRST_RANK_COUNTER
from dxt_replay.replay.engine.items import add, gap, operation_rows, rows_of_each, wait


def reads(count):
    zeros = np.zeros(count, dtype=np.int64)
    return operation_rows(
        op=np.full(count, 2), api=0, origin=0, slot=zeros, file_id=zeros, step=0, offset=zeros, length=zeros
    )


def watch(steps=2, first_step=0):
    """Gaps in class 1, waits in class 2, all else in class 0."""
    class_of = np.zeros((KINDS, CODES), dtype=np.uint8)
    class_of[items.SLEEP], class_of[items.WAIT] = 1, 2
    return Watch(class_of=class_of, spent_ns=np.zeros((steps + 1, 3), dtype=np.int64), first_step=first_step)


@st.composite
def graphs(draw):
    """Tasks in topological order: (lane, pause before it, duration, the earlier tasks that it waits for)."""
    return [
        (
            draw(st.integers(0, 3)),
            draw(st.integers(0, 20)),
            draw(st.integers(0, 50)),
            draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else set(),
        )
        for task in range(draw(st.integers(1, 20)))
    ]


@pytest.mark.parametrize("kind", [items.SLEEP, items.READ_AT])
@given(graph=graphs(), step=st.integers(-1, 2))
def test_a_task_ends_with_the_longest_path_to_it(kind, graph, step) -> None:
    """A lane does its tasks in order: waits for those that each needs, pauses, does it, and says so."""

    @functools.cache
    def end_of(task):
        lane, pause, duration, needed = graph[task]
        of_lane = (earlier for earlier in range(task) if graph[earlier][0] == lane)
        return max(map(end_of, (*needed, *of_lane)), default=0) + pause + duration

    rows = {lane: [] for lane in range(4)}
    for task, (lane, pause, duration, needed) in enumerate(graph):
        waits = [wait(counter=FIRST_RANK_COUNTER + other, until=1, step=step) for other in sorted(needed)]
        work = rows_of_each([gap(kind=items.SLEEP, duration_ns=duration, due_ns=pause, step=step)])
        if kind == items.READ_AT:
            work = reads(1)
            work["due_ns"], work["_amount"], work["step"] = pause, duration, step
        rows[lane] += [rows_of_each(waits)] if waits else []
        rows[lane] += [work, rows_of_each([add(counter=FIRST_RANK_COUNTER + task, step=step)])]
    placed = [np.concatenate([*parts, reads(0)]) for parts in rows.values()]
    counted = watch()
    lanes = [
        EventLane(items=items_, durations_ns=items_["_amount"].copy(), times=LaneTimes.room(len(items_)), watched=True)
        for items_ in placed
    ]
    run = run_lanes(lanes, None, counted)
    for number, lane in enumerate(lanes):
        truth = [end_of(task) for task, (of, *_) in enumerate(graph) if of == number]
        assert lane.times.begin_ns[lane.items["kind"] == items.ADD].tolist() == truth
        assert run[number] == max(truth, default=0)
    # Each ns of a lane lies in one class of its step; the last row is for what lies outside of the steps.
    assert counted.spent_ns.sum() == run.sum() == counted.spent_ns[step if 0 <= step < 2 else 2].sum()
    gaps = sum(pause + duration for _, pause, duration, _ in graph)
    assert counted.spent_ns[:, 1 if kind == items.SLEEP else 0].sum() == gaps


def test_ranks_share_items_but_not_counters() -> None:
    reader = rows_of_each([add(counter=FIRST_RANK_COUNTER, due_ns=10)])
    waiter = rows_of_each(
        [wait(counter=FIRST_RANK_COUNTER, until=1), add(counter=ARRIVALS), wait(counter=ARRIVALS, until=2)]
    )
    slow = rows_of_each([add(counter=FIRST_RANK_COUNTER + 1, due_ns=25)])
    run = run_lanes(
        [
            EventLane(items=waiter),
            EventLane(items=waiter, counter_shift=1),
            EventLane(items=reader),
            EventLane(items=slow),
        ]
    )
    assert run.tolist() == [25, 25, 10, 25]


def test_time_is_counted_by_step_and_class() -> None:
    rows = rows_of_each(
        [
            gap(kind=items.SLEEP, duration_ns=5, due_ns=2, step=7),
            wait(counter=5, until=1, step=8),
            gap(kind=items.SLEEP, duration_ns=1),
        ]
    )
    counted = watch(first_step=7)
    run_lanes(
        [EventLane(items=rows, watched=True), EventLane(items=rows_of_each([add(counter=5, due_ns=30)]))], None, counted
    )
    assert counted.spent_ns.tolist() == [[0, 7, 0], [0, 0, 23], [0, 1, 0]]


def test_stuck_lanes_are_named() -> None:
    rows = rows_of_each([wait(counter=2, until=1)])
    with pytest.raises(StuckLanesError, match="2 lanes wait for each other") as raised:
        run_lanes([EventLane(items=rows), EventLane(items=rows[:0]), EventLane(items=rows)])
    assert raised.value.lanes == [0, 2]


@pytest.mark.parametrize("additions", [1, 2, 1000])
def test_a_lane_that_comes_late_still_learns_when_each_sum_was_reached(additions) -> None:
    adds = rows_of_each([add(counter=2, amount=2, due_ns=3)] * additions)
    untils = list(range(1, 2 * additions + 1))
    waits = rows_of_each([wait(counter=3, until=1), *(wait(counter=2, until=until) for until in untils)])
    times = LaneTimes.room(len(waits))
    late = rows_of_each([add(counter=3)])
    run_lanes([EventLane(items=waits, times=times), EventLane(items=adds), EventLane(items=late)])
    assert times.end_ns.tolist() == [0, *(3 * -(-until // 2) for until in untils)]


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        ({"durations_ns": np.zeros(1, dtype=np.int64)}, "a duration for each item"),
        ({"times": LaneTimes.room(3)}, "room for the times of each item"),
        ({"items": rows_of_each([wait(counter=-1, until=1)] * 2)}, "a negative counter"),
        ({"items": np.zeros(2, dtype=np.int64)}, "Buffer dtype mismatch"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(lane, message) -> None:
    with pytest.raises(ValueError, match=message):
        run_lanes([EventLane(**{"items": reads(2), **lane})])
