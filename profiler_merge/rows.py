"""One row from a decoder to the store, and the sort that brings any number of rows into the store's order.

`ROW` is a NumPy structured type, so rows are selected, joined, cut and mapped from files as every array is. A rank with
more rows than memory should hold is an array in a file, of which one block after the other is used.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.darshan._overlap_lanes import OverlapLanes
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import TRACED
from dxt_replay.traces.stable_order import stable_order

ROW = np.dtype(
    [(name, np.int64) for name in ("offset", "length", "start_ns", "end_ns", "tie")]
    + [("thread", np.uint64)]
    + [(name, np.int32) for name in ("rank", "lane", "file", "other_file")]
    + [("open_flags", np.int16)]
    + [(name, np.int8) for name in ("op", "api", "origin")],
    align=True,
)
"""An operation; names and codes are those of `traces.schema.OPS_SCHEMA`.

file, other_file: numbers of files; -1 for no other file. open_flags: -1 where they are not known. thread: any number
that is equal for the operations of one thread, 0 where threads are not known. tie: orders made rows that start
together."""

NO_FILE = -1

MOST_ROWS = 1 << 20
"""Rows that are sorted in memory; more go through files."""

BLOCK_ROWS = 1 << 18

_EVERY = 512
_COLUMNS = ("rank", "lane", "op", "api", "offset", "length", "start_ns", "end_ns", "origin", "open_flags")


def rows_of(columns: Mapping[str, np.ndarray | int], count: int, **same: int) -> np.ndarray:
    """`count` rows with these columns, and these values in all rows."""
    rows = np.empty(count, dtype=ROW)
    fill(rows, columns, **same)
    return rows


def fill(rows: np.ndarray, columns: Mapping[str, np.ndarray | int], **same: int) -> None:
    """Give the rows these columns, and these values in all of them."""
    _words(rows)[:] = 0
    rows["other_file"] = rows["open_flags"] = -1
    for name, values in {**columns, **same}.items():
        rows[name] = values


def columns_of(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows as columns of `OPS_SCHEMA` except step; an unknown `other_file_id` or `open_flags` is -1."""
    columns = {name: np.ascontiguousarray(rows[name]) for name in _COLUMNS}
    return {**columns, "file_id": rows["file"].copy(), "other_file_id": rows["other_file"].copy()}


def _words(rows: np.ndarray) -> np.ndarray:
    """Rows as int64 (n, words): NumPy copies these several times as fast as structured rows."""
    return np.ascontiguousarray(rows).view(np.int64).reshape(-1, ROW.itemsize // 8)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of all parts, one after the other; a single part is not copied."""
    parts = [part for part in parts if len(part)] or [np.empty(0, dtype=ROW)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([_words(part) for part in parts]).view(ROW).reshape(-1)


def in_order(rows: np.ndarray) -> np.ndarray:
    """The rows by rank and start. Of rows that start together the longest comes first, after made ones of no length,
    which prepare the others."""
    rank, start_ns = (np.ascontiguousarray(rows[name]) for name in ("rank", "start_ns"))
    ahead = rank[1:] > rank[:-1]
    ahead |= (rank[1:] == rank[:-1]) & (start_ns[1:] > start_ns[:-1])
    if ahead.all():
        return rows
    order = np.argsort(start_ns, kind="stable")  # timsort: a few runs in order take a few comparisons a row
    if rank.min() < rank.max():
        order = order[stable_order(rank[order])]
    same = (start_ns[order[1:]] == start_ns[order[:-1]]) & (rank[order[1:]] == rank[order[:-1]])
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        some = rows[order[tied]]
        lasts = (some["origin"] == TRACED) | (some["start_ns"] != some["end_ns"])
        keys = (some["tie"], -some["end_ns"], lasts, some["start_ns"], some["rank"])
        order[tied] = order[tied][np.lexsort(keys)]
    return rows if (order[1:] > order[:-1]).all() else np.take(_words(rows), order, axis=0).view(ROW).reshape(-1)


class Spool:
    """Takes rows in any order and returns all of them in order; more than `most` go through unnamed files in
    `folder`."""

    def __init__(self, folder: Path | None, most: int = MOST_ROWS) -> None:
        self._folder, self._most = folder, most
        self._waiting, self._count = np.empty(0, dtype=ROW), 0
        self._runs: list[tuple[np.ndarray, list[tuple[int, int]]]] = []
        """Sorted rows in files, each with the rank and start of every _EVERY-th row."""

    def room(self, count: int) -> np.ndarray:
        """Room for `count` further rows, to be filled before the next call. Raises: TargetError when the disk
        refuses."""
        if self._count + count > self._most and self._count:
            self._end_run()
        if self._count + count > len(self._waiting):
            self._waiting = np.empty(max(self._most, count), dtype=ROW)  # memory is taken as it is filled
        self._count += count
        return self._waiting[self._count - count : self._count]

    def rows(self) -> np.ndarray:
        """All rows, in a file (`in_file`) if they are more than `most`; changes of these stay. To be called once."""
        if not self._runs and self._count <= self._most:
            return in_order(self._waiting[: self._count])
        self._end_run()
        self._waiting = np.empty(0, dtype=ROW)
        return self._runs[0][0] if len(self._runs) == 1 else self._in_file(self._merged())

    def _end_run(self) -> None:
        rows, self._count = in_order(self._waiting[: self._count]), 0
        sample = zip(rows["rank"][::_EVERY].tolist(), rows["start_ns"][::_EVERY].tolist(), strict=True)
        self._runs.append((self._in_file([rows]), list(sample)))

    def _merged(self) -> Iterator[np.ndarray]:
        """All runs as one, in stretches that samples of the runs divide."""
        every = sorted(key for _, sample in self._runs for key in sample)
        limits = sorted(set(every[:: max(min(self._most, BLOCK_ROWS) // _EVERY, 1)]))[1:]
        cuts = []
        for run, sample in self._runs:
            inside = []
            for limit in limits:
                behind = bisect_left(sample, limit) * _EVERY
                near = run[max(behind - _EVERY, 0) : behind]
                keys = list(zip(near["rank"].tolist(), near["start_ns"].tolist(), strict=True))
                inside.append(max(behind - _EVERY, 0) + bisect_left(keys, limit))
            cuts.append(list(pairwise([0, *inside, len(run)])))
        for stretch in zip(*cuts, strict=True):
            parts = [run[slice(*cut)] for (run, _), cut in zip(self._runs, stretch, strict=True)]
            yield in_order(joined(parts))
            release(*(run for run, _ in self._runs))

    def _in_file(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        count = 0
        with _refusals(self._folder), tempfile.TemporaryFile(dir=self._folder) as file:
            for part in parts:
                file.write(np.ascontiguousarray(part).view(np.uint8).data)
                count += len(part)
            file.flush()
            return np.memmap(file, dtype=ROW, mode="r+", shape=(count,))


def in_file(rows: np.ndarray) -> bool:
    """Whether rows are in a file, because they are many."""
    return isinstance(rows, np.memmap)


def blocks(rows: np.ndarray, most: int = BLOCK_ROWS) -> Iterator[slice]:
    """Places of rows in order, about `most` at a time; rows of a rank that start together stay together.

    Memory: of rows in a file, one block.
    """
    begin = 0
    while begin < len(rows):
        end = min(begin + most, len(rows))
        rank, start_ns = (rows[name][end - 1] for name in ("rank", "start_ns"))
        while end < len(rows) and rows["rank"][end] == rank and rows["start_ns"][end] == start_ns:
            end += 1
        yield slice(begin, end)
        release(rows)
        begin = end


def release(*arrays: np.ndarray) -> None:
    """Release the memory of arrays in files; their contents stay in the files."""
    for each in arrays:
        pages = getattr(each, "_mmap", None)
        if isinstance(pages, mmap.mmap):
            pages.madvise(mmap.MADV_DONTNEED)


@contextmanager
def _refusals(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetError(
            f"cannot keep the operations of a large rank in files under {folder or tempfile.gettempdir()}: "
            f"{error.strerror or error}; free space there (some {2 * ROW.itemsize} bytes an operation), or choose "
            "another place for the output"
        ) from error


def number_lanes(rows: np.ndarray, *, threaded: bool, most: int = BLOCK_ROWS) -> None:
    """Give traced rows, in order, their lanes, from 0 in each rank.

    A lane is a thread, numbered by first appearance. Without threads it is one of the fewest on which no operations of
    a rank and interface overlap, as `OverlapLanes`; the interfaces nest in each other, so overlap across them does not
    tell threads apart, and each has the lanes after those of the one below.
    """
    lanes: dict[tuple[int, int], int] = {}
    used: dict[int, int] = {}
    layers: dict[tuple[int, int], OverlapLanes] = {}
    for part in blocks(rows, most):
        block = rows[part]
        if threaded:
            found = distinct_rows(block["rank"], block["thread"].view(np.int64))
            numbers = np.empty(len(found.values), dtype=np.int32)
            for place in np.argsort(found.first).tolist():
                rank, thread = found.values[place].tolist()
                if (rank, thread) not in lanes:
                    lanes[rank, thread] = used.get(rank, 0)
                    used[rank] = lanes[rank, thread] + 1
                numbers[place] = lanes[rank, thread]
            block["lane"] = numbers[found.inverse]
            continue
        cuts = [0, *(np.flatnonzero(np.diff(block["rank"])) + 1).tolist(), len(block)]
        for begin, end in pairwise(cuts):
            of_rank = block[begin:end]
            for api in np.unique(of_rank["api"]).tolist():
                mine = np.flatnonzero(of_rank["api"] == api)
                layer = int(of_rank["rank"][0]), api
                following = layers.setdefault(layer, OverlapLanes()).following
                of_rank["lane"][mine] = own = following(of_rank["start_ns"][mine], of_rank["end_ns"][mine])
                lanes[layer] = max(lanes.get(layer, 0), int(own.max()) + 1)
    if threaded or len({api for _, api in lanes}) < 2:
        return
    first = np.zeros((len({rank for rank, _ in lanes}), 1 + max(api for _, api in lanes)), dtype=np.int32)
    ranks = np.unique(np.array([rank for rank, _ in lanes]))
    for (rank, api), count in lanes.items():
        first[np.searchsorted(ranks, rank), api + 1 :] += count
    for part in blocks(rows, most):
        rows["lane"][part] += first[np.searchsorted(ranks, rows["rank"][part]), rows["api"][part]]


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep up to 256 MiB of freed memory for the next arrays, also those of Arrow: pages that
    come back from the system are cleared, which takes a tenth of the time of a merge."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        library.mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD
        pa.set_memory_pool(pa.system_memory_pool())
