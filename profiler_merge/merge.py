"""Sources to one capture: Darshan log(s), and the framework's profiles where there are any.

Rank by rank: the rank's DXT segments, its profile, the offset between their clocks, then lanes, steps and rows. No more
than one rank's segments and one profile are in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler_merge.clocks.alignment import align_rank, parse_method
from profiler_merge.clocks.offsets import Alignment, align_seconds, align_wall
from profiler_merge.clocks.profile_ranks import map_profiles
from profiler_merge.darshan.job_logs import JobLogs, ProcessLog, open_job
from profiler_merge.darshan.rank_segments import RankSegments, RanksInterleavedError, read_rank_segments
from profiler_merge.darshan.regions import DamagedLogError
from profiler_merge.file_table import FileTable, mapped_warnings
from profiler_merge.hdf5.datasets import hdf5_facts
from profiler_merge.process_rows import ProcessRows, in_start_order, no_segments
from profiler_merge.profiles.event_table import Profile
from profiler_merge.profiles.reading import is_json, profile_files, read_profile
from profiler_merge.profiles.spans import SpanColumns, profile_spans
from profiler_merge.recognise import DARSHAN, KINETO, XPLANE, foreign
from profiler_merge.untraced.data_rows import RECONSTRUCT_LIMIT
from traces.errors import DxtReplayError, LogError, ProfileError
from traces.schema import (
    NO_STEP,
    OPS_SCHEMA,
    SPAN_KINDS,
    SPANS_SCHEMA,
    CaptureInfo,
    Coverage,
    Job,
    RankClock,
    Source,
    table_from_columns,
)
from traces.steps import step_at
from traces.store.writer import (
    OpsWriter,
    begin_capture,
    check_capture_output,
    create_capture,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_spans,
)
from traces.units import ns_to_seconds, seconds_to_ns
from traces.version import VERSION

MOST_TRACED = 2.0
"""Times of what was counted that a damaged trace may hold: counters can be incomplete too."""

MAX_COPIED_SPANS = 1 << 25
MAX_RANKS = 1 << 20
"""A job record that claims more ranks is damaged; then only ranks with operations count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """How to merge.

    align: auto, anchors, nesting, wall, or seconds as text.
    exclude: globs over whole paths.
    skip_damaged: use the readable rest of damaged logs and profiles.
    reconstruct: make the operations that a trace does not hold (`profiler_merge.untraced.reconstruct`).
    reconstruct_limit: the most reads and writes of one process that are made.
    inspect: open the recorded HDF5 files and store where their chunks lie.
    inspect_maps: (recorded prefix, directory) pairs that say where those files are now.
    keep_profiler_files: keep the operations on the files that PyTorch's profiler wrote while it was recorded.
    force: replace an earlier capture.
    """

    align: str = "auto"
    exclude: tuple[str, ...] = ()
    skip_damaged: bool = False
    reconstruct: bool = True
    reconstruct_limit: int = RECONSTRUCT_LIMIT
    inspect: bool = False
    inspect_maps: tuple[tuple[bytes, bytes], ...] = ()
    keep_profiler_files: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge made.

    `operations`: the traced ones; `reconstructed` are stored beside them. `counted`: what Darshan's counters say of
    each interface, as {"POSIX": {"reads": ..., "writes": ..., "bytes_read": ..., "bytes_written": ...}}.
    """

    capture: Path
    info: CaptureInfo
    operations: int
    reconstructed: int
    files: int
    spans: int
    counted: Mapping[str, Mapping[str, int]]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay merge --json` prints."""
        return {
            "capture": str(self.capture),
            "ranks": len(self.info.ranks),
            "operations": {"traced": self.operations, "reconstructed": self.reconstructed},
            "files": self.files,
            "spans": self.spans,
            "lanes": self.info.lanes,
            "counted": {name: dict(totals) for name, totals in self.counted.items()},
            "coverage": {"bytes": self.info.coverage.bytes, "operations": self.info.coverage.operations},
            "clock": [
                {
                    "rank": clock.rank,
                    "worker": clock.worker,
                    "method": clock.method,
                    "offset_ns": clock.offset_ns,
                    "residual_ns": clock.residual_ns,
                    "interval_ns": list(clock.interval_ns),
                }
                for clock in self.info.clock
            ],
            "rebuilt": dict(self.info.made_by["rebuilt"]),
            "warnings": list(self.info.warnings),
        }


def merge(
    logs: Sequence[Path], profiles: Sequence[Path], output: Path, options: MergeOptions = MergeOptions()
) -> MergeResult:
    """Write the capture `output` from the logs of one job and the profiles of its ranks.

    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    _refuse_foreign(logs, LogError, DARSHAN)
    _refuse_foreign(profiles, ProfileError, XPLANE, KINETO)
    method = parse_method(options.align)
    check_capture_output(output, force=options.force)
    job = open_job(logs, skip_damaged=options.skip_damaged)
    working = begin_capture(output, force=options.force)
    try:
        try:
            made = _merge_once(job, profiles, working, options, method, gather=False)
        except RanksInterleavedError:
            create_capture(working)
            made = _merge_once(job, profiles, working, options, method, gather=True)
        publish_capture(working, output, force=options.force)
    except BaseException:
        discard_capture(working)
        raise
    info, files, spans = made
    reconstructed = int(info.made_by["operations_reconstructed"])
    return MergeResult(
        capture=output,
        info=info,
        operations=int(info.made_by["operations_stored"]) - reconstructed,
        reconstructed=reconstructed,
        files=files.num_rows,
        spans=spans,
        counted=_counted(files),
    )


def _refuse_foreign(paths: Sequence[Path], error: type[DxtReplayError], *wanted: str) -> None:
    """Raises: `error` for a file of another tool, or a file of ours of another kind."""
    for path in paths:
        if (text := foreign(path, *wanted)) is not None:
            raise error(text)


def _merge_once(
    job: JobLogs, profiles: Sequence[Path], working: Path, options: MergeOptions, method: str | float, *, gather: bool
) -> tuple[CaptureInfo, pa.Table, int]:
    added_ns = seconds_to_ns(method) if isinstance(method, float) else 0
    ranks = map_profiles(
        profile_files(profiles), job, gather=gather, offset_ns=added_ns, skip_damaged=options.skip_damaged
    )
    exports = () if options.keep_profiler_files else ranks.exports
    merger = _Merger(job, ranks.by_rank, working, options, method, gather=gather, exports=frozenset(exports))
    return merger.run(ranks.warnings)


@dataclass(slots=True)
class _Merger:
    """One pass over the ranks of a job. `method`: as `clocks.parse_method` returns it."""

    job: JobLogs
    profiles: Mapping[int, tuple[Path, ...]]
    output: Path
    options: MergeOptions
    method: str | float
    gather: bool
    exports: frozenset[str]
    files: FileTable = field(init=False)
    rows: ProcessRows = field(init=False)
    excluded: set[int] = field(init=False)
    clock: list[RankClock] = field(default_factory=list)
    spans: list[pa.Table] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    template: SpanColumns | None = None

    def __post_init__(self) -> None:
        logs = [process.log for process in self.job.processes]
        named = [(record, _shown(path)) for log in logs for record, path in log.names.items()]
        exported = {record: path for record, path in named if self._is_export(path)}
        if exported:
            self.warnings.append(
                f"left out, written by the profiler itself and not by the job: {', '.join(sorted(exported.values()))} "
                "(--keep-profiler-files keeps them)"
            )
        self.excluded = {
            *exported,
            *(record for record, path in named if any(fnmatchcase(path, glob) for glob in self.options.exclude)),
        }
        self.files = FileTable(logs, self.excluded)
        self.rows = ProcessRows(
            files=self.files,
            job_start_ns=self.job.start_ns,
            ranks=self.job.nprocs,
            reconstruct=self.options.reconstruct,
            limit=self.options.reconstruct_limit,
            excluded=self.excluded,
        )

    def _is_export(self, path: str) -> bool:
        """Whether the profiler wrote the file, or a temporary form of it that is renamed or compressed later."""
        name = path.rpartition("/")[2]
        finals = (path, name, f"{name}.gz", name.removesuffix(".tmp"), path.removesuffix(".tmp"))
        return any(final in self.exports for final in finals)

    def run(self, warnings: Sequence[str]) -> tuple[CaptureInfo, pa.Table, int]:
        """Write everything. Returns the contents of capture.json, the files table, and the number of spans."""
        self.warnings += [*self.job.warnings, *warnings]
        seen: set[int] = set()
        with OpsWriter(self.output) as writer:
            for rank, parts in self._ranks():
                seen.add(rank)
                writer.write(self._rank_table(rank, parts))
        for rank in sorted(self.profiles.keys() - seen):
            self._add_spans(rank, self._read(self.profiles[rank]))
        self._extrapolate_spans()
        self.rows.rebuilt.finish()
        table, coverage = self.files.finish([process.rank for process in self.job.processes])
        self._refuse_rubbish(coverage)
        self.warnings += self.files.offset_warnings(table["path"].to_pylist())
        self.warnings += mapped_warnings(table)
        spans = pa.concat_tables([SPANS_SCHEMA.empty_table(), *self.spans])
        self._warn_of_gaps(coverage, writer.rows - self.rows.reconstructed)
        logs = [process.log for process in self.job.processes]
        hdf5 = hdf5_facts(logs, table, inspect=self.options.inspect, maps=self.options.inspect_maps)
        self.warnings += hdf5.warnings
        self.warnings[:0] = self.job.log_warnings()
        info = self._info(seen, coverage, writer.rows)
        write_files(self.output, table)
        write_spans(self.output, spans)
        write_hdf5(self.output, hdf5.table)
        write_capture_info(self.output, info)
        return info, table, spans.num_rows

    def _ranks(self) -> Iterator[tuple[int, list[tuple[ProcessLog, RankSegments]]]]:
        """Each rank that was traced or counted, with the segments of its process and of its workers."""
        if self.job.processes[0].rank is None:
            yield from self._ranks_of_job(self.job.processes[0])
            return
        for rank in range(self.job.nprocs):
            mine = [process for process in self.job.processes if process.rank == rank]
            parts = []
            for process in mine:
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
        if not self.options.skip_damaged:
            raise DamagedLogError(problem)
        process.log.add_warning(f"{problem}: they are kept")

    def _segments(self, process: ProcessLog) -> Iterator[RankSegments]:
        for segments in read_rank_segments(process.log, gather=self.gather):
            kept = self._kept(segments)
            if len(kept):
                yield kept

    def _kept(self, segments: RankSegments) -> RankSegments:
        if not self.excluded:
            return segments
        return segments.select(~np.isin(segments.record_id, np.fromiter(self.excluded, dtype=np.uint64)))

    def _rank_table(self, rank: int, parts: list[tuple[ProcessLog, RankSegments]]) -> pa.Table:
        """The rank's rows in start order; its spans, clock and file counts are noted on the way."""
        profile = self._read(self.profiles[rank]) if rank in self.profiles else None
        columns = []
        lanes = undated_offset_ns = 0
        for process, segments in parts:
            # Only the rank's own process is in the profile; its workers' logs are placed by their wall clock.
            own = profile if process.worker == 0 else None
            alignment = self._align(rank, process, segments, own)
            if len(segments) and own is not None and own.epoch_start_ns is None:
                # The profile has no date, so it is moved to the log's clock, not the log to the profile's.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            made = self.rows.columns(rank, process, segments, alignment)
            if len(made["lane"]):
                self._note_clock(rank, process.worker, alignment)
                made["lane"] = made["lane"] + np.int32(lanes)
                lanes = int(made["lane"].max()) + 1
            columns.append(made)
        joined = in_start_order({name: np.concatenate([part[name] for part in columns]) for name in columns[0]})
        joined["step"] = np.full(len(joined["lane"]), NO_STEP, dtype=np.int32)
        if profile is not None:
            spans, shift_ns = self._add_spans(rank, profile, undated_offset_ns)
            joined["step"] = _step_of(joined["start_ns"], spans, shift_ns)
        elif (template := self._template()) is not None:
            joined["step"] = _step_of(joined["start_ns"], template, -self.job.start_ns)
        joined["rank"] = np.full(len(joined["lane"]), rank, dtype=np.int32)
        return table_from_columns(joined, OPS_SCHEMA)

    def _read(self, files: Sequence[Path]) -> Profile:
        return read_profile(files, skip_damaged=self.options.skip_damaged)

    def _align(self, rank: int, process: ProcessLog, segments: RankSegments, profile: Profile | None) -> Alignment:
        """The offset of a log; without traced operations it is the wall clock's, or the one that the user gives."""
        if not len(segments):
            log_job = process.log.job
            if isinstance(self.method, float) or log_job.start_ns <= 0:
                return align_seconds(self.method if isinstance(self.method, float) else 0.0)
            return align_wall(log_job.start_ns, log_job.has_nsec)
        alignment, notes = align_rank(segments, process.log, profile, self.method)
        self.warnings += [f"rank {rank}: {note}" for note in notes]
        return alignment

    def _add_spans(self, rank: int, profile: Profile, undated_offset_ns: int = 0) -> tuple[SpanColumns, int]:
        """Note the spans of a rank; returned with what takes their times to the capture's clock."""
        if skipped := profile.skipped_fields:
            counts = ", ".join(f"{count} in {message}" for message, count in sorted(skipped.items()))
            self.warnings.append(
                f"rank {rank}: fields of {profile.path.name} that this release does not know were skipped ({counts}): "
                "a newer profiler wrote it, or it is damaged"
            )
        self.warnings += [f"rank {rank}: {text}" for text in profile.warnings]
        spans = profile_spans(profile)
        shift_ns = undated_offset_ns - self.job.start_ns
        self.spans.append(
            table_from_columns(
                {
                    "rank": np.full(len(spans.start_ns), rank, dtype=np.int32),
                    "thread": spans.thread,
                    "kind": spans.kind,
                    "name": spans.names,
                    "step": spans.step,
                    "start_ns": spans.start_ns + shift_ns,
                    "end_ns": spans.end_ns + shift_ns,
                },
                SPANS_SCHEMA,
            )
        )
        return spans, shift_ns

    def _template(self) -> SpanColumns | None:
        """The spans that stand for ranks without a profile: those of the one profiled rank, if they have a date."""
        if self.template is None and len(self.profiles) == 1:
            profile = self._read(next(iter(self.profiles.values())))
            self.template = profile_spans(profile) if profile.epoch_start_ns is not None else None
        return self.template

    def _extrapolate_spans(self) -> None:
        """Copy the spans of the one profiled rank to the others: profiling rank 0 alone is the custom under Horovod."""
        missing = [rank for rank in range(self.job.nprocs) if rank not in self.profiles]
        if not missing or self._template() is None:
            return
        profiled = next(iter(self.profiles))
        template = self.spans[0]
        if len(missing) * template.num_rows > MAX_COPIED_SPANS:
            self.warnings.append(
                f"only rank {profiled} was profiled; its spans are too many to copy to all other ranks"
            )
            return
        for rank in missing:
            column = pa.array(np.full(template.num_rows, rank, dtype=np.int32))
            self.spans.append(template.set_column(0, SPANS_SCHEMA.field("rank"), column))
        self.warnings.append(
            f"only rank {profiled} was profiled: the spans and steps of the other {len(missing)} ranks are copies of "
            "its own, and the clocks of those ranks are known to their interval only"
        )

    def _note_clock(self, rank: int, worker: int, alignment: Alignment) -> None:
        self.clock.append(
            RankClock(
                rank=rank,
                method=alignment.method,
                offset_ns=alignment.offset_ns,
                residual_ns=alignment.residual_ns,
                interval_ns=alignment.interval_ns,
                worker=worker,
            )
        )

    def _refuse_rubbish(self, coverage: Coverage) -> None:
        """Raises: LogError where damage was skipped and what is left of the trace contradicts the counters."""
        most = max(coverage.bytes or 0.0, coverage.operations or 0.0)
        if self.options.skip_damaged and most > MOST_TRACED:
            raise LogError(
                f"{self.job.first.path} is damaged beyond use: its trace holds {most:.3g} times what its counters saw; "
                "merge an undamaged copy of the log"
            )

    def _warn_of_gaps(self, coverage: Coverage, operations: int) -> None:
        if self.rows.left_out:
            self.warnings.append(
                f"{self.rows.left_out} operations of the counters are too many to reconstruct: a replay omits them"
            )
        self.warnings += self.rows.rebuilt.warnings()
        if not operations:
            rest = "rests on counters alone" if self.rows.rebuilt.operations else "has no reads and writes at POSIX"
            self.warnings.append(
                f"no DXT in this log: a replay {rest}; record with DXT_ENABLE_IO_TRACE=1 in the environment of every "
                "process"
            )
        elif coverage.bytes is not None and coverage.bytes < 1:
            self.warnings.append(
                f"the trace is partial: it holds {coverage.bytes:.1%} of the bytes that the counters saw"
            )
        elif coverage.operations is not None and coverage.operations < 1:
            self.warnings.append(
                f"the trace is partial: it holds {coverage.operations:.1%} of the operations that the counters saw"
            )

    def _info(self, seen: set[int], coverage: Coverage, operations: int) -> CaptureInfo:
        log_job = self.job.first.job
        nprocs = self.job.nprocs
        ranks = set(range(nprocs)) if nprocs <= MAX_RANKS else set()
        run_time_s = log_job.run_time_s if len(self.job.processes) == 1 else None
        if run_time_s is None:
            run_time_s = max(ns_to_seconds(self.job.end_ns - self.job.start_ns), 0.0)
        return CaptureInfo(
            job=Job(
                nprocs=nprocs,
                run_time_s=run_time_s,
                start_ns=self.job.start_ns,
                end_ns=self.job.end_ns,
                zero_ns=self.job.start_ns,
                job_id=log_job.jobid,
                exe=log_job.exe,
                metadata=dict(log_job.metadata),
            ),
            ranks=tuple(sorted(ranks | seen | set(self.profiles))),
            sources=tuple(
                [_source(process.log.path, "darshan") for process in self.job.processes]
                + [
                    _source(path, KINETO if is_json(path) else XPLANE)
                    for _, files in sorted(self.profiles.items())
                    for path in files
                ]
            ),
            clock=tuple(sorted(self.clock, key=lambda clock: (clock.rank, clock.worker))),
            coverage=coverage,
            lanes="pthread_id" if self.rows.threads_known and all(self.rows.threads_known) else "overlap",
            warnings=tuple(self.warnings),
            made_by={
                "program": "dxt-replay",
                "version": VERSION,
                "command": "merge",
                "operations_stored": operations,
                "operations_reconstructed": self.rows.reconstructed,
                "rebuilt": self.rows.rebuilt.as_json(),
                "align": self.options.align,
                "exclude": list(self.options.exclude),
            },
        )


def _counted(files: pa.Table) -> dict[str, dict[str, int]]:
    """Reads, writes and bytes in the counters of each interface that was used, over all files."""
    totals = {
        name: {
            what: pc.sum(files[f"{prefix}_{what}"]).as_py() or 0
            for what in ("reads", "writes", "bytes_read", "bytes_written")
        }
        for name, prefix in (("POSIX", "posix"), ("STDIO", "stdio"), ("MPIIO", "mpiio"), ("HDF5", "h5d"))
    }
    return {name: counts for name, counts in totals.items() if any(counts.values())}


def _step_of(times: np.ndarray, spans: SpanColumns, shift_ns: int) -> np.ndarray:
    """Training step in which each time (ns, capture clock) lies, int32; NO_STEP outside the steps."""
    mine = spans.kind == SPAN_KINDS.index("step")
    begins, ends, steps = spans.start_ns[mine] + shift_ns, spans.end_ns[mine] + shift_ns, spans.step[mine]
    return step_at(times, begins, ends, steps)


def _source(path: Path, kind: str) -> Source:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return Source(name=path.name, sha256=digest.hexdigest(), kind=kind)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
