"""Files that the lanes of a process share, and the interface of a back end in Python."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dxt_replay.replay.engine.link_free import rename_link_free, unlink_link_free
from dxt_replay.traces.errors import ReplayError

NATIVE_BACKENDS = ("posix", "direct", "stdio", "mapped", "null")
"""Back ends whose calls the compiled loop makes itself, without the interpreter lock.

posix: one pread or pwrite an operation; a short count is the result as it is.
direct: POSIX with O_DIRECT. A read is widened to whole blocks of 4096 bytes, and its result counts only the bytes that
    were asked for; they begin in the buffer at offset % 4096. A write that is not of whole blocks would change the
    bytes around it, and goes through the page cache instead.
stdio: libc's streams, so that tools that trace fopen and fread see them in a replay too. libc decides what a stream
    does, as it did in the application: a request that is smaller than the stream's buffer may be served from it, or
    kept in it until a flush or the close, which then reports a full disk. The latency is that of the library call.
mapped: the file is mapped, and a read takes a page fault on each of its pages that is not mapped yet, in order. A file
    that cannot be read there is an error of the operation (EFAULT); before Linux 5.14 it is the end of the process.
null: no I/O at all. Every operation succeeds in full at once, so that a run measures the replayer's own overhead.
"""

Handle = Any  # An open file of one back end. Only that back end knows what it is.


class Backend(ABC):
    """One way of doing I/O, in Python. Every method may raise OSError, whose errno becomes the result of the operation.

    A back end is thread-safe. The state of an open file is in its handle. Several lanes may use one handle at the same
    time, at explicit offsets. The compiled loop takes the interpreter lock for each call; a call that waits for the
    storage should release it, as the libraries do.
    """

    name: str
    """Its name in results."""

    @abstractmethod
    def open(self, path: bytes, *, writable: bool, create: bool) -> Handle:
        """Open `path`. `create`, which needs `writable`: make a missing file. A writable file must be a plain file with
        one name, reached through no symbolic link (`replay.engine.link_free`)."""

    def hold(self, path: bytes, *, writable: bool, create: bool) -> Handle:
        """As `open`, where an operation needs the file and no open was recorded. Never part of a latency."""
        return self.open(path, writable=writable, create=create)

    @abstractmethod
    def size(self, handle: Handle) -> int:
        """Size of the file in bytes."""

    @abstractmethod
    def read(self, handle: Handle, offset: int, length: int, buffer: memoryview) -> int:
        """Read up to `length` bytes at `offset` into `buffer` (of `length` bytes) with one request. Returns bytes."""

    @abstractmethod
    def write(self, handle: Handle, offset: int, length: int, data: memoryview) -> int:
        """Write the `length` bytes of `data` at `offset` with one request. Returns bytes written."""

    @abstractmethod
    def close(self, handle: Handle) -> None:
        """Close a handle. Called once for each handle."""

    @abstractmethod
    def another(self, handle: Handle) -> Handle:
        """Another handle on the same open file, for an item that closes a handle while lanes are using `handle`."""

    @abstractmethod
    def sync(self, handle: Handle) -> None:
        """Send written data to the storage, as far as one call of the interface does."""

    @abstractmethod
    def seek(self, handle: Handle, offset: int) -> None:
        """Set the position of the handle. Reads and writes have explicit offsets, so only the call itself matters."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        """Look at the attributes of `path`, open or not. Without `follow`, at those of a symbolic link itself. One
        fstatat, for an interface to local files that has no call of its own; override it where paths are not files."""
        os.stat(path, follow_symlinks=follow)

    def rename(self, path: bytes, new_path: bytes) -> None:
        """Rename the file, replacing a file at `new_path`. Never follows a link. One rename, for an interface to local
        files that has no call of its own; override it where paths are not files."""
        rename_link_free(path, new_path)

    def list(self, path: bytes) -> None:
        """List the names in the folder `path`; override it where paths are not files."""
        os.listdir(path)

    def delete(self, path: bytes) -> None:
        """Remove the file at `path`. Never follows a link; override it where paths are not files."""
        unlink_link_free(path)


Backends = str | Backend | Sequence[str | Backend]
"""One of NATIVE_BACKENDS or an object, for all files of a process; or a sequence with one for each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlot:
    """A file that the lanes of a process use.

    `path`: where it is.
    `writable`: whether it is opened for writing. It is then never opened through a symbolic link at its last component.
    `create`: whether the open makes it when it is missing.
    `uses`: operations of the lanes on it, after which it is closed. A wrong number costs a late close or another open.
    Raises: ReplayError for a path that no file can have.
    """

    path: bytes
    writable: bool = False
    create: bool = False
    uses: int = 0

    def __post_init__(self) -> None:
        if not self.path or b"\0" in self.path:
            raise ReplayError(f"{self.path!r} is not the path of a file: check --map, and the paths in the capture")
