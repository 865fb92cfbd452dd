"""Merges the ranks of one piece of Darshan's logs, in any process: writes rows as parts of the capture, returns
notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.alignment import WALL, align_rank, align_worker
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds, align_wall
from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog, process_id
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments, SegmentBatch
from dxt_replay.profiler_merge.darshan.spilled import is_spilled, keep_freed_memory, return_freed_memory
from dxt_replay.profiler_merge.file_notes import NO_FILE, FileNotes, KnownFiles
from dxt_replay.profiler_merge.job_pieces import JobSetting, RankPiece
from dxt_replay.profiler_merge.lane_facts import WORKER, LaneFacts, lane_rows
from dxt_replay.profiler_merge.left_out import shown
from dxt_replay.profiler_merge.mapped_reads import mapped_columns, mapped_reads
from dxt_replay.profiler_merge.process_rows import LogCounters, RowTotals, as_columns, in_start_order
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.rank_sources import RankSources
from dxt_replay.profiler_merge.recorded_job import RankRows, RankSpans, WrittenRanks, rank_clock, write_ranks
from dxt_replay.profiler_merge.stretch_rows import RowsInStretches
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import RankClock
from dxt_replay.traces.store.lanes import lanes_in

_KEPT_STRETCHES = 16
"""Stretches of a rank after which freed memory returns to the system: the C library keeps 7 bytes an operation between
blocks in use."""


class OpenedJob:
    """The opened logs of a job; each is opened, and its counters are read, once."""

    def __init__(self, setting: JobSetting) -> None:
        keep_freed_memory()
        self.known = LogCounters(
            ranks=setting.ranks,
            reconstruct=setting.options.reconstruct,
            excluded=setting.left_out,
            traced=setting.traced,
        )
        self._logs: dict[Path, DarshanLog] = {}
        self.mapped = mapped_reads(setting.logs)

    def process(self, process: ProcessLog) -> ProcessLog:
        """The process with its log as first opened."""
        return replace(process, log=self._logs.setdefault(process.log.path, process.log))


_IDLE: dict[str, list[OpenedJob]] = {}
"""By token, the opened logs that are not in use.

What is known of their counters changes from rank to rank, so two threads of a process must not share them."""


@contextmanager
def opened(setting: JobSetting) -> Iterator[OpenedJob]:
    """The logs of a job, for one user at a time; frees those of another job."""
    if setting.token not in _IDLE:
        _IDLE.clear()
    idle = _IDLE.setdefault(setting.token, [])
    job = None
    with suppress(IndexError):
        job = idle.pop()
    job = job or OpenedJob(setting)
    yield job
    idle.append(job)


def let_go() -> None:
    """Forget the logs of the last job."""
    _IDLE.clear()


@dataclass(slots=True, kw_only=True)
class MergedPiece:
    """The result of the ranks of a piece. log_notes: by path of the log."""

    written: WrittenRanks
    made: RowTotals
    files: FileNotes
    log_notes: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceMerge:
    """Merges a piece of a job; `spans`: of its ranks."""

    setting: JobSetting
    spans: RankSpans

    def __call__(self, piece: RankPiece) -> MergedPiece:
        """Write the rows of the ranks as parts of the capture. Raises: LogError; TargetError where the disk refuses."""
        with opened(self.setting) as job:
            return _Merging(self.setting, self.spans, piece, job).run()


class _Merging:
    """One pass over the ranks of a piece."""

    def __init__(self, setting: JobSetting, spans: RankSpans, piece: RankPiece, job: OpenedJob) -> None:
        self._setting, self._spans = setting, spans
        self._logs = [job.process(process) for process in piece.processes]
        processes = [replace(each, log=each.log.part(piece.regions)) if piece.regions else each for each in self._logs]
        self._mapped = job.mapped
        self._files, self._made = FileNotes(known=setting.files), RowTotals()
        self._rows = RowsInStretches(
            files=self._files, known=job.known, job_start_ns=setting.job_start_ns, made=self._made
        )
        self._sources = RankSources(setting=setting, piece=piece, processes=processes, known=job.known)

    def run(self) -> MergedPiece:
        """Write the rows; returns the rest. Raises: DamagedLogError for damage, unless the piece is the whole job."""
        written = write_ranks(self._setting.working, self._rank_rows(), self._spans, self._path)
        for process in () if self._sources.piece.is_whole else self._logs:
            for error in process.log.damage.values():
                raise error
        self._files.known = KnownFiles.numbered(np.empty(0, dtype=np.uint64))  # the caller adds these to its own
        notes = {str(process.log.path): process.log.notes for process in self._logs}
        return MergedPiece(written=written, made=self._made, files=self._files, log_notes=notes)

    def _rank_rows(self) -> Iterator[RankRows]:
        """The rows of ranks, one rank after the other."""
        for parts in self._sources.batches():
            process, batch = parts[0]
            own = self._spans.have_own(batch.ranks)
            if len(parts) == len(batch.ranks) == 1 and not own.any() and is_spilled(batch.start_ns):
                yield from self._stretches_of(process, batch)
            elif len(batch.ranks) == 1:
                yield self._rows_of(parts)
            else:
                for first, last in _alike(batch, own):
                    yield self._rows_of([(process, batch.of_ranks(first, last))])

    def _stretches_of(self, process: ProcessLog, batch: SegmentBatch) -> Iterator[RankRows]:
        """As `_rows_of`, for a rank without spans of its own whose segments are in files: one item per stretch
        of time."""
        rank = int(batch.ranks[0])
        alignment, warnings = self._aligned(rank, process, batch.of_rank(0), None)
        if len(self._mapped.of_process(pid := process_id(process))):
            assert pid is not None
            self._made.mapped_left_out.add(pid)
            warnings = [*warnings, f"rank {rank}: its mapped reads are left out, beside so many traced operations"]
        clock = [rank_clock(rank, alignment, process.worker)]
        stretches = self._rows.columns_in_stretches(
            process, batch, alignment, self._setting.working, self._setting.options.stretch_rows
        )
        for number, columns in enumerate(stretches, 1):
            yield RankRows(
                ranks=batch.ranks,
                columns=in_start_order(columns),
                process=np.broadcast_to(process.worker, len(columns["rank"])),
                clock=clock,
                warnings=warnings,
                lanes=_lanes(columns, [(process, batch)] * (1 + int(columns["lane"].max(initial=-1)))),
            )
            clock, warnings = [], []
            if number % _KEPT_STRETCHES == 0:
                return_freed_memory()

    def _rows_of(self, parts: list[tuple[ProcessLog, SegmentBatch]]) -> RankRows:
        """The rows of a rank, or of several similar ones, by rank and start, with its clock; also notes file counts."""
        ranks = parts[0][1].ranks
        rank = int(ranks[0])
        profile = self._spans.profile(rank)
        columns, clock, warnings = [], list[RankClock](), list[str]()
        lanes = undated_offset_ns = 0
        process_of_lane, threads = list[int](), dict[int, int]()
        for process, batch in parts:
            segments = batch.of_rank(int((batch.counts > 0).argmax()))
            alignment, notes = self._aligned(rank, process, segments, profile)
            warnings += notes
            if len(segments) and process.worker == 0 and profile is not None and profile.epoch_start_ns is None:
                # The profile has no date, so it is moved to the log's clock instead.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            made, mapping = self._with_mapped(process, batch, self._rows.columns(process, batch, alignment))
            threads |= {lanes + lane: thread for lane, thread in mapping.items()}
            if len(made["lane"]):
                clock += [rank_clock(each, alignment, process.worker) for each in np.unique(made["rank"]).tolist()]
                made["lane"] = made["lane"] + np.int32(lanes)
                lanes = int(made["lane"].max()) + 1
            process_of_lane += [process.worker] * (lanes - len(process_of_lane))
            columns.append(made)
        joined = in_start_order({name: np.concatenate([part[name] for part in columns]) for name in columns[0]})
        batches = {process.worker: (process, batch) for process, batch in parts}
        return RankRows(
            ranks=ranks,
            columns=joined,
            process=np.array(process_of_lane, dtype=np.int64)[joined["lane"]],
            clock=clock,
            warnings=warnings,
            lanes=_lanes(joined, [batches[worker] for worker in process_of_lane], threads),
            profile=profile,
            undated_offset_ns=undated_offset_ns,
        )

    def _with_mapped(
        self, process: ProcessLog, batch: SegmentBatch, made: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[int, int]]:
        """The columns of a process with its mapped reads, those of its main thread in its first lane; and the threads
        of the lanes that they add."""
        pid = process_id(process)
        rows = self._mapped.of_process(pid)
        if pid is None or not len(rows):
            return made, {}
        names = process.log.names
        records = list(names)
        known = self._mapped.found_among(list(names.values()))
        record = np.array(
            [
                records[place] if place >= 0 else record_id(path)
                for place, path in zip(known, self._mapped.paths, strict=True)
            ],
            dtype=np.uint64,
        )
        self._files.note_names(
            {int(each): path for each, path in zip(record, self._mapped.paths, strict=True) if int(each) not in names}
        )
        files = self._files.number(record[rows["file"]])
        self._files.note_sizes(files, np.zeros(len(rows), dtype=np.int64), np.array(self._mapped.sizes)[rows["file"]])
        found = mapped_columns(
            rows,
            made,
            rank=int(batch.ranks[0]),
            lanes={pid: 0} if len(made["lane"]) else {},
            next_lane=(first := int(made["lane"].max(initial=-1)) + 1),
            facts=LaneFacts(pid=pid),
            number=lambda file: files.file_id,
            zero_ns=self._setting.job_start_ns,
        )
        self._made.mapped_bytes += int(found.columns["length"].sum())
        same = {"other_file_id": np.full(len(rows), NO_FILE), "tie": np.zeros(len(rows), dtype=np.int64)}
        threads = {lane: each.thread for lane, each in enumerate(found.added, first) if each.thread is not None}
        return as_columns([made, {**found.columns, **same}]), threads

    def _path(self, file_id: int) -> str:
        """The recorded path of a file, if a log has it."""
        record = self._files.record(file_id)
        names = (process.log.names[record] for process in self._logs if record in process.log.names)
        return shown(next(names, self._files.names.get(record, b"")))

    def _aligned(
        self, rank: int, process: ProcessLog, segments: RankSegments, profile: Profile | None
    ) -> tuple[Alignment, list[str]]:
        """The offset of a log, and warnings. The profile covers only the rank's own process.

        A worker's offset follows from its rank's training thread; without traced operations it is the wall clock's.
        """
        log_job, method = process.log.job, self._setting.method
        if len(segments) and process.worker == 0:
            alignment, notes = align_rank(segments, process.log, profile, method)
            return alignment, [f"rank {rank}: {note}" for note in notes]
        if isinstance(method, float):
            return align_seconds(method), []
        found = align_worker(segments, process.log, profile) if process.worker and method != WALL else None
        if found is None and not len(segments) and log_job.start_ns <= 0:
            found = align_seconds(0.0)
        return found or align_wall(log_job.start_ns, log_job.has_nsec), []


def _lanes(
    columns: Mapping[str, np.ndarray],
    of_lane: Sequence[tuple[ProcessLog, SegmentBatch]],
    threads: Mapping[int, int] = MappingProxyType({}),
) -> pa.Table:
    """What the logs know of the lanes in these rows. `of_lane`: log and segments of each lane of every rank; `threads`:
    those of lanes of page faults."""
    ranks, lanes = lanes_in(columns["rank"], columns["lane"])
    known = []
    for rank, lane in zip(ranks.tolist(), lanes.tolist(), strict=True):
        process, batch = of_lane[lane]
        host = batch.hostname(int(np.searchsorted(batch.ranks, rank)))
        pid, role = process_id(process), WORKER if process.worker else None
        known.append(LaneFacts(host=host or None, pid=pid, thread=threads.get(lane), role=role))
    return lane_rows(ranks, lanes, known)


def _alike(batch: SegmentBatch, alone: np.ndarray) -> list[tuple[int, int]]:
    """The ranks of a batch, as (first, end) places, in runs in which all ranks, or none, have thread ids.

    A rank in `alone` (bool) is a run of its own."""
    threaded = batch.threaded | (batch.counts == 0)
    mixed = not (batch.knows_threads or not threaded[batch.counts > 0].any())
    new = alone.copy()
    new[1:] |= alone[:-1]
    if mixed:
        new[1:] |= threaded[1:] != threaded[:-1]
    new[0] = True
    begin = np.flatnonzero(new)
    return list(zip(begin.tolist(), [*begin[1:].tolist(), len(alone)], strict=True))
