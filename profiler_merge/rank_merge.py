"""Merges the ranks of one piece of a job, on any process: their rows into parts of the capture, the rest as notes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.alignment import WALL, align_rank
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds, align_wall
from dxt_replay.profiler_merge.clocks.worker_clock import align_worker
from dxt_replay.profiler_merge.darshan.dxt import SegmentCounts
from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments, SegmentBatch, Spill
from dxt_replay.profiler_merge.darshan.spilled import is_spilled, return_freed_memory
from dxt_replay.profiler_merge.file_notes import FileNotes, KnownFiles
from dxt_replay.profiler_merge.job_pieces import RankPiece
from dxt_replay.profiler_merge.process_rows import LogCounters, RowTotals, in_start_order
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.rank_sources import RankSources
from dxt_replay.profiler_merge.stretch_rows import RowsInStretches
from dxt_replay.traces.schema import OPS_SCHEMA, RankClock, table_from_columns
from dxt_replay.traces.store.writer import ROW_GROUP_ROWS, OpsWriter

_KEPT_STRETCHES = 8
"""Stretches of a rank after which freed memory goes back to the system: the C library would keep 7 bytes for each
operation, in pieces between what is in use."""


class RankSpans(Protocol):
    """The spans of the ranks, as `JobSpans` has them in the first process, and `SharedSteps` elsewhere."""

    def have_own(self, ranks: np.ndarray) -> np.ndarray:
        """bool (r,): which of some ranks have spans of their own."""

    def profile(self, rank: int) -> Profile | None:
        """The profile of a rank."""

    def add(self, rank: int, profile: Profile, undated_offset_ns: int = 0) -> list[str]:
        """Note the spans of a rank. Returns warnings."""

    def extend_over(
        self, rank: int, operations: dict[str, np.ndarray], process: np.ndarray, path: Callable[[int], str]
    ) -> None:
        """Extend the spans of a rank over its reads outside of its profile."""

    def step_of(self, rank: int, times: np.ndarray) -> np.ndarray:
        """int32: the training step in which each time (ns) of a rank lies."""


@dataclass(slots=True, kw_only=True)
class MergedRanks:
    """What became of the ranks of a piece, beside their rows.

    ranks: those that were traced or counted. stored: rows in `parts`, the names of files in the capture's folder of
    operations. log_warnings: by path of the log.
    """

    ranks: set[int] = field(default_factory=set)
    stored: int = 0
    parts: tuple[str, ...] = ()
    made: RowTotals = field(default_factory=RowTotals)
    files: FileNotes
    clock: list[RankClock] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    log_warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetting:
    """What merging any piece of a job needs, small enough to be sent with each.

    token: names this merge, so that a process reads the counters of its logs once. working: the capture's folder.
    method: as `clocks.parse_method` returns it. rank_segments, stretch_rows: as in `MergeOptions`. The rest as in
    `LogCounters`, `RankSources` and `FileNotes`.
    """

    token: str
    working: Path = field(compare=False)
    job_start_ns: int = field(compare=False)
    ranks: int = field(compare=False)
    method: str | float = field(compare=False)
    left_out: frozenset[int] = field(compare=False)
    reconstruct: bool = field(compare=False)
    limit: int = field(compare=False)
    gather: bool = field(compare=False)
    skip_damaged: bool = field(compare=False)
    rank_segments: int = field(compare=False)
    stretch_rows: int = field(compare=False)
    files: KnownFiles = field(compare=False)
    traced: Mapping[str, Mapping[str, tuple[SegmentCounts, ...]]] | None = field(default=None, compare=False)


class OpenedJob:
    """The logs of a job: each opened, and its counters read, once."""

    def __init__(self, setting: JobSetting) -> None:
        self.known = LogCounters(
            ranks=setting.ranks,
            reconstruct=setting.reconstruct,
            excluded=setting.left_out,
            limit=setting.limit,
            traced=setting.traced,
        )
        self._logs: dict[Path, DarshanLog] = {}

    def process(self, process: ProcessLog) -> ProcessLog:
        """The process with the log as it was opened first."""
        return replace(process, log=self._logs.setdefault(process.log.path, process.log))


class _Opened(threading.local):
    """The job that a thread works at: what is known of its counters changes from rank to rank."""

    def __init__(self) -> None:
        self.jobs: dict[str, OpenedJob] = {}


_OPENED = _Opened()


def opened(setting: JobSetting) -> OpenedJob:
    """The logs of the job that this thread works at; those of another one are let go."""
    if setting.token not in _OPENED.jobs:
        _OPENED.jobs = {setting.token: OpenedJob(setting)}
    return _OPENED.jobs[setting.token]


def let_go() -> None:
    """Forget the logs of the last job."""
    _OPENED.jobs = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMerge:
    """Merges a piece of a job; `spans`: of its ranks."""

    setting: JobSetting
    spans: RankSpans

    def __call__(self, piece: RankPiece) -> MergedRanks:
        """Write the rows of the ranks as parts of the capture. Raises: LogError; TargetError where the disk refuses."""
        return _Merging(self.setting, self.spans, piece).run()


class _Merging:
    """One pass over the ranks of a piece."""

    def __init__(self, setting: JobSetting, spans: RankSpans, piece: RankPiece) -> None:
        job = opened(setting)
        self._setting, self._spans = setting, spans
        self._logs = [job.process(process) for process in piece.processes]
        processes = [replace(each, log=each.log.part(piece.regions)) if piece.regions else each for each in self._logs]
        self._result = MergedRanks(files=FileNotes(known=setting.files))
        self._rows = RowsInStretches(
            files=self._result.files, known=job.known, job_start_ns=setting.job_start_ns, made=self._result.made
        )
        self._sources = RankSources(
            processes=processes,
            first=piece.first,
            end=piece.end,
            nprocs=setting.ranks,
            known=job.known,
            left_out=setting.left_out,
            gather=setting.gather,
            skip_damaged=setting.skip_damaged,
            spill=Spill(folder=setting.working, segments=setting.rank_segments),
        )

    def run(self) -> MergedRanks:
        """Write the rows; returns the rest."""
        found = self._result
        with OpsWriter(self._setting.working) as writer:
            for table in _tables(self._rank_columns()):
                writer.write(table)
        found.stored, found.parts = writer.rows, writer.parts
        found.files.known = KnownFiles.numbered(np.empty(0, dtype=np.uint64))  # whoever gets the result knows them
        found.log_warnings = {str(process.log.path): process.log.warnings for process in self._logs}
        return found

    def _rank_columns(self) -> Iterator[dict[str, np.ndarray]]:
        """The rows of some ranks after the other."""
        for parts in self._sources.batches():
            ranks = parts[0][1].ranks
            self._result.ranks.update(ranks.tolist())
            process, batch = parts[0]
            alone = len(parts) == len(ranks) == 1 and not self._spans.have_own(ranks).any()
            if alone and is_spilled(batch.start_ns):
                yield from self._stretches_of(int(ranks[0]), process, batch)
                continue
            if len(ranks) == 1:
                yield self._columns_of(int(ranks[0]), parts)
                continue
            for first, last in _alike(batch, self._spans.have_own(ranks)):
                alike = batch.of_ranks(first, last)
                yield self._columns_of(int(ranks[first]), [(process, alike)])

    def _stretches_of(self, rank: int, process: ProcessLog, batch: SegmentBatch) -> Iterator[dict[str, np.ndarray]]:
        """As `_columns_of`, for a rank without spans of its own whose segments are in files: a stretch of time each."""
        align = partial(self._align, rank) if process.worker == 0 else self._align_worker
        alignment = align(process, batch.of_rank(0), None)
        self._result.clock.append(_rank_clock(rank, process.worker, alignment))
        stretches = self._rows.columns_in_stretches(
            process, batch, alignment, self._setting.working, self._setting.stretch_rows
        )
        for number, columns in enumerate(stretches, 1):
            found = in_start_order(columns)
            found["step"] = self._spans.step_of(rank, found["start_ns"])
            yield found
            if number % _KEPT_STRETCHES == 0:
                return_freed_memory()

    def _columns_of(self, rank: int, parts: list[tuple[ProcessLog, SegmentBatch]]) -> dict[str, np.ndarray]:
        """The rows of a rank, or of several alike from `rank` on, by rank and start; its spans, clock and file counts
        are noted on the way."""
        profile = self._spans.profile(rank)
        columns = []
        lanes = undated_offset_ns = 0
        process_of_lane: list[int] = []
        for process, batch in parts:
            # Only the rank's own process is in the profile.
            own = profile if process.worker == 0 else None
            segments = batch.of_rank(int((batch.counts > 0).argmax()))
            alignment = (
                self._align(rank, process, segments, own)
                if process.worker == 0
                else self._align_worker(process, segments, profile)
            )
            if len(segments) and own is not None and own.epoch_start_ns is None:
                # The profile has no date, so it is moved to the log's clock, not the log to the profile's.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            made = self._rows.columns(process, batch, alignment)
            if len(made["lane"]):
                known = np.unique(made["rank"]).tolist()
                self._result.clock += [_rank_clock(each, process.worker, alignment) for each in known]
                made["lane"] = made["lane"] + np.int32(lanes)
                lanes = int(made["lane"].max()) + 1
            process_of_lane += [process.worker] * (lanes - len(process_of_lane))
            columns.append(made)
        if profile is not None:
            self._result.warnings += self._spans.add(rank, profile, undated_offset_ns)
        joined = in_start_order({name: np.concatenate([part[name] for part in columns]) for name in columns[0]})
        self._spans.extend_over(rank, joined, np.array(process_of_lane, dtype=np.int64)[joined["lane"]], self._path)
        joined["step"] = self._spans.step_of(rank, joined["start_ns"])
        return joined

    def _path(self, file_id: int) -> str:
        """The recorded path of a file, as far as a log has it."""
        files = self._result.files
        record = files.record(file_id)
        names = (process.log.names[record] for process in self._logs if record in process.log.names)
        return next(names, files.names.get(record, b"")).decode("utf-8", "backslashreplace")

    def _align_worker(self, process: ProcessLog, segments: RankSegments, profile: Profile | None) -> Alignment:
        """The offset of a worker's log: as its rank's training thread shows it, else the wall clock's or the user's."""
        log_job, method = process.log.job, self._setting.method
        if isinstance(method, float):
            return align_seconds(method)
        found = align_worker(segments, process.log, profile) if method != WALL else None
        if found is None and len(segments) == 0 and log_job.start_ns <= 0:
            return align_seconds(0.0)
        return found or align_wall(log_job.start_ns, log_job.has_nsec)

    def _align(self, rank: int, process: ProcessLog, segments: RankSegments, profile: Profile | None) -> Alignment:
        """The offset of a log; without traced operations it is the wall clock's, or the one that the user gives."""
        method = self._setting.method
        if not len(segments):
            log_job = process.log.job
            if isinstance(method, float) or log_job.start_ns <= 0:
                return align_seconds(method if isinstance(method, float) else 0.0)
            return align_wall(log_job.start_ns, log_job.has_nsec)
        alignment, notes = align_rank(segments, process.log, profile, method)
        self._result.warnings += [f"rank {rank}: {note}" for note in notes]
        return alignment


def _alike(batch: SegmentBatch, alone: np.ndarray) -> list[tuple[int, int]]:
    """The ranks of a batch, as (first, end) places, in runs of ranks that either all have thread ids or none; a rank in
    `alone` (bool) is a run by itself."""
    threaded = batch.threaded | (batch.counts == 0)
    mixed = not (batch.knows_threads or not threaded[batch.counts > 0].any())
    new = alone.copy()
    new[1:] |= alone[:-1]
    if mixed:
        new[1:] |= threaded[1:] != threaded[:-1]
    new[0] = True
    begin = np.flatnonzero(new)
    return list(zip(begin.tolist(), [*begin[1:].tolist(), len(alone)], strict=True))


def _tables(ranks: Iterable[dict[str, np.ndarray]]) -> Iterator[pa.Table]:
    """The rows of all ranks. Ranks with few rows share a table, because a table costs more than its few rows do."""
    waiting: list[dict[str, np.ndarray]] = []
    rows = 0
    for columns in ranks:
        waiting.append(columns)
        rows += len(columns["rank"])
        if rows >= ROW_GROUP_ROWS:
            yield _joined(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(ranks: list[dict[str, np.ndarray]]) -> pa.Table:
    if len(ranks) == 1:
        return table_from_columns(ranks[0], OPS_SCHEMA)
    columns = {name: np.concatenate([each[name] for each in ranks]) for name in ranks[0]}
    return table_from_columns(columns, OPS_SCHEMA)


def _rank_clock(rank: int, worker: int, alignment: Alignment) -> RankClock:
    return RankClock(
        rank=rank,
        method=alignment.method,
        offset_ns=alignment.offset_ns,
        residual_ns=alignment.residual_ns,
        interval_ns=alignment.interval_ns,
        worker=worker,
    )
