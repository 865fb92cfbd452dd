"""The ring between feeder and lane, and the form of a batch."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dxt_replay.replay.engine import issue
from dxt_replay.replay.engine.clock import MOST_LANES_PER_PROCESSOR, StartGate, StopFlag, share_processors
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane, lanes_to_feed
from dxt_replay.replay.engine.items import (
    ADD,
    BATCH_ITEMS,
    PLAN_ROW,
    READ_AT,
    RING_BATCHES,
    SLEEP,
    Completed,
    LoopPace,
)
from dxt_replay.traces.errors import ReplayError
from tests.fakes import FakeBackend, make_batch
from tests.replay.engine.issue_lanes import collect_all, results, run_lane, started


def test_many_batches_pass_the_ring_in_order(data):
    start = started()
    files = Files([FileSlot(path=data, uses=10**6)])
    lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    batches = [
        make_batch(*((READ_AT, 0, 7 * number, number + i, 0) for i in range(1 + number % 5))) for number in range(100)
    ]
    thread = threading.Thread(target=lane.run)
    thread.start()
    waiting, completed = list(batches), []
    while len(completed) < len(batches):
        while waiting and lane.submit(waiting[0]):
            waiting.pop(0)
            if not waiting:
                lane.finish()
        completed += collect_all(lane)
    thread.join()
    assert all(done.items is batch for done, batch in zip(completed, batches, strict=True))
    for number, done in enumerate(completed):
        assert done.result.tolist() == [number + i for i in range(1 + number % 5)]
    ends = np.concatenate([done.end_ns for done in completed])
    assert np.all(np.diff(ends) >= 0)
    assert lane.items_done == sum(len(batch) for batch in batches)


def test_a_full_ring_takes_no_more(data):
    files = Files([FileSlot(path=data, uses=100)])
    start = started()
    lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    batch = make_batch((READ_AT, 0, 0, 1, 0))
    assert [lane.submit(batch) for _ in range(RING_BATCHES + 1)] == [True] * RING_BATCHES + [False]
    lane.finish()
    lane.run()
    with pytest.raises(RuntimeError):
        lane.submit(batch)
    with pytest.raises(RuntimeError):
        lane.run()
    assert len(collect_all(lane)) == RING_BATCHES


def test_a_full_batch(data):
    files = Files([FileSlot(path=data, uses=BATCH_ITEMS)])
    assert results(files, *[(READ_AT, 0, i % 10_000, 1, 0) for i in range(BATCH_ITEMS)]) == [1] * BATCH_ITEMS


def test_a_lane_without_batches_ends():
    completed, lane = run_lane(Files([]))
    assert completed == []
    assert lane.starved_ns == 0


def submitted(items):
    """Whether a lane takes a batch."""
    return Lane(Files([]), pace=LoopPace.NONE, start=StartGate(), stop=StopFlag()).submit(items)


@pytest.mark.parametrize(
    "items",
    [
        make_batch((ADD + 1, 0, 0, 0, 0)),
        np.zeros(BATCH_ITEMS + 1, dtype=PLAN_ROW),
        np.zeros(0, dtype=PLAN_ROW),
        np.zeros(1, dtype=[(name, "<i8") for name in PLAN_ROW.names]),
        np.zeros((1, 1), dtype=PLAN_ROW),
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(items):
    with pytest.raises(ValueError, match=r"batch|[Bb]uffer"):
        submitted(items)


@pytest.mark.parametrize("item", [(READ_AT, 0, 0, 1, 2**62), (READ_AT, 0, 0, 1, -(2**62)), (SLEEP, -1, 0, 2**62, 0)])
def test_times_that_would_overflow_are_refused(item):
    with pytest.raises(ReplayError, match="73 years"):
        submitted(make_batch(item))


def test_the_feeder_is_sent_to_lanes_with_room_or_results_alone():
    files = Files([FileSlot(path=b"/f", uses=100)], "null")
    idle, full = (Lane(files, pace=LoopPace.NONE, start=started(), stop=StopFlag()) for _ in range(2))
    assert lanes_to_feed([idle, full]) == [0, 1]
    while full.submit(make_batch((READ_AT, 0, 0, 1, 0))):
        pass
    assert lanes_to_feed([full, idle]) == [1]
    idle.finish()
    assert lanes_to_feed([full, idle]) == []
    full.finish()
    full.run()
    assert lanes_to_feed([idle, full]) == [1]
    assert len(collect_all(full)) == RING_BATCHES
    assert lanes_to_feed([idle, full]) == []


def test_the_feeder_is_sent_to_a_lane_that_met_a_bug():
    backend = FakeBackend(take=lambda kind: 1 // 0)
    lane = Lane(Files([FileSlot(path=b"/f", uses=1)], backend), pace=LoopPace.NONE, start=started(), stop=StopFlag())
    lane.submit(make_batch((READ_AT, 0, 0, 1, 0)))
    lane.finish()
    lane.run()
    lane.collect()
    assert lanes_to_feed([lane]) == [0]
    with pytest.raises(ZeroDivisionError):
        lane.collect()


def test_results_of_several_batches_are_joined_in_order():
    def part(first: int, count: int, items: int) -> Completed:
        times = np.arange(first, first + count)
        rows = make_batch(*((READ_AT, 0, first + i, 1, 0) for i in range(items)))
        return Completed(items=rows, due_ns=times, begin_ns=times + 10, end_ns=times + 20, result=times + 30)

    joined = Completed.joined([part(0, 3, 3), part(3, 1, 4)])
    assert joined.items["_place"].tolist() == joined.due_ns.tolist() == [0, 1, 2, 3]
    assert (joined.begin_ns - joined.due_ns).tolist() == [10] * 4
    assert (joined.end_ns - joined.due_ns).tolist() == [20] * 4
    assert (joined.result - joined.due_ns).tolist() == [30] * 4


@pytest.mark.parametrize(
    ("processors", "processes", "lanes", "spinning"),
    [
        (8, 1, 8 * MOST_LANES_PER_PROCESSOR, 8),
        (8, 1, 8 * MOST_LANES_PER_PROCESSOR + 1, 0),
        (8, 4, 2 * MOST_LANES_PER_PROCESSOR, 2),
        (8, 4, 2 * MOST_LANES_PER_PROCESSOR + 1, 0),
        (1, 2, MOST_LANES_PER_PROCESSOR, 2),
        (1, 2, MOST_LANES_PER_PROCESSOR + 1, 0),
    ],
)
def test_lanes_spin_unless_there_are_too_many(monkeypatch, processors, processes, lanes, spinning):
    told = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(processors))
    monkeypatch.setattr(issue, "let_lanes_spin", told.append)
    share_processors(processes, lanes)
    assert told == [spinning]
