"""The jitter probe: buckets, exact lateness by a fake clock, and both cores on the real one."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.clock import WINDOW_NS
from dxt_replay.replay.engine.jitter import (
    BUCKETS,
    EXACT_BUCKETS,
    SUB_BUCKET_BITS,
    JitterProbe,
    bucket_middle_ns,
    bucket_of,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.lateness import percentiles_us
from dxt_replay.traces.measures.distribution import Distribution
from tests.fakes import FakeClock

times = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 62).map(lambda bit: 1 << bit))


@given(times)
def test_a_bucket_stands_for_what_it_counts(value):
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS
    middle = bucket_middle_ns(np.array([bucket]))[0]
    assert abs(middle - value) <= value / 64
    if value < EXACT_BUCKETS:
        assert middle == value


@given(times, times)
def test_buckets_keep_the_order(a, b):
    assert (bucket_of(a) <= bucket_of(b)) or a > b


def test_the_last_bucket_is_used():
    assert bucket_of(2**63 - 1) == BUCKETS - 1


@given(times)
def test_both_cores_agree_on_buckets(value):
    issue = pytest.importorskip("dxt_replay.replay.engine._issue")
    assert issue.bucket_index(value) == bucket_of(value)
    assert issue.CONSTANTS["SUB_BUCKET_BITS"] == SUB_BUCKET_BITS
    assert issue.CONSTANTS["EXACT_BUCKETS"] == EXACT_BUCKETS


def run_until_told(probe):
    """Let the probe run until something on its fake clock stops it."""
    probe.start()
    while not probe._stop.is_set():
        time.sleep(0)
    probe.stop()


def probe_with(clock, *, rate_per_s, waits):
    """A probe that has made so many waits on a fake clock, less the one in which it was stopped."""
    probe = JitterProbe(rate_per_s=rate_per_s, clock=clock)
    sleeps_per_wait = iter(range(1, waits))

    def stop_in_the_last(deadline_ns):
        if next(sleeps_per_wait, None) is None:
            probe._stop.set()

    clock.on_sleep = stop_in_the_last
    run_until_told(probe)
    return probe


def test_lateness_is_what_the_sleep_took_too_long():
    # Each sleep ends WINDOW + 140 us - window late, that is 140 us after the time waited for; a read takes 1 us.
    clock = FakeClock(read_ns=1_000, oversleep_ns=WINDOW_NS + 140_000)
    probe = probe_with(clock, rate_per_s=1_000, waits=20)
    assert probe.count == 19
    result = percentiles_us(probe.lateness_ns())
    assert result["max"] == pytest.approx(141)
    assert result["p50"] == pytest.approx(141, rel=1 / 64)


def test_a_punctual_sleep_leaves_the_spin():
    clock = FakeClock(read_ns=1_000, oversleep_ns=0)
    probe = probe_with(clock, rate_per_s=1_000, waits=20)
    assert 0 <= percentiles_us(probe.lateness_ns())["max"] < 1


def test_times_missed_in_a_stall_are_counted_with_their_lateness():
    clock = FakeClock(read_ns=1)
    stalls = [10_000_000]

    def stall(deadline_ns):
        if stalls:
            clock.time_ns += stalls.pop()
        else:
            probe._stop.set()

    probe = JitterProbe(rate_per_s=1_000, clock=clock)
    clock.on_sleep = stall
    run_until_told(probe)
    # 10 ms at 1000/s: the first wait is 9 ms late, the next 8 ms ...
    assert probe.count == 10
    result = percentiles_us(probe.lateness_ns())
    assert result["max"] == pytest.approx(9_000, rel=0.001)
    assert result["p50"] == pytest.approx(4_500, rel=0.02)


def test_the_lateness_of_several_nodes_adds():
    late = [
        probe_with(FakeClock(read_ns=1_000, oversleep_ns=WINDOW_NS + us * 1000), rate_per_s=1_000, waits=20)
        for us in (140, 900)
    ]
    both = sum((probe.lateness_ns() for probe in late), Distribution())
    assert both.count == sum(probe.count for probe in late) == 38
    assert both.quantile(0.25) == pytest.approx(141_000, rel=1 / 64)
    assert both.quantile(0.75) == pytest.approx(901_000, rel=1 / 64)
    assert (both.minimum, both.maximum) == pytest.approx((141_000, 901_000))
    assert both.mean == pytest.approx((141_000 + 901_000) / 2)


@pytest.mark.parametrize("core", ["python", "compiled"])
def test_a_probe_stopped_at_once_has_made_one_wait(core):
    if core == "compiled":
        pytest.importorskip("dxt_replay.replay.engine._issue")
    probe = JitterProbe(core=core)
    probe.start()
    probe.stop()
    probe.stop()
    assert probe.count >= 1
    result = percentiles_us(probe.lateness_ns())
    assert list(result) == ["p50", "p90", "p99", "max"]
    assert 0 <= result["p50"] <= result["p90"] <= result["p99"] <= result["max"]


@pytest.mark.parametrize("core", ["python", "compiled"])
def test_a_probe_runs_beside_the_program(core):
    if core == "compiled":
        pytest.importorskip("dxt_replay.replay.engine._issue")
    probe = JitterProbe(rate_per_s=10_000, core=core)
    probe.start()
    while probe.count < 10:
        time.sleep(0)
    probe.stop()
    assert probe.count >= 10


@pytest.mark.parametrize("rate", [0, -1, 9.9, 1e6, float("nan")])
def test_a_useless_rate_is_refused(rate):
    with pytest.raises(UsageError, match="10 to 100,000"):
        JitterProbe(rate_per_s=rate)
