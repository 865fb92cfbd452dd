"""What a back end is, and the table of files that the lanes of one process share.

A back end is stateless and thread-safe. The state of an open file is in its handle. Several lanes may use one handle at
the same time, at explicit offsets. Where the interface has a position of its own (a C stream), the handle keeps it.
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

from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.traces.errors import ReplayError

MAX_TRANSFER_BYTES = 0x7FFFF000
"""Most bytes that Linux moves in one read or write (read(2)). Larger requests are cut to it."""

PAGE_BYTES = 4096
"""Size of a page of memory."""

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""errno of an open when there are no descriptors left: an idle file is closed, and the open is repeated."""

NO_OPEN, OPENS, AWAITS_OPEN = range(3)
"""What a lane does for its next item: nothing, it opens the file, or it waits while another lane opens it."""

Handle = Any
"""An open file of one back end. Only that back end knows what it is."""


class Backend(Protocol):
    """One way of doing I/O. Every method may raise OSError, whose errno becomes the result of the operation.

    `name`: its name in results.
    `moves_data`: False where read and write get an empty buffer and use only `length`.
    """

    name: str
    moves_data: bool

    def open(self, path: bytes, *, writable: bool, create: bool) -> Handle:
        """Open `path`. `create`, which needs `writable`: make a missing file."""

    def size(self, handle: Handle) -> int:
        """Size of the file in bytes, or -1 where it has no end."""

    def read(self, handle: Handle, offset: int, length: int, buffer: memoryview) -> int:
        """Read up to `length` bytes at `offset` into `buffer` (at least as large) with one request. Returns bytes."""

    def write(self, handle: Handle, offset: int, length: int, data: memoryview) -> int:
        """Write the first `length` bytes of `data` at `offset` with one request. Returns bytes written."""

    def close(self, handle: Handle) -> None:
        """Close a handle. Called once for each handle."""

    def another(self, handle: Handle) -> Handle:
        """Another handle on the same open file, for an item that closes a handle while lanes are using `handle`."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        """Look at the attributes of `path`, open or not. Without `follow`, at those of a symbolic link itself."""

    def sync(self, handle: Handle) -> None:
        """Send written data to the storage, as far as one call of the interface does."""

    def seek(self, handle: Handle, offset: int) -> None:
        """Set the position of the handle. Reads and writes have explicit offsets, so only the call itself matters."""

    def rename(self, path: bytes, new_path: bytes) -> None:
        """Rename the file, replacing a file at `new_path`. Never follows a link at the last component."""


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
            raise ReplayError(f"{self.path!r} is not the path of a file: check the mapping of the recorded names")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFailure:
    """An open or close that failed.

    `slot`: number of the file.
    `call`: "open" or "close".
    `errno`: of the failure.
    """

    slot: int
    path: bytes
    call: str
    errno: int


class HeldFile(NamedTuple):
    """What a lane knows of the file that it holds.

    `size`: bytes when it was opened.
    `error`: errno of a failed open, or 0.
    `left`: operations on the file that are left for all lanes.
    """

    backend: Backend
    handle: Handle
    size: int
    error: int
    left: int


NO_FILE = HeldFile(backend=NullBackend(), handle=None, size=0, error=errno.EBADF, left=-1)


class OpeningLane(Protocol):
    """A lane that wants to hold a file. `opening`: NO_OPEN, OPENS or AWAITS_OPEN."""

    opening: int

    def await_open(self, opened: threading.Event) -> bool:
        """Wait until another lane has opened the file, or failed to. False when stopped."""


class _SharedFile:
    """The state of one slot. The lock guards all attributes that are assigned after it.

    `spares`: handles from OPEN items that are not the file's own and that no lane uses.
    `detached`: whether the file was renamed while lanes held it. The last of these lanes closes it.
    `opening`: set when the lane has ended that is opening the file, without the lock; None while no lane does.
    """

    __slots__ = (
        "backend", "close_error", "detached", "handle", "holders", "lock", "open_error", "opened", "opening",
        "remaining", "size", "slot", "spares",
    )  # fmt: skip

    def __init__(self, slot: FileSlot, backend: Backend) -> None:
        self.slot = slot
        self.backend = backend
        self.lock = threading.Lock()
        self.handle: Handle = None
        self.spares: list[Handle] = []
        self.detached = False
        self.opened = False
        self.opening: threading.Event | None = None
        self.size = 0
        self.open_error = 0
        self.close_error = 0
        self.holders = 0
        self.remaining = slot.uses

    def take_opened(self, found: _Opened) -> int:
        """Take what an open gave, and return the errno for the lane that made it. The caller has the lock."""
        if found.opened and self.opened:  # an OPEN item was faster
            self.spares.append(found.handle)
        elif not self.opened:
            self.handle, self.opened, self.size, self.open_error = found
        error = self.open_error
        if self.detached:
            self.open_error = 0  # of the name that the file had
        return error


class _Opened(NamedTuple):
    """What an open gave. `error`: errno of the open, or of the look at the size after it; or 0."""

    handle: Handle = None
    opened: bool = False
    size: int = 0
    error: int = 0


def _try_open(file: _SharedFile) -> _Opened:
    slot, handle, opened = file.slot, None, False
    try:
        handle = file.backend.open(slot.path, writable=slot.writable, create=slot.create)
        opened = True
        return _Opened(handle=handle, opened=True, size=file.backend.size(handle))
    except OSError as error:
        return _Opened(handle=handle, opened=opened, error=error.errno or errno.EIO)


def _held(file: _SharedFile, error: int) -> HeldFile:
    return HeldFile(backend=file.backend, handle=file.handle, size=file.size, error=error, left=file.remaining)


class PythonFiles:
    """The files of a process, which its Python lanes share. A file is opened at its first use.

    A lane *holds* a file while consecutive operations are on that file. A held file is never closed. When the process
    runs out of descriptors, files that no lane holds are closed, and opened again when they are needed. Only an OPEN
    item tries an open again that failed; until then each operation on the file fails with the same errno.
    `backends`: one back end for all slots, or one for each slot.
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
        """The file of a slot, None for a number without a slot."""
        return self._files[index].slot if 0 <= index < len(self._files) else None

    def backend(self, index: int) -> Backend:
        """The back end of an existing slot."""
        return self._files[index].backend

    def hold(self, index: int, lane: OpeningLane) -> HeldFile | None:
        """The file, opened if it was not open; None when the lane was stopped while another one was opening it.

        Give it back with `release`, also when it has an error.
        """
        if not 0 <= index < len(self._files):
            return NO_FILE
        file = self._files[index]
        try:
            while True:
                with file.lock:
                    opening = file.opening
                    if opening is None:
                        file.holders += 1
                        if file.opened or file.open_error:
                            return _held(file, file.open_error)
                        file.opening = threading.Event()
                        break
                lane.opening = AWAITS_OPEN
                if not lane.await_open(opening):
                    return None
            lane.opening = OPENS
            return self._open(file)
        finally:
            lane.opening = NO_OPEN

    def release(self, index: int, uses: int) -> None:
        """Give back a held file after `uses` operations. The last operation of all lanes closes the file."""
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
        """Keep a handle that an OPEN item made: as the file's own handle if there is none, else as a spare."""
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
        """Give back a held, open file and take a handle of it to close.

        It is a spare handle, else the file's own, else, where other lanes hold the file, a new one.
        Raises: OSError when a new handle cannot be made.
        """
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
        """Close a file before a rename gives its name to another. Where lanes hold it, the last of them closes it."""
        file = self._files[index]
        with file.lock:
            file.open_error = 0
            file.detached = bool(file.holders)
            self._close(file)

    def close_one_idle(self) -> bool:
        """Close a handle that no lane uses, to free a descriptor. Returns False when there is none: then try once more,
        since other lanes may have closed them."""
        return self._close_idle(None)

    def payload(self, length: int) -> memoryview:
        """At least `length` bytes that do not compress, on a page border. All lanes share them. Raises: MemoryError."""
        with self._payload_lock:
            if len(self._payload) < length:
                size = max(length, 1 << 20, min(2 * len(self._payload), MAX_TRANSFER_BYTES))
                payload = page_aligned(size)
                words = np.random.default_rng(length).integers(0, 1 << 64, (size + 7) // 8, dtype=np.uint64)
                payload[:] = words.view(np.uint8)[:size].data
                self._payload = payload
            return self._payload

    def prepare_payload(self, length: int) -> None:
        """Make the data for writes of up to `length` bytes. If memory is short, the writes fail when they are due."""
        with suppress(MemoryError):
            self.payload(length)

    def close_all(self) -> None:
        """Close every file that no lane holds now; each other file when its lane gives it back."""
        for file in self._files:
            with file.lock:
                file.remaining = 0
                self._close(file)

    def failures(self) -> list[FileFailure]:
        """Opens and closes that failed so far, in the order of the slots."""
        return [
            FileFailure(slot=index, path=file.slot.path, call=call, errno=number)
            for index, file in enumerate(self._files)
            for call, number in (("open", file.open_error), ("close", file.close_error))
            if number
        ]

    def _another(self, file: _SharedFile) -> Handle:
        """Another handle on an open file. The caller has its lock. Raises: OSError."""
        more = True
        while True:
            try:
                return file.backend.another(file.handle)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not more:
                    raise
            more = self._close_idle(file)

    def _open(self, file: _SharedFile) -> HeldFile:
        """Open a closed file that the caller holds, without its lock: the open may hang.

        It is tried once more where no file was idle: other lanes that looked for one, too, may have closed them all.
        """
        found, more = _Opened(error=errno.EIO), True  # the error of a back end that raised something else
        try:
            found = _try_open(file)
            while more and found.error in NO_DESCRIPTORS:
                more = self._close_idle(file)
                found = _try_open(file)
        finally:
            with file.lock:
                opening, file.opening = file.opening, None
                error = file.take_opened(found)
                held = _held(file, error)
            if opening is not None:
                opening.set()
        return held

    def _close(self, file: _SharedFile) -> bool:
        """Close all handles of a file that no lane holds. The caller has its lock. Returns whether there were any."""
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
        """Close the next file in the table that no lane holds, or a spare handle. Returns False when there is none."""
        for _ in self._files:
            file = self._files[next(self._hand) % len(self._files)]
            # Never blocks on another slot: a lane that looks for an idle file too may hold its lock.
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
