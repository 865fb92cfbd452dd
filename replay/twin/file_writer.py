"""Writes the files of a twin data set in parallel, each under a temporary name until it is whole."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from threading import Event, Lock

from replay.twin.containment import Target, lstat, refusal, split, unlink
from replay.twin.data_set import TwinFile
from traces.errors import TargetError, UsageError
from traces.units import MIB

SYNC_BYTES = 64 * MIB
"""Files from this size on are synced one by one, so that progress does not run ahead of the disk."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), from several threads but never by two at once."""


def temporary_name(name: bytes) -> bytes:
    """The name of a file while it is written: no placement has this name, and it is never too long."""
    return b".%~" + hashlib.blake2b(name, digest_size=8).hexdigest().encode() + b".part"


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


def _write_file(
    target: Target,
    file: TwinFile,
    *,
    sparse: bool,
    replaces: bool,
    wrote: Callable[[int], None],
    placed: Callable[[TwinFile], None],
    stop: Event,
) -> None:
    """Write one whole file and report it to `placed`, or leave nothing. Raises: TargetError, _Stopped."""
    directory_path, name = split(file.path)
    temporary = temporary_name(name)
    try:
        if stop.is_set():
            raise _Stopped
        with target.made_directory(directory_path) as directory:
            unlink(directory, temporary)  # of a staging that was killed
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o666, dir_fd=directory)
            try:
                _fill(fd, file, sparse=sparse, wrote=wrote, stop=stop)
                if not replaces and lstat(directory, name) is not None:
                    raise foreign(target, file.path)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                placed(file)
            except BaseException:
                with suppress(OSError):
                    unlink(directory, temporary)
                raise
            finally:
                os.close(fd)
    except OSError as error:
        raise refusal(error, f"write {target.shown(file.path)}") from error


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
) -> None:
    """Write `files`; at the end all are on the disk.

    `sparse` and `replaced` (file ids): to be a hole; to take the place of a file of ours. `placed` is called from the
    writing threads with each file that has its place: however the writing ends, also by an interrupt, it was
    called for every such file, and no temporary file is left. Raises: TargetError, UsageError.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers {workers}: give at least 1")
    total = sum(file.size for file in files if file.file_id not in sparse)
    counter, stop = _Progress(total, progress), Event()
    with ThreadPoolExecutor(workers or default_workers(), thread_name_prefix="stage") as pool:
        futures: list[Future[None]] = []
        try:
            for file in files:
                holes, replaces = file.file_id in sparse, file.file_id in replaced
                write = partial(_write_file, target, file, sparse=holes, replaces=replaces)
                futures.append(pool.submit(write, wrote=counter.add, placed=placed, stop=stop))
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    try:
        sync_file_system(target.fd)  # small files at once instead of one by one
    except OSError as error:
        raise refusal(error, f"write out the files under {target.shown('')}") from error


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
