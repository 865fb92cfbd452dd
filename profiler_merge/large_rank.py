"""One rank with more segments than should be in memory: kept in files, sorted by time, processed in stretches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan._overlap_lanes import OverlapLanes
from dxt_replay.profiler_merge.darshan.lanes import NEVER, latest_on_lanes
from dxt_replay.profiler_merge.darshan.rank_segments import SEGMENT_COLUMNS, SegmentBatch
from dxt_replay.profiler_merge.darshan.spilled import EmptyColumns, chunks, release
from dxt_replay.profiler_merge.untraced.operations_by_file import ByFile, module_operations
from dxt_replay.profiler_merge.untraced.rank_counters import CountedFiles
from dxt_replay.profiler_merge.untraced.timeline_slots import number_in_group
from dxt_replay.profiler_merge.untraced.traced_operations import (
    POSIX,
    FilePlaces,
    ModuleOperations,
    TracedRows,
)
from dxt_replay.traces.row_order import distinct, order_by_start
from dxt_replay.traces.stable_order import stable_order

STRETCH_ROWS = 1 << 18
"""Approximate number of operations of a stretch, whose rows are in memory together."""

_MOST_SAMPLES = 1 << 20
_LAST_NS = int(np.iinfo(np.int64).max)
_COLUMNS: dict[str, type] = {
    "start_ns": np.int64, "end_ns": np.int64, "offset": np.int64, "length": np.int64, "file": np.int32,
    "api": np.int8, "is_write": np.bool_, "lane": np.int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """The `rows` (n,) of a rank that start in [begin_ns, end_ns), in the order in which they are stored.

    `file`: int32 (n,), index of each row's file in `LargeRank.records`.
    """

    begin_ns: int
    end_ns: int
    file: np.ndarray
    rows: TracedRows


class LargeRank:
    """The operations of one rank, by start and then by duration, the longest first; `traced_operations.Traced`.

    capture_ns: maps times of the log to the capture's clock. folder: of the files.
    records: uint64, the record ids of its files in the order of the log.
    Raises: TargetError when the disk refuses.
    """

    def __init__(
        self,
        batch: SegmentBatch,
        capture_ns: Callable[[np.ndarray], np.ndarray],
        folder: Path,
        rows: int = STRETCH_ROWS,
    ) -> None:
        self._threads = _Codes() if batch.knows_threads else None
        self._lane_of_thread = _Codes()
        self._overlap: dict[int, OverlapLanes] = {}
        self._lanes: dict[int, int] = {}
        dtypes: dict[str, type] = dict(_COLUMNS)
        dtypes["index"] = np.uint32 if len(batch) < 1 << 32 else np.int64
        self._columns = EmptyColumns(folder, dtypes, len(batch))
        self._index = self._columns.pop("index")
        self._limits, counts = _limits(batch, capture_ns, rows)
        self._bounds = np.append(0, np.cumsum(counts))
        self._scatter(batch, capture_ns)
        self._arrange()

    def _scatter(self, batch: SegmentBatch, capture_ns: Callable[[np.ndarray], np.ndarray]) -> None:
        """Copy the segments to their stretches, in the order of the log, and count them."""
        codes = _Codes()
        free = self._bounds[:-1].copy()
        streams = np.zeros(0, dtype=np.int64)
        for piece in chunks(len(batch)):
            values = {name: getattr(batch, name)[piece] for name in ("offset", "length", "api", "is_write")}
            values |= {name: capture_ns(getattr(batch, name)[piece]) for name in ("start_ns", "end_ns")}
            values["file"] = codes.of(np.asarray(batch.record_id[piece]))
            above = values["api"] != POSIX
            here = np.bincount(4 * values["file"] + 2 * above + values["is_write"], minlength=len(streams))
            here[: len(streams)] += streams
            streams = here
            if self._threads is not None:
                values["lane"] = self._threads.of(batch.thread[piece])
            stretch = np.searchsorted(self._limits, values["start_ns"], side="right")
            counts = np.bincount(stretch, minlength=len(free))
            order = stable_order(stretch) if (stretch[1:] < stretch[:-1]).any() else slice(None)
            for name, value in values.items():
                in_order, ends = value[order], np.cumsum(counts)
                for number in np.flatnonzero(counts).tolist():
                    own = in_order[ends[number] - counts[number] : ends[number]]
                    self._columns.write(name, int(free[number]), own)
            free += counts
            release(*(getattr(batch, name) for name in SEGMENT_COLUMNS))
        self.records = codes.values()
        of_file = np.pad(streams, (0, 4 * len(self.records) - len(streams))).reshape(-1, 2, 2)
        # By module, file and direction.
        self._streams = of_file.transpose(1, 0, 2).reshape(-1, 2)

    def _arrange(self) -> None:
        """Sort each stretch, and find the lanes and the operations of each file."""
        of_key = self._streams.sum(axis=1)
        self._first = np.cumsum(of_key) - of_key
        free = self._first.copy()
        for rows in self._stretches():
            self._sort(rows)
            self._index[_places(free, self._file_key(rows))] = np.arange(rows.start, rows.stop)
            release(self._index, *self._columns.values())
        self._add_first_lanes()

    def _stretches(self) -> Iterator[slice]:
        return (slice(*bounds) for bounds in zip(self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True))

    def _file_key(self, rows: slice) -> np.ndarray:
        """Index of each operation's file; those of MPI-IO come after all others."""
        above = self._columns["api"][rows] != POSIX
        return np.asarray(self._columns["file"][rows] + above * len(self.records))

    def _sort(self, rows: slice) -> None:
        order = order_by_start(self._columns["start_ns"][rows], [-self._columns["end_ns"][rows]])
        found = {name: column[rows][order] for name, column in self._columns.items()}
        found["lane"] = self._lanes_of(found)
        for name, values in found.items():
            self._columns.write(name, rows.start, values)

    def _lanes_of(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """int32: the lane of each row of a stretch in order, within its layer."""
        lane = rows["lane"]
        if self._threads is not None:
            return self._lane_of_thread.of(lane)
        # The layers nest in each other, so overlap across them does not tell threads apart.
        for api in np.unique(rows["api"]).tolist():
            mine = np.flatnonzero(rows["api"] == api)
            following = self._overlap.setdefault(api, OverlapLanes()).following
            lane[mine] = following(rows["start_ns"][mine], rows["end_ns"][mine])
            self._lanes[api] = max(self._lanes.get(api, 0), int(lane[mine].max()) + 1)
        return lane

    def _add_first_lanes(self) -> None:
        """Number the lanes of a layer after those of the layer below."""
        if self._threads is not None:
            self._lanes = {0: len(self._threads)}
        first = np.zeros(1 + max(self._lanes), dtype=np.int32)
        lanes = 0
        for api, used in sorted(self._lanes.items()):
            first[api], lanes = lanes, lanes + used
        self._used = lanes
        if not first.any():
            return
        for rows in self._stretches():
            self._columns["lane"][rows] += first[self._columns["api"][rows]]
            release(*self._columns.values())

    def stretches(self) -> Iterator[Stretch]:
        """All operations, a stretch at a time; every instant is in one of the stretches."""
        limits = [NEVER, *self._limits.tolist(), _LAST_NS]
        for rows, begin, end in zip(self._stretches(), limits[:-1], limits[1:], strict=True):
            found = {name: np.array(column[rows]) for name, column in self._columns.items()}
            release(*self._columns.values())
            file = found.pop("file")
            of_rank = {"process": np.zeros(len(file), dtype=np.int64), "record_id": self.records[file]}
            yield Stretch(begin_ns=begin, end_ns=end, file=file, rows=TracedRows(**of_rank, **found))

    def accesses(self) -> Iterator[tuple[np.ndarray, ...]]:
        """File (index in `records`), interface, offset and length of all operations, a stretch at a time."""
        for rows in self._stretches():
            yield tuple(self._columns[name][rows] for name in ("file", "api", "offset", "length"))
            release(*self._columns.values())

    def first_times(self, processes: int) -> np.ndarray:
        """As `Traced.first_times`."""
        return np.full(processes, self._columns["start_ns"][0])

    def lanes_used(self, processes: int) -> np.ndarray:
        """As `Traced.lanes_used`."""
        return np.full(processes, self._used, dtype=np.int32)

    def of_module(self, files: CountedFiles, module: str) -> ModuleOperations:
        """As `Traced.of_module`."""
        code, known = FilePlaces(files).find(np.zeros(len(self.records), dtype=np.int64), self.records)
        key = np.flatnonzero(known)
        place = code[known]
        traced = module != "STDIO"
        streams = np.zeros((len(files), 2), dtype=np.int64)
        streams[place] = self._streams[key] * traced
        first = np.zeros(len(files), dtype=np.int64)
        first[place] = self._first[key]
        by_file = ByFile(columns=self._columns, index=self._index, first=first, count=streams.sum(axis=1))
        return module_operations(by_file, files, streams.ravel())

    def latest_on_lanes(self, process: np.ndarray, lane: np.ndarray, before_ns: np.ndarray) -> np.ndarray:
        """As `Traced.latest_on_lanes`."""
        latest = np.full(len(lane), NEVER)
        if not len(lane):
            return latest
        reached = np.full(self._used, NEVER)
        order = np.argsort(before_ns, kind="stable")
        in_order, done = before_ns[order], 0
        for rows, end_ns in zip(self._stretches(), [*self._limits.tolist(), _LAST_NS], strict=True):
            start, end, own = (self._columns[name][rows] for name in ("start_ns", "end_ns", "lane"))
            until = int(np.searchsorted(in_order, end_ns, side="right"))
            here, done = order[done:until], until
            if len(here):
                of_rank = np.zeros(len(here), dtype=np.int64), np.zeros(len(own), dtype=np.int64)
                found = latest_on_lanes((of_rank[0], lane[here]), before_ns[here], (of_rank[1], own), start, end)
                latest[here] = np.maximum(found, reached[lane[here]])
            np.maximum.at(reached, own, end)
            release(*self._columns.values())
        return latest


class _Codes:
    """Numbers integers in the order of appearance."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}

    def __len__(self) -> int:
        """Number of values so far."""
        return len(self._codes)

    def of(self, values: np.ndarray) -> np.ndarray:
        """int32 number of each value."""
        found, first, inverse = distinct(values)
        numbers = np.empty(len(found), dtype=np.int32)
        for place in np.argsort(first).tolist():
            numbers[place] = self._codes.setdefault(int(found[place]), len(self._codes))
        return numbers[inverse]

    def values(self) -> np.ndarray:
        """uint64 values by number."""
        return np.fromiter(self._codes, dtype=np.uint64, count=len(self._codes))


def _places(free: np.ndarray, group: np.ndarray) -> np.ndarray:
    """int64 (n,): destination of each row; the rows of a group are adjacent, from its `free` place on.

    Moves `free` past the places taken.
    """
    order = stable_order(group)
    in_order = group[order]
    found = free[in_order] + number_in_group(in_order)
    last = np.append(in_order[1:] != in_order[:-1], True)
    free[in_order[last]] = found[last] + 1
    places = np.empty(len(group), dtype=np.int64)
    places[order] = found
    return places


def _limits(
    batch: SegmentBatch, capture_ns: Callable[[np.ndarray], np.ndarray], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """int64 starts of all stretches but the first, ascending, and the number of operations of each: at least one."""
    every = max(1, min(64, rows // 8), len(batch) // _MOST_SAMPLES)
    sample = []
    for piece in chunks(len(batch)):
        sample.append(capture_ns(batch.start_ns[piece][::every]))
        release(batch.start_ns)
    starts = np.sort(np.concatenate(sample))
    limits = np.unique(starts[:: max(rows // every, 1)])[1:]
    counts = np.zeros(len(limits) + 1, dtype=np.int64)
    for piece in chunks(len(batch)):
        stretch = np.searchsorted(limits, capture_ns(batch.start_ns[piece]), side="right")
        counts += np.bincount(stretch, minlength=len(counts))
        release(batch.start_ns)
    return limits, counts
