"""The ratio of two samples: against SciPy, enumeration and simulated experiments."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dxt_replay.replay.regression.rank_sum import EXACT, exceeding, least_runs, null_cumulative, unpaired_ratio

VALUES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 4), (10, 10), (7, 20), (30, 30), (60, 70)])
def test_the_p_value_is_that_of_scipy(first: int, second: int) -> None:
    rng = np.random.default_rng(first * second)
    before, after = rng.lognormal(size=first), rng.lognormal(0.4, size=second)
    method = "exact" if first + second <= EXACT else "asymptotic"
    expected = stats.mannwhitneyu(after, before, method=method).pvalue
    assert unpaired_ratio(before, after, 0.05).p_value == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_with_ties_the_p_value_is_that_of_all_orders(before: list[int], after: list[int]) -> None:
    ranks = stats.rankdata([*after, *before])
    sums = np.array([ranks[list(chosen)].sum() for chosen in combinations(range(len(ranks)), len(after))])
    found = ranks[: len(after)].sum()
    tails = (sums <= found + 1e-9).mean(), (sums >= found - 1e-9).mean()
    assert unpaired_ratio(before, after, 0.05).p_value == pytest.approx(min(2 * min(tails), 1.0))


@given(VALUES, VALUES, st.floats(0.1, 10))
def test_it_is_a_ratio(before: list[float], after: list[float], factor: float) -> None:
    found = unpaired_ratio(before, after, 0.05)
    scaled = unpaired_ratio(before, [value * factor for value in after], 0.05)
    assert scaled.ratio == pytest.approx(found.ratio * factor, rel=1e-9)
    assert unpaired_ratio(after, before, 0.05).ratio == pytest.approx(1 / found.ratio, rel=1e-9)
    if found.low is not None and found.high is not None:
        assert found.low <= found.ratio <= found.high


@pytest.mark.parametrize(("first", "second"), [(6, 6), (12, 5), (40, 40)])
def test_the_interval_covers_the_true_ratio_as_often_as_promised(first: int, second: int) -> None:
    rng = np.random.default_rng(11)
    trials, covered = 400, 0
    for _ in range(trials):
        found = unpaired_ratio(rng.lognormal(0, 0.2, first), 1.3 * rng.lognormal(0, 0.2, second), 0.05)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.3 <= found.high
    assert covered / trials > 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


def test_as_few_runs_as_it_takes() -> None:
    assert least_runs(10, 0.05) == 2
    assert least_runs(4, 0.05) == 4
    assert least_runs(0, 0.05) is None
    assert unpaired_ratio([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0], 0.05).low is None
    assert unpaired_ratio([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], 0.05).low is not None


@pytest.mark.parametrize(("first", "second"), [(2, 3), (5, 5), (20, 25)])
def test_the_probability_of_comparisons_in_favour(first: int, second: int) -> None:
    counts = [exceeding(count, first, second) for count in range(first * second + 1)]
    assert counts[0] == 1
    assert np.all(np.diff(counts) < 0)
    assert counts[-1] == pytest.approx(1 / math.comb(first + second, first))
    assert null_cumulative(first, second)[-1] == pytest.approx(1)


@pytest.mark.parametrize(("before", "after"), [([], [1.0]), ([1.0], [0.0]), ([1.0], [math.inf]), ([math.nan], [1.0])])
def test_what_has_no_ratio_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"give 1 to|above 0"):
        unpaired_ratio(before, after, 0.05)
