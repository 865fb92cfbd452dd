"""First-in first-out queues of structured rows. Rows that exceed a queue's share of memory wait in a temporary file.

The lanes of a rank are fed from one stream, and their results are kept until the run has ended. Some lanes may be far
ahead of others, and no queue may hold a whole stream in memory. All queues of a process share one file, so that many
lanes do not use up the file descriptors.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np

from dxt_replay.traces.errors import TargetError, exhausted

CHUNK_ROWS = 1 << 14  # Rows that readers of a queue take at a time
EXTENT_BYTES = 1 << 20  # Size of the pieces of the file that belong to one queue at a time
MEMORY_ROWS, PROCESS_ROWS, LEAST_ROWS = 1 << 18, 1 << 19, 1 << 10
"""Most rows in memory of one queue, of all queues of a process (about 30 MB), and of each however many there are."""


class SpillFile:
    """A temporary file without a name for the rows of several queues, in extents of EXTENT_BYTES.

    `folder`: where it is made; None for the system's temporary directory.
    `queues`: how many queues use it.
    It is opened at once, before a run can use up the descriptors. Threads must not share it.
    Raises: TargetError when the file cannot be made, or the disk refuses to hold more.
    """

    def __init__(self, folder: Path | None = None, queues: int = 1) -> None:
        self._folder = folder
        self._free: list[int] = []
        self._extents = 0
        self.memory_rows = min(MEMORY_ROWS, max(LEAST_ROWS, PROCESS_ROWS // max(queues, 1)))
        try:
            self._file = tempfile.TemporaryFile(prefix="dxt-replay-", dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._refusal(error) from error

    def allocate(self) -> int:
        if not self._free:
            self._free.append(self._extents)
            self._extents += 1
        return self._free.pop()

    def free(self, extent: int) -> None:
        self._free.append(extent)

    def write(self, extent: int, offset: int, data: bytes) -> None:
        place, view = extent * EXTENT_BYTES + offset, memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, place)
                place, view = place + written, view[written:]
        except OSError as error:
            raise self._refusal(error) from error

    def read(self, extent: int, length: int) -> bytes:
        """The first `length` bytes of an extent."""
        parts, place = [], extent * EXTENT_BYTES
        try:
            while length and (part := os.pread(self._file.fileno(), length, place)):
                parts.append(part)
                place, length = place + len(part), length - len(part)
        except OSError as error:
            raise self._refusal(error) from error
        return b"".join(parts)

    def close(self) -> None:
        """Close the file and lose its rows, so that an error of the close means nothing."""
        with suppress(OSError):
            self._file.close()

    def _refusal(self, error: OSError) -> TargetError:
        place = self._folder or tempfile.gettempdir()
        remedy = exhausted(error) or "write the replay (-o) where there is room"
        return TargetError(f"cannot keep rows that exceed memory in {place}: {error.strerror or error}; {remedy}")


class RowQueue:
    """A queue of rows of one structured dtype: arrays of any length go in at the end and come out at the front.

    Raises: TargetError when the disk refuses.
    """

    def __init__(self, dtype: np.dtype, spill: SpillFile) -> None:
        self._dtype = dtype
        self._file = spill
        self._memory: deque[np.ndarray] = deque()
        self._in_memory = 0
        self._extents: deque[int] = deque()
        self._extent_rows = EXTENT_BYTES // dtype.itemsize
        self._on_disk = 0

    def __len__(self) -> int:
        return self._in_memory + self._on_disk

    def append(self, rows: np.ndarray) -> None:
        if not self._on_disk and self._in_memory + len(rows) <= self._file.memory_rows:
            if len(rows):
                self._memory.append(rows)
                self._in_memory += len(rows)
            return
        # Fill the last extent, then new ones. All extents but the last are full: `pop` reads a whole extent.
        while len(rows):
            used = self._on_disk - self._extent_rows * (len(self._extents) - 1)
            if not self._extents or used == self._extent_rows:
                self._extents.append(self._file.allocate())
                used = 0
            now, rows = rows[: self._extent_rows - used], rows[self._extent_rows - used :]
            self._file.write(self._extents[-1], used * self._dtype.itemsize, now.tobytes())
            self._on_disk += len(now)

    def pop(self, most: int) -> np.ndarray:
        """Take up to `most` rows from the front. The result is empty only when the queue is empty."""
        parts: list[np.ndarray] = []
        while most and len(self):
            if not self._memory:
                count, extent = min(self._on_disk, self._extent_rows), self._extents.popleft()
                data = self._file.read(extent, count * self._dtype.itemsize)
                self._file.free(extent)
                self._memory.append(np.frombuffer(data, dtype=self._dtype))
                self._on_disk, self._in_memory = self._on_disk - count, count
            first = self._memory.popleft()
            taken, rest = first[:most], first[most:]
            if len(rest):
                self._memory.appendleft(rest)
            self._in_memory -= len(taken)
            most -= len(taken)
            parts.append(taken)
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=self._dtype), *parts])

    def close(self) -> None:
        """Drop all rows."""
        self._memory.clear()
        self._in_memory = self._on_disk = 0
        while self._extents:
            self._file.free(self._extents.popleft())
