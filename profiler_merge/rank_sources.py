"""The input for each rank of a job: the segments of its process and of its workers, without the files left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog
from dxt_replay.profiler_merge.darshan.rank_segments import (
    RanksInterleavedError,
    SegmentBatch,
    Spill,
    no_segments,
    read_segment_batches,
)
from dxt_replay.profiler_merge.job_pieces import JobSetting, RankPiece
from dxt_replay.profiler_merge.process_rows import LogCounters
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS
from dxt_replay.profiler_merge.untraced.rank_counters import RankCounters

_MOST_RANKS = 1 << 12
_MOST_SHARES = 1 << 17
_MOST_OPERATIONS = 1 << 20
"""Limits of a batch, whose reconstruction is in memory together: ranks, shares of ranks in reduced records, counted and
traced operations.

At most SPILLED_SEGMENTS operations, so that a rank in files is a batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSources:
    """The ranks of a piece of a job, each once and ascending, as `batches` yields them.

    processes: of these ranks. known: the counters of each process, which are evidence of a rank, too.
    """

    setting: JobSetting
    piece: RankPiece
    processes: Sequence[ProcessLog]
    known: LogCounters

    def batches(self) -> Iterator[list[tuple[ProcessLog, SegmentBatch]]]:
        """Each rank that was traced or counted, ascending, with the segments of its process and of its workers.

        Ranks that have one process each, all in one log, come many at a time; others one at a time.
        Raises: LogError if the setting lacks a necessary `gather`, or for ranks of another piece.
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
        """The ranks in one log, ascending: a reduced record is divided among all of them in this order."""
        counters = self.known.counters(process)
        counted = counters.ranks_of_records
        if counters.shared_files and self.setting.ranks <= MAX_RANKS:
            counted = np.union1d(counted, np.arange(self.setting.ranks))
        counted = counted[(counted >= self.piece.first) & (counted < self.piece.end)]
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
        """Raises: RanksInterleavedError for a rank of another piece."""
        if len(ranks) and not self.piece.first <= ranks[0] <= ranks[-1] < self.piece.end:
            raise RanksInterleavedError(f"{process.log.path}: operations of {self.piece} are in several places")

    def _segments(self, process: ProcessLog) -> Iterator[SegmentBatch]:
        setting = self.setting
        spill = Spill(folder=setting.working, segments=setting.options.rank_segments)
        for batch in read_segment_batches(process.log, gather=setting.gather, without=setting.left_out, spill=spill):
            if len(batch):
                yield batch.among(batch.ranks[batch.counts > 0])


def _bounded(batch: SegmentBatch, counters: RankCounters, most: int) -> Iterator[SegmentBatch]:
    """The batch in parts of at most `most` ranks, and of some _MOST_OPERATIONS or one larger rank."""
    operations = np.cumsum(batch.counts + counters.operations(batch.ranks)) // _MOST_OPERATIONS
    cut = (np.diff(operations) > 0) | (np.arange(1, len(batch.ranks)) % most == 0)
    bounds = [0, *(np.flatnonzero(cut) + 1).tolist(), len(batch.ranks)]
    for first, last in pairwise(bounds):
        yield batch.of_ranks(first, last)
