from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.calibration.probe_plan import (
    GAP_BYTES,
    Kind,
    Probe,
    plan_time,
    random_order,
    scouting_order,
    spread_offsets,
)
from dxt_replay.traces.errors import UsageError


@pytest.mark.parametrize("seconds", [0.0, 0.5, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_too_short_or_absurd_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"give 0\.017 to 1440 minutes"):
        plan_time(seconds)


@given(st.floats(1.0, 86_400.0))
def test_the_parts_fit_into_the_whole(seconds: float) -> None:
    plan = plan_time(seconds)
    assert plan.fill_s + 4 * plan.burst_s < 0.35 * seconds or seconds < 5
    of_files = set(Kind) - {Kind.GET, Kind.FIRST_BYTE, Kind.PUT, Kind.HEAD, Kind.LIST, Kind.COPY}
    assert {probe.kind for probe in plan.probes} == of_files
    for kind in of_files:
        assert any(probe.kind is kind and probe.in_flight == 1 for probe in plan.probes)
    if seconds >= 5:
        assert plan.slice_s * len(plan.probes) < seconds


def test_more_time_measures_more() -> None:
    assert len(plan_time(2).probes) < len(plan_time(20).probes) < len(plan_time(180).probes)


def test_a_round_has_every_probe_once() -> None:
    probes = plan_time(180).probes
    scouted = scouting_order(probes)
    later = random_order(probes, np.random.default_rng(1))
    assert set(scouted) == set(later) == set(probes)
    assert len(later) == len(probes)
    assert later != scouted
    assert [probe.bytes_in_flight for probe in scouted] == sorted(probe.bytes_in_flight for probe in probes)


def test_a_probe_exceeds_another_of_its_kind() -> None:
    small = Probe(kind=Kind.COLD_READ, size=4096, in_flight=4)
    assert Probe(kind=Kind.COLD_READ, size=8192, in_flight=4).exceeds(small)
    assert not small.exceeds(small)
    assert not Probe(kind=Kind.COLD_READ, size=8192, in_flight=2).exceeds(small)
    assert not Probe(kind=Kind.WRITE, size=8192, in_flight=4).exceeds(small)


@given(st.integers(0, 1 << 24), st.integers(1, 1 << 20), st.integers(0, 100))
def test_cold_reads_never_touch_each_other(file_bytes: int, size: int, seed: int) -> None:
    offsets = np.sort(spread_offsets(file_bytes, size, np.random.default_rng(seed)))
    assert not len(offsets) or (offsets[0] > 0 and offsets[-1] + size <= file_bytes)
    assert (np.diff(offsets) >= size + GAP_BYTES).all()
