"""The traced operations of counted files, if they are too many for memory: accessed by file, without a copy.

Metadata operations depend on few reads and writes: those beside an open or a close with a recorded time, and those that
may begin a pass over the file. Only these are read into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import first_not_below
from dxt_replay.profiler_merge.darshan.spilled import chunks, release
from dxt_replay.profiler_merge.untraced.file_operations import FileOperations
from dxt_replay.profiler_merge.untraced.metadata_rows import dated_places
from dxt_replay.profiler_merge.untraced.rank_counters import CountedFiles
from dxt_replay.profiler_merge.untraced.timeline_slots import number_in_group
from dxt_replay.profiler_merge.untraced.traced_operations import ModuleOperations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByFile:
    """Operations numbered from 0 by counted file and start.

    columns: `start_ns`, `end_ns`, `offset`, `length`, `is_write` and `lane` of all operations of the rank, by start.
    index: places in `columns`, those of one file together and ascending.
    first, count: int64 (files,), which places of `index` are of each file.
    """

    columns: Mapping[str, np.ndarray]
    index: np.ndarray
    first: np.ndarray
    count: np.ndarray

    @property
    def begin(self) -> np.ndarray:
        """int64 (files,): the number of the first operation of each file."""
        begin: np.ndarray = np.cumsum(self.count) - self.count
        return begin

    def __len__(self) -> int:
        """Number of operations."""
        return int(self.count.sum())

    def file_of(self, numbers: np.ndarray) -> np.ndarray:
        """The file of each operation."""
        return np.searchsorted(self.begin, numbers, side="right") - 1

    def values(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """A column of operations."""
        file = self.file_of(numbers)
        return np.asarray(self.columns[name][self.index[self.first[file] + numbers - self.begin[file]]])

    def operations(self, numbers: np.ndarray) -> FileOperations:
        """Operations, given in ascending order."""
        file = self.file_of(numbers)
        before = np.maximum(numbers - 1, self.begin[file])
        return FileOperations(
            file=file,
            start=self.values("start_ns", numbers),
            end=self.values("end_ns", numbers),
            offset=self.values("offset", numbers),
            length=self.values("length", numbers),
            is_write=self.values("is_write", numbers),
            ended=self.values("end_ns", before),
            goes_on_at=self.values("offset", before) + self.values("length", before),
        )

    def release(self) -> None:
        """Give back the memory of the columns."""
        release(self.index, *self.columns.values())


@dataclass(frozen=True, slots=True)
class _ColumnByFile:
    """`darshan.lanes.Column` of one column."""

    by_file: ByFile
    name: str

    def __len__(self) -> int:
        return len(self.by_file)

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        return self.by_file.values(self.name, rows)


def module_operations(by_file: ByFile, files: CountedFiles, streams: np.ndarray) -> ModuleOperations:
    """The operations of all `files` of a module. `streams`: as of `ModuleOperations`."""
    begin = by_file.begin
    return ModuleOperations(
        begin=begin,
        end=begin + by_file.count,
        start=_ColumnByFile(by_file, "start_ns"),
        lane=_ColumnByFile(by_file, "lane"),
        streams=streams,
        needed=lambda: needed_operations(by_file, files, streams),
        whole=lambda: _whole(by_file),
    )


def _whole(by_file: ByFile) -> FileOperations:
    found = by_file.operations(np.arange(len(by_file)))
    by_file.release()
    return found


def needed_operations(by_file: ByFile, files: CountedFiles, streams: np.ndarray) -> FileOperations:
    """The operations on which the metadata operations of the files depend, and some more.

    Memory: those operations. They are all operations of a file that was written and synced; else as many of each file
    as its opens, plus some ten.
    """
    begin, used = by_file.begin, by_file.count > 0
    search = _Search(by_file, files, (files.syncs > 0) & (streams[1::2] > 0))
    for piece in chunks(len(by_file)):
        search.look_at(np.arange(piece.start, piece.stop))
        by_file.release()
    ends = (begin[used], begin[used] + by_file.count[used] - 1)
    numbers = np.unique(np.concatenate([*ends, *search.found]))
    file, start = dated_places(files, by_file.operations(numbers))
    file, start = file[used[file]], start[used[file]]
    column, first, last = _ColumnByFile(by_file, "start_ns"), begin[file], begin[file] + by_file.count[file]
    near = [first_not_below(column, first, last, start + late) for late in (0, 1)]
    beside = np.concatenate([np.clip(place - back, first, last - 1) for place in near for back in (0, 1)])
    found = by_file.operations(np.union1d(numbers, beside))
    by_file.release()
    return found


class _Search:
    """Searches the operations and notes the numbers of the needed ones in `found`."""

    def __init__(self, by_file: ByFile, files: CountedFiles, whole: np.ndarray) -> None:
        self._by_file, self._files, self._whole = by_file, files, whole
        self._begin = by_file.begin
        self._several = (files.opens > 1) & ~whole
        self.found: list[np.ndarray] = []

    def look_at(self, numbers: np.ndarray) -> None:
        """Search the next operations."""
        file = self._by_file.file_of(numbers)
        self.found += [self._latest(numbers, file), numbers[self._whole[file]]]
        rows = np.flatnonzero(self._several[file] & (numbers > self._begin[file]))
        if len(rows):
            chosen = self._begins(numbers[rows], file[rows])
            self.found += [chosen, chosen - 1]

    def _latest(self, numbers: np.ndarray, file: np.ndarray) -> np.ndarray:
        """The operation of each file that ends last."""
        end = self._by_file.values("end_ns", numbers)
        first = np.flatnonzero(np.append(True, file[1:] != file[:-1]))
        latest = np.repeat(np.maximum.reduceat(end, first), np.diff(np.append(first, len(file))))
        rows = np.flatnonzero(end == latest)
        return numbers[rows[np.unique(file[rows], return_index=True)[1]]]

    def _begins(self, numbers: np.ndarray, file: np.ndarray) -> np.ndarray:
        """The operations that may begin a pass over the file: the most likely ones, as many as there are opens."""
        files, value = self._files, self._by_file.values
        start = value("start_ns", numbers)
        between = (start > files.open_start[file]) & (~files.own[file] | (start < files.open_end[file]))
        numbers, file, start = numbers[between], file[between], start[between]
        offset, before = value("offset", numbers), numbers - 1
        returns = (offset < value("offset", before) + value("length", before)) & (
            offset <= value("offset", self._begin[file])
        )
        gap = start - value("end_ns", before)
        order = np.lexsort((-gap, ~returns, file))
        return numbers[order[number_in_group(file[order]) < files.opens[file[order]]]]
