"""The distribution of a quantity over a whole capture, in bounded memory: quantiles, mean, and distances to another.

Exact while at most `EXACT_VALUES` values are distinct (a median then equals `numpy.median`). Beyond that values are
rounded to 12 bits of mantissa: relative error at most 2**-13, and about 4096 distinct values per factor of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dxt_replay.traces.measures._passes import count_rounded, count_whole
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.sums import Sums

EXACT_VALUES = 1 << 20
"""Distinct values that are kept exactly; they take 16 MiB."""

_PENDING_VALUES = 1 << 20
_KEPT_BITS = 12
_DROPPED_BITS = 52 - _KEPT_BITS
_FIRST_PLACE = (1023 - 20) << _KEPT_BITS
"""Exponent of the smallest rounded value: the first element counts 2**-20."""

_MOST_PLACES = 1 << 20
"""Elements of an array of counts: 8 MiB."""

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
        if not self.count or not other.count:
            return self if self.count else other
        values, counts = _tally(
            np.concatenate((self.values, other.values)), np.concatenate((self.counts, other.counts))
        )
        found = Distribution(
            values=values,
            counts=counts,
            total=self.total + other.total,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
        )
        return found if self.exact and other.exact and len(values) <= EXACT_VALUES else found._rounded()

    def _rounded(self) -> Distribution:
        values, counts = _tally(_value_of(_places_of(self.values)), self.counts)
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
    """Collects a distribution batch by batch; keeps at most `limit` distinct values, plus `pending` new ones.

    An array counts small whole numbers, and most numbers once they are rounded; it needs no sorting. Other values are
    kept in ascending order with their counts.
    """

    def __init__(self, limit: int = EXACT_VALUES, pending: int = _PENDING_VALUES) -> None:
        self._limit = limit
        self._most_pending = pending
        self._pending: list[np.ndarray] = []
        self._pending_size = 0
        self._exact = True
        self._total: float = 0
        self._minimum = self._maximum = math.nan
        # Element i counts the value i, or, once values are rounded, the value `_value_of(i)`.
        self._counts = _NO_COUNTS
        self._others = (_NO_VALUES, _NO_COUNTS)

    def add(self, values: np.ndarray) -> None:
        """Add an array of finite numbers."""
        values = values.ravel()
        if not values.size:
            return
        least, most = values.min(), values.max()
        self._minimum, self._maximum = float(np.fmin(self._minimum, least)), float(np.fmax(self._maximum, most))
        if self._exact and values.dtype.kind in "iub":
            self._reach(int(most) + 1)
            found, counted = count_whole(self._counts, values)
            values = values if not found else values[~self._fits(values)[1]] if found < len(values) else values[:0]
            self._total += counted + _sum(values)
        else:
            self._total += _sum(values)
            if not self._exact:
                values = values.astype(np.float64, copy=False)
                self._reach(int(_places_of(np.array([most], dtype=np.float64))[0]) + 1)
                found = count_rounded(self._counts, values, _DROPPED_BITS, _FIRST_PLACE)
                values = values[~self._fits(values)[1]] if found < len(values) else values[:0]
        if len(values):
            self._pending.append(values)
            self._pending_size += len(values)
        if self._pending_size >= self._most_pending:
            self._settle()

    def merge(self, later: DistributionCollector) -> None:
        """As `Sums.merge`."""
        self._settle()
        found = later.distribution()
        if not found.count:
            return
        if not found.exact and self._exact:
            self._round()
        self._total += found.total
        self._minimum = float(np.fmin(self._minimum, found.minimum))
        self._maximum = float(np.fmax(self._maximum, found.maximum))
        self._count(found.values, found.counts)
        self._settle()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return super().__getstate__() | {"_counts": _NO_COUNTS, "_others": self._all()}

    def distribution(self) -> Distribution:
        """Distribution of all that was added."""
        self._settle()
        values, counts = self._all()
        return Distribution(
            values=values,
            counts=counts,
            total=self._total,
            minimum=self._minimum,
            maximum=self._maximum,
            exact=self._exact,
        )

    def _all(self) -> tuple[np.ndarray, np.ndarray]:
        used = np.flatnonzero(self._counts)
        values = used.astype(np.float64) if self._exact else _value_of(used)
        return _tally(np.concatenate((self._others[0], values)), np.concatenate((self._others[1], self._counts[used])))

    def _settle(self) -> None:
        """Count what is pending, and round if that makes too many distinct values."""
        if self._pending:
            sample = np.concatenate(self._pending).astype(np.float64, copy=False)
            self._pending, self._pending_size = [], 0
            self._count(*np.unique(sample, return_counts=True))
        if self._exact and np.count_nonzero(self._counts) + len(self._others[0]) > self._limit:
            self._round()

    def _count(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Count ascending distinct values, in the array where they have a place."""
        if not self._exact:
            values, counts = _tally(_value_of(_places_of(values)), counts)
        places, fits = self._fits(values)
        self._reach(int(places.max(where=fits, initial=-1)) + 1)
        np.add.at(self._counts, places[fits], counts[fits])
        if not fits.all():
            others = np.concatenate((self._others[0], values[~fits])), np.concatenate((self._others[1], counts[~fits]))
            self._others = _tally(*others)

    def _round(self) -> None:
        found = self._all()
        self._exact, self._counts, self._others = False, _NO_COUNTS, (_NO_VALUES, _NO_COUNTS)
        self._count(*found)

    def _fits(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each value in the array, and whether it has one."""
        if not self._exact:
            places = _places_of(values)
            return places, (places >= 0) & (places < _MOST_PLACES)
        fits = (values >= 0) & (values < _MOST_PLACES)
        places = np.where(fits, values, 0).astype(np.int64)
        return places, fits & (places == values)

    def _reach(self, places: int) -> None:
        """Make room for so many counts, at most _MOST_PLACES."""
        if len(self._counts) < min(places, _MOST_PLACES):
            room = min(max(places, 2 * len(self._counts)), _MOST_PLACES)
            self._counts = np.concatenate((self._counts, np.zeros(room - len(self._counts), dtype=np.int64)))


def _sum(sample: np.ndarray) -> float:
    """Sum that is exact for integers: it adds the 32-bit halves separately, so that nothing overflows."""
    if sample.dtype.kind in "iub":
        sample = sample.astype(np.int64, copy=False)
        return (int((sample >> 32).sum()) << 32) + int((sample & 0xFFFF_FFFF).sum())
    return float(sample.sum())


def _places_of(values: np.ndarray) -> np.ndarray:
    """Array index (int64) at which each value (float64) is counted once values are rounded to `_KEPT_BITS` bits after
    the leading one; a carry runs into the exponent, as it should. It ascends with positive values, is negative for tiny
    ones, and lies outside of the array for all others."""
    places: np.ndarray = ((values.view(np.int64) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS) - _FIRST_PLACE
    return places


def _value_of(places: np.ndarray) -> np.ndarray:
    """The inverse of `_places_of`."""
    values: np.ndarray = ((places.astype(np.int64) + _FIRST_PLACE) << _DROPPED_BITS).view(np.float64)
    return values


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
