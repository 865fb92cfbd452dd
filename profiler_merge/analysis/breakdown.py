"""Totals of the reads and writes grouped by rank, file, format, step or transfer size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import FORMATS, NO_STEP, WRITE, codes
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import NS_PER_S, format_bytes

_COLUMNS = 5
_PENDING_GROUPS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """One group. `group`: the rank or step as a number, the path, the format, or the sizes as text.

    `io_ns` and `io_time_s`: sum of the durations, in both units.
    """

    group: int | str
    reads: int
    writes: int
    bytes_read: int
    bytes_written: int
    io_ns: int
    io_time_s: float


class BreakdownCollector(Sums):
    """Collects `GroupTotals` for one of `tables.GROUPINGS`; its memory grows only with the number of groups."""

    STAY = ("_key", "_label")

    def __init__(self, by: str, files: pa.Table) -> None:
        self._key, self._label = _grouping(by, files)
        self._groups = np.zeros(0, dtype=np.int64)
        self._totals = np.zeros((0, _COLUMNS), dtype=np.int64)
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []
        self._pending_groups = 0

    def add(self, rows: OperationRows) -> None:
        """Add reads and writes."""
        if not len(rows):
            return
        groups, place = np.unique(self._key(rows), return_inverse=True)
        written = rows.op == WRITE
        columns = (~written, written, rows.length * ~written, rows.length * written, rows.duration_ns)
        sums = [np.bincount(place, weights=column, minlength=len(groups)).astype(np.int64) for column in columns]
        self._pending.append((groups, np.stack(sums, axis=1)))
        self._pending_groups += len(groups)
        if self._pending_groups > max(_PENDING_GROUPS, len(self._groups)):
            self._merge()

    def merge(self, later: BreakdownCollector) -> None:
        """As `Sums.merge`."""
        self._pending += [(later._groups, later._totals), *later._pending]
        self._pending_groups += len(later._groups) + later._pending_groups
        self._merge()

    def _merge(self) -> None:
        parts = [(self._groups, self._totals), *self._pending]
        self._pending, self._pending_groups = [], 0
        groups, totals = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        if not len(groups):
            return
        order = stable_order(groups)
        groups, totals = groups[order], totals[order]
        first = runs(groups)
        self._groups, self._totals = groups[first], np.add.reduceat(totals, first, axis=0)

    def groups(self) -> tuple[GroupTotals, ...]:
        """The groups, in the order of their key."""
        self._merge()
        return tuple(
            GroupTotals(
                group=self._label(key),
                reads=reads,
                writes=writes,
                bytes_read=bytes_read,
                bytes_written=bytes_written,
                io_ns=duration_ns,
                io_time_s=duration_ns / NS_PER_S,
            )
            for key, (reads, writes, bytes_read, bytes_written, duration_ns) in zip(
                self._groups.tolist(), self._totals.tolist(), strict=True
            )
        )


def _size_class(rows: OperationRows) -> np.ndarray:
    """0 for length 0, otherwise k for 2**(k-1) <= length < 2**k."""
    size_class: np.ndarray = np.frexp(rows.length)[1].astype(np.int64)
    return size_class


def _size_label(size_class: int) -> str:
    if size_class <= 0:
        return "0 B"
    if size_class == 1:
        return "1 B"
    return f"{format_bytes(1 << (size_class - 1))} to < {format_bytes(1 << size_class)}"


def _grouping(by: str, files: pa.Table) -> tuple[Callable[[OperationRows], np.ndarray], Callable[[int], int | str]]:
    """Functions that give rows a key (int64), and keys their label."""
    if by == "rank":
        return lambda rows: np.full(len(rows), rows.rank), lambda rank: rank
    if by == "file":
        paths = files["path"].to_pylist()
        return lambda rows: rows.file_id, lambda file_id: paths[file_id]
    if by == "format":
        formats = codes(files, "format").astype(np.int64)
        return lambda rows: formats[rows.file_id], lambda code: FORMATS[code]
    if by == "step":
        return lambda rows: np.maximum(rows.step, NO_STEP), lambda step: step
    return _size_class, _size_label
