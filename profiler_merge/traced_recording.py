"""A job whose tracer recorded every operation, as a recording.

Each operation has its thread and its time in CLOCK_REALTIME: nothing is rebuilt, and only an undated profile has to be
placed. At most one rank's operations and one profile are in memory at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.alignment import AUTO, WALL, LogClock, align_rank, parse_method
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks, profiles_of_processes
from dxt_replay.profiler_merge.files import TracedFiles, exports_warnings, is_export, shown
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.mapped_reads import mapped_reads, mapped_rows
from dxt_replay.profiler_merge.process_accounts import Account, unaccounted
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.recorded_job import (
    MAIN,
    THREAD,
    WORKER,
    Finished,
    LaneFacts,
    MergeOptions,
    ProcessIds,
    RankRows,
    lane_rows,
    rank_clock,
)
from dxt_replay.profiler_merge.rows import columns_of, in_order, rows_of
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob, TracedProcess
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import is_recorder_file, is_request_log
from dxt_replay.traces.schema import OPEN_FLAGS, OPS, READ, TRACED, WRITE, Coverage, Job
from dxt_replay.traces.units import format_counted, ns_to_seconds
from dxt_replay.traces.unseen import (
    MEMORY,
    all_unseen,
    hidden_reads,
    received,
    recorder_notes,
    unseen_warnings,
    watched,
    with_unseen,
)

_RENAME = OPS.index("rename")
_DIRECT = 1 << OPEN_FLAGS.index("direct")
_MOST_ID = 1 << 31
"""Ids of processes and threads are below it (pid_t)."""


class TracedRecording:
    """As `recorded_job.Recording`, for the job that the reader of a source of this `kind` found in its files."""

    def __init__(self, kind: str, job: TracedJob, options: MergeOptions) -> None:
        self._job, self._options = job, options
        self._method = parse_method(options.align)
        self._mapped = mapped_reads(job.files)
        found = self._mapped.found_among(job.paths)
        new = [number for number, place in enumerate(found) if place < 0]
        places = [*range(len(job.paths), len(job.paths) + len(new))]
        self._file_of_mapped = np.array(found, dtype=np.int64)
        self._file_of_mapped[new] = places
        self._paths = [*job.paths, *(self._mapped.paths[number] for number in new)]
        sizes = {place: self._mapped.sizes[number] for place, number in zip(places, new, strict=True)}
        self._table = TracedFiles(self._paths, {**job.sizes, **sizes}, job.suspect)
        self._mapped_bytes, self._strace = 0, kind == "strace"
        self._read = self._written = 0
        self.files: Sequence[tuple[Path, str]] = [(path, kind) for path in job.files]
        self.ranks: Sequence[int] = range(job.nprocs)
        self.start_ns = job.start_ns
        self._direct_opens = 0
        self.loops: Mapping[int, SpanColumns] = job.spans
        self.warnings: Sequence[str] = job.warnings

    @property
    def job(self) -> Job:
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
        return [frozenset(process.pid for process in rank.processes) for rank in self._job.ranks]

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        job = self._job
        times_ns = (job.start_ns, job.end_ns)
        found = profiles_of_processes(profiles, self.process_ids(), times_ns)
        exported = {number: path for number, path in enumerate(map(shown, job.paths)) if is_export(path, found.exports)}
        names = enumerate(map(shown, job.paths))
        logs = {number for number, path in names if is_request_log(path) or path.endswith(".not_data")}
        self._job = replace(job, left_out=job.left_out | exported.keys() | logs)
        self.warnings = [*exports_warnings(exported.values()), *job.warnings]
        return found

    def path(self, file_id: int) -> str:
        return self._table.path(file_id)

    def finish(self, stored: int, spans: pa.Table) -> Finished:
        job = self._job
        if not stored and not self._table.own:
            why = "; ".join(job.warnings) or "nothing was opened"
            raise LogError(f"{job.files[0]} holds no operation on a file of the job: {why}")
        names = sorted(shown(job.paths[file]) for file in job.mapped)
        mapped = [name for name in names if not name.startswith(MEMORY) and not is_recorder_file(name)]
        moved = self._table.moved + self._mapped_bytes
        seen = received(job.received, job.received_of_unknown, moved, watched(job.files))
        pids = {process.pid for rank in job.ranks for process in rank.processes}
        unseen = self._mapped.still_unseen(all_unseen(seen, mapped), pids)
        if not self._strace:
            accounts = [Account(pid=pid, ranks=1, read=0, written=0) for pid in sorted(pids)]
            accounts.append(Account(pid=None, ranks=0, read=self._read, written=self._written))
            unseen += unaccounted(job.files, accounts)
        files = self._table.table(complete=job.complete)
        rings = {*job.hidden, *(() if self._strace else recorder_notes(job.files, "hidden"))}
        unseen += hidden_reads(sorted(rings), files, (self.start_ns, time.time_ns()))
        share = 1.0 if job.complete else None
        whole = Coverage(bytes=share, operations=share, ranks=dict.fromkeys(self.ranks, (share, share)))
        direct = (
            f"{format_counted(self._direct_opens, 'open')} asked for direct I/O (O_DIRECT), which bypasses the page "
            "cache: replay with `run --api direct`"
        )
        return Finished(
            files=files,
            coverage=with_unseen(whole, moved, unseen),
            lanes="pthread_id",
            warnings=[*unseen_warnings(unseen), *([direct] if self._direct_opens else [])],
            made_by={} if self._strace else self._mapped.inferred,
        )

    def rows(self, folder: Path, spans: JobSpans) -> Iterator[RankRows]:
        for rank, processes in enumerate(self._job.ranks):
            rows, threads = self._job.of_rank(rank)
            profile = spans.profile(rank)
            alignment, notes = self._aligned(rank, rows, profile)
            undated_offset_ns = 0
            if profile is not None and profile.epoch_start_ns is None:
                # An undated profile is moved to the trace's clock.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            numbers = np.array([process.number for process in processes.processes])
            order = np.argsort(numbers)
            process = order[np.searchsorted(numbers, rows["process"], sorter=order)]
            lanes = [_lane_facts(thread, each, processes.own) for each, thread in threads]
            self._read += int(rows["length"][rows["op"] == READ].sum())
            self._written += int(rows["length"][rows["op"] == WRITE].sum())
            found, process = self._with_mapped(rank, self._rows(rank, rows, alignment), process, lanes, alignment)
            self._table.note(found)
            yield RankRows(
                ranks=np.array([rank]),
                columns=columns_of(found),
                process=process,
                clock=[rank_clock(rank, alignment)],
                warnings=[f"rank {rank}: {note}" for note in notes],
                lanes=lane_rows(np.full(len(lanes), rank), np.arange(len(lanes)), lanes),
                profile=profile,
                undated_offset_ns=undated_offset_ns,
            )

    def _rows(self, rank: int, rows: np.ndarray, alignment: Alignment) -> np.ndarray:
        """The rank's operations on the capture's clock, with the numbers of their files."""
        columns = {name: rows[name] for name in ("op", "api", "offset", "length", "open_flags")}
        for name in ("start_ns", "end_ns"):
            columns[name] = alignment.realtime_ns(rows[name]) - self.start_ns
        columns |= {"lane": rows["thread"], "file": self._table.number(rows["file"])}
        found = rows_of(columns, len(rows), rank=rank, origin=TRACED)
        renamed = rows["op"] == _RENAME
        found["other_file"][renamed] = self._table.number(rows["other_file"][renamed])
        self._direct_opens += int(np.count_nonzero((rows["open_flags"] > 0) & (rows["open_flags"] & _DIRECT > 0)))
        return found

    def _with_mapped(
        self, rank: int, rows: np.ndarray, process: np.ndarray, lanes: list[LaneFacts], alignment: Alignment
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows and processes with the rank's mapped reads; adds the facts of lanes that have no other row."""
        parts, processes, known = [rows], [process], list(lanes)
        for place, each in enumerate(self._job.ranks[rank].processes):
            faults = self._mapped.of_process(each.pid)
            if not len(faults):
                continue
            for name in ("start_ns", "end_ns"):
                faults[name] = alignment.realtime_ns(faults[name])
            mapped, added = mapped_rows(
                faults,
                rows,
                rank=rank,
                lanes={one.thread: lane for lane, one in enumerate(known) if one.pid == each.pid and one.thread},
                facts=LaneFacts(host=each.host or None, pid=each.pid, role=WORKER if place else None),
                next_lane=len(lanes),
                file=self._table.number(self._file_of_mapped[faults["file"]]),
                zero_ns=self.start_ns,
            )
            lanes += added
            if self._strace:
                # strace saw what the program announced; the faults only tell how it mapped the file.
                mapped["open_flags"] = -1
            self._mapped_bytes += int(mapped["length"].sum())
            parts.append(mapped)
            processes.append(np.full(len(faults), place))
        joined = np.concatenate(parts)
        joined["tie"] = np.arange(len(joined))
        joined = in_order(joined)
        return joined, np.concatenate(processes)[joined["tie"]]

    def _aligned(self, rank: int, rows: np.ndarray, profile: Profile | None) -> tuple[Alignment, list[str]]:
        """The offset of the trace's clock: that of the profile unless it is undated or a method was requested."""
        if isinstance(self._method, float):
            return align_seconds(self._method), []
        dated = profile is None or profile.epoch_start_ns is not None
        low, high = self._job.clock_ns
        marked = profile is not None and profile.marks is not None and len(profile.marks.own.anchors) > 0
        if dated and self._method in (AUTO, WALL) and not (marked and self._method == AUTO):
            return Alignment(method="wall", offset_ns=0, residual_ns=max(-low, high), interval_ns=(low, high)), []
        own = rows[np.isin(rows["op"], (READ, WRITE)) & (rows["process"] == self._job.ranks[rank].own.number)]
        columns = {name: own[name] for name in ("op", "file", "offset", "length")}
        columns |= {name: own[name] - self.start_ns for name in ("start_ns", "end_ns")}
        clock = LogClock(start_ns=self.start_ns, names=dict(enumerate(self._job.paths)))
        return align_rank(rows_of(columns, len(own)), clock, profile, self._method, rank)


def _lane_facts(tid: int, process: TracedProcess, own: TracedProcess) -> LaneFacts:
    """What the trace knows of a lane: thread `tid` of a process of the rank whose own process is `own`."""
    thread = tid if 0 < tid < _MOST_ID else None
    pid = process.pid if thread is not None and 0 < process.pid < _MOST_ID and not process.attached else None
    role = WORKER if process is not own else None if pid is None else MAIN if pid == thread else THREAD
    return LaneFacts(host=process.host or None, pid=pid, thread=thread, role=role)
