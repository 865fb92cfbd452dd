"""When items are due and begin: over both cores on a real clock, exactly over the Python loop on a fake clock."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from dxt_replay.replay.engine.backends.base import FileSlot, PythonFiles
from dxt_replay.replay.engine.clock import PIECE_NS, WINDOW_NS, StartGate, StopFlag, wait_until
from dxt_replay.replay.engine.issue import FEED_POLL_NS, PythonLane, make_files
from dxt_replay.replay.engine.items import MARK, READ_AT, SLEEP, WRITE_AT, LoopPace
from tests.fakes import FakeBackend, FakeClock, make_batch
from tests.replay.engine.issue_lanes import HOUR_NS, collect_all, core_fixture, data_fixture, run_lane  # noqa: F401

T0 = 5_000_000_000


# ---------------------------------------------------------------------------------------------- paces, on a real clock


def gaps(count):
    return [(i * 7919) % 90_000 for i in range(count)]


def test_absolute_items_are_due_at_their_time_and_never_earlier(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    due = np.cumsum(gaps(60))
    (completed,), _ = run_lane(files, make_batch(*((READ_AT, 0, 0, 10, int(d)) for d in due)), pace=LoopPace.ABSOLUTE)
    assert np.array_equal(completed.due_ns, due)
    assert np.all(completed.begin_ns >= due)
    assert np.all(completed.begin_ns[1:] >= completed.end_ns[:-1])


def test_think_items_are_due_a_gap_after_the_previous_end(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    first, second = (make_batch(*((READ_AT, 0, 0, 10, gap) for gap in gaps(30))) for _ in range(2))
    completed, _ = run_lane(files, first, second, pace=LoopPace.THINK)
    due, begin, end = (
        np.concatenate([getattr(done, name) for done in completed]) for name in ("due_ns", "begin_ns", "end_ns")
    )
    assert due[0] == gaps(1)[0]
    assert np.array_equal(due[1:], end[:-1] + (gaps(30) * 2)[1:])
    assert np.all(begin >= due)


def test_without_pace_items_are_due_when_they_begin(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    (completed,), _ = run_lane(
        files, make_batch(*((READ_AT, 0, 0, 10, HOUR_NS) for _ in range(60))), pace=LoopPace.NONE
    )
    assert np.array_equal(completed.due_ns, completed.begin_ns)
    assert np.all(completed.begin_ns[1:] >= completed.end_ns[:-1])


# ----------------------------------------------------------------------- the Python loop on a fake clock, exactly


def fake_lane(clock, *, pace=LoopPace.ABSOLUTE, slots=2, stop=None, **backend_options):
    """A Python lane over the fake back end, started at T0."""
    clock.time_ns = T0
    start = StartGate()
    start.open(T0)
    backend = FakeBackend(clock, **backend_options)
    files = PythonFiles([FileSlot(path=b"/f%d" % i, writable=True, uses=100) for i in range(slots)], backend)
    lane = PythonLane(files, pace=pace, start=start, stop=stop or StopFlag(), clock=clock)
    return lane, backend


def finish(lane, *batches):
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    lane.run()
    return collect_all(lane)


def test_a_wait_sleeps_to_the_window_in_pieces_then_spins():
    clock = FakeClock(0, read_ns=7)
    end = wait_until(clock, 120_000_000, 0, StopFlag())
    assert clock.sleeps == [PIECE_NS, 2 * PIECE_NS + 7, 120_000_000 - WINDOW_NS]
    assert 120_000_000 <= end < 120_000_000 + 7
    assert clock.time_ns == end


def test_a_wait_within_the_window_does_not_sleep():
    clock = FakeClock(0, read_ns=10)
    assert wait_until(clock, WINDOW_NS, 0, StopFlag()) == WINDOW_NS
    assert clock.sleeps == []


def test_a_sleep_that_ends_early_is_continued():
    clock = FakeClock(0, read_ns=1)
    clock.sleep_until = lambda deadline: setattr(clock, "time_ns", (clock.time_ns + deadline) // 2)
    assert wait_until(clock, 1_000_000, 0, StopFlag()) == 1_000_000


def test_begin_is_the_read_before_the_call_and_end_the_one_after():
    lane, backend = fake_lane(FakeClock(read_ns=1), transfer_ns=5_000)
    (done,) = finish(lane, make_batch((READ_AT, 0, 10, 20, 1_000_000), (WRITE_AT, 1, 30, 40, 2_000_000)))
    assert done.due_ns.tolist() == [1_000_000, 2_000_000]
    assert done.begin_ns.tolist() == [1_000_000, 2_000_000]
    assert done.end_ns.tolist() == [1_005_001, 2_005_001]
    assert [call for call in backend.calls if call[0] not in ("open", "close")] == [
        ("read", b"/f0", 10, 20),
        ("write", b"/f1", 30, 40),
    ]


def test_late_items_are_issued_at_once_and_the_schedule_does_not_move():
    lane, _ = fake_lane(FakeClock(read_ns=1), transfer_ns=3_000_000)
    (done,) = finish(lane, make_batch(*((READ_AT, 0, 0, 1, due) for due in (0, 1_000_000, 2_000_000, 20_000_000))))
    assert done.due_ns.tolist() == [0, 1_000_000, 2_000_000, 20_000_000]
    lag = done.begin_ns - done.due_ns
    assert lag.tolist() == [1, 2_000_003, 4_000_005, 0]


def test_opening_comes_before_the_wait_and_is_not_latency():
    lane, backend = fake_lane(FakeClock(read_ns=1), open_ns=400_000, transfer_ns=100)
    (done,) = finish(lane, make_batch((READ_AT, 0, 0, 1, 1_000_000), (READ_AT, 1, 0, 1, 1_200_000)))
    assert done.begin_ns[0] == 1_000_000
    assert (done.end_ns - done.begin_ns).tolist() == [101, 101]
    assert done.begin_ns[1] - done.due_ns[1] > 200_000  # the open took longer than the gap
    assert [call[0] for call in backend.calls] == ["open", "read", "open", "read"]


def test_think_time_counts_from_the_previous_end():
    lane, _ = fake_lane(FakeClock(read_ns=1), pace=LoopPace.THINK, transfer_ns=9_000)
    (done,) = finish(
        lane, make_batch((READ_AT, 0, 0, 1, 50_000), (READ_AT, 0, 0, 1, 70_000), (SLEEP, -1, 0, 500_000, 0))
    )
    assert done.due_ns[0] == 50_000
    assert done.due_ns[1:].tolist() == [done.end_ns[0] + 70_000, done.end_ns[1]]
    # Compute begins when the read has ended, whenever the lane comes to it.
    assert done.end_ns[2] == done.due_ns[2] + 500_000


def test_an_error_costs_no_call():
    lane, backend = fake_lane(FakeClock(), missing=frozenset({b"/f0"}))
    (done,) = finish(
        lane, make_batch((READ_AT, 0, 0, 1, 0), (WRITE_AT, 0, 0, 1, 0), (READ_AT, 1, -1, 1, 0), (READ_AT, 1, 0, 1, 0))
    )
    assert done.result.tolist() == [-errno.ENOENT, -errno.ENOENT, -errno.EINVAL, 1]
    assert backend.calls == [("open", b"/f0"), ("open", b"/f1"), ("read", b"/f1", 0, 1)]


@pytest.mark.parametrize(("due_ns", "starved"), [(0, 700_000), (400_000, 300_000), (900_000, 0)])
def test_starving_is_waiting_for_the_feeder_while_an_item_is_due(due_ns, starved):
    """The batch is there 0.7 ms after the start; its item could have begun at max(start, due)."""
    clock = FakeClock(read_ns=0, oversleep_ns=0)
    lane, _ = fake_lane(clock)

    def feed(deadline_ns):
        clock.read_ns = 1  # from now on a spin ends
        if deadline_ns >= T0 + 700_000 and not lane._no_more:
            clock.time_ns = T0 + 700_000
            lane.submit(make_batch((READ_AT, 0, 0, 1, due_ns)))
            lane.finish()

    clock.on_sleep = feed
    lane.run()
    assert lane.starved_ns == pytest.approx(starved, abs=max(FEED_POLL_NS, 700_000 >> 3) + 100)  # a look late at most
    assert (lane.starved_ns == 0) == (starved == 0)


def test_a_stop_in_a_long_wait_is_noticed_within_a_piece():
    stop = StopFlag()
    clock = FakeClock(read_ns=1)
    lane, backend = fake_lane(clock, stop=stop)
    clock.on_sleep = lambda deadline: stop.set() if len(clock.sleeps) == 3 else None
    (done,) = finish(lane, make_batch((MARK, -1, 0, 0, 0), (READ_AT, 0, 0, 1, HOUR_NS)))
    assert done.count == 1
    assert len(clock.sleeps) == 4
    assert clock.time_ns <= T0 + 4 * PIECE_NS + 100
    assert backend.calls == [("open", b"/f0")]


def test_a_bug_in_a_back_end_reaches_the_feeder_after_the_results():
    lane, backend = fake_lane(FakeClock())

    def broken(*arguments):
        raise ZeroDivisionError

    backend.write = broken
    for batch in (make_batch((READ_AT, 0, 0, 1, 0), (WRITE_AT, 0, 0, 1, 0)), make_batch((READ_AT, 0, 0, 1, 0))):
        lane.submit(batch)
    lane.finish()
    lane.run()
    assert lane.done
    assert lane.collect().result.tolist() == [1]
    with pytest.raises(ZeroDivisionError):
        lane.collect()


def test_a_failed_close_is_reported():
    lane, backend = fake_lane(FakeClock())

    def full(handle):
        raise OSError(errno.ENOSPC, "no space")

    backend.close = full
    finish(lane, make_batch((READ_AT, 1, 0, 1, 0)))
    lane._files._files.close_all()
    assert [(failure.slot, failure.call, failure.errno) for failure in lane._files._files.failures()] == [
        (1, "close", errno.ENOSPC)
    ]
