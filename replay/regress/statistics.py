"""The ratio of two sides with its interval, by exact rank tests, and the rule that makes a verdict of it. Pure.

Pairs (Hodges-Lehmann estimate, Wilcoxon's signed-rank test): each is a baseline and a candidate that ran one after the
other, in random order. Independent samples: Mann-Whitney. Null distributions are counted, for ties too; of more than
EXACT independent runs they are normal. docs/explain/statistics.md has the reasons and the rule.

Formulas: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3, 4.1 to 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import format_signed

ALPHA = 0.05
"""Probability of a false alarm."""

POWER = 0.8
"""Share of experiments that detect a change of the minimum detectable size."""

MAX_PAIRS = 1000
"""Largest number of pairs: beyond it 2**-pairs leaves the range of a double."""

MOST_RUNS = 2000
"""Largest independent sample: an interval takes all differences between two."""

EXACT = 60
"""Runs of two independent samples together up to which the null distribution is counted."""

MOST_NAMED = 1000
MAX_PAIRS_NAMED = 100_000
"""A larger number of runs, or of pairs, is not worth advising."""

MANY = 2.0
"""From this ratio on (and below its inverse) a change is named in multiples and not in per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """candidate / baseline. `ratio`: Hodges-Lehmann estimate, of logarithms.

    `count`: pairs, or, where `counted` is "runs a side", the runs of each side (their harmonic mean).
    `least`: the fewest with which a difference can show at all; None where no number would do.
    `low`, `high`: the interval of confidence 1 - alpha, at least; None where so few have none. `p_value`: two-sided.
    `minimum_detectable`: the ratio above 1 that as many of this spread detect in `POWER` of all experiments; None
    without an interval.
    """

    count: int
    least: int | None
    counted: str = "pairs"
    ratio: float
    low: float | None
    high: float | None
    p_value: float
    minimum_detectable: float | None


def paired_ratio(baseline: Sequence[float], candidate: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """From positive measurements in the order of their pairs, 1 to MAX_PAIRS of each."""
    difference = np.log(candidate) - np.log(baseline)
    first, second = np.triu_indices(len(difference))
    walsh = np.sort((difference[first] + difference[second]) / 2)
    cumulative = _signed_ranks(tuple(range(1, len(difference) + 1)))
    cut = int(np.searchsorted(cumulative, alpha / 2, side="right"))
    tail = float(cumulative[cut - 1]) if cut else 0.0
    return _ratio(walsh, cut, tail, alpha, _paired_p(difference), len(difference), least_pairs(alpha), "pairs")


def unpaired_ratio(baseline: Sequence[float], candidate: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """From positive measurements in any order, 1 to MOST_RUNS of each."""
    before, after = np.log(baseline), np.log(candidate)
    count, other = len(before), len(after)
    shifts = np.sort(np.subtract.outer(after, before), axis=None)
    if count + other <= EXACT:
        cumulative = null_cumulative(count, other)
        cut = int(np.searchsorted(cumulative, alpha / 2, side="right"))
        tail = float(cumulative[cut - 1]) if cut else 0.0
    else:
        tail = alpha / 2
        cut = max(math.floor(count * other / 2 + NormalDist().inv_cdf(tail) * _deviation(count, other)), 0)
    runs = round(2 / (1 / count + 1 / other))
    return _ratio(shifts, cut, tail, alpha, _unpaired_p(before, after), runs, least_runs(count, alpha), "runs a side")


def _ratio(
    shifts: np.ndarray, cut: int, tail: float, alpha: float, p_value: float, count: int, least: int | None, counted: str
) -> Ratio:
    """`shifts`: ascending logarithms; `cut`: how many lie beyond each end of the interval, whose tails hold `tail`."""
    low = high = detectable = None
    if cut:
        low, high = float(shifts[cut - 1]), float(shifts[len(shifts) - cut])
        # In large samples an interval is as wide as this many standard errors (Lehmann, Annals of Mathematical
        # Statistics 34, 1963).
        normal = NormalDist()
        error = (high - low) / 2 / -normal.inv_cdf(tail)
        detectable = math.exp(error * (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(POWER)))
    return Ratio(
        count=count,
        counted=counted,
        least=least,
        ratio=math.exp(np.median(shifts)),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        p_value=p_value,
        minimum_detectable=detectable,
    )


def least_pairs(alpha: float = ALPHA) -> int:
    """The fewest pairs with which a difference can be detected at all: 2 * 2**-n is at most alpha."""
    return max(math.ceil(math.log2(2 / alpha) - 1e-9), 1)


def least_runs(recorded: int, alpha: float = ALPHA) -> int | None:
    """The fewest runs that can differ at all from as many `recorded` ones; None where 1,000 are too few."""
    return next((runs for runs in range(1, MOST_NAMED) if 2 / math.comb(recorded + runs, runs) <= alpha), None)


@lru_cache(maxsize=8)
def _signed_ranks(ranks: tuple[int, ...]) -> np.ndarray:
    """Probability that the ranks (positive integers) of the positive differences add to at most 0, 1, 2 ..."""
    probability = np.zeros(sum(ranks) + 1)
    probability[0] = 1.0
    reached = 0
    for rank in ranks:
        shifted = probability[: reached + 1] / 2
        probability[: reached + 1] = shifted
        probability[rank : reached + rank + 1] += shifted
        reached += rank
    return np.cumsum(probability)


def _ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twice the rank of each value, equal ones share their mean; the rank itself where all are whole. How often each
    value occurs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[place]
    return ranks if (ranks % 2).any() else ranks // 2, count


def _paired_p(difference: np.ndarray) -> float:
    """Two-sided, exact for ties too; a difference of 0 says nothing (Pratt's rule: it keeps its rank and has no
    sign)."""
    size = np.abs(difference)
    ranks, _ = _ranks(size)
    null = _signed_ranks(tuple(np.sort(ranks[size > 0]).tolist()))
    return _two_sided(null, int(ranks[difference > 0].sum()))


def _two_sided(null: np.ndarray, found: int) -> float:
    upper = 1.0 - (null[found - 1] if found else 0.0)
    return float(min(2 * min(null[found], upper), 1.0))


@lru_cache(maxsize=256)
def null_cumulative(first: int, second: int) -> np.ndarray:
    """Probability that at most 0, 1, 2 ... of the `first` x `second` comparisons favour one side, without ties."""
    least = first * (first + 1) // 2
    return _rank_sums(np.arange(1, first + second + 1), first)[least : least + first * second + 1]


def _rank_sums(ranks: np.ndarray, chosen: int) -> np.ndarray:
    """Probability that `chosen` of the ranks (positive integers), drawn at random, add to at most 0, 1, 2 ..."""
    ways = np.zeros((chosen + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1.0
    for done, rank in enumerate(ranks.tolist(), start=1):
        most = min(done, chosen)
        ways[1 : most + 1, rank:] += ways[:most, : ways.shape[1] - rank].copy()
    cumulative: np.ndarray = np.cumsum(ways[chosen]) / math.comb(len(ranks), chosen)
    return cumulative


def _deviation(first: int, second: int) -> float:
    """Standard deviation of the comparisons that favour one side where both are alike, without ties."""
    return math.sqrt(first * second * (first + second + 1) / 12)


def exceeding(count: int, first: int, second: int) -> float:
    """Probability of `count` comparisons or more in favour of one side where both are alike; ties count for none."""
    if first + second <= EXACT:
        return 1.0 - float(null_cumulative(first, second)[count - 1]) if count else 1.0
    return NormalDist().cdf(-(count - 0.5 - first * second / 2) / _deviation(first, second))


def _unpaired_p(before: np.ndarray, after: np.ndarray) -> float:
    """Two-sided; equal values share their mean rank."""
    ranks, count = _ranks(np.concatenate([after, before]))
    found, total = int(ranks[: len(after)].sum()), len(ranks)
    if total <= EXACT:
        return _two_sided(_rank_sums(np.sort(ranks), len(after)), found)
    ties = float((count.astype(np.float64) ** 3 - count).sum()) / (total * (total - 1))
    deviation = math.sqrt(len(after) * len(before) / 12 * (total + 1 - ties))
    if not deviation:
        return 1.0
    scale = ranks.sum() / (total * (total + 1) / 2)  # 2 where ranks are doubled
    distance = abs(found / scale - len(after) * (total + 1) / 2) - 0.5
    return min(2 * NormalDist().cdf(-max(distance, 0.0) / deviation), 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in the order given: rejecting those at or below alpha keeps the probability
    of any false rejection at alpha (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min((len(p_values) - done) * p_values[place], 1.0))
        adjusted[place] = largest
    return adjusted


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
    """`threshold_pct`: the smallest change that matters. Raises: UsageError for one that is not between 0 and 1000."""

    threshold_pct: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.threshold_pct <= 1000:
            raise UsageError(f"--threshold {self.threshold_pct:g}: give per cent above 0, at most 1000")

    @property
    def margin(self) -> float:
        """The threshold as the logarithm of a ratio; as much slower and as much faster are equally far from 0."""
        return math.log1p(self.threshold_pct / 100)

    @property
    def text(self) -> str:
        """One line for a person."""
        within = f"{100 * math.expm1(-self.margin):+.1f} to {100 * math.expm1(self.margin):+.1f} %"
        interval, least = f"the whole {100 * (1 - ALPHA):g} % interval", f"{self.threshold_pct:g} %"
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


def judge(found: Ratio, rule: Rule, *, more_is_better: bool = False, p_value: float | None = None) -> Judgement:
    """The verdict on one metric. `p_value`: of a metric that does not decide, adjusted for the number of metrics; it
    must be at most ALPHA for a verdict of slower or faster."""
    counted, threshold = found.counted, f"{rule.threshold_pct:g} %"
    if found.low is None or found.high is None or found.minimum_detectable is None:
        few = f"{found.count} {counted} are too few"
        least = "" if found.least is None else f", as fewer than {found.least} can show nothing at alpha {ALPHA:g}"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=few + least, pairs_needed=found.least)
    estimate, low, high = (math.log(ratio) for ratio in (found.ratio, found.low, found.high))
    change, ends = _change(found.ratio), f"between {_change(found.low)} and {_change(found.high)}"
    one_sided, large = low > 0 or high < 0, abs(estimate) >= rule.margin
    told_apart = one_sided and (p_value is None or p_value <= ALPHA)
    if one_sided and large:
        if not told_apart:
            alone = f"certain by this metric alone, but more {counted} are needed to judge it as one of several"
            return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"{change}, {ends}: {alone}")
        worse, decides = (estimate > 0) != more_is_better, p_value is None
        kinds = (Verdict.IMPROVEMENT, Verdict.REGRESSION) if decides else (Verdict.FASTER, Verdict.SLOWER)
        return Judgement(verdict=kinds[worse], reason=f"{change}, {ends}")
    if -rule.margin <= low and high <= rule.margin:
        reason = f"at most {_change(max(found.high, 1 / found.low)).lstrip('+')} apart"
        reason += f"; {change} is certain but below the threshold" if told_apart else ""
        detectable = math.log(found.minimum_detectable)
        if detectable <= rule.margin:
            return Judgement(verdict=Verdict.NO_CHANGE, reason=reason)
        needed = found.count * (detectable / rule.margin) ** 2
        lack = f"but with this spread a change of {threshold} might not have shown"
    else:
        reason = f"the change lies {ends}"
        if large:
            lack = "so no change cannot be ruled out"
        elif told_apart:
            lack = f"which may be below or above the threshold of {threshold}"
        else:
            lack = f"which is too wide for the threshold of {threshold}"
        # The interval shrinks with the root of the number of pairs.
        room = abs(estimate) if large else rule.margin - abs(estimate)
        needed = found.count * (max(high - estimate, estimate - low) / room) ** 2 if room > 0 else math.inf
        if needed > MAX_PAIRS_NAMED:
            reason = f"{reason}, {lack}; the estimate is at the threshold"
            return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason)
    pairs = max(math.ceil(needed), found.count + 1)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=f"{reason}, {lack}; about {pairs} {counted}, or longer runs, would decide",
        pairs_needed=pairs,
    )


def _change(ratio: float) -> str:
    """`1.031` -> `+3.1 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


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
    return f"The candidate is {size_text(ratio, low, high)}: {verdict.value}."


def storage_sentence(found: Ratio, rule: Rule) -> str:
    """`The storage itself is 3.8 times slower (3.6 to 3.9).` `found`: of the time in I/O and metadata operations."""
    if found.low is None or found.high is None:
        return f"What the storage did is not known: {found.count} {found.counted} are too few."
    if found.low > 1 or found.high < 1:
        return f"The storage itself is {size_text(found.ratio, found.low, found.high)}."
    if (most := _most_pct(found.low, found.high)) <= rule.threshold_pct:
        return f"The storage itself is as fast, within {most:.1f} %."
    return f"Whether the storage itself differs is not certain: {interval_text(found.low, found.high)}."


def _most_pct(low: float, high: float) -> float:
    return 100 * (max(low, high, 1 / low, 1 / high) - 1)


def size_text(ratio: float, low: float | None, high: float | None) -> str:
    """`38.0 % slower (34.0 to 42.0 %)`, of a ratio of times and its interval."""
    word = "slower" if ratio > 1 else "faster"
    known = [] if low is None or high is None else [low, high]
    if ratio >= MANY or ratio <= 1 / MANY:
        size, unit, ends = f"{max(ratio, 1 / ratio):.1f} times {word}", "", [max(end, 1 / end) for end in known]
    else:
        size, unit, ends = f"{abs(100 * (ratio - 1)):.1f} % {word}", " %", [abs(100 * (end - 1)) for end in known]
    return f"{size} ({min(ends):.1f} to {max(ends):.1f}{unit})" if ends else size


def interval_text(low: float | None, high: float | None) -> str:
    """`-12.3 to +19.7 %`, `+92.1 % to 2.09 x`: one unit where both ends have the same; `-` for None."""
    if low is None or high is None:
        return "-"
    first, last = change_text(low), change_text(high)
    return f"{first[:-2]} to {last}" if first[-2:] == last[-2:] else f"{first} to {last}"


def change_text(ratio: float) -> str:
    """`1.031` -> `+3.1 %`, `66.2` -> `66.2 x`: candidate against baseline."""
    return f"{ratio:.3g} x" if ratio >= MANY else f"{format_signed(100 * (ratio - 1), 1)} %"
