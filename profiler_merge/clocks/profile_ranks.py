"""The rank of each profile: by process id, else by the rank that the profile names, else by its path.

Process ids are in anchors, marks and PyTorch's events; of TensorFlow's profiles without anchors only the path tells. A
profile of another run is refused: its anchors, its time and its host say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from dxt_replay.profiler_merge.clocks.alignment import anchor_pid, anchor_rank, profile_anchors
from dxt_replay.profiler_merge.darshan.counters import read_counters
from dxt_replay.profiler_merge.darshan.jobs import JobLogs, ProcessFacts, host_of
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import ProcessMarks, trained
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import NS_PER_S, format_counted

_RANK_IN_PATH = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_SLACK_NS = 60 * NS_PER_S
"""Tolerance: the clocks of hosts may differ, and old logs have whole seconds."""
_MOST_SHOWN = 4
_ADDRESS = re.compile(r"localhost|[\d.:]+|.*:\d+")
"""Host names in a profile that do not identify the host: a request from another host may have named it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRanks:
    """The assignment of profiles to ranks.

    by_rank: the files of the profile of each rank that has one.
    exports: paths and names of the files that the profiler wrote during the recording.
    numbers: the rank that the application gave to each process, for a job with a log per process, whose ranks are
    otherwise numbered by start.
    """

    by_rank: dict[int, tuple[Path, ...]]
    warnings: tuple[str, ...]
    exports: tuple[str, ...] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)


class ProfilesByRank:
    """The profiles of each rank; a rank that was profiled several times has the files of all. Of programs that trained
    one after the other, as a script runs them, the training with most steps is that of the rank: `warnings` say so."""

    def __init__(self) -> None:
        self.files: dict[int, tuple[Path, ...]] = {}
        self.warnings: list[str] = []
        self._times: dict[int, tuple[bool, Intervals]] = {}
        self._marked: dict[int, tuple[bool, int, int, int, int, tuple[Path, ...]]] = {}

    def add(self, rank: int, files: tuple[Path, ...], profile: Profile) -> None:
        """Add a profile of a rank. Raises: ProfileError if its time may overlap that of an earlier one."""
        if profile.marks is not None:
            self._add_marks(rank, files, profile.marks.own)
            return
        of_torch, time = self._times.get(rank, (profile.torch is not None, Intervals()))
        own = Intervals()
        if len(profile):
            own = Intervals.union_of(profile.start_ns.min(keepdims=True), profile.end_ns.max(keepdims=True))
        overlaps = profile.epoch_start_ns is None or own.minus(time).length_ns < own.length_ns
        if rank in self._times and (of_torch != (profile.torch is not None) or overlaps):
            raise ProfileError(
                f"{self.files[rank][0]} and {files[0]} are both of rank {rank}: give the profiles of one run"
            )
        self.files[rank] = (*self.files.get(rank, ()), *files)
        self._times[rank] = of_torch, time.union(own)

    def _add_marks(self, rank: int, files: tuple[Path, ...], own: ProcessMarks) -> None:
        kept = left = (*trained(own), own.pid, files)
        if rank in self._marked:
            left, kept = sorted((self._marked[rank], kept))
            if max(left[2], kept[2]) < min(left[3], kept[3]):
                raise ProfileError(
                    f"{left[-1][0]} and {kept[-1][0]} were made at the same time, and both are of rank {rank}: record "
                    "two programs each by itself; put the marks of two ranks into folders rank0, rank1 ..."
                )
            self.warnings.append(
                f"rank {rank} trained more than once: the {format_counted(left[1], 'step')} of process {left[4]} are "
                "left out; record each program by itself to see both"
            )
            self.files[rank] = tuple(file for file in self.files[rank] if file not in (*left[-1], *kept[-1]))
        self._marked[rank] = kept
        self.files[rank] = (*kept[-1], *self.files.get(rank, ()))


def map_profiles(profiles: Sequence[tuple[Path, ...]], job: JobLogs, *, offset_ns: int = 0) -> ProfileRanks:
    """Give each profile the rank of Darshan logs, as `reading.profile_files` groups them.

    `offset_ns`: what the user adds to the log's times. A profile that cannot be placed is left out, with a warning.
    Raises: ProfileError when a profile cannot be read, is of another run, or several are of the same rank.
    """
    in_one_log = job.processes[0].rank is None  # then the ranks are those of MPI
    pids: list[set[int]] = [set() for _ in range(job.nprocs)]
    anchored: set[int] = set()
    for process in job.processes if profiles else ():
        files = {record: pid for record, name in process.log.names.items() if (pid := anchor_pid(name)) is not None}
        anchored.update(files.values())
        if process.rank is not None:
            own = ProcessFacts(process.log).pid
            pids[process.rank].update(() if own is None else (own,), () if process.worker else files.values())
        elif files and (counted := read_counters(process.log, "POSIX")) is not None:
            for record, rank in zip(counted.record_ids.tolist(), counted.ranks.tolist(), strict=True):
                if record in files and 0 <= rank < len(pids):
                    pids[rank].add(files[record])
    # In one log of several ranks, only those that were traced have a host.
    hosts = {"" if in_one_log and job.nprocs > 1 else host_of(process.log) for process in job.processes}
    times_ns = (job.start_ns + offset_ns, job.end_ns + offset_ns) if job.start_ns > 0 else (0, 0)

    def contradictions(profile: Profile) -> Iterator[str]:
        anchors = profile_anchors(profile)
        theirs, ranks = {pid for pid in anchors["pid"].tolist() if pid > 0}, set(anchors["rank"].tolist())
        if theirs & anchored:
            return
        if theirs and anchored:
            yield f"its anchors are of process {_shown(theirs)}, those in the log of {_shown(anchored)}"
        if ranks and min(ranks) >= job.nprocs > 0:
            yield f"its anchors are of rank {_shown(ranks)}, and the job has {job.nprocs} ranks"
        yield from _other_time(profile, *times_ns)
        mine = [host for host in profile.hostnames if host and not _ADDRESS.fullmatch(host)]
        short, shorts = ({host.lower().partition(".")[0] for host in each} for each in (mine, hosts))
        if mine and "" not in hosts and not short & shorts:
            yield f"it is of host {mine[0]}, and the job ran on {_shown(hosts)}"

    return _placed(profiles, pids, contradictions, numbered=in_one_log)


def profiles_of_processes(
    profiles: Sequence[tuple[Path, ...]], pids: Sequence[Collection[int]], times_ns: tuple[int, int]
) -> ProfileRanks:
    """The same for a trace that holds the process ids `pids` of each rank.

    `times_ns`: CLOCK_REALTIME of the trace's first and last instant.
    """
    return _placed(profiles, pids, lambda profile: _other_time(profile, *times_ns), numbered=True)


def _placed(
    profiles: Sequence[tuple[Path, ...]],
    pids: Sequence[Collection[int]],
    contradictions: Callable[[Profile], Iterator[str]],
    *,
    numbered: bool,
) -> ProfileRanks:
    """`numbered`: whether the ranks are those of the application, so that a number in a profile is one of them."""
    by_rank, numbers, warnings, exports = ProfilesByRank(), dict[int, int](), [], set[str]()
    for files in profiles:
        profile = read_profile(files)
        if found := list(contradictions(profile)):
            raise ProfileError(
                f"{files[0]} is the profile of another run: {'; '.join(found)}. Give the profile of this run, or leave "
                "--profile out"
            )
        if profile.torch is not None:
            exports.update((*profile.torch.exports, *(path.name for path in files)))
        named = anchor_rank(profile)
        known = profile_pids(profile)
        ranks = [rank for rank, own in enumerate(pids) if known & set(own)]
        rank: int | None
        if len(pids) == 1 and (len(profiles) == 1 or profile.torch is not None):
            rank = 0
        elif len(ranks) == 1:
            rank = ranks[0]
        elif 0 <= named[0] < len(pids):
            rank = named[0]
        else:
            of_torch = profile.torch.rank if profile.torch is not None and numbered else None
            rank = of_torch if of_torch is not None and of_torch < len(pids) else rank_in_path(files[0], len(pids))
        if rank is None:
            warnings.append(
                f"no rank was found for the profile {files[0]}: it is left out; name its folder rank0, rank1 ..."
            )
            continue
        by_rank.add(rank, files, profile)
        if not numbered and (number := own_number(profile)) is not None:
            numbers[rank] = number
    return ProfileRanks(
        by_rank=by_rank.files, warnings=(*by_rank.warnings, *warnings), exports=tuple(sorted(exports)), numbers=numbers
    )


def profile_pids(profile: Profile) -> frozenset[int]:
    """The process ids in a profile's marks, events or anchors; those of marks include the workers'."""
    found = {anchor_rank(profile)[1]} - {-1}
    found |= profile.marks.processes.keys() if profile.marks is not None else set()
    return frozenset(found | (profile.torch.pids if profile.torch is not None else set()))


def own_number(profile: Profile) -> int | None:
    """The rank from torch.distributed, else from the anchors."""
    if profile.torch is not None and profile.torch.rank is not None:
        return profile.torch.rank
    rank, _ = anchor_rank(profile)
    return rank if rank >= 0 else None


def rank_in_path(path: Path, ranks: int) -> int | None:
    """The number of `rank3`, `rank_3` or `rank-3` in the path, the innermost first; None if there is none below
    `ranks`."""
    found = (_RANK_IN_PATH.search(part) for part in reversed(path.resolve().parts))
    return next((int(each[1]) for each in found if each is not None and int(each[1]) < ranks), None)


def _other_time(profile: Profile, job_start: int, ended: int) -> Iterator[str]:
    """The sentence for a profile whose time does not match a job between these times; 0 for an unknown start."""
    if profile.epoch_start_ns is None or job_start <= 0 or not len(profile):
        return
    start, end = int(profile.start_ns.min()), int(profile.end_ns.max())
    job_end = ended if ended >= job_start else None  # a killed process has no end time
    if end < job_start - _SLACK_NS or (job_end is not None and start > job_end + _SLACK_NS):
        until = "" if job_end is None else f" to {_clock(job_end)}"
        yield f"it was recorded from {_clock(start)} to {_clock(end)}, and the job ran from {_clock(job_start)}{until}"


def _shown(values: Iterable[int | str]) -> str:
    return listed(sorted(map(str, values)), _MOST_SHOWN)


def _clock(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / NS_PER_S, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
