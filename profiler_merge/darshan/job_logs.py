"""The Darshan logs of one job, and which rank each of their processes is.

An MPI job writes one log. Without MPI every process writes its own, also data-loader workers and processes that only
look like part of the job (`uname`, multiprocessing's resource tracker): those are told apart here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler_merge.darshan.log import DarshanLog, open_log
from traces.errors import LogError

_JUNK = re.compile(
    r"(^|/)uname(\s|$)|multiprocessing\.resource_tracker|multiprocessing\.forkserver|multiprocessing\.semaphore_tracker"
)
_ONE_NAME = (
    "DARSHAN_LOGFILE gives all processes one name, which the first to end takes: let Darshan name the logs, in a "
    "folder of this run, and name that folder"
)
_SPAWNED = re.compile(r"multiprocessing\.spawn")
_PID_IN_NAME = re.compile(r"_id\d+-(\d+)_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLog:
    """A log and its place in the job. `rank`: the rank of its process, None when the log holds all ranks of the job.

    `worker`: 0 for the rank's own process, 1, 2 ... for its data-loader workers, whose threads get lanes of their own.
    """

    log: DarshanLog
    rank: int | None
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogs:
    """All logs of one job. `nprocs` ranks; `start_ns` is the earliest start (CLOCK_REALTIME), `end_ns` the last end."""

    processes: tuple[ProcessLog, ...]
    nprocs: int
    start_ns: int
    end_ns: int
    warnings: tuple[str, ...]

    @property
    def first(self) -> DarshanLog:
        return self.processes[0].log


def find_logs(path: Path) -> list[Path]:
    """Every `*.darshan` below the folder `path`, sorted; anything else is one log, itself.

    Raises: LogError for a folder without logs, or with one in it that cannot be listed.
    """
    if not path.is_dir():
        return [path]
    found = [
        Path(parent) / name
        for parent, _, names in os.walk(path, onerror=_refuse)
        for name in names
        if name.endswith(".darshan")
    ]
    if not found:
        raise LogError(f"{path} holds no .darshan log: did the job end, and was Darshan preloaded?")
    return sorted(found)


def _refuse(error: OSError) -> None:
    raise LogError(f"{error.filename} cannot be listed: {error.strerror}") from error


def open_job(paths: Sequence[Path], *, skip_damaged: bool = False) -> JobLogs:
    """Open the logs of one job and give their processes ranks.

    Raises: LogError when a log cannot be read, or they are not of one job.
    """
    _refuse_twice(paths)
    logs = [open_log(path, skip_damaged=skip_damaged) for path in paths]
    warnings = [f"{log.path.name}: {text}" for log in logs for text in log.warnings]
    if len(logs) == 1:
        if _JUNK.search(logs[0].job.exe):
            exe = logs[0].job.exe.strip()
            warnings.append(f"{logs[0].path.name} is of a helper process ({exe}), not of the training: {_ONE_NAME}")
        processes = [ProcessLog(log=logs[0], rank=None)]
    else:
        processes, notes = _rank_processes(logs)
        warnings += notes
    kept = [process.log for process in processes]
    nprocs = kept[0].job.nprocs if len(kept) == 1 else 1 + max(process.rank or 0 for process in processes)
    return JobLogs(
        processes=tuple(processes),
        nprocs=nprocs,
        start_ns=min(log.job.start_ns for log in kept),
        end_ns=max(log.job.end_ns for log in kept),
        warnings=tuple(warnings),
    )


def _rank_processes(logs: list[DarshanLog]) -> tuple[list[ProcessLog], list[str]]:
    """Ranks by start time, workers under the rank that forked them, junk left out and named."""
    warnings = []
    junk = [log for log in logs if _JUNK.search(log.job.exe)]
    logs = [log for log in logs if log not in junk]
    if junk:
        warnings.append(f"left out, not part of the training: {', '.join(log.path.name for log in junk)}")
    if not logs:
        raise LogError("none of the logs is of a training process: only helper processes (uname, trackers) were given")
    several = [log for log in logs if log.job.nprocs > 1]
    if several:
        raise LogError(
            f"{several[0].path} is the log of a whole MPI job ({several[0].job.nprocs} processes): give it alone"
        )
    _check_one_job(logs)
    logs.sort(key=lambda log: (log.job.start_ns, _pid(log) or 0, str(log.path)))
    parents = [log for log in logs if "fork_parent" not in log.job.metadata]
    spawned = [log for log in parents if _SPAWNED.search(log.job.exe)]
    mains = [log for log in parents if log not in spawned]
    if not mains:
        mains, spawned = parents, []
    if not mains:
        raise LogError("every log is of a forked worker, the log of the process that forked them is missing")
    processes = [ProcessLog(log=log, rank=rank) for rank, log in enumerate(mains)]
    rank_of_pid = {_pid(log) or log.job.jobid: rank for rank, log in enumerate(mains)}
    workers = dict.fromkeys(range(len(mains)), 0)
    extra = len(mains)
    for log in logs:
        if log in mains:
            continue
        parent = log.job.metadata.get("fork_parent")
        rank = rank_of_pid.get(int(parent)) if parent and parent.isdigit() else None
        if rank is None and len(mains) == 1:
            rank = 0
        if rank is None:
            processes.append(ProcessLog(log=log, rank=extra))
            extra += 1
        else:
            workers[rank] += 1
            processes.append(ProcessLog(log=log, rank=rank, worker=workers[rank]))
    if extra > len(mains):
        warnings.append(
            f"{extra - len(mains)} worker processes became ranks {len(mains)} to {extra - 1}: their logs do not tell "
            "which rank started them"
        )
    return processes, warnings


def _check_one_job(logs: list[DarshanLog]) -> None:
    """One job id, or at least run times that overlap: spawned workers without a job variable carry their own pid."""
    if len({log.job.jobid for log in logs}) == 1:
        return
    begin = max(log.job.start_ns for log in logs)
    ends = [log.job.end_ns for log in logs if log.job.end_ns]
    if ends and begin > min(ends):
        ids = sorted({log.job.jobid for log in logs})
        raise LogError(f"the logs are of different jobs (ids {ids[0]}, {ids[1]} ...) that ran one after the other")


def _refuse_twice(paths: Sequence[Path]) -> None:
    """The same log twice would double a rank's operations."""
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise LogError(f"{paths[place]} is given twice: give each log once")


def _pid(log: DarshanLog) -> int | None:
    """The process id in a log's default name, None in a renamed one."""
    found = _PID_IN_NAME.search(log.path.name)
    return int(found.group(1)) if found else None
