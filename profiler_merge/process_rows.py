"""The op stream of a log's processes: traced segments with their lanes, and reconstructed operations.

Columns are those of `traces.schema.OPS_SCHEMA` except step, plus `tie`, which orders rows that start together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dxt_replay.profiler_merge.clocks.offsets import Alignment
from dxt_replay.profiler_merge.darshan.dxt import SegmentCounts
from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog
from dxt_replay.profiler_merge.darshan.lanes import lanes_from_overlap, lanes_from_threads
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import SegmentBatch
from dxt_replay.profiler_merge.file_notes import NO_FILE, REPAIRED, SUSPECT, FileNotes, FilesOfRows
from dxt_replay.profiler_merge.untraced.offset_repair import examine_offsets, opened_together
from dxt_replay.profiler_merge.untraced.rank_counters import (
    COUNTED_TIMES,
    MODULES,
    NOT_SEEN,
    CountedFiles,
    RankCounters,
)
from dxt_replay.profiler_merge.untraced.rank_data import RankData
from dxt_replay.profiler_merge.untraced.rebuilt import Rebuilt
from dxt_replay.profiler_merge.untraced.reconstruct import CountedModule, ReconstructedRows, reconstruct
from dxt_replay.profiler_merge.untraced.renamed_files import LogNames
from dxt_replay.profiler_merge.untraced.traced_operations import FilePlaces, Traced, TracedRows, operations_of
from dxt_replay.traces.row_order import distinct, order_by_start
from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, TRACED, WRITE

COUNTED_API = APIS.index("POSIX")
RENAME = OPS.index("rename")
_COLUMNS = {
    "rank": np.int32, "lane": np.int32, "op": np.int8, "api": np.int8, "file_id": np.int32, "offset": np.int64,
    "length": np.int64, "start_ns": np.int64, "end_ns": np.int64, "origin": np.int8, "other_file_id": np.int32,
    "open_flags": np.int16, "tie": np.int64,
}  # fmt: skip


@dataclass(slots=True)
class RowTotals:
    """Totals of the rows of some ranks, which can be added up.

    reconstructed: rows made. left_out: by path, opens, stats and syncs that were not made because there are too
    many.
    threads_known: for each batch with operations, whether its log has thread ids.
    rebuilt: how well the made operations meet the counters.
    mapped_bytes: of mapped reads. mapped_left_out: ids of processes whose mapped reads have no rows.
    """

    reconstructed: int = 0
    mapped_bytes: int = 0
    mapped_left_out: set[int] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    threads_known: list[bool] = field(default_factory=list)
    rebuilt: Rebuilt = field(default_factory=Rebuilt)

    def add(self, other: RowTotals) -> None:
        """Add the totals of the next ranks."""
        self.reconstructed += other.reconstructed
        self.left_out += other.left_out
        self.threads_known += other.threads_known
        self.rebuilt.add(other.rebuilt)
        self.mapped_bytes += other.mapped_bytes
        self.mapped_left_out |= other.mapped_left_out


@dataclass(slots=True)
class LogCounters:
    """The counters of a job's logs, read once.

    ranks: number of ranks of the job. reconstruct: whether to make operations that were not traced. excluded: record
    ids that are left out. traced: how much of the reduced records of a log its trace holds, by log and module, where
    that is known.
    """

    ranks: int
    reconstruct: bool
    excluded: Collection[int]
    traced: Mapping[str, Mapping[str, tuple[SegmentCounts, ...]]] | None = None
    _counters: dict[str, RankCounters] = field(default_factory=dict)
    _data: dict[tuple[str, str], RankData] = field(default_factory=dict)
    _names: dict[str, LogNames] = field(default_factory=dict)

    def counters(self, process: ProcessLog) -> RankCounters:
        """The counters of a process's log. Raises: LogError when they are damaged or of a new version."""
        key = str(process.log.path)
        if key not in self._counters:
            traced = None if self.traced is None else self.traced.get(key, {})
            self._counters[key] = RankCounters(
                process.log, self.ranks, fixed_rank=process.rank, excluded=self.excluded, traced=traced
            )
        return self._counters[key]

    def traced_segments(self) -> dict[str, Mapping[str, tuple[SegmentCounts, ...]]]:
        """The traced segments counted so far, to be passed to others as `traced`."""
        return {log: counters.traced for log, counters in self._counters.items() if counters.traced}

    def names(self, log: DarshanLog) -> LogNames:
        """The names of a log, in both directions."""
        key = str(log.path)
        if key not in self._names:
            self._names[key] = LogNames(by_record=log.names)
        return self._names[key]

    def data(self, process: ProcessLog, module: str) -> RankData:
        """The reads and writes that a module of a process's log counts."""
        key = str(process.log.path), module
        if key not in self._data:
            self._data[key] = RankData(
                process.log,
                self.ranks,
                module,
                traced=self.counters(process).traced.get(module, ()),
                fixed_rank=process.rank,
                excluded=self.excluded,
            )
        return self._data[key]


@dataclass(slots=True)
class ProcessRows:
    """Makes the rows of processes of a job.

    files: numbers their files and collects facts from the rows.
    known: the counters of the logs. made: totals of the rows.
    """

    files: FileNotes
    known: LogCounters
    job_start_ns: int
    made: RowTotals = field(default_factory=RowTotals)

    def columns(self, process: ProcessLog, batch: SegmentBatch, alignment: Alignment) -> dict[str, np.ndarray]:
        """The columns of the ranks of a batch, for traced and then for reconstructed rows, each by rank and start.

        Lanes are numbered from 0 in each rank. All ranks of a batch with more than one have, or lack, thread ids.
        """
        log_start = process.log.job.start_ns
        start_ns, end_ns = (self._capture_ns(times, log_start, alignment) for times in (batch.start_ns, batch.end_ns))
        place = batch.place
        in_log_order = batch.record_id
        order = order_by_start(start_ns, [-end_ns], place)
        if batch.knows_threads:
            batch = replace(batch, thread=distinct(batch.thread).inverse)  # faster before the threads mix
        batch, start_ns, end_ns = batch.reordered(order), start_ns[order], end_ns[order]
        files = self._counted_files(process, batch.ranks, alignment)
        rows = TracedRows(
            process=place,
            record_id=batch.record_id,
            api=batch.api,
            is_write=batch.is_write,
            offset=batch.offset,
            length=batch.length,
            start_ns=start_ns,
            end_ns=end_ns,
            lane=self._lanes(batch, start_ns, end_ns),
        )
        rows, examined = self._examined(rows, files["POSIX"], batch.thread if batch.knows_threads else None)
        made = self._reconstructed(process, batch, rows, files)
        numbers = self.files.number_by_rank([(place, in_log_order), *([] if made is None else records_of(made))])
        of_traced, of_made = numbers[0].select(order), numbers[1:]
        at_counted = rows.api == COUNTED_API
        self.files.note_traced(
            batch.ranks[place[order][at_counted]], of_traced.select(at_counted), rows.length[at_counted]
        )
        if (stale := stale_descriptors(rows, files)).any():
            rows, of_traced = rows.select(~stale), of_traced.select(~stale)
        self._note(rows, of_traced, made, of_made)
        self._note_offsets(examined)
        parts = [self._traced(batch.ranks, rows, of_traced)]
        if made is not None:
            parts.append(self._made(batch.ranks, made, of_made))
        return as_columns(parts)

    def _reconstructed(
        self,
        process: ProcessLog,
        batch: SegmentBatch,
        rows: Traced,
        files: Mapping[str, CountedFiles],
    ) -> ReconstructedRows | None:
        """Operations of a batch's ranks that no trace holds; None if nothing is to be reconstructed."""
        if not self.known.reconstruct:
            return None
        modules = [
            CountedModule(
                module=module,
                files=of_module,
                data=partial(self.known.data(process, module).untraced, of_module, batch.ranks),
            )
            for module, of_module in files.items()
        ]
        log = process.log
        found = reconstruct(rows, modules, self.known.names(log), len(batch.ranks))
        for each in found.rebuilt:
            self.made.rebuilt.note(str(log.path), batch.ranks, each, log.names)
        self.made.reconstructed += len(found)
        for record, count in found.left_out.items():
            self.made.left_out[log.names.get(record, b"%d" % record).decode("utf-8", "backslashreplace")] += count
        self.files.note_names(found.names)
        return found

    def _note(
        self,
        traced: TracedRows,
        files: FilesOfRows,
        made: ReconstructedRows | None,
        of_made: Sequence[FilesOfRows],
    ) -> None:
        """Note facts about files from the rows of a batch."""
        if made is None or not (renamed := np.flatnonzero(made.op == RENAME)).size:
            self._note_sizes(traced, files, made, of_made, slice(None), slice(None))
            return
        # A new name gets the size of the old one at that time, so earlier ranks count and later ones do not.
        traced_begin = made_begin = 0
        for process in np.unique(made.process[renamed]).tolist():
            traced_end, made_end = (int(np.searchsorted(each.process, process + 1)) for each in (traced, made))
            self._note_sizes(traced, files, made, of_made, slice(traced_begin, traced_end), slice(made_begin, made_end))
            traced_begin, made_begin = traced_end, made_end
            mine = np.flatnonzero(made.process[renamed] == process)
            for old, new in zip(
                of_made[0].file_id[renamed[mine]].tolist(), of_made[1].file_id[mine].tolist(), strict=True
            ):
                self.files.note_renamed(old, new)
        self._note_sizes(traced, files, made, of_made, slice(traced_begin, None), slice(made_begin, None))

    def _note_sizes(
        self,
        traced: TracedRows,
        files: FilesOfRows,
        made: ReconstructedRows | None,
        of_made: Sequence[FilesOfRows],
        of_traced: slice,
        of_rows: slice,
    ) -> None:
        self.files.note_sizes(files.select(of_traced), traced.offset[of_traced], traced.length[of_traced])
        if made is not None:
            self._note_sizes_made(made, of_made, of_rows)

    def _note_sizes_made(self, made: ReconstructedRows, of_made: Sequence[FilesOfRows], of_rows: slice) -> None:
        data = np.flatnonzero((made.op[of_rows] == READ) | (made.op[of_rows] == WRITE)) + (of_rows.start or 0)
        self.files.note_sizes(of_made[0].select(data), made.offset[data], made.length[data])

    def _capture_ns(self, times_ns: np.ndarray, log_start_ns: int, alignment: Alignment) -> np.ndarray:
        # Drift is known on the log's own clock, so the job's start is subtracted again afterwards.
        return alignment.realtime_ns(times_ns + log_start_ns) - self.job_start_ns

    def _counted_files(self, process: ProcessLog, ranks: np.ndarray, alignment: Alignment) -> dict[str, CountedFiles]:
        """The files of some ranks at each module, their times on the capture's clock."""
        counters, log_start = self.known.counters(process), process.log.job.start_ns
        found = {}
        for module in MODULES:
            files = counters.of_ranks(ranks, module)
            times = np.stack([getattr(files, name) for name in COUNTED_TIMES])
            seen = times != NOT_SEEN
            moved = np.where(seen, self._capture_ns(np.where(seen, times, 0), log_start, alignment), NOT_SEEN)
            found[module] = replace(files, **dict(zip(COUNTED_TIMES, moved, strict=True)))
        return found

    def _note_offsets(self, examined: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        for state, (record_id, operations) in examined.items():
            self.files.note_offsets(state, self.files.number(record_id).file_id, operations)

    def _examined(
        self, rows: TracedRows, posix: CountedFiles, thread: np.ndarray | None
    ) -> tuple[TracedRows, dict[int, tuple[np.ndarray, np.ndarray]]]:
        """The rows, with offsets repaired if possible; record ids and operations of REPAIRED and SUSPECT files."""
        if not opened_together(posix).any():
            return rows, {}
        operations, places = operations_of(rows, posix)
        found = examine_offsets(posix, operations, None if thread is None else thread[places])
        counts = np.bincount(operations.file, minlength=len(posix))
        offset = rows.offset.copy()
        offset[places] = found.offset
        states = ((REPAIRED, found.repaired), (SUSPECT, found.suspect))
        return replace(rows, offset=offset), {state: (posix.record_id[mask], counts[mask]) for state, mask in states}

    def _traced(self, ranks: np.ndarray, rows: TracedRows, files: FilesOfRows) -> dict[str, np.ndarray]:
        op = np.where(rows.is_write, np.int8(WRITE), np.int8(READ))
        return {
            **_columns_of(ranks, rows, op, files),
            "open_flags": np.broadcast_to(np.int16(-1), len(op)),
            "origin": np.full(len(op), TRACED, dtype=np.int8),
            "other_file_id": np.broadcast_to(np.int32(NO_FILE), len(op)),
            "tie": np.broadcast_to(np.int64(0), len(op)),
        }

    def _made(self, ranks: np.ndarray, rows: ReconstructedRows, files: Sequence[FilesOfRows]) -> dict[str, np.ndarray]:
        renames = rows.op == RENAME
        new_names = np.full(len(rows), NO_FILE, dtype=np.int32)
        new_names[renames] = files[1].file_id
        return {
            **_columns_of(ranks, rows, rows.op, files[0]),
            "open_flags": np.broadcast_to(np.int16(-1), len(rows)),
            "origin": np.full(len(rows), RECONSTRUCTED),
            "other_file_id": new_names,
            "tie": rows.tie,
        }

    def _lanes(self, batch: SegmentBatch, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """int32 lane of each segment; the segments are by rank and start."""
        if not len(batch):
            return np.empty(0, dtype=np.int32)
        self.made.threads_known.append(batch.knows_threads)
        place = batch.place
        if batch.knows_threads:
            return lanes_from_threads(batch.thread, place)
        # The layers nest in each other, so overlap across them does not tell threads apart.
        lanes = np.empty(len(batch), dtype=np.int32)
        first = np.zeros(len(batch.ranks), dtype=np.int32)
        for api in np.unique(batch.api).tolist():
            mine = np.flatnonzero(batch.api == api)
            lanes[mine] = lanes_from_overlap(start_ns[mine], end_ns[mine], place[mine]) + first[place[mine]]
            np.maximum.at(first, place[mine], lanes[mine] + np.int32(1))
        return lanes


def stale_descriptors(rows: TracedRows, files: Mapping[str, CountedFiles]) -> np.ndarray:
    """bool (n,): calls on a descriptor that Darshan takes for a file which was closed.

    Darshan learns of the descriptor of a C or C++ stream by fileno(), and does not see fclose() close it. Whatever has
    its number next, such as the pipe of a DataLoader's worker after `torch.save`, is counted as the file.
    """
    posix, stdio = files["POSIX"], files["STDIO"]
    closed = stdio.select((stdio.close_end != NOT_SEEN) & (stdio.open_end <= stdio.close_end) & stdio.own)
    unopened = posix.select(posix.opens == 0)
    if not len(closed) or not len(unopened):
        return np.zeros(len(rows.start_ns), dtype=bool)
    at, has = FilePlaces(closed).find(rows.process, rows.record_id)
    _, only_stream = FilePlaces(unopened).find(rows.process, rows.record_id)
    return (rows.api == COUNTED_API) & has & only_stream & (rows.start_ns >= closed.close_end[at])


def _columns_of(
    ranks: np.ndarray, rows: TracedRows | ReconstructedRows, op: np.ndarray, files: FilesOfRows
) -> dict[str, np.ndarray]:
    """The columns that traced and reconstructed rows share. `ranks`: by place of the process."""
    same = {name: getattr(rows, name) for name in ("lane", "api", "offset", "length", "start_ns", "end_ns")}
    return {**same, "rank": ranks[rows.process], "op": op, "file_id": files.file_id}


def as_columns(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenate the columns of parts, each with its type."""
    return {name: _joined([part[name] for part in parts]).astype(dtype, copy=False) for name, dtype in _COLUMNS.items()}


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def records_of(made: ReconstructedRows) -> list[tuple[np.ndarray, np.ndarray]]:
    """Process and record id of the files of reconstructed rows, and of the new names of renames."""
    renamed = made.op == RENAME
    return [(made.process, made.record_id), (made.process[renamed], made.target_id[renamed])]


def in_start_order(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows by rank and start. Of rows that start together the longest comes first.

    Reconstructed rows of zero length come before the rows that they prepare."""
    instant = (columns["origin"] == RECONSTRUCTED) & (columns["end_ns"] == columns["start_ns"])
    then = [~instant, -columns["end_ns"], columns["tie"]]
    order = order_by_start(columns["start_ns"], then, columns["rank"])
    in_order = bool((order[1:] > order[:-1]).all())
    return {name: values if in_order else values[order] for name, values in columns.items() if name != "tie"}
