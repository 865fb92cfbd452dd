"""A directory of a file system as a target, which staging cannot leave: every path below it is opened one component at
a time, never through a link.

The directory itself may be given through links; it is resolved once. Each directory below is opened relative to the
descriptor of its parent with O_NOFOLLOW, so a link is refused even if somebody makes it during the staging. A mount
point in a twin is refused too, because mounted files belong to somebody else.

A run opens the files by their whole paths. It looks for links when it starts (`replay.target.stage.check_staged`), and
the kernel refuses them at each open for writing and each rename (`replay.engine.link_free`). The libraries of MPI-IO
and HDF5 open paths themselves, so the path is checked just before. A link that somebody makes between that check and
the open, or under a preloaded tracer, is not noticed.

A large file is written under a temporary name and renamed when it is complete. A small file has its own name from the
start and is written at once, because a temporary name and a rename would double its cost. A small file that a crash cut
short is recognised by the manifest, which lists it as planned, and by its bytes, the start of its noise.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target import _small_files
from dxt_replay.replay.target.content import noise_block
from dxt_replay.replay.target.path_columns import (
    DirectoryBatch,
    ancestors,
    by_directory,
    column,
    directory_batches,
    text_bytes,
)
from dxt_replay.replay.target.placement import TWIN_ROOT, is_twin_root
from dxt_replay.replay.target.protocol import LOCK_NAME, Reader, Room, foreign, refusal
from dxt_replay.replay.target.writing import BATCH_FILES, default_workers, in_threads
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

RELEASE_PATIENCE_S = 5.0
"""Seconds that removing the lock may take. Then the process goes on; the kernel releases it when the process ends."""

LOOKED_AT_FILES = 1 << 16  # Most files of one directory that are looked at in one call, in which no signal is handled
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a FIFO must not wait for its other end
_TEMPORARY = b".%~"
_MOUNTS = Path("/proc/self/mountinfo")
"""A line a mount; its fifth word is where (proc_pid_mountinfo(5)), with space, tab, newline and \\ in octal."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixTarget:
    """A directory, from which no path leads out: its resolved path, and its descriptor, None if it does not exist."""

    path: Path
    fd: int | None

    @property
    def where(self) -> Path:
        return self.path

    @property
    def base(self) -> bytes:
        return os.fsencode(self.path / "x")[:-1]

    @property
    def exists(self) -> bool:
        return self.fd is not None

    def shown(self, path: str) -> str:
        return printable(self.path / path)

    @contextmanager
    def directory(self, relative: str, *, make: bool = False) -> Iterator[int]:
        """Descriptor of a directory below this one ("" is this one), -1 where there is none. `make`: make what is
        absent below this one, which exists. Raises: TargetError when a link or a file is on the way."""
        fd, names = -1 if self.fd is None else os.dup(self.fd), relative.split("/") if relative else []
        try:
            for depth, name in enumerate(names if fd >= 0 else ()):
                above, fd, so_far = fd, -1, "/".join(names[: depth + 1])
                try:
                    fd = self._entered(above, name.encode(), so_far)
                    if fd < 0 and not make:
                        break
                    if fd < 0:
                        with suppress(FileExistsError):
                            os.mkdir(name.encode(), dir_fd=above)
                        fd = self._entered(above, name.encode(), so_far)
                except OSError as error:
                    raise refusal(error, f"make the directory {self.shown(so_far)}") from error
                finally:
                    close_unwritten(above)
            if fd < 0 and make:
                raise TargetError(f"{self.shown(relative)} vanished while it was used: try again")
            yield fd
        finally:
            if fd >= 0:
                close_unwritten(fd)

    def _entered(self, above: int, name: bytes, relative: str) -> int:
        """A directory in another; -1 where there is none. `relative`: its path. Raises: TargetError."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return -1
        except OSError as error:
            shown, mode = self.shown(relative), stat.S_IFDIR
            with suppress(OSError):
                mode = os.lstat(name, dir_fd=above).st_mode
            if stat.S_ISLNK(mode):
                raise TargetError(f"{shown} is a symbolic link, which a target must not hold: remove it") from error
            if not stat.S_ISDIR(mode):
                raise TargetError(f"{shown} is a file where a directory is needed: move it away") from error
            raise refusal(error, f"open {shown}") from error

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

    def stat(self, paths: pa.LargeStringArray) -> np.ndarray:
        seen = np.zeros((len(paths), 3), dtype=np.int64)
        for batch in directory_batches(paths, LOOKED_AT_FILES):
            with self.directory(batch.directory) as fd:
                if fd >= 0:
                    found, done = np.zeros((len(batch.rows), 3), dtype=np.int64), np.zeros(1, dtype=np.int64)
                    self._check(_small_files.look(fd, *_spans(batch), found, done), "look at", batch, int(done[0]))
                    seen[batch.rows] = found
        return seen

    def list(self) -> Iterator[tuple[str, bool]]:
        """Opens one directory at a time, because a twin may be deeper than the limit of open files. Raises: OSError."""
        waiting = [name for name in sorted(os.listdir(self.fd)) if is_twin_root(name)] if self.fd is not None else []
        while waiting:
            above, found = waiting.pop(), []
            try:
                with self.directory(above) as fd:
                    if fd >= 0:
                        with os.scandir(fd) as entries:
                            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            except TargetError:  # a link or a file instead of a directory
                yield above, False
            for name, is_directory in found:
                relative = f"{above}/{name}"
                yield relative, is_directory
                if is_directory and name.isprintable():
                    waiting.append(relative)

    @contextmanager
    def open(self, path: str) -> Iterator[Reader | None]:
        directory, name = _split(path)
        with self.directory(directory) as above:
            try:
                fd = -1 if above < 0 else os.open(name, os.O_RDONLY | _FILE, dir_fd=above)
            except FileNotFoundError:
                fd = -1
            except OSError as error:
                raise refusal(error, f"open {self.shown(path)}") from error
        if fd < 0:
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
        directory, name = _split(path)
        temporary, flags = temporary_name(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with self.directory(directory, make=True) as above:
                try:
                    fd = os.open(temporary, flags, 0o666, dir_fd=above)
                except FileExistsError:  # a killed staging left it
                    _unlink(above, temporary)
                    fd = os.open(temporary, flags, 0o666, dir_fd=above)
                try:
                    try:
                        yield fd
                    finally:
                        os.close(fd)  # close before the rename: NFS reports a full disk here
                    if not replace and _lstat(above, name) is not None:
                        raise foreign(self.shown(path))
                    os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
                except BaseException:
                    with suppress(OSError):
                        _unlink(above, temporary)
                    raise
        except OSError as error:
            raise refusal(error, f"write {self.shown(path)}") from error

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        for batch in directory_batches(paths, max(len(paths), 1)):
            with self.directory(batch.directory, make=True) as fd:
                rows, done = batch.rows, np.zeros(1, dtype=np.int64)
                try:
                    code = _small_files.write(fd, *_spans(batch), sizes[rows], record_ids[rows], noise_block(), done)
                finally:
                    placed[rows[: int(done[0])]] = True
                if code == errno.EEXIST:
                    raise foreign(self.shown(batch.path(int(done[0]))))
                self._check(code, "write", batch, int(done[0]))

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        for directory in sorted(by_directory(paths)[1]):
            with self.directory(directory, make=True):
                pass

    def remove(self, paths: pa.LargeStringArray) -> int:
        """Threads take the files of a directory in parts, as `replay.target.writing` does."""
        most_files = max(1, min(BATCH_FILES, len(paths) // default_workers()))
        removed = sum(in_threads(self._remove_files, directory_batches(paths, most_files)))
        in_threads(self._remove_begun, directory_batches(paths, max(len(paths), 1)))
        return removed

    def _remove_files(self, batch: DirectoryBatch) -> int:
        done = np.zeros(2, dtype=np.int64)
        with self.directory(batch.directory) as fd:
            if fd >= 0:
                self._check(_small_files.remove(fd, *_spans(batch), done), "remove", batch, int(done[0]))
        return int(done[1])

    def _remove_begun(self, batch: DirectoryBatch) -> None:
        """Remove temporary files of a staging that was killed."""
        with self.directory(batch.directory) as fd:
            if fd < 0:
                return
            try:
                there = {name for each in os.listdir(fd) if (name := os.fsencode(each)).startswith(_TEMPORARY)}
                for name in batch.names.to_pylist() if there else ():
                    if (temporary := temporary_name(name.encode())) in there:
                        _unlink(fd, temporary)
            except OSError as error:
                raise refusal(error, f"remove {self.shown(batch.directory)}/*.part") from error

    def prune(self, paths: pa.LargeStringArray) -> None:
        by_depth = sorted(ancestors(paths).to_pylist(), key=lambda path: path.count("/"), reverse=True)
        for _, level in groupby(by_depth, key=lambda path: path.count("/")):
            in_threads(self._remove_empty, directory_batches(column(list(level)), BATCH_FILES))

    def _remove_empty(self, batch: DirectoryBatch) -> None:
        with self.directory(batch.directory) as fd:
            for name in batch.names.to_pylist() if fd >= 0 else ():
                with suppress(OSError):
                    os.rmdir(name.encode(), dir_fd=fd)

    def sync(self) -> None:
        if self.fd is not None:
            try:
                sync_file_system(self.fd)
            except OSError as error:
                raise refusal(error, f"write out the files under {self.shown('')}") from error

    def _check(self, code: int, doing: str, batch: DirectoryBatch, done: int) -> None:
        """Raises: TargetError if `code` is an errno (not 0). The error names the file after the first `done`."""
        if code:
            error = OSError(code, os.strerror(code))
            raise refusal(error, f"{doing} {self.shown(batch.path(done))}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out other processes that stage into this target, replay on it, or remove what is staged.

        The lock is flock(2) on the file LOCK_NAME, which the kernel releases however the process ends. Linux makes it
        a lock of the server on NFS, and of the cluster on Lustre mounted with `-o flock`, so that it holds between
        nodes; where a node dies, the server releases it when the lease ends. Where the file system has no locks, or
        this user may not write, there is no protection. Raises: TargetError when another process holds it."""
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
            try:
                fd = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | _FILE, 0o666, dir_fd=self.fd)
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

    Raises: TargetError when it cannot be opened or made, or when something is mounted in one of its twins."""
    path, fd = resolve_target(Path(where)), None
    if make:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(error, f"make the target {printable(path)}") from error
    _refuse_mounts(path)
    try:
        fd = os.open(path, _DIRECTORY)
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


def resolve_target(target: Path) -> Path:
    """`target` absolute and without links. Raises: TargetError when it is not a directory."""
    try:
        resolved = Path(os.path.realpath(target))
        found = os.stat(resolved)
    except FileNotFoundError:
        return resolved
    except OSError as error:
        raise refusal(error, f"use the target {printable(target)}") from error
    except ValueError as error:
        raise TargetError(f"{printable(target)!r} is not a path ({error}): choose another --target") from error
    if not stat.S_ISDIR(found.st_mode):
        raise TargetError(f"the target {printable(target)} is not a directory: choose another --target")
    return resolved


def _refuse_mounts(target: Path) -> None:
    """Raises: TargetError if a directory or file of a twin is a mount point: writing or removing would change mounted
    files."""
    twins = os.fsencode(target / TWIN_ROOT)
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return  # no /proc here
    for line in lines:
        place = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4])
        if place.startswith(twins):
            raise TargetError(
                f"{printable(os.fsdecode(place))} is a mount point inside a twin, which is neither written nor "
                "emptied: unmount it or choose another --target"
            )


def close_unwritten(fd: int) -> None:
    """Close a descriptor through which nothing was written. Never raises: an error (EINTR, or EIO on NFS) then loses no
    data, and Linux has closed the descriptor all the same (close(2))."""
    with suppress(OSError):
        os.close(fd)


def sync_file_system(fd: int) -> None:
    """Make the file system of an open file or directory write its cached data: syncfs(2). Raises: OSError."""
    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _spans(batch: DirectoryBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The names as `_small_files` takes them: bytes, begins and ends."""
    text, bounds = text_bytes(batch.names)
    return text, bounds[:-1], bounds[1:]


def _lstat(directory_fd: int, name: bytes) -> os.stat_result | None:
    """The status of `name` itself, without following a link; None if absent."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _unlink(directory_fd: int, name: bytes) -> None:
    """Remove a regular file; anything else is left."""
    found = _lstat(directory_fd, name)
    if found is not None and stat.S_ISREG(found.st_mode):
        os.unlink(name, dir_fd=directory_fd)


def _split(path: str) -> tuple[str, bytes]:
    """The directory of a path, as text, and its last name, as bytes."""
    directory, _, name = path.rpartition("/")
    return directory, name.encode("utf-8")
