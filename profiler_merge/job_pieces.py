"""Divides the ranks of a job into pieces that can be merged separately. The division depends on the logs alone.

Where the streams of the ranks begin is a guess, and so is the order of the ranks. Reading a piece verifies both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, SegmentCounts
from dxt_replay.profiler_merge.darshan.job_logs import JobLogs, ProcessLog
from dxt_replay.profiler_merge.darshan.stream_starts import cut_at, locatable
from dxt_replay.profiler_merge.file_notes import KnownFiles
from dxt_replay.profiler_merge.merge_options import MergeOptions
from dxt_replay.profiler_merge.process_rows import LogCounters
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS
from dxt_replay.traces.store.rank_pieces import RANK_OPERATIONS
from dxt_replay.traces.workers import Workers

_OPERATION_BYTES = 8
"""Approximate bytes of an operation in a compressed log."""

_LAST_RANK = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPiece:
    """The ranks first to end - 1 of a job, and the logs of their processes.

    own: whether some of them have spans of their own.
    regions: places of their streams in the job's one log, as (offset, bytes) by module; an absent module is read as a
    whole.
    """

    first: int
    end: int
    processes: tuple[ProcessLog, ...]
    own: bool = False
    regions: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it has all ranks of the job."""
        return self.first == 0 and self.end == _LAST_RANK

    def __str__(self) -> str:
        """Its name in an error."""
        return f"rank {self.first}" if self.end == self.first + 1 else f"the ranks from {self.first} on"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSetting:
    """The data needed to merge any piece of a job, small enough to be sent with each.

    token: names this merge, so that a process reads the counters of its logs once. working: the capture's folder.
    method: as `clocks.parse_method` returns it. left_out: record ids whose segments are dropped.
    files: those that are numbered beforehand. traced: as of `LogCounters`.
    gather: whether the segments of a rank may lie in several places of a log.
    logs: one of each recording, beside which page faults may lie.
    """

    token: str
    working: Path
    job_start_ns: int
    ranks: int
    method: str | float
    left_out: frozenset[int]
    options: MergeOptions
    files: KnownFiles
    gather: bool = False
    traced: Mapping[str, Mapping[str, tuple[SegmentCounts, ...]]] | None = None
    logs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedJob:
    """The pieces of a job, by rank, and their total work in operations, approximately."""

    pieces: tuple[RankPiece, ...]
    operations: int


def whole_job(job: JobLogs, own: Sequence[int]) -> DividedJob:
    """All ranks as one piece. `own`: ranks with spans of their own."""
    piece = RankPiece(first=0, end=_LAST_RANK, processes=job.processes, own=bool(own))
    return DividedJob(pieces=(piece,), operations=0)


def divided(job: JobLogs, known: LogCounters, own: Sequence[int], workers: Workers) -> DividedJob:
    """The ranks in pieces, or in one piece if their places in a log cannot be guessed.

    `own`: ranks with spans of their own, which share no piece with others.
    A piece has as many counted operations as `workers` sets, plus a fixed cost per rank, or is one larger rank.
    Raises: LogError as `read_counters`.
    """
    whole = whole_job(job, own)
    first = job.processes[0]
    if job.damage or job.nprocs > MAX_RANKS:
        return whole
    dxt = [module for module in DXT_MODULES if module in first.log.modules] if first.rank is None else []
    if dxt and not locatable(first.log):
        return whole
    operations = known.counters(first).operations(np.arange(job.nprocs)) if first.rank is None else _logged(job)
    operations += RANK_OPERATIONS
    bounds = _bounds(operations, own, workers.piece_operations)
    if len(bounds) == 2:
        return whole
    regions = _regions(first, dxt, bounds)
    pieces = [
        RankPiece(
            first=begin,
            end=end if end < job.nprocs else _LAST_RANK,
            processes=tuple(each for each in job.processes if each.rank is None or begin <= each.rank < end),
            own=begin in own,
            regions=regions[place],
        )
        for place, (begin, end) in enumerate(pairwise(bounds))
    ]
    return DividedJob(pieces=tuple(each for each in pieces if each.processes), operations=int(operations.sum()))


def _logged(job: JobLogs) -> np.ndarray:
    """float64 (ranks,): approximate number of operations in the logs of each rank."""
    found = np.zeros(job.nprocs)
    for process in job.processes:
        found[process.rank] += sum(module.length for module in process.log.modules.values()) / _OPERATION_BYTES
    return found


def _bounds(operations: np.ndarray, own: Sequence[int], piece_operations: int) -> list[int]:
    """The first rank of each piece, and the number of ranks."""
    cut = np.diff(np.cumsum(operations) // piece_operations) > 0
    if cut.any():
        has_own = np.isin(np.arange(len(operations)), own)
        cut |= has_own[1:] != has_own[:-1]
    return [0, *(np.flatnonzero(cut) + 1).tolist(), len(operations)]


def _regions(process: ProcessLog, modules: Sequence[str], bounds: Sequence[int]) -> list[dict[str, tuple[int, int]]]:
    """Places of the streams of each piece's ranks in these modules."""
    regions: list[dict[str, tuple[int, int]]] = [{} for _ in bounds[1:]]
    for module in modules:
        region = process.log.modules[module]
        cuts = [region.offset, *cut_at(process.log, module, bounds[1:-1]), region.offset + region.length]
        for each, (begin, end) in zip(regions, pairwise(cuts), strict=True):
            each[module] = (begin, end - begin)
    return regions
