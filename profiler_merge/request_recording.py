"""The requests to object stores of a job, beside its operations on files or alone."""

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
    lane_rows,
)
from dxt_replay.profiler_merge.rows import NO_FILE
from dxt_replay.profiler_merge.traced_recording import TracedRecording
from dxt_replay.profiler_merge.tracers.requests import UNKNOWN, RecordedRequests, is_refused
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob, TracedProcess, TracedRank, TracedRows
from dxt_replay.traces.errors import LogError, TargetError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import APIS, LANES_SCHEMA, OPS_SCHEMA, READ, REFUSED, TRACED, WRITE, table_from_columns
from dxt_replay.traces.store.index import OPS_FOLDER
from dxt_replay.traces.store.writer import OpsWriter, written_lanes
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import received, unseen_warnings, with_requests, without_requests

_NULLABLE = ("other_file_id", "first_byte_ns", "status", "connection")
_BATCH_ROWS = 1 << 16
_MUCH = 0.1
"""Share of the reads of objects after the profiled steps from which on there is a warning."""


def requests_alone(requests: RecordedRequests, options: MergeOptions) -> tuple[Recording, RequestsOfRanks]:
    """A recording that has no operations on files, and its requests. Raises: LogError without any request.

    Processes with one rank of the launcher, or that began with the same process, are a rank."""
    if not len(requests.rows):
        raise LogError(f"{requests.files[0]} holds no request to an object store")
    groups: dict[tuple[str, int], list[TracedProcess]] = {}
    for process, root in zip(requests.processes, requests.roots, strict=True):
        key = ("", process.rank) if process.rank is not None else (process.host, root)
        groups.setdefault(key, []).append(process)
    numbered = all(process.rank is not None for process in requests.processes)
    ranks, rank_of = [], np.full(len(requests.processes), UNKNOWN, dtype=np.int32)
    for rank, key in enumerate(sorted(groups) if numbered else groups):
        members = sorted(groups[key], key=lambda each: (each.pid != requests.roots[each.number], each.started_ns))
        for worker in members[1:]:
            worker.parent = members[0]
        ranks.append(TracedRank(processes=tuple(members)))
        rank_of[[each.number for each in members if each.number < len(rank_of)]] = rank
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
    return TracedRecording(requests.kind, job, options), RequestsOfRanks(requests, rank_of)


def requests_beside(recording: Recording, requests: RecordedRequests) -> RequestsOfRanks:
    """The requests of the processes of a recording."""
    by_pid = {pid: rank for rank, pids in enumerate(recording.process_ids()) for pid in pids}
    rank_of = np.full(len(requests.processes), UNKNOWN, dtype=np.int32)
    for process, root in zip(requests.processes, requests.roots, strict=True):
        rank = by_pid.get(process.pid, by_pid.get(root, process.rank))
        if rank is None and len(recording.ranks) == 1:
            rank = 0
        if rank is not None and rank in recording.ranks:
            rank_of[process.number] = rank
    return RequestsOfRanks(requests, rank_of)


class RequestsOfRanks:
    """The requests whose processes are of a rank of the job. `rank_of`: of each process, UNKNOWN for none.

    They get lanes of their own behind those of the rank, because a program may write what it reads from a store into a
    file meanwhile. files: the logs with their kind. count: number of these requests.
    """

    def __init__(self, requests: RecordedRequests, rank_of: np.ndarray) -> None:
        self._requests, ranks = requests, rank_of[requests.rows["process"]]
        self._rows, self._ranks = requests.rows[ranks != UNKNOWN], ranks[ranks != UNKNOWN]
        self.files = [(path, requests.kind) for path in requests.files]
        self.warnings: Sequence[str] = requests.warnings
        self.count = len(self._rows)

    def add(
        self, folder: Path, found: Finished, job_spans: JobSpans, spans: pa.Table, start_ns: int
    ) -> tuple[Finished, set[int], pa.Table]:
        """Insert the requests into the parts of a capture. Returns the results with them, their ranks and their lanes
        (`LANES_SCHEMA`). `start_ns`: zero of the capture's time. Raises: TargetError."""
        requests, rows, ranks = self._requests, self._rows, self._ranks
        table, lanes = self._table(found.files.num_rows, folder, job_spans, start_ns)
        _insert(folder, table)
        seen = tuple(received(requests.received, 0, 0, found.coverage.unseen))
        sent, peers = requests.rows["received"], requests.peers
        unseen = without_requests(seen, int(sent.sum()), len(sent), peers, requests.servers)
        counted = moved_bytes(found.files, "posix_bytes_", "stdio_bytes_")
        old = set(unseen_warnings(found.coverage.unseen))
        warnings = [text for text in found.warnings if text not in old] + unseen_warnings(unseen)
        warnings += _after_the_profile(rows["op"], ranks, rows["start_ns"] - start_ns, spans)
        if lost := len(requests.rows) - len(rows):
            warnings.append(f"{format_counted(lost, 'request')} left out: no rank of the job has their processes")
        paths = [path.encode("utf-8", "surrogateescape") for path in requests.paths]
        moved = set(requests.rows["file"][np.isin(requests.rows["op"], (READ, WRITE))].tolist())
        files = files_table(
            paths,
            first=found.files.num_rows,
            record_id=np.array([record_id(path) for path in paths], dtype=np.uint64),
            size=np.array([requests.sizes.get(file, 0) for file in range(len(paths))], dtype=np.int64),
            offsets=np.ma.masked_array(
                np.full(len(paths), AS_RECORDED), mask=[file not in moved for file in range(len(paths))], dtype=np.int8
            ),
            mount=[""] * len(paths),
            fs_type=["s3"] * len(paths),
        )
        whole = replace(
            found,
            files=pa.concat_tables([found.files, files]),
            coverage=with_requests(found.coverage, counted, requests.moved, unseen),
            warnings=warnings,
        )
        return whole, set(ranks.tolist()), lanes

    def _table(self, files_before: int, folder: Path, job_spans: JobSpans, start_ns: int) -> tuple[pa.Table, pa.Table]:
        """The requests as `OPS_SCHEMA`, by rank and start, and their lanes."""
        order = np.lexsort((-self._rows["end_ns"], self._rows["start_ns"], self._ranks))
        rows, ranks = self._rows[order], self._ranks[order]
        used_rank, used_lane = written_lanes(folder)
        lane, connection = np.zeros(len(rows), dtype=np.int32), rows["connection"].copy()
        facts, step = [LANES_SCHEMA.empty_table()], np.zeros(len(rows), dtype=np.int32)
        start = rows["start_ns"] - start_ns
        for rank in np.unique(ranks).tolist():
            mine = slice(*np.searchsorted(ranks, (rank, rank + 1)).tolist())
            own, known = _lanes_of(rows[mine])
            first = int(used_lane[used_rank == rank].max(initial=-1)) + 1
            lane[mine] = own + first
            about = [self._lane_facts(process, thread) for process, thread in known]
            facts.append(lane_rows(np.full(len(known), rank), np.arange(first, first + len(known)), about))
            # Numbers of connections within the rank, of their numbers within each process.
            keys = rows["process"][mine].astype(np.int64) << 32 | connection[mine]
            is_known = connection[mine] >= 0
            connection[mine][is_known] = np.unique(keys[is_known], return_inverse=True)[1].reshape(-1)
            step[mine] = job_spans.step_of(rank, start[mine])
        columns = {name: rows[name] for name in ("op", "offset", "length", "first_byte_ns", "status")}
        columns |= {
            "rank": ranks,
            "lane": lane,
            "api": np.where(is_refused(rows), REFUSED, APIS.index("S3")).astype(np.int8),
            "file_id": rows["file"] + np.int32(files_before),
            "start_ns": start,
            "end_ns": rows["end_ns"] - start_ns,
            "step": step,
            "origin": np.full(len(rows), TRACED, dtype=np.int8),
            "other_file_id": np.where(rows["other_file"] < 0, NO_FILE, rows["other_file"] + files_before),
            "connection": connection,
        }
        known_values = {name: np.ma.masked_less(columns[name], 0) for name in _NULLABLE}
        return table_from_columns({**columns, **known_values}, OPS_SCHEMA), pa.concat_tables(facts)

    def _lane_facts(self, number: int, thread: int) -> LaneFacts:
        process = self._requests.processes[number]
        if process.pid <= 0:  # the log does not tell
            return LaneFacts(process.host or None)
        role = WORKER if process.pid != self._requests.roots[number] else MAIN if thread == process.pid else THREAD
        return LaneFacts(process.host or None, process.pid, thread, role)


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
