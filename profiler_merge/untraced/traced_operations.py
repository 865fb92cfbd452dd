"""The traced operations of a batch of processes, and their counted files. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import Column, latest_on_lanes
from dxt_replay.profiler_merge.untraced.file_operations import FileOperations, no_operations
from dxt_replay.profiler_merge.untraced.rank_counters import CountedFiles
from dxt_replay.traces.schema import APIS

POSIX = APIS.index("POSIX")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleOperations:
    """The traced operations of counted files of a module, by file and start.

    begin, end: int64 (files,), range of each file in `start` (ns) and `lane`.
    streams: int64 (2 files,), number of reads, and of writes.
    needed: at least the operations on which the files' metadata operations depend; `whole`: all operations.
    """

    begin: np.ndarray
    end: np.ndarray
    start: Column
    lane: Column
    streams: np.ndarray
    needed: Callable[[], FileOperations]
    whole: Callable[[], FileOperations]


class Traced(Protocol):
    """Traced operations of a batch of processes, with their lanes."""

    def first_times(self, processes: int) -> np.ndarray:
        """int64 (processes,): the start of the first operation of each, the largest int64 if there is none."""
        ...

    def lanes_used(self, processes: int) -> np.ndarray:
        """int32 (processes,): number of lanes of each."""
        ...

    def of_module(self, files: CountedFiles, module: str) -> ModuleOperations:
        """The operations of counted files of a module."""
        ...

    def latest_on_lanes(self, process: np.ndarray, lane: np.ndarray, before_ns: np.ndarray) -> np.ndarray:
        """int64 (n,), as `darshan.lanes.latest_on_lanes`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedRows:
    """`Traced` in memory, by process and start; (n,), `record_id` uint64, `is_write` bool, else integers.

    process: the place of the process in the batch, ascending.
    """

    process: np.ndarray
    record_id: np.ndarray
    api: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    lane: np.ndarray

    def select(self, mask: np.ndarray) -> TracedRows:
        """The rows of a mask (bool)."""
        return TracedRows(**{each.name: getattr(self, each.name)[mask] for each in fields(self)})

    def first_times(self, processes: int) -> np.ndarray:
        """As `Traced.first_times`."""
        first = np.full(processes, np.iinfo(np.int64).max)
        np.minimum.at(first, self.process, self.start_ns)
        return first

    def lanes_used(self, processes: int) -> np.ndarray:
        """As `Traced.lanes_used`."""
        used = np.zeros(processes, dtype=np.int32)
        np.maximum.at(used, self.process, self.lane + np.int32(1))
        return used

    def of_module(self, files: CountedFiles, module: str) -> ModuleOperations:
        """As `Traced.of_module`."""
        operations, rows = operations_of(self, files, module)
        begin, end = (np.searchsorted(operations.file, np.arange(len(files)), side=side) for side in ("left", "right"))
        return ModuleOperations(
            begin=begin,
            end=end,
            start=operations.start,
            lane=self.lane[rows],
            streams=np.bincount(2 * operations.file + operations.is_write, minlength=2 * len(files)),
            needed=lambda: operations,
            whole=lambda: operations,
        )

    def latest_on_lanes(self, process: np.ndarray, lane: np.ndarray, before_ns: np.ndarray) -> np.ndarray:
        """As `Traced.latest_on_lanes`."""
        return latest_on_lanes((process, lane), before_ns, (self.process, self.lane), self.start_ns, self.end_ns)


class FilePlaces:
    """Finds the files of a batch of processes by process and record id; the first one if several have it."""

    def __init__(self, files: CountedFiles) -> None:
        self._records = np.unique(files.record_id)
        keys = self._keys(files.process, np.searchsorted(self._records, files.record_id))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def find(self, process: np.ndarray, record_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The index of each row's file (arbitrary if there is none), and whether there is one (bool)."""
        if not len(self._sorted):
            return np.zeros(len(process), dtype=np.int64), np.zeros(len(process), dtype=bool)
        code = np.minimum(np.searchsorted(self._records, record_id), len(self._records) - 1)
        keys = self._keys(process, code)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return self._order[at], (self._records[code] == record_id) & (self._sorted[at] == keys)

    def _keys(self, process: np.ndarray, code: np.ndarray) -> np.ndarray:
        return np.asarray(process * len(self._records) + code)


def operations_of(traced: TracedRows, files: CountedFiles, module: str = "POSIX") -> tuple[FileOperations, np.ndarray]:
    """The traced operations of counted files of a module, by file and start, and their rows in `traced`."""
    own = np.flatnonzero(traced.api == APIS.index(module))
    if not len(files) or not len(own):
        return no_operations(), np.empty(0, dtype=np.int64)
    file, known = FilePlaces(files).find(traced.process[own], traced.record_id[own])
    rows, file = own[known], file[known]
    # The sort is stable, and the rows are in the order of their start.
    order = np.argsort(file, kind="stable")
    rows, file = rows[order], file[order]
    return (
        FileOperations(
            file=file,
            start=traced.start_ns[rows],
            end=traced.end_ns[rows],
            offset=traced.offset[rows],
            length=traced.length[rows],
            is_write=traced.is_write[rows],
        ),
        rows,
    )
