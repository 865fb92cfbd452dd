"""The op stream of one process of a rank: traced segments with their lanes, and what is reconstructed beside them.

Columns are those of `traces.schema.OPS_SCHEMA` but for rank and step, and `tie`, which orders rows that start together.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from profiler_merge.clocks.offsets import Alignment
from profiler_merge.darshan.job_logs import ProcessLog
from profiler_merge.darshan.lanes import lanes_from_overlap, lanes_from_threads
from profiler_merge.darshan.rank_segments import RankSegments
from profiler_merge.file_table import REPAIRED, SUSPECT, FileTable
from profiler_merge.untraced.access_times import Activity
from profiler_merge.untraced.data_rows import RECONSTRUCT_LIMIT, CountedData
from profiler_merge.untraced.offset_repair import examine_offsets, opened_together
from profiler_merge.untraced.rank_counters import COUNTED_TIMES, MODULES, NOT_SEEN, CountedFiles, RankCounters
from profiler_merge.untraced.rank_data import RankData
from profiler_merge.untraced.rebuilt import Rebuilt
from profiler_merge.untraced.reconstruct import CountedModule, ReconstructedRows, TracedRows, operations_of, reconstruct
from traces.schema import APIS, OPS, READ, RECONSTRUCTED, TRACED, WRITE

_COUNTED_API = APIS.index("POSIX")
_RENAME = OPS.index("rename")
_COLUMNS = {
    "lane": np.int32, "op": np.int8, "api": np.int8, "file_id": np.int32, "offset": np.int64, "length": np.int64,
    "start_ns": np.int64, "end_ns": np.int64, "origin": np.int8, "tie": np.int64,
}  # fmt: skip


@dataclass(slots=True)
class ProcessRows:
    """Makes the rows of the processes of a job, and notes sizes, names and offsets of their files in `files`.

    ranks: number of ranks of the job.
    reconstruct: whether to make operations that were not traced.
    excluded: record ids that are left out.
    reconstructed: rows made so far.
    left_out: rows that were not made because they are too many.
    threads_known: for each process with operations, whether its log has thread ids.
    """

    files: FileTable
    job_start_ns: int
    ranks: int
    reconstruct: bool
    excluded: Collection[int]
    reconstructed: int = 0
    left_out: int = 0
    threads_known: list[bool] = field(default_factory=list)
    limit: int = RECONSTRUCT_LIMIT
    rebuilt: Rebuilt = field(default_factory=Rebuilt)
    _counters: dict[str, RankCounters] = field(default_factory=dict)
    _data: dict[tuple[str, str], RankData] = field(default_factory=dict)

    def counters(self, process: ProcessLog) -> RankCounters:
        """The counters of a process's log, read once. Raises: LogError when they are damaged or of a new version."""
        key = str(process.log.path)
        if key not in self._counters:
            self._counters[key] = RankCounters(process.log, self.ranks, fixed_rank=process.rank, excluded=self.excluded)
        return self._counters[key]

    def columns(
        self, rank: int, process: ProcessLog, segments: RankSegments, alignment: Alignment
    ) -> dict[str, np.ndarray]:
        """The columns, by traced and then by reconstructed rows, each in start order; lanes from 0."""
        files_of_rows = self.files.number(segments.record_id)
        log_start = process.log.job.start_ns
        start_ns, end_ns = (
            self._capture_ns(times, log_start, alignment) for times in (segments.start_ns, segments.end_ns)
        )
        order = np.lexsort((-end_ns, start_ns))
        segments, files_of_rows = segments.select(order), files_of_rows.select(order)
        start_ns, end_ns = start_ns[order], end_ns[order]
        counted = self.counters(process)
        files = {
            module: self._on_capture_clock(counted.of_rank(rank, module), log_start, alignment) for module in MODULES
        }
        rows = TracedRows(
            record_id=segments.record_id,
            api=segments.api,
            is_write=segments.is_write,
            offset=segments.offset,
            length=segments.length,
            start_ns=start_ns,
            end_ns=end_ns,
            lane=self._lanes(segments, start_ns, end_ns),
        )
        rows = self._examined(rows, files["POSIX"], segments.thread)
        at_counted = segments.api == _COUNTED_API
        self.files.note_sizes(files_of_rows, rows.offset, segments.length)
        self.files.note_traced(rank, files_of_rows.select(at_counted), segments.length[at_counted])
        traced = {
            "lane": rows.lane,
            "op": np.where(segments.is_write, WRITE, READ).astype(np.int8),
            "api": segments.api,
            "file_id": files_of_rows.file_id,
            "offset": rows.offset,
            "length": segments.length,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "origin": np.full(len(segments), TRACED, dtype=np.int8),
            "tie": np.zeros(len(segments), dtype=np.int64),
        }
        if not self.reconstruct:
            return traced
        modules = [
            CountedModule(
                module=module, files=of_module, data=self._counted_data(rank, process, module, of_module, alignment)
            )
            for module, of_module in files.items()
        ]
        found = reconstruct(rows, modules, process.log.names, self.limit)
        for each in modules:
            if each.data is not None:
                self.rebuilt.note(
                    str(process.log.path), rank, each.module, found, each.data, each.files, process.log.names
                )
        made = self._made(found)
        return {name: np.concatenate([traced[name], made[name]]).astype(dtype) for name, dtype in _COLUMNS.items()}

    def _counted_data(
        self, rank: int, process: ProcessLog, module: str, files: CountedFiles, alignment: Alignment
    ) -> CountedData | None:
        """What the rank read and wrote at a module by its counters; its HEATMAP is looked up where it is needed."""
        key = str(process.log.path), module
        if key not in self._data:
            self._data[key] = RankData(
                process.log,
                self.ranks,
                module,
                limit=self.limit,
                traced=self.counters(process).traced.get(module, ()),
                fixed_rank=process.rank,
                excluded=self.excluded,
            )
        data = self._data[key]
        counted = data.of_rank(rank, files.opens)
        if counted is None:
            return None

        def activity() -> Activity | None:
            found = data.activity(rank)
            if found is None:
                return None
            return replace(found, edges=self._capture_ns(found.edges, process.log.job.start_ns, alignment))

        return replace(counted, activity=activity)

    def _capture_ns(self, times_ns: np.ndarray, log_start_ns: int, alignment: Alignment) -> np.ndarray:
        # Drift is known on the log's own clock, so the job's start is taken off again afterwards.
        return alignment.realtime_ns(times_ns + log_start_ns) - self.job_start_ns

    def _on_capture_clock(self, files: CountedFiles, log_start_ns: int, alignment: Alignment) -> CountedFiles:
        if not len(files):
            return files
        times = np.stack([getattr(files, name) for name in COUNTED_TIMES])
        seen = times != NOT_SEEN
        moved = np.where(seen, self._capture_ns(np.where(seen, times, 0), log_start_ns, alignment), NOT_SEEN)
        return replace(files, **dict(zip(COUNTED_TIMES, moved, strict=True)))

    def _examined(self, rows: TracedRows, posix: CountedFiles, thread: np.ndarray | None) -> TracedRows:
        """The rows, with offsets repaired where possible; repaired and suspect offsets are noted."""
        if not opened_together(posix).any():
            return rows
        operations, places = operations_of(rows, posix)
        found = examine_offsets(posix, operations, None if thread is None else thread[places])
        counts = np.bincount(operations.file, minlength=len(posix))
        for state, mask in ((REPAIRED, found.repaired), (SUSPECT, found.suspect)):
            files = np.flatnonzero(mask)
            self.files.note_offsets(state, self.files.number(posix.record_id[files]).file_id, counts[files])
        offset = rows.offset.copy()
        offset[places] = found.offset
        return replace(rows, offset=offset)

    def _made(self, rows: ReconstructedRows) -> dict[str, np.ndarray]:
        self.reconstructed += len(rows)
        self.left_out += rows.left_out
        self.files.note_names(rows.names)
        files = self.files.number(rows.record_id)
        data = (rows.op == READ) | (rows.op == WRITE)
        self.files.note_sizes(files.select(data), rows.offset[data], rows.length[data])
        renamed = rows.op == _RENAME
        offset = rows.offset.copy()
        for row in np.flatnonzero(renamed).tolist():
            offset[row] = self.files.renamed(int(rows.record_id[row]), int(rows.target_id[row]))
        return {
            "lane": rows.lane,
            "op": rows.op,
            "api": rows.api,
            "file_id": files.file_id,
            "offset": offset,
            "length": rows.length,
            "start_ns": rows.start_ns,
            "end_ns": rows.end_ns,
            "origin": np.full(len(rows), RECONSTRUCTED, dtype=np.int8),
            "tie": rows.tie,
        }

    def _lanes(self, segments: RankSegments, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """int32 lane of each segment; the segments are in start order."""
        if not len(segments):
            return np.empty(0, dtype=np.int32)
        self.threads_known.append(segments.thread is not None)
        if segments.thread is not None:
            return lanes_from_threads(segments.thread)
        # The layers nest in each other, so that overlap across them says nothing about threads.
        lanes = np.empty(len(segments), dtype=np.int32)
        first = 0
        for api in np.unique(segments.api).tolist():
            mine = np.flatnonzero(segments.api == api)
            lanes[mine] = lanes_from_overlap(start_ns[mine], end_ns[mine]) + np.int32(first)
            first = int(lanes[mine].max()) + 1
        return lanes


def no_segments(rank: int) -> RankSegments:
    """The segments of a process without traced operations."""
    none = np.empty(0, dtype=np.int64)
    return RankSegments(
        rank=rank,
        hostname="",
        record_id=none.astype(np.uint64),
        api=none.astype(np.int8),
        is_write=none.astype(bool),
        offset=none,
        length=none,
        start_ns=none,
        end_ns=none,
        thread=None,
    )


def in_start_order(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows by start; of those that start together the longest first, but for reconstructed ones that take no time:
    those come before what they prepare."""
    instant = (columns["origin"] == RECONSTRUCTED) & (columns["end_ns"] == columns["start_ns"])
    order = np.lexsort((columns["tie"], -columns["end_ns"], ~instant, columns["start_ns"]))
    return {name: values[order] for name, values in columns.items() if name != "tie"}
