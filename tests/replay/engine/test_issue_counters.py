"""Counters between lanes."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import ADD, WAIT, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import collect_all, counters_of, run_together, started


def lane_with(counters, *batches, start=None, stop=None):
    """A lane whose batches are submitted, ready to run."""
    start = start or started()
    files = Files([])
    lane = Lane(files, pace=LoopPace.THINK, start=start, stop=stop or StopFlag(), counters=counters)
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    return lane


def test_a_lane_adds_to_counters_and_goes_on_where_they_suffice():
    counters = counters_of(2)
    lane = lane_with(counters, make_batch((ADD, 1, 1, 3, 0), (WAIT, 1, 1, 3, 0), (WAIT, 0, 1, 0, 0)))
    lane.run()
    (done,) = collect_all(lane)
    assert done.result.tolist() == [0, 0, 0]
    assert counters.cells[:, 0].tolist() == [0, 3]


def test_lanes_take_turns_through_counters():
    counters, rounds = counters_of(2), 200
    ping = [item for k in range(rounds) for item in ((ADD, 0, 1, 1, 0), (WAIT, 1, 1, k + 1, 0))]
    pong = [item for k in range(rounds) for item in ((WAIT, 0, 1, k + 1, 0), (ADD, 1, 1, 1, 0))]
    start = started()
    lanes = [lane_with(counters, make_batch(*items), start=start) for items in (ping, pong)]
    run_together(*lanes)
    (first,), (second,) = map(collect_all, lanes)
    # each wait ended after the addition that it waited for had begun
    assert (second.end_ns[0::2] >= first.begin_ns[0::2]).all()
    assert (first.end_ns[1::2] >= second.begin_ns[1::2]).all()
    assert counters.cells[:, 0].tolist() == [rounds, rounds]


def test_a_waiting_lane_is_woken_by_a_python_thread():
    counters = counters_of(1)
    lane = lane_with(counters, make_batch((WAIT, 0, 2, 2, 0)))
    thread = threading.Thread(target=lane.run)
    thread.start()
    counters.add(0, 1, 2, time.monotonic_ns())
    assert thread.is_alive()
    counters.add(0, 1, 2, time.monotonic_ns())
    thread.join()
    assert collect_all(lane)[0].result.tolist() == [0]


def test_a_stop_ends_a_wait_for_a_counter():
    stop, counters = StopFlag(), counters_of(2)
    lane = lane_with(counters, make_batch((ADD, 1, 1, 1, 0), (WAIT, 0, 1, 1, 0)), stop=stop)
    thread = threading.Thread(target=lane.run)
    thread.start()
    while not counters.value(1):
        thread.join(0.001)
    stop.set()
    thread.join()
    assert lane.done
    assert collect_all(lane)[0].count == 1


def test_a_counter_that_there_is_not_is_an_error_of_the_item():
    lane = lane_with(counters_of(1), make_batch((WAIT, 1, 1, 5, 0), (ADD, -1, 1, 5, 0), (ADD, 0, 1, 5, 0)))
    lane.run()
    (done,) = collect_all(lane)
    assert done.result.tolist() == [-errno.EINVAL, -errno.EINVAL, 0]


def test_an_addition_that_wakes_at_no_multiple_is_refused():
    with pytest.raises(ValueError, match="multiple below 1"):
        lane_with(counters_of(1), make_batch((ADD, 0, 0, 1, 0)))
