import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.pacing import LaneClock, Pace, Pacing
from dxt_replay.traces.errors import UsageError

GAPS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30)


def serial_lane(gaps, origin):
    """Starts and ends of operations with these (gap before, duration)."""
    time, starts, ends = origin, [], []
    for gap, duration in gaps:
        starts.append(time + gap)
        time = starts[-1] + duration
        ends.append(time)
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


@given(GAPS, st.integers(-(10**12), 10**12), st.integers(0, 30))
def test_timed_keeps_the_recorded_starts(gaps, origin, cut):
    starts, ends = serial_lane(gaps, origin)
    clock = LaneClock(Pacing(), origin)
    due = np.concatenate((clock.due_ns(starts[:cut], ends[:cut]), clock.due_ns(starts[cut:], ends[cut:])))
    assert np.array_equal(due, starts - origin)


@given(GAPS, st.integers(-(10**12), 10**12), st.integers(0, 30))
def test_think_keeps_the_gaps_across_batches(gaps, origin, cut):
    starts, ends = serial_lane(gaps, origin)
    clock = LaneClock(Pacing(pace=Pace.THINK), origin)
    due = np.concatenate((clock.due_ns(starts[:cut], ends[:cut]), clock.due_ns(starts[cut:], ends[cut:])))
    assert due.tolist() == [gap for gap, _ in gaps]


def test_think_never_waits_for_less_than_nothing():
    clock = LaneClock(Pacing(pace=Pace.THINK), 0)
    assert clock.due_ns(np.array([0, 5]), np.array([10, 20])).tolist() == [0, 0]


def test_none_is_due_at_once():
    starts, ends = serial_lane([(10, 5)] * 4, 100)
    assert not LaneClock(Pacing(pace=Pace.NONE), 0).due_ns(starts, ends).any()


def test_speed_halves_times_and_gaps():
    starts, ends = serial_lane([(10, 4), (20, 4)], 100)
    assert LaneClock(Pacing(speed=2.0), 100).due_ns(starts, ends).tolist() == [5, 17]
    assert LaneClock(Pacing(pace=Pace.THINK, speed=2.0), 100).due_ns(starts, ends).tolist() == [5, 10]
    assert Pacing(speed=2.0).recorded_ns(10) == 5


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(speed):
    with pytest.raises(UsageError, match="--speed"):
        Pacing(speed=speed)


def test_compute_and_gaps_are_scaled_apart():
    pacing = Pacing(pace=Pace.THINK, speed=2.0, compute_speed=4.0)
    durations = np.array([100, 3])
    assert pacing.compute_ns(durations).tolist() == [25, 1]
    assert pacing.io_ns(durations).tolist() == pacing.scaled_ns(durations).tolist() == [50, 2]
    assert (pacing.is_uniform, Pacing(speed=3.0).is_uniform) == (False, True)
    starts, ends = serial_lane([(100, 40), (20, 40)], 0)
    assert LaneClock(pacing, 0).due_ns(starts, ends).tolist() == [50, 10]
    assert LaneClock(pacing, 0, pacing.compute_ns).due_ns(starts, ends).tolist() == [25, 5]


@pytest.mark.parametrize("pace", [Pace.TIMED, Pace.NONE])
@pytest.mark.parametrize("apart", [{"compute_speed": 2.0}, {"io_speed": 1.0}])
def test_speeds_apart_need_a_pace_in_which_one_thing_follows_from_another(pace, apart):
    with pytest.raises(UsageError, match="need --pace steps or think"):
        Pacing(pace=pace, **apart)


@pytest.mark.parametrize("name", ["compute_speed", "io_speed"])
def test_a_speed_apart_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        Pacing(pace=Pace.THINK, **{name: float("nan")})
