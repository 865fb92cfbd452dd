"""Reads and writes in the counters of one log, by rank, with what HEATMAP says of their times."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np

from profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from profiler_merge.darshan.dxt import read_dxt
from profiler_merge.darshan.heatmap import read_heatmap
from profiler_merge.darshan.log import DarshanLog
from profiler_merge.untraced.access_times import Activity
from profiler_merge.untraced.data_rows import CountedData, untraced_part
from profiler_merge.untraced.metadata_rows import FileOperations
from profiler_merge.untraced.rank_counters import application_records
from profiler_merge.untraced.shared_transfers import RankWeights, SharedTransfers
from profiler_merge.untraced.transfers import Transfers, transfers_of
from traces.units import NS_PER_S

_HEATMAP = b"heatmap:POSIX"


class RankData:
    """The reads and writes at POSIX of one log. Files are in the order of `rank_counters.RankCounters`.

    `fixed_rank`: the rank of the log's only process, None for the log of a whole job of `ranks` ranks.
    Raises: LogError as `read_counters`.
    """

    def __init__(
        self, log: DarshanLog, ranks: int, *, fixed_rank: int | None = None, excluded: Collection[int] = ()
    ) -> None:
        self._log, self._ranks, self._fixed_rank = log, ranks, fixed_rank
        table = read_counters(log, "POSIX")
        self._table = table
        if table is None:
            return
        kept = application_records(log, table, excluded)
        of_rank = table.ranks[kept]
        shared = (of_rank == SHARED_RANK) & (fixed_rank is None)
        if fixed_rank is not None:
            of_rank = np.full(len(of_rank), fixed_rank)
        order = np.flatnonzero(~shared)[np.argsort(of_rank[~shared], kind="stable")]
        whole = transfers_of(table, "POSIX", kept)
        self._own_ranks, self._own = of_rank[order], whole.select(order)
        self._shared_rows = np.flatnonzero(kept)[shared]
        self._shared_transfers = whole.select(np.flatnonzero(shared))

    def of_rank(self, rank: int, opens: np.ndarray) -> CountedData | None:
        """What one rank read and wrote; None without POSIX counters. `opens`: of its files, own and then shared."""
        if self._table is None:
            return None
        first, last = np.searchsorted(self._own_ranks, [rank, rank + 1])
        own = self._own.select(np.arange(first, last))
        accesses = patterns = None
        if self._shared is not None:
            accesses, patterns = self._shared.of_rank(rank, opens[len(own) :])
        return CountedData(own=own, shared=accesses, patterns=patterns)

    def activity(self, rank: int) -> Activity | None:
        """HEATMAP of one rank, its edges in ns on the log's clock; None where the log has none."""
        return self._activities.get(rank if self._fixed_rank is None else 0)

    @property
    def shared_counted(self) -> Transfers | None:
        """The counters of the reduced records; None where the trace holds all of them."""
        return self._shared_transfers if self._shared is not None else None

    @cached_property
    def _activities(self) -> dict[int, Activity]:
        found = {}
        for record in read_heatmap(self._log):
            if self._log.names.get(record.record_id) != _HEATMAP or not len(record.read_bins):
                continue
            edges = np.arange(len(record.read_bins) + 1) * (record.bin_width_s * NS_PER_S)
            found[record.rank] = Activity(
                edges=edges.astype(np.int64),
                read=np.maximum(record.read_bins, 0),
                write=np.maximum(record.write_bins, 0),
            )
        return found

    @cached_property
    def _shared(self) -> SharedTransfers | None:
        if not self._missing.count.any():
            return None
        assert self._table is not None
        return SharedTransfers(self._missing, self._ranks, _weights(self._table, self._shared_rows, self._measured()))

    @cached_property
    def _missing(self) -> Transfers:
        assert self._table is not None
        counted = self._shared_transfers
        if not len(counted) or "DXT_POSIX" not in self._log.modules:
            return counted
        return untraced_part(counted, _traced(self._log, self._table.record_ids[self._shared_rows]))

    def _measured(self) -> np.ndarray | None:
        """Bytes (2, ranks) that each rank read and wrote of reduced records, where HEATMAP tells."""
        if not self._activities or self._ranks <= 0 or max(self._activities) >= self._ranks:
            return None
        moved = np.zeros((2, self._ranks))
        for rank, activity in self._activities.items():
            moved[:, rank] = activity.read.sum(), activity.write.sum()
        for way in (0, 1):
            np.subtract.at(moved[way], self._own_ranks, self._own.moved[way::2])
        return np.maximum(moved, 0)


def _weights(table: CounterTable, rows: np.ndarray, measured: np.ndarray | None) -> RankWeights:
    def column(name: str) -> np.ndarray:
        return table.counters[f"POSIX_{name}"][rows]

    return RankWeights(
        fastest=column("FASTEST_RANK"),
        fastest_bytes=np.maximum(column("FASTEST_RANK_BYTES"), 0),
        slowest=column("SLOWEST_RANK"),
        slowest_bytes=np.maximum(column("SLOWEST_RANK_BYTES"), 0),
        measured=measured,
    )


def _traced(log: DarshanLog, record_ids: np.ndarray) -> FileOperations:
    """The traced operations of these files, of all ranks, by file; their times are left out.

    Raises: LogError when the log is damaged.
    """
    by_id = np.argsort(record_ids)
    parts = []
    for block in read_dxt(log, "DXT_POSIX"):
        place = np.minimum(np.searchsorted(record_ids[by_id], block.record_ids), len(by_id) - 1)
        mine = (record_ids[by_id[place]] == block.record_ids)[block.record]
        file = by_id[place[block.record[mine]]]
        parts.append((file, block.offset[mine], block.length[mine], block.is_write[mine]))
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return FileOperations(file=none, start=none, end=none, offset=none, length=none, is_write=none.astype(bool))
    file, offset, length, is_write = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(file, kind="stable")
    none = np.zeros(len(file), dtype=np.int64)
    return FileOperations(
        file=file[order], start=none, end=none, offset=offset[order], length=length[order], is_write=is_write[order]
    )
