"""Sequential and consecutive accesses by Darshan's definition, batch by batch.

Per rank, file and direction: `last_byte` starts at 0; an access is sequential if offset > last_byte, consecutive if
offset == last_byte + 1; then last_byte = offset + length - 1. Darshan sets last_byte back to 0 whenever the file is
opened or closed (darshan-posix.c, POSIX_RECORD_READ and POSIX_RECORD_OPEN), so the first access at offset 0 is neither.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from dxt_replay.traces.measures._passes import follow_last_bytes
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.sums import Sums

_KINDS = np.full(len(OPS), -1, dtype=np.int8)
"""By operation, the kinds of `follow_last_bytes`."""
_KINDS[[READ, WRITE]] = 0, 1
_KINDS[[OPS.index("open"), OPS.index("close")]] = 2


@dataclass(frozen=True, slots=True)
class AccessCounts:
    """Accesses with a known offset, and how many of them were sequential and consecutive. Counts add."""

    accesses: int = 0
    sequential: int = 0
    consecutive: int = 0

    def __add__(self, other: AccessCounts) -> AccessCounts:
        return AccessCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

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

    STAY = ("_state",)

    def __init__(self, files: int) -> None:
        self._state = np.full((2 * files, 3), (-1, 0, 0), dtype=np.int64)  # as of `follow_last_bytes`: of no rank
        self.counts = AccessCounts()

    def add(self, rows: OperationRows) -> None:
        """Operations of one rank, which continue its earlier ones, or all operations of several ranks.

        Counts reads and writes unless their offset is unknown (negative). An open or a close resets the last byte;
        other operations are ignored.
        """
        ranks = rows.ranks if len(rows.ranks) else np.array([rows.rank])
        found = follow_last_bytes(self._state, ranks, _KINDS[rows.op], rows.file_id, rows.offset, rows.length)
        self.counts += AccessCounts(*found)
