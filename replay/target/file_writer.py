"""Writes the files of a twin data set in parallel, large ones under a temporary name until they are whole.

A thread takes files of one directory at a time and holds the directory open: making a small file costs as much as
finding its directory.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread, get_ident
from typing import Protocol

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.containment import Target, lstat, refusal, split, unlink
from dxt_replay.replay.target.directory_batches import DirectoryBatch, FilesByDirectory
from dxt_replay.replay.target.path_columns import by_directory
from dxt_replay.replay.target.small_files import SMALL_BYTES, write_small_files
from dxt_replay.replay.target.twin_files import TwinFile, TwinFiles, total
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.units import MIB

SYNC_BYTES = 64 * MIB
"""Files from this size on are synced one by one, so that progress does not run ahead of the disk."""

BATCH_FILES = 1024
BATCH_BYTES = 16 * MIB
"""Most files, and bytes of several files, that a thread takes at a time from one directory."""

SMALL_FILES = 256
"""Most small files that are made in one call, after which a thread looks whether it is to stop."""

PATIENCE_S = 10.0
"""Seconds that the writing threads may take to end after an error or an interrupt. Beyond it a call of theirs hangs."""

JOIN_S = 0.02
"""Seconds between two looks of the thread that waits for them."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), from several threads but never by two at once."""


_TEMPORARY = b".%~"


def temporary_name(name: bytes) -> bytes:
    """The name of a file while it is written: no placement has this name, and it is never too long."""
    return _TEMPORARY + hashlib.blake2b(name, digest_size=8).hexdigest().encode() + b".part"


def is_temporary(name: bytes) -> bool:
    """Whether it may be a name that `temporary_name` makes."""
    return name.startswith(_TEMPORARY)


class Limit(Protocol):
    """The longest time that the writing may take (`replay.ranks.time_limit`).

    `where`: called where the time is over and this process does not come back; says what it was doing.
    """

    where: Callable[[], str | None]

    @property
    def expired(self) -> bool:
        """Whether the time is over."""

    def message(self, standing: str | None = None) -> str:
        """The error for that. `standing`: what hangs."""


class _NoLimit:
    """Any time."""

    where: Callable[[], str | None]
    expired = False

    def message(self, standing: str | None = None) -> str:
        raise AssertionError("never expires")


class _Stopped(Exception):
    """Another thread failed, or the user interrupted."""


class _Progress:
    """Counts bytes over the threads."""

    def __init__(self, total: int, callback: Progress | None) -> None:
        self._lock = Lock()
        self._done = 0
        self._total = total
        self._callback = callback

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._callback is not None:
                self._callback(self._done, self._total)


class _Batches:
    """Files of one directory each, given out one batch after the other; `bounds` of the batches in `files.order`."""

    def __init__(self, files: FilesByDirectory, bounds: np.ndarray) -> None:
        self._files, self._bounds = files, bounds
        self._next = itertools.count()

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def take(self) -> DirectoryBatch | None:
        """The next batch; None after the last. Threads may call it at once."""
        number = next(self._next)
        return None if number >= len(self) else self._files.batch(*self._bounds[number : number + 2].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """What the threads of one staging share. `small`: bool by row of `files`, written in place and many in one call."""

    target: Target
    files: TwinFiles
    sparse: np.ndarray
    replaced: np.ndarray
    small: np.ndarray
    placed: np.ndarray
    batches: _Batches
    counter: _Progress
    stop: Event
    current: dict[int, tuple[np.ndarray, np.ndarray, float]] = field(default_factory=dict)
    """Thread -> rows of the files that it writes, how many are whole, and since when (s of the monotonic clock)."""

    def standing(self) -> str:
        """The file that has been written for longest."""
        writes = sorted(self.current.copy().values(), key=lambda write: write[2])
        if not writes:
            return "no file was being written"
        rows, whole, since = writes[0]
        shown = self._shown(rows[min(int(whole[0]), len(rows) - 1)])
        return f"{shown} has been written for {time.monotonic() - since:.1f} s"

    def _shown(self, row: int) -> str:
        return self.target.shown(self.files.path[int(row)].as_py())

    def write_batches(self) -> None:
        """Write batches until none is left. Raises: TargetError, _Stopped."""
        while (batch := self.batches.take()) is not None:
            self._write_batch(batch)
        self.current.pop(get_ident(), None)

    def _write_batch(self, batch: DirectoryBatch) -> None:
        """Write files of one directory, which is looked up once and then held open."""
        is_small = self.small[batch.rows]
        small = batch.part(is_small)
        try:
            with self.target.made_directory(batch.directory) as directory:
                for begin in range(0, len(small.rows), SMALL_FILES):
                    self._go_on()
                    self._write_small(directory, small.part(slice(begin, begin + SMALL_FILES)))
                for row in batch.rows[~is_small].tolist():
                    self._go_on()
                    self._write_file(directory, row, self.files[row])
        except OSError as error:
            raise refusal(error, f"write {self._shown(batch.rows[0])}") from error

    def _go_on(self) -> None:
        """Raises: _Stopped."""
        if self.stop.is_set():
            raise _Stopped

    def _write_small(self, directory: int, batch: DirectoryBatch) -> None:
        """Make new small files in one call. Raises: TargetError."""
        rows, done = batch.rows, np.zeros(1, dtype=np.int64)
        sizes, record_ids = self.files.size[rows], self.files.record_id[rows]
        self.current[get_ident()] = rows, done, time.monotonic()
        code = write_small_files(directory, batch.names, sizes, record_ids, done)
        whole = int(done[0])
        self.placed[rows[:whole]] = True
        self.counter.add(int(sizes[:whole].sum()))
        if code == errno.EEXIST:
            raise foreign(self.target, self.files.path[int(rows[whole])].as_py())
        if code:
            error = OSError(code, os.strerror(code))
            raise refusal(error, f"write {self._shown(rows[whole])}") from error

    def _write_file(self, directory: int, row: int, file: TwinFile) -> None:
        """Write one whole file, or leave nothing. Raises: TargetError, OSError, _Stopped."""
        _, name = split(file.path)
        self.current[get_ident()] = np.array([row]), np.zeros(1, dtype=np.int64), time.monotonic()
        temporary = temporary_name(name)
        fd = _create(directory, temporary)
        try:
            try:
                _fill(fd, file, sparse=bool(self.sparse[row]), wrote=self.counter.add, stop=self.stop)
            finally:
                os.close(fd)  # before it has its place: NFS reports a full disk here
            if not self.replaced[row] and lstat(directory, name) is not None:
                raise foreign(self.target, file.path)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            self.placed[row] = True
        except BaseException:
            with suppress(OSError):
                unlink(directory, temporary)
            raise


def _create(directory: int, name: bytes) -> int:
    """Descriptor of a new file, also where a staging that was killed left one of this name. Raises: OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o666, dir_fd=directory)
    except FileExistsError:
        unlink(directory, name)
        return os.open(name, flags, 0o666, dir_fd=directory)


def _fill(fd: int, file: TwinFile, *, sparse: bool, wrote: Callable[[int], None], stop: Event) -> None:
    if sparse:
        os.ftruncate(fd, file.size)
        return
    for count in file.stager.fill(fd, file.record_id, file.size):
        wrote(count)
        if stop.is_set():
            raise _Stopped
    if file.size >= SYNC_BYTES:
        os.fsync(fd)


def foreign(target: Target, path: str) -> TargetError:
    """The error for a file at a placement that no manifest lists."""
    return TargetError(
        f"{target.shown(path)} exists and was not made by dxt-replay: move it away or choose another --target"
    )


def _batches(files: TwinFiles, threads: int) -> _Batches:
    """Files of one directory, some BATCH_BYTES together or one large file; few files are spread over the threads.

    One thread after the other: several that make files in one directory wait for its lock more than they work.
    """
    by_place = FilesByDirectory.of(files.path)
    most_files = max(1, min(BATCH_FILES, len(files) // threads))
    size, begins = files.size[by_place.order], by_place.begins()
    firsts = np.flatnonzero(begins)
    first = np.repeat(firsts, np.diff(np.append(firsts, len(size))))
    counted = np.minimum(size, BATCH_BYTES + 1)
    before = np.cumsum(counted) - counted
    part = np.maximum((np.arange(len(size)) - first) // most_files, (before - before[first]) // BATCH_BYTES)
    large = size > BATCH_BYTES
    begins[1:] |= (part[1:] != part[:-1]) | large[1:] | large[:-1]
    return _Batches(by_place, np.append(np.flatnonzero(begins), len(size)))


def default_workers() -> int:
    """Threads that keep a disk busy: writing waits more than it computes."""
    return min(16, 2 * len(os.sched_getaffinity(0)))


def write_files(
    target: Target,
    files: TwinFiles,
    *,
    sparse: np.ndarray,
    replaced: np.ndarray,
    placed: np.ndarray,
    workers: int | None,
    progress: Progress | None,
    limit: Limit | None = None,
) -> None:
    """Write `files`; at the end all are on the disk.

    `sparse`, `replaced`: bool by row, to be a hole; to take the place of a file of ours. `placed`: bool by row, set for
    each file that has its place: however the writing ends, also by an interrupt, it is set for every such file,
    and no temporary file is left, unless a call does not return. Raises: TargetError, UsageError.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers {workers}: give at least 1")
    threads = workers or default_workers()
    writing = _Writing(
        target=target,
        files=files,
        sparse=sparse,
        replaced=replaced,
        small=~sparse & ~replaced & files.made_by("may_start_in_place") & (files.size <= SMALL_BYTES),
        placed=placed,
        batches=_batches(files, threads),
        counter=_Progress(total(files.size[~sparse]), progress),
        stop=Event(),
    )
    _write_in_threads(writing, min(threads, len(writing.batches)), limit or _NoLimit())
    try:
        sync_file_system(target.fd)  # small files at once instead of one by one
    except OSError as error:
        raise refusal(error, f"write out the files under {target.shown('')}") from error


def _write_in_threads(writing: _Writing, count: int, limit: Limit) -> None:
    """Write all batches in `count` threads. Raises: the first error; TargetError where the time is over, or where a
    call does not return after an error or an interrupt."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            writing.write_batches()
        except BaseException as error:
            errors.append(error)
            writing.stop.set()

    limit.where = writing.standing
    # Daemons: one that hangs in a call must not keep the program from ending, as a pool's threads would.
    threads = [Thread(target=work, name=f"stage-{number}", daemon=True) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        while (alive := [thread for thread in threads if thread.is_alive()]) and not errors:
            if limit.expired:
                raise TargetError(limit.message(writing.standing()))
            alive[0].join(JOIN_S)
        _join(writing, threads)
    except BaseException:
        writing.stop.set()
        if not limit.expired:
            _join(writing, threads)
        raise
    if errors:
        raise errors[0]


def _join(writing: _Writing, threads: list[Thread]) -> None:
    """Wait for threads that were stopped, or have nothing more to do. Raises: TargetError where one does not end."""
    until = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        raise TargetError(f"staging was stopped, but a call does not return: {writing.standing()}")


def sync_file_system(fd: int) -> None:
    """Have the file system of an open file or directory write out what it holds back: syncfs(2). Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def make_directories(target: Target, paths: pa.LargeStringArray) -> None:
    """Make the directories that hold `paths`. Raises: TargetError."""
    for directory in sorted(by_directory(paths)[1]):
        with target.made_directory(directory):
            pass
