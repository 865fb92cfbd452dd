"""The rule that derives a verdict from an interval. Pure.

    regression    the whole interval is on the worse side of 1, and the estimate is worse by at least the threshold
    improvement   the same on the better side
    no change     the whole interval is within the threshold (equivalence, not the absence of proof), and the minimum
                  detectable change is not larger: so many pairs of this spread would have shown a change that matters
    inconclusive  anything else: more pairs are needed, and the verdict says how many

The probability of a verdict of regression or improvement where nothing changed is at most alpha. A minimum detectable
change above the threshold forbids only `no change`: a slowdown that shows in spite of the noise is a regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dxt_replay.replay.regression.ratio import Ratio
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import format_signed


class Verdict(Enum):
    """The verdicts of `regress`; the values are fixed."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_CHANGE = "no change"
    INCONCLUSIVE = "inconclusive"
    SLOWER = "slower"
    """A regression of a metric that does not decide, as `FASTER` is an improvement of it."""
    FASTER = "faster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`threshold_pct`: the smallest change that matters; `alpha`: the probability of a false alarm.

    Raises: UsageError for a threshold that is not between 0 and 1000, or an alpha outside 0.0001 to 0.5.
    """

    threshold_pct: float = 5.0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.threshold_pct <= 1000:
            raise UsageError(f"--threshold {self.threshold_pct:g}: give per cent above 0, at most 1000")
        if not 1e-4 <= self.alpha <= 0.5:
            raise UsageError(f"--alpha {self.alpha:g} is not between 0.0001 and 0.5")

    @property
    def margin(self) -> float:
        """The threshold as the logarithm of a ratio; as much slower and as much faster are equally far from 0."""
        return math.log1p(self.threshold_pct / 100)

    @property
    def text(self) -> str:
        """One line for a person."""
        within = f"{100 * math.expm1(-self.margin):+.1f} to {100 * math.expm1(self.margin):+.1f} %"
        interval, least = f"the whole {100 * (1 - self.alpha):g} % interval", f"{self.threshold_pct:g} %"
        return (
            f"Regression: {interval} is slower than the baseline, and the estimate by {least} or more. Improvement: "
            f"the same, faster. No change: {interval} is within {within}, and a change of {least} would have been "
            "detected. Anything else is inconclusive."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`reason`: a sentence. `pairs_needed`: for a verdict if the estimate and the spread stay as they are (against a
    record: runs a side); None where there is a verdict, or no number would do."""

    verdict: Verdict
    reason: str
    pairs_needed: int | None = None


MAX_PAIRS_NAMED = 100_000
"""A larger number of pairs is not worth advising."""


def judge(found: Ratio, rule: Rule, *, more_is_better: bool = False, p_value: float | None = None) -> Judgement:
    """The verdict on one metric. `p_value`: of a metric that does not decide, adjusted for the number of metrics; it
    must be at most alpha for a verdict of slower or faster."""
    if found.low is None or found.high is None or found.minimum_detectable is None:
        few = f"{found.count} {found.counted} are too few"
        return Judgement(
            verdict=Verdict.INCONCLUSIVE,
            reason=few
            if found.least is None
            else f"{few}, as fewer than {found.least} can show nothing at alpha {rule.alpha:g}",
            pairs_needed=found.least,
        )
    estimate, low, high = (math.log(ratio) for ratio in (found.ratio, found.low, found.high))
    change = _change(found.ratio)
    one_sided = low > 0 or high < 0
    told_apart = one_sided and (p_value is None or p_value <= rule.alpha)
    if one_sided and not told_apart and abs(estimate) >= rule.margin:
        return Judgement(
            verdict=Verdict.INCONCLUSIVE,
            reason=f"{change}, between {_change(found.low)} and {_change(found.high)}: certain by this metric alone, "
            f"but more {found.counted} are needed to judge it as one of several",
        )
    if told_apart and abs(estimate) >= rule.margin:
        worse = (estimate > 0) != more_is_better
        decides = Verdict.REGRESSION if worse else Verdict.IMPROVEMENT
        return Judgement(
            verdict=decides if p_value is None else Verdict.SLOWER if worse else Verdict.FASTER,
            reason=f"{change}, between {_change(found.low)} and {_change(found.high)}",
        )
    if -rule.margin <= low and high <= rule.margin:
        apart = f"at most {_change(max(found.high, 1 / found.low)).lstrip('+')} apart"
        beside = f"; {change} is certain but below the threshold" if told_apart else ""
        return _equivalent(found, math.log(found.minimum_detectable), rule, apart + beside)
    return _inconclusive(found, rule, estimate, max(high - estimate, estimate - low), told_apart=told_apart)


def _equivalent(found: Ratio, detectable: float, rule: Rule, reason: str) -> Judgement:
    """No change where a change that matters would have shown, else inconclusive. `detectable`: as a logarithm."""
    if detectable <= rule.margin:
        return Judgement(verdict=Verdict.NO_CHANGE, reason=reason)
    needed = max(math.ceil(found.count * (detectable / rule.margin) ** 2), found.count + 1)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=f"{reason}, but with this spread a change of {rule.threshold_pct:g} % might not have shown; about "
        f"{needed} {found.counted}, or longer runs, would decide",
        pairs_needed=needed,
    )


def _inconclusive(found: Ratio, rule: Rule, estimate: float, reach: float, *, told_apart: bool) -> Judgement:
    """`reach`: how far the interval extends from the estimate; it shrinks with the root of the number of pairs."""
    assert found.low is not None
    assert found.high is not None
    within = f"the change lies between {_change(found.low)} and {_change(found.high)}"
    if abs(estimate) >= rule.margin:
        room, lack = abs(estimate), "so no change cannot be ruled out"
    elif told_apart:
        room, lack = (
            rule.margin - abs(estimate),
            f"which may be below or above the threshold of {rule.threshold_pct:g} %",
        )
    else:
        room, lack = rule.margin - abs(estimate), f"which is too wide for the threshold of {rule.threshold_pct:g} %"
    needed = found.count * (reach / room) ** 2 if room > 0 else math.inf
    if needed > MAX_PAIRS_NAMED:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"{within}, {lack}; the estimate is at the threshold")
    pairs = max(math.ceil(needed), found.count + 1)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=f"{within}, {lack}; about {pairs} {found.counted} of this spread, or longer runs, would decide",
        pairs_needed=pairs,
    )


def _change(ratio: float) -> str:
    """`1.031` -> `+3.1 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


MANY = 2.0
"""From this ratio on (and below its inverse) a change is named in multiples and not in per cent."""


def headline(verdict: Verdict, reason: str, found: Ratio | None, *, more_is_better: bool) -> str:
    """`The candidate is 38 % slower (34 to 42 %): regression.`

    `found`: of the deciding metric; `more_is_better`: of that metric, such as a bandwidth. `reason`: why there is no
    verdict.
    """
    if verdict is Verdict.INCONCLUSIVE or found is None or found.low is None or found.high is None:
        return f"No verdict, {verdict.value}: {reason}."
    ratio, low, high = (1 / value if more_is_better else value for value in (found.ratio, found.low, found.high))
    if verdict is Verdict.NO_CHANGE:
        return f"The candidate is as fast as the baseline, within {_most_pct(low, high):.1f} %: no change."
    return f"The candidate is {_size(ratio, low, high)}: {verdict.value}."


def storage_sentence(found: Ratio, rule: Rule) -> str:
    """`The storage itself is 3.8 times slower (3.6 to 3.9).` `found`: of the time in I/O or in metadata."""
    if found.low is None or found.high is None:
        return f"What the storage did is not known: {found.count} {found.counted} are too few."
    if found.low > 1 or found.high < 1:
        return f"The storage itself is {_size(found.ratio, found.low, found.high)}."
    if (most := _most_pct(found.low, found.high)) <= rule.threshold_pct:
        return f"The storage itself is as fast, within {most:.1f} %."
    return f"Whether the storage itself differs is not certain: {interval_text(found.low, found.high)}."


def _most_pct(low: float, high: float) -> float:
    return 100 * (max(low, high, 1 / low, 1 / high) - 1)


def _size(ratio: float, low: float, high: float) -> str:
    """`38.0 % slower (34.0 to 42.0 %)`, of a ratio of times."""
    word = "slower" if ratio > 1 else "faster"
    if ratio >= MANY or ratio <= 1 / MANY:
        times = sorted(max(value, 1 / value) for value in (low, high))
        return f"{max(ratio, 1 / ratio):.1f} times {word} ({times[0]:.1f} to {times[1]:.1f})"
    shares = sorted(abs(100 * (value - 1)) for value in (low, high))
    return f"{abs(100 * (ratio - 1)):.1f} % {word} ({shares[0]:.1f} to {shares[1]:.1f} %)"


def interval_text(low: float | None, high: float | None) -> str:
    """`-12.3 to +19.7 %`, `+92.1 % to 2.09 x`: one unit where both ends have the same; `-` for None."""
    if low is None or high is None:
        return "-"
    first, last = change_text(low), change_text(high)
    return f"{first[:-2]} to {last}" if first[-2:] == last[-2:] else f"{first} to {last}"


def change_text(ratio: float) -> str:
    """`1.031` -> `+3.1 %`, `66.2` -> `66.2 x`: candidate against baseline."""
    return f"{ratio:.3g} x" if ratio >= MANY else f"{format_signed(100 * (ratio - 1), 1)} %"
