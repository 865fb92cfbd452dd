"""A job that a tracer recorded, and the profiles of its ranks, to a capture.

Every operation was traced, with its thread and its time in CLOCK_REALTIME: nothing is rebuilt, and only a profile
without a date has to be placed. No more than one rank's operations and one profile are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.capture_info import source_of
from dxt_replay.profiler_merge.clocks.alignment import AUTO, WALL, align_rank
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds
from dxt_replay.profiler_merge.clocks.process_profiles import profiles_of_processes
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments
from dxt_replay.profiler_merge.given_files import GivenFiles
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.merge_options import MergeOptions
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.reading import profile_files, profile_kind
from dxt_replay.profiler_merge.rank_sources import LeftOut, is_export, shown
from dxt_replay.profiler_merge.recognise import DFTRACER, STRACE, kind_of
from dxt_replay.profiler_merge.span_sources import MoreSpans, more_spans
from dxt_replay.profiler_merge.traced_files import TracedFiles
from dxt_replay.profiler_merge.tracers.dftracer.dftracer_job import read_dftracer
from dxt_replay.profiler_merge.tracers.strace.strace_job import read_strace
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob
from dxt_replay.profiler_merge.untraced.rebuilt import Rebuilt
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import (
    HDF5_SCHEMA,
    OPS,
    OPS_SCHEMA,
    READ,
    TRACED,
    WRITE,
    CaptureInfo,
    Coverage,
    Job,
    RankClock,
    Unseen,
    table_from_columns,
)
from dxt_replay.traces.store.writer import OpsWriter, write_capture_info, write_files, write_hdf5, write_spans
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.unseen import MEMORY, all_unseen, received, unseen_warnings, watched, with_unseen
from dxt_replay.traces.version import VERSION

_RENAME = OPS.index("rename")
READERS: Mapping[str, Callable[[Sequence[Path], Sequence[str], Sequence[str]], TracedJob]] = {
    STRACE: read_strace,
    DFTRACER: read_dftracer,
}
"""Kind of source -> what reads its files, with globs of paths that are left out, and of some that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogTime:
    """When the times of a trace begin, in the form of a Darshan log's job record."""

    start_ns: int
    has_nsec: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _TraceClock:
    """A trace as `clocks.alignment` sees a log. `names`: path by number of the file."""

    job: _LogTime
    names: Mapping[int, bytes]


def merge_trace(
    job: TracedJob, given: GivenFiles, options: MergeOptions, method: str | float, output: Path
) -> tuple[CaptureInfo, pa.Table, int]:
    """Write the capture's parts. Returns the contents of capture.json, the files table and the number of spans.

    `method`: as `clocks.alignment.parse_method` returns it.
    Raises: LogError for a trace without operations; ProfileError, AlignmentError for profiles that cannot be used.
    """
    pids = [frozenset(process.pid for process in rank.processes) for rank in job.ranks]
    times_ns = (job.start_ns, job.end_ns)
    mapped = profiles_of_processes(profile_files(given.profiles), pids, times_ns, skip_damaged=options.skip_damaged)
    more = more_spans(given.spans, pids)
    more.loops = {**job.spans, **more.loops}
    exported = frozenset() if options.keep_profiler_files else _exported(job, mapped.exports)
    merger = _TraceMerger(replace(job, left_out=job.left_out | exported), mapped.by_rank, more, options, method)
    merger.warnings += [*job.warnings, *mapped.warnings, *more.warnings, *_exports_warnings(job, exported)]
    return merger.run(output)


def _exported(job: TracedJob, exports: Collection[str]) -> frozenset[int]:
    """Files that the profiler itself wrote."""
    return frozenset(number for number, path in enumerate(job.paths) if is_export(shown(path), exports))


def _exports_warnings(job: TracedJob, exported: Collection[int]) -> list[str]:
    paths = tuple(sorted(shown(job.paths[number]) for number in exported))
    return LeftOut(records=frozenset(), exports=paths).warnings()


class _TraceMerger:
    """One pass over the ranks of a traced job."""

    def __init__(
        self,
        job: TracedJob,
        profiles: Mapping[int, tuple[Path, ...]],
        more: MoreSpans,
        options: MergeOptions,
        method: str | float,
    ) -> None:
        self._job, self._profiles, self._more, self._options, self._method = job, profiles, more, options, method
        self._files = TracedFiles(job.paths, job.sizes, job.suspect)
        self._spans = JobSpans(
            profiles=profiles,
            start_ns=job.start_ns,
            ranks=job.nprocs,
            skip_damaged=options.skip_damaged,
            more=more,
            extend=options.extend,
        )
        self._clock: list[RankClock] = []
        self._unseen: tuple[Unseen, ...] = ()
        self.warnings: list[str] = []

    def run(self, output: Path) -> tuple[CaptureInfo, pa.Table, int]:
        """Write everything. Returns the contents of capture.json, the files table, and the number of spans."""
        with OpsWriter(output) as writer:
            for rank in range(self._job.nprocs):
                writer.write(self._rank_table(rank))
        if not writer.rows:
            why = "; ".join(self._job.warnings) or "nothing was opened"
            raise LogError(f"{self._job.files[0]} holds no operation on a file of the job: {why}")
        names = [self._job.paths[file].decode("utf-8", "backslashreplace") for file in self._job.mapped]
        mapped = sorted(name for name in names if not name.startswith(MEMORY))
        table, moved = self._files.table(complete=self._job.complete), self._files.moved
        seen = received(self._job.received, self._job.received_of_unknown, moved, watched(self._job.files))
        self._unseen = all_unseen(seen, mapped)
        self.warnings += [*self._spans.add_rest(), *self._spans.extension_warnings(), *unseen_warnings(self._unseen)]
        spans = self._spans.table()
        info = self._info(writer.rows, moved)
        write_files(output, table)
        write_spans(output, spans)
        write_hdf5(output, HDF5_SCHEMA.empty_table())
        write_capture_info(output, info)
        return info, table, spans.num_rows

    def _info(self, stored: int, moved: int) -> CaptureInfo:
        job, share = self._job, 1.0 if self._job.complete else None
        whole = Coverage(bytes=share, operations=share, ranks=dict.fromkeys(range(job.nprocs), (share, share)))
        extended = self._spans.extended_json()
        return CaptureInfo(
            job=_job(job),
            ranks=tuple(range(job.nprocs)),
            sources=(
                *(source_of(path, job.tool) for path in job.files),
                *(source_of(path, profile_kind(path)) for _, files in sorted(self._profiles.items()) for path in files),
                *(source_of(path, str(kind_of(path))) for path in self._more.files),
            ),
            clock=tuple(self._clock),
            coverage=with_unseen(whole, moved, self._unseen),
            lanes="pthread_id",
            warnings=tuple(self.warnings),
            made_by={
                "program": "dxt-replay",
                "version": VERSION,
                "command": "merge",
                "operations_stored": stored,
                "operations_reconstructed": 0,
                "rebuilt": Rebuilt().as_json(),
                **({"extended": extended} if extended else {}),
                **self._options.repeated(),
            },
        )

    def _rank_table(self, rank: int) -> pa.Table:
        """The rank's operations as `OPS_SCHEMA`; its spans and clock are noted on the way."""
        rows = self._job.of_rank(rank)
        profile = self._spans.profile(rank)
        alignment = self._align(rank, rows, profile)
        undated = profile is not None and profile.epoch_start_ns is None
        if profile is not None:
            # A profile without a date is moved to the trace's clock.
            self.warnings += self._spans.add(rank, profile, -alignment.offset_ns if undated else 0)
        if undated:
            alignment = replace(alignment, offset_ns=0)
        self._clock.append(
            RankClock(
                rank=rank,
                method=alignment.method,
                offset_ns=alignment.offset_ns,
                residual_ns=alignment.residual_ns,
                interval_ns=alignment.interval_ns,
            )
        )
        return self._table(rank, rows, alignment)

    def _table(self, rank: int, rows: np.ndarray, alignment: Alignment) -> pa.Table:
        start_ns, end_ns = (alignment.realtime_ns(rows[name]) - self._job.start_ns for name in ("start_ns", "end_ns"))
        renamed = rows["op"] == _RENAME
        offset = rows["offset"].copy()
        columns = {
            "rank": np.full(len(rows), rank, dtype=np.int32),
            "lane": rows["thread"],
            "op": rows["op"],
            "api": rows["api"],
            "file_id": self._files.number(rows["file"]),
            "offset": offset,
            "length": rows["length"],
            "start_ns": start_ns,
            "end_ns": end_ns,
            "origin": np.full(len(rows), TRACED, dtype=np.int8),
        }
        offset[renamed] = self._files.number(offset[renamed])
        self._files.note(columns)
        processes = np.array([process.number for process in self._job.ranks[rank].processes])
        order = np.argsort(processes)
        worker = order[np.searchsorted(processes, rows["process"], sorter=order)]
        self._spans.extend_over(rank, columns, worker, self._files.name)
        columns["step"] = self._spans.step_of(rank, start_ns)
        return table_from_columns(columns, OPS_SCHEMA)

    def _align(self, rank: int, rows: np.ndarray, profile: Profile | None) -> Alignment:
        """The offset of the trace's clock; it is the profile's own unless that has no date or a method is asked for."""
        if isinstance(self._method, float):
            return align_seconds(self._method)
        dated = profile is None or profile.epoch_start_ns is not None
        low, high = self._job.clock_ns
        if dated and self._method in (AUTO, WALL):
            return Alignment(method="wall", offset_ns=0, residual_ns=max(-low, high), interval_ns=(low, high))
        clock = _TraceClock(job=_LogTime(start_ns=self._job.start_ns), names=dict(enumerate(self._job.paths)))
        alignment, notes = align_rank(self._segments(rank, rows), clock, profile, self._method)
        self.warnings += [f"rank {rank}: {note}" for note in notes]
        return alignment

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
            start_ns=data["start_ns"] - self._job.start_ns,
            end_ns=data["end_ns"] - self._job.start_ns,
            thread=None,
        )


def _job(job: TracedJob) -> Job:
    return Job(
        nprocs=job.nprocs,
        run_time_s=ns_to_seconds(max(job.end_ns - job.start_ns, 0)),
        start_ns=job.start_ns,
        end_ns=job.end_ns,
        zero_ns=job.start_ns,
        exe=job.ranks[0].own.exe,
    )
