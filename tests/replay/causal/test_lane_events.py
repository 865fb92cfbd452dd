"""Both cores of the lanes without a clock: the same times for any lanes, and the rule for what they spend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.causal._lane_events import CONSTANTS, CompiledLanes
from dxt_replay.replay.causal.lane_events import (
    CODES,
    KINDS,
    EventLane,
    LaneTimes,
    PythonLanes,
    StuckLanesError,
    Watch,
    run_lanes,
)
from dxt_replay.replay.engine import items
from dxt_replay.replay.engine.wait_counters import ARRIVALS, FIRST_RANK_COUNTER
from dxt_replay.replay.plan.plan_row import PLAN_ROW, Add, Gap, Mark, Wait, operation_rows, rows_of_each


def reads(count):
    zeros = np.zeros(count, dtype=np.int64)
    return operation_rows(
        op=np.full(count, 2), api=0, origin=0, slot=zeros, file_id=zeros, step=0, offset=zeros, length=zeros
    )


@st.composite
def plans(draw):
    """Lanes of one rank: lane i adds to counter i alone and waits for counters of lanes; they may be stuck."""
    lanes = []
    for lane in range(draw(st.integers(1, 4))):
        rows = []
        for _ in range(draw(st.integers(0, 12))):
            due = draw(st.integers(0, 20))
            kind = draw(st.sampled_from(["wait", "add", "gap", "read", "mark"]))
            counter = FIRST_RANK_COUNTER + (lane if kind == "add" else draw(st.integers(0, 3)))
            made = {
                "wait": Wait(counter=counter, until=draw(st.integers(0, 4)), due_ns=due),
                "add": Add(counter=counter, amount=draw(st.integers(0, 3)), due_ns=due),
                "gap": Gap(
                    kind=items.SLEEP, duration_ns=draw(st.integers(0, 50)), due_ns=due, step=draw(st.integers(-1, 3))
                ),
                "mark": Mark(is_end=0, due_ns=due),
                "read": None,
            }[kind]
            rows.append(reads(1) if made is None else rows_of_each([made]))
        taken = np.concatenate([*rows, np.zeros(0, dtype=PLAN_ROW)])
        durations = [0 if kind >= items.SLEEP else draw(st.integers(0, 50)) for kind in taken["kind"].tolist()]
        lanes.append((taken, np.array(durations, dtype=np.int64)))
    return lanes


def watch():
    """Gaps in class 1, waits in class 2, all else in class 0."""
    class_of = np.zeros((KINDS, CODES), dtype=np.uint8)
    class_of[items.SLEEP], class_of[items.WAIT] = 1, 2
    return Watch(class_of=class_of.ravel(), spent_ns=np.zeros((3, 3), dtype=np.int64))


def times_of(plan, runner):
    lanes = [
        EventLane(items=rows, durations_ns=durations, times=LaneTimes.room(len(rows)), watched=True)
        for rows, durations in plan
    ]
    watched = watch()
    run = runner(lanes, None, watched, FIRST_RANK_COUNTER)
    finished = run.run()
    times = [(lane.times.begin_ns.tolist(), lane.times.end_ns.tolist()) for lane in lanes]
    return finished, run.undone(), run.end_ns().tolist(), times, watched.spent_ns.tolist()


@given(plan=plans())
def test_the_compiled_core_does_what_the_specification_does(plan) -> None:
    assert times_of(plan, CompiledLanes) == times_of(plan, PythonLanes)


def test_the_compiled_core_knows_the_shape_of_what_is_watched() -> None:
    assert {"KINDS": KINDS, "CODES": CODES} == CONSTANTS


def test_ranks_share_items_but_not_counters() -> None:
    reader = rows_of_each([Add(counter=FIRST_RANK_COUNTER, due_ns=10)])
    waiter = rows_of_each(
        [Wait(counter=FIRST_RANK_COUNTER, until=1), Add(counter=ARRIVALS), Wait(counter=ARRIVALS, until=2)]
    )
    slow = rows_of_each([Add(counter=FIRST_RANK_COUNTER + 1, due_ns=25)])
    run = run_lanes(
        [
            EventLane(items=waiter),
            EventLane(items=waiter, counter_shift=1),
            EventLane(items=reader),
            EventLane(items=slow),
        ]
    )
    assert run.end_ns.tolist() == [25, 25, 10, 25]


def test_time_is_counted_by_step_and_class() -> None:
    rows = rows_of_each(
        [
            Gap(kind=items.SLEEP, duration_ns=5, due_ns=2, step=7),
            Wait(counter=5, until=1, step=8),
            Gap(kind=items.SLEEP, duration_ns=1),
        ]
    )
    counted = watch()
    counted = Watch(class_of=counted.class_of, spent_ns=counted.spent_ns, first_step=7)
    run_lanes(
        [EventLane(items=rows, watched=True), EventLane(items=rows_of_each([Add(counter=5, due_ns=30)]))], None, counted
    )
    assert counted.spent_ns.tolist() == [[0, 7, 0], [0, 0, 23], [0, 1, 0]]


def test_without_a_service_operations_take_no_time() -> None:
    rows = reads(3)
    rows["due_ns"] = 4
    run = run_lanes([EventLane(items=rows, watched=True), EventLane(items=rows[:0])])
    assert (run.end_ns.tolist(), run.served) == ([12, 0], 3)


def test_stuck_lanes_are_named() -> None:
    rows = rows_of_each([Wait(counter=2, until=1)])
    with pytest.raises(StuckLanesError, match="2 lanes wait for each other") as raised:
        run_lanes([EventLane(items=rows), EventLane(items=rows[:0]), EventLane(items=rows)])
    assert raised.value.lanes == [0, 2]


def test_many_additions_are_remembered() -> None:
    """A lane that comes late to its waits still learns when each sum was reached."""
    adds = rows_of_each([Add(counter=2, due_ns=3)] * 1000)
    waits = rows_of_each([Wait(counter=3, until=1), *(Wait(counter=2, until=until) for until in (1, 500, 999))])
    times = LaneTimes.room(4)
    run_lanes(
        [EventLane(items=waits, times=times), EventLane(items=adds), EventLane(items=rows_of_each([Add(counter=3)]))]
    )
    assert times.end_ns.tolist() == [0, 3, 1500, 2997]
