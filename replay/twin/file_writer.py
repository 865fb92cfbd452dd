"""Writes the files of a twin data set in parallel, large ones under a temporary name until they are whole.

A thread takes files of one directory at a time and holds the directory open: making a small file costs as much as
finding its directory.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread, get_ident
from typing import Protocol

import numpy as np

from replay.twin.containment import Target, lstat, refusal, split, unlink
from replay.twin.data_set import TwinFile
from replay.twin.small_files import SMALL_BYTES, write_small_files
from traces.errors import TargetError, UsageError
from traces.units import MIB

SYNC_BYTES = 64 * MIB
"""Files from this size on are synced one by one, so that progress does not run ahead of the disk."""

BATCH_FILES = 1024
BATCH_BYTES = 16 * MIB
"""Most files, and bytes of several files, that a thread takes at a time from one directory."""

SMALL_FILES = 64
"""Most small files that are made in one call, after which a thread looks whether it is to stop."""

PATIENCE_S = 10.0
"""Seconds that the writing threads may take to end after an error or an interrupt. Beyond it a call of theirs hangs."""

JOIN_S = 0.02
"""Seconds between two looks of the thread that waits for them."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), from several threads but never by two at once."""


def temporary_name(name: bytes) -> bytes:
    """The name of a file while it is written: no placement has this name, and it is never too long."""
    return b".%~" + hashlib.blake2b(name, digest_size=8).hexdigest().encode() + b".part"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """What the threads of one staging share. `batches`: files of one directory each, taken from the left."""

    target: Target
    sparse: frozenset[int]
    replaced: frozenset[int]
    placed: Callable[[TwinFile], None]
    batches: deque[Sequence[TwinFile]]
    counter: _Progress
    stop: Event
    current: dict[int, tuple[Sequence[TwinFile], np.ndarray, float]] = field(default_factory=dict)
    """Thread -> the files that it writes, how many of them are whole, and since when (s of the monotonic clock)."""

    def standing(self) -> str:
        """The file that has been written for longest."""
        writes = sorted(self.current.copy().values(), key=lambda write: write[2])
        if not writes:
            return "no file was being written"
        files, whole, since = writes[0]
        file = files[min(int(whole[0]), len(files) - 1)]
        return f"{self.target.shown(file.path)} has been written for {time.monotonic() - since:.1f} s"

    def write_batches(self) -> None:
        """Write batches until none is left. Raises: TargetError, _Stopped."""
        while True:
            try:
                batch = self.batches.popleft()
            except IndexError:
                self.current.pop(get_ident(), None)
                return
            self._write_batch(batch)

    def _write_batch(self, batch: Sequence[TwinFile]) -> None:
        """Write files of one directory, which is looked up once and then held open."""
        file = batch[0]
        small = [each for each in batch if self._is_small(each)]
        try:
            with self.target.made_directory(split(file.path)[0]) as directory:
                for begin in range(0, len(small), SMALL_FILES):
                    self._go_on()
                    self._write_small(directory, small[begin : begin + SMALL_FILES])
                for file in batch if len(small) < len(batch) else ():
                    if not self._is_small(file):
                        self._go_on()
                        self._write_file(directory, file)
        except OSError as error:
            raise refusal(error, f"write {self.target.shown(file.path)}") from error

    def _go_on(self) -> None:
        """Raises: _Stopped."""
        if self.stop.is_set():
            raise _Stopped

    def _is_small(self, file: TwinFile) -> bool:
        new = file.file_id not in self.sparse and file.file_id not in self.replaced
        return new and file.stager.may_start_in_place and file.size <= SMALL_BYTES

    def _write_small(self, directory: int, files: Sequence[TwinFile]) -> None:
        """Make new small files in one call and report them to `placed`. Raises: TargetError."""
        names = [split(file.path)[1] for file in files]
        sizes = np.array([file.size for file in files], dtype=np.int64)
        record_ids = np.array([file.record_id for file in files], dtype=np.uint64)
        done = np.zeros(1, dtype=np.int64)
        self.current[get_ident()] = files, done, time.monotonic()
        code = write_small_files(directory, names, sizes, record_ids, done)
        whole = int(done[0])
        for file in files[:whole]:
            self.placed(file)
        self.counter.add(int(sizes[:whole].sum()))
        if code == errno.EEXIST:
            raise foreign(self.target, files[whole].path)
        if code:
            error = OSError(code, os.strerror(code))
            raise refusal(error, f"write {self.target.shown(files[whole].path)}") from error

    def _write_file(self, directory: int, file: TwinFile) -> None:
        """Write one whole file and report it to `placed`, or leave nothing. Raises: TargetError, OSError, _Stopped."""
        _, name = split(file.path)
        self.current[get_ident()] = [file], np.zeros(1, dtype=np.int64), time.monotonic()
        temporary = temporary_name(name)
        fd = _create(directory, temporary)
        try:
            try:
                _fill(fd, file, sparse=file.file_id in self.sparse, wrote=self.counter.add, stop=self.stop)
            finally:
                os.close(fd)  # before it has its place: NFS reports a full disk here
            if file.file_id not in self.replaced and lstat(directory, name) is not None:
                raise foreign(self.target, file.path)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            self.placed(file)
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


def _batches(files: Sequence[TwinFile], threads: int) -> deque[Sequence[TwinFile]]:
    """Files of one directory and at most BATCH_BYTES together, or one file; a few files are spread over the threads.

    One thread after the other: several that make files in one directory wait for its lock more than they work.
    """
    by_directory: dict[str, list[TwinFile]] = {}
    for file in files:
        by_directory.setdefault(split(file.path)[0], []).append(file)
    most_files = max(1, min(BATCH_FILES, len(files) // threads))
    batches: deque[Sequence[TwinFile]] = deque()
    for members in by_directory.values():
        batch: list[TwinFile] = []
        batch_bytes = 0
        for file in members:
            if batch and (len(batch) == most_files or batch_bytes + file.size > BATCH_BYTES):
                batches.append(batch)
                batch, batch_bytes = [], 0
            batch.append(file)
            batch_bytes += file.size
        batches.append(batch)
    return batches


def default_workers() -> int:
    """Threads that keep a disk busy: writing waits more than it computes."""
    return min(16, 2 * len(os.sched_getaffinity(0)))


def write_files(
    target: Target,
    files: Sequence[TwinFile],
    *,
    sparse: frozenset[int],
    replaced: frozenset[int],
    placed: Callable[[TwinFile], None],
    workers: int | None,
    progress: Progress | None,
    limit: Limit | None = None,
) -> None:
    """Write `files`; at the end all are on the disk.

    `sparse` and `replaced` (file ids): to be a hole; to take the place of a file of ours. `placed` is called from the
    writing threads with each file that has its place: however the writing ends, also by an interrupt, it was
    called for every such file, and no temporary file is left, unless a call does not return. Raises: TargetError,
    UsageError.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers {workers}: give at least 1")
    total = sum(file.size for file in files if file.file_id not in sparse)
    threads = workers or default_workers()
    writing = _Writing(
        target=target,
        sparse=sparse,
        replaced=replaced,
        placed=placed,
        batches=_batches(files, threads),
        counter=_Progress(total, progress),
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


def _join(writing: _Writing, threads: Sequence[Thread]) -> None:
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


def make_directories(target: Target, paths: Iterable[str]) -> None:
    """Make the directories that hold `paths`. Raises: TargetError."""
    for directory in sorted({split(path)[0] for path in paths}):
        with target.made_directory(directory):
            pass
