"""The best point of a curve, its flat range, and its gain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FLAT = 0.03
"""Relative difference from the best time up to which a time counts as equally good: job times of a minute in whole
seconds resolve no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """best_at: the fastest point. flat: all within FLAT of it, in order. gain: time at the base over the best."""

    best_at: str
    flat: tuple[str, ...]
    gain: float

    def has(self, at: str) -> bool:
        """Whether a point is as good as the best one."""
        return at in self.flat


def optimum(points: Sequence[str], seconds: Sequence[float], base_at: str) -> Optimum:
    """The optimum of a curve. Raises: ValueError when the base is not among the points."""
    best = min(seconds)
    base = seconds[list(points).index(base_at)]
    return Optimum(
        best_at=points[list(seconds).index(best)],
        flat=tuple(at for at, time in zip(points, seconds, strict=True) if time <= best * (1 + FLAT)),
        gain=base / best,
    )


def jump(points: Sequence[str], seconds: Sequence[float]) -> tuple[str, float]:
    """The point before which the time falls most, and the factor."""
    factors = [before / after for before, after in pairwise(seconds)]
    largest = max(range(len(factors)), key=factors.__getitem__)
    return points[largest + 1], factors[largest]


def falls_like(ranks: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Speed-up from the first number of ranks to each, divided by the ideal one: 1 is linear, below 1 sublinear."""
    return [
        (seconds[0] / time) / (count / ranks[0]) if time else 0.0 for count, time in zip(ranks, seconds, strict=True)
    ]
