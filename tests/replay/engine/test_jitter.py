"""The jitter probe: buckets, and the probe on the real clock. Exact lateness: `on_fake_clock`."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.issue import bucket_of
from dxt_replay.replay.engine.jitter import (
    BUCKETS,
    EXACT_BUCKETS,
    JitterProbe,
    bucket_middle_ns,
)
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.records import percentiles_us

times = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 62).map(lambda bit: 1 << bit))


@given(times)
def test_a_bucket_stands_for_what_it_counts(value):
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS
    middle = bucket_middle_ns(np.array([bucket]))[0]
    assert abs(middle - value) <= value / 64
    if value < EXACT_BUCKETS:
        assert middle == value


def test_the_lateness_of_several_nodes_adds():
    probes = [JitterProbe(), JitterProbe()]
    for probe, late_ns in zip(probes, (141_000, 901_000), strict=True):
        probe._counts[bucket_of(late_ns)] = 19
        probe._max_ns = late_ns
    both = sum((probe.lateness_ns() for probe in probes), Distribution())
    assert both.count == 38
    assert both.quantile(0.25) == pytest.approx(141_000, rel=1 / 64)
    assert both.quantile(0.75) == pytest.approx(901_000, rel=1 / 64)
    assert (both.minimum, both.maximum) == pytest.approx((141_000, 901_000))
    assert both.mean == pytest.approx((141_000 + 901_000) / 2)


def test_a_probe_stopped_at_once_has_made_one_wait():
    probe = JitterProbe()
    probe.start()
    probe.stop()
    probe.stop()
    assert probe.count >= 1
    result = percentiles_us(probe.lateness_ns())
    assert list(result) == ["p50", "p90", "p99", "max"]
    assert 0 <= result["p50"] <= result["p90"] <= result["p99"] <= result["max"]


def test_a_probe_runs_beside_the_program():
    probe = JitterProbe(rate_per_s=10_000)
    probe.start()
    while probe.count < 10:
        time.sleep(0)
    probe.stop()
    assert probe.count >= 10
