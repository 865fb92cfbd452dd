"""Reads the Darshan logs of one job as a recording.

The ranks are merged in pieces, on any number of worker processes. Within a piece they are merged rank by rank, or many
small ranks at once: the DXT segments, the rank's profile, the offset between their clocks, then lanes and rows. A
process holds at most one large rank's segments, or some MB of small ranks', and one profile in memory. Notes on files
are added up in the order of the pieces, so the capture does not depend on the workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.clocks.alignment import parse_method
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks, map_profiles
from dxt_replay.profiler_merge.counted_requests import counted_requests
from dxt_replay.profiler_merge.counted_times import TRACEABLE, counted_times, past_trace
from dxt_replay.profiler_merge.darshan.counters import read_counters
from dxt_replay.profiler_merge.darshan.job_groups import ProcessFacts
from dxt_replay.profiler_merge.darshan.job_logs import numbered, open_job, process_id, process_ids
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import ranks_in_order
from dxt_replay.profiler_merge.file_notes import KnownFiles
from dxt_replay.profiler_merge.file_table import FileTable, moved_bytes
from dxt_replay.profiler_merge.gaps import gap_warnings, refuse_rubbish
from dxt_replay.profiler_merge.hdf5.datasets import hdf5_facts
from dxt_replay.profiler_merge.job_pieces import DividedJob, JobSetting, divided, whole_job
from dxt_replay.profiler_merge.left_out import exports_warnings, is_export, shown
from dxt_replay.profiler_merge.log_writing import log_writing
from dxt_replay.profiler_merge.mapped_reads import mapped_reads
from dxt_replay.profiler_merge.merge_options import MergeOptions
from dxt_replay.profiler_merge.piece_merge import MergedPiece, PieceMerge, let_go, opened
from dxt_replay.profiler_merge.process_accounts import unaccounted
from dxt_replay.profiler_merge.process_rows import RowTotals
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS, AllSpans, Finished, ProcessIds, WrittenRanks
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.file_rows import STANDARD_STREAMS, probably_mapped
from dxt_replay.traces.record_id import STREAM_RECORDS
from dxt_replay.traces.recorder_files import is_recorder_file, is_request_log
from dxt_replay.traces.schema import Job
from dxt_replay.traces.store.renumber import RenumberedParts, renumber
from dxt_replay.traces.store.writer import create_capture
from dxt_replay.traces.units import ns_to_seconds, seconds_to_ns
from dxt_replay.traces.unseen import (
    WRITTEN,
    all_unseen,
    hidden_reads,
    mapped_files,
    recording_of,
    through_rings,
    unseen_warnings,
    watched,
    with_mapped,
    with_unseen,
)
from dxt_replay.traces.workers import ALONE, Workers


class DarshanRecording:
    """As `recorded_job.Recording`. Raises: LogError when a log cannot be read, or they are not of one job."""

    def __init__(self, files: Sequence[Path], options: MergeOptions) -> None:
        self._options = options
        self._method = parse_method(options.align)
        self._job = open_job(files)
        self._unaccounted = unaccounted(files)
        self._exports: Collection[str] = ()
        self._left_out: list[str] = []
        self.loops: Mapping[int, SpanColumns] = {}

    @property
    def files(self) -> list[tuple[Path, str]]:
        """As of `Recording`."""
        return [(process.log.path, "darshan") for process in self._job.processes]

    @property
    def start_ns(self) -> int:
        """As of `Recording`."""
        return self._job.start_ns

    @property
    def ranks(self) -> range:
        """As of `Recording`."""
        return range(self._job.nprocs if self._job.nprocs <= MAX_RANKS else 0)

    @property
    def warnings(self) -> list[str]:
        """As of `Recording`, including the damage found so far."""
        return [*self._job.log_warnings(), *self._left_out, *self._job.warnings]

    @property
    def job(self) -> Job:
        """As of `Recording`."""
        job, record = self._job, self._job.first.job
        run_time_s = record.run_time_s if len(job.processes) == 1 else None
        if run_time_s is None:
            run_time_s = max(ns_to_seconds(job.end_ns - job.start_ns), 0.0)
        return Job(
            nprocs=job.nprocs,
            run_time_s=run_time_s,
            start_ns=job.start_ns,
            end_ns=job.end_ns,
            zero_ns=job.start_ns,
            job_id=record.jobid,
            exe=record.exe,
            metadata=dict(record.metadata),
        )

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """As of `Recording`."""
        found = map_profiles(
            profiles,
            self._job,
            offset_ns=seconds_to_ns(self._method) if isinstance(self._method, float) else 0,
        )
        self._exports = frozenset(found.exports)
        if not found.numbers:
            return found
        self._job, new = numbered(self._job, found.numbers)
        return replace(found, by_rank={new[rank]: files for rank, files in found.by_rank.items()})

    def process_ids(self) -> ProcessIds:
        """As of `Recording`."""
        return process_ids(self._job)

    def write(self, folder: Path, spans: AllSpans, workers: Workers) -> WrittenRanks:
        """As of `Recording`."""
        left_out = self._records_left_out()
        files = self._begin(left_out)
        setting = JobSetting(
            token=secrets.token_hex(8),
            working=folder,
            job_start_ns=self._job.start_ns,
            ranks=self._job.nprocs,
            method=self._method,
            left_out=frozenset(self._table.excluded),
            options=self._options,
            files=files,
            logs=tuple({recording_of(path): path for path, _ in self.files}.values()),
        )
        self._mapped = mapped_reads(setting.logs)
        try:
            with opened(setting) as logs:
                job = divided(self._job, logs.known, spans.own_ranks, workers)
                traced = logs.known.traced_segments()
            if len(job.pieces) > 1:
                try:
                    return self._merged(replace(setting, traced=traced), job, spans, workers)
                except LogError:  # a wrong guess of the pieces, or damage: reading the whole log shows which
                    self._begin_again(folder, spans, left_out)
            whole = whole_job(self._job, spans.own_ranks)
            setting = replace(setting, gather=not self._in_order())
            known = self._job.damage
            written = self._merged(setting, whole, spans, ALONE)
            if self._job.damage != known:
                # The operations behind a damaged segment were taken for traced ones: they are to be rebuilt.
                self._begin_again(folder, spans, left_out)
                written = self._merged(setting, whole, spans, ALONE)
            return written
        finally:
            let_go()

    def _begin_again(self, folder: Path, spans: AllSpans, left_out: frozenset[int]) -> None:
        """Drop all rows written so far, and the counters read."""
        let_go()
        create_capture(folder)
        spans.forget()
        self._begin(left_out)

    def _begin(self, left_out: frozenset[int]) -> KnownFiles:
        """Forget the ranks merged so far. Returns the files in the counters."""
        self._table = FileTable([process.log for process in self._job.processes], left_out)
        self._made = RowTotals()
        self._renumbered: list[RenumberedParts] = []
        return self._table.known()

    def finish(self, written: WrittenRanks, spans: pa.Table) -> Finished:
        """As of `Recording`. Raises: LogError if the rest of a damaged log contradicts its counters."""
        logs = [process.log for process in self._job.processes]
        self._made.rebuilt.finish({str(log.path): log.names for log in logs})
        files, coverage = self._table.finish([process.rank for process in self._job.processes])
        if self._job.damage:
            refuse_rubbish(self._job, coverage, files)
        traced = written.stored - self._made.reconstructed
        counted = self._counted_times(traced)
        job_ns = (self._job.start_ns, self._job.end_ns)
        mapped = self._not_saved(mapped_files(files, job_ns, self._table.never_mapped), files, spans)
        saved = sorted({*files["path"].filter(pa.array(probably_mapped(files))).to_pylist()} - {*mapped})
        unseen = all_unseen(watched([log.path for log in logs]), mapped)
        placed = {pid for process in self._job.processes if (pid := process_id(process)) is not None}
        unseen = self._mapped.still_unseen(unseen, placed - self._made.mapped_left_out)
        unseen += (*past_trace(counted, posix_bytes=moved_bytes(files, "posix_bytes_")), *self._unaccounted)
        unseen += hidden_reads(through_rings([log.path for log in logs]), files, job_ns)
        hdf5 = hdf5_facts(logs, files, inspect=self._options.inspect, maps=self._options.inspect_maps)
        threads = self._made.threads_known
        moved = moved_bytes(files, "posix_bytes_", "stdio_bytes_")
        coverage = with_unseen(*with_mapped(coverage, moved, self._made.mapped_bytes), unseen)
        if any(log.damage.keys() & {"POSIX", "STDIO"} for log in logs):
            # Counters are missing, so the trace may hold less than its share of the others.
            coverage = replace(coverage, bytes=None, operations=None, ranks={}, without_streams=None)
        return Finished(
            files=files,
            hdf5=hdf5.table,
            coverage=coverage,
            lanes="pthread_id" if threads and all(threads) else "overlap",
            warnings=[
                *self._table.offset_warnings(files["path"].to_pylist()),
                *self._table.streams.warnings(),
                *unseen_warnings(unseen),
                *gap_warnings(self._job, self._made, coverage, unseen, traced=traced),
                *hdf5.warnings,
            ],
            reconstructed=self._made.reconstructed,
            rebuilt=self._made.rebuilt,
            made_by={
                **self._mapped.inferred,
                **({WRITTEN: saved} if saved else {}),
                **({"counted_times": counted} if counted else {}),
                **({"counted_requests": requests} if not traced and (requests := self._counted_requests()) else {}),
                **({"log_writing": writing} if (writing := log_writing(self._job)) else {}),
            },
        )

    def _not_saved(self, mapped: list[str], files: pa.Table, spans: pa.Table) -> list[str]:
        """Of these files those that are no checkpoints which the job opened only after its training had begun: such a
        one it wrote, in a way that no log holds (`sendfile`), and it is none of its input."""
        steps = spans.filter(pc.equal(spans["kind"], "step"))["start_ns"]
        saved = files.filter(
            pc.and_(pc.equal(files["format"], "checkpoint"), pc.is_in(files["path"], pa.array(mapped, pa.string())))
        )
        if not len(steps) or not saved.num_rows:
            return mapped
        begun_ns = pc.min(steps).as_py() + self._job.start_ns
        opened: dict[int, float] = {}
        for log in (process.log for process in self._job.processes):
            if (records := read_counters(log, "POSIX")) is not None:
                at_ns = log.job.start_ns + 1e9 * records.fcounters["POSIX_F_OPEN_START_TIMESTAMP"]
                for record, at in zip(records.record_ids.tolist(), at_ns.tolist(), strict=True):
                    opened[record] = min(at, opened.get(record, at))
        names = zip(saved["path"].to_pylist(), saved["record_id"].to_pylist(), strict=True)
        late = {path for path, record in names if opened.get(record, 0.0) > begun_ns}
        return [path for path in mapped if path not in late]

    def _in_order(self) -> bool:
        """Whether the logs can be read one rank after the other."""
        return self._job.nprocs == 1 or all(
            ranks_in_order(process.log) for process in self._job.processes if process.rank is None
        )

    def _records_left_out(self) -> frozenset[int]:
        """The files that a glob matches, those that the profiler wrote, and the standard streams.

        A stream may be a pipe or a terminal, which are no storage; no log tells."""
        named = [(record, shown(path)) for process in self._job.processes for record, path in process.log.names.items()]
        exported = {record: path for record, path in named if is_export(path, self._exports)}
        self._left_out = exports_warnings(exported.values())
        globs = self._options.exclude
        # The anchors in the marks of a killed process are counted and not traced.
        killed = {
            record
            for process in self._job.processes
            for record, path in process.log.names.items()
            if ProcessFacts(process.log).is_killed and is_recorder_file(shown(path))
        }
        matched = (
            record
            for record, path in named
            if record in killed
            or path in STANDARD_STREAMS
            or is_request_log(path)
            or any(fnmatchcase(path, glob) for glob in globs)
        )
        return frozenset((*exported, *matched, *STREAM_RECORDS))  # these by number too: names may be anonymised

    def _merged(self, setting: JobSetting, job: DividedJob, spans: AllSpans, workers: Workers) -> WrittenRanks:
        """The rows of all ranks. Ranks with spans of their own are merged in this process, because they follow from
        each other."""
        written = WrittenRanks()
        for own, pieces in groupby(job.pieces, key=lambda piece: piece.own):
            work = PieceMerge(setting=setting, spans=spans if own else spans.shared())
            with (ALONE if own else workers).results(work, list(pieces), operations=job.operations) as results:
                for found in results:
                    self._add(found)
                    written.add(found.written)
        with workers.results(
            partial(renumber, setting.working), self._renumbered, operations=job.operations, named=_named
        ) as done:
            for _ in done:
                pass
        return written

    def _add(self, found: MergedPiece) -> None:
        """Add the result of the next ranks."""
        changed = self._table.add(found.files)
        if changed:
            self._renumbered.append(RenumberedParts(parts=found.written.parts, numbers=changed))
        self._made.add(found.made)
        for process in self._job.processes:
            for text in found.log_notes.get(str(process.log.path), ()):
                process.log.add_warning(text)

    def _counted_times(self, traced: int) -> dict[str, dict[str, Any]]:
        """Darshan's counters of the I/O that no trace holds."""
        known = not any(process.dealt for process in self._job.processes)
        but = TRACEABLE if traced else ()
        return counted_times(self._logs(), self._table.excluded, but=but, ranks_known=known)

    def _counted_requests(self) -> dict[str, Any]:
        """Darshan's counters of the requests, of a job without a trace."""
        return counted_requests(self._logs(), self._table.number, self._table.excluded, self._job.nprocs)

    def _logs(self) -> list[tuple[DarshanLog, int | None]]:
        return [(process.log, process.rank) for process in self._job.processes]


def _named(parts: RenumberedParts) -> str:
    return parts.parts[0]
