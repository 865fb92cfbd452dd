"""Against scipy, against all sign patterns, and against simulated experiments whose truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dxt_replay.replay.regression.ratio import holm
from dxt_replay.replay.regression.signed_rank import MAX_PAIRS, least_pairs, paired_ratio

differences = st.lists(st.floats(-2, 2, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6), min_size=1)


@pytest.mark.parametrize("pairs", [1, 3, 6, 10, 25, 50])
def test_p_values_equal_those_of_scipy(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    for shift in (0.0, 0.05, 0.3):
        logs = rng.normal(shift, 0.1, pairs)
        expected = stats.wilcoxon(logs, method="exact").pvalue
        assert paired_ratio(np.ones(pairs), np.exp(logs), 0.05).p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [[1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 2, 2, 3, 3, 3], [0, 0, 1, 1, 2, 3, 4, 5]])
def test_over_all_orders_a_p_value_is_small_no_more_often_than_it_says(size: list[float]) -> None:
    """Ties and zeros too: where nothing changed every sign is as likely as its opposite."""
    p_values = []
    for signs in itertools.product((-1, 1), repeat=len(size)):
        ratios = 1 + 0.01 * np.array(size)
        slower = np.array(signs) > 0  # equal differences stay equal to the last bit
        before, after = np.where(slower, 1.0, ratios), np.where(slower, ratios, 1.0)
        p_values.append(paired_ratio(before, after, 0.05).p_value)
    for level in sorted(set(p_values)):
        assert np.mean(np.array(p_values) <= level) <= level + 1e-12


@given(differences, st.floats(0.01, 0.3))
def test_the_interval_holds_the_estimate_and_agrees_with_the_p_value(logs: list[float], alpha: float) -> None:
    found = paired_ratio(np.ones(len(logs)), np.exp(logs), alpha)
    if found.low is None or found.high is None:
        assert len(logs) < least_pairs(alpha)
        return
    assert len(logs) >= least_pairs(alpha)
    assert found.low <= found.ratio * (1 + 1e-12)
    assert found.ratio <= found.high * (1 + 1e-12)
    sizes = np.abs(logs)
    if len(np.unique(sizes)) == len(logs) and sizes.all():
        assert (found.low > 1 or found.high < 1) == (found.p_value <= alpha)


@given(differences)
def test_sides_changed_over_give_the_inverse(logs: list[float]) -> None:
    there = paired_ratio(np.ones(len(logs)), np.exp(logs), 0.1)
    back = paired_ratio(np.exp(logs), np.ones(len(logs)), 0.1)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.p_value == pytest.approx(there.p_value)
    if there.low is not None and there.high is not None:
        assert (back.low, back.high) == (pytest.approx(1 / there.high), pytest.approx(1 / there.low))


def test_one_outlier_does_not_decide() -> None:
    logs = np.array([0.001, -0.002, 0.003, -0.001, 0.002, -0.003, 0.0005, -0.0005, 0.0015, 3.0])
    found = paired_ratio(np.ones(10), np.exp(logs), 0.05)
    assert found.ratio == pytest.approx(1.0, abs=0.01)
    assert found.p_value > 0.3


@pytest.mark.parametrize("pairs", [6, 10, 20])
@pytest.mark.parametrize("truth", [1.0, 1.1])
def test_the_interval_covers_the_truth_as_often_as_it_says(pairs: int, truth: float) -> None:
    rng = np.random.default_rng(17 * pairs)
    experiments = 1000
    covered = 0
    for _ in range(experiments):
        drift = np.cumsum(rng.normal(0, 0.05, pairs))  # of the machine, the same for both of a pair
        before, after = np.exp(drift + 0.03 * rng.standard_t(3, (2, pairs)))
        found = paired_ratio(before, truth * after, 0.05)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / experiments >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / experiments)


@pytest.mark.parametrize("pairs", [10, 20, 40])
def test_a_change_of_the_minimum_detectable_size_is_found_8_times_in_10(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    told = [paired_ratio(np.ones(pairs), np.exp(rng.normal(0, 0.04, pairs)), 0.05) for _ in range(500)]
    change = float(np.median([found.minimum_detectable for found in told if found.minimum_detectable is not None]))
    again = [paired_ratio(np.ones(pairs), change * np.exp(rng.normal(0, 0.04, pairs)), 0.05) for _ in range(1000)]
    power = np.mean([found.low is not None and found.low > 1 for found in again])
    assert 0.72 <= power <= 0.88


def test_few_pairs_have_no_interval() -> None:
    assert least_pairs(0.05) == 6
    assert least_pairs(0.0625) == 5
    five, six = (paired_ratio(np.ones(n), np.linspace(1.1, 1.2, n), 0.05) for n in (5, 6))
    assert (five.low, five.high, five.minimum_detectable) == (None, None, None)
    assert five.p_value == 2 / 2**5
    assert (six.low, six.high) == (pytest.approx(1.1), pytest.approx(1.2))


def test_equal_measurements_tell_that_they_are_equal() -> None:
    found = paired_ratio([2.0] * 8, [2.0] * 8, 0.05)
    assert (found.ratio, found.low, found.high, found.p_value, found.minimum_detectable) == (1, 1, 1, 1, 1)


def test_as_many_pairs_as_may_be() -> None:
    rng = np.random.default_rng(3)
    found = paired_ratio(np.ones(MAX_PAIRS), np.exp(rng.normal(0.02, 0.1, MAX_PAIRS)), 0.05)
    assert found.low is not None
    assert 1 < found.low < found.ratio < 1.04


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0]), ([math.nan], [1.0]), ([1.0] * 1001, [1.0] * 1001)],
)
def test_what_has_no_ratio_is_refused(baseline: list[float], candidate: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|above 0"):
        paired_ratio(baseline, candidate, 0.05)


def test_holm() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1))
def test_an_adjusted_p_value_is_no_smaller_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_size = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert by_size == sorted(by_size)
