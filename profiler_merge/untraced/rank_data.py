"""Reads and writes in the counters of one log and one interface, by rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.dxt import SegmentCounts, read_dxt
from dxt_replay.profiler_merge.darshan.heatmap import read_heatmap
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.untraced.data_rows import RECONSTRUCT_LIMIT, CountedData, untraced_part
from dxt_replay.profiler_merge.untraced.file_operations import FileOperations
from dxt_replay.profiler_merge.untraced.rank_counters import TRACE, CountedFiles, application_records
from dxt_replay.profiler_merge.untraced.shared_transfers import RankWeights, SharedTransfers
from dxt_replay.profiler_merge.untraced.timeline_slots import numbered
from dxt_replay.profiler_merge.untraced.transfers import Transfers, transfers_of
from dxt_replay.traces.errors import LogError

MOST_SHARED = 4 * RECONSTRUCT_LIMIT
"""Most reads and writes of reduced records that are dealt; each takes some 60 bytes of memory."""


class RankData:
    """The reads and writes at one `module` of one log. Files are in the order of `rank_counters.RankCounters`.

    `fixed_rank`: the rank of the log's only process, None for the log of a whole job of `ranks` ranks.
    `traced`: as of `RankCounters`, for this module.
    Raises: LogError as `read_counters`.
    """

    def __init__(
        self,
        log: DarshanLog,
        ranks: int,
        module: str,
        *,
        traced: Sequence[SegmentCounts] = (),
        fixed_rank: int | None = None,
        excluded: Collection[int] = (),
    ) -> None:
        self._log, self._ranks, self._module = log, ranks, module
        self._traced = traced
        table = read_counters(log, module)
        self._table = table
        if table is None:
            return
        kept = application_records(log, table, excluded)
        of_rank = table.ranks[kept]
        shared = (of_rank == SHARED_RANK) & (fixed_rank is None)
        if fixed_rank is not None:
            of_rank = np.full(len(of_rank), fixed_rank)
        order = np.flatnonzero(~shared)[np.argsort(of_rank[~shared], kind="stable")]
        whole = transfers_of(table, module, kept)
        self._own_ranks, self._own = of_rank[order], whole.select(order)
        self._shared_rows = np.flatnonzero(kept)[shared]
        self._shared_transfers = whole.select(np.flatnonzero(shared))

    def untraced(self, files: CountedFiles, ranks: np.ndarray, traced: np.ndarray) -> dict[int, CountedData]:
        """Reads and writes of some ranks (ascending) that the trace does not hold completely, by place in `ranks`.

        `files`: of these ranks. `traced` int64 (2 files,): how many operations of each stream the trace holds.
        """
        if self._table is None:
            return {}
        first, last = (np.searchsorted(self._own_ranks, ranks, side=side) for side in ("left", "right"))
        process, number = numbered(last - first)
        begin, end = (np.searchsorted(files.process, np.arange(len(ranks)), side=side) for side in ("left", "right"))
        counted = self._own.count.reshape(-1, 2)[first[process] + number]
        missing = (counted > traced.reshape(-1, 2)[begin[process] + number]).any(axis=1)
        wanted = np.bincount(process[missing], minlength=len(ranks)) > 0
        if self._shared is not None:
            wanted |= self._shared.deals_to(ranks)
        return {
            place: self._of_rank(
                int(ranks[place]), np.arange(first[place], last[place]), files.opens[begin[place] : end[place]]
            )
            for place in np.flatnonzero(wanted).tolist()
        }

    def _of_rank(self, rank: int, rows: np.ndarray, opens: np.ndarray) -> CountedData:
        """Reads and writes of one rank. `rows`: of its own records. `opens` (files,): number of its opens of
        each file."""
        accesses = patterns = None
        if self._shared is not None:
            accesses, patterns = self._shared.of_rank(rank, opens[len(rows) :])
        own = self._own.select(rows)
        return CountedData(own=own, shared=accesses, patterns=patterns, reduced=self._shared_transfers)

    @cached_property
    def _shared(self) -> SharedTransfers | None:
        if not self._missing.count.any():
            return None
        assert self._table is not None
        total = int(self._missing.count.sum())
        if total > MOST_SHARED:
            raise LogError(
                f"{self._log.path} has {total:,} {self._module} reads and writes that no trace holds in records that "
                f"are sums over all ranks; at most {MOST_SHARED:,} are dealt to ranks: leave them out with "
                "--no-reconstruct"
            )
        return SharedTransfers(
            self._missing, self._ranks, _weights(self._table, self._module, self._shared_rows, self._measured())
        )

    @cached_property
    def _missing(self) -> Transfers:
        assert self._table is not None
        counted = self._shared_transfers
        if not len(counted) or not self._traced:
            return counted
        record_ids = self._table.record_ids[self._shared_rows]
        traced = _count_traced(self._traced, record_ids)
        partial = ((traced > 0) & (traced < counted.count)).any()
        operations = _traced(self._log, record_ids) if partial else None
        return untraced_part(counted, traced, operations)

    def _measured(self) -> np.ndarray | None:
        """float64 (2, ranks), bytes that each rank read and wrote in reduced records; None without HEATMAP."""
        name = f"heatmap:{self._module}".encode()
        found = {
            record.rank: (np.maximum(record.read_bins, 0).sum(), np.maximum(record.write_bins, 0).sum())
            for record in read_heatmap(self._log)
            if self._log.names.get(record.record_id) == name and len(record.read_bins)
        }
        if not found or max(found) >= self._ranks:
            return None
        moved = np.zeros((2, self._ranks))
        for rank, amounts in found.items():
            moved[:, rank] = amounts
        for way in (0, 1):
            np.subtract.at(moved[way], self._own_ranks, self._own.moved[way::2])
        return np.maximum(moved, 0)


def _weights(table: CounterTable, module: str, rows: np.ndarray, measured: np.ndarray | None) -> RankWeights:
    def column(name: str) -> np.ndarray:
        return table.counters[f"{module}_{name}"][rows]

    return RankWeights(
        fastest=column("FASTEST_RANK"),
        fastest_bytes=np.maximum(column("FASTEST_RANK_BYTES"), 0),
        slowest=column("SLOWEST_RANK"),
        slowest_bytes=np.maximum(column("SLOWEST_RANK_BYTES"), 0),
        measured=measured,
    )


def _count_traced(traced: Iterable[SegmentCounts], record_ids: np.ndarray) -> np.ndarray:
    """int64 (2 n,): the traced reads and writes of these files, of all ranks."""
    by_id = np.argsort(record_ids)
    found = np.zeros((len(record_ids), 2), dtype=np.int64)
    for part in traced:
        place = by_id[np.minimum(np.searchsorted(record_ids[by_id], part.record_ids), len(by_id) - 1)]
        mine = record_ids[place] == part.record_ids
        np.add.at(found, place[mine], np.column_stack([part.reads, part.writes])[mine])
    return found.ravel()


def _traced(log: DarshanLog, record_ids: np.ndarray) -> FileOperations:
    """The traced operations of all ranks on these files, sorted by file, without times."""
    by_id = np.argsort(record_ids)
    parts = []
    for block in read_dxt(log, TRACE):
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
