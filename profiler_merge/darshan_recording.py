"""The Darshan logs of one job as a recording."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.clocks.alignment import parse_method
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks, map_profiles
from dxt_replay.profiler_merge.counted_totals import TRACEABLE, counted_requests, counted_times, past_trace
from dxt_replay.profiler_merge.darshan.counters import read_counters
from dxt_replay.profiler_merge.darshan.jobs import JobLogs, ProcessFacts, numbered, open_job, process_id, process_ids
from dxt_replay.profiler_merge.files import LogFiles, exports_warnings, is_export, moved_bytes, shown
from dxt_replay.profiler_merge.hdf5 import hdf5_facts
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.mapped_reads import mapped_reads
from dxt_replay.profiler_merge.process_accounts import unaccounted
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.rank_rows import RankRowsOfLogs
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS, Finished, MergeOptions, ProcessIds, RankRows
from dxt_replay.profiler_merge.rows import keep_freed_memory
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import STANDARD_STREAMS, STREAM_RECORDS, is_recorder_file, is_request_log, probably_mapped
from dxt_replay.traces.schema import Coverage, Job, Unseen
from dxt_replay.traces.units import NS_PER_S, ns_to_seconds, seconds_to_ns
from dxt_replay.traces.unseen import (
    OBJECTS,
    WRITTEN,
    all_unseen,
    hidden_reads,
    mapped_files,
    recorder_notes,
    recording_of,
    unseen_warnings,
    watched,
    with_mapped,
    with_unseen,
)

_MOST_TRACED = 2.0
"""Factor by which the operations of a damaged trace may exceed the counters, which can be incomplete too."""

_LONGEST_NS = 60 * NS_PER_S
"""Largest delay of a file's last change after the end in the log; a later change shows that the file is a copy."""

_TICK_NS = 10_000_000
"""Tolerance: file times are those of the kernel's last tick."""


class DarshanRecording:
    """As `recorded_job.Recording`. Raises: LogError when a log cannot be read, or they are not of one job."""

    def __init__(self, files: Sequence[Path], options: MergeOptions) -> None:
        self._options = options
        self._method = parse_method(options.align)
        self._unaccounted = unaccounted(files)
        self._exports: Collection[str] = ()
        self._left_out: list[str] = []
        self.loops: Mapping[int, SpanColumns] = {}
        self._open(open_job(files))
        self.start_ns = self._job.start_ns

    def _open(self, job: JobLogs) -> None:
        self._job, record = job, job.first.job
        self._logs = [process.log for process in job.processes]
        self.files = [(log.path, "darshan") for log in self._logs]
        self.ranks = range(job.nprocs if job.nprocs <= MAX_RANKS else 0)
        run_time_s = record.run_time_s if len(job.processes) == 1 else None
        self.job = Job(
            nprocs=job.nprocs,
            run_time_s=max(ns_to_seconds(job.end_ns - job.start_ns), 0.0) if run_time_s is None else run_time_s,
            start_ns=job.start_ns,
            end_ns=job.end_ns,
            zero_ns=job.start_ns,
            job_id=record.jobid,
            exe=record.exe,
            metadata=dict(record.metadata),
        )

    @property
    def warnings(self) -> list[str]:
        """As of `Recording`, including the damage found so far."""
        return [*self._job.log_warnings(), *self._left_out, *self._job.warnings]

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        offset_ns = seconds_to_ns(self._method) if isinstance(self._method, float) else 0
        found = map_profiles(profiles, self._job, offset_ns=offset_ns)
        self._exports = frozenset(found.exports)
        if not found.numbers:
            return found
        job, new = numbered(self._job, found.numbers)
        self._open(job)
        return replace(found, by_rank={new[rank]: files for rank, files in found.by_rank.items()})

    def process_ids(self) -> ProcessIds:
        return process_ids(self._job)

    def rows(self, folder: Path, spans: JobSpans) -> Iterator[RankRows]:
        keep_freed_memory()
        self._table = LogFiles(self._logs, self._records_left_out())
        self._mapped = mapped_reads({recording_of(log.path): log.path for log in self._logs}.values())
        self._made = RankRowsOfLogs(
            job=self._job,
            files=self._table,
            mapped=self._mapped,
            spans=spans,
            method=self._method,
            options=self._options,
            folder=folder,
        )
        return self._made.of_all()

    def path(self, file_id: int) -> str:
        return self._table.path(file_id)

    def finish(self, stored: int, spans: pa.Table) -> Finished:
        """As of `Recording`. Raises: LogError if the rest of a damaged log contradicts its counters."""
        job, made, paths = self._job, self._made, [log.path for log in self._logs]
        ranks = [process.rank for process in job.processes]
        files, coverage = self._table.finish(ranks)
        if job.damage:
            _refuse_rubbish(job, coverage, files)
        traced = stored - made.reconstructed
        logs = list(zip(self._logs, ranks, strict=True))
        known = not any(process.dealt for process in job.processes)
        left_out = self._table.uncounted
        counted = counted_times(logs, left_out, but=TRACEABLE if traced else (), ranks_known=known)
        requests = {} if traced else counted_requests(logs, self._table.number, left_out, job.nprocs)
        job_ns = (job.start_ns, job.end_ns)
        mapped = self._not_saved(mapped_files(files, job_ns, self._table.never_mapped), files, spans)
        saved = sorted({*files["path"].filter(pa.array(probably_mapped(files))).to_pylist()} - {*mapped})
        placed = {pid for process in job.processes if (pid := process_id(process)) is not None}
        unseen = self._mapped.still_unseen(all_unseen(watched(paths), mapped), placed - made.mapped_left_out)
        unseen += (*past_trace(counted, posix_bytes=moved_bytes(files, "posix_bytes_")), *self._unaccounted)
        unseen += hidden_reads(recorder_notes(paths, "hidden"), files, job_ns)
        options = self._options
        hdf5, hdf5_warnings = hdf5_facts(self._logs, files, inspect=options.inspect, maps=options.inspect_maps)
        moved = moved_bytes(files, "posix_bytes_", "stdio_bytes_")
        coverage = with_unseen(*with_mapped(coverage, moved, made.mapped_bytes), unseen)
        if any(log.damage.keys() & {"POSIX", "STDIO"} for log in self._logs):
            # Counters are missing, so the trace may hold less than its share of the others.
            coverage = replace(coverage, bytes=None, operations=None, ranks={}, without_streams=None)
        facts = {
            WRITTEN: saved,
            "counted_times": counted,
            "counted_requests": requests,
            "log_writing": log_writing(job),
        }
        return Finished(
            files=files,
            hdf5=hdf5,
            coverage=coverage,
            lanes="pthread_id" if made.threads_known else "overlap",
            warnings=[
                *self._table.offset_warnings(files["path"].to_pylist()),
                *self._table.streams.warnings(),
                *unseen_warnings(unseen),
                *_gap_warnings(job, made, coverage, unseen, traced=traced),
                *hdf5_warnings,
            ],
            reconstructed=made.reconstructed,
            rebuilt=made.rebuilt,
            made_by={**self._mapped.inferred, **{name: each for name, each in facts.items() if each}},
        )

    def _not_saved(self, mapped: list[str], files: pa.Table, spans: pa.Table) -> list[str]:
        """Of these files those that are no checkpoints which the job opened only after its training had begun: such a
        one it wrote, in a way that no log holds (`sendfile`), and it is none of its input."""
        steps = spans.filter(pc.equal(spans["kind"], "step"))["start_ns"]
        is_mapped = pc.is_in(files["path"], pa.array(mapped, pa.string()))
        saved = files.filter(pc.and_(pc.equal(files["format"], "checkpoint"), is_mapped))
        if not len(steps) or not saved.num_rows:
            return mapped
        begun_ns = pc.min(steps).as_py() + self.start_ns
        opened: dict[int, float] = {}
        for log in self._logs:
            if (records := read_counters(log, "POSIX")) is not None:
                at_ns = log.job.start_ns + 1e9 * records.fcounters["POSIX_F_OPEN_START_TIMESTAMP"]
                for record, at in zip(records.record_ids.tolist(), at_ns.tolist(), strict=True):
                    opened[record] = min(at, opened.get(record, at))
        names = zip(saved["path"].to_pylist(), saved["record_id"].to_pylist(), strict=True)
        late = {path for path, record in names if opened.get(record, 0.0) > begun_ns}
        return [path for path in mapped if path not in late]

    def _records_left_out(self) -> frozenset[int]:
        """The files that a glob matches, those that the profiler or `record` itself wrote, and the standard streams.

        A stream may be a pipe or a terminal, which are no storage; no log tells."""
        found, exported = set(STREAM_RECORDS), list[str]()  # streams by number, too: names may be anonymised
        for log in self._logs:
            # The anchors in the marks of a killed process are counted and not traced.
            killed = ProcessFacts(log).is_killed
            for record, path in ((record, shown(name)) for record, name in log.names.items()):
                if is_export(path, self._exports):
                    exported.append(path)
                    found.add(record)
                elif (
                    (killed and is_recorder_file(path))
                    or path in STANDARD_STREAMS
                    or is_request_log(path)
                    or path.endswith(".not_data")
                    or any(fnmatchcase(path, glob) for glob in self._options.exclude)
                ):
                    found.add(record)
        self._left_out = exports_warnings(dict.fromkeys(exported))
        return frozenset(found)


def _refuse_rubbish(job: JobLogs, coverage: Coverage, files: pa.Table) -> None:
    """Raises: LogError if what is left of a damaged log contradicts its counters, in total or for one of `files`."""
    most, where = max(coverage.bytes or 0.0, coverage.operations or 0.0), ""
    of_file = pc.max(files["coverage"]).as_py() or 0.0
    if most <= _MOST_TRACED < of_file:
        most, where = of_file, f" of {files['path'][pc.index(files['coverage'], of_file).as_py()].as_py()}"
    if most > _MOST_TRACED:
        raise LogError(
            f"{job.first.path} is damaged beyond use: its trace holds {most:.3g} times what its counters saw{where}; "
            "merge an undamaged copy of the log"
        )


def _gap_warnings(
    job: JobLogs, rows: RankRowsOfLogs, coverage: Coverage, unseen: Sequence[Unseen], *, traced: int
) -> list[str]:
    """Warnings about operations that are rebuilt or missing. `traced`: number of operations in the trace."""
    warnings = []
    if rows.left_out:
        ((path, _),) = rows.left_out.most_common(1)
        others = f" and {len(rows.left_out) - 1} more files" if len(rows.left_out) > 1 else ""
        warnings.append(
            f"{rows.left_out.total():,} opens, closes, stats and syncs of {path}{others} are too many to "
            "rebuild: the capture has the reads and writes, and a replay omits the rest"
        )
    warnings += rows.rebuilt.warnings()
    for share, what in zip(coverage.traceable, ("bytes", "operations"), strict=True):
        if traced and share is not None and share < 1:
            return [*warnings, f"the trace is partial: it holds {share:.1%} of the {what} that the counters saw"]
    # `unseen_warnings` names what DXT would not trace either.
    cut = any("DXT_POSIX" in process.log.damage for process in job.processes)
    if traced or cut or any(each.kind == OBJECTS for each in unseen):
        return warnings
    if coverage.operations is None and recording_of(job.first.path) is not None and not job.damage:
        # `record` tries DXT before it starts the job, so DXT was on
        return [*warnings, "the job read and wrote no file through calls: a replay has nothing to read or write"]
    rest = "rests on counters alone" if rows.rebuilt.operations else "has no reads and writes at POSIX"
    return [
        *warnings,
        f"no DXT in this log: a replay {rest}; record with DXT_ENABLE_IO_TRACE=1 in the environment of every process",
    ]


def log_writing(job: JobLogs) -> list[list[int]]:
    """[rank, begin_ns, end_ns] on the capture's clock, ascending, of the time in which Darshan wrote the log of each
    process that ended before the job, such as a DataLoader's worker, where that is known.

    Darshan then clears as much memory as the trace may take (1.3 ms a MiB) and writes the log. If training waits for
    the process, the recording causes that wait. Writing begins at the end stated in the log and lasts until the last
    change of the file, by both clocks.
    """
    written = [
        (process.rank or 0, process.log.job.end_ns, process.log.path.stat().st_mtime_ns)
        for process in job.processes
        if process.log.job.end_ns > 0
    ]
    if any(end_ns < begin_ns - _TICK_NS for _, begin_ns, end_ns in written):
        return []  # files that changed before their processes ended: the file system has another clock
    return sorted(
        [rank, begin_ns - job.start_ns, end_ns - job.start_ns]
        for rank, begin_ns, end_ns in written
        if 0 < end_ns - begin_ns < _LONGEST_NS and end_ns < job.end_ns
    )
