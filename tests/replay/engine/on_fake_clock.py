"""Exact times of lanes and of the jitter probe. `test_issue_timing` runs this under the library `fake_clock.c`, whose
path is in FAKE_CLOCK."""

from __future__ import annotations

import ctypes
import errno
import os

import numpy as np
import pytest

from dxt_replay.replay.engine.clock import LEAST_SPINNING_LANES, StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane, let_lanes_spin, record_lateness
from dxt_replay.replay.engine.items import MARK, OPEN, READ_AT, RENAME, SEEK, SLEEP, SYNC, WRITE_AT, LoopPace
from dxt_replay.replay.engine.jitter import BUCKETS, bucket_middle_ns
from tests.fakes import FakeBackend, make_batch

LIBRARY = ctypes.CDLL(os.environ["FAKE_CLOCK"])
ON_SLEEP = ctypes.CFUNCTYPE(None, ctypes.c_longlong)
T0 = 5_000_000_000
WINDOW_NS, PIECE_NS, FEED_POLL_NS, HOUR_NS = 60_000, 50_000_000, 50_000, 3600 * 10**9


class Clock:
    """The clock of the library. `sleeps`: all deadlines. `on_sleep`: called with each before the sleep."""

    def __init__(self) -> None:
        self.sleeps: list[int] = []
        self.on_sleep = lambda deadline_ns: None
        self._slept = ON_SLEEP(self._sleep)
        ctypes.c_void_p.in_dll(LIBRARY, "on_sleep").value = ctypes.cast(self._slept, ctypes.c_void_p).value
        self.set(time_ns=T0, read_ns=1, oversleep_ns=0)

    def _sleep(self, deadline_ns: int) -> None:
        self.sleeps.append(deadline_ns)
        self.on_sleep(deadline_ns)

    def set(self, **values: int) -> None:
        """Set time_ns, read_ns and oversleep_ns."""
        for name, value in values.items():
            ctypes.c_longlong.in_dll(LIBRARY, name).value = value

    @property
    def time_ns(self) -> int:
        return ctypes.c_longlong.in_dll(LIBRARY, "time_ns").value

    def take(self, duration_ns: int) -> None:
        """Let time pass."""
        self.set(time_ns=self.time_ns + duration_ns)


@pytest.fixture(name="clock")
def clock_fixture():
    clock = Clock()
    yield clock
    clock.set(time_ns=0)


def fake_lane(clock, *, pace=LoopPace.ABSOLUTE, stop=None, open_ns=0, transfer_ns=0, missing=frozenset()):
    """A lane over the fake back end, started at T0."""
    start = StartGate()
    start.open(T0)
    took = {"open": open_ns, "transfer": transfer_ns}
    backend = FakeBackend(missing=missing, take=lambda kind: clock.take(took[kind]))
    files = Files([FileSlot(path=b"/f%d" % i, writable=True, uses=100) for i in range(2)], backend)
    return Lane(files, pace=pace, start=start, stop=stop or StopFlag()), backend


def finish(lane, *items):
    """The results of one batch."""
    assert lane.submit(make_batch(*items))
    lane.finish()
    lane.run()
    return lane.collect()


def test_a_wait_sleeps_to_the_window_in_pieces_then_spins(clock):
    clock.set(read_ns=7)
    lane, _ = fake_lane(clock)
    done = finish(lane, (MARK, -1, 0, 0, 120_000_000))
    first = clock.sleeps[0] - PIECE_NS - T0  # looks at the clock before the wait
    assert first < 50
    assert np.array(clock.sleeps).tolist() == [
        T0 + first + PIECE_NS,
        T0 + first + 2 * PIECE_NS + 7,
        T0 + 120_000_000 - WINDOW_NS,
    ]
    assert 0 <= done.begin_ns[0] - 120_000_000 < 7


def test_a_wait_within_the_window_does_not_sleep(clock):
    lane, _ = fake_lane(clock)
    assert finish(lane, (MARK, -1, 0, 0, WINDOW_NS)).begin_ns.tolist() == [WINDOW_NS]
    assert clock.sleeps == []


@pytest.fixture(name="no_spin")
def no_spin_fixture():
    let_lanes_spin(0)
    yield
    let_lanes_spin(LEAST_SPINNING_LANES)


@pytest.mark.usefixtures("no_spin")
@pytest.mark.parametrize("kind", [MARK, READ_AT])
def test_each_wait_of_a_crowd_is_one_sleep_to_its_end(clock, kind):
    lane, _ = fake_lane(clock)
    done = finish(lane, *((kind, 0, 0, 0, 1_000_000 * (i + 1)) for i in range(40)))
    assert clock.sleeps == [T0 + 1_000_000 * (i + 1) for i in range(40)]
    assert np.all(done.begin_ns - done.due_ns < 10)


@pytest.mark.usefixtures("no_spin")
@pytest.mark.parametrize(("pace", "precise"), [(LoopPace.ABSOLUTE, False), (LoopPace.THINK, True)])
def test_a_crowd_keeps_the_timer_slack_where_lateness_does_not_add_up(clock, pace, precise):
    assert slacks_of_a_lane(clock, pace) == [1 if precise else 40_000, 40_000]


def test_a_lane_that_may_spin_has_no_timer_slack(clock):
    assert slacks_of_a_lane(clock, LoopPace.ABSOLUTE) == [1, 40_000]


def slacks_of_a_lane(clock, pace):
    """The timer slack of the thread (prctl(2)) during a call of its lane and after the end, 40,000 ns before."""
    set_slack, get_slack = 29, 30
    system, before = ctypes.CDLL(None), ctypes.CDLL(None).prctl(get_slack, 0, 0, 0, 0)
    system.prctl(set_slack, 40_000, 0, 0, 0)
    try:
        found = []
        lane, backend = fake_lane(clock, pace=pace)
        backend.take = lambda kind: found.append(system.prctl(get_slack, 0, 0, 0, 0))
        finish(lane, (READ_AT, 0, 0, 1, 0))
        return [found[-1], system.prctl(get_slack, 0, 0, 0, 0)]
    finally:
        system.prctl(set_slack, before, 0, 0, 0)


def test_a_sleep_that_ends_early_is_continued(clock):
    def half_of_it(deadline_ns):
        if len(clock.sleeps) < 5:
            clock.set(time_ns=(clock.time_ns + deadline_ns) // 2, oversleep_ns=-(10**9))
        else:
            clock.set(oversleep_ns=0)

    clock.on_sleep = half_of_it
    lane, _ = fake_lane(clock)
    assert finish(lane, (MARK, -1, 0, 0, 10_000_000)).begin_ns.tolist() == [10_000_000]
    assert clock.sleeps == [T0 + 10_000_000 - WINDOW_NS] * 5


def test_begin_is_the_look_before_the_call_and_end_the_one_after(clock):
    lane, backend = fake_lane(clock, transfer_ns=5_000)
    done = finish(lane, (READ_AT, 0, 10, 20, 1_000_000), (WRITE_AT, 1, 30, 40, 2_000_000))
    assert done.due_ns.tolist() == [1_000_000, 2_000_000]
    assert done.begin_ns.tolist() == [1_000_000, 2_000_000]
    assert done.end_ns.tolist() == [1_005_001, 2_005_001]
    transfers = [call for call in backend.calls if call[0] not in ("open", "close")]
    assert transfers == [("read", b"/f0", 10, 20), ("write", b"/f1", 30, 40)]


def test_late_items_are_issued_at_once_and_the_schedule_does_not_move(clock):
    """Of an item that is not waited for, begin is the end of the one before, unless something was prepared."""
    lane, _ = fake_lane(clock, transfer_ns=3_000_000)
    late = [(MARK, -1, 0, 0, due) for due in (1_000_000, 2_000_000, 20_000_000)]
    done = finish(lane, (WRITE_AT, 0, 0, 1, 0), *late)
    assert done.due_ns.tolist() == [0, 1_000_000, 2_000_000, 20_000_000]
    assert done.begin_ns[1:].tolist() == [done.end_ns[0], done.end_ns[0], 20_000_000]


def test_opening_comes_before_the_wait_and_is_not_latency(clock):
    lane, backend = fake_lane(clock, open_ns=400_000, transfer_ns=100)
    done = finish(lane, (READ_AT, 0, 0, 1, 1_000_000), (READ_AT, 1, 0, 1, 1_200_000))
    assert done.begin_ns[0] == 1_000_000
    assert (done.end_ns - done.begin_ns).tolist() == [101, 101]
    assert done.begin_ns[1] - done.due_ns[1] > 200_000  # the open took longer than the gap
    assert [call[0] for call in backend.calls] == ["open", "read", "open", "read"]


def test_think_time_counts_from_the_previous_end(clock):
    lane, _ = fake_lane(clock, pace=LoopPace.THINK, transfer_ns=9_000)
    done = finish(lane, (READ_AT, 0, 0, 1, 50_000), (READ_AT, 0, 0, 1, 70_000), (SLEEP, -1, 0, 500_000, 0))
    assert done.due_ns[0] == 50_000
    assert done.due_ns[1:].tolist() == [done.end_ns[0] + 70_000, done.end_ns[1]]
    # Compute begins when the read has ended, whenever the lane comes to it.
    assert done.end_ns[2] == done.due_ns[2] + 500_000


def test_an_error_costs_no_call(clock):
    lane, backend = fake_lane(clock, missing=frozenset({b"/f0"}))
    items = [(READ_AT, 0, 0, 1, 0), (WRITE_AT, 0, 0, 1, 0), (READ_AT, 1, -1, 1, 0), (READ_AT, 1, 0, 1, 0)]
    assert finish(lane, *items).result.tolist() == [-errno.ENOENT, -errno.ENOENT, -errno.EINVAL, 1]
    assert backend.calls == [("open", b"/f0"), ("open", b"/f1"), ("read", b"/f1", 0, 1)]


@pytest.mark.parametrize(("due_ns", "starved"), [(0, 700_000), (400_000, 300_000), (900_000, 0)])
def test_starving_is_waiting_for_the_feeder_while_an_item_is_due(clock, due_ns, starved):
    """The batch is there 0.7 ms after the start; its item could have begun at max(start, due)."""
    clock.set(read_ns=0)
    lane, _ = fake_lane(clock)

    def feed(deadline_ns):
        clock.set(read_ns=1)  # from now on a spin ends
        if deadline_ns >= T0 + 700_000 and clock.on_sleep is feed:
            clock.on_sleep = lambda deadline_ns: None
            clock.set(time_ns=T0 + 700_000, oversleep_ns=-(10**9))
            lane.submit(make_batch((READ_AT, 0, 0, 1, due_ns)))
            lane.finish()
        else:
            clock.set(oversleep_ns=0)

    clock.on_sleep = feed
    lane.run()
    assert lane.starved_ns == pytest.approx(starved, abs=max(FEED_POLL_NS, 700_000 >> 3) + 100)  # a look late at most
    assert (lane.starved_ns == 0) == (starved == 0)


def test_a_stop_in_a_long_wait_is_noticed_within_a_piece(clock):
    stop = StopFlag()
    lane, backend = fake_lane(clock, stop=stop)
    clock.on_sleep = lambda deadline_ns: stop.set() if len(clock.sleeps) == 4 else None
    assert finish(lane, (MARK, -1, 0, 0, 0), (READ_AT, 0, 0, 1, HOUR_NS)).count == 1
    assert len(clock.sleeps) == 4
    assert clock.time_ns <= T0 + 4 * PIECE_NS + 100
    assert backend.calls == [("open", b"/f0")]


def calls_of(clock, *items, **options):
    """Durations and results of items without waits, and the calls of the back end."""
    clock.set(read_ns=0)
    lane, backend = fake_lane(clock, pace=LoopPace.NONE, **options)
    done = finish(lane, *items)
    return (done.end_ns - done.begin_ns).tolist(), done.result.tolist(), list(backend.calls)


def test_an_open_is_its_own_latency_and_what_a_sync_needs_is_not(clock):
    took, result, calls = calls_of(clock, (OPEN, 0, 0, 0, 0), (SYNC, 1, 0, 0, 0), open_ns=1000, transfer_ns=10)
    assert (took, result) == ([1000, 10], [0, 0])
    assert calls == [("open", b"/f0"), ("open", b"/f1"), ("sync", b"/f1")]


def test_a_rename_closes_both_files_first(clock):
    items = [(READ_AT, 0, 0, 1, 0), (READ_AT, 1, 0, 1, 0), (RENAME, 0, 1, 0, 0)]
    took, _, calls = calls_of(clock, *items, transfer_ns=7)
    assert took == [7, 7, 7]
    assert calls[-3:] == [("close", b"/f0"), ("close", b"/f1"), ("rename", b"/f0", b"/f1")]


def test_a_missing_file_fails_in_its_own_time(clock):
    items = [(OPEN, 0, 0, 0, 0), (SEEK, 0, 5, 0, 0)]
    took, result, _ = calls_of(clock, *items, open_ns=50, missing=frozenset({b"/f0"}))
    assert (took, result) == ([50, 0], [-errno.ENOENT] * 2)


# ------------------------------------------------------------------------------------------------- the jitter probe


def lateness(clock, *, period_ns, on_sleep):
    """Middles of the buckets of what a probe finds until it is stopped, their counts, and the largest lateness."""
    stop, counts = StopFlag(), np.zeros(BUCKETS, dtype=np.int64)
    clock.on_sleep = lambda deadline_ns: on_sleep(stop)
    latest_ns = record_lateness(counts, np.zeros((0, 2), dtype=np.int64), stop, period_ns, 1.0)
    found = np.flatnonzero(counts)
    return bucket_middle_ns(found), counts[found].tolist(), latest_ns


def stop_in_wait(clock, waits):
    return lambda stop: stop.set() if len(clock.sleeps) == waits else None


def test_lateness_is_what_the_sleep_took_too_long(clock):
    # Each sleep ends WINDOW + 140 us - window late, that is 140 us after the time waited for; a look takes 1 us.
    clock.set(read_ns=1_000, oversleep_ns=WINDOW_NS + 140_000)
    middles, counts, latest_ns = lateness(clock, period_ns=1_000_000, on_sleep=stop_in_wait(clock, 20))
    assert (counts, latest_ns) == ([19], 141_000)
    assert middles[0] == pytest.approx(141_000, rel=1 / 64)


def test_a_punctual_sleep_leaves_the_spin(clock):
    clock.set(read_ns=1_000)
    _, counts, latest_ns = lateness(clock, period_ns=1_000_000, on_sleep=stop_in_wait(clock, 20))
    assert sum(counts) == 19
    assert 0 <= latest_ns < 1_000


def test_times_missed_in_a_stall_are_counted_with_their_lateness(clock):
    def stall(stop):
        if len(clock.sleeps) == 1:
            clock.take(10_000_000)
        else:
            stop.set()

    middles, counts, latest_ns = lateness(clock, period_ns=1_000_000, on_sleep=stall)
    # 10 ms at 1000/s: the first wait is 9 ms late, the next 8 ms ...
    assert sum(counts) == 10
    assert latest_ns == pytest.approx(9_000_000, rel=0.001)
    assert middles[1:] == pytest.approx(np.arange(1, 10) * 1e6, rel=0.02)
