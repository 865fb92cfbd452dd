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


def process_count(log: DarshanLog) -> int:
    """The number of processes in the log's job record.

    Raises: DamagedLogError if the records contradict it; LogError as `read_counters`.
    """
    claimed = log.job.nprocs
    says = f"the job record of {log.path} says {claimed} process{'es' if claimed > 1 else ''}, but"
    for table in filter(None, (read_counters(log, module) for module in _MODULES)):
        if len(table.ranks) and (highest := int(table.ranks.max())) >= claimed:
            raise DamagedLogError(f"{says} {table.module} has a record of rank {highest}")
        shared = np.flatnonzero(table.ranks == SHARED_RANK)
        operations = _operations(table)[shared]
        for place in np.flatnonzero(operations < claimed).tolist():
            path = log.describe(int(table.record_ids[shared[place]]))
            raise DamagedLogError(
                f"{says} {table.module} counts {int(operations[place])} operations on {path}, which all of them used"
            )
    return claimed


def _operations(table: CounterTable) -> np.ndarray:
    """float64: number of operations of each record."""
    names = [name for name in table.counters if _OPERATION.search(name)]
    return np.sum([np.maximum(table.counters[name], 0).astype(np.float64) for name in names], axis=0)
