"""A first-in first-out queue of structured rows that stays small in memory: what exceeds it waits in a temporary file.

Lanes of one rank are fed from one stream, and their results are kept until the run has ended; either may run far
apart, and neither may hold a whole op stream.
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import IO

import numpy as np

from traces.errors import TargetError

CHUNK_ROWS = 1 << 14


class RowQueue:
    """Arrays of one structured dtype go in at the end and come out at the front, in order, in any sizes.

    `memory_rows`: rows kept in memory before further ones go to an unnamed temporary file in `folder` (the system's
    temporary directory when None).
    """

    def __init__(self, dtype: np.dtype, *, memory_rows: int = 1 << 18, folder: Path | None = None) -> None:
        self._dtype = dtype
        self._memory_rows = memory_rows
        self._folder = folder
        self._memory: deque[np.ndarray] = deque()
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._read_at = 0
        self._on_disk = 0

    def __len__(self) -> int:
        return self._in_memory + self._on_disk

    def append(self, rows: np.ndarray) -> None:
        """Add rows (of the queue's dtype) at the end."""
        if not len(rows):
            return
        if self._on_disk or self._in_memory + len(rows) > self._memory_rows:
            self._spill(rows)
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
        """Forget the rows and the temporary file."""
        self._memory.clear()
        self._in_memory = self._on_disk = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self, rows: np.ndarray) -> None:
        if self._file is None:
            self._file = self._open()
        try:
            self._file.seek(0, 2)
            self._file.write(np.ascontiguousarray(rows).tobytes())
            self._file.flush()
        except OSError as error:
            raise self._refusal(error) from error
        self._on_disk += len(rows)

    def _open(self) -> IO[bytes]:
        try:
            return tempfile.TemporaryFile(prefix="dxt-replay-", dir=self._folder)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> TargetError:
        place = self._folder or tempfile.gettempdir()
        return TargetError(
            f"cannot keep rows that exceed memory in {place}: {error.strerror or error}; write the replay (-o) where "
            "there is room and fewer files are open"
        )

    def _load(self) -> None:
        assert self._file is not None
        rows = min(self._on_disk, CHUNK_ROWS)
        self._file.seek(self._read_at)
        loaded = np.frombuffer(self._file.read(rows * self._dtype.itemsize), dtype=self._dtype)
        self._read_at += loaded.nbytes
        self._on_disk -= rows
        self._memory.append(loaded)
        self._in_memory += rows
        if not self._on_disk:
            self._file.truncate(0)
            self._read_at = 0
