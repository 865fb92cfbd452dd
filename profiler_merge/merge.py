"""Sources to one capture: Darshan log(s) or another tool's traces, and the framework's profiles where there are any.

Rank by rank, or many small ranks at once: the DXT segments, the rank's profile, the offset between their clocks, then
lanes, steps and rows. No more than one large rank's segments, or some MB of small ranks', and one profile are in memory
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler_merge.capture_info import capture_info
from profiler_merge.clocks.alignment import WALL, align_rank, parse_method
from profiler_merge.clocks.offsets import Alignment, align_seconds, align_wall
from profiler_merge.clocks.profile_ranks import map_profiles
from profiler_merge.clocks.worker_clock import align_worker
from profiler_merge.darshan.job_logs import JobLogs, ProcessLog, numbered, open_job, process_ids
from profiler_merge.darshan.rank_segments import RankSegments, RanksInterleavedError, SegmentBatch
from profiler_merge.file_table import FileTable, mapped_warnings
from profiler_merge.gaps import gap_warnings, refuse_rubbish
from profiler_merge.given_files import GivenFiles, given_files
from profiler_merge.hdf5.datasets import hdf5_facts
from profiler_merge.job_spans import JobSpans
from profiler_merge.merge_options import DEFAULTS, MergeOptions
from profiler_merge.process_rows import ProcessRows, in_start_order
from profiler_merge.profiles.event_table import Profile
from profiler_merge.profiles.reading import profile_files
from profiler_merge.rank_sources import RankSources, left_out
from profiler_merge.recognise import DARSHAN
from profiler_merge.span_sources import MoreSpans, more_spans
from traces.schema import OPS_SCHEMA, CaptureInfo, RankClock, table_from_columns
from traces.store.writer import (
    ROW_GROUP_ROWS,
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
from traces.units import seconds_to_ns


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
            "recorded_by": self.info.sources[0].kind,
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
            "extended": dict(self.info.made_by.get("extended", {})),
            "warnings": list(self.info.warnings),
        }


def merge(
    logs: Sequence[Path], profiles: Sequence[Path], output: Path, options: MergeOptions = DEFAULTS
) -> MergeResult:
    """Write the capture `output` from the logs or traces of one job and the profiles of its ranks.

    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    given = given_files(logs, profiles)
    method = parse_method(options.align)
    check_capture_output(output, force=options.force)
    if given.tool == DARSHAN:
        job = open_job(given.operations, skip_damaged=options.skip_damaged)
        write = partial(_merge_logs, job, given, options, method)
    else:
        from profiler_merge.trace_merge import READERS, merge_trace  # what a merge of logs need not wait for

        traced = READERS[given.tool](given.operations, options.exclude, options.include)
        write = partial(merge_trace, traced, given, options, method)
    working = begin_capture(output, force=options.force)
    try:
        made = write(working)
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


def _merge_logs(
    job: JobLogs, given: GivenFiles, options: MergeOptions, method: str | float, working: Path
) -> tuple[CaptureInfo, pa.Table, int]:
    try:
        return _merge_once(job, given, working, options, method, gather=False)
    except RanksInterleavedError:
        create_capture(working)
        return _merge_once(job, given, working, options, method, gather=True)


def _merge_once(
    job: JobLogs, given: GivenFiles, working: Path, options: MergeOptions, method: str | float, *, gather: bool
) -> tuple[CaptureInfo, pa.Table, int]:
    added_ns = seconds_to_ns(method) if isinstance(method, float) else 0
    ranks = map_profiles(
        profile_files(given.profiles), job, gather=gather, offset_ns=added_ns, skip_damaged=options.skip_damaged
    )
    exports = () if options.keep_profiler_files else ranks.exports
    by_rank = ranks.by_rank
    if ranks.numbers:
        job, new = numbered(job, ranks.numbers)
        by_rank = {new[rank]: files for rank, files in by_rank.items()}
    more = more_spans(given.spans, process_ids(job) if given.spans else ())
    merger = _Merger(job, by_rank, more, working, options, method, gather=gather, exports=frozenset(exports))
    return merger.run([*ranks.warnings, *more.warnings])


class _Merger:
    """One pass over the ranks of a job. `method`: as `clocks.parse_method` returns it."""

    def __init__(
        self,
        job: JobLogs,
        profiles: Mapping[int, tuple[Path, ...]],
        more: MoreSpans,
        output: Path,
        options: MergeOptions,
        method: str | float,
        *,
        gather: bool,
        exports: frozenset[str],
    ) -> None:
        self._job, self._profiles, self._output, self._options, self._method = job, profiles, output, options, method
        self._more = more
        dropped = left_out(job, options.exclude, exports)
        self._warnings = dropped.warnings()
        self._files = FileTable([process.log for process in job.processes], dropped.records)
        self._rows = ProcessRows(
            files=self._files,
            job_start_ns=job.start_ns,
            ranks=job.nprocs,
            reconstruct=options.reconstruct,
            limit=options.reconstruct_limit,
            excluded=dropped.records,
        )
        self._sources = RankSources(
            job=job, rows=self._rows, left_out=dropped.records, gather=gather, skip_damaged=options.skip_damaged
        )
        self._spans = JobSpans(
            profiles=profiles,
            start_ns=job.start_ns,
            ranks=job.nprocs,
            skip_damaged=options.skip_damaged,
            extend=options.extend,
            more=more,
        )
        self._clock: list[RankClock] = []

    def run(self, warnings: Sequence[str]) -> tuple[CaptureInfo, pa.Table, int]:
        """Write everything. Returns the contents of capture.json, the files table, and the number of spans."""
        self._warnings += [*self._job.warnings, *warnings]
        seen: set[int] = set()
        with OpsWriter(self._output) as writer:
            for table in _tables(self._rank_columns(seen)):
                writer.write(table)
        self._warnings += self._spans.add_rest()
        self._warnings += self._spans.extension_warnings()
        self._rows.rebuilt.finish()
        table, coverage = self._files.finish([process.rank for process in self._job.processes])
        if self._options.skip_damaged:
            refuse_rubbish(self._job, coverage, table)
        self._warnings += self._files.offset_warnings(table["path"].to_pylist())
        self._warnings += mapped_warnings(table)
        self._warnings += gap_warnings(self._rows, coverage, traced=writer.rows - self._rows.reconstructed)
        logs = [process.log for process in self._job.processes]
        hdf5 = hdf5_facts(logs, table, inspect=self._options.inspect, maps=self._options.inspect_maps)
        self._warnings += hdf5.warnings
        self._warnings[:0] = self._job.log_warnings()
        spans = self._spans.table()
        info = capture_info(
            self._job,
            self._profiles,
            self._more.files,
            with_operations=seen,
            rows=self._rows,
            stored=writer.rows,
            clock=self._clock,
            coverage=coverage,
            warnings=self._warnings,
            extended=self._spans.extended_json(),
            options=self._options.repeated(),
        )
        write_files(self._output, table)
        write_spans(self._output, spans)
        write_hdf5(self._output, hdf5.table)
        write_capture_info(self._output, info)
        return info, table, spans.num_rows

    def _rank_columns(self, seen: set[int]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of some ranks after the other; the ranks are added to `seen`."""
        for parts in self._sources.batches():
            ranks = parts[0][1].ranks
            seen.update(ranks.tolist())
            if len(ranks) == 1:
                yield self._columns_of(int(ranks[0]), parts)
                continue
            process, batch = parts[0]
            for first, last in _alike(batch, self._spans.have_own(ranks)):
                alike = batch.of_ranks(first, last)
                yield self._columns_of(int(ranks[first]), [(process, alike)])

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
                self._clock += [_rank_clock(each, process.worker, alignment) for each in known]
                made["lane"] = made["lane"] + np.int32(lanes)
                lanes = int(made["lane"].max()) + 1
            process_of_lane += [process.worker] * (lanes - len(process_of_lane))
            columns.append(made)
        if profile is not None:
            self._warnings += self._spans.add(rank, profile, undated_offset_ns)
        joined = in_start_order({name: np.concatenate([part[name] for part in columns]) for name in columns[0]})
        self._spans.extend_over(
            rank, joined, np.array(process_of_lane, dtype=np.int64)[joined["lane"]], self._files.name
        )
        joined["step"] = self._spans.step_of(rank, joined["start_ns"])
        return joined

    def _align_worker(self, process: ProcessLog, segments: RankSegments, profile: Profile | None) -> Alignment:
        """The offset of a worker's log: as its rank's training thread shows it, else the wall clock's or the user's."""
        log_job = process.log.job
        if isinstance(self._method, float):
            return align_seconds(self._method)
        found = align_worker(segments, process.log, profile) if self._method != WALL else None
        if found is None and len(segments) == 0 and log_job.start_ns <= 0:
            return align_seconds(0.0)
        return found or align_wall(log_job.start_ns, log_job.has_nsec)

    def _align(self, rank: int, process: ProcessLog, segments: RankSegments, profile: Profile | None) -> Alignment:
        """The offset of a log; without traced operations it is the wall clock's, or the one that the user gives."""
        if not len(segments):
            log_job = process.log.job
            if isinstance(self._method, float) or log_job.start_ns <= 0:
                return align_seconds(self._method if isinstance(self._method, float) else 0.0)
            return align_wall(log_job.start_ns, log_job.has_nsec)
        alignment, notes = align_rank(segments, process.log, profile, self._method)
        self._warnings += [f"rank {rank}: {note}" for note in notes]
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
