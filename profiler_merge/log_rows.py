"""The traced operations of one log as rows, by rank."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.clocks.alignment import LogClock
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import DarshanLog, text
from dxt_replay.profiler_merge.files import Numbers
from dxt_replay.profiler_merge.rows import MOST_ROWS, Spool, blocks, fill
from dxt_replay.traces.schema import APIS, READ, TRACED, WRITE
from dxt_replay.traces.units import seconds_to_ns

_API = {"DXT_POSIX": APIS.index("POSIX"), "DXT_MPIIO": APIS.index("MPIIO")}


@dataclass(frozen=True, kw_only=True, eq=False)
class LogRows:
    """The traced operations of a log.

    rows: `ROW` by rank and start (of operations that start together the longest first), in a file if they are many.
    Times count from the job's start in the log.
    records: uint64, record id of each `file`.
    ranks: int64 (r,), those with operations, ascending. first: int64 (r + 1,), place of the first row of each.
    hosts: of the first operation of each rank. unthreaded: ranks of whose operations some do not name their thread.
    """

    log: DarshanLog
    records: np.ndarray
    rows: np.ndarray
    ranks: np.ndarray
    first: np.ndarray
    hosts: dict[int, str]
    unthreaded: set[int]

    def of_rank(self, place: int) -> np.ndarray:
        """The rows of the rank at one place of `ranks`."""
        return self.rows[self.first[place] : self.first[place + 1]]

    @cached_property
    def clock(self) -> LogClock:
        """The clock of the rows, and the names of their files."""
        names = {file: self.log.names.get(record, b"") for file, record in enumerate(self.records.tolist())}
        return LogClock(start_ns=self.log.job.start_ns, has_nsec=self.log.job.has_nsec, names=names)


def read_log_rows(
    log: DarshanLog,
    *,
    rank: int | None = None,
    without: Collection[int] = (),
    folder: Path | None = None,
    most: int = MOST_ROWS,
) -> LogRows:
    """The operations of both DXT modules, in any order of the log.

    rank: of all rows, if the log is of one process.
    without: record ids to leave out. More than `most` rows are in a file in `folder`.
    Raises: LogError as `read_dxt`; TargetError when the disk refuses.
    """
    numbers, spool, hosts, unthreaded = Numbers(), Spool(folder, most), dict[int, str](), set[int]()
    dropped = np.fromiter(without, dtype=np.uint64, count=len(without))
    for module in DXT_MODULES:
        for block in read_dxt(log, module):
            used = block.write_counts + block.read_counts > 0
            ranks = block.ranks if rank is None else np.full_like(block.ranks, rank)
            found, first = np.unique(ranks[used], return_index=True)
            for each, host in zip(found.tolist(), block.host_fields[used][first].tolist(), strict=True):
                hosts.setdefault(each, text(host.partition(b"\0")[0]))
            kept = used & ~np.isin(block.record_ids, dropped)
            file = np.full(len(kept), -1, dtype=np.int32)
            file[kept] = numbers.number(block.record_ids[kept])
            columns = {
                "rank": ranks[block.record],
                "op": np.where(block.is_write, np.int8(WRITE), np.int8(READ)),
                "file": file[block.record],
                "offset": block.offset,
                "length": block.length,
                "start_ns": seconds_to_ns(block.start_s.astype(np.float64, copy=False)),
                "end_ns": seconds_to_ns(block.end_s.astype(np.float64, copy=False)),
            }
            if block.pthread_id is None:
                unthreaded.update(found.tolist())
            else:
                columns["thread"] = block.pthread_id
            if not kept.all():
                columns = {name: values[columns["file"] >= 0] for name, values in columns.items()}
            fill(spool.room(len(columns["file"])), columns, api=_API[module], origin=TRACED)
    rows = spool.rows()
    counts: dict[int, int] = {}
    for part in blocks(rows):
        found, count = np.unique(rows["rank"][part], return_counts=True)
        for each, number in zip(found.tolist(), count.tolist(), strict=True):
            counts[each] = counts.get(each, 0) + number
    return LogRows(
        log=log,
        records=np.array(numbers.keys, dtype=np.uint64),
        rows=rows,
        ranks=np.array(list(counts), dtype=np.int64),
        first=np.cumsum([0, *counts.values()]),
        hosts=hosts,
        unthreaded=unthreaded,
    )
