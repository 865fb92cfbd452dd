"""Puts the ranks of a job on one line of time, one after the other, so that one array operation serves all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures.intervals import Intervals

_MOST_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLine:
    """Ranks whose times lie on one line. The place of a rank is its index in `ranks`.

    ranks: int64 (k,), ascending.
    first_ns: the earliest time of any of them.
    width_ns: room for the times of each; at least one nanosecond between two ranks stays free.
    """

    ranks: np.ndarray
    first_ns: int
    width_ns: int

    def places(self, ranks: np.ndarray) -> np.ndarray:
        """Places (n,) of some of its ranks."""
        return np.searchsorted(self.ranks, ranks)

    def put(self, times_ns: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Times of ranks at these places, moved onto the line."""
        result: np.ndarray = times_ns + (places * self.width_ns - self.first_ns)
        return result

    def places_at(self, on_line: np.ndarray) -> np.ndarray:
        """The place of the rank to which each time on the line belongs."""
        result: np.ndarray = on_line // self.width_ns
        return result

    def taken(self, on_line: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Inverse of `put`."""
        result: np.ndarray = on_line - (places * self.width_ns - self.first_ns)
        return result

    def edges(self) -> np.ndarray:
        """int64 (k + 1,): begin of each rank's times on the line, and end of the last rank's."""
        return np.arange(len(self.ranks) + 1, dtype=np.int64) * self.width_ns

    def lengths(self, times: Intervals) -> np.ndarray:
        """int64 (k,): length of a set of times on the line, by rank."""
        edges = self.edges()
        return times.covered_within(edges[:-1], edges[1:])


def rank_lines(ranks: Sequence[int], first_ns: int, last_ns: int) -> list[RankLine]:
    """The ranks, ascending, on as few lines as have room for times from `first_ns` to `last_ns` of each;
    usually one."""
    width = last_ns - first_ns + 2
    most = max(_MOST_NS // width, 1)
    return [
        RankLine(ranks=np.array(ranks[begin : begin + most], dtype=np.int64), first_ns=first_ns, width_ns=width)
        for begin in range(0, len(ranks), most)
    ]
