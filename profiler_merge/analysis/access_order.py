"""The order in which a rank reads or writes a file, access by access. Pure.

Each access is compared with the previous one of the same rank, file and direction. In Darshan's sense it is
*sequential* if it begins beyond that one's last byte, and *consecutive* if it begins directly behind it. It has at most
one further class:
- *strided*: not consecutive, and at the same distance from the previous access as that one from its own predecessor; -
  *restart*: at offset 0 again, as a new pass over the file begins;
- *random*: none of consecutive, strided and restart.
A jump ahead of any size is sequential for Darshan and random here, because its place cannot be predicted. Reads of 0
bytes, at the end of a file, have no class.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.stable_order import runs, stable_order
from dxt_replay.traces.schema import WRITE

_UNKNOWN = np.iinfo(np.int64).min


class AccessOrder:
    """Classifies the accesses of one rank. State per file and direction: two last offsets and the last length."""

    def __init__(self, files: int) -> None:
        self._offset = np.full(2 * files, _UNKNOWN, dtype=np.int64)
        self._length = np.zeros(2 * files, dtype=np.int64)
        self._distance = np.full(2 * files, _UNKNOWN, dtype=np.int64)

    def classes(self, rows: OperationRows) -> Iterator[tuple[str, np.ndarray, OperationRows]]:
        """(class, mask, rows) of further reads and writes, in start order; the rows of all classes are the same.

        Leaves out rows without a known offset or without a byte.
        """
        rows = rows.where((rows.offset >= 0) & (rows.length > 0))
        if not len(rows):
            return
        key = 2 * rows.file_id.astype(np.int64) + (rows.op == WRITE)
        order = stable_order(key)
        rows = _taken(rows, order)
        key = key[order]
        first = runs(key)
        before, length, distance = self._before(rows, key, first)
        known = before != _UNKNOWN
        moved = np.where(known, rows.offset - np.where(known, before, 0), _UNKNOWN)
        self._keep(rows, key, first, moved)
        gap = moved - length
        consecutive = known & (gap == 0)
        strided = known & ~consecutive & (moved == distance) & (moved != 0)
        restart = known & ~consecutive & ~strided & (rows.offset == 0)
        yield "sequential", known & (gap >= 0), rows
        yield "consecutive", consecutive, rows
        yield "strided", strided, rows
        yield "restarts", restart, rows
        yield "random", known & ~consecutive & ~strided & ~restart, rows

    def _before(
        self, rows: OperationRows, key: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offset and length of the previous access of each, and that one's distance from its own predecessor."""
        before, length = np.roll(rows.offset, 1), np.roll(rows.length, 1)
        before[first], length[first] = self._offset[key[first]], self._length[key[first]]
        moved = np.where(before != _UNKNOWN, rows.offset - np.where(before != _UNKNOWN, before, 0), _UNKNOWN)
        distance = np.roll(moved, 1)
        distance[first] = self._distance[key[first]]
        return before, length, distance

    def _keep(self, rows: OperationRows, key: np.ndarray, first: np.ndarray, moved: np.ndarray) -> None:
        last = np.concatenate((first[1:], [len(key)])) - 1
        self._offset[key[last]] = rows.offset[last]
        self._length[key[last]] = rows.length[last]
        self._distance[key[last]] = moved[last]


def _taken(rows: OperationRows, order: np.ndarray) -> OperationRows:
    """The rows in another order; columns that this module does not use stay empty."""
    return OperationRows(
        rank=rows.rank,
        **{name: getattr(rows, name)[order] for name in ("op", "api", "file_id", "offset", "length", "origin")},
        start_ns=rows.start_ns[order],
        end_ns=rows.end_ns[order],
    )
