"""A recording with the requests to object stores beside its operations on files, or with these requests alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks
from dxt_replay.profiler_merge.darshan.lanes import lanes_from_overlap
from dxt_replay.profiler_merge.files import AS_RECORDED, files_table, moved_bytes
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.recorded_job import (
    MAIN,
    THREAD,
    WORKER,
    Finished,
    LaneFacts,
    MergeOptions,
    Recording,
    WrittenRanks,
    lane_rows,
)
from dxt_replay.profiler_merge.rows import NO_FILE
from dxt_replay.profiler_merge.traced_recording import TracedRecording
from dxt_replay.profiler_merge.tracers.requests import UNKNOWN, RecordedRequests, is_refused
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob, TracedProcess, TracedRank, TracedRows
from dxt_replay.traces.errors import LogError, TargetError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import APIS, OPS_SCHEMA, READ, REFUSED, TRACED, WRITE, table_from_columns
from dxt_replay.traces.store.index import OPS_FOLDER
from dxt_replay.traces.store.writer import OpsWriter, written_lanes
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import received, unseen_warnings, with_requests, without_requests

_NULLABLE = ("other_file_id", "first_byte_ns", "status", "connection")
_BATCH_ROWS = 1 << 16
_MUCH = 0.1
"""Share of the reads of objects after the profiled steps from which on there is a warning."""


def requests_alone(requests: RecordedRequests, options: MergeOptions) -> Recording:
    """A recording that has no operations on files. Raises: LogError without any request."""
    if not len(requests.rows):
        raise LogError(f"{requests.files[0]} holds no request to an object store")
    ranks = _ranks(requests)
    job = TracedJob(
        files=requests.files,
        ranks=tuple(ranks),
        start_ns=min(process.started_ns for process in requests.processes),
        end_ns=int(requests.rows["end_ns"].max()),
        clock_ns=(0, 0),
        rows=TracedRows(),
        paths=(),
        complete=True,
        tids=(),
    )
    rank_of = np.full(len(requests.processes), UNKNOWN, dtype=np.int32)
    for rank, found in enumerate(ranks):
        rank_of[[each.number for each in found.processes if each.number < len(rank_of)]] = rank
    return RequestRecording(TracedRecording(requests.kind, job, options), requests, rank_of)


def requests_beside(recording: Recording, requests: RecordedRequests) -> Recording:
    """The recording with the requests of its processes."""
    ids = recording.process_ids()
    by_pid = {pid: rank for rank, pids in enumerate(ids) for pid in pids}
    rank_of = np.full(len(requests.processes), UNKNOWN, dtype=np.int32)
    for process, root in zip(requests.processes, requests.roots, strict=True):
        rank = by_pid.get(process.pid, by_pid.get(root, process.rank))
        if rank is None and len(recording.ranks) == 1:
            rank = 0
        if rank is not None and rank in recording.ranks:
            rank_of[process.number] = rank
    return RequestRecording(recording, requests, rank_of)


def _ranks(requests: RecordedRequests) -> list[TracedRank]:
    """Processes with one rank of the launcher, or that began with the same process."""
    groups: dict[tuple[str, int], list[TracedProcess]] = {}
    for process, root in zip(requests.processes, requests.roots, strict=True):
        key = ("", process.rank) if process.rank is not None else (process.host, root)
        groups.setdefault(key, []).append(process)
    numbered = all(process.rank is not None for process in requests.processes)
    ranks = []
    for key in sorted(groups) if numbered else groups:
        members = sorted(groups[key], key=lambda each: (each.pid != requests.roots[each.number], each.started_ns))
        for worker in members[1:]:
            worker.parent = members[0]
        ranks.append(TracedRank(processes=tuple(members)))
    return ranks


class RequestRecording:
    """As `recorded_job.Recording`: the recording `inner`, and requests. `rank_of`: of each process, UNKNOWN for none.

    The requests get lanes of their own behind those of the rank, because a program may write what it reads from a
    store into a file meanwhile.
    """

    def __init__(self, inner: Recording, requests: RecordedRequests, rank_of: np.ndarray) -> None:
        self._inner, self._requests, self._rank_of = inner, requests, rank_of
        self.process_ids = inner.process_ids
        own = [each for each in inner.files if each[0] not in requests.files]
        self.files: Sequence[tuple[Path, str]] = [*own, *((path, requests.kind) for path in requests.files)]

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """As of `Recording`."""
        found = self._inner.place(profiles)
        self.job, self.ranks = self._inner.job, self._inner.ranks
        self.start_ns, self.loops = self._inner.start_ns, self._inner.loops
        self.warnings: Sequence[str] = [*self._inner.warnings, *self._requests.warnings]
        return found

    def write(self, folder: Path, spans: JobSpans) -> WrittenRanks:
        """As of `Recording`; the requests follow in `finish`, which knows the numbers of the files."""
        self._folder, self._spans = folder, spans
        return self._inner.write(folder, spans)

    def finish(self, written: WrittenRanks, spans: pa.Table) -> Finished:
        """As of `Recording`."""
        ranks = self._rank_of[self._requests.rows["process"]]
        lost = int(np.count_nonzero(ranks == UNKNOWN))
        rows, ranks = self._requests.rows[ranks != UNKNOWN], ranks[ranks != UNKNOWN]
        alone = not written.stored
        written.stored += len(rows) if alone else 0
        found = self._inner.finish(written, spans)
        written.stored += 0 if alone else len(rows)
        table = self._table(rows, ranks, found.files.num_rows, written)
        _insert(self._folder, table)
        seen = tuple(received(self._requests.received, 0, 0, found.coverage.unseen))
        unseen = without_requests(seen, self._requests)
        counted = moved_bytes(found.files, "posix_bytes_", "stdio_bytes_")
        old = set(unseen_warnings(found.coverage.unseen))
        warnings = [text for text in found.warnings if text not in old] + unseen_warnings(unseen)
        warnings += _after_the_profile(rows["op"], ranks, rows["start_ns"] - self.start_ns, spans)
        if lost:
            warnings.append(f"{format_counted(lost, 'request')} left out: no rank of the job has their processes")
        return replace(
            found,
            files=pa.concat_tables([found.files, self._files(found.files.num_rows)]),
            coverage=with_requests(found.coverage, counted, self._requests.moved, unseen),
            warnings=warnings,
        )

    def _table(self, rows: np.ndarray, ranks: np.ndarray, files_before: int, written: WrittenRanks) -> pa.Table:
        """The requests as `OPS_SCHEMA`, by rank and start; notes their lanes."""
        order = np.lexsort((-rows["end_ns"], rows["start_ns"], ranks))
        rows, ranks = rows[order], ranks[order]
        used_rank, used_lane = written_lanes(self._folder)
        lane, connection = np.zeros(len(rows), dtype=np.int32), rows["connection"].copy()
        facts, step = [], np.zeros(len(rows), dtype=np.int32)
        start_ns = rows["start_ns"] - self.start_ns
        for rank in np.unique(ranks).tolist():
            mine = slice(*np.searchsorted(ranks, (rank, rank + 1)).tolist())
            own, known = _lanes_of(rows[mine])
            first = int(used_lane[used_rank == rank].max(initial=-1)) + 1
            lane[mine] = own + first
            numbers = np.arange(first, first + len(known))
            about = [self._lane_facts(process, thread) for process, thread in known]
            facts.append(lane_rows(np.full(len(known), rank), numbers, about))
            # Numbers of connections within the rank, of their numbers within each process.
            keys = rows["process"][mine].astype(np.int64) << 32 | connection[mine]
            is_known = connection[mine] >= 0
            connection[mine][is_known] = np.unique(keys[is_known], return_inverse=True)[1].reshape(-1)
            step[mine] = self._spans.step_of(rank, start_ns[mine])
        written.lanes = pa.concat_tables([written.lanes, *facts])
        written.ranks.update(ranks.tolist())
        columns = {
            "rank": ranks,
            "lane": lane,
            "op": rows["op"],
            "api": np.where(is_refused(rows), REFUSED, APIS.index("S3")).astype(np.int8),
            "file_id": rows["file"] + np.int32(files_before),
            "offset": rows["offset"],
            "length": rows["length"],
            "start_ns": start_ns,
            "end_ns": rows["end_ns"] - self.start_ns,
            "step": step,
            "origin": np.full(len(rows), TRACED, dtype=np.int8),
            "other_file_id": np.where(rows["other_file"] < 0, NO_FILE, rows["other_file"] + files_before),
            "first_byte_ns": rows["first_byte_ns"],
            "status": rows["status"],
            "connection": connection,
        }
        known_values = {name: np.ma.masked_less(columns[name], 0) for name in _NULLABLE}
        return table_from_columns({**columns, **known_values}, OPS_SCHEMA)

    def _lane_facts(self, number: int, thread: int) -> LaneFacts:
        process = self._requests.processes[number]
        if process.pid <= 0:  # the log does not tell
            return LaneFacts(host=process.host or None)
        role = WORKER if process.pid != self._requests.roots[number] else MAIN if thread == process.pid else THREAD
        return LaneFacts(host=process.host or None, pid=process.pid, thread=thread, role=role)

    def _files(self, before: int) -> pa.Table:
        requests = self._requests
        paths = [path.encode("utf-8", "surrogateescape") for path in requests.paths]
        moved = set(requests.rows["file"][np.isin(requests.rows["op"], (READ, WRITE))].tolist())
        made = files_table(
            paths,
            record_id=np.array([record_id(path) for path in paths], dtype=np.uint64),
            size=np.array([requests.sizes.get(file, 0) for file in range(len(paths))], dtype=np.int64),
            offsets=np.ma.masked_array(
                np.full(len(paths), AS_RECORDED), mask=[file not in moved for file in range(len(paths))], dtype=np.int8
            ),
            mount=[""] * len(paths),
            fs_type=["s3"] * len(paths),
        )
        numbers = pa.array(np.arange(before, before + len(paths), dtype=np.int32))
        return made.set_column(0, made.schema.field(0), numbers)


def _after_the_profile(op: np.ndarray, ranks: np.ndarray, start_ns: np.ndarray, spans: pa.Table) -> list[str]:
    """A warning if many objects were read after the last step of a profile: no steps are inferred from requests."""
    is_step = np.asarray(pc.equal(spans["kind"], "step"))
    for rank in np.unique(spans["rank"].to_numpy()[is_step]).tolist():
        own = is_step & (spans["rank"].to_numpy() == rank)
        reads = start_ns[(op == READ) & (ranks == rank)]
        late = int(np.count_nonzero(reads > spans["end_ns"].to_numpy()[own].max()))
        if late > _MUCH * len(reads):
            return [
                f"rank {rank}: the profile shows {format_counted(int(own.sum()), 'step')}, and {late} of "
                f"{format_counted(len(reads), 'read')} of objects began after them. Steps are not inferred from "
                "requests: all figures of the training are those of the profiled steps. To see all steps, leave out "
                "`steps=` of recording()"
            ]
    return []


def _lanes_of(rows: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """int32 lane (n,) of the requests of a rank, given by start, and the process and thread of each lane.

    A lane has requests of one thread. A thread with several requests under way at a time, such as one that runs
    coroutines, has several lanes.
    """
    lanes = np.zeros(len(rows), dtype=np.int32)
    known: list[tuple[int, int]] = []
    threads, first = np.unique(rows[["process", "thread"]], return_index=True)
    for thread in threads[np.argsort(first)]:
        mine = np.flatnonzero((rows["process"] == thread["process"]) & (rows["thread"] == thread["thread"]))
        own = lanes_from_overlap(rows["start_ns"][mine], rows["end_ns"][mine])
        lanes[mine] = own + len(known)
        known += [(int(thread["process"]), int(thread["thread"]))] * (int(own.max()) + 1)
    return lanes, known


def _insert(folder: Path, rows: pa.Table) -> None:
    """Write the parts of a capture again, with more rows (`OPS_SCHEMA`, by rank and start). Raises: TargetError."""
    if not rows.num_rows:
        return
    again = folder / ".with-requests"
    parts = sorted((folder / OPS_FOLDER).glob("part-*.parquet"))
    try:
        with OpsWriter(again) as writer:
            for table in _joined(parts, rows):
                writer.write(table)
        shutil.rmtree(folder / OPS_FOLDER)
        os.replace(again / OPS_FOLDER, folder / OPS_FOLDER)
        again.rmdir()
    except (OSError, pa.ArrowException) as error:
        raise TargetError(f"cannot write {folder}: {error}; free space or choose another --output") from error


def _joined(parts: Sequence[Path], rows: pa.Table) -> Iterator[pa.Table]:
    """All rows, each of both by rank and start, in this order. Memory: a row group, and `rows`."""
    keys, done = _order(rows), 0
    for part in parts:
        with pq.ParquetFile(part) as opened:
            for number in range(opened.num_row_groups):
                group = opened.read_row_group(number)
                own = _order(group)
                reached = int(np.searchsorted(keys, own[-1], side="left"))
                order = np.argsort(np.concatenate([own, keys[done:reached]]), kind="stable")
                more = rows.slice(done, reached - done)
                yield pa.concat_tables([group.cast(OPS_SCHEMA), more]).take(pa.array(order))
                done = reached
    for begin in range(done, rows.num_rows, _BATCH_ROWS):
        yield rows.slice(begin, min(_BATCH_ROWS, rows.num_rows - begin))


def _order(rows: pa.Table) -> np.ndarray:
    """A key (n,) that orders rows by rank and start."""
    found = np.empty(rows.num_rows, dtype=[("rank", np.int32), ("start_ns", np.int64)])
    found["rank"], found["start_ns"] = rows["rank"].to_numpy(), rows["start_ns"].to_numpy()
    return found
