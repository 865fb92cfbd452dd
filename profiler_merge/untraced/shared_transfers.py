"""Deals the reads and writes of reduced records, which are sums over all ranks, to the ranks of a job. Pure.

The bytes of each rank are those that HEATMAP has beyond the rank's own files. Without HEATMAP, the fastest and the
slowest rank have their recorded bytes, and the others equal shares. Sums over the ranks are exact; the assignment is
inferred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses, access_sizes
from dxt_replay.profiler_merge.untraced.counted_order import Patterns
from dxt_replay.profiler_merge.untraced.timeline_slots import numbered
from dxt_replay.profiler_merge.untraced.transfers import Transfers

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWeights:
    """How the bytes of n reduced records are spread. By file int64 (n,): `fastest`, `slowest` (ranks, -1 for unknown),
    `fastest_bytes`, `slowest_bytes`. `measured`: float (2, ranks), bytes read and written by rank, or None.
    """

    fastest: np.ndarray
    fastest_bytes: np.ndarray
    slowest: np.ndarray
    slowest_bytes: np.ndarray
    measured: np.ndarray | None


class SharedTransfers:
    """Divides the accesses of n reduced records among ranks. `transfers`: those that no trace holds."""

    def __init__(self, transfers: Transfers, ranks: int, weights: RankWeights) -> None:
        self._transfers, self._ranks, self._weights = transfers, ranks, weights
        self.measured = weights.measured is not None
        accesses = access_sizes(transfers)
        new = np.ones(len(accesses), dtype=bool)
        new[1:] = (np.diff(accesses.stream) != 0) | (np.diff(accesses.size) != 0)
        begin = np.flatnonzero(new)
        count = np.diff(np.append(begin, len(accesses)))
        # A size that occurs as often as there are ranks is dealt separately: each rank gets its share.
        alone = count >= ranks
        self._alike = SizedAccesses(stream=accesses.stream[begin[alone]], size=accesses.size[begin[alone]])
        self._alike_count = count[alone]
        rest = np.repeat(~alone, count)
        accesses = SizedAccesses(stream=accesses.stream[rest], size=accesses.size[rest])
        # A slice of this order has an equal share of each other size.
        order = np.lexsort((np.modf(np.arange(len(accesses)) * _GOLDEN)[0], accesses.stream))
        self._size = accesses.size[order]
        self._counts = np.bincount(accesses.stream, minlength=2 * len(transfers))
        self._first = np.cumsum(self._counts) - self._counts
        self._before = np.append(0, np.cumsum(self._size))
        self._cumulated = None
        if weights.measured is not None:
            totals = np.maximum(weights.measured.sum(axis=1, keepdims=True), 1)
            self._cumulated = np.append(np.zeros((2, 1)), np.cumsum(weights.measured, axis=1) / totals, axis=1)
            empty = weights.measured.sum(axis=1) <= 0
            self._cumulated[empty] = np.arange(ranks + 1) / ranks

    def _parts(self, ranks: np.ndarray) -> np.ndarray:
        """Share of each stream (ranks, 2 n) of the ranks below each of `ranks`."""
        below_all = np.minimum(ranks, self._ranks - 1)
        if self._cumulated is not None:
            parts = np.tile(self._cumulated[:, below_all].T, len(self._transfers))
        else:
            of, total = self._weights, np.maximum(self._transfers.moved.reshape(-1, 2).sum(axis=1), 1)
            known = (of.fastest >= 0) & (of.slowest >= 0) & (of.fastest != of.slowest)
            quick = np.where(known, np.minimum(of.fastest_bytes / total, 1.0), 0.0)
            slow = np.where(known, np.minimum(of.slowest_bytes / total, 1.0 - quick), 0.0)
            others = np.maximum(self._ranks - 2 * known, 1)
            rest = np.where(self._ranks > 2 * known, 1.0 - quick - slow, 0.0)
            rank = below_all[:, np.newaxis]
            below = rank - known * ((of.fastest < rank).astype(int) + (of.slowest < rank))
            part = rest * below / others + quick * (of.fastest < rank) + slow * (of.slowest < rank)
            parts = np.repeat(np.clip(part, 0.0, 1.0), 2, axis=1)
        found: np.ndarray = np.where((ranks >= self._ranks)[:, np.newaxis], 1.0, parts)
        return found

    def _alike_until(self, part: np.ndarray) -> np.ndarray:
        """Number of each frequent size of the ranks that together have `part` of each stream (..., 2 n)."""
        phase = np.modf(np.arange(len(self._alike)) * _GOLDEN)[0]
        exact = np.round(self._alike_count * part[..., self._alike.stream] + phase, 6)
        return np.minimum(np.floor(exact).astype(np.int64), self._alike_count)

    def deals_to(self, ranks: np.ndarray) -> np.ndarray:
        """bool (r,): which of these ranks have any access."""
        parts = [self._parts(ranks), self._parts(ranks + 1)]
        low, high = (np.rint(self._counts * part).astype(np.int64) for part in parts)
        alike = self._alike_until(parts[1]) > self._alike_until(parts[0])
        return np.asarray((high > low).any(axis=1) | alike.any(axis=1))

    def _bytes_until(self, part: np.ndarray) -> np.ndarray:
        """The bytes of these ranks, by stream."""
        until = np.rint(self._counts * part).astype(np.int64)
        moved = self._before[self._first + until] - self._before[self._first]
        np.add.at(moved, self._alike.stream, self._alike.size * self._alike_until(part))
        return moved

    def of_rank(self, rank: int, opens: np.ndarray) -> tuple[SizedAccesses, Patterns]:
        """Accesses and patterns of one rank, by stream of the n records. `opens` (n,): the rank's own."""
        whole, (low_part, high_part) = self._transfers, self._parts(np.array([rank, rank + 1]))
        begin, end = (np.rint(self._counts * part).astype(np.int64) for part in (low_part, high_part))
        stream, place = numbered(np.maximum(end - begin, 0))
        size = self._size[(self._first + begin)[stream] + place]
        alike_begin, alike_end = self._alike_until(low_part), self._alike_until(high_part)
        cell, _ = numbered(np.maximum(alike_end - alike_begin, 0))
        stream = np.concatenate((stream, self._alike.stream[cell]))
        size = np.concatenate((size, self._alike.size[cell]))
        order = np.lexsort((-size, stream))
        count = np.bincount(stream, minlength=len(whole.count))

        def share(total: np.ndarray) -> np.ndarray:
            """Cumulated, rounded up: the first ranks come first."""
            low, high = (low_part, high_part) if total.ndim == 1 else (low_part[:, None], high_part[:, None])
            part: np.ndarray = np.ceil(np.round(total * high, 6)) - np.ceil(np.round(total * low, 6))
            return part.astype(np.int64)

        apart_all = np.where(whole.consec < 0, 0, np.maximum(whole.count - whole.consec, 0))
        backward_all = np.where(whole.seq < 0, 0, np.maximum(whole.count - whole.seq, 0))
        apart = np.clip(share(apart_all), np.minimum(count, 1), np.maximum(count, 1))
        gap, gap_count = np.repeat(whole.stride, 2, axis=0), np.repeat(whole.stride_count, 2, axis=0)
        gap_count = gap_count * (whole.count > 0)[:, None]
        gaps = (gap * gap_count).sum(axis=1)
        low, high = self._regions(backward_all, gaps, (low_part, high_part), rank)
        # If the order is not counted, a rank works through its region, repeatedly if it moved more.
        moved = SizedAccesses(stream=stream, size=size).moved(len(count))
        passes = np.clip(-(-moved // np.maximum(high - low, 1)), np.minimum(count, 1), np.maximum(count, 1))
        ordered = whole.consec >= 0
        patterns = Patterns(
            backward=np.where(ordered, np.minimum(share(backward_all), apart), passes),
            apart=np.where(ordered, apart, passes),
            low=low,
            high=high,
            opens=np.where(ordered, np.repeat(opens, 2), passes),
            gap=gap,
            gap_count=share(gap_count),
        )
        return SizedAccesses(stream=stream[order], size=size[order]), patterns

    def _regions(
        self,
        backward: np.ndarray,
        gaps: np.ndarray,
        parts: tuple[np.ndarray, np.ndarray],
        rank: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rank's part of the file: a region of its own, in turns with the others, or all of it."""
        whole = self._transfers
        free = whole.end - whole.moved - gaps
        own = (backward < self._ranks) & (free >= 0)
        in_turns = (backward < self._ranks) & (free < 0) & (whole.moved <= whole.end)
        low, high = (
            self._bytes_until(part) + np.floor(np.maximum(free, 0) * part).astype(np.int64) for part in parts
        )  # fmt: skip
        # A region includes the gaps of its rank.
        low, high = (
            value + np.floor(gaps * part).astype(np.int64) for value, part in zip((low, high), parts, strict=True)
        )
        each = whole.moved // np.maximum(whole.count, 1)
        low = np.where(own, low, np.where(in_turns, np.minimum(rank * each, whole.end), 0))
        last = np.maximum(whole.end - (self._ranks - 1 - rank) * each, low)
        return low, np.where(own, np.maximum(high, low), np.where(in_turns, last, whole.end))
