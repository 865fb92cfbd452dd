"""How late the operations of a replay began, and how much of that was the replayer's own doing."""

from __future__ import annotations

import numpy as np

from replay.fidelity.replayed_rows import NOT_GIVEN, ReplayedRows
from traces.measures.distribution import Distribution, DistributionCollector
from traces.measures.stable_order import runs, stable_order
from traces.sums import Sums

_NEVER = np.iinfo(np.int64).min


class LatenessCollector(Sums):
    """Collects lags from rows of one rank after another, in start order.

    The lag is begin - due. The replayer's own part of it counts from when the operation was due and its thread was
    free: while the operation before it still runs, slow storage delays it and not the replayer.
    """

    STAY = ("_free_ns",)

    def __init__(self) -> None:
        self._lag = DistributionCollector()
        self._own = DistributionCollector()
        self._free_ns: dict[tuple[int, int], int] = {}

    def add(self, part: ReplayedRows) -> None:
        """Add rows, which continue the rank's earlier ones; recorded rows have no due time and are ignored."""
        due = part.due_ns != NOT_GIVEN
        if not due.any():
            return
        start_ns, due_ns = part.rows.start_ns[due], part.due_ns[due]
        self._lag.add(start_ns - due_ns)
        self._own.add(np.maximum(start_ns - np.maximum(due_ns, self._thread_free(part)[due]), 0))

    def merge(self, later: LatenessCollector) -> None:
        """As `Sums.merge`."""
        self._lag.merge(later._lag)
        self._own.merge(later._own)

    def lag_ns(self) -> Distribution:
        """Begin - due."""
        return self._lag.distribution()

    def own_ns(self) -> Distribution:
        """The replayer's own part of the lag, 0 or more."""
        return self._own.distribution()

    def _thread_free(self, part: ReplayedRows) -> np.ndarray:
        """int64 (n,): when the operation before each read or write ended on its lane."""
        both = (part.rows, part.others)
        lane, start, end = (
            np.concatenate([getattr(rows, name) for rows in both]) for name in ("lane", "start_ns", "end_ns")
        )
        order = np.lexsort((start, lane)) if len(part.others) else stable_order(lane)
        lane, end = lane[order], end[order]
        first = runs(lane)
        before = np.concatenate(([_NEVER], end[:-1]))
        last = np.append(first[1:], len(lane)) - 1
        rank = part.rows.rank
        for begin, until in zip(first.tolist(), last.tolist(), strict=True):
            key = rank, int(lane[begin])
            before[begin] = self._free_ns.get(key, _NEVER)
            self._free_ns[key] = int(end[until])
        free = np.empty(len(lane), dtype=np.int64)
        free[order] = before
        return free[: len(part.rows)]
