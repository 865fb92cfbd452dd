"""What is read of each rank of a job: the segments of its process and of its workers, without the files left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from profiler_merge.capture_info import MAX_RANKS
from profiler_merge.darshan.job_logs import JobLogs, ProcessLog
from profiler_merge.darshan.rank_segments import RankSegments, read_rank_segments
from profiler_merge.darshan.regions import DamagedLogError
from profiler_merge.process_rows import ProcessRows, no_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Files that a merge leaves out. `records`: their record ids. `exports`: paths that the profiler itself wrote."""

    records: frozenset[int]
    exports: tuple[str, ...]

    def warnings(self) -> list[str]:
        """What a user should know of them."""
        if not self.exports:
            return []
        return [
            f"left out, written by the profiler itself and not by the job: {', '.join(self.exports)} "
            "(--keep-profiler-files keeps them)"
        ]


def left_out(job: JobLogs, globs: Sequence[str], exports: Collection[str]) -> LeftOut:
    """The files that one of `globs` matches, and those that the profiler wrote under the names `exports`."""
    named = [(record, shown(path)) for process in job.processes for record, path in process.log.names.items()]
    exported = {record: path for record, path in named if is_export(path, exports)}
    matched = (record for record, path in named if any(fnmatchcase(path, glob) for glob in globs))
    return LeftOut(records=frozenset((*exported, *matched)), exports=tuple(sorted(exported.values())))


def is_export(path: str, exports: Collection[str]) -> bool:
    """Whether the profiler wrote the file, or a temporary form of it that is renamed or compressed later."""
    name = path.rpartition("/")[2]
    finals = (path, name, f"{name}.gz", name.removesuffix(".tmp"), path.removesuffix(".tmp"))
    return any(final in exports for final in finals)


def shown(path: bytes) -> str:
    """The path as text, what is not UTF-8 as escapes."""
    return path.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSources:
    """The ranks of a job, each once and ascending, as `ranks` yields them.

    rows: knows the counters of each process, which are evidence of a rank, too.
    left_out: record ids whose segments are dropped.
    gather: whether the segments of a rank may lie in several places of a log.
    skip_damaged: whether operations of ranks that the job does not have are kept, with a warning.
    """

    job: JobLogs
    rows: ProcessRows
    left_out: Collection[int]
    gather: bool
    skip_damaged: bool

    def ranks(self) -> Iterator[tuple[int, list[tuple[ProcessLog, RankSegments]]]]:
        """Each rank that was traced or counted, with the segments of its process and of its workers.

        Raises: LogError for damage; RanksInterleavedError where `gather` would be needed.
        """
        if self.job.processes[0].rank is None:
            yield from self._ranks_of_job(self.job.processes[0])
            return
        for rank in range(self.job.nprocs):
            parts = []
            for process in (process for process in self.job.processes if process.rank == rank):
                found = list(self._segments(process))
                if not found and rank in self.rows.counters(process).ranks_of_records:
                    found = [no_segments(rank)]
                parts += [(process, segments) for segments in found]
            if parts:
                yield rank, parts

    def _ranks_of_job(self, process: ProcessLog) -> Iterator[tuple[int, list[tuple[ProcessLog, RankSegments]]]]:
        """The ranks in one log, ascending: a reduced record is shared out in that order, among all of them."""
        counters = self.rows.counters(process)
        everyone = range(self.job.nprocs) if counters.has_shared and self.job.nprocs <= MAX_RANKS else ()
        counted = deque(sorted({*counters.ranks_of_records, *everyone}))
        for segments in self._segments(process):
            while counted and counted[0] < segments.rank:
                rank = counted.popleft()
                yield rank, [(process, no_segments(rank))]
            if counted and counted[0] == segments.rank:
                counted.popleft()
            self._check_rank(process, segments.rank)
            yield segments.rank, [(process, segments)]
        for rank in counted:
            yield rank, [(process, no_segments(rank))]

    def _check_rank(self, process: ProcessLog, rank: int) -> None:
        """Raises: DamagedLogError for operations of a rank that the job does not have, unless damage is skipped."""
        if not 0 < self.job.nprocs <= rank:
            return
        problem = f"{process.log.path} says {self.job.nprocs} processes, but holds operations of rank {rank}"
        if not self.skip_damaged:
            raise DamagedLogError(problem)
        process.log.add_warning(f"{problem}: they are kept")

    def _segments(self, process: ProcessLog) -> Iterator[RankSegments]:
        dropped = np.fromiter(self.left_out, dtype=np.uint64, count=len(self.left_out))
        for segments in read_rank_segments(process.log, gather=self.gather):
            kept = segments.select(~np.isin(segments.record_id, dropped)) if len(dropped) else segments
            if len(kept):
                yield kept
