"""The number of processes of a log, checked against the log's own counters.

One flipped bit in the job record turns four ranks into half a million. Two facts contradict such a number: a record of
a rank beyond it, and a file that all ranks used with fewer operations than ranks. (Darshan reduces the records of a
file to one where every rank has a record, and a rank has a record only of files that it touched.)
"""

from __future__ import annotations

import re

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError

_MODULES = ("POSIX", "STDIO", "MPI-IO")
_OPERATION = re.compile(
    r"_(OPENS|FDOPENS|READS|WRITES|STATS|SEEKS|SYNCS|FSYNCS|FDSYNCS|FLUSHES|MMAPS|RENAME_SOURCES|RENAME_TARGETS)$"
)
_NAMED_RANK = re.compile(r"_(FASTEST|SLOWEST)_RANK$")


def process_count(log: DarshanLog) -> int:
    """The number of processes in the log's job record, if the records do not contradict it.

    With `skip_damaged` a contradiction is only a warning. The count is then one more than the highest rank of any
    record, or 0 if the job record is damaged.
    Raises: DamagedLogError for a contradiction; LogError as `read_counters`.
    """
    claimed = log.job.nprocs
    if claimed <= 0:
        return claimed
    tables = [table for module in _MODULES if (table := read_counters(log, module)) is not None]
    problem = next((found for table in tables if (found := _contradiction(log, table, claimed))), None)
    if problem is None:
        return claimed
    if not log.skip_damaged:
        raise DamagedLogError(problem)
    ranks = [rank for table in tables for rank in _ranks_in(table)]
    count = 1 + max((rank for rank in ranks if rank < claimed), default=0)
    log.add_warning(f"{problem}: {count} is used")
    return count


def _contradiction(log: DarshanLog, table: CounterTable, claimed: int) -> str | None:
    says = f"the job record of {log.path} says {claimed} process{'es' if claimed > 1 else ''}, but"
    if len(table.ranks) and (highest := int(table.ranks.max())) >= claimed:
        return f"{says} {table.module} has a record of rank {highest}"
    shared = np.flatnonzero(table.ranks == SHARED_RANK)
    operations = _operations(table)[shared]
    for place in np.flatnonzero(operations < claimed).tolist():
        path = log.describe(int(table.record_ids[shared[place]]))
        return f"{says} {table.module} counts {int(operations[place])} operations on {path}, which all of them used"
    return None


def _operations(table: CounterTable) -> np.ndarray:
    """float64: number of operations of each record."""
    names = [name for name in table.counters if _OPERATION.search(name)]
    return np.sum([np.maximum(table.counters[name], 0).astype(np.float64) for name in names], axis=0)


def _ranks_in(table: CounterTable) -> list[int]:
    """The ranks of the records, and the fastest and slowest ranks in reduced records."""
    named = [table.counters[name] for name in table.counters if _NAMED_RANK.search(name)]
    return [int(rank) for values in (table.ranks, *named) for rank in values.tolist()]
