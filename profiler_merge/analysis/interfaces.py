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

from dxt_replay.traces.measures._passes import add_at
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
    """Counts rows by interface."""

    def __init__(self) -> None:
        # By the column `api`: traced reads and writes, rows from counters, and bytes of the traced ones.
        self._sums = np.zeros((4, len(APIS)), dtype=np.int64)

    def add(self, rows: OperationRows) -> None:
        """Add reads and writes, traced and reconstructed."""
        kind = np.where(rows.origin == RECONSTRUCTED, 2, rows.op == WRITE)
        self._sums[:3] += np.bincount(kind * len(APIS) + rows.api, minlength=3 * len(APIS)).reshape(3, -1)
        add_at(self._sums[3], rows.api, rows.length * (kind < 2))

    def totals(self, counted: Mapping[str, Counts]) -> dict[str, InterfaceTotals]:
        """Interfaces that were used. `counted`: what counters say of some, also of those without rows."""
        found: dict[str, InterfaceTotals] = {}
        for name in [*INTERFACES, *(name for name in counted if name not in INTERFACES)]:
            sums = self._sums[:, [APIS.index(api) for api in INTERFACES.get(name, ())]].sum(axis=1).tolist()
            reads, writes, moved = counted.get(name, (*sums[:2], sums[3]))
            if reads or writes or moved or sums[2] or name not in INTERFACES:
                found[name] = InterfaceTotals(
                    operations=reads + writes,
                    bytes=moved,
                    reads=reads,
                    writes=writes,
                    reconstructed=sums[2],
                    source="counters" if name in counted else "operations",
                )
        return found


Counts = tuple[int, int, int | None]
"""Reads, writes and bytes of an interface; None where a counter lacks the bytes."""


def counts_of(files: pa.Table) -> dict[str, Counts]:
    """By interface, the counters of these rows of a files table, as far as a module has a record of any file."""
    found: dict[str, Counts] = {}
    for name, prefix in _COUNTER_PREFIX.items():
        if files[f"{prefix}_reads"].null_count == files.num_rows:
            continue
        moved: int | None = _sum(files, f"{prefix}_bytes_read") + _sum(files, f"{prefix}_bytes_written")
        for operations, column in (("reads", "bytes_read"), ("writes", "bytes_written")):
            used, unknown = pc.greater(files[f"{prefix}_{operations}"], 0), pc.is_null(files[f"{prefix}_{column}"])
            if pc.any(pc.and_(used, unknown)).as_py():
                moved = None
        found[name] = _sum(files, f"{prefix}_reads"), _sum(files, f"{prefix}_writes"), moved
    return found


def counts_alone(counted_times: Mapping[str, Mapping[str, Any]]) -> dict[str, Counts]:
    """Interfaces without rows and without counters of files in a capture, from its `counted_times`."""
    return {
        name: (each["reads"], each["writes"], None if None in moved else sum(moved))
        for name, each in counted_times.items()
        if name not in INTERFACES and each["reads"] is not None
        for moved in [(each["bytes_read"], each["bytes_written"])]
    }


def posix_pattern(files: pa.Table) -> AccessCounts | None:
    """Darshan's own sequential and consecutive counts over these rows of a files table; None without any."""
    accesses, sequential, consecutive = (
        _sum(files, f"posix_{kind}reads") + _sum(files, f"posix_{kind}writes") for kind in ("", "seq_", "consec_")
    )
    if not accesses or files["posix_seq_reads"].null_count == files.num_rows:
        return None
    return AccessCounts(accesses, sequential, consecutive)


def _sum(table: pa.Table, column: str) -> int:
    """Sum without the nulls and without Darshan's -1 for "not counted"; Python integers, so that nothing overflows."""
    values = table[column].drop_null().to_numpy()
    return sum(values[values > 0].tolist())
