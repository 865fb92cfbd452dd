"""The distribution of a quantity over a whole capture, in bounded memory: quantiles, mean, and distances to another.

Exact while at most `EXACT_VALUES` values are distinct (a median then equals `numpy.median`). Beyond that values are
rounded to 12 bits of mantissa: relative error at most 2**-13, and about 4096 distinct values per factor of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dxt_replay.traces.measures._passes import count_rounded, count_whole, has_more_hashes
from dxt_replay.traces.measures.byte_planes import from_planes, from_step_planes, planes, step_planes
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
_PLACES_PER_VALUE = 4
"""Elements of an array of counts: at most 8 MiB, and at most this many per value of the sample."""

_ORDER = 2
"""Differences of values that are sent: bandwidths of one size are 1/n, 1/(n+1) and so on, of which these are small."""

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
    """Collects a distribution batch by batch; keeps at most `limit` distinct values, plus `pending` new ones.

    An array indexed by value counts small whole numbers, and all numbers once they are rounded; it needs no sorting.
    Other values are kept in ascending order with their counts.
    """

    def __init__(self, limit: int = EXACT_VALUES, pending: int = _PENDING_VALUES) -> None:
        self._limit = limit
        self._most_pending = pending
        self._pending: list[np.ndarray] = []
        self._pending_size = 0
        # Numbers that are added up but not counted yet: of enough floats it can be seen that they are too many.
        self._uncounted: list[np.ndarray] = []
        self._exact, self._whole = True, 0
        self._total: float = 0
        self._minimum = self._maximum = math.nan
        # Element i counts the value i, or, once values are rounded, the value `_value_of(i)`.
        self._counts = _NO_COUNTS
        self._others = (_NO_VALUES, _NO_COUNTS)

    def add(self, values: np.ndarray) -> None:
        """Add an array of finite numbers."""
        values = values.ravel()
        if self._exact and values.size and values.dtype.kind in "iub":
            values = self._count_small(values)
        if values.size:
            self._pending.append(values)
            self._pending_size += values.size
        if self._pending_size >= self._most_pending:
            self._add_pending()
            if not self._exact or values.dtype.kind != "f" or sum(map(len, self._uncounted)) * 4 >= self._limit * 5:
                self._merge()

    def merge(self, later: DistributionCollector) -> None:
        """As `Sums.merge`."""
        self._merge()
        later._merge()
        if self._exact and not later._exact:
            self._round()
        elif later._exact and not self._exact:
            later._round()
        self._add_up(later._total, later._minimum, later._maximum)
        self._add_counts(later._counts)
        self._add_others(*later._others)
        self._keep_to_limit()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the counts, and the differences of the differences of the values, as planes of bytes."""
        self._merge()
        state = super().__getstate__()
        if len(used := np.flatnonzero(self._counts)) * _PLACES_PER_VALUE < len(self._counts):
            state["_others"] = _joined(self._others, (self._values_at(used), self._counts[used]))
            state["_counts"] = _NO_COUNTS
        values, counts = state["_others"]
        steps = step_planes(values.view(np.int64), _ORDER)
        return state | {"_counts": planes(state["_counts"]), "_others": (steps, planes(counts))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps, counts = state["_others"]
        others = from_step_planes(steps, _ORDER).view(np.float64), from_planes(counts)
        super().__setstate__(state | {"_counts": from_planes(state["_counts"]), "_others": others})

    def distribution(self) -> Distribution:
        """Distribution of all that was added."""
        self._merge()
        if math.isnan(self._minimum):
            return Distribution()
        used = np.flatnonzero(self._counts)
        values, counts = _joined(self._others, (self._values_at(used), self._counts[used]))
        return Distribution(
            values=values,
            counts=counts,
            total=self._total,
            minimum=self._minimum,
            maximum=self._maximum,
            exact=self._exact,
        )

    def _merge(self) -> None:
        self._add_pending()
        if self._uncounted:
            sample = np.concatenate(self._uncounted)
            self._uncounted = []
            self._count(sample)
        self._keep_to_limit()

    def _add_pending(self) -> None:
        if not self._pending:
            return
        sample = np.concatenate(self._pending)
        self._pending, self._pending_size = [], 0
        self._add_up(_sum(sample), float(sample.min()), float(sample.max()))
        self._uncounted.append(sample)

    def _add_up(self, total: float, minimum: float, maximum: float) -> None:
        self._total += total
        self._minimum = float(np.fmin(self._minimum, minimum))
        self._maximum = float(np.fmax(self._maximum, maximum))

    def _count(self, sample: np.ndarray) -> None:
        """Count values one by one; whole numbers have had their chance of a place in the array."""
        if not self._exact:
            sample = sample.astype(np.float64, copy=False)
            self._reach(int(_places_of(sample.max(keepdims=True))[0]) + 1)
            if count_rounded(self._counts, sample, _DROPPED_BITS, _FIRST_PLACE) == len(sample):
                return
            sample = sample[~self._in_array(sample)]
        if self._exact and not len(self._counts) and _surely_more(sample, self._limit):
            self._round()
            self._count(sample)
            return
        ordered = np.sort(sample).astype(np.float64)
        if not self._exact:
            ordered = _round_mantissa(ordered)
        first = runs(ordered)
        found = ordered[first], np.diff(first, append=len(ordered))
        if self._exact and not len(self._counts) and self._is_too_many(found[0]):
            self._round()  # counts of equal values are added later, by their places: that is cheaper than by sorting
            self._add_rounded(found)
        else:
            self._add_others(*found)

    def _count_small(self, values: np.ndarray) -> np.ndarray:
        """Count the whole numbers for which the array has a place, and return the others."""
        self._whole += len(values)
        least, most = int(values.min()), int(values.max())
        self._reach(min(most + 1, _PLACES_PER_VALUE * self._whole))
        found, total = count_whole(self._counts, values)
        self._add_up(total, least, most)
        return values[:0] if found == len(values) else values[~self._in_array(values)]

    def _reach(self, places: int) -> None:
        """Make room for so many counts, at most _MOST_PLACES."""
        known = len(self._counts)
        if known < min(places, _MOST_PLACES):
            self._add_counts(np.zeros(min(max(places, 2 * known), _MOST_PLACES), dtype=np.int64))

    def _add_counts(self, counts: np.ndarray) -> None:
        """Add a dense histogram. If it is longer than ours, grow ours and move sparse values into it that now fit."""
        if len(counts) <= len(self._counts):
            self._counts[: len(counts)] += counts
            return
        grown = counts.astype(np.int64)
        grown[: len(self._counts)] += self._counts
        self._counts = grown
        others, self._others = self._others, (_NO_VALUES, _NO_COUNTS)
        self._add_others(*others)

    def _add_others(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Add ascending distinct values and their counts: to the array those that fit there, the others to the sparse
        list."""
        if len(values) and len(self._counts):
            fits = self._in_array(values)
            self._counts[_places_of(values[fits]) if not self._exact else values[fits].astype(np.int64)] += counts[fits]
            values, counts = values[~fits], counts[~fits]
        if len(values):
            self._others = _joined(self._others, (values, counts.astype(np.int64, copy=False)))

    def _is_too_many(self, values: np.ndarray) -> bool:
        """Whether these ascending distinct values and the sparse list have more distinct ones than the limit."""
        if len(self._others[0]) + len(values) <= self._limit:
            return False
        both = np.sort(np.concatenate((self._others[0], values)), kind="stable")  # merges both in linear time
        return bool(np.count_nonzero(both[1:] != both[:-1]) >= self._limit)

    def _in_array(self, values: np.ndarray) -> np.ndarray:
        if not self._exact:
            return _places_of(values).view(np.uint64) < len(self._counts)
        found: np.ndarray = (values >= 0) & (values < len(self._counts)) & (values == np.floor(values))
        return found

    def _values_at(self, places: np.ndarray) -> np.ndarray:
        return places.astype(np.float64) if self._exact else _value_of(places)

    def _keep_to_limit(self) -> None:
        if self._exact and np.count_nonzero(self._counts) + len(self._others[0]) > self._limit:
            self._round()

    def _round(self) -> None:
        used = np.flatnonzero(self._counts)
        found = (self._values_at(used), self._counts[used]), self._others
        self._exact, self._counts, self._others = False, _NO_COUNTS, (_NO_VALUES, _NO_COUNTS)
        for each in found:
            self._add_rounded(each)

    def _add_rounded(self, exact: tuple[np.ndarray, np.ndarray]) -> None:
        """Add exact values and their counts after values are rounded."""
        values, counts = exact
        places = _places_of(values)
        fits = places.view(np.uint64) < _MOST_PLACES
        self._add_counts(np.bincount(places[fits], weights=counts[fits]).astype(np.int64))
        if not fits.all():
            self._add_others(*_tally(_round_mantissa(values[~fits]), counts[~fits]))


def _surely_more(sample: np.ndarray, limit: int) -> bool:
    """Whether hashes show that the sample has more than `limit` distinct values, which spares sorting them.

    Different hashes are of different values. Some values share a hash, so of slightly more values this is False.
    """
    return len(sample) > limit and has_more_hashes((sample + 0.0).view(np.uint64), limit)  # the sum makes -0.0 into 0.0


def _sum(sample: np.ndarray) -> float:
    """Sum that is exact for integers: it adds the 32-bit halves separately, so that nothing overflows."""
    if sample.dtype.kind in "iub":
        sample = sample.astype(np.int64, copy=False)
        return (int((sample >> 32).sum()) << 32) + int((sample & 0xFFFF_FFFF).sum())
    return float(sample.sum())


def _round_mantissa(values: np.ndarray) -> np.ndarray:
    """Nearest float64 with `_KEPT_BITS` bits after the leading one; a carry runs into the exponent, as it should."""
    bits = values.view(np.int64) + (1 << (_DROPPED_BITS - 1))
    rounded: np.ndarray = (bits & ~((1 << _DROPPED_BITS) - 1)).view(np.float64)
    return rounded


def _places_of(values: np.ndarray) -> np.ndarray:
    """Array index (int64) at which each rounded value (float64) is counted. It ascends with positive values, is
    negative for tiny ones, and lies outside of the array for all others."""
    places: np.ndarray = ((values.view(np.int64) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS) - _FIRST_PLACE
    return places


def _value_of(places: np.ndarray) -> np.ndarray:
    """The inverse of `_places_of`."""
    values: np.ndarray = ((places.astype(np.int64) + _FIRST_PLACE) << _DROPPED_BITS).view(np.float64)
    return values


def _joined(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Merge two sorted lists of (distinct values, counts)."""
    if not len(one[0]) or not len(other[0]):
        return other if not len(one[0]) else one
    return _tally(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))


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
