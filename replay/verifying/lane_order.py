"""Operations of a lane must not overlap: each begins when the one before it has ended, or later."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.replay.verifying.checked import Difference
from dxt_replay.traces.row_order import distinct
from dxt_replay.traces.stable_order import stable_order

_NEVER = int(np.iinfo(np.int64).min)


class LaneOrder:
    """Looks for overlap in the operations of ranks that come one after the other, in the order of their rows.

    Memory: a few numbers for each lane of one rank.
    """

    def __init__(self) -> None:
        self._rank, self._row = -1, 0
        self._ends: dict[int, int] = {}
        self._named: set[int] = set()

    def add(self, rows: pa.Table) -> list[Difference]:
        """Look at the next rows. Returns the first overlap of each lane, unless an earlier call returned one."""
        if not rows.num_rows:
            return []
        rank, lane, start, end = (rows[name].to_numpy() for name in ("rank", "lane", "start_ns", "end_ns"))
        self._begin(int(rank[0]))
        # Both numbers have 31 bits.
        lanes, first, of_row = distinct(rank.astype(np.int64) << 32 | lane)
        order = stable_order(of_row)
        before = np.empty(len(order), dtype=np.int64)
        before[order[1:]] = end[order[:-1]]
        before[first] = [self._ends.get(each, _NEVER) for each in lanes.tolist()]
        late = np.flatnonzero(start < before)
        late = late[np.sort(distinct(of_row[late]).first)]
        begin_of_rank = np.searchsorted(rank, rank[late])
        found = []
        for row, begin in zip(late.tolist(), begin_of_rank.tolist(), strict=True):
            key = int(lanes[of_row[row]])
            if key not in self._named:
                self._named.add(key)
                number = row - begin + (self._row if rank[row] == self._rank else 0)
                found.append(_difference(int(rank[row]), int(lane[row]), number, int(before[row]), int(start[row])))
        last = order[np.cumsum(np.bincount(of_row)) - 1]
        self._row += int(np.searchsorted(rank, self._rank, side="right"))
        if rank[-1] != self._rank:
            self._begin(int(rank[-1]))
            self._row = int((rank == rank[-1]).sum())
        mine = rank[last] == rank[-1]
        self._ends.update(zip(lanes[mine].tolist(), end[last[mine]].tolist(), strict=True))
        return found

    def _begin(self, rank: int) -> None:
        if rank != self._rank:
            self._rank, self._row, self._ends, self._named = rank, 0, {}, set()


def _difference(rank: int, lane: int, row: int, before_ns: int, start_ns: int) -> Difference:
    return Difference(
        file="ops",
        what=f"lane {lane} of rank {rank}: start_ns of row {row} of the rank",
        expected=f"at least {before_ns}, the end of the operation before it on the lane",
        found=str(start_ns),
    )
