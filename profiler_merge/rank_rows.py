"""The op stream of a job's ranks from its Darshan logs: traced, rebuilt and mapped operations with their lanes.

Small ranks of one log are worked on together, a rank with logs of its own (of its process and of its workers) alone. Of
a rank with more traced operations than memory should hold, the traced rows stay in a file and come out in stretches of
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dxt_replay.profiler_merge.clocks.alignment import WALL, LogClock, align_rank, align_worker
from dxt_replay.profiler_merge.clocks.offsets import Alignment, align_seconds, align_wall
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.jobs import JobLogs, ProcessLog, process_id
from dxt_replay.profiler_merge.darshan.lanes import NEVER, latest_on_lanes
from dxt_replay.profiler_merge.darshan.log import DarshanLog, text
from dxt_replay.profiler_merge.files import REPAIRED, SUSPECT, LogFiles, Numbers, shown
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.mapped_reads import MappedReads, mapped_rows, open_before_mapping
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN, RankCounters, on_clock, places_of
from dxt_replay.profiler_merge.rebuild.met import Met
from dxt_replay.profiler_merge.rebuild.offsets import examine_offsets, opened_together
from dxt_replay.profiler_merge.rebuild.rows import rebuild
from dxt_replay.profiler_merge.recorded_job import (
    MAX_RANKS,
    WORKER,
    LaneFacts,
    MergeOptions,
    RankRows,
    lane_rows,
    rank_clock,
)
from dxt_replay.profiler_merge.rows import (
    MOST_ROWS,
    Spool,
    blocks,
    columns_of,
    fill,
    in_file,
    in_order,
    joined,
    number_lanes,
    release,
)
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import APIS, OPS, READ, TRACED, WRITE, RankClock
from dxt_replay.traces.store.writer import lanes_in
from dxt_replay.traces.units import seconds_to_ns

_MOST_RANKS = 1 << 12
_MOST_SHARES = 1 << 17
_MOST_OPERATIONS = 1 << 18
"""Limits of ranks that are worked on together: ranks, shares of ranks in reduced records, counted and traced
operations."""

_STALE = -2
"""File of a traced call on a descriptor that Darshan takes for another file's."""

_API = {"DXT_POSIX": APIS.index("POSIX"), "DXT_MPIIO": APIS.index("MPIIO")}
_POSIX, _RENAME = APIS.index("POSIX"), OPS.index("rename")


@dataclass(frozen=True, kw_only=True, eq=False)
class LogRows:
    """The traced operations of a log.

    rows: `ROW` by rank and start (of operations that start together the longest first), in a file if they are many.
    Times count from the job's start in the log.
    records: uint64, record id of each `file`.
    ranks: int64 (r,), those with operations, ascending. first: int64 (r + 1,), place of the first row of each.
    hosts: of the first operation of each rank. unthreaded: ranks of whose operations some do not name their thread.
    """

    log: DarshanLog
    records: np.ndarray
    rows: np.ndarray
    ranks: np.ndarray
    first: np.ndarray
    hosts: dict[int, str]
    unthreaded: set[int]

    def of_rank(self, place: int) -> np.ndarray:
        """The rows of the rank at one place of `ranks`."""
        return self.rows[self.first[place] : self.first[place + 1]]

    @cached_property
    def clock(self) -> LogClock:
        """The clock of the rows, and the names of their files."""
        names = {file: self.log.names.get(record, b"") for file, record in enumerate(self.records.tolist())}
        return LogClock(start_ns=self.log.job.start_ns, has_nsec=self.log.job.has_nsec, names=names)


def read_log_rows(
    log: DarshanLog,
    *,
    rank: int | None = None,
    without: Collection[int] = (),
    folder: Path | None = None,
    most: int = MOST_ROWS,
) -> LogRows:
    """The operations of both DXT modules, in any order of the log.

    rank: of all rows, if the log is of one process.
    without: record ids to leave out. More than `most` rows are in a file in `folder`.
    Raises: LogError as `read_dxt`; TargetError when the disk refuses.
    """
    numbers, spool, hosts, unthreaded = Numbers(), Spool(folder, most), dict[int, str](), set[int]()
    dropped = np.fromiter(without, dtype=np.uint64, count=len(without))
    for module in DXT_MODULES:
        for block in read_dxt(log, module):
            used = block.write_counts + block.read_counts > 0
            ranks = block.ranks if rank is None else np.full_like(block.ranks, rank)
            found, first = np.unique(ranks[used], return_index=True)
            for each, host in zip(found.tolist(), block.host_fields[used][first].tolist(), strict=True):
                hosts.setdefault(each, text(host.partition(b"\0")[0]))
            kept = used & ~np.isin(block.record_ids, dropped)
            file = np.full(len(kept), -1, dtype=np.int32)
            file[kept] = numbers.number(block.record_ids[kept])
            columns = {
                "rank": ranks[block.record],
                "op": np.where(block.is_write, np.int8(WRITE), np.int8(READ)),
                "file": file[block.record],
                "offset": block.offset,
                "length": block.length,
                "start_ns": seconds_to_ns(block.start_s.astype(np.float64, copy=False)),
                "end_ns": seconds_to_ns(block.end_s.astype(np.float64, copy=False)),
            }
            if block.pthread_id is None:
                unthreaded.update(found.tolist())
            else:
                columns["thread"] = block.pthread_id
            if not kept.all():
                columns = {name: values[columns["file"] >= 0] for name, values in columns.items()}
            fill(spool.room(len(columns["file"])), columns, api=_API[module], origin=TRACED)
    rows = spool.rows()
    counts: dict[int, int] = {}
    for part in blocks(rows):
        found, count = np.unique(rows["rank"][part], return_counts=True)
        for each, number in zip(found.tolist(), count.tolist(), strict=True):
            counts[each] = counts.get(each, 0) + number
    return LogRows(
        log=log,
        records=np.array(numbers.keys, dtype=np.uint64),
        rows=rows,
        ranks=np.array(list(counts), dtype=np.int64),
        first=np.cumsum([0, *counts.values()]),
        hosts=hosts,
        unthreaded=unthreaded,
    )


class _Log(NamedTuple):
    """The log of a process, or of all ranks of a job, its traced rows and its counters."""

    process: ProcessLog
    found: LogRows
    counters: RankCounters


@dataclass(kw_only=True, eq=False)
class RankRowsOfLogs:
    """Makes the rows of the ranks of a job; notes facts in `files`, and those that follow.

    method: as `clocks.parse_method` returns it. folder: for files of large ranks.
    reconstructed: rows made. left_out: by path, opens, stats and syncs that were not made because there are too many.
    threads_known: whether all traced operations name their thread, None without any.
    rebuilt: how well the made operations meet the counters.
    mapped_bytes: of mapped reads. mapped_left_out: ids of processes whose mapped reads have no rows.
    """

    job: JobLogs
    files: LogFiles
    mapped: MappedReads
    spans: JobSpans
    method: str | float
    options: MergeOptions
    folder: Path
    reconstructed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    threads_known: bool | None = None
    rebuilt: Met = field(default_factory=Met)
    mapped_bytes: int = 0
    mapped_left_out: set[int] = field(default_factory=set)

    def of_all(self) -> Iterator[RankRows]:
        """Each rank that was traced or counted, ascending. Raises: LogError; TargetError when the disk refuses."""
        if self.job.processes[0].rank is None:
            log = self._opened(self.job.processes[0])
            for ranks, rows in self._groups(log):
                yield from self._rows_of(ranks, [(log, rows)])
                release(log.found.rows)
            return
        for rank in sorted({process.rank or 0 for process in self.job.processes}):
            logs = [self._opened(process) for process in self.job.processes if process.rank == rank]
            parts = [
                (log, log.found.rows) for log in logs if len(log.found.rows) or rank in log.counters.ranks_of_records
            ]
            if parts:
                yield from self._rows_of(np.array([rank]), parts)

    def _opened(self, process: ProcessLog) -> _Log:
        log, excluded = process.log, self.files.excluded
        found = read_log_rows(
            log, rank=process.rank, without=excluded, folder=self.folder, most=self.options.memory_rows
        )
        counters = RankCounters(log, self.job.nprocs, fixed_rank=process.rank, excluded=excluded)
        return _Log(process, found, counters)

    def _groups(self, log: _Log) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ranks in one log that were traced or counted, some at a time, and their traced rows.

        A reduced record is divided among all ranks in this order. A rank with spans of its own is alone, and so is a
        large one; of ranks that are together all, or none, name the threads of their operations.
        """
        found, counters = log.found, log.counters
        counted = counters.ranks_of_records
        if counters.shared_files and self.job.nprocs <= MAX_RANKS:
            counted = np.arange(self.job.nprocs)
        ranks = np.union1d(counted, found.ranks)
        if not len(ranks):
            return
        counts = np.zeros(len(ranks), dtype=np.int64)
        counts[np.searchsorted(ranks, found.ranks)] = np.diff(found.first)
        work = np.cumsum(counts + counters.operations(ranks)) // _MOST_OPERATIONS
        most = max(1, min(_MOST_RANKS, _MOST_SHARES // max(counters.shared_files, 1)))
        alone = np.isin(ranks, self.spans.own_ranks) | (counts > self.options.memory_rows)
        cut = (np.diff(work) > 0) | (np.arange(1, len(ranks)) % most == 0) | alone[1:] | alone[:-1]
        traced = np.flatnonzero(counts)
        unthreaded = np.isin(ranks[traced], list(found.unthreaded))
        cut[traced[1:][unthreaded[1:] != unthreaded[:-1]] - 1] = True
        first = np.append(0, np.cumsum(counts))
        for begin, end in pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(ranks)]):
            yield ranks[begin:end], found.rows[first[begin] : first[end]]

    def _rows_of(self, ranks: np.ndarray, parts: Sequence[tuple[_Log, np.ndarray]]) -> Iterator[RankRows]:
        """The rows of a rank, or of several of one log, in order. `parts`: traced rows by log."""
        rank = int(ranks[0])
        profile = self.spans.profile(rank)
        large = len(parts) == len(ranks) == 1 and len(parts[0][1]) > self.options.memory_rows
        large &= rank not in self.spans.own_ranks
        done, clock, warnings = [], list[RankClock](), list[str]()
        lanes = undated_offset_ns = 0
        log_of_lane, threads = list[_Log](), dict[int, int]()
        for log, traced in parts:
            traced = traced if large or not in_file(traced) else np.array(traced)
            alignment, notes = self._aligned(log, traced, profile, rank)
            warnings += notes
            if len(traced) and log.process.worker == 0 and profile is not None and profile.epoch_start_ns is None:
                # The profile has no date, so it is moved to the log's clock instead.
                undated_offset_ns = -alignment.offset_ns
                alignment = replace(alignment, offset_ns=0)
            made = self._place(log, ranks, traced, alignment)
            pid = process_id(log.process)
            if large:
                if len(self.mapped.of_process(pid)):
                    assert pid is not None
                    self.mapped_left_out.add(pid)
                    warnings.append(f"rank {rank}: its mapped reads are left out, beside so many traced operations")
                clock = [rank_clock(rank, alignment, log.process.worker)]
                stretches = self._stretches(traced, made)
                for number, rows in enumerate(stretches):
                    used = [log] * (1 + int(rows["lane"].max(initial=-1)))
                    yield _rank_rows(ranks, rows, used, {}, clock * (not number), warnings * (not number))
                return
            rows = joined([_without_stale(traced), made])
            rows, of_lanes = self._with_mapped(pid, rank, log, rows)
            threads |= {lanes + lane: thread for lane, thread in of_lanes.items()}
            if len(rows):
                clock += [rank_clock(each, alignment, log.process.worker) for each in np.unique(rows["rank"]).tolist()]
                rows["lane"] += lanes
                lanes = int(rows["lane"].max()) + 1
            log_of_lane += [log] * (lanes - len(log_of_lane))
            done.append(rows)
        rows = in_order(joined(done))
        yield replace(
            _rank_rows(ranks, rows, log_of_lane, threads, clock, warnings),
            profile=profile,
            undated_offset_ns=undated_offset_ns,
        )

    def _aligned(self, log: _Log, rows: np.ndarray, profile: Profile | None, rank: int) -> tuple[Alignment, list[str]]:
        """The offset of a log, and warnings. The profile covers only the rank's own process.

        A worker's offset follows from its rank's training thread; without traced operations it is the wall clock's.
        """
        job, worker = log.process.log.job, log.process.worker
        if len(rows) and worker == 0:
            alignment, notes = align_rank(rows, log.found.clock, profile, self.method, rank)
            return alignment, [f"rank {rank}: {note}" for note in notes]
        if isinstance(self.method, float):
            return align_seconds(self.method), []
        found = align_worker(rows, log.found.clock, profile) if worker and self.method != WALL else None
        if found is None and not len(rows) and job.start_ns <= 0:
            found = align_seconds(0.0)
        return found or align_wall(job.start_ns, job.has_nsec), []

    def _place(self, log: _Log, ranks: np.ndarray, traced: np.ndarray, alignment: Alignment) -> np.ndarray:
        """Bring the traced rows to the capture's clock, repair their offsets and give them lanes, all in place.

        Returns the rows made of what the trace does not hold, in order. Numbers the files, and notes what the rows show
        of them; calls on a stale descriptor have the file _STALE.
        """
        for part in blocks(traced):
            for name in ("start_ns", "end_ns"):
                traced[name][part] = self._capture_ns(log, alignment, traced[name][part])
        if "drift_ppm" in alignment.evidence and not in_file(traced):
            traced[:] = in_order(traced)  # others start together than before
        to_ns = partial(self._capture_ns, log, alignment)
        counted = {module: on_clock(files, to_ns) for module, files in log.counters.of_ranks(ranks).items()}
        threaded = log.found.unthreaded.isdisjoint(ranks.tolist())
        if len(traced):
            self.threads_known = threaded and self.threads_known is not False
        self._repair(log, ranks, traced, counted["POSIX"], threaded=threaded)
        number_lanes(traced, threaded=threaded, most=self.options.block_rows)
        made = self._made(log, ranks, traced, counted) if self.options.reconstruct else traced[:0].copy()
        numbers = self.files.number(log.found.records)
        for part in blocks(traced):
            block = traced[part]
            stale = _stale(log, ranks, block, counted)
            block["file"] = numbers[block["file"]]
            self.files.note_traced(block)
            self.files.note_ends(block[~stale])
            block["file"][stale] = _STALE
        self.files.note_ends(made)
        renamed = made[made["op"] == _RENAME]
        self.files.note_renamed(renamed["file"], renamed["other_file"])
        return made

    def _capture_ns(self, log: _Log, alignment: Alignment, times_ns: np.ndarray) -> np.ndarray:
        # Drift is known on the log's own clock, so the job's start is subtracted again afterwards.
        return alignment.realtime_ns(times_ns + log.process.log.job.start_ns) - self.job.start_ns

    def _repair(self, log: _Log, ranks: np.ndarray, traced: np.ndarray, posix: np.ndarray, *, threaded: bool) -> None:
        """Repair offsets of files with several descriptors open at a time. Memory: the rows of these files."""
        together = posix["record_id"][opened_together(posix)]
        if not len(together):
            return
        of_file = np.isin(log.found.records, together)
        places = [part.start + np.flatnonzero(of_file[traced["file"][part]]) for part in blocks(traced)]
        rows = traced[np.concatenate([np.empty(0, dtype=np.int64), *places])]
        offset, repaired, suspect, operations = examine_offsets(posix, *_as_traced(rows, ranks, log), threaded=threaded)
        done = 0
        for part in places:
            traced["offset"][part] = offset[done : done + len(part)]
            done += len(part)
        for state, mask in ((REPAIRED, repaired), (SUSPECT, suspect)):
            self.files.note_offsets(state, posix["record_id"][mask], operations[mask])

    def _made(self, log: _Log, ranks: np.ndarray, traced: np.ndarray, counted: Mapping[str, np.ndarray]) -> np.ndarray:
        """Operations that no trace holds, in order."""
        names, latest, processes = log.process.log.names, None, len(ranks)
        if in_file(traced):
            latest = partial(_latest_on_lanes, traced)
            traced, posix = _telling(traced, counted["POSIX"], log)
            counted = {**counted, "POSIX": posix}
        some = _as_traced(traced, ranks, log)
        rows, left_out, met = rebuild(*some, counted, names, self.files.number, processes, latest)
        for each in met:
            self.rebuilt.note(*each, ranks, names)
        self.reconstructed += len(rows)
        for record, count in left_out.items():
            self.left_out[shown(names.get(record, b"%d" % record))] += count
        rows["rank"] = ranks[rows["rank"]]
        return rows

    def _stretches(self, traced: np.ndarray, made: np.ndarray) -> Iterator[np.ndarray]:
        """All rows of one rank in order, one block of the traced ones at a time."""
        begin = 0
        for part in blocks(traced, self.options.block_rows):
            end = len(made)
            if part.stop < len(traced):
                end = int(np.searchsorted(made["start_ns"], traced["start_ns"][part.stop]))
            yield in_order(joined([_without_stale(traced[part]), made[begin:end]]))
            begin = end

    def _with_mapped(
        self, pid: int | None, rank: int, log: _Log, rows: np.ndarray
    ) -> tuple[np.ndarray, dict[int, int]]:
        """The rows of a process with its mapped reads, those of its main thread in its first lane; and the threads of
        the lanes that they add."""
        found = self.mapped.of_process(pid)
        if pid is None or not len(found):
            return rows, {}
        names, paths = log.process.log.names, self.mapped.paths
        records = list(names)
        known = [
            records[place] if place >= 0 else record_id(path)
            for place, path in zip(self.mapped.found_among(list(names.values())), paths, strict=True)
        ]
        self.files.names |= {each: path for each, path in zip(known, paths, strict=True) if each not in names}
        files = self.files.number(np.array(known, dtype=np.uint64)[found["file"]])
        np.maximum.at(self.files.sizes, files, np.array(self.mapped.sizes)[found["file"]])
        mapped, added = mapped_rows(
            found,
            rows,
            rank=rank,
            lanes={pid: 0} if len(rows) else {},
            facts=LaneFacts(pid=pid),
            next_lane=(first := int(rows["lane"].max(initial=-1)) + 1),
            file=files,
            zero_ns=self.job.start_ns,
        )
        counted = log.counters.of_ranks(np.array([rank]))["POSIX"]
        each_ns = counted["meta_ns"] // np.maximum(counted["opens"], 1)
        lasted = dict(zip(counted["record_id"].tolist(), each_ns.tolist(), strict=True))
        of_file = {
            file: lasted[known[place]]
            for file, place in zip(files.tolist(), found["file"].tolist(), strict=True)
            if known[place] in lasted
        }
        rows = open_before_mapping(rows, mapped, of_file)
        self.mapped_bytes += int(mapped["length"].sum())
        threads = {lane: each.thread for lane, each in enumerate(added, first) if each.thread is not None}
        return joined([rows, mapped]), threads


def _without_stale(rows: np.ndarray) -> np.ndarray:
    stale = rows["file"] == _STALE
    return rows[~stale] if stale.any() else rows


def _as_traced(rows: np.ndarray, ranks: np.ndarray, log: _Log) -> tuple[np.ndarray, np.ndarray]:
    """What `rebuild` works from: the rows with the place of their rank, and their record ids."""
    found = np.array(rows)
    found["rank"] = np.searchsorted(ranks, rows["rank"])
    return found, log.found.records[rows["file"]]


def _telling(traced: np.ndarray, posix: np.ndarray, log: _Log) -> tuple[np.ndarray, np.ndarray]:
    """The operations of a large rank on which what is rebuilt depends, and its counted files without the others.

    Of a file that is traced whole, was opened once, never synced, and used between its open and its close, nothing
    depends on more than its first, last and longest lasting operations. Of each lane the first one stays.
    """
    count, lanes = len(log.found.records), dict[int, int]()
    streams, finish = np.zeros(2 * count, dtype=np.int64), np.full(count, NEVER)
    first, last, longest = np.full((3, count), -1)
    for part in blocks(traced):
        found, at = np.unique(traced["lane"][part], return_index=True)
        lanes = dict(zip(found.tolist(), (part.start + at).tolist(), strict=True)) | lanes
        row = part.start + np.flatnonzero(traced["api"][part] == _POSIX)
        file, end = traced["file"][row], traced["end_ns"][row]
        streams += np.bincount(2 * file + (traced["op"][row] == WRITE), minlength=len(streams))
        last[file] = row  # of several assignments the last one stays
        new = first[file] < 0
        first[file[new][::-1]] = row[new][::-1]
        np.maximum.at(finish, file, end)
        longest[file[end == finish[file]]] = row[end == finish[file]]
    at = places_of(posix, np.zeros(count, dtype=np.int64), log.found.records)
    of_file = posix[at] if len(posix) else np.zeros(count, dtype=posix.dtype)
    whole = (at >= 0) & of_file["own"] & (of_file["count"] == streams.reshape(-1, 2)).all(axis=1) & (first >= 0)
    whole &= (of_file["opens"] <= 1) & (of_file["syncs"] == 0)
    whole &= (of_file["open_start"] == NOT_SEEN) | (of_file["open_start"] <= traced["start_ns"][first])
    whole &= (of_file["close_end"] == NOT_SEEN) | (of_file["close_start"] > traced["start_ns"][last])
    kept = [np.fromiter(lanes.values(), dtype=np.int64), first[whole], last[whole], longest[whole]]
    for part in blocks(traced):
        telling = (traced["api"][part] == _POSIX) & ~whole[traced["file"][part]]
        kept.append(part.start + np.flatnonzero(telling))
    some = np.array(traced[np.unique(np.concatenate(kept))])
    own = some[some["api"] == _POSIX]
    left = np.bincount(2 * own["file"] + (own["op"] == WRITE), minlength=len(streams)).reshape(-1, 2)
    posix = posix.copy()
    posix["count"][at[whole]] = left[whole]
    return some, posix


def _latest_on_lanes(traced: np.ndarray, rows: tuple[np.ndarray, np.ndarray], before_ns: np.ndarray) -> np.ndarray:
    """As `latest_on_lanes`, for the operations of a large rank."""
    of_rank, lane = rows
    latest, carried = np.full(len(lane), NEVER), np.full(1 + int(lane.max(initial=-1)), NEVER)
    by_time = np.argsort(before_ns, kind="stable")
    begin = 0
    for part in blocks(traced):
        end = len(by_time)
        if part.stop < len(traced):
            end = int(np.searchsorted(before_ns[by_time], traced["start_ns"][part.stop], side="right"))
        mine, of_part, ends = by_time[begin:end], traced["lane"][part], traced["end_ns"][part]
        if len(mine):
            operations = (np.zeros(len(of_part), dtype=np.int64), of_part)
            inside = latest_on_lanes(
                (of_rank[mine], lane[mine]), before_ns[mine], operations, traced["start_ns"][part], ends
            )
            latest[mine] = np.maximum(inside, carried[lane[mine]])
        asked = of_part < len(carried)
        np.maximum.at(carried, of_part[asked], ends[asked])
        begin = end
    return latest


def _stale(log: _Log, ranks: np.ndarray, rows: np.ndarray, counted: Mapping[str, np.ndarray]) -> np.ndarray:
    """bool (n,): calls on a descriptor that Darshan takes for a file which was closed.

    Darshan learns of the descriptor of a C or C++ stream by fileno(), and does not see fclose() close it. Whatever has
    its number next, such as the pipe of a DataLoader's worker after `torch.save`, is counted as the file.
    """
    posix, stdio = counted["POSIX"], counted["STDIO"]
    was_closed = (stdio["close_end"] != NOT_SEEN) & (stdio["open_end"] <= stdio["close_end"]) & stdio["own"]
    closed, unopened = stdio[was_closed], posix[posix["opens"] == 0]
    if not len(closed) or not len(unopened):
        return np.zeros(len(rows), dtype=bool)
    process, record = np.searchsorted(ranks, rows["rank"]), log.found.records[rows["file"]]
    at = places_of(closed, process, record)
    only_stream = places_of(unopened, process, record) >= 0
    return (rows["api"] == _POSIX) & (at >= 0) & only_stream & (rows["start_ns"] >= closed["close_end"][at])


def _rank_rows(
    ranks: np.ndarray,
    rows: np.ndarray,
    log_of_lane: Sequence[_Log],
    threads: Mapping[int, int],
    clock: Sequence[RankClock],
    warnings: Sequence[str],
) -> RankRows:
    """Rows in order, with what the logs know of their lanes. `threads`: of lanes of page faults."""
    known = []
    of_rank, lanes = lanes_in(rows["rank"], rows["lane"])
    for rank, lane in zip(of_rank.tolist(), lanes.tolist(), strict=True):
        log = log_of_lane[lane]
        host, role = log.found.hosts.get(rank), WORKER if log.process.worker else None
        known.append(LaneFacts(host=host or None, pid=process_id(log.process), thread=threads.get(lane), role=role))
    workers = np.array([log.process.worker for log in log_of_lane], dtype=np.int64)
    return RankRows(
        ranks=ranks,
        columns=columns_of(rows),
        process=workers[rows["lane"]],
        clock=clock,
        warnings=warnings,
        lanes=lane_rows(of_rank, lanes, known),
    )
