"""The Darshan logs of one job, and the rank of each of their processes.

An MPI job writes one log. Without MPI every process writes its own, including data-loader workers and helpers (`uname`,
multiprocessing's resource tracker, torchrun). Under a scheduler all carry its job id. Without one, a forked process
carries the id of its parent. A spawned process (a DataLoader worker that is started anew each epoch) carries its own
pid, and so does each of several ranks.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import DamagedLogError, DarshanLog, open_log
from dxt_replay.profiler_merge.profiles.marks import ProcessMarks, read_process, trained
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.text import program_of
from dxt_replay.traces.units import NS_PER_S, format_duration
from dxt_replay.traces.unseen import recording_of

LOG_SUFFIXES = (".darshan", ".darshan_log")
"""File name suffixes of logs; some sites use the second one."""

_UNREAD_MODULES = ("MDHIM",)
"""Modules that record I/O and that this release does not read."""

_JUNK = re.compile(r"(^|/)uname(\s|$)|multiprocessing\.resource_tracker|multiprocessing\.semaphore_tracker")
"""Commands of helpers."""

_SPAWNED = re.compile(r"multiprocessing\.spawn")
_PID_IN_NAME = re.compile(r"_id\d+-(\d+)_")
_RANK_OPTION = re.compile(r"\s--?(local|node|global)?[-_]?rank[= ]\d+", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank(\d{1,7})")
_MARKS = re.compile(rb"/[^/]+\.(?P<pid>\d+)\.\d+\.marks$")
"""A process writes its own marks alone. The log of a killed one has no process id in its name."""

_KILLED = "_mmap-log-"
"""In the name of the data that Darshan keeps of a process, and that a killed one leaves: its parent is not in it."""

_ANCHOR = re.compile(rb"/dxt-anchor\.[^/]*$")
_FOLDERS_ABOVE = 4
"""A log may lie in folders year/month/day below that of its rank."""

_SLACK_NS = 2 * NS_PER_S
"""Tolerance: old logs have whole seconds, and Darshan starts a moment after the process."""

_STARTED_TOGETHER_NS = 60 * NS_PER_S
_TRANSFERS = ("_READS", "_WRITES", "_BYTES_READ", "_BYTES_WRITTEN")
_OPERATION = re.compile(
    r"_(OPENS|FDOPENS|READS|WRITES|STATS|SEEKS|SYNCS|FSYNCS|FDSYNCS|FLUSHES|MMAPS|RENAME_SOURCES|RENAME_TARGETS)$"
)
_PIDS = 1 << 22
"""Largest number of process ids of Linux."""

_MOST_LISTED = 20
_MOST_NAMED = 4


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
        """That of the program itself where it spawned its ranks."""
        logs = [process.log for process in self.processes]
        return next((log for log in logs if not _SPAWNED.search(log.job.exe)), logs[0])

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
            unread = [f"{name} ({log.modules[name].length} bytes)" for name in _UNREAD_MODULES if name in log.modules]
            if unread:
                named.append(
                    f"{log.path.name}: this release does not read these modules, whose I/O is not in the capture: "
                    f"{', '.join(unread)}"
                )
        return named


class ProcessFacts:
    """Facts in a log that link its process to others."""

    def __init__(self, log: DarshanLog) -> None:
        job = log.job
        self.log = log
        parent = job.metadata.get("fork_parent", "")
        self.parent_pid = int(parent) if parent.isdigit() else None
        found = _PID_IN_NAME.search(log.path.name)
        # A renamed log of a process that was not forked: without a scheduler its job id is its pid.
        marked = set() if found else {int(each["pid"]) for each in map(_MARKS.search, log.names.values()) if each}
        self.named_pid = int(found.group(1)) if found else marked.pop() if len(marked) == 1 else None
        self.pid = job.jobid if self.named_pid is None and self.parent_pid is None else self.named_pid
        self.is_spawned = self.parent_pid is None and _SPAWNED.search(job.exe) is not None
        self.command = _RANK_OPTION.sub("", job.exe).strip()
        self.program = program_of(self.command)
        self.is_killed = _KILLED in log.path.name
        self.start_ns = job.start_ns
        self.end_ns = job.end_ns if job.end_ns >= job.start_ns else None
        self.recording = recording_of(log.path)

    @property
    def is_first(self) -> bool:
        """Whether no other process of the job is known to have started it."""
        return self.parent_pid is None and not self.is_spawned

    def marks(self) -> Iterator[ProcessMarks]:
        if self.recording is not None and self.named_pid is not None:
            yield from map(read_process, self.recording.glob(f"profile/*.{self.named_pid}.*.marks*"))

    @cached_property
    def host(self) -> str:
        return host_of(self.log)

    @cached_property
    def has_data(self) -> bool:
        """Whether the process read or wrote files, standard streams excepted, as far as the log shows."""
        modules = ("POSIX", "STDIO", "MPI-IO", "DFS", "DAOS")
        traced = any(module in self.log.modules for module in DXT_MODULES)
        return traced or any(self.counts(module, _TRANSFERS) for module in modules)

    @cached_property
    def has_anchor(self) -> bool:
        return any(_ANCHOR.search(name) or _MARKS.search(name) for name in self.log.names.values())

    @property
    def is_helper(self) -> bool:
        """Whether it is a helper. In a recording, one that did I/O on data counts; elsewhere Python's own files do."""
        return _JUNK.search(self.log.job.exe) is not None and not (self.recording is not None and self.has_data)

    def counts(self, module: str, counters: str | tuple[str, ...]) -> bool:
        """Whether a counter with one of these endings is above zero for a file, standard streams excepted."""
        table = read_counters(self.log, module)
        if table is None:
            return False
        streams = [record for record, name in self.log.names.items() if name.startswith(b"<STD")]
        own = ~np.isin(table.record_ids, np.array(streams, dtype=np.uint64))
        return any(bool((table.counters[name][own] > 0).any()) for name in table.counters if name.endswith(counters))

    def runs_at(self, time_ns: int) -> bool:
        """Whether the process ran at a time, as far as is known: a killed one has no end, a damaged log no start."""
        if self.start_ns <= 0 or time_ns <= 0:
            return True
        return self.start_ns - _SLACK_NS <= time_ns and (self.end_ns is None or time_ns <= self.end_ns + _SLACK_NS)

    def overlaps(self, other: ProcessFacts) -> bool:
        """Whether the runs of both processes overlap; one without an end may."""
        return all(one.end_ns is None or one.end_ns > each.start_ns for one, each in ((self, other), (other, self)))

    def launched(self, other: ProcessFacts) -> bool:
        """Whether this process is the launcher of the other (torchrun, accelerate ...): its command names the program
        of the other, which began and ended while this one ran."""
        named = other.program in self.command.split()[1:] and self.program != other.program
        during = self.runs_at(other.start_ns) and (other.end_ns is None or self.runs_at(other.end_ns))
        return named and self.log.job.uid == other.log.job.uid and during


def host_of(log: DarshanLog) -> str:
    """The host in the first traced record of a log; "" without one."""
    blocks = (block for module in DXT_MODULES for block in read_dxt(log, module))
    return next((block.hostnames[0] for block in blocks if block.hostnames), "")


def find_logs(path: Path) -> list[Path]:
    """Every `*.darshan` below the folder `path`, sorted; anything else is one log, itself.

    Raises: LogError for a folder without logs, or with one in it that cannot be listed.
    """
    if not path.is_dir():
        return [path]

    def refuse(error: OSError) -> None:
        raise LogError(f"{error.filename} cannot be listed: {error.strerror}") from error

    walked = os.walk(path, onerror=refuse)
    found = [Path(parent) / name for parent, _, names in walked for name in names if name.endswith(LOG_SUFFIXES)]
    if not found:
        raise LogError(f"{path} holds no .darshan log: check that the job ended, and that Darshan was preloaded")
    return sorted(found)


def open_job(paths: Sequence[Path]) -> JobLogs:
    """Open the logs of one job and give their processes ranks.

    Raises: LogError when a log cannot be read or is given twice, they are not of one job, or the number of processes
    cannot be right.
    """
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:  # it would double a rank's operations
            raise LogError(f"{paths[place]} is given twice: give each log once")
    logs = [open_log(path) for path in paths]
    warnings = []
    if len(logs) == 1:
        if _JUNK.search(logs[0].job.exe):
            exe = logs[0].job.exe.strip()
            warnings.append(
                f"{logs[0].path.name} is of a helper process ({exe}), not of the training: with DARSHAN_LOGFILE all "
                "processes have one log name, and only the first to end writes its log: unset it, so that Darshan "
                "names the logs, and give the folder with the logs of this run"
            )
        processes = [ProcessLog(log=logs[0], rank=None)]
    else:
        processes, warnings = _rank_processes(logs)
    kept = [process.log for process in processes]
    nprocs = _process_count(kept[0]) if len(kept) == 1 else 1 + max(process.rank or 0 for process in processes)
    return JobLogs(
        processes=tuple(processes),
        nprocs=nprocs,
        start_ns=min(log.job.start_ns for log in kept),
        end_ns=max(log.job.end_ns for log in kept),
        warnings=tuple(warnings),
    )


def _process_count(log: DarshanLog) -> int:
    """The number of processes in the job record, where one flipped bit turns four ranks into half a million.

    Raises: DamagedLogError for a record of a rank beyond it, and for a file that all ranks used with fewer operations
    than ranks: Darshan reduces the records of a file to one where every rank has one, and so has touched the file.
    """
    claimed = log.job.nprocs
    says = f"the job record of {log.path} says {claimed} process{'es' if claimed > 1 else ''}, but"
    for table in filter(None, (read_counters(log, module) for module in ("POSIX", "STDIO", "MPI-IO"))):
        if len(table.ranks) and (highest := int(table.ranks.max())) >= claimed:
            raise DamagedLogError(f"{says} {table.module} has a record of rank {highest}")
        counted = [values for name, values in table.counters.items() if _OPERATION.search(name)]
        operations = np.sum([np.maximum(values, 0).astype(np.float64) for values in counted], axis=0)
        for place in np.flatnonzero((table.ranks == SHARED_RANK) & (operations < claimed)).tolist():
            path = log.describe(int(table.record_ids[place]))
            raise DamagedLogError(
                f"{says} {table.module} counts {int(operations[place])} operations on {path}, which all of them used"
            )
    return claimed


def logs_by_job(logs: Sequence[DarshanLog]) -> tuple[list[list[Path]], int]:
    """The paths of the logs of each job, in the order of their starts, and the number of logs of helper processes.

    A job that consists of helper processes is left out.
    """
    facts = [each for each in map(ProcessFacts, logs) if not each.is_helper]
    return [[process.log.path for process in job] for job in _jobs_of(facts)], len(logs) - len(facts)


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


# Which processes are of one job.


def _jobs_of(processes: Sequence[ProcessFacts]) -> list[list[ProcessFacts]]:
    """The processes of each job, both in the order of their starts. A log of an MPI job is a job of its own."""
    above = {id(each): id(each) for each in processes}

    def root(process: ProcessFacts) -> int:
        place = id(process)
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    alone = sorted((each for each in processes if each.log.job.nprocs <= 1), key=_in_order)
    for one, other in _alike(alone):
        above[root(other)] = root(one)
    by_pid: dict[int | None, list[ProcessFacts]] = {}
    for each in alone:
        by_pid.setdefault(each.pid, []).append(each)
    firsts = [each for each in alone if each.is_first]
    for each in alone:
        started_by = _parent_of(each, firsts if each.is_spawned else by_pid.get(each.parent_pid, []))
        if started_by is None and each.is_spawned:
            # Several ranks could have started it; that is enough if they belong to one job.
            fits = [first for first in firsts if first.runs_at(each.start_ns) and first.log.job.uid == each.log.job.uid]
            started_by = fits[0] if len({root(first) for first in fits}) == 1 else None
        if started_by is not None:
            above[root(each)] = root(started_by)
    for launcher in firsts:
        for other in firsts:
            if launcher.launched(other):
                above[root(other)] = root(launcher)
    found: dict[int, list[ProcessFacts]] = {}
    for each in sorted(processes, key=_in_order):
        found.setdefault(root(each), []).append(each)
    return list(found.values())


def _in_order(process: ProcessFacts) -> tuple[int, int, str]:
    return process.start_ns, process.pid or 0, str(process.log.path)


def _alike(processes: Sequence[ProcessFacts]) -> Iterator[tuple[ProcessFacts, ProcessFacts]]:
    """Pairs of one job, of processes in the order of their starts."""
    # One job id and user, and runs that overlap: a job script may start one program after the other.
    for mine in _grouped(processes, lambda each: (each.log.job.uid, each.log.job.jobid)):
        latest = mine[0]
        for each in mine[1:]:
            if latest.runs_at(each.start_ns):
                yield latest, each
            if latest.end_ns is not None and (each.end_ns is None or each.end_ns > latest.end_ns):
                latest = each
    # One command line and user, started together, and runs that overlap: ranks without a job id.
    firsts = [each for each in processes if each.is_first]
    for mine in _grouped(firsts, lambda each: (each.log.job.uid, each.command)):
        for one, other in pairwise(mine):
            if one.runs_at(other.start_ns) and other.start_ns - one.start_ns <= _STARTED_TOGETHER_NS:
                yield one, other
    # What one `dxt-replay record` recorded, also if its script started them one after the other.
    recorded = [each for each in processes if each.recording is not None]
    for mine in _grouped(recorded, lambda each: (each.recording, each.log.job.jobid)):
        yield from ((mine[0], each) for each in mine[1:])


def _grouped(
    processes: Sequence[ProcessFacts], key: Callable[[ProcessFacts], object]
) -> Collection[list[ProcessFacts]]:
    groups: dict[object, list[ProcessFacts]] = {}
    for each in processes:
        groups.setdefault(key(each), []).append(each)
    return groups.values()


def _parent_of(process: ProcessFacts, candidates: Sequence[ProcessFacts]) -> ProcessFacts | None:
    """The candidate that started a forked or spawned process; None unless exactly one log fits."""
    if process.is_first:
        return None
    fits = [each for each in candidates if each is not process and each.runs_at(process.start_ns)]
    fits = [each for each in fits if each.log.job.uid == process.log.job.uid]
    if process.parent_pid is not None:
        fits = [each for each in fits if each.pid == process.parent_pid]
    else:
        fits = [each for each in fits if not each.is_spawned]
    if len(fits) > 1:
        fits = [each for each in fits if each.host == process.host]
    return fits[0] if len(fits) == 1 else None


def _several_jobs(jobs: Sequence[Sequence[ProcessFacts]], given: Sequence[Path]) -> str:
    """The message that lists the jobs, each with its logs and the command that merges it alone."""
    lines = [f"the {len(given)} logs are of {len(jobs)} jobs: merge one at a time"]
    for job in jobs[:_MOST_LISTED]:
        first = job[0].log.job
        begin = datetime.fromtimestamp(first.start_ns / NS_PER_S, timezone.utc)
        spent = max(each.end_ns or each.start_ns for each in job) - first.start_ns
        spent += 0 if first.has_nsec else NS_PER_S
        command = first.exe.strip()
        shown = command if len(command) <= 80 else command[:77] + "..."
        counts = f"{len(job)} log{'s' * (len(job) > 1)}" + f", {first.nprocs} processes" * (first.nprocs > 1)
        paths = [each.log.path for each in job]
        arguments = " ".join(shlex.quote(str(path)) for path in paths)
        if len(paths) > _MOST_NAMED and len({path.parent for path in paths}) == 1:
            # A pattern that matches these and no other given log.
            folder, pattern = paths[0].parent, f"*_id{first.jobid}-*.darshan"
            if sorted(path for path in given if path.parent == folder and fnmatch.fnmatch(path.name, pattern)) == (
                sorted(paths)
            ):
                arguments = f"{shlex.quote(str(folder))}/{pattern}"
        output = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(job[0].program).stem) or "job"
        lines.append(f"job {first.jobid}, {begin:%Y-%m-%d %H:%M:%S} UTC, {format_duration(spent)}, {counts}: {shown}")
        lines.append(f"  dxt-replay merge {arguments} -o {output}-{first.jobid}.capture")
    if len(jobs) > _MOST_LISTED:
        lines.append(f"and {len(jobs) - _MOST_LISTED} more")
    lines.append(
        "Processes that neither share a job id nor started each other cannot be joined to one job: set DARSHAN_JOBID "
        "to the name of a variable that holds the same number for all of them, and record again"
    )
    return "\n".join(lines)


# Which rank each process of a job is of.

_MANY = 20  # Programs that a job starts, from which on the milliseconds that a tracer takes in each add up


def _names_of(processes: Sequence[ProcessFacts]) -> str:
    return ", ".join(each.log.path.name for each in processes)


def _programs_of(processes: Sequence[ProcessFacts]) -> str:
    return ", ".join(dict.fromkeys(Path(each.program).name for each in processes))


def _count(processes: Sequence[ProcessFacts]) -> str:
    return f"{len(processes)} process{'es' * (len(processes) > 1)}"


def _rank_processes(logs: Sequence[DarshanLog]) -> tuple[list[ProcessLog], list[str]]:
    """Ranks by start time, workers under the rank that started them, and warnings about the logs left out."""
    warnings = []
    facts = [ProcessFacts(log) for log in logs]
    if helpers := [each for each in facts if each.is_helper]:
        warnings.append(f"logs of helper processes are left out: {_names_of(helpers)}")
    facts = [each for each in facts if not each.is_helper]
    if not facts:
        raise LogError(
            "all logs are of helper processes (uname, trackers): give the logs of the training processes, too"
        )
    jobs = _jobs_of(facts)
    if len(jobs) > 1:
        raise LogError(_several_jobs(jobs, [each.log.path for each in facts]))
    (job,) = jobs
    pids = {each.pid for each in job}
    for each in job:  # the marks of a process that was killed, or spawned, say who started it
        for marks in each.marks() if each.is_killed or each.is_spawned else ():
            each.parent_pid = marks.parent if marks.parent in pids else None
    firsts = [each for each in job if each.is_first]
    # A killed process without marks runs no training loop: it was forked, or is a program that a rank started.
    firsts = [each for each in firsts if not each.is_killed or each.named_pid is not None] or firsts
    launchers = [
        each
        for each in firsts
        if not each.has_anchor
        and any(each.launched(other) for other in firsts if other is not each)
        and not (each.recording is not None and each.has_data)
    ]
    if launchers:
        warnings.append(f"logs of the launcher of the ranks are left out: {_names_of(launchers)}")
        job, firsts = ([each for each in some if each not in launchers] for some in (job, firsts))
    firsts = firsts or [each for each in job if each.is_spawned]
    if not firsts:
        raise LogError("all logs are of forked workers: give the log of the process that forked them, too")
    ranks = _marked_ranks(job) or _ranks_among(firsts)
    # A program of a recording that only opened files may have read them by calls that no log shows.
    idle = [
        each
        for each in firsts
        if each not in ranks and not each.has_data and (each.recording is None or not each.counts("POSIX", "_OPENS"))
    ]
    if idle:
        warnings.append(
            f"logs of {_count(idle)} without I/O that ran another program than the ranks are left out: "
            f"{_programs_of(idle)}"
        )
    processes, notes = _under_ranks([each for each in job if each not in idle], ranks)
    return processes, [*warnings, *notes]


def _marked_ranks(job: Sequence[ProcessFacts]) -> Sequence[ProcessFacts]:
    """The processes of a recording that have marks of a loop, and of its rank, whatever started them: torchrun, or
    `torch.multiprocessing.spawn`. In the order of the ranks; empty unless these are two and more from 0 on."""
    found: dict[int, ProcessFacts] = {}
    for each in job:
        for marks in each.marks():
            if marks.loops and marks.rank >= 0 and found.setdefault(marks.rank, each) is not each:
                return ()
    return [found[rank] for rank in sorted(found)] if len(found) > 1 and max(found) < len(found) else ()


def _ranks_among(firsts: Sequence[ProcessFacts]) -> Sequence[ProcessFacts]:
    """The ranks among the processes that were not forked.

    A rank reads or writes, if any process does, or runs the program of one that does. In a recording, ranks run the
    program of the process that trained, of several the longest, else of that with the most data, at the same time."""
    programs = {each.program for each in firsts if each.has_data}
    ranks = [each for each in firsts if each.program in programs] or list(firsts)
    if any(each.recording is None for each in firsts):
        return ranks

    def size(each: ProcessFacts) -> tuple[bool, tuple[int, ...], int]:
        training = max(map(trained, each.marks()), default=()) if len(ranks) > 1 else ()
        return each.has_anchor, training, sum(module.length for module in each.log.modules.values())

    main = max(ranks, key=size)
    return [each for each in ranks if each is main or (each.program == main.program and each.overlaps(main))]


def _rank_folder(process: ProcessFacts) -> int:
    """The rank of a process whose log lies in a folder `rank<r>`, as `dxt-replay record` makes one for each rank of an
    MPI job and its workers; else -1."""
    above = process.log.path.absolute().parent.parts[-_FOLDERS_ABOVE:]
    named = [found for part in above if (found := _RANK_FOLDER.fullmatch(part)) is not None]
    return int(named[-1].group(1)) if named else -1


def _under_ranks(job: Sequence[ProcessFacts], firsts: Sequence[ProcessFacts]) -> tuple[list[ProcessLog], list[str]]:
    """Each process as rank or worker. `firsts` become the ranks: in folders of ranks with one of them in each, those of
    these. A forked worker without a known rank becomes one too; a spawned one is given to a rank in turn."""
    warnings = []
    folder = {id(each): _rank_folder(each) for each in job}
    in_folders = {folder[id(each)] for each in firsts} == {*folder.values()} and -1 not in folder.values()
    in_folders &= 1 < len(firsts) == len({*folder.values()})
    numbers = [folder[id(each)] if in_folders else rank for rank, each in enumerate(firsts)]
    rank_of = {id(each): rank for rank, each in zip(numbers, firsts, strict=True)}
    workers: dict[int, list[ProcessFacts]] = {rank: [] for rank in sorted(rank_of.values())}
    alone, dealt = list[ProcessLog](), set[int]()
    for each in job:
        if id(each) in rank_of:
            continue
        # A worker may itself have forked: its children belong to its rank. Parents start before their children.
        parent = _parent_of(each, [other for other in job if id(other) in rank_of])
        beside = len(firsts) == 1 or (each.recording is not None and each.is_first)
        rank = folder[id(each)] if in_folders else rank_of[id(parent)] if parent is not None else 0 if beside else None
        if rank is None and each.is_spawned:
            rank = len(dealt) % len(firsts)
            dealt.add(id(each))
        if rank is None:
            alone.append(ProcessLog(log=each.log, rank=len(firsts) + len(alone)))
        else:
            rank_of[id(each)] = rank
            workers[rank].append(each)
    own = {rank_of[id(each)]: each for each in firsts}
    processes = [] if in_folders else [ProcessLog(log=own[rank].log, rank=rank) for rank in workers] + alone
    for rank, mine in workers.items():
        processes += [ProcessLog(log=own[rank].log, rank=rank)] * in_folders
        for number, each in enumerate(_as_forked(mine, own[rank]), start=1):
            processes.append(ProcessLog(log=each.log, rank=rank, worker=number, dealt=id(each) in dealt))
    if in_folders:
        missing = ", ".join(str(rank) for rank in range(max(own)) if rank not in own)
        return processes, [f"these ranks have no log, so their I/O is not in the capture: {missing}"] * bool(missing)
    if dealt:
        warnings.append(
            f"which rank started which of {len(dealt)} worker processes is not known: they are dealt to the ranks in "
            "turn, so the figures of single ranks are not those of the job"
        )
    if alone:
        warnings.append(
            f"{len(alone)} worker processes became ranks {len(firsts)} to {len(firsts) + len(alone) - 1}: their logs "
            "do not say which rank started them"
        )
    others = [each for each in job if each.is_first and each not in firsts]
    if others := [each for each in others if each.has_data and each.program != firsts[0].program]:
        whose = f"{_count(others)} that ran another program"
        whose = "the program that started the ranks" if firsts[0].is_spawned else whose
        tracing = ", and so is what tracing each of them took" * (len(others) >= _MANY)
        warnings.append(f"the I/O of {whose} ({_programs_of(others)}) is counted with rank 0{tracing}")
    return processes, warnings


def _as_forked(workers: Sequence[ProcessFacts], first: ProcessFacts) -> Sequence[ProcessFacts]:
    """The workers of a rank in the order in which they were forked, by their ids. Darshan's start of a worker is its
    first operation, and workers that are forked together begin to read in any order."""
    pids = {id(each): each.named_pid for each in (first, *workers)}
    own = pids[id(first)]
    if own is None or None in pids.values():
        return workers
    return sorted(workers, key=lambda each: ((pids[id(each)] or 0) - own) % _PIDS)  # ids begin anew at a maximum
