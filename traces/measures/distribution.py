"""The distribution of a quantity over a whole capture, in bounded memory: quantiles, mean, and distances to another.

Exact while at most `EXACT_VALUES` values are distinct (a median then equals `numpy.median`). Beyond that values are
rounded to 12 bits of mantissa: relative error at most 2**-13, and about 4096 distinct values per factor of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.sums import Sums

EXACT_VALUES = 1 << 20
"""Distinct values that are kept exactly; they take 16 MiB."""

_PENDING_VALUES = 1 << 20
_KEPT_BITS = 12
_DROPPED_BITS = 52 - _KEPT_BITS
_MOST_PLACES = 1 << 20
"""Elements of a table of counts: 8 MiB."""

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
        """Values at positions of the sorted sample, limited to the exact minimum and maximum."""
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
        return self.plus(other)

    def plus(self, other: Distribution, limit: int = EXACT_VALUES) -> Distribution:
        """The distribution of both samples, rounded if one is or if more than `limit` values are distinct."""
        if not self.count or not other.count:
            found = self if self.count else other
        else:
            values, counts = _tally(
                np.concatenate((self.values, other.values)), np.concatenate((self.counts, other.counts))
            )
            found = Distribution(
                values=values,
                counts=counts,
                total=self.total + other.total,
                minimum=min(self.minimum, other.minimum),
                maximum=max(self.maximum, other.maximum),
                exact=self.exact and other.exact,
            )
        rounded = (found.exact and len(found.values) > limit) or self.exact != other.exact
        return found._rounded() if rounded else found

    def _rounded(self) -> Distribution:
        values, counts = _tally(_of_places(_places(self.values)), self.counts)
        return replace(self, values=values, counts=counts, exact=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of a quantity over operations; None without operations."""

    min: float | None
    median: float | None
    mean: float | None
    max: float | None

    @classmethod
    def of(cls, found: Distribution) -> Spread:
        """The spread of a collected distribution, with an int for a whole number."""
        values = (found.minimum, found.median, found.mean, found.maximum)
        plain = [None if math.isnan(value) else int(value) if float(value).is_integer() else value for value in values]
        return cls(**dict(zip(cls.__slots__, plain, strict=True)))


class DistributionCollector(Sums):
    """Collects a distribution batch by batch; keeps at most `limit` distinct values, plus `pending` new ones."""

    def __init__(self, limit: int = EXACT_VALUES, pending: int = _PENDING_VALUES) -> None:
        self._limit, self._most_pending = limit, pending
        self._pending: list[np.ndarray] = []
        self._pending_size = 0
        self._found = Distribution()

    def add(self, values: np.ndarray) -> None:
        """Add an array of finite numbers."""
        if values.size:
            self._pending.append(values.ravel())
            self._pending_size += values.size
        if self._pending_size >= self._most_pending:
            self.distribution()

    def merge(self, later: DistributionCollector) -> None:
        self._found = self.distribution().plus(later.distribution(), self._limit)

    def __getstate__(self) -> dict[str, Any]:
        self.distribution()
        return super().__getstate__()

    def distribution(self) -> Distribution:
        """Distribution of all that was added."""
        if self._pending:
            sample = np.concatenate(self._pending)
            total = self._found.total
            for values in self._pending:
                total += _sum(values)
            self._pending, self._pending_size = [], 0
            exact = self._found.exact
            values, counts = _distinct(sample if exact else _places(sample.astype(np.float64, copy=False)))
            if not exact:
                values, counts = _tally(_of_places(values.astype(np.int64)), counts)
            more = Distribution(
                values=values, counts=counts, minimum=float(sample.min()), maximum=float(sample.max()), exact=exact
            )
            self._found = replace(self._found.plus(more, self._limit), total=total)
        return self._found


def _distinct(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values (float64) of a sample, ascending, and their counts. Whole numbers that are not far apart are
    counted in a table."""
    if sample.dtype.kind in "iub":
        low, high = int(sample.min()), int(sample.max())
        if high - low < _MOST_PLACES:
            counts = np.bincount(sample.astype(np.int64) - low)
            used = np.flatnonzero(counts)
            return (used + low).astype(np.float64), counts[used]
    values, counts = np.unique(sample.astype(np.float64, copy=False), return_counts=True)
    return values, counts


def _places(values: np.ndarray) -> np.ndarray:
    """float64 values rounded to `_KEPT_BITS` bits after the leading one, as the upper bits that remain (int64); a carry
    runs into the exponent, as it should."""
    places: np.ndarray = (values.view(np.int64) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    return places


def _of_places(places: np.ndarray) -> np.ndarray:
    return (places << _DROPPED_BITS).view(np.float64)


def _sum(sample: np.ndarray) -> float:
    """Sum that is exact for integers: it adds the 32-bit halves separately, so that nothing overflows."""
    if sample.dtype.kind in "iub":
        sample = sample.astype(np.int64, copy=False)
        return (int((sample >> 32).sum()) << 32) + int((sample & 0xFFFF_FFFF).sum())
    return float(sample.sum())


def _tally(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values ascending, counts of equal ones added. A stable sort merges two sorted runs in linear time."""
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = runs(values)
    return values[first], np.add.reduceat(counts, first)


def _cumulative_difference(one: Distribution, other: Distribution) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of both, ascending, and the absolute difference of the shares at or below each."""
    if one.exact != other.exact:
        one, other = one._rounded(), other._rounded()
    values = np.union1d(one.values, other.values)
    shares = [
        np.concatenate(([0], np.cumsum(d.counts)))[np.searchsorted(d.values, values, side="right")] / d.count
        for d in (one, other)
    ]
    return values, np.abs(shares[0] - shares[1])
