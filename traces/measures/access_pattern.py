"""Sequential and consecutive accesses by Darshan's definition, batch by batch.

Per rank, file and direction: `last_byte` starts at 0; an access is sequential if offset > last_byte, consecutive if
offset == last_byte + 1; then last_byte = offset + length - 1. Darshan sets last_byte back to 0 whenever the file is
opened or closed (darshan-posix.c, POSIX_RECORD_READ and POSIX_RECORD_OPEN), so the first access at offset 0 is neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.traces.measures._passes import follow_last_bytes
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.sums import Sums

_KINDS = np.full(len(OPS), -1, dtype=np.int8)
"""By operation, the kinds of `follow_last_bytes`."""
_KINDS[[READ, WRITE]] = 0, 1
_KINDS[[OPS.index("open"), OPS.index("close")]] = 2

_NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCounts:
    """Accesses with a known offset, and how many of them were sequential and consecutive. Counts add."""

    accesses: int = 0
    sequential: int = 0
    consecutive: int = 0

    def __add__(self, other: AccessCounts) -> AccessCounts:
        return AccessCounts(
            accesses=self.accesses + other.accesses,
            sequential=self.sequential + other.sequential,
            consecutive=self.consecutive + other.consecutive,
        )

    @property
    def sequential_pct(self) -> float | None:
        """Per cent of the accesses; None without any."""
        return 100 * self.sequential / self.accesses if self.accesses else None

    @property
    def consecutive_pct(self) -> float | None:
        """Per cent of the accesses; None without any."""
        return 100 * self.consecutive / self.accesses if self.accesses else None


class AccessPattern(Sums):
    """Counts the accesses of one rank after another. Its state is the last byte per file and direction of one rank."""

    def __init__(self, files: int) -> None:
        self._state = np.zeros((2 * files, 3), dtype=np.int64)  # as of `follow_last_bytes`
        self._state[:, 0] = _NOBODY
        self._stretch_of: int | None = None
        self.counts = AccessCounts()

    def begin_stretch(self, rank: int) -> None:
        """The rows to come follow others of their rank."""
        self._stretch_of = rank

    def add(self, rows: OperationRows) -> None:
        """Operations of one rank, which continue its earlier ones, or all operations of several ranks.

        Counts reads and writes unless their offset is unknown (negative). An open or a close resets the last byte;
        other operations are ignored.
        """
        ranks = rows.ranks if len(rows.ranks) else np.array([rows.rank])
        counts = follow_last_bytes(self._state, ranks, _KINDS[rows.op], rows.file_id, rows.offset, rows.length)
        self.counts += AccessCounts(**dict(zip(AccessCounts.__slots__, counts, strict=True)))

    def merge(self, later: AccessPattern) -> None:
        """As `Sums.merge`. A stretch took 0 for the last bytes before it."""
        self.counts += later.counts
        if later._stretch_of is None:
            return
        seen = np.flatnonzero(later._state[:, 0] == later._stretch_of)
        known = self._state[seen, 0] == later._stretch_of
        first, before = later._state[seen[known], 1], self._state[seen[known], 2]
        self.counts += AccessCounts(
            sequential=int(np.sum(first > before) - np.sum(first > 0)),
            consecutive=int(np.sum(first == before + 1) - np.sum(first == 1)),
        )
        self._state[seen] = later._state[seen]

    def __getstate__(self) -> dict[str, Any]:
        """Only a stretch sends its state."""
        return {**self.__dict__, "_state": None} if self._stretch_of is None else self.__dict__
