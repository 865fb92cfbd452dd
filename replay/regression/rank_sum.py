"""The ratio of two independent samples: Hodges-Lehmann shift of the logarithms, Mann-Whitney test and its interval.

Where the runs of both samples come from one distribution, every order of them is as likely as any other: the test needs
no more. For samples up to EXACT runs together the null distribution is counted, for ties too; beyond, it is normal.
Formulas: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 4.1 to 4.3. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from dxt_replay.replay.regression.ratio import Ratio, least_detectable

EXACT = 60
"""Runs of both samples together up to which the null distribution is counted."""

MOST_RUNS = 2000
"""Largest sample: an interval takes all differences between two."""

_MOST_NAMED = 1000


def unpaired_ratio(baseline: Sequence[float], candidate: Sequence[float], alpha: float) -> Ratio:
    """From positive measurements in any order (1 to MOST_RUNS of each).

    Raises: ValueError where there are too few or too many, or a measurement is not finite and above 0.
    """
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.ndim != 1 or after.ndim != 1 or not all(1 <= len(one) <= MOST_RUNS for one in (before, after)):
        raise ValueError(f"measurements of shapes {before.shape} and {after.shape}: give 1 to {MOST_RUNS} of each")
    if not all((np.isfinite(one) & (one > 0)).all() for one in (before, after)):
        raise ValueError("a ratio needs finite measurements above 0")
    before, after = np.log(before), np.log(after)
    shifts = np.sort(np.subtract.outer(after, before), axis=None)
    cut, tail = _cut(len(before), len(after), alpha)
    low, high, detectable = None, None, None
    if cut:
        low, high = float(shifts[cut - 1]), float(shifts[len(shifts) - cut])
        detectable = least_detectable(high - low, tail, alpha)
    return Ratio(
        count=round(2 / (1 / len(before) + 1 / len(after))),
        counted="runs a side",
        least=least_runs(len(before), alpha),
        ratio=math.exp(np.median(shifts)),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        p_value=_p_value(before, after),
        minimum_detectable=None if detectable is None else math.exp(detectable),
    )


def least_runs(recorded: int, alpha: float) -> int | None:
    """The fewest runs that can differ at all from as many `recorded` ones; None where 1,000 are too few."""
    return next((runs for runs in range(1, _MOST_NAMED) if 2 / math.comb(recorded + runs, runs) <= alpha), None)


def _cut(first: int, second: int, alpha: float) -> tuple[int, float]:
    """Number of differences beyond each end of the interval, and the probability of a tail."""
    if first + second <= EXACT:
        cumulative = null_cumulative(first, second)
        cut = int(np.searchsorted(cumulative, alpha / 2, side="right"))
        return cut, float(cumulative[cut - 1]) if cut else 0.0
    deviation = math.sqrt(first * second * (first + second + 1) / 12)
    cut = max(math.floor(first * second / 2 + NormalDist().inv_cdf(alpha / 2) * deviation), 0)
    return cut, alpha / 2


@lru_cache(maxsize=256)
def null_cumulative(first: int, second: int) -> np.ndarray:
    """Probability that at most 0, 1, 2 ... of the `first` x `second` comparisons favour one side, without ties."""
    ranks = np.arange(1, first + second + 1)
    least = first * (first + 1) // 2
    return _cumulative_rank_sums(ranks, first)[least : least + first * second + 1]


def exceeding(count: int, first: int, second: int) -> float:
    """Probability of `count` comparisons or more in favour of one side where both are alike; ties count for none."""
    if first + second <= EXACT:
        return 1.0 - float(null_cumulative(first, second)[count - 1]) if count else 1.0
    deviation = math.sqrt(first * second * (first + second + 1) / 12)
    return NormalDist().cdf(-(count - 0.5 - first * second / 2) / deviation)


def _cumulative_rank_sums(ranks: np.ndarray, chosen: int) -> np.ndarray:
    """Probability that `chosen` of the ranks (positive integers), drawn at random, add to at most 0, 1, 2 ..."""
    ways = np.zeros((chosen + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1.0
    for done, rank in enumerate(ranks.tolist(), start=1):
        most = min(done, chosen)
        ways[1 : most + 1, rank:] += ways[:most, : ways.shape[1] - rank].copy()
    cumulative: np.ndarray = np.cumsum(ways[chosen]) / math.comb(len(ranks), chosen)
    return cumulative


def _p_value(before: np.ndarray, after: np.ndarray) -> float:
    """Two-sided; equal values share their mean rank, doubled where it is not whole."""
    _, place, count = np.unique(np.concatenate([after, before]), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[place]
    found = int(ranks[: len(after)].sum())
    total = len(ranks)
    if total <= EXACT:
        if not (ranks % 2).any():
            ranks, found = ranks // 2, found // 2
        null = _cumulative_rank_sums(np.sort(ranks), len(after))
        upper = 1.0 - (null[found - 1] if found else 0.0)
        return float(min(2 * min(null[found], upper), 1.0))
    ties = float((count.astype(np.float64) ** 3 - count).sum()) / (total * (total - 1))
    deviation = math.sqrt(len(after) * len(before) / 12 * (total + 1 - ties))
    if not deviation:
        return 1.0
    distance = abs(found / 2 - len(after) * (total + 1) / 2) - 0.5
    return min(2 * NormalDist().cdf(-max(distance, 0.0) / deviation), 1.0)
