"""Measures how late the operations of a replay began, and the share of it that the replayer caused."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.fidelity.replayed_rows import NOT_GIVEN, ReplayedRows
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.stable_order import stable_order
from dxt_replay.traces.sums import Sums

_NEVER = np.iinfo(np.int64).min


class LatenessCollector(Sums):
    """Collects lags from rows of one rank after another, in start order, or of all of several ranks.

    The lag is begin - due. The replayer's own part of it counts from when the operation was due and its thread was
    free: while the operation before it still runs, slow storage delays it and not the replayer. `waited_ns`: the
    longest such delay.
    """

    STAY = ("_free_ns", "_rank")

    def __init__(self) -> None:
        self._lag = DistributionCollector()
        self._own = DistributionCollector()
        self.waited_ns = 0
        self._rank: int | None = None
        self._free_ns: dict[int, int] = {}

    def add(self, part: ReplayedRows) -> None:
        """Add rows, which continue the rank's earlier ones; recorded rows have no due time and are ignored. The first
        rows of another rank end the one before."""
        due = part.due_ns != NOT_GIVEN
        if not due.any():
            return
        start_ns, due_ns = part.rows.start_ns[due], part.due_ns[due]
        lag_ns, own_ns = start_ns - due_ns, np.maximum(start_ns - np.maximum(due_ns, self._thread_free(part)[due]), 0)
        self._lag.add(lag_ns)
        self._own.add(own_ns)
        self.waited_ns = max(self.waited_ns, int((lag_ns - own_ns).max()))

    def merge(self, later: LatenessCollector) -> None:
        """As `Sums.merge`."""
        self._lag.merge(later._lag)
        self._own.merge(later._own)
        self.waited_ns = max(self.waited_ns, later.waited_ns)

    def lag_ns(self) -> Distribution:
        """Begin - due."""
        return self._lag.distribution()

    def own_ns(self) -> Distribution:
        """The replayer's own part of the lag, 0 or more."""
        return self._own.distribution()

    def _thread_free(self, part: ReplayedRows) -> np.ndarray:
        """int64 (n,): when the operation before each read or write ended on its lane."""
        rows, others = part.rows, part.others
        lane, start, end = (
            np.concatenate((getattr(rows, name), getattr(others, name))) for name in ("lane", "start_ns", "end_ns")
        )
        rank = np.concatenate((rows.ranks, others.ranks))
        order = np.argsort(start, kind="stable") if len(others) else np.arange(len(start))
        order = order[stable_order(lane[order])]
        if len(rank):
            order = order[stable_order(rank[order])]
        lane, end = lane[order], end[order]
        changes = lane[1:] != lane[:-1]
        if len(rank):
            rank = rank[order]
            changes |= rank[1:] != rank[:-1]
        first = np.flatnonzero(np.concatenate(([True], changes)))
        before = np.concatenate(([_NEVER], end[:-1]))
        before[first] = _NEVER
        if not len(rank):
            self._continue(rows.rank, lane, end, first, before)
        free = np.empty(len(lane), dtype=np.int64)
        free[order] = before
        return free[: len(rows)]

    def _continue(self, rank: int, lane: np.ndarray, end: np.ndarray, first: np.ndarray, before: np.ndarray) -> None:
        """Take into `before` when the operation before the first one of each lane ended. `first`: of each lane."""
        if rank != self._rank:
            self._rank, self._free_ns = rank, {}
        last = np.append(first[1:], len(lane)) - 1
        for begin, until in zip(first.tolist(), last.tolist(), strict=True):
            before[begin] = self._free_ns.get(int(lane[begin]), _NEVER)
            self._free_ns[int(lane[begin])] = int(end[until])
