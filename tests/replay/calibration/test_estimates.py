from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.calibration.estimates import Estimate, Measured


def test_few_trials_give_the_whole_range() -> None:
    found = Estimate.of([3.0, 1.0, 2.0])
    assert (found.value, found.low, found.high, found.trials) == (2.0, 1.0, 3.0, 3)
    assert found.half_width == pytest.approx(0.5)
    assert Estimate.of([4.0]).half_width == 0.0


def test_the_interval_holds_the_median_as_often_as_promised() -> None:
    """Of a skewed distribution too: nothing is assumed about it. One outlier of 12 does not widen the interval."""
    random = np.random.default_rng(5)
    true = np.log(2.0)
    held = 0
    for _ in range(1000):
        found = Estimate.of(random.exponential(size=12))
        held += found.low <= true <= found.high
    assert held > 935
    assert Estimate.of([*range(1, 12), 1e9]).high == 10.0


def test_a_measured_call_has_the_median_of_its_trials_means() -> None:
    trials = [np.array([100, 300]), np.array([200, 200, 200]), np.array([1000])]
    found = Measured.of("read", "cold", 4096, 2, trials)
    assert found.time_ns.value == 200.0
    assert found.requests == 6
    assert found.bytes_per_s == pytest.approx(2 * 4096 / 200e-9)
    assert sorted(found.spread) == list(found.spread)
    assert np.mean(found.spread) == pytest.approx(1.0)
    assert found.as_json()["mean_us"] == {
        "value": pytest.approx(0.2),
        "low": pytest.approx(0.2),
        "high": pytest.approx(1.0),
        "trials": 3,
    }


def test_what_trials_differ_by_does_not_shrink_with_their_number() -> None:
    """The interval of the median does: it says how well that is known, and not what a run may meet."""
    few, many = (
        Measured.of("read", "cold", 4096, 1, [np.full(10, each) for each in np.linspace(0.8, 1.2, count) * 1e6])
        for count in (10, 200)
    )
    assert few.between_trials == pytest.approx(0.2)
    assert many.between_trials == pytest.approx(0.18, abs=0.005)
    assert many.time_ns.half_width < 0.05
