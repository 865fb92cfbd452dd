"""Lanes: start and stop, the ring between feeder and lane, counters, the form of a batch, and the probe beside them."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

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
from dxt_replay.replay.engine.issue import Files, Lane, bucket_of, lanes_to_feed
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
from dxt_replay.replay.engine.jitter import BUCKETS, EXACT_BUCKETS, JitterProbe, bucket_middle_ns
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.distribution import Distribution
from tests.fakes import FakeBackend, make_batch
from tests.places import ROOT
from tests.replay.engine.issue_lanes import HOUR_NS, built, collect_all, open_paths, started

READ, NULL = (READ_AT, 0, 0, 1), [FileSlot(path=b"/f", uses=10**6)]


def lane_of(files=None, *batches, pace=LoopPace.NONE, start=None, stop=None, counters=None, ended=False):
    """A lane with batches in its ring, which is the end of its plan where it is `ended`."""
    files = files or Files(NULL, "null")
    lane = Lane(files, pace=pace, start=start or started(), stop=stop or StopFlag(), counters=counters)
    for batch in batches:
        assert lane.submit(batch)
    if ended:
        lane.finish()
    return lane


def running(*lanes):
    """The lanes, each in a thread that was started."""
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    return threads


def test_a_gate_opens_once():
    start = StartGate()
    for time_ns, refused in ((0, True), (7, False), (8, True)):
        with pytest.raises(RuntimeError) if refused else nullcontext():
            start.open(time_ns)
    assert start.t0_ns == 7


def test_hundreds_of_lanes_that_wait_for_the_gate_leave_the_processors_to_others():
    """A lane that looks for the start every few ms uses time; 2,000 of them once left none to start the others."""
    start = StartGate()
    lanes = [lane_of(start=start) for _ in range(300)]
    threads = running(*lanes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    time.sleep(0.5)
    wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    for lane in lanes:
        lane.submit(make_batch((MARK, -1)))
        lane.finish()
    start.open(time.monotonic_ns())
    for thread in threads:
        thread.join()
    assert [collect_all(lane)[0].count for lane in lanes] == [1] * 300
    assert wake_ups < 10 * len(lanes)


@pytest.mark.parametrize("where", ["gate", "feeder", "counter"])
def test_a_stop_ends_a_lane_that_waits(where):
    start, stop, counters = StartGate(), StopFlag(), Counters.of(2)
    if where != "gate":
        start.open(time.monotonic_ns())
    batches = [make_batch((ADD, 1, 1, 1), (WAIT, 0, 1, 1))] * (where == "counter")
    lane = lane_of(None, *batches, pace=LoopPace.THINK, start=start, stop=stop, counters=counters)
    (thread,) = running(lane)
    while where == "counter" and not counters.value(1):
        thread.join(0.001)
    stop.set()
    thread.join()
    assert lane.done
    assert [done.count for done in collect_all(lane)] == [1] * len(batches)


@pytest.mark.parametrize(
    "last", [(READ_AT, 0, 0, 1, HOUR_NS), (SLEEP, -1, 0, HOUR_NS), (SPIN, -1, 0, HOUR_NS), (MARK, -1, 0, 0, HOUR_NS)]
)
def test_a_stop_leaves_what_was_done(data, last):
    files, stop = Files([FileSlot(path=data, uses=100)]), StopFlag()
    batch = make_batch((READ_AT, 0, 0, 5), (READ_AT, 0, 1, 6), last, (READ_AT, 0, 0, 7))
    lane = lane_of(files, batch, batch, pace=LoopPace.ABSOLUTE, stop=stop)
    (thread,) = running(lane)
    while lane.items_done < 2:
        time.sleep(0)
    stop.set()
    thread.join()
    (completed,) = collect_all(lane)
    assert completed.count == 2 < len(completed.items)
    assert completed.result.tolist() == [5, 6]
    assert {len(times) for times in (completed.due_ns, completed.begin_ns, completed.end_ns)} == {2}
    files.close_all()
    assert data not in open_paths()


def test_many_batches_pass_the_ring_in_order(data):
    lane = lane_of(Files([FileSlot(path=data, uses=10**6)]))
    batches = [make_batch(*((READ_AT, 0, 7 * n, n + i) for i in range(1 + n % 5))) for n in range(100)]
    (thread,) = running(lane)
    waiting, completed = list(batches), []
    while len(completed) < len(batches):
        while waiting and lane.submit(waiting[0]):
            waiting.pop(0)
            if not waiting:
                lane.finish()
        completed += collect_all(lane)
    thread.join()
    assert all(done.items is batch for done, batch in zip(completed, batches, strict=True))
    assert [done.result.tolist() for done in completed] == [[n + i for i in range(1 + n % 5)] for n in range(100)]
    assert np.all(np.diff(np.concatenate([done.end_ns for done in completed])) >= 0)
    assert lane.items_done == sum(len(batch) for batch in batches)


def test_a_full_ring_takes_no_more():
    lane, batch = lane_of(), make_batch(READ)
    assert [lane.submit(batch) for _ in range(RING_BATCHES + 1)] == [True] * RING_BATCHES + [False]
    lane.finish()
    lane.run()
    with pytest.raises(RuntimeError):
        lane.submit(batch)
    with pytest.raises(RuntimeError):
        lane.run()
    assert len(collect_all(lane)) == RING_BATCHES


@pytest.mark.parametrize(
    ("items", "error", "said"),
    [
        (make_batch((ADD + 1, 0)), ValueError, "batch"),
        (np.zeros(BATCH_ITEMS + 1, dtype=PLAN_ROW), ValueError, "batch"),
        (np.zeros(0, dtype=PLAN_ROW), ValueError, "batch"),
        (np.zeros(1, dtype=[(name, "<i8") for name in PLAN_ROW.names]), ValueError, r"[Bb]uffer"),
        (np.zeros((1, 1), dtype=PLAN_ROW), ValueError, r"[Bb]uffer"),
        (make_batch((ADD, 0, 0, 1)), ValueError, "multiple below 1"),
        (make_batch((READ_AT, 0, 0, 1, 2**62)), ReplayError, "73 years"),
        (make_batch((READ_AT, 0, 0, 1, -(2**62))), ReplayError, "73 years"),
        (make_batch((SLEEP, -1, 0, 2**62)), ReplayError, "73 years"),
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(items, error, said):
    with pytest.raises(error, match=said):
        lane_of(None, items)


def test_the_feeder_is_sent_to_lanes_with_room_or_results_or_a_bug_alone():
    idle, full = lane_of(), lane_of()
    assert lanes_to_feed([idle, full]) == [0, 1]
    while full.submit(make_batch(READ)):
        pass
    assert lanes_to_feed([full, idle]) == [1]
    idle.finish()
    assert lanes_to_feed([full, idle]) == []
    full.finish()
    full.run()
    assert lanes_to_feed([idle, full]) == [1]
    assert len(collect_all(full)) == RING_BATCHES
    assert lanes_to_feed([idle, full]) == []
    broken = lane_of(Files(NULL, FakeBackend(take=lambda kind: 1 // 0)), make_batch(READ), ended=True)
    broken.run()
    broken.collect()
    assert lanes_to_feed([broken]) == [0]
    with pytest.raises(ZeroDivisionError):
        broken.collect()


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


def preloaded(library, *words):
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAKE_CLOCK": str(library)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


PROGRAM = """
import ctypes, sys, threading, time
from dxt_replay.replay.engine.items import MARK, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.test_lanes import lane_of, running

held = ctypes.CDLL(sys.argv[1])
sleeps, let_go, timed_out = (ctypes.c_int.in_dll(held, name) for name in ("sleeps", "let_go", "timed_out"))
lane = lane_of(pace=LoopPace.THINK)
(thread,) = running(lane)

def as_it_falls_asleep(tell, number):
    while sleeps.value < number:
        time.sleep(0.001)
    tell()
    let_go.value = number

as_it_falls_asleep(lambda: lane.submit(make_batch((MARK, -1))), 1)
as_it_falls_asleep(lane.finish, 2)
thread.join()
print(lane.items_done, sleeps.value, timed_out.value)
"""


def test_what_the_feeder_says_as_a_lane_falls_asleep_is_heard(tmp_path):
    library = built("held_sleep", tmp_path)
    done = preloaded(library, "-c", PROGRAM, str(library))
    assert done.stdout.split() == ["1", "2", "0"], done.stderr


def test_times_are_exact_on_a_fake_clock(tmp_path):
    tests = "tests/replay/engine/on_fake_clock.py"
    done = preloaded(built("fake_clock", tmp_path), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_counter_that_there_is_not_is_an_error_of_the_item():
    batch = make_batch((WAIT, 1, 1, 5), (ADD, -1, 1, 5), (ADD, 0, 1, 5))
    lane = lane_of(None, batch, counters=Counters.of(1), ended=True)
    lane.run()
    assert [done.result.tolist() for done in collect_all(lane)] == [[-errno.EINVAL, -errno.EINVAL, 0]]


amounts = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2_000)), min_size=1, max_size=30)


@given(amounts=amounts, multiple=st.integers(1, 4))
def test_a_time_is_never_too_early_and_exact_while_it_is_kept(amounts, multiple):
    counters = Counters.of(1)
    for now, amount in enumerate(amounts, 1):
        counters.add(0, amount, multiple, now)
    sums = np.cumsum(amounts)
    last = int(sums[-1]) // multiple
    exact = [1 + int(np.searchsorted(sums, unit * multiple)) for unit in range(1, last + 1)]
    known = [counters.reached_ns(0, unit * multiple, multiple) for unit in range(1, last + 1)]
    oldest = max(1, last - (COUNTER_STAMPS - 2))
    assert known == [max(time, exact[oldest - 1]) for time in exact]


# ------------------------------------------------------------------------- the jitter probe; exactly: `on_fake_clock`


@given(st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 62).map(lambda bit: 1 << bit)))
def test_a_bucket_stands_for_what_it_counts(value):
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS
    middle = bucket_middle_ns(np.array([bucket]))[0]
    assert abs(middle - value) <= (value / 64 if value >= EXACT_BUCKETS else 0)


def test_the_lateness_of_several_nodes_adds():
    probes = [JitterProbe(), JitterProbe()]
    for probe, late_ns in zip(probes, (141_000, 901_000), strict=True):
        probe._counts[bucket_of(late_ns)] = 19
        probe._max_ns = late_ns
    both = sum((probe.lateness_ns() for probe in probes), Distribution())
    assert both.count == 38
    assert both.quantile(0.25) == pytest.approx(141_000, rel=1 / 64)
    assert (both.minimum, both.maximum, both.mean) == pytest.approx((141_000, 901_000, 521_000))


@pytest.mark.parametrize(("rate_per_s", "waits"), [(500, 0), (10_000, 10)])
def test_a_probe_runs_beside_the_program_and_has_made_a_wait_when_it_is_stopped_at_once(rate_per_s, waits):
    probe = JitterProbe(rate_per_s=rate_per_s)
    with probe.running():
        while probe.count < waits:
            time.sleep(0)
    probe.stop()
    found = probe.lateness_ns()
    assert found.count == probe.count >= max(waits, 1)
    assert 0 <= found.quantile(0.5) <= found.quantile(0.99) <= found.maximum
