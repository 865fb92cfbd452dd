"""The sentence that an experiment begins with, for each verdict and either direction."""

from __future__ import annotations

import pytest

from dxt_replay.replay.regression.interval_verdict import Verdict, change_text, headline
from dxt_replay.replay.regression.ratio import Ratio


def found(low: float, ratio: float, high: float) -> Ratio:
    return Ratio(count=10, least=6, ratio=ratio, low=low, high=high, p_value=0.01, minimum_detectable=1.02)


@pytest.mark.parametrize(
    ("verdict", "ratios", "more_is_better", "sentence"),
    [
        (
            Verdict.REGRESSION,
            (1.34, 1.38, 1.418),
            False,
            "38.0 % slower (34.0 to 41.8 %): regression.",
        ),
        (
            Verdict.IMPROVEMENT,
            (0.75, 0.8, 0.85),
            False,
            "20.0 % faster (15.0 to 25.0 %): improvement.",
        ),
        (Verdict.REGRESSION, (34, 66, 79), False, "66.0 times slower (34.0 to 79.0): regression."),
        (Verdict.IMPROVEMENT, (0.2, 0.25, 0.4), False, "4.0 times faster (2.5 to 5.0): improvement."),
        (Verdict.REGRESSION, (0.75, 0.8, 0.85), True, "25.0 % slower (17.6 to 33.3 %): regression."),
        (
            Verdict.NO_CHANGE,
            (0.99, 1.0, 1.02),
            False,
            "as fast as the baseline, within 2.0 %: no change.",
        ),
    ],
)
def test_the_verdict_in_one_sentence(
    verdict: Verdict, ratios: tuple[float, float, float], more_is_better: bool, sentence: str
) -> None:
    assert headline(verdict, "", found(*ratios), more_is_better=more_is_better) == f"The candidate is {sentence}"


def test_without_a_verdict_it_says_why() -> None:
    reason = "the experiment was stopped after 3 pairs"
    expected = f"No verdict, inconclusive: {reason}."
    assert headline(Verdict.INCONCLUSIVE, reason, found(0.9, 1.0, 1.1), more_is_better=False) == expected
    assert headline(Verdict.INCONCLUSIVE, reason, None, more_is_better=False) == expected


@pytest.mark.parametrize(("ratio", "text"), [(1.031, "+3.1 %"), (0.5, "-50.0 %"), (66.24, "66.2 x"), (248.2, "248 x")])
def test_a_change_is_a_share_or_a_multiple(ratio: float, text: str) -> None:
    assert change_text(ratio) == text
