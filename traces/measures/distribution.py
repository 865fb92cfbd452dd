"""The distribution of a quantity over a whole capture, in bounded memory: quantiles, mean, and distances to another.

Exact while at most `EXACT_VALUES` values are distinct (a median then equals `numpy.median`). Beyond that values are
rounded to 12 bits of mantissa: relative error at most 2**-13, and about 4096 distinct values per factor of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traces.measures.stable_order import runs
from traces.sums import Sums

EXACT_VALUES = 1 << 20
"""Distinct values that are kept exactly; they take 16 MiB."""

_PENDING_VALUES = 1 << 20
_KEPT_BITS = 12
_DROPPED_BITS = 52 - _KEPT_BITS
_NO_VALUES = np.empty(0, dtype=np.float64)
_NO_COUNTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distribution:
    """How often each value occurs. Distributions add: `a + b` is the distribution of both samples together.

    values: float64 (n,), ascending and distinct.
    counts: int64 (n,).
    total: the sum of the sample, exact where the values are whole numbers.
    minimum, maximum: always exact.
    exact: False after rounding.
    """

    values: np.ndarray = field(default_factory=lambda: _NO_VALUES)
    counts: np.ndarray = field(default_factory=lambda: _NO_COUNTS)
    total: float = 0
    minimum: float = math.nan
    maximum: float = math.nan
    exact: bool = True

    @classmethod
    def of(cls, values: np.ndarray) -> Distribution:
        """Distribution of an array of finite numbers, integer or float, of any shape."""
        collector = DistributionCollector()
        collector.add(values)
        return collector.distribution()

    @property
    def count(self) -> int:
        """Size of the sample."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of the sample, nan when it is empty."""
        return self.total / self.count if self.count else math.nan

    @property
    def median(self) -> float:
        """As `numpy.median`: the mean of the two middle values of an even sample; nan when it is empty."""
        if not self.count:
            return math.nan
        low, high = self._at(np.array([(self.count - 1) // 2, self.count // 2]))
        return float((low + high) / 2)

    def quantile(self, share: float) -> float:
        """Value below which `share` (0 to 1) of the sample lies, by NumPy's linear rule; nan when it is empty."""
        if not self.count:
            return math.nan
        place = (self.count - 1) * share
        below = math.floor(place)
        low, high = self._at(np.array([below, min(below + 1, self.count - 1)]))
        return float(low + (high - low) * (place - below))

    def _at(self, ranks: np.ndarray) -> np.ndarray:
        """Values at positions of the sorted sample, never outside its exact ends."""
        found = self.values[np.searchsorted(np.cumsum(self.counts), ranks, side="right")]
        clipped: np.ndarray = np.clip(found, self.minimum, self.maximum)
        return clipped

    def ks(self, other: Distribution) -> float:
        """Kolmogorov-Smirnov distance, the largest difference of the two shares below a value: 0 to 1.

        0 between two empty distributions, 1 between an empty one and another.
        """
        if not self.count or not other.count:
            return float(self.count != other.count)
        _, difference = _cumulative_difference(self, other)
        return float(difference.max())

    def wasserstein(self, other: Distribution) -> float:
        """First Wasserstein (earth mover's) distance, in the unit of the values; nan when just one is empty."""
        if not self.count or not other.count:
            return 0.0 if self.count == other.count else math.nan
        values, difference = _cumulative_difference(self, other)
        return float((difference[:-1] * np.diff(values)).sum())

    def __add__(self, other: Distribution) -> Distribution:
        if not self.count or not other.count:
            return self if self.count else other
        values, counts = _tally(
            np.concatenate((self.values, other.values)), np.concatenate((self.counts, other.counts))
        )
        return Distribution(
            values=values,
            counts=counts,
            total=self.total + other.total,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            exact=self.exact and other.exact,
        )._within(EXACT_VALUES)

    def _within(self, limit: int) -> Distribution:
        """This distribution, rounded when it holds more than `limit` values or was rounded in part."""
        if self.exact and len(self.values) <= limit:
            return self
        return self._rounded()

    def _rounded(self) -> Distribution:
        values, counts = _tally(_round_mantissa(self.values), self.counts)
        return Distribution(
            values=values, counts=counts, total=self.total, minimum=self.minimum, maximum=self.maximum, exact=False
        )


class DistributionCollector(Sums):
    """Collects a distribution batch by batch; keeps at most `limit` distinct values, and `pending` new ones."""

    def __init__(self, limit: int = EXACT_VALUES, pending: int = _PENDING_VALUES) -> None:
        self._limit = limit
        self._most_pending = pending
        self._pending: list[np.ndarray] = []
        self._pending_size = 0
        self._collected = Distribution()

    def add(self, values: np.ndarray) -> None:
        """Add an array of finite numbers."""
        if values.size:
            self._pending.append(values.ravel())
            self._pending_size += values.size
        if self._pending_size >= max(self._most_pending, len(self._collected.values)):
            self._merge()

    def merge(self, later: DistributionCollector) -> None:
        """As `Sums.merge`."""
        self._merge()
        self._collected = (self._collected + later.distribution())._within(self._limit)

    def __getstate__(self) -> dict[str, Any]:
        self._merge()
        return super().__getstate__()

    def distribution(self) -> Distribution:
        """Distribution of all that was added."""
        self._merge()
        return self._collected

    def _merge(self) -> None:
        if not self._pending:
            return
        sample = np.concatenate(self._pending)
        self._pending, self._pending_size = [], 0
        total = _sum(sample)
        ordered = np.sort(sample.astype(np.float64))
        minimum, maximum = float(ordered[0]), float(ordered[-1])
        if not self._collected.exact:
            ordered = _round_mantissa(ordered)
        first = runs(ordered)
        part = Distribution(
            values=ordered[first],
            counts=np.diff(first, append=len(ordered)),
            total=total,
            minimum=minimum,
            maximum=maximum,
            exact=self._collected.exact,
        )
        self._collected = (self._collected + part)._within(self._limit)


def _sum(sample: np.ndarray) -> float:
    """Exact for integers: the halves of 64 bits are summed apart, so that nothing overflows."""
    if sample.dtype.kind in "iub":
        sample = sample.astype(np.int64, copy=False)
        return (int((sample >> 32).sum()) << 32) + int((sample & 0xFFFF_FFFF).sum())
    return float(sample.sum())


def _round_mantissa(values: np.ndarray) -> np.ndarray:
    """Nearest float64 with `_KEPT_BITS` bits after the leading one; a carry runs into the exponent, as it should."""
    bits = values.view(np.int64) + (1 << (_DROPPED_BITS - 1))
    rounded: np.ndarray = (bits & ~((1 << _DROPPED_BITS) - 1)).view(np.float64)
    return rounded


def _tally(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values ascending, counts of equal ones added. A stable sort merges two sorted runs in linear time."""
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = runs(values)
    return values[first], np.add.reduceat(counts, first)


def _cumulative_difference(one: Distribution, other: Distribution) -> tuple[np.ndarray, np.ndarray]:
    """All values of both, ascending, and the absolute difference of the shares at or below each."""
    if one.exact != other.exact:
        one, other = one._rounded(), other._rounded()
    values = np.union1d(one.values, other.values)
    shares = [
        np.concatenate(([0], np.cumsum(d.counts)))[np.searchsorted(d.values, values, side="right")] / d.count
        for d in (one, other)
    ]
    return values, np.abs(shares[0] - shares[1])
