"""Both tests against SciPy, against all orders, and against simulated experiments whose truth is known; the rule."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dxt_replay.replay.regress.statistics import (
    ALPHA,
    EXACT,
    MAX_PAIRS,
    Ratio,
    Rule,
    Verdict,
    change_text,
    exceeding,
    headline,
    holm,
    judge,
    least_pairs,
    least_runs,
    null_cumulative,
    paired_ratio,
    unpaired_ratio,
)

LOGS = st.lists(st.floats(-2, 2, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6), min_size=1)
RANKS = st.lists(st.integers(1, 4), min_size=1, max_size=5)
EXPERIMENTS = 1000
RULE = Rule()


@pytest.mark.parametrize("pairs", [1, 3, 6, 10, 25, 50])
def test_p_values_of_pairs_equal_those_of_scipy(pairs):
    rng = np.random.default_rng(pairs)
    for shift in (0.0, 0.05, 0.3):
        logs = rng.normal(shift, 0.1, pairs)
        expected = stats.wilcoxon(logs, method="exact").pvalue
        assert paired_ratio(np.ones(pairs), np.exp(logs)).p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 4), (10, 10), (7, 20), (30, 30), (60, 70)])
@pytest.mark.parametrize("decimals", [9, 1])
def test_p_values_of_samples_equal_those_of_scipy(first, second, decimals):
    rng = np.random.default_rng(first * second)
    before, after = rng.lognormal(size=first), rng.lognormal(0.4, size=second)
    if exact := first + second <= EXACT:
        decimals = 9  # SciPy's exact p-values know no ties
    before, after = (np.maximum(np.round(values, decimals), 0.1) for values in (before, after))
    expected = stats.mannwhitneyu(after, before, method="exact" if exact else "asymptotic").pvalue
    assert unpaired_ratio(before, after).p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [[1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 2, 2, 3, 3, 3], [0, 0, 1, 1, 2, 3, 4, 5]])
def test_over_all_orders_a_p_value_is_small_no_more_often_than_it_says(size):
    """Ties and zeros too: where nothing changed every sign is as likely as its opposite."""
    p_values = []
    for signs in itertools.product((-1, 1), repeat=len(size)):
        ratios = 1 + 0.01 * np.array(size)
        slower = np.array(signs) > 0  # equal differences stay equal to the last bit
        before, after = np.where(slower, 1.0, ratios), np.where(slower, ratios, 1.0)
        p_values.append(paired_ratio(before, after).p_value)
    for level in sorted(set(p_values)):
        assert np.mean(np.array(p_values) <= level) <= level + 1e-12


@given(RANKS, RANKS)
def test_with_ties_the_p_value_is_that_of_all_orders(before, after):
    ranks = stats.rankdata([*after, *before])
    sums = np.array([ranks[list(chosen)].sum() for chosen in itertools.combinations(range(len(ranks)), len(after))])
    found = ranks[: len(after)].sum()
    tails = (sums <= found + 1e-9).mean(), (sums >= found - 1e-9).mean()
    assert unpaired_ratio(before, after).p_value == pytest.approx(min(2 * min(tails), 1.0))


@given(LOGS, st.floats(0.01, 0.3))
def test_the_interval_of_pairs_holds_the_estimate_and_agrees_with_the_p_value(logs, alpha):
    found, back = paired_ratio(np.ones(len(logs)), np.exp(logs), alpha), paired_ratio(np.exp(logs), np.ones(len(logs)))
    assert back.ratio == pytest.approx(1 / found.ratio)
    assert back.p_value == pytest.approx(found.p_value)
    if found.low is None or found.high is None:
        assert len(logs) < least_pairs(alpha)
        return
    assert len(logs) >= least_pairs(alpha)
    assert found.low * (1 - 1e-12) <= found.ratio <= found.high * (1 + 1e-12)
    sizes = np.abs(logs)
    if len(np.unique(sizes)) == len(logs) and sizes.all():
        assert (found.low > 1 or found.high < 1) == (found.p_value <= alpha)


@pytest.mark.parametrize(("first", "second"), [(6, 0), (10, 0), (20, 0), (6, 6), (12, 5), (40, 40)])
def test_the_interval_covers_the_truth_as_often_as_it_says(first, second):
    """`second`: runs of the other sample; 0 for pairs, in which a drift of the machine is the same for both."""
    rng, trials, covered, truth = np.random.default_rng(17 * first), 500, 0, 1.1
    for _ in range(trials):
        if second:
            found = unpaired_ratio(rng.lognormal(0, 0.2, first), truth * rng.lognormal(0, 0.2, second))
        else:
            drift = np.cumsum(rng.normal(0, 0.05, first))
            before, after = np.exp(drift + 0.03 * rng.standard_t(3, (2, first)))
            found = paired_ratio(before, truth * after)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


def test_few_equal_and_many():
    assert (least_pairs(), least_pairs(0.0625), least_runs(10), least_runs(4), least_runs(0)) == (6, 5, 2, 4, None)
    five, six = (paired_ratio(np.ones(n), np.linspace(1.1, 1.2, n)) for n in (5, 6))
    assert (five.low, five.high, five.minimum_detectable, five.p_value) == (None, None, None, 2 / 2**5)
    assert (six.low, six.high) == (pytest.approx(1.1), pytest.approx(1.2))
    assert unpaired_ratio([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0]).low is None
    equal = paired_ratio([2.0] * 8, [2.0] * 8)
    assert (equal.ratio, equal.low, equal.high, equal.p_value, equal.minimum_detectable) == (1, 1, 1, 1, 1)
    logs = np.random.default_rng(3).normal(0.02, 0.1, MAX_PAIRS)
    most = paired_ratio(np.ones(MAX_PAIRS), np.exp(logs))
    assert most.low is not None
    assert 1 < most.low < most.ratio < 1.04


@pytest.mark.parametrize(("first", "second"), [(2, 3), (20, 25)])
def test_the_probability_of_comparisons_in_favour(first, second):
    counts = [exceeding(count, first, second) for count in range(first * second + 1)]
    assert (counts[0], counts[-1]) == (1, pytest.approx(1 / math.comb(first + second, first)))
    assert np.all(np.diff(counts) < 0)
    assert null_cumulative(first, second)[-1] == pytest.approx(1)


@given(st.lists(st.floats(0, 1), min_size=1))
def test_an_adjusted_p_value_is_no_smaller_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_size = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert by_size == sorted(by_size)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def found(low, ratio, high, pairs=10, detectable=1.02):
    return Ratio(count=pairs, least=6, ratio=ratio, low=low, high=high, p_value=0.01, minimum_detectable=detectable)


@pytest.mark.parametrize(
    ("low", "ratio", "high", "choices", "verdict"),
    [
        (1.02, 1.08, 1.15, {}, "regression"),
        (1.001, 1.05, 1.1, {}, "regression"),
        (0.999, 1.08, 1.15, {}, "inconclusive"),
        (1.01, 1.04, 1.07, {}, "inconclusive"),
        (1.01, 1.02, 1.03, {}, "no change"),
        (0.96, 1.0, 1.04, {}, "no change"),
        (0.94, 1.0, 1.04, {}, "inconclusive"),
        (0.96, 1.0, 1.06, {}, "inconclusive"),
        (0.85, 0.9, 0.95, {}, "improvement"),
        (0.85, 0.9, 1.01, {}, "inconclusive"),
        (None, 2.0, None, {}, "inconclusive"),
        (1.1, 1.2, 1.3, {"more_is_better": True}, "improvement"),
        (0.7, 0.8, 0.9, {"more_is_better": True}, "regression"),
        # an adjusted p-value can forbid a verdict but makes none
        (1.02, 1.08, 1.15, {"p_value": 0.06}, "inconclusive"),
        (0.99, 1.08, 1.15, {"p_value": 0.001}, "inconclusive"),
        (0.99, 1.0, 1.01, {"p_value": 0.9}, "no change"),
        (1.02, 1.08, 1.15, {"p_value": 0.04}, "slower"),
        (0.85, 0.9, 0.95, {"p_value": 0.04}, "faster"),
    ],
)
def test_the_rule(low, ratio, high, choices, verdict):
    assert judge(found(low, ratio, high), RULE, **choices).verdict.value == verdict


def test_the_reasons_and_how_many_pairs_are_needed():
    assert "+2.0 % is certain but below the threshold" in judge(found(1.01, 1.02, 1.03), RULE).reason
    assert "certain" not in judge(found(0.99, 1.0, 1.01), RULE).reason
    # What would not have shown is not said to be absent.
    assert judge(found(0.96, 1.0, 1.04, detectable=1.0499), RULE).verdict is Verdict.NO_CHANGE
    assert judge(found(1.5, 2.0, 2.5, detectable=1.4), RULE).verdict is Verdict.REGRESSION
    unseen = judge(found(0.96, 1.0, 1.04, detectable=1.05**2), RULE)
    assert "might not have shown" in unseen.reason
    # The interval reaches twice as far as it may: four times the pairs.
    far, wide = judge(found(1.1**-1, 1.1, 1.1**3), RULE), judge(found(1.05**-2, 1.0, 1.05**2), RULE)
    for doubtful in (unseen, far, wide):
        assert (doubtful.verdict, doubtful.pairs_needed in (40, 41)) == (Verdict.INCONCLUSIVE, True)
        assert str(doubtful.pairs_needed) in doubtful.reason
    assert judge(found(None, 2.0, None, pairs=3), RULE).pairs_needed == 6
    assert judge(found(0.98, math.exp(RULE.margin * (1 - 1e-9)), 1.12), RULE).pairs_needed is None
    assert "10 % or more" in Rule(threshold_pct=10).text


ALARMS = ("regression", "improvement")


@pytest.mark.parametrize(
    ("pairs", "spread", "truth", "verdicts", "least", "most"),
    [
        *((pairs, spread, 1.0, ALARMS, 0, ALPHA) for pairs in (6, 10, 20) for spread in (0.01, 0.05, 0.2)),
        (10, 0.03, 1.1, ["regression"], 0.95, 1),
        (20, 0.10, 1.1, ["regression"], 0.90, 1),
        (10, 0.03, 1 / 1.1, ["improvement"], 0.95, 1),
        (10, 0.02, 1.0, ["no change"], 0.95, 1),
        (10, 0.3, 1.0, ["inconclusive"], 0.90, 1),
        (10, 0.3, 1.05, ["inconclusive"], 0.90, 1),
        *((10, spread, 1.05 * 1.001, ["no change"], 0, ALPHA) for spread in (0.01, 0.05, 0.2)),
    ],
)
def test_changes_are_found_and_noise_is_not(pairs, spread, truth, verdicts, least, most):
    """Experiments on a machine that drifts, with heavy tails; `spread`: of log(candidate / baseline)."""
    rng, found = np.random.default_rng(pairs), 0
    for _ in range(EXPERIMENTS):
        drift = np.cumsum(rng.normal(0, 0.05, pairs))
        noise = spread / math.sqrt(2) * rng.standard_t(5, (2, pairs)) / math.sqrt(5 / 3)
        before, after = np.exp(drift + noise)
        found += judge(paired_ratio(before, truth * after), RULE).verdict.value in verdicts
    chance = 3 * math.sqrt(ALPHA * (1 - ALPHA) / EXPERIMENTS) if most == ALPHA else 0
    assert least <= found / EXPERIMENTS <= most + chance


def test_the_inverse_is_said_of_a_metric_that_is_better_when_larger():
    """`tests/golden` has the other sentences."""
    said = headline(Verdict.REGRESSION, "", found(0.75, 0.8, 0.85), more_is_better=True)
    assert said == "The candidate is 25.0 % slower (17.6 to 33.3 %): regression."
    said = headline(Verdict.IMPROVEMENT, "", found(0.2, 0.25, 0.4), more_is_better=False)
    assert said == "The candidate is 4.0 times faster (2.5 to 5.0): improvement."
    texts = {1.031: "+3.1 %", 0.5: "-50.0 %", 66.24: "66.2 x", 248.2: "248 x"}
    assert {ratio: change_text(ratio) for ratio in texts} == texts
