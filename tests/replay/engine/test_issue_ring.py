"""The ring between feeder and lane, over both cores, and the form of a batch."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dxt_replay.replay.engine.backends.base import FileSlot
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import FEED_POLL_NS, make_files, make_lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, READ_AT, RING_BATCHES, SLEEP, Batch, LoopPace
from dxt_replay.traces.errors import ReplayError
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import collect_all, core_fixture, data_fixture, results, run_lane  # noqa: F401


def test_many_batches_pass_the_ring_in_order(core, data):
    start = StartGate()
    start.open(time.monotonic_ns())
    files = make_files([FileSlot(path=data, uses=10**6)], core=core)
    lane = make_lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
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
    assert [done.batch for done in completed] == batches
    for number, done in enumerate(completed):
        assert done.result.tolist() == [number + i for i in range(1 + number % 5)]
    ends = np.concatenate([done.end_ns for done in completed])
    assert np.all(np.diff(ends) >= 0)
    assert lane.items_done == sum(len(batch) for batch in batches)


def test_a_full_ring_takes_no_more(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = make_lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    batch = make_batch((READ_AT, 0, 0, 1, 0))
    assert [lane.submit(batch) for _ in range(RING_BATCHES + 1)] == [True] * RING_BATCHES + [False]
    lane.finish()
    lane.run()
    with pytest.raises(RuntimeError):
        lane.submit(batch)
    with pytest.raises(RuntimeError):
        lane.run()
    assert len(collect_all(lane)) == RING_BATCHES


def test_a_full_batch(core, data):
    files = make_files([FileSlot(path=data, uses=BATCH_ITEMS)], core=core)
    assert results(files, *[(READ_AT, 0, i % 10_000, 1, 0) for i in range(BATCH_ITEMS)]) == [1] * BATCH_ITEMS


def test_a_lane_without_batches_ends(core):
    completed, lane = run_lane(make_files([], core=core))
    assert completed == []
    assert lane.starved_ns == 0


def test_time_spent_waiting_for_the_feeder_is_counted(core, data):
    most = 1000
    files = make_files([FileSlot(path=data, uses=most)], core=core)
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = make_lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    thread = threading.Thread(target=lane.run)
    batch, completed = make_batch((READ_AT, 0, 0, 1, 0)), []
    lane.submit(batch)
    thread.start()
    # A lane that got no processor in time found its next batch there, and has not waited: once more.
    while not lane.starved_ns and len(completed) < most:
        while (done := lane.collect()) is None:
            time.sleep(0)
        completed.append(done)
        late = time.monotonic_ns() + 4 * FEED_POLL_NS
        while time.monotonic_ns() < late:
            time.sleep(0)
        lane.submit(batch)
    lane.finish()
    thread.join()
    completed += collect_all(lane)
    begins, ends = (np.concatenate([getattr(done, name) for done in completed]) for name in ("begin_ns", "end_ns"))
    assert 0 < lane.starved_ns <= (begins[1:] - ends[:-1]).sum()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": np.array([13], dtype=np.uint8)},
        {"kind": np.zeros(BATCH_ITEMS + 1, dtype=np.uint8)},
        {"kind": np.zeros(0, dtype=np.uint8)},
        {"slot": np.zeros(1, dtype=np.int64)},
        {"offset": np.zeros(2, dtype=np.int64)},
        {"length": np.zeros((1, 1), dtype=np.int64)},
        {"due_ns": np.zeros(1, dtype=np.float64)},
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(change):
    good = make_batch((READ_AT, 0, 0, 1, 0))
    columns = {name: getattr(good, name) for name in ("kind", "slot", "offset", "length", "due_ns")}
    with pytest.raises(ValueError, match="batch"):
        Batch(**{**columns, **change})


@pytest.mark.parametrize("item", [(READ_AT, 0, 0, 1, 2**62), (READ_AT, 0, 0, 1, -(2**62)), (SLEEP, -1, 0, 2**62, 0)])
def test_times_that_would_overflow_are_refused(item):
    with pytest.raises(ReplayError, match="73 years"):
        make_batch(item)
