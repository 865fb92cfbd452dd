"""Lanes: start and stop, the ring between feeder and lane, counters, and the form of a batch."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine import issue
from dxt_replay.replay.engine.clock import (
    COUNTER_STAMPS,
    MOST_LANES_PER_PROCESSOR,
    Counters,
    StartGate,
    StopFlag,
    share_processors,
)
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane, lanes_to_feed
from dxt_replay.replay.engine.items import (
    ADD,
    BATCH_ITEMS,
    MARK,
    PLAN_ROW,
    READ_AT,
    RING_BATCHES,
    SLEEP,
    SPIN,
    WAIT,
    LoopPace,
)
from dxt_replay.traces.errors import ReplayError
from tests.fakes import FakeBackend, make_batch
from tests.places import ROOT
from tests.replay.engine.issue_lanes import (
    HOUR_NS,
    built,
    collect_all,
    counters_of,
    open_paths,
    started,
)


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


PROGRAM = """
import ctypes, sys, threading, time
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import MARK, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import started

held = ctypes.CDLL(sys.argv[1])
sleeps, let_go, timed_out = (ctypes.c_int.in_dll(held, name) for name in ("sleeps", "let_go", "timed_out"))
lane = Lane(Files([]), pace=LoopPace.THINK, start=started(), stop=StopFlag())
thread = threading.Thread(target=lane.run)
thread.start()

def as_it_falls_asleep(tell, number):
    while sleeps.value < number:
        time.sleep(0.001)
    tell()
    let_go.value = number

as_it_falls_asleep(lambda: lane.submit(make_batch((MARK, -1, 0, 0, 0))), 1)
as_it_falls_asleep(lane.finish, 2)
thread.join()
print(lane.items_done, sleeps.value, timed_out.value)
"""


def test_what_the_feeder_says_as_a_lane_falls_asleep_is_heard(tmp_path: Path) -> None:
    library = built("held_sleep", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["1", "2", "0"], done.stderr


def test_times_are_exact_on_a_fake_clock(tmp_path: Path) -> None:
    library = built("fake_clock", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/replay/engine/on_fake_clock.py"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "FAKE_CLOCK": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def lane_with(counters, *batches, start=None, stop=None):
    """A lane whose batches are submitted, ready to run."""
    start = start or started()
    files = Files([])
    lane = Lane(files, pace=LoopPace.THINK, start=start, stop=stop or StopFlag(), counters=counters)
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    return lane


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


amounts = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2_000)), min_size=1, max_size=30)


@given(amounts=amounts, multiple=st.integers(1, 4))
def test_a_time_is_never_too_early_and_exact_while_it_is_kept(amounts: list[int], multiple: int) -> None:
    counters = Counters.of(1)
    for now, amount in enumerate(amounts, 1):
        counters.add(0, amount, multiple, now)
    sums = np.cumsum(amounts)
    last = int(sums[-1]) // multiple
    exact = [1 + int(np.searchsorted(sums, unit * multiple)) for unit in range(1, last + 1)]
    known = [counters.reached_ns(0, unit * multiple, multiple) for unit in range(1, last + 1)]
    oldest = max(1, last - (COUNTER_STAMPS - 2))
    assert known == [max(time, exact[oldest - 1]) for time in exact]
