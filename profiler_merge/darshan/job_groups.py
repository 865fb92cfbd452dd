"""Groups logs into jobs: by parent process, job id, user, program and time.

Without MPI each process has a log of its own. Under a scheduler all carry its job id. Without one, a forked process
carries the id of its parent. A spawned process (a DataLoader worker that is started anew each epoch) carries its own
pid, and so does each of several ranks.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import read_counters
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.text import program_of
from dxt_replay.traces.units import NS_PER_S, format_duration
from dxt_replay.traces.unseen import recording_of

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

_TRANSFERS = ("_READS", "_WRITES", "_BYTES_READ", "_BYTES_WRITTEN")
_STARTED_TOGETHER_NS = 60 * NS_PER_S
_MOST_LISTED = 20
_MOST_NAMED = 4


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
        self._arguments = frozenset(self.command.split()[1:])
        self.is_killed = _KILLED in log.path.name
        self.start_ns = job.start_ns
        self.end_ns = job.end_ns if job.end_ns >= job.start_ns else None

    @cached_property
    def host(self) -> str:
        """As `host_of`."""
        return host_of(self.log)

    @cached_property
    def recording(self) -> Path | None:
        """The folder of the recording that the log is of."""
        return recording_of(self.log.path)

    @cached_property
    def has_data(self) -> bool:
        """Whether the process read or wrote files, standard streams excepted, as far as the log shows."""
        return any(module in self.log.modules for module in DXT_MODULES) or any(
            _counted(self.log, module, _TRANSFERS) for module in ("POSIX", "STDIO", "MPI-IO", "DFS", "DAOS")
        )

    @property
    def has_opens(self) -> bool:
        """Whether it opened a file, standard streams excepted: it may have read that by calls that no log shows."""
        return _counted(self.log, "POSIX", "_OPENS")

    def runs_at(self, time_ns: int) -> bool:
        """Whether the process ran at a time, as far as is known: a killed one has no end, a damaged log no start."""
        if self.start_ns <= 0 or time_ns <= 0:
            return True
        after = self.end_ns is None or time_ns <= self.end_ns + _SLACK_NS
        return self.start_ns - _SLACK_NS <= time_ns and after

    def contains(self, other: ProcessFacts) -> bool:
        """Whether the other process began and ended while this one ran."""
        return self.runs_at(other.start_ns) and (other.end_ns is None or self.runs_at(other.end_ns))

    def overlaps(self, other: ProcessFacts) -> bool:
        """Whether the runs of both processes overlap; one without an end may."""
        return all(one.end_ns is None or one.end_ns > each.start_ns for one, each in ((self, other), (other, self)))

    def launched(self, other: ProcessFacts) -> bool:
        """Whether this process is the launcher of the other (torchrun, accelerate ...), because its command names the
        program."""
        named = other.program in self._arguments and self.program != other.program
        return named and self.log.job.uid == other.log.job.uid and self.contains(other)


def _counted(log: DarshanLog, module: str, counters: str | tuple[str, ...]) -> bool:
    """Whether a counter with one of these endings is above zero for a file."""
    table = read_counters(log, module)
    if table is None:
        return False
    streams = [record for record, name in log.names.items() if name.startswith(b"<STD")]
    found = sum(
        (np.maximum(values, 0) for name, values in table.counters.items() if name.endswith(counters)),
        np.zeros(len(table.record_ids), dtype=np.int64),
    )
    return bool((found[~np.isin(table.record_ids, np.array(streams, dtype=np.uint64))] > 0).any())


def host_of(log: DarshanLog) -> str:
    """The host in the first traced record of a log; "" without one."""
    for module in DXT_MODULES:
        for block in read_dxt(log, module):
            if block.hostnames:
                return block.hostnames[0]
    return ""


def parent_of(process: ProcessFacts, candidates: Sequence[ProcessFacts]) -> ProcessFacts | None:
    """The candidate that started a forked or spawned process; None unless exactly one log fits."""
    if process.parent_pid is not None:
        fits = [each for each in candidates if each.pid == process.parent_pid and each.runs_at(process.start_ns)]
    elif process.is_spawned:
        fits = [each for each in candidates if not each.is_spawned and each.runs_at(process.start_ns)]
    else:
        return None
    fits = [each for each in fits if each is not process and each.log.job.uid == process.log.job.uid]
    if len(fits) > 1:
        fits = [each for each in fits if each.host == process.host]
    return fits[0] if len(fits) == 1 else None


def jobs_of(processes: Sequence[ProcessFacts]) -> list[list[ProcessFacts]]:
    """The processes of each job, both in the order of their starts. A log of an MPI job is a job of its own."""
    groups = _Groups(processes)
    alone = [each for each in processes if each.log.job.nprocs <= 1]
    for one, other in [*_of_one_id(alone), *_of_one_command(alone), *_of_one_recording(alone)]:
        groups.join(one, other)
    by_pid: dict[int | None, list[ProcessFacts]] = {}
    for each in alone:
        by_pid.setdefault(each.pid, []).append(each)
    firsts = [each for each in alone if each.parent_pid is None and not each.is_spawned]
    for each in alone:
        started_by = parent_of(each, firsts if each.is_spawned else by_pid.get(each.parent_pid, []))
        if started_by is not None:
            groups.join(started_by, each)
        elif each.is_spawned:
            # Several ranks could have started it; that is enough if they belong to one job.
            fits = [first for first in firsts if first.runs_at(each.start_ns) and first.log.job.uid == each.log.job.uid]
            if len({groups.root(first) for first in fits}) == 1:
                groups.join(fits[0], each)
    for launcher in firsts:
        for other in firsts:
            if launcher.launched(other):
                groups.join(launcher, other)
    return groups.as_lists()


class _Groups:
    """Processes joined into jobs, two at a time."""

    def __init__(self, processes: Sequence[ProcessFacts]) -> None:
        self._processes = processes
        self._above = {id(each): id(each) for each in processes}

    def root(self, process: ProcessFacts) -> int:
        place = id(process)
        while self._above[place] != place:
            self._above[place] = place = self._above[self._above[place]]
        return place

    def join(self, one: ProcessFacts, other: ProcessFacts) -> None:
        self._above[self.root(other)] = self.root(one)

    def as_lists(self) -> list[list[ProcessFacts]]:
        jobs: dict[int, list[ProcessFacts]] = {}
        for each in sorted(self._processes, key=_in_order):
            jobs.setdefault(self.root(each), []).append(each)
        return list(jobs.values())


def _in_order(process: ProcessFacts) -> tuple[int, int, str]:
    return process.start_ns, process.pid or 0, str(process.log.path)


def _of_one_id(processes: Sequence[ProcessFacts]) -> Iterator[tuple[ProcessFacts, ProcessFacts]]:
    """Pairs with one job id and user whose runs overlap: a job script may start one program after the other."""
    by_id: dict[tuple[int, int], list[ProcessFacts]] = {}
    for each in sorted(processes, key=_in_order):
        by_id.setdefault((each.log.job.uid, each.log.job.jobid), []).append(each)
    for mine in by_id.values():
        latest = mine[0]
        for each in mine[1:]:
            if latest.runs_at(each.start_ns):
                yield latest, each
            if latest.end_ns is not None and (each.end_ns is None or each.end_ns > latest.end_ns):
                latest = each


def _of_one_command(processes: Sequence[ProcessFacts]) -> Iterator[tuple[ProcessFacts, ProcessFacts]]:
    """Pairs with one command line and user that started together and overlap: ranks without a job id."""
    by_command: dict[tuple[int, str], list[ProcessFacts]] = {}
    for each in sorted(processes, key=_in_order):
        if each.parent_pid is None and not each.is_spawned:
            by_command.setdefault((each.log.job.uid, each.command), []).append(each)
    for mine in by_command.values():
        for one, other in pairwise(mine):
            if one.runs_at(other.start_ns) and other.start_ns - one.start_ns <= _STARTED_TOGETHER_NS:
                yield one, other


def _of_one_recording(processes: Sequence[ProcessFacts]) -> Iterator[tuple[ProcessFacts, ProcessFacts]]:
    """Pairs that one `dxt-replay record` recorded, also if its script started them one after the other."""
    first: dict[Path, ProcessFacts] = {}
    for each in processes:
        if each.recording is not None and each.log.job.jobid == first.setdefault(each.recording, each).log.job.jobid:
            yield first[each.recording], each


def ranks_among(firsts: Sequence[ProcessFacts]) -> Sequence[ProcessFacts]:
    """The ranks among the processes that were not forked.

    A rank reads or writes, if any process does, or runs the program of one that does. In a recording, ranks run the
    program of the process with the most data, at the same time."""
    programs = {each.program for each in firsts if each.has_data}
    ranks = [each for each in firsts if each.program in programs] or list(firsts)
    main = max(ranks, key=lambda each: (_has_anchor(each.log), sum(m.length for m in each.log.modules.values())))
    if any(each.recording is None for each in firsts):
        return ranks
    return [each for each in ranks if each is main or (each.program == main.program and each.overlaps(main))]


def _has_anchor(log: DarshanLog) -> bool:
    return any(_ANCHOR.search(name) or _MARKS.search(name) for name in log.names.values())


def rank_folders(
    processes: Sequence[ProcessFacts], firsts: Sequence[ProcessFacts]
) -> Mapping[int, Sequence[ProcessFacts]] | None:
    """The processes of each rank, where all logs lie in folders `rank<r>` with one of `firsts` in each; else None.

    `dxt-replay record` gives each rank of an MPI job such a folder for itself and its workers.
    """
    folders: dict[int, list[ProcessFacts]] = {}
    for each in processes:
        above = each.log.path.absolute().parent.parts[-_FOLDERS_ABOVE:]
        named = [found for part in above if (found := _RANK_FOLDER.fullmatch(part)) is not None]
        if not named:
            return None
        folders.setdefault(int(named[-1].group(1)), []).append(each)
    alone = all(sum(each in firsts for each in inside) == 1 for inside in folders.values())
    return folders if alone and len(folders) > 1 else None


def several_jobs(jobs: Sequence[Sequence[ProcessFacts]], given: Sequence[Path]) -> str:
    """The message that lists the jobs, each with its logs and the command that merges it alone."""
    logs = sum(len(job) for job in jobs)
    lines = [f"the {logs} logs are of {len(jobs)} jobs: merge one at a time"]
    for job in jobs[:_MOST_LISTED]:
        first = job[0].log.job
        begin = datetime.fromtimestamp(first.start_ns / NS_PER_S, timezone.utc)
        spent = max(each.end_ns or each.start_ns for each in job) - first.start_ns
        spent += 0 if first.has_nsec else NS_PER_S
        command = first.exe.strip()
        shown = command if len(command) <= 80 else command[:77] + "..."
        counts = f"{len(job)} log{'s' * (len(job) > 1)}" + f", {first.nprocs} processes" * (first.nprocs > 1)
        lines.append(f"job {first.jobid}, {begin:%Y-%m-%d %H:%M:%S} UTC, {format_duration(spent)}, {counts}: {shown}")
        lines.append(f"  dxt-replay merge {_arguments(job, given)} -o {_output_name(job[0])}.capture")
    if len(jobs) > _MOST_LISTED:
        lines.append(f"and {len(jobs) - _MOST_LISTED} more")
    lines.append(
        "Processes that neither share a job id nor started each other cannot be joined to one job: set DARSHAN_JOBID "
        "to the name of a variable that holds the same number for all of them, and record again"
    )
    return "\n".join(lines)


def _arguments(job: Sequence[ProcessFacts], given: Sequence[Path]) -> str:
    """The job's logs as shell arguments: their names, or a pattern that matches these and no other given log."""
    paths = [each.log.path for each in job]
    folders = {path.parent for path in paths}
    if len(paths) > _MOST_NAMED and len(folders) == 1:
        folder = folders.pop()
        beside = [path.name for path in given if path.parent == folder]
        pattern = f"*_id{job[0].log.job.jobid}-*.darshan"
        if sorted(fnmatch.filter(beside, pattern)) == sorted(path.name for path in paths):
            return f"{shlex.quote(str(folder))}/{pattern}"
    return " ".join(shlex.quote(str(path)) for path in paths)


def _output_name(first: ProcessFacts) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(first.program).stem) or "job"
    return f"{name}-{first.log.job.jobid}"


def launchers(processes: Sequence[ProcessFacts]) -> Mapping[int, ProcessFacts]:
    """Processes that only started others (torchrun), by index in `processes`."""
    return {
        place: each
        for place, each in enumerate(processes)
        if not _has_anchor(each.log) and any(each.launched(other) for other in processes if other is not each)
    }
