"""POSIX: one pread or pwrite per operation, or one preadv or pwritev. `DirectPosixBackend` goes past the page cache.

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
from dxt_replay.traces.errors import TargetError, UsageError

BLOCK_BYTES = PAGE_BYTES
"""Alignment of direct requests: a multiple of the logical block of all common devices, and the page size that network
file systems ask for (open(2), O_DIRECT)."""

MAX_PIECES = 1024
"""IOV_MAX of Linux (readv(2))."""


class PosixBackend:
    """Handles are file descriptors. What is written is a plain file with one name, reached through no symbolic link.

    `pieces`: buffers of a request, of equal size where possible; 0 for a plain pread or pwrite. Darshan records a readv
        as one segment like a read, so that only the user can know.
    Raises: UsageError for more than MAX_PIECES.
    """

    name = "posix"
    moves_data = True

    def __init__(self, *, pieces: int = 0) -> None:
        if not 0 <= pieces <= MAX_PIECES:
            raise UsageError(f"{pieces} buffers a request: Linux takes 1 to {MAX_PIECES}")
        self.pieces = pieces

    def open(self, path: bytes, *, writable: bool, create: bool) -> int:
        """Read-only unless `writable`. Raises: OSError."""
        return _opened(path, open_flags(writable=writable, create=create))

    def size(self, handle: int) -> int:
        """Size in bytes now. Raises: OSError."""
        return os.fstat(handle).st_size

    def read(self, handle: int, offset: int, length: int, buffer: memoryview) -> int:
        """One request; a short count is returned as it is. Raises: OSError."""
        return os.preadv(handle, self._split(buffer[:length], 1), offset)

    def write(self, handle: int, offset: int, length: int, data: memoryview) -> int:
        """One request; a short count is returned as it is. Raises: OSError."""
        if self.pieces:
            return os.pwritev(handle, self._split(data[:length], 1), offset)
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

    def _split(self, view: memoryview, align: int) -> list[memoryview]:
        """The buffer in `pieces` parts. All but the last have the same size, a multiple of `align` bytes."""
        if self.pieces < 2 or not len(view):
            return [view]
        size = piece_bytes(len(view), self.pieces, align)
        return [view[begin : begin + size] for begin in range(0, len(view), size)]


def open_flags(*, writable: bool, create: bool) -> int:
    """Flags of open(2) for a file of the replay."""
    return (os.O_RDWR | (os.O_CREAT if create else 0) if writable else os.O_RDONLY) | os.O_CLOEXEC


def _opened(path: bytes, flags: int) -> int:
    return open_link_free(path, flags) if flags & os.O_RDWR else os.open(path, flags)


def piece_bytes(length: int, pieces: int, align: int) -> int:
    """Size in bytes of all parts but the last, so that there are at most `pieces` parts."""
    return -(-length // (pieces * align)) * align


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
        moved = os.preadv(handle.fd, self._split(buffer[:reach], BLOCK_BYTES), offset - before)
        return min(max(moved - before, 0), length)

    def write(self, handle: DirectFile, offset: int, length: int, data: memoryview) -> int:  # type: ignore[override]
        """One request. Raises: OSError."""
        if not self.goes_direct(offset, length):
            return PosixBackend.write(self, handle.buffered_fd, offset, length, data)
        return os.pwritev(handle.fd, self._split(data[:length], BLOCK_BYTES), offset)

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
