"""The files of a process as one Python lane uses them: the file that it holds, its buffer, and the calls of its items.

Reads and writes go to explicit offsets of the held file. Other operations make exactly one call, timed like a read:

- OPEN makes a new handle each time, with the access of the slot. If the file is not open, the handle becomes the file's
  own. Otherwise it is kept as a spare handle until a CLOSE.
- CLOSE closes one handle of the file, but never a handle that another lane is using: see `PythonFiles.take`.
- STAT looks at the path, whether the file is open or not.
- SYNC, SEEK and CLOSE first open a file that is not open. As for a read, this is not part of the latency.
- RENAME gives the slot's file the name of the slot in `offset`. Both slots must be writable (else EROFS), so that files
  that are only read are never moved. Both files are closed first, which is not part of the latency. The next use opens
  the file that then has the name.
"""

from __future__ import annotations

import errno
import threading

import numpy as np

from dxt_replay.replay.engine.backends.base import (
    MAX_TRANSFER_BYTES,
    NO_DESCRIPTORS,
    NO_FILE,
    NO_OPEN,
    FileSlot,
    Handle,
    PythonFiles,
    page_aligned,
)
from dxt_replay.replay.engine.backends.posix import BLOCK_BYTES, DirectPosixBackend
from dxt_replay.replay.engine.clock import PIECE_NS, STOPPED, Clock, StopFlag
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, SEEK, STAT, SYNC, WRITE_AT
from dxt_replay.traces.units import NS_PER_S

CONSUMED_BYTES = 1 << 19
"""Most bytes of a read's buffer that are touched before the read is due: about the size of a core's own cache."""

CACHE_LINE_BYTES = 64

END_OF_FILE_READ_BYTES = 4096
"""Bytes that a read asks for where it was recorded with length 0 at the end of its file."""


class LaneFiles:
    """The files of a process as one lane uses them.

    `not_direct`: writes of a direct back end that went through the page cache. `opening`: see `Lane`.
    """

    def __init__(self, files: PythonFiles, clock: Clock, stop: StopFlag) -> None:
        self._files = files
        self._clock = clock
        self._stop = stop
        self.opening = NO_OPEN
        self._held = -1
        self._uses = 0
        self._file = NO_FILE
        self._buffer = memoryview(bytearray())
        self._ready = 0
        self.not_direct = 0

    @property
    def moves_data(self) -> bool:
        """Whether reads of the held file fill the buffer."""
        return self._file.backend.moves_data

    def prepare(self, kind: int, slot: int, offset: int, length: int) -> int:
        """Prepare an item before its wait, outside of its latency. Returns the errno that refuses it, or 0; STOPPED
        where a stop ended the wait for another lane that was opening the file."""
        if kind > WRITE_AT:
            return self._prepare_other(kind, slot, offset)
        if slot != self._held and not self._hold(slot):
            return STOPPED
        if self._file.error:
            return self._file.error
        if offset < 0 or length < 0:
            return errno.EINVAL
        if not self._file.backend.moves_data:
            return 0
        asked = self._asked(kind, offset, length)
        try:
            if kind == WRITE_AT:
                self._files.payload(asked)
                return self._prepare_write(offset, asked)
            room = 2 * BLOCK_BYTES if isinstance(self._file.backend, DirectPosixBackend) else 0
            self._make_room(asked + room, self._file.size - offset + room)
        except MemoryError:
            return errno.ENOMEM
        return 0

    def _prepare_write(self, offset: int, asked: int) -> int:
        backend = self._file.backend
        if not isinstance(backend, DirectPosixBackend) or backend.goes_direct(offset, asked):
            return 0
        more = True
        while True:
            try:
                backend.prepare_buffered(self._file.handle)
                return 0
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not more:
                    return error.errno or errno.EIO
            more = self._files.close_one_idle()

    def _prepare_other(self, kind: int, slot: int, offset: int) -> int:
        self.release()
        mine = self._files.slot(slot)
        if mine is None:
            return errno.EBADF
        if kind == RENAME:
            return self._prepare_rename(slot, mine, offset)
        if kind == SEEK and offset < 0:
            return errno.EINVAL
        if kind in (CLOSE, SYNC, SEEK):
            return self._file.error if self._hold(slot) else STOPPED
        return 0

    def _prepare_rename(self, slot: int, mine: FileSlot, new: int) -> int:
        other = self._files.slot(new)
        if other is None:
            return errno.EBADF
        if not (mine.writable and other.writable):
            return errno.EROFS
        self._files.detach(slot)
        self._files.detach(new)
        return 0

    def consume(self, kind: int, offset: int, length: int) -> None:
        """Touch the cache lines that the next read fills first, as an application does that has used their data."""
        asked = self._asked(kind, offset, length)
        np.asarray(self._buffer)[: min(asked, self._ready, CONSUMED_BYTES) : CACHE_LINE_BYTES] += 1

    def transfer(self, kind: int, offset: int, length: int) -> int:
        """Make one request of the back end. Returns bytes, or -errno."""
        backend, handle, asked = self._file.backend, self._file.handle, self._asked(kind, offset, length)
        try:
            if kind == READ_AT:
                return backend.read(handle, offset, asked, self._buffer)
            data = self._files.payload(asked) if backend.moves_data else self._buffer
            return backend.write(handle, offset, asked, data)
        except OSError as error:
            return -(error.errno or errno.EIO)

    def after_transfer(self, kind: int, offset: int, length: int, error: int) -> None:
        """Count an operation on the held file. The last operation on the file closes it."""
        backend = self._file.backend
        if kind == WRITE_AT and not error and isinstance(backend, DirectPosixBackend):
            self.not_direct += not backend.goes_direct(offset, self._asked(kind, offset, length))
        self._uses += 1
        if self._uses == self._file.left:
            self.release()

    def call(self, kind: int, slot: int, offset: int, error: int) -> tuple[int, int, int]:
        """Make the call of an item that moves no data, unless `error` refuses it: begin, end, 0 or -errno."""
        if error:
            return self._refused(slot, error)
        if kind == OPEN:
            return self._call_open(slot)
        if kind == CLOSE:
            return self._call_close(slot)
        backend, mine = self._files.backend(slot), self._files.slot(slot)
        new = self._files.slot(offset) if kind == RENAME else None
        result = 0
        begin = self._clock.now()
        try:
            if kind == STAT and mine is not None:
                backend.stat(mine.path, follow=not mine.writable)
            elif kind == SYNC:
                backend.sync(self._file.handle)
            elif kind == SEEK:
                backend.seek(self._file.handle, offset)
            elif mine is not None and new is not None:
                backend.rename(mine.path, new.path)
        except OSError as met:
            result = -(met.errno or errno.EIO)
        end = self._clock.now()
        self._count(slot)
        if kind == RENAME:
            self._files.count_use(offset)
        return begin, end, result

    def _refused(self, slot: int, error: int) -> tuple[int, int, int]:
        begin = self._clock.now()
        end = self._clock.now()
        if self._files.slot(slot) is not None:
            self._count(slot)
        return begin, end, -error

    def _count(self, slot: int) -> None:
        """Count an operation on a file, which may be the held one or another."""
        if self._held == slot:
            self._uses += 1
            if self._uses == self._file.left:
                self.release()
        else:
            self._files.count_use(slot)

    def _call_open(self, slot: int) -> tuple[int, int, int]:
        backend, mine = self._files.backend(slot), self._files.slot(slot)
        assert mine is not None
        handle: Handle = None
        more = True
        while True:
            result = 0
            begin = self._clock.now()
            try:
                handle = backend.open(mine.path, writable=mine.writable, create=mine.create)
            except OSError as met:
                result = -(met.errno or errno.EIO)
            end = self._clock.now()
            if -result not in NO_DESCRIPTORS or not more:
                break
            more = self._files.close_one_idle()
        if not result:
            self._files.adopt(slot, handle)
        self._files.count_use(slot)
        return begin, end, result

    def _call_close(self, slot: int) -> tuple[int, int, int]:
        backend = self._files.backend(slot)
        result, handle, taken = 0, None, True
        try:
            handle = self._files.take(slot)
        except OSError as met:
            result, taken = -(met.errno or errno.EIO), False
        self._held, self._uses, self._file = -1, 0, NO_FILE
        begin = self._clock.now()
        if taken:
            try:
                backend.close(handle)
            except OSError as met:
                result = -(met.errno or errno.EIO)
        end = self._clock.now()
        self._files.count_use(slot)
        return begin, end, result

    def release(self) -> None:
        """Give the held file back. This closes it when all its uses are done."""
        self._files.release(self._held, self._uses)
        self._held, self._uses, self._file = -1, 0, NO_FILE

    def _hold(self, slot: int) -> bool:
        """Whether it now holds the file; False after a stop."""
        self.release()
        file = self._files.hold(slot, self)
        if file is not None:
            self._held, self._file = slot, file
        return file is not None

    def await_open(self, opened: threading.Event) -> bool:
        """Wait until another lane has opened the file that this one wants, or failed to. False when stopped."""
        while not opened.wait(PIECE_NS / NS_PER_S):
            if self._stop.is_set():
                return False
        return True

    def _make_room(self, asked: int, available: int) -> None:
        """Grow the read buffer, and touch the part that the read fills: page faults are not part of its latency."""
        if asked > len(self._buffer):
            self._ready = 0
            self._buffer = memoryview(bytearray())  # the old buffer goes first: memory may not have room for both
            self._buffer = page_aligned(1 << max(asked - 1, 4095).bit_length())
        reach = min(asked, available)
        if reach > self._ready:
            np.asarray(self._buffer)[self._ready : reach] = 0
            self._ready = reach

    def _asked(self, kind: int, offset: int, length: int) -> int:
        """Bytes that the request asks for."""
        if not self._file.backend.moves_data:
            return length
        if kind == READ_AT and length == 0 and 0 <= self._file.size <= offset:
            return END_OF_FILE_READ_BYTES
        return min(length, MAX_TRANSFER_BYTES)
