"""Start and stop of lanes."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import MARK, READ_AT, SLEEP, SPIN, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import HOUR_NS, collect_all, open_paths, run_lane, started


def test_nothing_begins_before_the_start(data):
    start = StartGate()
    start.open(time.monotonic_ns() + 3_000_000)
    files = Files([FileSlot(path=data, uses=1)])
    for pace in LoopPace:
        (completed,), _ = run_lane(files, make_batch((READ_AT, 0, 0, 1, 0)), pace=pace, start=start)
        assert completed.begin_ns[0] >= completed.due_ns[0] >= 0


def test_lanes_wait_for_the_gate(data):
    start = StartGate()
    files = Files([FileSlot(path=data, uses=1)])
    lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    lane.submit(make_batch((READ_AT, 0, 0, 1, 0)))
    lane.finish()
    thread = threading.Thread(target=lane.run)
    thread.start()
    assert lane.collect() is None
    start.open(time.monotonic_ns())
    thread.join()
    assert collect_all(lane)[0].begin_ns[0] >= 0


def test_a_gate_opens_once():
    start = StartGate()
    with pytest.raises(RuntimeError):
        start.open(0)
    start.open(7)
    with pytest.raises(RuntimeError):
        start.open(8)
    assert start.t0_ns == 7


def test_hundreds_of_lanes_that_wait_for_the_gate_leave_the_processors_to_others():
    """A lane that looks for the start every few ms uses time; 2,000 of them once left none to start the others."""
    start = StartGate()
    files = Files([])
    lanes = [Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag()) for _ in range(300)]
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    time.sleep(0.5)
    wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    for lane in lanes:
        lane.submit(make_batch((MARK, -1, 0, 0, 0)))
        lane.finish()
    start.open(time.monotonic_ns())
    for thread in threads:
        thread.join()
    assert [collect_all(lane)[0].count for lane in lanes] == [1] * 300
    assert wake_ups < 10 * len(lanes)


def test_a_lane_that_sleeps_for_want_of_items_is_woken():
    start = started()
    lane = Lane(Files([]), pace=LoopPace.NONE, start=start, stop=StopFlag())
    thread = threading.Thread(target=lane.run, daemon=True)
    thread.start()
    for _ in range(3):
        time.sleep(0.1)  # longer than a lane looks for items by itself
        lane.submit(make_batch((MARK, -1, 0, 0, 0)))
    while lane.items_done < 3:
        time.sleep(0)
    time.sleep(0.1)
    lane.finish()
    thread.join()
    assert sum(completed.count for completed in collect_all(lane)) == 3


@pytest.mark.parametrize("where", ["gate", "feeder"])
def test_a_stop_ends_a_lane_that_waits(where):
    start, stop = StartGate(), StopFlag()
    if where == "feeder":
        start.open(time.monotonic_ns())
    lane = Lane(Files([]), pace=LoopPace.NONE, start=start, stop=stop)
    thread = threading.Thread(target=lane.run)
    thread.start()
    assert not stop.is_set()
    stop.set()
    thread.join()
    assert stop.is_set()
    assert lane.done
    assert collect_all(lane) == []


@pytest.mark.parametrize(
    "last",
    [(READ_AT, 0, 0, 1, HOUR_NS), (SLEEP, -1, 0, HOUR_NS, 0), (SPIN, -1, 0, HOUR_NS, 0), (MARK, -1, 0, 0, HOUR_NS)],
)
def test_a_stop_leaves_what_was_done(data, last):
    start, stop = started(), StopFlag()
    files = Files([FileSlot(path=data, uses=100)])
    lane = Lane(files, pace=LoopPace.ABSOLUTE, start=start, stop=stop)
    batch = make_batch((READ_AT, 0, 0, 5, 0), (READ_AT, 0, 1, 6, 0), last, (READ_AT, 0, 0, 7, 0))
    lane.submit(batch)
    lane.submit(batch)
    thread = threading.Thread(target=lane.run)
    thread.start()
    while lane.items_done < 2:
        time.sleep(0)
    stop.set()
    thread.join()
    (completed,) = collect_all(lane)
    assert completed.count == 2 < len(completed.items)
    assert completed.result.tolist() == [5, 6]
    for times in (completed.due_ns, completed.begin_ns, completed.end_ns):
        assert len(times) == 2
    files.close_all()
    assert data not in open_paths()


def test_the_timer_slack_of_the_thread_is_as_before():
    def slack():
        return Path("/proc/self/timerslack_ns").read_text()

    before = slack()
    run_lane(Files([]))
    assert slack() == before
