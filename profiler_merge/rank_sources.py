"""What is read of each rank of a job: the segments of its process and of its workers, without the files left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog
from dxt_replay.profiler_merge.darshan.rank_segments import (
    SegmentBatch,
    Spill,
    no_segments,
    read_segment_batches,
)
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError
from dxt_replay.profiler_merge.process_rows import LogCounters
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS
from dxt_replay.profiler_merge.untraced.rank_counters import RankCounters

_MOST_RANKS = 1 << 12
_MOST_SHARES = 1 << 17
_MOST_OPERATIONS = 1 << 20
"""Ranks, shares of ranks in reduced records, and counted and traced operations of a batch: what is reconstructed of its
ranks is in memory together. At most SPILLED_SEGMENTS operations, so that a rank in files is a batch by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSources:
    """Some ranks of a job, each once and ascending, as `batches` yields them.

    processes: of these ranks. first, end: they are first to end - 1. nprocs: number of all ranks of the job.
    known: the counters of each process, which are evidence of a rank, too.
    left_out: record ids whose segments are dropped.
    gather: whether the segments of a rank may lie in several places of a log.
    skip_damaged: whether operations of ranks that the job does not have are kept, with a warning.
    spill: where the segments of a large rank go.
    """

    processes: Sequence[ProcessLog]
    first: int
    end: int
    nprocs: int
    known: LogCounters
    left_out: Collection[int]
    gather: bool
    skip_damaged: bool
    spill: Spill | None = None

    def batches(self) -> Iterator[list[tuple[ProcessLog, SegmentBatch]]]:
        """Each rank that was traced or counted, ascending, with the segments of its process and of its workers.

        Ranks that have one process each, all in one log, come many at a time; others one at a time.
        Raises: LogError for damage, or where `gather` would be needed.
        """
        if self.processes[0].rank is None:
            for batch in self._ranks_of_job(self.processes[0]):
                yield [(self.processes[0], batch)]
            return
        processes: dict[int, list[ProcessLog]] = {}
        for process in self.processes:
            processes.setdefault(process.rank or 0, []).append(process)
        for rank in sorted(processes):
            number = np.array([rank])
            parts = []
            for process in processes[rank]:
                found = [
                    replace(batch.of_ranks(place, place + 1), ranks=number)
                    for batch in self._segments(process)
                    for place in range(len(batch.ranks))
                ]
                if not found and rank in self.known.counters(process).ranks_of_records:
                    found = [no_segments(number)]
                parts += [(process, batch) for batch in found]
            if parts:
                yield parts

    def _ranks_of_job(self, process: ProcessLog) -> Iterator[SegmentBatch]:
        """The ranks in one log, ascending: a reduced record is shared out in that order, among all of them."""
        counters = self.known.counters(process)
        counted = counters.ranks_of_records
        if counters.shared_files and self.nprocs <= MAX_RANKS:
            counted = np.union1d(counted, np.arange(self.nprocs))
        counted = counted[(counted >= self.first) & (counted < self.end)]
        most = max(1, min(_MOST_RANKS, _MOST_SHARES // max(counters.shared_files, 1)))
        done = 0
        for batch in self._segments(process):
            self._check_ranks(process, batch.ranks)
            reached = int(np.searchsorted(counted, batch.ranks[-1], side="right"))
            yield from _bounded(batch.among(np.union1d(counted[done:reached], batch.ranks)), counters, most)
            done = reached
        if done < len(counted):
            yield from _bounded(no_segments(counted[done:]), counters, most)

    def _check_ranks(self, process: ProcessLog, ranks: np.ndarray) -> None:
        """Raises: DamagedLogError for operations of a rank that the job does not have, unless damage is skipped."""
        beyond = ranks[ranks >= self.nprocs] if self.nprocs > 0 else ranks[:0]
        for rank in beyond.tolist():
            problem = f"{process.log.path} says {self.nprocs} processes, but holds operations of rank {rank}"
            if not self.skip_damaged:
                raise DamagedLogError(problem)
            process.log.add_warning(f"{problem}: they are kept")

    def _segments(self, process: ProcessLog) -> Iterator[SegmentBatch]:
        batches = read_segment_batches(process.log, gather=self.gather, without=self.left_out, spill=self.spill)
        for batch in batches:
            if len(batch):
                yield batch.among(batch.ranks[batch.counts > 0])


def _bounded(batch: SegmentBatch, counters: RankCounters, most: int) -> Iterator[SegmentBatch]:
    """The batch in parts of at most so many ranks, and of some _MOST_OPERATIONS or one rank with more."""
    operations = np.cumsum(batch.counts + counters.operations(batch.ranks)) // _MOST_OPERATIONS
    cut = (np.diff(operations) > 0) | (np.arange(1, len(batch.ranks)) % most == 0)
    bounds = [0, *(np.flatnonzero(cut) + 1).tolist(), len(batch.ranks)]
    for first, last in pairwise(bounds):
        yield batch.of_ranks(first, last)
