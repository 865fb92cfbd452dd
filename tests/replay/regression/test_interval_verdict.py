from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from dxt_replay.replay.regression.interval_verdict import Rule, Verdict, judge
from dxt_replay.replay.regression.ratio import Ratio
from dxt_replay.replay.regression.signed_rank import paired_ratio
from dxt_replay.traces.errors import UsageError

EXPERIMENTS = 1000
RULE = Rule(threshold_pct=5, alpha=0.05)


def found(low: float | None, ratio: float, high: float | None, pairs: int = 10, detectable: float = 1.02) -> Ratio:
    return Ratio(count=pairs, least=6, ratio=ratio, low=low, high=high, p_value=0.01, minimum_detectable=detectable)


@pytest.mark.parametrize(
    ("low", "ratio", "high", "verdict"),
    [
        (1.02, 1.08, 1.15, Verdict.REGRESSION),
        (1.001, 1.05, 1.1, Verdict.REGRESSION),
        (0.999, 1.08, 1.15, Verdict.INCONCLUSIVE),
        (1.01, 1.04, 1.07, Verdict.INCONCLUSIVE),
        (1.01, 1.02, 1.03, Verdict.NO_CHANGE),
        (0.96, 1.0, 1.04, Verdict.NO_CHANGE),
        (0.94, 1.0, 1.04, Verdict.INCONCLUSIVE),
        (0.96, 1.0, 1.06, Verdict.INCONCLUSIVE),
        (0.85, 0.9, 0.95, Verdict.IMPROVEMENT),
        (0.85, 0.9, 1.01, Verdict.INCONCLUSIVE),
        (None, 2.0, None, Verdict.INCONCLUSIVE),
    ],
)
def test_the_rule(low: float | None, ratio: float, high: float | None, verdict: Verdict) -> None:
    assert judge(found(low, ratio, high), RULE).verdict is verdict


def test_more_may_be_better() -> None:
    assert judge(found(1.1, 1.2, 1.3), RULE, more_is_better=True).verdict is Verdict.IMPROVEMENT
    assert judge(found(0.7, 0.8, 0.9), RULE, more_is_better=True).verdict is Verdict.REGRESSION


def test_an_adjusted_p_value_can_forbid_a_verdict_but_makes_none() -> None:
    assert judge(found(1.02, 1.08, 1.15), RULE, p_value=0.06).verdict is Verdict.INCONCLUSIVE
    assert judge(found(0.99, 1.08, 1.15), RULE, p_value=0.001).verdict is Verdict.INCONCLUSIVE
    assert judge(found(0.99, 1.0, 1.01), RULE, p_value=0.9).verdict is Verdict.NO_CHANGE


def test_a_certain_change_below_the_threshold_is_told() -> None:
    assert "+2.0 % is certain but below the threshold" in judge(found(1.01, 1.02, 1.03), RULE).reason
    assert "certain" not in judge(found(0.99, 1.0, 1.01), RULE).reason


def test_what_would_not_have_shown_is_not_said_to_be_absent() -> None:
    assert judge(found(0.96, 1.0, 1.04, detectable=1.0499), RULE).verdict is Verdict.NO_CHANGE
    doubtful = judge(found(0.96, 1.0, 1.04, detectable=1.05**2), RULE)
    assert doubtful.verdict is Verdict.INCONCLUSIVE
    assert doubtful.pairs_needed in (40, 41)
    assert "might not have shown" in doubtful.reason
    assert judge(found(1.5, 2.0, 2.5, detectable=1.4), RULE).verdict is Verdict.REGRESSION


def test_how_many_pairs_are_needed() -> None:
    assert judge(found(None, 2.0, None, pairs=3), RULE).pairs_needed == 6
    # The estimate is log(1.1) from none and the interval reaches twice as far: four times the pairs.
    doubtful = judge(found(1.1**-1, 1.1, 1.1**3), RULE)
    assert doubtful.verdict is Verdict.INCONCLUSIVE
    assert doubtful.pairs_needed in (40, 41)
    assert str(doubtful.pairs_needed) in doubtful.reason
    # An estimate of none, whose interval reaches twice the threshold.
    assert judge(found(1.05**-2, 1.0, 1.05**2), RULE).pairs_needed in (40, 41)
    at_the_threshold = judge(found(0.98, math.exp(RULE.margin * (1 - 1e-9)), 1.12), RULE)
    assert at_the_threshold.pairs_needed is None


@pytest.mark.parametrize("choices", [{"threshold_pct": 0}, {"threshold_pct": -1}, {"alpha": 0}, {"alpha": 0.9}])
def test_a_rule_that_makes_no_sense_is_refused(choices: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Rule(**choices)


def test_the_rule_in_words_has_its_numbers() -> None:
    text = Rule(threshold_pct=10, alpha=0.01).text
    assert "99 % interval" in text
    assert "10 % or more" in text
    assert "within -9.1 to +10.0 %" in text


def simulated(pairs: int, spread: float, truth: float, seed: int) -> Counter[Verdict]:
    """Verdicts of experiments on a machine that drifts, with heavy tails; `spread`: of log(candidate / baseline)."""
    rng = np.random.default_rng(seed)
    verdicts: Counter[Verdict] = Counter()
    for _ in range(EXPERIMENTS):
        drift = np.cumsum(rng.normal(0, 0.05, pairs))
        noise = spread / math.sqrt(2) * rng.standard_t(5, (2, pairs)) / math.sqrt(5 / 3)
        before, after = np.exp(drift + noise)
        verdicts[judge(paired_ratio(before, truth * after, RULE.alpha), RULE).verdict] += 1
    return verdicts


@pytest.mark.parametrize("pairs", [6, 10, 20])
@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_false_alarms_are_no_more_than_alpha(pairs: int, spread: float) -> None:
    verdicts = simulated(pairs, spread, 1.0, seed=pairs)
    alarms = (verdicts[Verdict.REGRESSION] + verdicts[Verdict.IMPROVEMENT]) / EXPERIMENTS
    assert alarms <= RULE.alpha + 3 * math.sqrt(RULE.alpha * (1 - RULE.alpha) / EXPERIMENTS)


def test_a_slowdown_of_ten_per_cent_is_found() -> None:
    assert simulated(10, 0.03, 1.1, seed=1)[Verdict.REGRESSION] >= 0.95 * EXPERIMENTS
    assert simulated(20, 0.10, 1.1, seed=2)[Verdict.REGRESSION] >= 0.90 * EXPERIMENTS
    assert simulated(10, 0.03, 1 / 1.1, seed=3)[Verdict.IMPROVEMENT] >= 0.95 * EXPERIMENTS


def test_little_noise_shows_that_nothing_changed() -> None:
    assert simulated(10, 0.02, 1.0, seed=4)[Verdict.NO_CHANGE] >= 0.95 * EXPERIMENTS


def test_too_much_noise_gives_no_verdict() -> None:
    for truth in (1.0, 1.05):
        assert simulated(10, 0.3, truth, seed=5)[Verdict.INCONCLUSIVE] >= 0.9 * EXPERIMENTS


def test_a_real_change_is_seldom_taken_for_none() -> None:
    for spread in (0.01, 0.05, 0.2):
        assert simulated(10, spread, 1.05 * 1.001, seed=6)[Verdict.NO_CHANGE] <= RULE.alpha * EXPERIMENTS
