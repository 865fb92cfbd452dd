"""Unions, intersections and differences of half-open time intervals [start, end), in int64 ns. Pure.

"Busy" and "in flight" are always the length of a union: a sum counts a nanosecond once per thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dxt_replay.traces.measures._passes import covered_before, joined, newly_covered
from dxt_replay.traces.sums import Sums

_NEVER = np.iinfo(np.int64).min
_PENDING = 1 << 18
"""Intervals that a `BoundedUnion` collects before it merges them, or as many as the union has if those are more."""

_MOST_WIDTH = 1 << 62

_NO_TIMES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """A set of times as disjoint intervals in ascending order that do not touch; int64 arrays of equal shape (n,).

    Make one with `union_of`; the constructor trusts its arguments.
    """

    starts: np.ndarray = field(default_factory=lambda: _NO_TIMES)
    ends: np.ndarray = field(default_factory=lambda: _NO_TIMES)

    @classmethod
    def union_of(cls, starts: np.ndarray, ends: np.ndarray) -> Intervals:
        """The union of intervals in any order; intervals that end at or before their start are empty and vanish.

        After sorting starts and ends apart, a gap lies before start i + 1 exactly where the i + 1 earliest ends all
        come before it: no index sort is needed.
        """
        if np.any(ends <= starts):
            real = ends > starts
            starts, ends = starts[real], ends[real]
        return cls.of_ascending(np.sort(starts), np.sort(ends))

    @classmethod
    def of_ascending(cls, starts: np.ndarray, ends: np.ndarray) -> Intervals:
        """The union of non-empty intervals that ascend and do not overlap; they may touch."""
        starts, ends = joined(starts, ends)
        return cls(starts=starts, ends=ends)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def length_ns(self) -> int:
        """Total time covered."""
        return int((self.ends - self.starts).sum())

    def covered_before(self, times: np.ndarray) -> np.ndarray:
        """For each of `times` (n,), the length of this set before it (int64 ns); fast for times in order."""
        return covered_before(self.starts, self.ends, times)

    def covered_within(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """For each interval [starts[i], ends[i]), the part that this set covers (int64 ns)."""
        covered: np.ndarray = self.covered_before(ends) - self.covered_before(starts)
        return covered

    def union(self, other: Intervals) -> Intervals:
        """Times in either set."""
        return Intervals.union_of(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def minus(self, other: Intervals) -> Intervals:
        """Times in this set and not in the other."""
        if not len(self) or not len(other):
            return self
        times = np.concatenate((self.starts, self.ends, other.starts, other.ends))
        order = np.argsort(times, kind="stable")
        mine, others = 2 * len(self), 2 * len(other)
        here = np.repeat([1, -1, 0], [len(self), len(self), others])[order].cumsum() > 0
        there = np.repeat([0, 1, -1], [mine, len(other), len(other)])[order].cumsum() > 0
        edges = times[order]
        piece = (here & ~there)[:-1]
        return Intervals.union_of(edges[:-1][piece], edges[1:][piece])


class StreamingUnion:
    """Length of the union of intervals that arrive in the order of their start, with one number of state."""

    def __init__(self) -> None:
        self._reach = _NEVER
        self.length_ns = 0

    def add(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add intervals; returns the (starts, ends) of what they cover for the first time, disjoint and ascending."""
        begins, ends, self._reach = newly_covered(starts, ends, self._reach)
        self.length_ns += int((ends - begins).sum())
        return begins, ends


def group_unions(starts: np.ndarray, ends: np.ndarray, group: np.ndarray) -> tuple[Intervals, np.ndarray]:
    """The union of the intervals of each group, one group after the other, and the group of each resulting interval.

    `group`: int64 (n,), ascending from 0; the intervals of a group are in the order of their start.
    """
    if not len(starts):
        return Intervals(), group
    first, last, groups = int(starts.min()), int(ends.max()), int(group[-1]) + 1
    width = last - first + 1
    if groups * width >= _MOST_WIDTH:
        parts = []
        for number in np.unique(group).tolist():
            mine = group == number
            parts.append(Intervals.of_ascending(*StreamingUnion().add(starts[mine], ends[mine])))
        begins, until = (np.concatenate(times) for times in zip(*map(_times, parts), strict=True))
        union = Intervals(starts=begins, ends=until)
        return union, np.repeat(np.unique(group), [len(part) for part in parts])
    # Shift each group behind the previous one, so that one pass serves all.
    shift = group * width - first
    union = Intervals.of_ascending(*StreamingUnion().add(starts + shift, ends + shift))
    group = union.starts // width
    shift = group * width - first
    return Intervals(starts=union.starts - shift, ends=union.ends - shift), group


class BoundedUnion(Sums):
    """Union of any number of intervals in any order in bounded memory.

    Exact up to `limit` disjoint intervals. Beyond that the shortest gaps are closed; `closed_ns` is their total length,
    so the union is too long by at most that.
    """

    def __init__(self, limit: int = 1 << 21) -> None:
        self._limit = limit
        self._union = Intervals()
        self._pending: list[Intervals] = []
        self._pending_size = 0
        self.closed_ns = 0

    def add(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Add intervals in any order."""
        self.add_union(Intervals.union_of(starts, ends))

    def add_union(self, part: Intervals) -> None:
        """Add a union."""
        self._pending.append(part)
        self._pending_size += len(part)
        if self._pending_size >= max(min(self._limit, _PENDING), len(self._union)):
            self._merge()

    def merge(self, later: BoundedUnion) -> None:
        """As `Sums.merge`; adds the gaps that both closed."""
        self.add_union(later.intervals())
        self.closed_ns += later.closed_ns

    def intervals(self) -> Intervals:
        """The union of all that was added."""
        self._merge()
        return self._union

    def _merge(self) -> None:
        if not self._pending:
            return
        parts = [self._union, *self._pending]
        # The parts ascend, and a stable sort merges ascending parts in linear time.
        starts, ends = (
            np.sort(np.concatenate(times), kind="stable") for times in zip(*map(_times, parts), strict=True)
        )
        merged = Intervals.of_ascending(starts, ends)
        self._pending, self._pending_size = [], 0
        self._union = self._close_gaps(merged) if len(merged) > self._limit else merged

    def _close_gaps(self, merged: Intervals) -> Intervals:
        """Keep the longest `limit // 2` gaps, so that the next closing is far away."""
        gaps = merged.starts[1:] - merged.ends[:-1]
        order = np.argpartition(gaps, len(gaps) - self._limit // 2)
        kept = np.sort(order[len(gaps) - self._limit // 2 :])
        self.closed_ns += int(gaps.sum() - gaps[kept].sum())
        return Intervals(
            starts=np.concatenate((merged.starts[:1], merged.starts[kept + 1])),
            ends=np.concatenate((merged.ends[kept], merged.ends[-1:])),
        )


def _times(part: Intervals) -> tuple[np.ndarray, np.ndarray]:
    return part.starts, part.ends
