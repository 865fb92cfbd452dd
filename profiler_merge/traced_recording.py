"""A job whose tracer recorded every operation, as a recording.

Each operation has its thread and its time in CLOCK_REALTIME: nothing is rebuilt, and only an undated profile has to be
placed. At most one rank's operations and one profile are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.alignment import AUTO, WALL, align_rank, parse_method
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds
from dxt_replay.profiler_merge.clocks.process_profiles import profiles_of_processes
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments
from dxt_replay.profiler_merge.left_out import exports_warnings, is_export, shown
from dxt_replay.profiler_merge.merge_options import MergeOptions
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.more_spans import ProcessIds
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.recorded_job import AllSpans, Finished, RankRows, WrittenRanks, rank_clock, write_ranks
from dxt_replay.profiler_merge.traced_files import TracedFiles
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import OPS, READ, TRACED, WRITE, Coverage, Job
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.unseen import MEMORY, all_unseen, received, unseen_warnings, watched, with_unseen
from dxt_replay.traces.workers.workers import Workers

_RENAME = OPS.index("rename")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogTime:
    """The zero of a trace's times, in the form of a Darshan log's job record."""

    start_ns: int
    has_nsec: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _TraceClock:
    """A trace in the form that `clocks.alignment` expects of a log. `names`: path by number of the file."""

    job: _LogTime
    names: Mapping[int, bytes]


class TracedRecording:
    """As `recorded_job.Recording`, for the job that the reader of a source of this `kind` found in its files."""

    def __init__(self, kind: str, job: TracedJob, options: MergeOptions) -> None:
        self._job, self._options = job, options
        self._method = parse_method(options.align)
        self._table = TracedFiles(job.paths, job.sizes, job.suspect)
        self.files: Sequence[tuple[Path, str]] = [(path, kind) for path in job.files]
        self.ranks: Sequence[int] = range(job.nprocs)
        self.start_ns = job.start_ns
        self.loops: Mapping[int, SpanColumns] = job.spans
        self.warnings: Sequence[str] = job.warnings

    @property
    def job(self) -> Job:
        """As of `Recording`."""
        job = self._job
        return Job(
            nprocs=job.nprocs,
            run_time_s=ns_to_seconds(max(job.end_ns - job.start_ns, 0)),
            start_ns=job.start_ns,
            end_ns=job.end_ns,
            zero_ns=job.start_ns,
            exe=job.ranks[0].own.exe,
        )

    def process_ids(self) -> ProcessIds:
        """As of `Recording`."""
        return [frozenset(process.pid for process in rank.processes) for rank in self._job.ranks]

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """As of `Recording`."""
        job, options = self._job, self._options
        times_ns = (job.start_ns, job.end_ns)
        found = profiles_of_processes(profiles, self.process_ids(), times_ns, skip_damaged=options.skip_damaged)
        exports = () if options.keep_profiler_files else found.exports
        exported = {number: path for number, path in enumerate(map(shown, job.paths)) if is_export(path, exports)}
        self._job = replace(job, left_out=job.left_out | exported.keys())
        self.warnings = [*exports_warnings(exported.values()), *job.warnings]
        return found

    def write(self, folder: Path, spans: AllSpans, workers: Workers) -> WrittenRanks:
        """As of `Recording`; uses only this process."""
        return write_ranks(folder, self._rank_rows(spans), spans, self._table.name)

    def finish(self, written: WrittenRanks, spans: pa.Table) -> Finished:
        """As of `Recording`."""
        job = self._job
        if not written.stored:
            why = "; ".join(job.warnings) or "nothing was opened"
            raise LogError(f"{job.files[0]} holds no operation on a file of the job: {why}")
        mapped = sorted(name for name in (shown(job.paths[file]) for file in job.mapped) if not name.startswith(MEMORY))
        seen = received(job.received, job.received_of_unknown, self._table.moved, watched(job.files))
        unseen = all_unseen(seen, mapped)
        share = 1.0 if job.complete else None
        whole = Coverage(bytes=share, operations=share, ranks=dict.fromkeys(self.ranks, (share, share)))
        return Finished(
            files=self._table.table(complete=job.complete),
            coverage=with_unseen(whole, self._table.moved, unseen),
            lanes="pthread_id",
            warnings=unseen_warnings(unseen),
        )

    def _rank_rows(self, spans: AllSpans) -> Iterator[RankRows]:
        for rank, processes in enumerate(self._job.ranks):
            rows = self._job.of_rank(rank)
            profile = spans.profile(rank)
            alignment, notes = self._aligned(rank, rows, profile)
            undated_offset_ns = 0
            if profile is not None and profile.epoch_start_ns is None:
                # An undated profile is moved to the trace's clock.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            numbers = np.array([process.number for process in processes.processes])
            order = np.argsort(numbers)
            yield RankRows(
                ranks=np.array([rank]),
                columns=self._columns(rank, rows, alignment),
                process=order[np.searchsorted(numbers, rows["process"], sorter=order)],
                clock=[rank_clock(rank, alignment)],
                warnings=[f"rank {rank}: {note}" for note in notes],
                profile=profile,
                undated_offset_ns=undated_offset_ns,
            )

    def _columns(self, rank: int, rows: np.ndarray, alignment: Alignment) -> dict[str, np.ndarray]:
        """The rank's operations as columns of `OPS_SCHEMA`; also counts them in the table of files."""
        renamed = rows["op"] == _RENAME
        columns = {
            "rank": np.full(len(rows), rank, dtype=np.int32),
            "lane": rows["thread"],
            "op": rows["op"],
            "api": rows["api"],
            "file_id": self._table.number(rows["file"]),
            "offset": rows["offset"].copy(),
            "length": rows["length"],
            "start_ns": alignment.realtime_ns(rows["start_ns"]) - self.start_ns,
            "end_ns": alignment.realtime_ns(rows["end_ns"]) - self.start_ns,
            "origin": np.full(len(rows), TRACED, dtype=np.int8),
        }
        columns["offset"][renamed] = self._table.number(rows["offset"][renamed])
        self._table.note(columns)
        return columns

    def _aligned(self, rank: int, rows: np.ndarray, profile: Profile | None) -> tuple[Alignment, list[str]]:
        """The offset of the trace's clock: that of the profile unless it is undated or a method was requested."""
        if isinstance(self._method, float):
            return align_seconds(self._method), []
        dated = profile is None or profile.epoch_start_ns is not None
        low, high = self._job.clock_ns
        if dated and self._method in (AUTO, WALL):
            return Alignment(method="wall", offset_ns=0, residual_ns=max(-low, high), interval_ns=(low, high)), []
        clock = _TraceClock(job=_LogTime(start_ns=self.start_ns), names=dict(enumerate(self._job.paths)))
        return align_rank(self._segments(rank, rows), clock, profile, self._method)

    def _segments(self, rank: int, rows: np.ndarray) -> RankSegments:
        """The reads and writes of the rank's own process in the form of a log's segments."""
        data = rows[((rows["op"] == READ) | (rows["op"] == WRITE))]
        data = data[data["process"] == self._job.ranks[rank].own.number]
        return RankSegments(
            rank=rank,
            hostname="",
            record_id=data["file"].astype(np.uint64),
            api=data["api"],
            is_write=data["op"] == WRITE,
            offset=data["offset"],
            length=data["length"],
            start_ns=data["start_ns"] - self.start_ns,
            end_ns=data["end_ns"] - self.start_ns,
            thread=None,
        )
