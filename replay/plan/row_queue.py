"""First-in first-out queues of structured rows that stay small in memory: what exceeds it waits in a temporary file.

Lanes of one rank are fed from one stream, and their results are kept until the run has ended; either may run far
apart, and neither may hold a whole op stream. All queues of a process share one file: a run with many lanes, or with
few descriptors to spend, needs one for all of them.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from pathlib import Path

import numpy as np

from traces.errors import TargetError

CHUNK_ROWS = 1 << 14
EXTENT_BYTES = 1 << 20
"""What a queue writes and reads back as a whole."""

MEMORY_ROWS = 1 << 18
"""Rows that one queue keeps in memory, at most."""

PROCESS_ROWS = 1 << 19
"""Rows that all queues of a process keep in memory, at most: about 30 MB."""

LEAST_ROWS = 1 << 10


class SpillFile:
    """An unnamed temporary file in `folder` (the system's temporary directory when None), for `queues` queues.

    Opened at once, so that a run which uses up its descriptors later has it. Not safe to share between threads.
    Raises: TargetError when it cannot be made.
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
        """The number of an extent that nobody uses."""
        if self._free:
            return self._free.pop()
        self._extents += 1
        return self._extents - 1

    def free(self, extent: int) -> None:
        """Give an extent back."""
        self._free.append(extent)

    def write(self, extent: int, offset: int, data: bytes) -> None:
        """Write into an extent. Raises: TargetError when the disk refuses."""
        place, view = extent * EXTENT_BYTES + offset, memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, place)
                place, view = place + written, view[written:]
        except OSError as error:
            raise self._refusal(error) from error

    def read(self, extent: int, length: int) -> bytes:
        """The first `length` bytes of an extent. Raises: TargetError when the disk refuses."""
        parts, place = [], extent * EXTENT_BYTES
        try:
            while length and (part := os.pread(self._file.fileno(), length, place)):
                parts.append(part)
                place, length = place + len(part), length - len(part)
        except OSError as error:
            raise self._refusal(error) from error
        return b"".join(parts)

    def close(self) -> None:
        """Forget everything."""
        self._file.close()

    def _refusal(self, error: OSError) -> TargetError:
        place = self._folder or tempfile.gettempdir()
        return TargetError(
            f"cannot keep rows that exceed memory in {place}: {error.strerror or error}; write the replay (-o) where "
            "there is room and fewer files are open"
        )


class RowQueue:
    """Arrays of one structured dtype go in at the end and come out at the front, in order, in any sizes.

    `memory_rows`: rows kept in memory before further ones go to `spill` (None: a file of its own, made when needed);
    None: what the spill file says.
    """

    def __init__(self, dtype: np.dtype, *, memory_rows: int | None = None, spill: SpillFile | None = None) -> None:
        self._dtype = dtype
        self._spill_file = spill
        if memory_rows is None:
            memory_rows = MEMORY_ROWS if spill is None else spill.memory_rows
        self._memory_rows = memory_rows
        self._own: SpillFile | None = None
        self._memory: deque[np.ndarray] = deque()
        self._in_memory = 0
        self._extents: deque[int] = deque()
        self._extent_rows = EXTENT_BYTES // dtype.itemsize
        self._on_disk = 0

    def __len__(self) -> int:
        return self._in_memory + self._on_disk

    def append(self, rows: np.ndarray) -> None:
        """Add rows (of the queue's dtype) at the end. Raises: TargetError when the disk refuses."""
        if not len(rows):
            return
        if self._on_disk or self._in_memory + len(rows) > self._memory_rows:
            self._spill(np.ascontiguousarray(rows))
        else:
            self._memory.append(rows)
            self._in_memory += len(rows)

    def pop(self, most: int) -> np.ndarray:
        """Up to `most` rows from the front; empty only when the queue is."""
        parts: list[np.ndarray] = []
        wanted = most
        while wanted and len(self):
            if not self._memory:
                self._load()
            first = self._memory.popleft()
            taken, rest = first[:wanted], first[wanted:]
            if len(rest):
                self._memory.appendleft(rest)
            self._in_memory -= len(taken)
            wanted -= len(taken)
            parts.append(taken)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._dtype)

    def close(self) -> None:
        """Forget the rows, and a file of its own."""
        self._memory.clear()
        self._in_memory = self._on_disk = 0
        while self._extents:
            self._file.free(self._extents.popleft())
        if self._own is not None:
            self._own.close()
            self._own = None

    @property
    def _file(self) -> SpillFile:
        if self._spill_file is not None:
            return self._spill_file
        if self._own is None:
            self._own = SpillFile()
        return self._own

    def _spill(self, rows: np.ndarray) -> None:
        """Fill the last extent, then further ones. Only the last is not full: `_load` takes the first away whole."""
        file = self._file
        while len(rows):
            used = self._on_disk - self._extent_rows * (len(self._extents) - 1)
            if not self._extents or used == self._extent_rows:
                self._extents.append(file.allocate())
                used = 0
            now, rows = rows[: self._extent_rows - used], rows[self._extent_rows - used :]
            file.write(self._extents[-1], used * self._dtype.itemsize, now.tobytes())
            self._on_disk += len(now)

    def _load(self) -> None:
        count = min(self._on_disk, self._extent_rows)
        extent = self._extents.popleft()
        loaded = np.frombuffer(self._file.read(extent, count * self._dtype.itemsize), dtype=self._dtype)
        self._file.free(extent)
        self._on_disk -= count
        self._memory.append(loaded)
        self._in_memory += count
