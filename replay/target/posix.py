"""A directory of a file system as a target: files by descriptors of their directories, many in one compiled call.

A large file is written under a temporary name and renamed when it is complete. A small file has its own name from the
start and is written at once, because a temporary name and a rename would double its cost. A small file that a crash cut
short is recognised by the manifest, which lists it as planned, and by its bytes, the start of its noise
(`replay.target.stage_plan`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target import _small_files
from dxt_replay.replay.target.containment import (
    DIRECTORY,
    OpenDirectory,
    close_unwritten,
    lstat,
    refuse_mounts,
    resolve_target,
    split,
    unlink,
)
from dxt_replay.replay.target.content import noise_block
from dxt_replay.replay.target.path_columns import DirectoryBatch, by_directory, directory_batches
from dxt_replay.replay.target.placement import is_twin_root
from dxt_replay.replay.target.protocol import Found, Reader, Room, foreign, refusal
from dxt_replay.replay.target.writing import default_workers
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

LOCK_NAME = ".dxt-replay-lock"
"""File in a target that is there, and locked, while a process stages into the target or replays on it."""

RELEASE_PATIENCE_S = 5.0
"""Seconds that removing this file may take. Then the process goes on; the kernel releases the lock when it ends."""

REMOVED_FILES = 1 << 14
LOOKED_AT_FILES = 1 << 16
"""Most files of one directory that are removed, or looked at, in one call, in which no signal is handled."""

_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO must not wait for its other end."""

_TEMPORARY = b".%~"


def temporary_name(name: bytes) -> bytes:
    """The name of a file while it is written: no placement has this name, and it is never too long."""
    return _TEMPORARY + hashlib.blake2b(name, digest_size=8).hexdigest().encode() + b".part"


@dataclass(frozen=True, slots=True)
class PosixReader:
    """An open file, by its descriptor."""

    fd: int

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read_into(self, into: memoryview, offset: int) -> int:
        done = 0
        while done < len(into) and (count := os.preadv(self.fd, [into[done:]], offset + done)):
            done += count
        return done

    def data_from(self, offset: int) -> int:
        try:
            return os.lseek(self.fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size
            raise


class PosixTarget(OpenDirectory):
    """A directory, from which no path leads out."""

    __slots__ = ()

    @property
    def where(self) -> Path:
        return self.path

    @property
    def base(self) -> bytes:
        return os.fsencode(self.path / "x")[:-1]

    @property
    def exists(self) -> bool:
        return self.fd is not None

    def room(self) -> Room:
        """The room of the file system of the nearest existing directory."""
        path = self.path
        try:
            while not path.exists():
                path = path.parent
            space, device = os.statvfs(path), path.stat().st_dev
        except OSError as error:
            raise refusal(error, f"look at the file system of {printable(path)}") from error
        return Room(
            free_bytes=space.f_bavail * space.f_frsize if space.f_blocks else None,
            free_files=space.f_favail if space.f_files else None,
            block_bytes=space.f_frsize or 1,
            store=device,
        )

    def stat(self, paths: pa.LargeStringArray) -> Found:
        seen = np.zeros((len(paths), 3), dtype=np.int64)
        for batch in directory_batches(paths, LOOKED_AT_FILES):
            with self.directory(batch.directory) as fd:
                if fd is not None:
                    found, done = np.zeros((len(batch.rows), 3), dtype=np.int64), np.zeros(1, dtype=np.int64)
                    code = _small_files.look(fd, batch.text, batch.begins, batch.ends, found, done)
                    self._check(code, "look at", batch, int(done[0]))
                    seen[batch.rows] = found
        return Found(mode=seen[:, 0], size=seen[:, 1], links=seen[:, 2])

    def list(self) -> Iterator[tuple[str, bool]]:
        """Opens one directory at a time, because a twin may be deeper than the limit of open files. Raises: OSError."""
        waiting = [name for name in sorted(os.listdir(self.fd)) if is_twin_root(name)] if self.fd is not None else []
        while waiting:
            above = waiting.pop()
            try:
                with self.directory(above) as fd:
                    found = [] if fd is None else _listed(fd)
            except TargetError:  # a link or a file instead of a directory
                yield above, False
                continue
            for name, is_directory in found:
                relative = f"{above}/{name}"
                yield relative, is_directory
                if is_directory and name.isprintable():
                    waiting.append(relative)

    @contextmanager
    def open(self, path: str) -> Iterator[Reader | None]:
        directory, name = split(path)
        with self.directory(directory) as above:
            try:
                fd = None if above is None else os.open(name, os.O_RDONLY | _FILE, dir_fd=above)
            except FileNotFoundError:
                fd = None
            except OSError as error:
                raise refusal(error, f"open {self.shown(path)}") from error
        if fd is None:
            yield None
            return
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # a device may have no end
                raise TargetError(f"{self.shown(path)} is not a plain file: remove it or choose another --target")
            yield PosixReader(fd)
        except OSError as error:
            raise refusal(error, f"read {self.shown(path)}") from error
        finally:
            close_unwritten(fd)

    def put(self, path: str, blocks: Iterable[bytes | memoryview], *, replace: bool, sync: bool) -> None:
        with self._placed(path, replace) as fd:
            for block in blocks:
                data, done = memoryview(block), 0
                while done < len(data):
                    done += os.write(fd, data[done:])
            if sync:
                os.fsync(fd)

    def put_hole(self, path: str, size: int, *, replace: bool) -> None:
        with self._placed(path, replace) as fd:
            os.ftruncate(fd, size)

    @contextmanager
    def _placed(self, path: str, replace: bool) -> Iterator[int]:
        """Descriptor of a new file, which gets its name at the end or is removed. Raises: TargetError."""
        directory, name = split(path)
        temporary = temporary_name(name)
        try:
            with self.made_directory(directory) as above:
                fd = _create(above, temporary)
                try:
                    try:
                        yield fd
                    finally:
                        os.close(fd)  # close before the rename: NFS reports a full disk here
                    if not replace and lstat(above, name) is not None:
                        raise foreign(self.shown(path))
                    os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
                except BaseException:
                    with suppress(OSError):
                        unlink(above, temporary)
                    raise
        except OSError as error:
            raise refusal(error, f"write {self.shown(path)}") from error

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        for batch in directory_batches(paths, len(paths)):
            with self.made_directory(batch.directory) as fd:
                rows, done = batch.rows, np.zeros(1, dtype=np.int64)
                try:
                    code = _small_files.write(
                        fd, batch.text, batch.begins, batch.ends, sizes[rows], record_ids[rows], noise_block(), done
                    )
                finally:
                    placed[rows[: int(done[0])]] = True
                if code == errno.EEXIST:
                    raise foreign(self.shown(batch.path(int(done[0]))))
                self._check(code, "write", batch, int(done[0]))

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        for directory in sorted(by_directory(paths)[1]):
            with self.made_directory(directory):
                pass

    def remove(self, paths: pa.LargeStringArray) -> int:
        with ThreadPoolExecutor(default_workers(), thread_name_prefix="remove") as pool:
            return sum(pool.map(self._remove_of_directory, directory_batches(paths, len(paths))))

    def _remove_of_directory(self, batch: DirectoryBatch) -> int:
        removed = 0
        with self.directory(batch.directory) as fd:
            if fd is None:
                return 0
            for begin in range(0, len(batch.rows), REMOVED_FILES):
                some, done = batch.part(slice(begin, begin + REMOVED_FILES)), np.zeros(2, dtype=np.int64)
                code = _small_files.remove(fd, some.text, some.begins, some.ends, done)
                removed += int(done[1])
                self._check(code, "remove", some, int(done[0]))
            self._remove_begun(fd, batch)
        return removed

    def _remove_begun(self, fd: int, batch: DirectoryBatch) -> None:
        """Remove temporary files of a staging that was killed."""
        try:
            with os.scandir(fd) as entries:
                there = {name for entry in entries if (name := os.fsencode(entry.name)).startswith(_TEMPORARY)}
            for name in batch.names() if there else ():
                if (temporary := temporary_name(name)) in there:
                    unlink(fd, temporary)
        except OSError as error:
            raise refusal(error, f"remove {self.shown(batch.directory)}/*.part") from error

    def prune(self, paths: pa.LargeStringArray) -> None:
        self.remove_empty_directories(by_directory(paths)[1])

    def sync(self) -> None:
        if self.fd is not None:
            try:
                sync_file_system(self.fd)
            except OSError as error:
                raise refusal(error, f"write out the files under {self.shown('')}") from error

    def _check(self, code: int, doing: str, batch: DirectoryBatch, done: int) -> None:
        """Raises: TargetError if `error` is an errno (not 0). The error names the file after the first `done`."""
        if code:
            error = OSError(code, os.strerror(code))
            raise refusal(error, f"{doing} {self.shown(batch.path(done))}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out other processes that stage into this target, replay on it, or remove what is staged.

        The lock is flock(2) on the file LOCK_NAME, which the kernel releases however the process ends. Linux makes it
        a lock of the server on NFS, and of the cluster on Lustre mounted with `-o flock`, so that it holds between
        nodes; where a node dies, the server releases it when the lease ends. Where the file system has no locks, or
        this user may not write, there is no protection. Raises: TargetError when another process holds it.
        """
        fd = None if self.fd is None else self._take_lock()
        try:
            yield
        finally:
            if fd is not None:  # in a thread: on storage that hangs this would never return
                releasing = threading.Thread(target=self._release_lock, args=(fd,), daemon=True)
                releasing.start()
                releasing.join(RELEASE_PATIENCE_S)

    def _release_lock(self, fd: int) -> None:
        with suppress(OSError):
            os.unlink(LOCK_NAME, dir_fd=self.fd)
        close_unwritten(fd)

    def _take_lock(self) -> int | None:
        """Descriptor of the lock file, which is locked; None where this user cannot make it."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            try:
                fd = os.open(LOCK_NAME, flags, 0o666, dir_fd=self.fd)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    return None
                raise refusal(error, f"lock {self.shown(LOCK_NAME)}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                close_unwritten(fd)
                raise TargetError(
                    f"another process is staging into {printable(self.path)} or replaying on it: wait until it ends, "
                    "or choose another --target"
                ) from error
            except OSError:
                pass  # NFS without locks (ENOLCK), Lustre without -o flock (ENOSYS, EOPNOTSUPP)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(LOCK_NAME, dir_fd=self.fd, follow_symlinks=False), os.fstat(fd)):
                    return fd
            close_unwritten(fd)  # the process that held the lock has just removed the file


@contextmanager
def open_directory(where: str | Path, make: bool = False) -> Iterator[PosixTarget]:
    """A directory that stays open until the end of the context. `make`: create it and its parents if absent.

    Raises: TargetError when it cannot be opened or made, or when something is mounted in one of its twins.
    """
    path, fd = resolve_target(Path(where)), None
    if make:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(error, f"make the target {printable(path)}") from error
    refuse_mounts(path)
    try:
        fd = os.open(path, DIRECTORY)
    except FileNotFoundError:
        if make:
            raise TargetError(f"{printable(path)} vanished while it was used: try again") from None
    except OSError as error:
        raise refusal(error, f"open the target {printable(path)}") from error
    try:
        yield PosixTarget(path=path, fd=fd)
    finally:
        if fd is not None:
            close_unwritten(fd)


def sync_file_system(fd: int) -> None:
    """Make the file system of an open file or directory write its cached data: syncfs(2). Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _create(directory: int, name: bytes) -> int:
    """Descriptor of a new, empty file. A file of this name that a killed staging left is replaced. Raises: OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o666, dir_fd=directory)
    except FileExistsError:
        unlink(directory, name)
        return os.open(name, flags, 0o666, dir_fd=directory)


def _listed(fd: int) -> list[tuple[str, bool]]:
    with os.scandir(fd) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
