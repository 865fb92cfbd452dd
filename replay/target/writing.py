"""Writes the files of a twin data set in parallel.

A thread takes files of one directory at a time, small ones together, because a target makes many of them in one call.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Thread, get_ident
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.data_set import TwinFiles, total
from dxt_replay.replay.target.path_columns import directory_rows
from dxt_replay.replay.target.protocol import SMALL_BYTES, Target
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.units import MIB

if TYPE_CHECKING:
    from dxt_replay.replay.ranks.stopping import TimeLimit

SYNC_BYTES = 64 * MIB  # Files from this size on are synced one by one, so that progress does not run ahead of the disk
BATCH_FILES = 1024
BATCH_BYTES = 16 * MIB  # Most files, and bytes of several files, that a thread takes at a time from one directory
SMALL_FILES = 256  # Most small files that are made in one call, after which a thread looks whether it is to stop
PATIENCE_S = 10.0
"""Seconds that the writing threads may take to end after an error or an interrupt. Beyond it a call of theirs hangs."""

JOIN_S = 0.02  # Seconds between two looks of the thread that waits for them

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), from several threads but never by two at once."""


class _Stopped(Exception):
    """Another thread failed, or the user interrupted."""


class Writing:
    """One staging: `files` into `target`.

    `sparse`, `replaced`: bool by row, to be a hole; to take the place of a file of ours. `placed`: bool by row, set for
    each file that has its place: however the writing ends, also by an interrupt, it is set for every such file,
    and no temporary file is left, unless a call does not return. Raises: UsageError."""

    def __init__(
        self,
        target: Target,
        files: TwinFiles,
        sparse: np.ndarray,
        replaced: np.ndarray,
        workers: int | None = None,
        progress: Progress | None = None,
        limit: TimeLimit | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers {workers}: give at least 1")
        threads = workers or default_workers()
        self._target, self._files, self._sparse, self._replaced = target, files, sparse, replaced
        self._small = ~sparse & ~replaced & files.is_plain & (files.size <= SMALL_BYTES)
        self.placed = np.zeros(len(files), dtype=bool)
        self._batches = _batches(files, threads)
        self._threads = [
            # Daemons: one that hangs in a call must not keep the program from ending, as a pool's threads would.
            Thread(target=self._work, name=f"stage-{number}", daemon=True)
            for number in range(min(threads, len(self._batches)))
        ]
        self._next, self._stop, self._limit = itertools.count(), Event(), limit
        self._errors: list[BaseException] = []
        self._lock, self._progress, self._done, self._total = Lock(), progress, 0, total(files.size[~sparse])
        self._current: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}
        """Thread -> rows of the files that it writes, which of them are whole, and since when (s, monotonic clock)."""

    def run(self) -> None:
        """Write all files; at the end they are on the disk.

        Raises: the first error; TargetError where the time is over, or where a call does not return after an error or
        an interrupt."""
        limit = self._limit
        if limit is not None:
            limit.where = self._standing
        try:
            for thread in self._threads:
                thread.start()
            while (alive := [thread for thread in self._threads if thread.is_alive()]) and not self._errors:
                if limit is not None and limit.expired:
                    raise TargetError(limit.message(self._standing()))
                alive[0].join(JOIN_S)
            self._join()
        except BaseException:
            self._stop.set()
            if limit is None or not limit.expired:
                self._join()
            raise
        if self._errors:
            raise self._errors[0]
        self._target.sync()  # small files at once instead of one by one

    def _join(self) -> None:
        """Wait until stopped or finished threads have ended. Raises: TargetError if one hangs in a call."""
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise TargetError(f"staging was stopped, but a call does not return: {self._standing()}")

    def _standing(self) -> str:
        """The file that has been written for longest."""
        writes = sorted(self._current.copy().values(), key=lambda write: write[2])
        if not writes:
            return "no file was being written"
        rows, whole, since = writes[0]
        row = int(rows[min(int(whole.sum()), len(rows) - 1)])
        shown = self._target.shown(self._files.path[row].as_py())
        return f"{shown} has been written for {time.monotonic() - since:.1f} s"

    def _work(self) -> None:
        """Write batches until none is left."""
        try:
            while (number := next(self._next)) < len(self._batches):
                rows = self._batches[number]
                small, large = rows[self._small[rows]], rows[~self._small[rows]]
                for begin in range(0, len(small), SMALL_FILES):
                    self._write_small(small[begin : begin + SMALL_FILES])
                for row in large.tolist():
                    self._write_file(row)
            self._current.pop(get_ident(), None)
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def _begin(self, rows: np.ndarray) -> np.ndarray:
        """bool[rows]: complete files; none yet. Raises: _Stopped."""
        if self._stop.is_set():
            raise _Stopped
        whole = np.zeros(len(rows), dtype=bool)
        self._current[get_ident()] = rows, whole, time.monotonic()
        return whole

    def _write_small(self, rows: np.ndarray) -> None:
        """Make new small files in one call. Raises: TargetError, _Stopped."""
        whole, sizes = self._begin(rows), self._files.size[rows]
        try:
            self._target.put_many(self._files.path.take(pa.array(rows)), sizes, self._files.record_id[rows], whole)
        finally:
            self.placed[rows[whole]] = True
            self._count(int(sizes[whole].sum()))

    def _write_file(self, row: int) -> None:
        """Write one complete file, or leave none. Raises: TargetError, _Stopped."""
        self._begin(np.array([row]))
        path, size, replace = self._files.path[row].as_py(), int(self._files.size[row]), bool(self._replaced[row])
        if self._sparse[row]:
            self._target.put_hole(path, size, replace=replace)
        else:
            self._target.put(path, self._blocks(row), replace=replace, sync=size >= SYNC_BYTES)
        self.placed[row] = True

    def _blocks(self, row: int) -> Iterator[memoryview]:
        """The blocks of a file, counted as they are written. Raises: _Stopped."""
        for block in self._files.content(row).blocks():
            yield block
            self._count(len(block))
            if self._stop.is_set():
                raise _Stopped

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)


def _batches(files: TwinFiles, threads: int) -> list[np.ndarray]:
    """Rows of files of one directory, some BATCH_BYTES together, or less beside one large file; few are spread over the
    threads.

    Several threads that make files in one directory at a time wait for its lock more than they work."""
    found: list[np.ndarray] = []
    for _, rows in directory_rows(files.path, max(1, min(BATCH_FILES, len(files) // threads))):
        size = np.minimum(files.size[rows], BATCH_BYTES)
        part = (np.cumsum(size) - size) // BATCH_BYTES
        found += np.split(rows, np.flatnonzero(np.diff(part)) + 1)
    return found


def in_threads(work: Callable[[_Task], _Answer], tasks: Iterable[_Task]) -> list[_Answer]:
    """The answers in the order of the tasks, for work that runs without the interpreter's lock."""
    with ThreadPoolExecutor(default_workers()) as pool:
        try:
            return list(pool.map(work, tasks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def default_workers() -> int:
    """A number of threads that keeps a disk busy: a thread that writes waits for the disk most of the time."""
    return min(16, 2 * len(os.sched_getaffinity(0)))
