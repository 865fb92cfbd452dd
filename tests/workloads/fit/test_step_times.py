from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.workloads.fit.step_times import computation, fit_family


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("normal", lambda rng: np.abs(rng.normal(0.3, 0.03, 3000))),
        ("uniform", lambda rng: rng.uniform(0.1, 0.5, 3000)),
        ("gamma", lambda rng: rng.gamma(1.8, 0.01, 3000)),
        ("exponential", lambda rng: rng.exponential(0.02, 3000)),
    ],
)
def test_the_family_that_times_were_drawn_from(name, draw, seed):
    times = draw(np.random.default_rng(seed))
    family = fit_family(times)
    # An exponential distribution is a gamma distribution of shape 1.
    assert family.name == name or (name == "exponential" and family.name == "gamma")
    assert family.ks < 0.05


def test_parameters_are_those_of_the_times():
    family = fit_family(np.random.default_rng(1).normal(0.3, 0.03, 5000))
    assert family.value == {"mean": pytest.approx(0.3, rel=0.01), "stdev": pytest.approx(0.03, rel=0.05)}


@given(st.floats(1e-6, 1e3), st.integers(1, 50))
def test_equal_times_are_constant(value, count):
    assert fit_family(np.full(count, value)).value == pytest.approx(value, rel=1e-4)


def test_first_steps_of_epochs_do_not_make_constant_times_vary():
    times = np.full(100, 0.25)
    times[[0, 50]] = 3.0
    assert fit_family(times).value == 0.25


def test_a_trend_and_slow_ranks_are_mentioned():
    found = computation("train.computation_time", [np.linspace(1e6, 2e6, 100), np.linspace(2e6, 4e6, 100)])
    assert "means of the ranks differ" in found.error
    assert "from the first to the last quarter" in found.error
