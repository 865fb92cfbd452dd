from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector

WHOLE = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=60)
FINITE = st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=60)
RELATIVE_PRECISION = 1.001 * 2.0**-13


@given(WHOLE | FINITE)
def test_exact_distribution_agrees_with_numpy(sample: list[float]) -> None:
    values = np.array(sample)
    found = Distribution.of(values)
    assert found.exact
    assert found.count == len(sample)
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert found.median == np.median(values.astype(float))
    assert found.mean == pytest.approx(values.astype(float).mean(), rel=1e-12, abs=1e-6)


@given(WHOLE | FINITE, st.floats(0, 1))
def test_quantiles_follow_the_linear_rule_of_numpy(sample: list[float], share: float) -> None:
    expected = np.quantile(np.array(sample, dtype=float), share)
    assert Distribution.of(np.array(sample)).quantile(share) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_the_sum_of_integers_is_exact_and_does_not_overflow(sample: list[int]) -> None:
    assert Distribution.of(np.array(sample, dtype=np.int64)).total == sum(sample)


@given(FINITE, FINITE)
def test_distributions_add(one: list[float], other: list[float]) -> None:
    together = Distribution.of(np.array(one)) + Distribution.of(np.array(other))
    at_once = Distribution.of(np.array(one + other))
    np.testing.assert_array_equal(together.values, at_once.values)
    np.testing.assert_array_equal(together.counts, at_once.counts)
    assert together.total == pytest.approx(at_once.total, rel=1e-9, abs=1e-3)
    assert (together.minimum, together.maximum) == (at_once.minimum, at_once.maximum)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning:scipy")
@given(FINITE, FINITE)
def test_distances_equal_those_of_scipy(one: list[float], other: list[float]) -> None:
    a, b = np.array(one), np.array(other)
    here, there = Distribution.of(a), Distribution.of(b)
    assert here.ks(there) == pytest.approx(stats.ks_2samp(a, b, method="asymp").statistic, abs=1e-12)
    assert here.wasserstein(there) == pytest.approx(stats.wasserstein_distance(a, b), rel=1e-9, abs=1e-6)


def test_an_empty_distribution_has_no_numbers() -> None:
    empty, one = Distribution.of(np.empty(0)), Distribution.of(np.array([1]))
    assert empty.count == 0
    assert math.isnan(empty.mean)
    assert math.isnan(empty.median)
    assert math.isnan(empty.quantile(0.5))
    assert (empty.ks(empty), empty.ks(one), one.ks(empty)) == (0, 1, 1)
    assert empty.wasserstein(empty) == 0
    assert math.isnan(empty.wasserstein(one))
    assert (empty + one).count == (one + empty).count == 1


@given(st.lists(st.floats(1e-6, 1e12), min_size=30, max_size=80), st.integers(1, 20))
def test_beyond_the_limit_values_are_rounded_to_the_documented_precision(sample: list[float], limit: int) -> None:
    collector = DistributionCollector(limit=limit)
    for part in np.array_split(np.array(sample), 3):
        collector.add(part)
        collector.distribution()
    found = collector.distribution()
    if len(set(sample)) <= limit:
        assert found.exact
        return
    assert not found.exact
    assert (found.minimum, found.maximum) == (min(sample), max(sample))
    assert found.count == len(sample)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert found.quantile(share) == pytest.approx(np.quantile(sample, share), rel=RELATIVE_PRECISION)
    assert found.median == pytest.approx(np.median(sample), rel=RELATIVE_PRECISION)


@given(st.lists(st.sampled_from([0.0, -0.0, *range(40)]), min_size=1, max_size=90), st.integers(1, 40))
def test_values_are_exact_while_no_more_than_the_limit_are_distinct(sample: list[float], limit: int) -> None:
    collector = DistributionCollector(limit=limit, pending=8)
    for begin in range(0, len(sample), 3):
        collector.add(np.array(sample[begin : begin + 3], dtype=np.float64) / 7)
    found = collector.distribution()
    assert found.exact == (len(set(sample)) <= limit)
    assert found.count == len(sample)


def test_negative_and_zero_values_survive_rounding() -> None:
    collector = DistributionCollector(limit=1)
    collector.add(np.array([-3.25, 0.0, 7.5]))
    assert collector.distribution().values.tolist() == [-3.25, 0.0, 7.5]


@given(
    st.lists(st.lists(st.integers(-5, 300) | st.integers(-(1 << 60), 1 << 60), max_size=40), min_size=1, max_size=6),
    st.integers(1, 100),
    st.booleans(),
)
def test_parts_that_travel_add_up_to_the_whole(parts: list[list[int]], limit: int, travel: bool) -> None:
    whole, joined = (DistributionCollector(limit=limit, pending=16) for _ in range(2))
    for part in parts:
        values = np.array(part, dtype=np.int64)
        whole.add(values)
        later = DistributionCollector(limit=limit)
        later.add(values)
        joined.merge(pickle.loads(pickle.dumps(later)) if travel else later)
    expected, found = whole.distribution(), joined.distribution()
    assert (found.exact, found.total) == (expected.exact, sum(sum(part) for part in parts))
    assert (found.values.tolist(), found.counts.tolist()) == (expected.values.tolist(), expected.counts.tolist())
    if found.exact:
        values, counts = np.unique(np.concatenate(parts).astype(np.float64), return_counts=True)
        assert (found.values.tolist(), found.counts.tolist()) == (values.tolist(), counts.tolist())
