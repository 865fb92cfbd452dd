"""Exact times of lanes and of the jitter probe: `test_lanes` runs this under `fake_clock.c`, by FAKE_CLOCK."""

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

    def __init__(self):
        self.sleeps: list[int] = []
        self.on_sleep = lambda deadline_ns: None
        self._slept = ON_SLEEP(self._sleep)
        ctypes.c_void_p.in_dll(LIBRARY, "on_sleep").value = ctypes.cast(self._slept, ctypes.c_void_p).value
        self.set(time_ns=T0, read_ns=1, oversleep_ns=0)

    def _sleep(self, deadline_ns):
        self.sleeps.append(deadline_ns)
        self.on_sleep(deadline_ns)

    def set(self, **values):
        """Set time_ns, read_ns and oversleep_ns."""
        for name, value in values.items():
            ctypes.c_longlong.in_dll(LIBRARY, name).value = value

    @property
    def time_ns(self):
        return ctypes.c_longlong.in_dll(LIBRARY, "time_ns").value

    def take(self, duration_ns):
        """Let time pass."""
        self.set(time_ns=self.time_ns + duration_ns)


@pytest.fixture(name="clock")
def clock_fixture():
    clock = Clock()
    yield clock
    clock.set(time_ns=0)


def fake_lane(clock, *, pace=LoopPace.ABSOLUTE, stop=None, open_ns=0, transfer_ns=0):
    """A lane over the fake back end, started at T0: files 0 and 1, and 2, which is missing."""
    start = StartGate()
    start.open(T0)
    took = {"open": open_ns, "transfer": transfer_ns}
    backend = FakeBackend(missing=frozenset({b"/f2"}), take=lambda kind: clock.take(took[kind]))
    files = Files([FileSlot(path=b"/f%d" % i, writable=True, uses=100) for i in range(3)], backend)
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


@pytest.mark.parametrize(  # A crowd keeps the slack where lateness does not add up; a lane that may spin has none.
    ("spinning", "pace", "slack_ns"),
    [(0, LoopPace.ABSOLUTE, 40_000), (0, LoopPace.THINK, 1), (2, LoopPace.ABSOLUTE, 1)],
)
def test_the_timer_slack_of_a_lane(clock, spinning, pace, slack_ns):
    """Of the thread (prctl(2)) during a call of its lane, and after the end what it was before."""
    set_slack, get_slack = 29, 30
    system, before = ctypes.CDLL(None), ctypes.CDLL(None).prctl(get_slack, 0, 0, 0, 0)
    system.prctl(set_slack, 40_000, 0, 0, 0)
    let_lanes_spin(spinning)
    try:
        found = []
        lane, backend = fake_lane(clock, pace=pace)
        backend.take = lambda kind: found.append(system.prctl(get_slack, 0, 0, 0, 0))
        finish(lane, (READ_AT, 0, 0, 1))
        assert [found[-1], system.prctl(get_slack, 0, 0, 0, 0)] == [slack_ns, 40_000]
    finally:
        system.prctl(set_slack, before, 0, 0, 0)
        let_lanes_spin(LEAST_SPINNING_LANES)


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
    done = finish(lane, (WRITE_AT, 0, 0, 1), *late)
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
    done = finish(lane, (READ_AT, 0, 0, 1, 50_000), (READ_AT, 0, 0, 1, 70_000), (SLEEP, -1, 0, 500_000))
    assert done.due_ns[0] == 50_000
    assert done.due_ns[1:].tolist() == [done.end_ns[0] + 70_000, done.end_ns[1]]
    # Compute begins when the read has ended, whenever the lane comes to it.
    assert done.end_ns[2] == done.due_ns[2] + 500_000


def test_an_error_costs_no_call(clock):
    lane, backend = fake_lane(clock)
    items = [(READ_AT, 2, 0, 1), (WRITE_AT, 2, 0, 1), (READ_AT, 1, -1, 1), (READ_AT, 1, 0, 1)]
    assert finish(lane, *items).result.tolist() == [-errno.ENOENT, -errno.ENOENT, -errno.EINVAL, 1]
    assert backend.calls == [("open", b"/f2"), ("open", b"/f1"), ("read", b"/f1", 0, 1)]


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
    assert finish(lane, (MARK, -1), (READ_AT, 0, 0, 1, HOUR_NS)).count == 1
    assert len(clock.sleeps) == 4
    assert clock.time_ns <= T0 + 4 * PIECE_NS + 100
    assert backend.calls == [("open", b"/f0")]


BOTH = "open 0, open 1"


@pytest.mark.parametrize(
    ("items", "took", "result", "calls"),
    [
        # An open is its own latency, and what a sync needs is not.
        ([(OPEN, 0), (SYNC, 1)], [1000, 7], [0, 0], f"{BOTH}, sync 1"),
        # A rename closes both files first.
        ([(OPEN, 0), (OPEN, 1), (RENAME, 0, 1)], [1000, 1000, 7], [0] * 3, f"{BOTH}, close 0, close 1, rename 0 1"),
        # A missing file fails in its own time.
        ([(OPEN, 2), (SEEK, 2, 5)], [1000, 0], [-errno.ENOENT] * 2, "open 2, open 2"),
    ],
)
def test_durations_and_calls_of_items_without_waits(clock, items, took, result, calls):
    clock.set(read_ns=0)
    lane, backend = fake_lane(clock, pace=LoopPace.NONE, open_ns=1000, transfer_ns=7)
    done = finish(lane, *items)
    assert ((done.end_ns - done.begin_ns).tolist(), done.result.tolist()) == (took, result)
    made = b", ".join(b" ".join([call[0].encode(), *call[1:]]) for call in backend.calls)
    assert made.decode().replace("/f", "") == calls


# ------------------------------------------------------------------------------------------------- the jitter probe


def stalled(clock, stop):
    if len(clock.sleeps) == 1:
        clock.take(10_000_000)
    else:
        stop.set()


def after_20(clock, stop):
    if len(clock.sleeps) == 20:
        stop.set()


@pytest.mark.parametrize(
    ("oversleep_ns", "on_sleep", "late_ns"),
    [
        (WINDOW_NS + 140_000, after_20, [141_000] * 19),  # what the sleep took too long, and a look of 1 us
        (0, after_20, [0] * 19),  # a punctual sleep leaves the spin
        # A stall of 10 ms at 1000/s: each missed time has its own lateness.
        (0, stalled, [0, *range(1_000_000, 10_000_000, 1_000_000)]),
    ],
)
def test_lateness_of_a_probe(clock, oversleep_ns, on_sleep, late_ns):
    clock.set(read_ns=1_000, oversleep_ns=oversleep_ns)
    stop, counts = StopFlag(), np.zeros(BUCKETS, dtype=np.int64)
    clock.on_sleep = lambda deadline_ns: on_sleep(clock, stop)
    latest_ns = record_lateness(counts, np.zeros((0, 2), dtype=np.int64), stop, 1_000_000, 1.0)
    found = np.flatnonzero(counts)
    assert np.repeat(bucket_middle_ns(found), counts[found]) == pytest.approx(np.array(late_ns), rel=0.02, abs=2_000)
    assert latest_ns == pytest.approx(late_ns[-1], rel=0.001, abs=1_000)
