"""POSIX: one pread or pwrite per operation. `DirectPosixBackend` goes past the page cache.

The compiled loop has its own code for the same calls.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dxt_replay.replay.engine.backends.base import PAGE_BYTES
from dxt_replay.replay.engine.backends.link_free import open_link_free, rename_link_free
from dxt_replay.traces.errors import TargetError

BLOCK_BYTES = PAGE_BYTES
"""Alignment of direct requests: a multiple of the logical block of all common devices, and the page size that network
file systems ask for (open(2), O_DIRECT)."""


class PosixBackend:
    """Handles are file descriptors. What is written is a plain file with one name, reached through no symbolic link."""

    name = "posix"
    moves_data = True

    def open(self, path: bytes, *, writable: bool, create: bool) -> int:
        """Read-only unless `writable`. Raises: OSError."""
        return _opened(path, open_flags(writable=writable, create=create))

    def size(self, handle: int) -> int:
        """Size in bytes now. Raises: OSError."""
        return os.fstat(handle).st_size

    def read(self, handle: int, offset: int, length: int, buffer: memoryview) -> int:
        """One request; a short count is returned as it is. Raises: OSError."""
        return os.preadv(handle, [buffer[:length]], offset)

    def write(self, handle: int, offset: int, length: int, data: memoryview) -> int:
        """One request; a short count is returned as it is. Raises: OSError."""
        return os.pwrite(handle, data[:length], offset)

    def close(self, handle: int) -> None:
        """One close. Raises: OSError, for example when a network file system could not write its data back."""
        os.close(handle)

    def another(self, handle: int) -> int:
        """A duplicate of the descriptor. Raises: OSError."""
        return os.dup(handle)

    def stat(self, path: bytes, *, follow: bool) -> None:
        """One fstatat. Raises: OSError."""
        os.stat(path, follow_symlinks=follow)

    def sync(self, handle: int) -> None:
        """One fsync. Raises: OSError."""
        os.fsync(handle)

    def seek(self, handle: int, offset: int) -> None:
        """One lseek. Raises: OSError."""
        os.lseek(handle, offset, os.SEEK_SET)

    def rename(self, path: bytes, new_path: bytes) -> None:
        """One rename. Raises: OSError."""
        rename_link_free(path, new_path)


def open_flags(*, writable: bool, create: bool) -> int:
    """Flags of open(2) for a file of the replay."""
    return (os.O_RDWR | (os.O_CREAT if create else 0) if writable else os.O_RDONLY) | os.O_CLOEXEC


def _opened(path: bytes, flags: int) -> int:
    return open_link_free(path, flags) if flags & os.O_RDWR else os.open(path, flags)


@dataclass(slots=True)
class DirectFile:
    """An open file of the direct back end.

    `fd`: descriptor with O_DIRECT.
    `buffered_fd`: descriptor without it, -1 until `prepare_buffered` opens it under `lock`.
    """

    fd: int
    path: bytes
    writable: bool
    buffered_fd: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)


class DirectPosixBackend(PosixBackend):
    """POSIX with O_DIRECT.

    A read is widened to whole blocks, and its result counts only the bytes that were asked for. The data begin in the
    buffer at offset % BLOCK_BYTES, and the buffer must have room for two more blocks. A write that is not of whole
    blocks would change the bytes around it, and goes through the page cache instead (`goes_direct`).
    """

    name = "posix"

    def open(self, path: bytes, *, writable: bool, create: bool) -> DirectFile:  # type: ignore[override]
        """Open with O_DIRECT. Raises: OSError; EINVAL where the file system has no direct I/O."""
        flags = open_flags(writable=writable, create=create) | os.O_DIRECT
        return DirectFile(_opened(path, flags), path, writable)

    @staticmethod
    def prepare_buffered(handle: DirectFile) -> None:
        """Open the file once more, for writes that do not go direct. Raises: OSError."""
        with handle.lock:
            if handle.buffered_fd < 0:
                handle.buffered_fd = _opened(handle.path, open_flags(writable=handle.writable, create=False))

    def size(self, handle: DirectFile) -> int:  # type: ignore[override]
        """Size in bytes now. Raises: OSError."""
        return os.fstat(handle.fd).st_size

    def read(self, handle: DirectFile, offset: int, length: int, buffer: memoryview) -> int:  # type: ignore[override]
        """One request of whole blocks. Raises: OSError."""
        before = offset % BLOCK_BYTES
        reach = -(-(before + length) // BLOCK_BYTES) * BLOCK_BYTES
        moved = os.preadv(handle.fd, [buffer[:reach]], offset - before)
        return min(max(moved - before, 0), length)

    def write(self, handle: DirectFile, offset: int, length: int, data: memoryview) -> int:  # type: ignore[override]
        """One request. Raises: OSError."""
        if not self.goes_direct(offset, length):
            return PosixBackend.write(self, handle.buffered_fd, offset, length, data)
        return os.pwrite(handle.fd, data[:length], offset)

    @staticmethod
    def goes_direct(offset: int, length: int) -> bool:
        """Whether a write is of whole blocks."""
        return not (offset | length) % BLOCK_BYTES

    def close(self, handle: DirectFile) -> None:  # type: ignore[override]
        """Close both descriptors. Raises: OSError."""
        try:
            if handle.buffered_fd >= 0:
                os.close(handle.buffered_fd)
        finally:
            os.close(handle.fd)

    def another(self, handle: DirectFile) -> DirectFile:  # type: ignore[override]
        """A duplicate of the direct descriptor. Raises: OSError."""
        return DirectFile(os.dup(handle.fd), handle.path, writable=False)

    def sync(self, handle: DirectFile) -> None:  # type: ignore[override]
        """One fsync. Raises: OSError."""
        os.fsync(handle.fd)

    def seek(self, handle: DirectFile, offset: int) -> None:  # type: ignore[override]
        """One lseek. Raises: OSError."""
        os.lseek(handle.fd, offset, os.SEEK_SET)


def check_direct(target: Path, paths: Iterable[bytes]) -> None:
    """Try direct I/O on one file of each file system.

    `paths`: the files of the twin. Where none of them exists, an unnamed file in `target` is tried.
    Raises: TargetError where a file system does not support direct I/O.
    """
    tried: set[int] = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev
        except OSError:
            continue  # a file that the run makes
        if device not in tried:
            tried.add(device)
            _try_direct(path, os.O_RDONLY)
    if not tried:
        _try_direct(os.fsencode(target), os.O_RDWR | os.O_TMPFILE)


def _try_direct(path: bytes, flags: int) -> None:
    try:
        os.close(os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno != errno.EINVAL:
            return  # no unnamed files here, or no permission: the run itself reports it
        raise TargetError(
            f"the file system of {os.fsdecode(path)} has no direct I/O (O_DIRECT): leave --direct out, or choose a "
            "target on another one"
        ) from error
