"""What a back end is, and the table of files that the lanes of one process share.

A back end is stateless and thread-safe: what belongs to an open file is in its handle, and several lanes may use
one handle at the same time, at explicit offsets. Where the interface below has a position of its own (a C stream), the
handle keeps it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from replay.engine.backends.null import NullBackend
from traces.errors import ReplayError

MAX_TRANSFER_BYTES = 0x7FFFF000
"""The most that Linux moves in one read or write (read(2)); larger requests ask for this."""

PAGE_BYTES = 4096

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""What an open fails with when the process, or the system, has none left: idle files are closed, and it is repeated."""

Handle = Any
"""An open file of one back end: opaque to everybody else."""


class Backend(Protocol):
    """One way of doing I/O. Every method may raise OSError; its errno becomes the operation's result.

    `name` is shown in results. `moves_data` False: read and write get an empty buffer and look at `length` only.
    """

    name: str
    moves_data: bool

    def open(self, path: bytes, *, writable: bool, create: bool) -> Handle:
        """Open `path`; `create` makes a missing file, and holds only together with `writable`."""

    def size(self, handle: Handle) -> int:
        """Bytes of the file, or -1 where it has no end."""

    def read(self, handle: Handle, offset: int, length: int, buffer: memoryview) -> int:
        """Read up to `length` bytes at `offset` into `buffer` (at least that large) with one request; bytes read."""

    def write(self, handle: Handle, offset: int, length: int, data: memoryview) -> int:
        """Write the first `length` bytes of `data` at `offset` with one request; bytes written."""

    def close(self, handle: Handle) -> None:
        """Close it. Called once per handle."""

    def another(self, handle: Handle) -> Handle:
        """A further handle on the same open file, for an item that closes one while others are using `handle`."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        """Look at the attributes of `path`, open or not; of a symbolic link's own unless `follow`."""

    def sync(self, handle: Handle) -> None:
        """Hand written data on to the storage, as far as the interface goes with one call."""

    def seek(self, handle: Handle, offset: int) -> None:
        """Set the handle's position. Reads and writes name their offsets: what counts is the call."""

    def rename(self, path: bytes, new_path: bytes) -> None:
        """Give the file another name, in place of a file that has it. Never follows a link at the last component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlot:
    """A file that the lanes of a process use. `uses`: their operations on it; it is closed when all are done.

    A wrong `uses` costs a late close or one more open, nothing else. A writable file is never opened through a
    symbolic link at its last component.
    Raises: ReplayError for a path that no file can have.
    """

    path: bytes
    writable: bool = False
    create: bool = False
    uses: int = 0

    def __post_init__(self) -> None:
        if not self.path or b"\0" in self.path:
            raise ReplayError(f"{self.path!r} is not the path of a file: check the mapping of the recorded names")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFailure:
    """A file that could not be opened, or reported an error when it was closed. `call`: "open" or "close"."""

    slot: int
    path: bytes
    call: str
    errno: int


class HeldFile(NamedTuple):
    """What a lane knows of the file it holds: `size` in bytes when it was opened, `error` errno or 0.

    `left`: operations after which it is done with, unless other lanes do some of them.
    """

    backend: Backend
    handle: Handle
    size: int
    error: int
    left: int


NO_FILE = HeldFile(backend=NullBackend(), handle=None, size=0, error=errno.EBADF, left=-1)


class _SharedFile:
    """State of one slot; everything below `lock` is read and written under it.

    `spares`: handles that OPEN items made beside the file's own, which nobody uses. `detached`: the file was renamed
    while lanes held it; the last of them closes it.
    """

    __slots__ = (
        "backend", "close_error", "detached", "handle", "holders", "lock", "open_error", "opened", "remaining", "size",
        "slot", "spares",
    )  # fmt: skip

    def __init__(self, slot: FileSlot, backend: Backend) -> None:
        self.slot = slot
        self.backend = backend
        self.lock = threading.Lock()
        self.handle: Handle = None
        self.spares: list[Handle] = []
        self.detached = False
        self.opened = False
        self.size = 0
        self.open_error = 0
        self.close_error = 0
        self.holders = 0
        self.remaining = slot.uses


class PythonFiles:
    """The files of one process, opened through a back end at their first use. Shared by its Python lanes.

    A lane *holds* a file while its operations follow each other on it; a held file is never closed. When the
    process runs out of descriptors, files that nobody holds are closed, and opened again when needed. An open that
    fails is not tried again, except by an OPEN item: each operation on the file fails with its errno.
    `backends`: one for all slots, or one a slot.
    """

    core = "python"

    def __init__(self, slots: Sequence[FileSlot], backends: Backend | Sequence[Backend]) -> None:
        each = backends if isinstance(backends, Sequence) else [backends] * len(slots)
        self._files = [_SharedFile(slot, backend) for slot, backend in zip(slots, each, strict=True)]
        self._hand = count()
        self._payload = memoryview(b"")
        self._payload_lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def slot(self, index: int) -> FileSlot | None:
        """What was given for a slot, None where there is none."""
        return self._files[index].slot if 0 <= index < len(self._files) else None

    def backend(self, index: int) -> Backend:
        """That of a slot that there is."""
        return self._files[index].backend

    def hold(self, index: int) -> HeldFile:
        """The file, opened if it is not; to be given back by `release` also when it has an error."""
        if not 0 <= index < len(self._files):
            return NO_FILE
        file = self._files[index]
        with file.lock:
            if not file.opened and not file.open_error:
                self._open(file)
            file.holders += 1
            return HeldFile(
                backend=file.backend, handle=file.handle, size=file.size, error=file.open_error, left=file.remaining
            )

    def release(self, index: int, uses: int) -> None:
        """Give back a held file after `uses` operations; the last one closes it."""
        if not 0 <= index < len(self._files):
            return
        file = self._files[index]
        with file.lock:
            file.holders -= 1
            file.remaining -= uses
            if file.remaining <= 0 or file.detached:
                self._close(file)

    def count_use(self, index: int) -> None:
        """Count an operation on a file that was not held for it."""
        file = self._files[index]
        with file.lock:
            file.remaining -= 1
            if file.remaining <= 0:
                self._close(file)

    def adopt(self, index: int, handle: Handle) -> None:
        """Keep a handle that an OPEN item made: as the file's own when it has none, else beside it."""
        file = self._files[index]
        with file.lock:
            file.open_error = 0
            if file.opened:
                file.spares.append(handle)
                return
            file.handle, file.opened = handle, True
            try:
                file.size = file.backend.size(handle)
            except OSError as error:
                file.open_error = error.errno or errno.EIO

    def take(self, index: int) -> Handle:
        """Give up a held, open file and get a handle of it to close: a spare one, else its own, which it then is
        without, or where other lanes hold that, a further one. Raises: OSError where there can be no further one."""
        file = self._files[index]
        with file.lock:
            file.holders -= 1
            if file.spares:
                return file.spares.pop()
            if file.holders:
                return self._another(file)
            handle, file.handle, file.opened = file.handle, None, False
            return handle

    def detach(self, index: int) -> None:
        """Close a file whose name is about to mean another; where lanes hold it, the last of them does."""
        file = self._files[index]
        with file.lock:
            file.open_error = 0
            file.detached = bool(file.holders)
            self._close(file)

    def close_one_idle(self) -> bool:
        """Close a handle that nobody uses, to have room for another; False when there is none."""
        return self._close_idle(None)

    def payload(self, length: int) -> memoryview:
        """At least `length` bytes that do not compress, the same for all lanes, on a page. Raises: MemoryError."""
        with self._payload_lock:
            if len(self._payload) < length:
                size = max(length, 1 << 20, min(2 * len(self._payload), MAX_TRANSFER_BYTES))
                payload = page_aligned(size)
                words = np.random.default_rng(length).integers(0, 1 << 64, (size + 7) // 8, dtype=np.uint64)
                payload[:] = words.view(np.uint8)[:size].data
                self._payload = payload
            return self._payload

    def prepare_payload(self, length: int) -> None:
        """Make the data for writes of up to `length` bytes; without memory, that is told when they are due."""
        with suppress(MemoryError):
            self.payload(length)

    def close_all(self) -> None:
        """Close every file that no lane holds; the others when their lane gives them back."""
        for file in self._files:
            with file.lock:
                file.remaining = 0
                self._close(file)

    def failures(self) -> list[FileFailure]:
        """Opens and closes that failed so far, by slot."""
        return [
            FileFailure(slot=index, path=file.slot.path, call=call, errno=number)
            for index, file in enumerate(self._files)
            for call, number in (("open", file.open_error), ("close", file.close_error))
            if number
        ]

    def _another(self, file: _SharedFile) -> Handle:
        """A further handle on an open file. The caller has its lock. Raises: OSError."""
        while True:
            try:
                return file.backend.another(file.handle)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._close_idle(file):
                    raise

    def _open(self, file: _SharedFile) -> None:
        """Open a closed file or note the error. The caller has its lock."""
        file.open_error = self._try_open(file)
        while file.open_error in NO_DESCRIPTORS and self._close_idle(file):
            file.open_error = self._try_open(file)

    def _try_open(self, file: _SharedFile) -> int:
        """errno, or 0 when it is open."""
        slot = file.slot
        try:
            file.handle = file.backend.open(slot.path, writable=slot.writable, create=slot.create)
            file.opened = True
            file.size = file.backend.size(file.handle)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _close(self, file: _SharedFile) -> bool:
        """Close an open file that nobody holds. The caller has its lock."""
        if file.holders:
            return False
        handles = [*file.spares, *([file.handle] if file.opened else [])]
        file.spares, file.handle, file.opened, file.detached = [], None, False, False
        for handle in handles:
            self._close_handle(file, handle)
        return bool(handles)

    def _close_handle(self, file: _SharedFile, handle: Handle) -> None:
        try:
            file.backend.close(handle)
        except OSError as error:
            file.close_error = error.errno or errno.EIO

    def _close_idle(self, wanted: _SharedFile | None) -> bool:
        """Close one file that nobody holds or one spare handle, going round the table; False when there is none."""
        for _ in self._files:
            file = self._files[next(self._hand) % len(self._files)]
            # Never blocks on another slot: its lock may be held by a lane that looks for an idle file too.
            if file is wanted or not file.lock.acquire(blocking=False):
                continue
            try:
                if file.spares:
                    self._close_handle(file, file.spares.pop())
                    return True
                if self._close(file):
                    return True
            finally:
                file.lock.release()
        return False


def page_aligned(size: int) -> memoryview:
    """`size` bytes of memory that begin on a page, for direct I/O. Raises: MemoryError."""
    memory = np.empty(size + PAGE_BYTES, dtype=np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + size].data
