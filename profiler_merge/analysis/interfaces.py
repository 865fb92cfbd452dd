"""Operations and bytes per I/O interface, from Darshan's counters if the capture has them, else from its rows.

Counters are preferred because they include I/O that DXT does not trace: stdio, and operations beyond the trace's
memory. For a replay the rows decide, since its files table still holds the counters of the recorded job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.measures.access_pattern import AccessCounts
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.part import INTERFACES
from dxt_replay.traces.schema import APIS, RECONSTRUCTED, WRITE
from dxt_replay.traces.sums import Sums

_COUNTER_PREFIX = {"POSIX": "posix", "STDIO": "stdio", "MPIIO": "mpiio", "HDF5": "h5d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceTotals:
    """Reads and writes of one interface. The layers overlap, so their totals do not add up.

    bytes: None where a counter lacks them. source: counters or operations.
    reconstructed: rows of the op stream that come from counters, not from a trace.
    """

    operations: int
    bytes: int | None
    reads: int
    writes: int
    reconstructed: int
    source: str


class InterfaceCollector(Sums):
    """Counts rows by interface, and adds the counters at the end."""

    def __init__(self) -> None:
        self._traced = np.zeros(2 * len(APIS), dtype=np.int64)
        self._bytes = np.zeros(len(APIS), dtype=np.int64)
        self._reconstructed = np.zeros(len(APIS), dtype=np.int64)

    def add(self, rows: OperationRows) -> None:
        """Add reads and writes, traced and reconstructed."""
        if not len(rows):
            return
        traced = rows.where(rows.origin != RECONSTRUCTED)
        by_cell = np.bincount(2 * traced.api + (traced.op == WRITE), minlength=self._traced.size)
        self._traced += by_cell
        for api in np.flatnonzero(by_cell.reshape(-1, 2).any(axis=1)).tolist():
            self._bytes[api] += traced.where(traced.api == api).length.sum()
        if len(traced) < len(rows):
            self._reconstructed += np.bincount(rows.api[rows.origin == RECONSTRUCTED], minlength=len(APIS))

    def merge(self, later: InterfaceCollector) -> None:
        """As `Sums.merge`."""
        self._traced += later._traced
        self._bytes += later._bytes
        self._reconstructed += later._reconstructed

    def totals(self, counted: pa.Table | None) -> dict[str, InterfaceTotals]:
        """Interfaces that were used. `counted`: the rows of the files table whose counters apply, if any do."""
        found: dict[str, InterfaceTotals] = {}
        for name, apis in INTERFACES.items():
            index = [APIS.index(api) for api in apis]
            reconstructed = int(self._reconstructed[index].sum())
            prefix = _COUNTER_PREFIX.get(name)
            from_counters = None if counted is None or prefix is None else _from_counters(counted, prefix)
            if from_counters is None:
                reads, writes = self._traced.reshape(-1, 2)[index].sum(axis=0).tolist()
                moved: int | None = int(self._bytes[index].sum())
                source = "operations"
            else:
                (reads, writes, moved), source = from_counters, "counters"
            if reads or writes or moved or reconstructed:
                found[name] = InterfaceTotals(
                    operations=reads + writes,
                    bytes=moved,
                    reads=reads,
                    writes=writes,
                    reconstructed=reconstructed,
                    source=source,
                )
        return found


def totals_alone(counted_times: Mapping[str, Mapping[str, Any]]) -> dict[str, InterfaceTotals]:
    """Interfaces without rows and without counters of files in a capture, from its `counted_times`."""
    return {
        name: InterfaceTotals(
            operations=each["reads"] + each["writes"],
            bytes=None
            if None in (each["bytes_read"], each["bytes_written"])
            else each["bytes_read"] + each["bytes_written"],
            reads=each["reads"],
            writes=each["writes"],
            reconstructed=0,
            source="counters",
        )
        for name, each in counted_times.items()
        if name not in INTERFACES and each["reads"] is not None
    }


def posix_pattern(counted: pa.Table) -> AccessCounts | None:
    """Darshan's own sequential and consecutive counts over these rows of a files table; None without any."""
    accesses = _sum(counted, "posix_reads") + _sum(counted, "posix_writes")
    if not accesses or counted["posix_seq_reads"].null_count == counted.num_rows:
        return None
    return AccessCounts(
        accesses=accesses,
        sequential=_sum(counted, "posix_seq_reads") + _sum(counted, "posix_seq_writes"),
        consecutive=_sum(counted, "posix_consec_reads") + _sum(counted, "posix_consec_writes"),
    )


def _from_counters(counted: pa.Table, prefix: str) -> tuple[int, int, int | None] | None:
    """Reads, writes and bytes; None if the interface's module has no record of any file."""
    if counted[f"{prefix}_reads"].null_count == counted.num_rows:
        return None
    moved: int | None = _sum(counted, f"{prefix}_bytes_read") + _sum(counted, f"{prefix}_bytes_written")
    for operations, column in (("reads", "bytes_read"), ("writes", "bytes_written")):
        if pc.any(
            pc.and_(pc.greater(counted[f"{prefix}_{operations}"], 0), pc.is_null(counted[f"{prefix}_{column}"]))
        ).as_py():
            moved = None
    return _sum(counted, f"{prefix}_reads"), _sum(counted, f"{prefix}_writes"), moved


def _sum(table: pa.Table, column: str) -> int:
    """Sum without the nulls and without Darshan's -1 for "not counted"; Python integers, so that nothing overflows."""
    values = table[column].drop_null().to_numpy()
    return sum(values[values > 0].tolist())
