"""The Darshan logs of one job, and the rank of each of their processes.

An MPI job writes one log. Without MPI every process writes its own, including data-loader workers and helpers (`uname`,
multiprocessing's resource tracker, torchrun).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.job_groups import (
    ProcessFacts,
    jobs_of,
    launchers,
    parent_of,
    rank_folders,
    ranks_among,
    several_jobs,
)
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError
from dxt_replay.profiler_merge.profiles.marks import read_process
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.unseen import recording_of

_JUNK = re.compile(r"(^|/)uname(\s|$)|multiprocessing\.resource_tracker|multiprocessing\.semaphore_tracker")
"""Commands of helpers."""
_ONE_NAME = (
    "with DARSHAN_LOGFILE all processes have one log name, and only the first to end writes its log: unset it, so that "
    "Darshan names the logs, and give the folder with the logs of this run"
)


LOG_SUFFIXES = (".darshan", ".darshan_log")
"""File name suffixes of logs; some sites use the second one."""

UNREAD_MODULES = ("MDHIM",)
"""Modules that record I/O and that this release does not read."""


_PIDS = 1 << 22
"""Largest number of process ids of Linux."""

_COUNTED_MODULES = ("POSIX", "STDIO", "MPI-IO")
_OPERATION = re.compile(
    r"_(OPENS|FDOPENS|READS|WRITES|STATS|SEEKS|SYNCS|FSYNCS|FDSYNCS|FLUSHES|MMAPS|RENAME_SOURCES|RENAME_TARGETS)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLog:
    """A log and its place in the job.

    rank: the rank of its process; None when the log holds all ranks of the job.
    worker: 0 for the rank's own process, 1, 2 ... for its data-loader workers, whose threads get lanes of their own.
    dealt: whether it is a worker of an unknown rank, which was given one in turn.
    """

    log: DarshanLog
    rank: int | None
    worker: int = 0
    dealt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogs:
    """All logs of one job.

    nprocs: number of ranks.
    start_ns, end_ns: the earliest start and the last end (CLOCK_REALTIME).
    warnings: about the choice of logs. `log_warnings` has those about their contents; there are more as logs are read.
    """

    processes: tuple[ProcessLog, ...]
    nprocs: int
    start_ns: int
    end_ns: int
    warnings: tuple[str, ...]

    @property
    def first(self) -> DarshanLog:
        return self.processes[0].log

    @property
    def damage(self) -> dict[Path, list[str]]:
        """The damage found so far, by log."""
        logs = [process.log for process in self.processes if process.log.damage]
        return {log.path: [each.problem for each in log.damage.values()] for log in logs}

    def log_warnings(self) -> list[str]:
        """Warnings about the logs, including the damage found so far, each with the name of its log."""
        named = []
        for log in (process.log for process in self.processes):
            if recording_of(log.path) and ProcessFacts(log).is_killed:
                continue  # `record` says how many there are
            for text in log.warnings:
                short = text.replace(str(log.path), log.path.name)
                named.append(short if log.path.name in short else f"{log.path.name}: {short}")
            unread = ", ".join(
                f"{name} ({log.modules[name].length} bytes)" for name in UNREAD_MODULES if name in log.modules
            )
            if unread:
                named.append(
                    f"{log.path.name}: this release does not read these modules, whose I/O is not in the capture: "
                    f"{unread}"
                )
        return named


def numbered(job: JobLogs, numbers: Mapping[int, int]) -> tuple[JobLogs, dict[int, int]]:
    """The job with its ranks renumbered as in the application, and old -> new number of every rank.

    `numbers`: old -> new of some ranks; the others take the free numbers in order. Numbers that do not belong to
    different ranks of the job are ignored.
    """
    old = range(job.nprocs)
    if len(set(numbers.values())) < len(numbers) or not set(numbers.values()) <= set(old):
        return job, {rank: rank for rank in old}
    free = iter(sorted(set(old) - set(numbers.values())))
    new = {rank: numbers[rank] if rank in numbers else next(free) for rank in old}
    processes = [replace(each, rank=None if each.rank is None else new[each.rank]) for each in job.processes]
    processes.sort(key=lambda each: (each.rank or 0, each.worker))
    return replace(job, processes=tuple(processes)), new


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
        if name.endswith(LOG_SUFFIXES)
    ]
    if not found:
        raise LogError(f"{path} holds no .darshan log: check that the job ended, and that Darshan was preloaded")
    return sorted(found)


def _refuse(error: OSError) -> None:
    raise LogError(f"{error.filename} cannot be listed: {error.strerror}") from error


def open_job(paths: Sequence[Path]) -> JobLogs:
    """Open the logs of one job and give their processes ranks.

    Raises: LogError when a log cannot be read, they are not of one job, or the number of processes cannot be right.
    """
    _refuse_twice(paths)
    logs = [open_log(path) for path in paths]
    warnings = []
    if len(logs) == 1:
        if _JUNK.search(logs[0].job.exe):
            exe = logs[0].job.exe.strip()
            warnings.append(f"{logs[0].path.name} is of a helper process ({exe}), not of the training: {_ONE_NAME}")
        processes = [ProcessLog(log=logs[0], rank=None)]
    else:
        processes, notes = _rank_processes(logs)
        warnings += notes
    kept = [process.log for process in processes]
    nprocs = process_count(kept[0]) if len(kept) == 1 else 1 + max(process.rank or 0 for process in processes)
    return JobLogs(
        processes=tuple(processes),
        nprocs=nprocs,
        start_ns=min(log.job.start_ns for log in kept),
        end_ns=max(log.job.end_ns for log in kept),
        warnings=tuple(warnings),
    )


def process_count(log: DarshanLog) -> int:
    """The number of processes in the log's job record, if the log's own counters do not contradict it.

    One flipped bit turns four ranks into half a million. Two facts contradict such a number: a record of a rank beyond
    it, and a file that all ranks used with fewer operations than ranks. (Darshan reduces the records of a file to one
    where every rank has a record, and a rank has a record only of files that it touched.)
    Raises: DamagedLogError if they do; LogError as `read_counters`.
    """
    claimed = log.job.nprocs
    says = f"the job record of {log.path} says {claimed} process{'es' if claimed > 1 else ''}, but"
    for table in filter(None, (read_counters(log, module) for module in _COUNTED_MODULES)):
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


def logs_by_job(logs: Sequence[DarshanLog]) -> tuple[list[list[Path]], int]:
    """The paths of the logs of each job, in the order of their starts, and the number of logs of helper processes.

    A job that consists of helper processes is left out.
    """
    kept = [log for log in logs if not _is_helper(log)]
    jobs = jobs_of([ProcessFacts(log) for log in kept])
    return [[process.log.path for process in job] for job in jobs], len(logs) - len(kept)


def _is_helper(log: DarshanLog) -> bool:
    return _JUNK.search(log.job.exe) is not None and not _counts(ProcessFacts(log))


def _counts(process: ProcessFacts) -> bool:
    """Whether a process did I/O on data: only in a recording, since other logs hold that on Python's own files too."""
    return process.recording is not None and process.has_data


def _rank_processes(logs: list[DarshanLog]) -> tuple[list[ProcessLog], list[str]]:
    """Ranks by start time, workers under the rank that started them.

    Helpers and launchers are left out and named in a warning.
    """
    warnings = []
    helpers = [log for log in logs if _is_helper(log)]
    if helpers:
        warnings.append(f"logs of helper processes are left out: {', '.join(log.path.name for log in helpers)}")
    facts = [ProcessFacts(log) for log in logs if log not in helpers]
    if not facts:
        raise LogError(
            "all logs are of helper processes (uname, trackers): give the logs of the training processes, too"
        )
    jobs = jobs_of(facts)
    if len(jobs) > 1:
        raise LogError(several_jobs(jobs, [each.log.path for each in facts]))
    (job,) = jobs
    _find_parents_of_killed(job)
    firsts = [each for each in job if each.parent_pid is None and not each.is_spawned]
    # A killed process without marks runs no training loop: it was forked, or is a program that a rank started.
    firsts = [each for each in firsts if not each.is_killed or each.named_pid is not None] or firsts
    started = [launcher for _, launcher in sorted(launchers(firsts).items()) if not _counts(launcher)]
    if started:
        names = ", ".join(each.log.path.name for each in started)
        warnings.append(f"logs of the launcher of the ranks are left out: {names}")
        job = [each for each in job if each not in started]
        firsts = [each for each in firsts if each not in started]
    if not firsts:
        firsts = [each for each in job if each.is_spawned]
    if not firsts:
        raise LogError("all logs are of forked workers: give the log of the process that forked them, too")
    ranks = ranks_among(firsts)
    idle = [each for each in firsts if each not in ranks and not each.has_data]
    idle = [each for each in idle if each.recording is None or not each.has_opens]
    if idle:
        names = ", ".join(dict.fromkeys(Path(each.program).name for each in idle))
        warnings.append(
            f"logs of {len(idle)} process{'es' * (len(idle) > 1)} without I/O that ran another program than the ranks "
            f"are left out: {names}"
        )
    processes, notes = _under_ranks([each for each in job if each not in idle], ranks)
    return processes, [*warnings, *notes]


def _find_parents_of_killed(job: Sequence[ProcessFacts]) -> None:
    """Let a killed process be forked by the parent in its marks, if that has a log too."""
    pids = {each.pid for each in job}
    for each in job:
        if each.is_killed and each.named_pid is not None and each.recording is not None:
            for marks in each.recording.glob(f"profile/*.{each.named_pid}.*.marks"):
                parent = read_process(marks).parent
                each.parent_pid = parent if parent in pids else None


def _under_ranks(job: Sequence[ProcessFacts], firsts: Sequence[ProcessFacts]) -> tuple[list[ProcessLog], list[str]]:
    """Each process as rank or worker. `firsts` become the ranks, and so does a forked worker without a known rank; a
    spawned one is given to a rank in turn."""
    folders = rank_folders(job, firsts)
    if folders is not None:
        return _in_rank_folders(folders, firsts)
    processes = [ProcessLog(log=each.log, rank=rank) for rank, each in enumerate(firsts)]
    rank_of = {id(each): rank for rank, each in enumerate(firsts)}
    workers: dict[int, list[ProcessFacts]] = {rank: [] for rank in range(len(firsts))}
    extra, dealt = len(firsts), set[int]()
    for each in job:
        if id(each) in rank_of:
            continue
        # A worker may itself have forked: its children belong to its rank. Parents start before their children.
        parent = parent_of(each, [other for other in job if id(other) in rank_of])
        beside = len(firsts) == 1 or (each.recording is not None and each.parent_pid is None and not each.is_spawned)
        rank = rank_of[id(parent)] if parent is not None else 0 if beside else None
        if rank is None and each.is_spawned:
            rank = len(dealt) % len(firsts)
            dealt.add(id(each))
        if rank is None:
            processes.append(ProcessLog(log=each.log, rank=extra))
            extra += 1
        else:
            rank_of[id(each)] = rank
            workers[rank].append(each)
    for rank, mine in workers.items():
        ordered = enumerate(_as_forked(mine, firsts[rank]), start=1)
        processes += [
            ProcessLog(log=each.log, rank=rank, worker=number, dealt=id(each) in dealt) for number, each in ordered
        ]
    warnings = []
    if dealt:
        warnings.append(
            f"which rank started which of {len(dealt)} worker processes is not known: they are dealt to the ranks in "
            "turn, so the figures of single ranks are not those of the job"
        )
    if extra > len(firsts):
        warnings.append(
            f"{extra - len(firsts)} worker processes became ranks {len(firsts)} to {extra - 1}: their logs do not say "
            "which rank started them"
        )
    others = [each for each in job if each.parent_pid is None and not each.is_spawned and each not in firsts]
    if others := [each for each in others if each.has_data and each.program != firsts[0].program]:
        names = ", ".join(dict.fromkeys(Path(each.program).name for each in others))
        warnings.append(
            f"the I/O of {len(others)} process{'es' * (len(others) > 1)} that ran another program ({names}) is counted "
            "with rank 0"
        )
    return processes, warnings


def _as_forked(workers: Sequence[ProcessFacts], first: ProcessFacts) -> Sequence[ProcessFacts]:
    """The workers of a rank in the order in which they were forked, by their ids. Darshan's start of a worker is its
    first operation, and workers that are forked together begin to read in any order."""
    pids = {id(each): each.named_pid for each in (first, *workers)}
    own = pids[id(first)]
    if own is None or None in pids.values():
        return workers
    return sorted(workers, key=lambda each: ((pids[id(each)] or 0) - own) % _PIDS)  # ids begin anew at a maximum


def _in_rank_folders(
    folders: Mapping[int, Sequence[ProcessFacts]], firsts: Sequence[ProcessFacts]
) -> tuple[list[ProcessLog], list[str]]:
    """The ranks by folder, each with its workers, and a warning for those without a log."""
    processes = []
    for rank, inside in sorted(folders.items()):
        (own,) = (each for each in inside if each in firsts)
        ordered = [own, *_as_forked([each for each in inside if each is not own], own)]
        processes += [ProcessLog(log=each.log, rank=rank, worker=worker) for worker, each in enumerate(ordered)]
    missing = sorted(set(range(max(folders))) - set(folders))
    if not missing:
        return processes, []
    names = ", ".join(map(str, missing))
    return processes, [f"these ranks have no log, so their I/O is not in the capture: {names}"]


def process_id(process: ProcessLog) -> int | None:
    """The id of the process of a log, from the log's name; None if it has another name, or holds several ranks."""
    single = process.rank is not None or process.log.job.nprocs == 1
    return ProcessFacts(process.log).named_pid if single else None


def process_ids(job: JobLogs) -> list[set[int]]:
    """The ids of the processes of each rank; empty sets where one log holds all ranks."""
    ids: list[set[int]] = [set() for _ in range(job.nprocs)]
    for process in job.processes:
        if process.rank is not None and (pid := ProcessFacts(process.log).pid) is not None:
            ids[process.rank].add(pid)
    return ids


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Raises: LogError for a log that is given twice: it would double a rank's operations."""
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise LogError(f"{paths[place]} is given twice: give each log once")
