"""The ratio of paired measurements: Hodges-Lehmann estimate, Wilcoxon's signed-rank test and its interval. Pure.

Each pair is a baseline and a candidate that ran one after the other, in random order. Where both are the same, the
order makes log(candidate / baseline) as likely positive as negative, whatever the machine did: the test needs no more,
in particular no normal distribution and no removal of outliers.

Formulas: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3; the null
distribution is counted, not approximated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dxt_replay.replay.regression.ratio import Ratio, least_detectable

MAX_PAIRS = 1000
"""Largest number of pairs: beyond it 2**-pairs leaves the range of a double."""


def paired_ratio(baseline: Sequence[float], candidate: Sequence[float], alpha: float) -> Ratio:
    """From positive measurements in the order of their pairs (1 to MAX_PAIRS of each).

    Raises: ValueError where both numbers differ or are out of range, or a measurement is not finite and above 0.
    """
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or not 1 <= len(before) <= MAX_PAIRS:
        raise ValueError(f"measurements of shapes {before.shape} and {after.shape}: give 1 to {MAX_PAIRS} pairs")
    if not (np.isfinite(before) & np.isfinite(after) & (before > 0) & (after > 0)).all():
        raise ValueError("a ratio needs finite measurements above 0")
    difference = np.log(after) - np.log(before)
    walsh = _walsh_averages(difference)
    cumulative = _null_cumulative(tuple(range(1, len(difference) + 1)))
    cut = int(np.searchsorted(cumulative, alpha / 2, side="right"))
    low, high, detectable = None, None, None
    if cut:
        low, high = float(walsh[cut - 1]), float(walsh[len(walsh) - cut])
        detectable = least_detectable(high - low, float(cumulative[cut - 1]), alpha)
    return Ratio(
        count=len(difference),
        least=least_pairs(alpha),
        ratio=math.exp(np.median(walsh)),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        p_value=_p_value(difference),
        minimum_detectable=None if detectable is None else math.exp(detectable),
    )


def least_pairs(alpha: float) -> int:
    """The fewest pairs with which a difference can be detected at all: 2 * 2**-n is at most alpha."""
    return max(math.ceil(math.log2(2 / alpha) - 1e-9), 1)


def _walsh_averages(values: np.ndarray) -> np.ndarray:
    """float64 (n (n + 1) / 2,), ascending: the means of all pairs of values, each with itself too."""
    first, second = np.triu_indices(len(values))
    averages: np.ndarray = np.sort((values[first] + values[second]) / 2)
    return averages


@lru_cache(maxsize=8)
def _null_cumulative(ranks: tuple[int, ...]) -> np.ndarray:
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


def _p_value(difference: np.ndarray) -> float:
    """Two-sided, exact for ties too: equal differences share their mean rank, doubled where it is not whole, and a
    difference of 0 says nothing (Pratt's rule: it keeps its rank and has no sign)."""
    size = np.abs(difference)
    _, place, count = np.unique(size, return_inverse=True, return_counts=True)
    ranks = (2 * (np.cumsum(count) - count) + count + 1)[place]
    if not (ranks % 2).any():
        ranks //= 2
    null = _null_cumulative(tuple(np.sort(ranks[size > 0]).tolist()))
    positive = int(ranks[difference > 0].sum())
    upper = 1.0 - (null[positive - 1] if positive else 0.0)
    return float(min(2 * min(null[positive], upper), 1.0))
