"""Finds the rank of each profile: an XSpace holds host names, but neither rank nor pid.

Rules in the order of their trust: anchors, the process ids of PyTorch's events, thread ids, the STDIO record of the
profile's own file, the rank that torch.distributed knows, the path, nesting. Each profile gets at most one rank and
each rank at most one profile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from dxt_replay.profiler_merge.clocks.alignment import anchor_segments, nest
from dxt_replay.profiler_merge.clocks.anchors import anchor_pid, anchor_rank
from dxt_replay.profiler_merge.clocks.nesting import nesting_events
from dxt_replay.profiler_merge.clocks.offsets import line_ids_of_threads
from dxt_replay.profiler_merge.clocks.other_runs import contradictions, refuse_other_run
from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.job_groups import ProcessFacts, host_of
from dxt_replay.profiler_merge.darshan.job_logs import JobLogs, ProcessLog
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments, read_rank_segments
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.traces.errors import AlignmentError, ProfileError
from dxt_replay.traces.measures.intervals import Intervals

_RANK_IN_PATH = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_PATH_TAIL = 4
"""Components of `<run>/.../<host>.xplane.pb` that must agree: plugins/profile/<run>/<host>."""


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
    """The profiles of each rank; a rank that was profiled several times has the files of all."""

    def __init__(self) -> None:
        self.files: dict[int, tuple[Path, ...]] = {}
        self._times: dict[int, Intervals] = {}
        self._of_torch: dict[int, bool] = {}
        self._marked: set[int] = set()

    def add(self, rank: int, files: tuple[Path, ...], profile: Profile) -> None:
        """Add a profile of a rank. Raises: ProfileError if its time may overlap that of an earlier one."""
        if profile.marks is not None:
            if rank in self._marked:
                raise ProfileError(f"{files[0]} is of rank {rank}, which has marks already: give those of one run")
            self._marked.add(rank)
            self.files[rank] = (*files, *self.files.get(rank, ()))
            return
        of_torch = profile.torch is not None
        if rank in self._times and (self._of_torch[rank] != of_torch or _overlaps(self._times[rank], profile)):
            raise ProfileError(
                f"{self.files[rank][0]} and {files[0]} are both of rank {rank}: give the profiles of one run"
            )
        self.files[rank] = (*self.files.get(rank, ()), *files)
        self._times[rank] = self._times.get(rank, Intervals()).union(_time_of(profile))
        self._of_torch[rank] = of_torch


def map_profiles(
    profiles: Sequence[tuple[Path, ...]],
    job: JobLogs,
    *,
    gather: bool = False,
    offset_ns: int = 0,
) -> ProfileRanks:
    """Give each profile its rank. A profile that no rule places is left out and named in the warnings.

    `profiles`: as `reading.profile_files` groups them. `gather`: as for `rank_segments.read_rank_segments`.
    `offset_ns`: the offset that the user adds to the log's times.

    Raises: ProfileError when a profile cannot be read, is of another run, or several are of the same rank.
    """
    mapper = _Mapper(job, gather)
    warnings: list[str] = []
    by_rank = ProfilesByRank()
    exports: set[str] = set()
    numbers: dict[int, int] = {}
    for files in profiles:
        profile = read_profile(files)
        refuse_other_run(files[0], contradictions(profile, job, mapper.hosts, offset_ns))
        if profile.torch is not None:
            exports.update((*profile.torch.exports, *(path.name for path in files)))
        alone = job.nprocs == 1 and (len(profiles) == 1 or profile.torch is not None)
        rank = 0 if alone else mapper.rank_of(files[0], profile, frozenset(by_rank.files))
        if rank is None:
            warnings.append(
                f"no rank was found for the profile {files[0]}: it is left out; name its folder rank0, rank1 ..."
            )
        else:
            by_rank.add(rank, files, profile)
            if (number := own_number(profile)) is not None and not mapper.in_one_log:
                numbers[rank] = number
    warnings += mapper.warnings
    return ProfileRanks(
        by_rank=by_rank.files, warnings=tuple(warnings), exports=tuple(sorted(exports)), numbers=numbers
    )


def _time_of(profile: Profile) -> Intervals:
    if not len(profile):
        return Intervals()
    return Intervals.union_of(profile.start_ns.min(keepdims=True), profile.end_ns.max(keepdims=True))


def _overlaps(times: Intervals, profile: Profile) -> bool:
    """Whether a dated profile was recorded at one of these times; True without a date."""
    own = _time_of(profile)
    return profile.epoch_start_ns is None or own.minus(times).length_ns < own.length_ns


def own_number(profile: Profile) -> int | None:
    """The rank from torch.distributed, else from the anchors."""
    if profile.torch is not None and profile.torch.rank is not None:
        return profile.torch.rank
    named = anchor_rank(profile)
    return named[0] if named is not None and named[0] >= 0 else None


def rank_in_path(path: Path, ranks: int) -> int | None:
    """The number of `rank3`, `rank_3` or `rank-3` in the path, the innermost first; None if there is none below
    `ranks`."""
    for part in reversed(path.resolve().parts):
        found = _RANK_IN_PATH.search(part)
        if found and int(found.group(1)) < ranks:
            return int(found.group(1))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traits:
    """The marks by which a rank is recognised.

    anchor_pids: process ids whose anchor files it wrote.
    host: as Darshan recorded it.
    threads: uint64 pthread ids; None where they are not logged.
    """

    anchor_pids: frozenset[int]
    host: str
    threads: np.ndarray | None


@dataclass
class _Mapper:
    """The rules over one job. The log is read when the first rule needs it."""

    job: JobLogs
    gather: bool = False
    warnings: list[str] = field(default_factory=list)
    _traits: dict[int, _Traits] | None = None

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The hosts of the job; empty if a rank was not traced, since its host is not known then."""
        if self.job.nprocs == 1 or self.job.processes[0].rank is not None:
            hosts = [host_of(process.log) for process in self.job.processes]
            return frozenset(hosts) if all(hosts) else frozenset()
        traits = self._ranks()
        return frozenset(each.host for each in traits.values()) if len(traits) >= self.job.nprocs else frozenset()

    @property
    def in_one_log(self) -> bool:
        """Whether the job has one log, whose ranks are those of MPI."""
        return self.job.processes[0].rank is None

    def rank_of(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        rules: tuple[Callable[[Path, Profile, frozenset[int]], int | None], ...] = (
            self._by_anchor,
            self._by_process,
            self._by_threads,
            self._by_stdio_record,
            self._by_torch_rank,
            self._by_path,
            self._by_nesting,
        )
        for rule in rules:
            rank = rule(path, profile, taken)
            if rank is not None:
                return rank
        return None

    def _by_anchor(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The rank whose trace wrote the anchor file of the profile's pid, else the rank in the anchors."""
        found = anchor_rank(profile)
        if found is None:
            return None
        rank, pid = found
        wrote = [candidate for candidate, traits in self._ranks().items() if pid in traits.anchor_pids]
        if wrote:
            return wrote[0]
        return rank if 0 <= rank < self.job.nprocs else None

    def _by_process(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The rank whose log has the process id of PyTorch's events, or one of the processes with marks."""
        pids = profile.torch.pids if profile.torch is not None else frozenset()
        if profile.marks is not None:
            pids |= profile.marks.processes.keys()
        found = {
            process.rank
            for process in self.job.processes
            if (not process.worker or profile.marks is not None)
            and process.rank is not None
            and ProcessFacts(process.log).pid in pids
        }
        return found.pop() if len(found) == 1 else None

    def _by_torch_rank(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The rank from torch.distributed, if the log has the ranks of MPI."""
        rank = None if profile.torch is None else profile.torch.rank
        return rank if rank is not None and self.in_one_log and rank < self.job.nprocs else None

    def _by_threads(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The rank with the most of its threads in the profile. 64-bit hashes of threads do not agree by chance."""
        overlaps = {}
        for rank, traits in self._ranks().items():
            if traits.threads is not None:
                hashes = line_ids_of_threads(traits.threads, profile.line_ids)
                overlaps[rank] = int(np.isin(hashes, profile.line_ids).sum())
        best = max(overlaps, key=overlaps.__getitem__, default=None)
        return best if best is not None and overlaps[best] else None

    def _by_stdio_record(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The rank that wrote the profile according to Darshan's STDIO module."""
        tail = path.resolve().parts[-_PATH_TAIL:]
        for process in self.job.processes:
            records = read_counters(process.log, "STDIO")
            if records is None:
                continue
            for record, rank in zip(records.record_ids.tolist(), records.ranks.tolist(), strict=True):
                name = PurePosixPath(process.log.names.get(record, b"").decode("utf-8", "replace"))
                if name.parts[-_PATH_TAIL:] != tail:
                    continue
                if rank == SHARED_RANK:
                    self.warnings.append(
                        f"all ranks wrote {name}, so only one of their profiles is left: give each rank a folder of "
                        "its own"
                    )
                    return None
                return rank if process.rank is None else process.rank
        return None

    def _by_path(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        return rank_in_path(path, self.job.nprocs)

    def _by_nesting(self, path: Path, profile: Profile, taken: frozenset[int]) -> int | None:
        """The free rank whose reads nest in the profile's events, if no other free rank does, or only a third as
        well."""
        scores: dict[int, int] = {}
        classes = nesting_events(profile) if len(profile) else []
        for process, segments in self._segments() if classes else ():
            rank = self._rank(process, segments)
            if rank in taken:
                continue
            for events in classes:
                try:
                    nested = int(nest(segments, process.log, profile, events).evidence["nested"])
                except AlignmentError:
                    continue
                scores[rank] = max(scores.get(rank, 0), nested)
        ordered = sorted(scores.values(), reverse=True)
        if not ordered or (len(ordered) > 1 and ordered[0] < 3 * ordered[1]):
            return None
        return max(scores, key=scores.__getitem__)

    def _ranks(self) -> dict[int, _Traits]:
        """The marks of each rank; the log is read once for all profiles, a rank at a time."""
        if self._traits is None:
            self._traits = {}
            for process, segments in self._segments():
                names = (process.log.names.get(record, b"") for record in self._anchor_files(process.log, segments))
                pids = map(anchor_pid, names)
                self._traits[self._rank(process, segments)] = _Traits(
                    host=segments.hostname,
                    anchor_pids=frozenset(pid for pid in pids if pid is not None),
                    threads=None if segments.thread is None else np.unique(segments.thread),
                )
        return self._traits

    def _segments(self) -> Iterator[tuple[ProcessLog, RankSegments]]:
        for process in self.job.processes:
            if not process.worker:
                for segments in read_rank_segments(process.log, gather=self.gather):
                    yield process, segments

    @staticmethod
    def _anchor_files(log: DarshanLog, segments: RankSegments) -> list[int]:
        found: list[int] = np.unique(segments.record_id[anchor_segments(segments, log)[0]]).tolist()
        return found

    @staticmethod
    def _rank(process: ProcessLog, segments: RankSegments) -> int:
        return segments.rank if process.rank is None else process.rank
