"""Sequential and consecutive accesses by Darshan's definition, batch by batch.

Per rank, file and direction: `last_byte` starts at 0; an access is sequential if offset > last_byte, consecutive if
offset == last_byte + 1; then last_byte = offset + length - 1. Darshan sets last_byte back to 0 whenever the file is
opened or closed (darshan-posix.c, POSIX_RECORD_READ and POSIX_RECORD_OPEN), so the first access at offset 0 is neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.stable_order import runs, stable_order
from dxt_replay.traces.schema import OPS, WRITE
from dxt_replay.traces.sums import Sums

_OPEN = OPS.index("open")
_CLOSE = OPS.index("close")


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

    STAY = ("_last_byte", "_rank")

    def __init__(self, files: int) -> None:
        self._last_byte = np.zeros(2 * files, dtype=np.int64)
        self._rank: int | None = None
        self.counts = AccessCounts()

    def add(self, rows: OperationRows) -> None:
        """Operations of one rank, which continue its earlier ones, or all operations of several ranks.

        Counts reads and writes unless their offset is unknown (negative). An open or a close resets the last byte;
        other operations are ignored.
        """
        events = _events(rows, len(self._last_byte))
        if not len(events.key):
            return
        order = stable_order(events.key)
        key, offset, last = events.key[order], events.offset[order], events.last_byte[order]
        new_key = runs(key)
        before = np.concatenate(([0], last[:-1]))
        if len(rows.ranks):
            before[new_key] = 0
        else:
            if rows.rank != self._rank:
                self._rank = rows.rank
                self._last_byte[:] = 0
            before[new_key] = self._last_byte[key[new_key]]
            final = np.concatenate((new_key[1:], [len(key)])) - 1
            self._last_byte[key[final]] = last[final]
        sequential, consecutive = offset > before, offset == before + 1
        self.counts += AccessCounts(
            accesses=int(np.count_nonzero(offset >= 0)),
            sequential=int(np.count_nonzero(sequential & (offset >= 0))),
            consecutive=int(np.count_nonzero(consecutive & (offset >= 0))),
        )

    def merge(self, later: AccessPattern) -> None:
        """As `Sums.merge`."""
        self.counts += later.counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Events:
    """Events that change a last byte.

    key: 2 * file + direction, distinct for each rank.
    offset: -1 for a reset.
    last_byte: its value after the event."""

    key: np.ndarray
    offset: np.ndarray
    last_byte: np.ndarray


def _events(rows: OperationRows, keys: int) -> _Events:
    """One event for each access with a known offset, and one for each direction of each open and close.

    `keys`: those of one rank."""
    access = rows.data & (rows.offset >= 0)
    reset = (rows.op == _OPEN) | (rows.op == _CLOSE)
    if not reset.any():
        rows = rows.where(access)
        key = _rank_keys(rows, keys) + 2 * rows.file_id.astype(np.int64) + (rows.op == WRITE)
        return _Events(key=key, offset=rows.offset, last_byte=rows.offset + rows.length - 1)
    place = np.repeat(np.arange(len(rows)), access + 2 * reset.astype(np.int8))
    second = np.concatenate(([False], place[1:] == place[:-1]))
    access = access[place]
    key = _rank_keys(rows, keys)[place] + 2 * rows.file_id[place].astype(np.int64)
    key += (rows.op[place] == WRITE) | second
    offset = np.where(access, rows.offset[place], -1)
    return _Events(key=key, offset=offset, last_byte=np.where(access, offset + rows.length[place] - 1, 0))


def _rank_keys(rows: OperationRows, keys: int) -> np.ndarray:
    """Offset by row (n,) that keeps the keys of several ranks distinct."""
    return rows.by_rank().index * keys if len(rows) else np.zeros(0, dtype=np.int64)
