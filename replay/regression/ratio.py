"""A measured ratio of two sides with its interval, whichever test made it, and p-values of several. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

POWER = 0.8
"""Share of experiments that detect a change of the minimum detectable size."""


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


def least_detectable(width: float, tail: float, alpha: float) -> float:
    """Smallest true difference that is found in POWER of all experiments, from the width of an interval whose
    tails hold `tail` each: in large samples it is as wide as that many standard errors (Lehmann, Annals of Mathematical
    Statistics 34, 1963)."""
    normal = NormalDist()
    standard_error = width / 2 / -normal.inv_cdf(tail)
    return standard_error * (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(POWER))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in the order given: rejecting those at or below alpha keeps the probability
    of any false rejection at alpha (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min((len(p_values) - done) * p_values[place], 1.0))
        adjusted[place] = largest
    return adjusted
