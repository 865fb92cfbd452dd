"""The time in which Darshan wrote the log of each process that ended before the job, such as DataLoader workers.

When a process ends, Darshan clears as much memory as the trace may take (1.3 ms a MiB) and writes the log. If training
waits for the process, the recording causes that wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from dxt_replay.profiler_merge.darshan.job_logs import JobLogs, ProcessLog
from dxt_replay.traces.units import NS_PER_S

LONGEST_NS = 60 * NS_PER_S
"""Largest delay of a file's last change after the end in the log; a later change shows that the file is a copy."""

TICK_NS = 10_000_000
"""Tolerance: file times are those of the kernel's last tick."""


def log_writing(job: JobLogs) -> list[list[int]]:
    """[rank, begin_ns, end_ns] on the capture's clock, ascending, for each log whose writing time is known.

    Writing begins at the end stated in the log and lasts until the last change of the file, by both clocks.
    """
    written = list(_written(job.processes))
    if any(end_ns < begin_ns - TICK_NS for _, begin_ns, end_ns in written):
        return []  # files that changed before their processes ended: the file system has another clock
    return sorted(
        [process.rank or 0, begin_ns - job.start_ns, end_ns - job.start_ns]
        for process, begin_ns, end_ns in written
        if 0 < end_ns - begin_ns < LONGEST_NS and end_ns < job.end_ns
    )


def _written(processes: Iterable[ProcessLog]) -> Iterable[tuple[ProcessLog, int, int]]:
    for process in processes:
        if process.log.job.end_ns > 0:
            yield process, process.log.job.end_ns, process.log.path.stat().st_mtime_ns
