"""Totals of the reads and writes of a capture, collected in one pass: counts, bytes, times, sizes, bandwidths.

A summary and a comparison use the same collector, so that their numbers cannot differ in definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures._passes import rates
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.intervals import BoundedUnion, Intervals, StreamingUnion, group_unions
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import WRITE
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import MIB, NS_PER_S

MIB_PER_S_FROM_BYTES_PER_NS = NS_PER_S / MIB


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One rank's reads and writes.

    sum_ns: durations added up, so threads in parallel count several times.
    union_ns: time in which at least one read or write was in flight.
    hidden_ns: the part of `union_ns` during which the rank computed.
    """

    rank: int
    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    sum_ns: int = 0
    union_ns: int = 0
    hidden_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IoTotals:
    """All reads and writes.

    ranks: the ranks that had any.
    files_used: bool (files,).
    size_bytes: lengths of all operations.
    bandwidth_mib_s: length / duration of each operation that moved bytes in measurable time.
    unmeasured: operations that moved bytes in a recorded duration of 0.
    busy: times in which any rank had an operation in flight, too long by at most `busy_excess_ns`.
    """

    ranks: tuple[RankTotals, ...]
    files_used: np.ndarray
    size_bytes: Distribution
    bandwidth_mib_s: Distribution
    unmeasured: int
    busy: Intervals
    busy_excess_ns: int

    def total(self, quantity: str) -> int:
        """Sum of one field of `RankTotals` over the ranks."""
        return sum(getattr(rank, quantity) for rank in self.ranks)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.total("bytes_read") + self.total("bytes_written")

    @property
    def aggregate_mib_s(self) -> float | None:
        """Bytes moved per second in which any rank had an operation in flight; None without any."""
        busy_ns = self.busy.length_ns
        return self.bytes_moved / MIB * NS_PER_S / busy_ns if busy_ns else None


class IoCollector(Sums):
    """Collects `IoTotals` from rows of one rank after another, or of all of several ranks.

    `files`: rows of the files table; `compute`: times in which each rank computed, where they are known.
    """

    STAY = ("_compute", "_union", "_rank")

    def __init__(self, files: int, compute: Mapping[int, Intervals]) -> None:
        self._compute = compute
        self._files_used = np.zeros(files, dtype=bool)
        # The fields of `RankTotals`, int64 (ranks, fields) each; a rank may occur again, in the next ones.
        self._ranks: list[np.ndarray] = []
        self._rank: int | None = None
        self._union = StreamingUnion()
        self._busy = BoundedUnion()
        self._size = DistributionCollector()
        self._bandwidth = DistributionCollector()
        self._unmeasured = 0

    def add(self, rows: OperationRows) -> None:
        """Add reads and writes, in start order."""
        if not len(rows):
            return
        duration_ns = rows.duration_ns
        self._files_used[rows.file_id] = True
        self._size.add(rows.length)
        measured, unmeasured = rates(rows.length, duration_ns, MIB_PER_S_FROM_BYTES_PER_NS)
        self._bandwidth.add(measured)
        self._unmeasured += unmeasured
        if len(rows.ranks) or rows.rank != self._rank:
            self._rank, self._union = rows.rank, StreamingUnion()
        self._ranks.append(self._of_rows(rows))

    def _of_rows(self, rows: OperationRows) -> np.ndarray:
        """The fields of `RankTotals` of each rank of the rows."""
        first = runs(rows.ranks) if len(rows.ranks) else np.zeros(1, dtype=np.int64)
        ranks = rows.ranks[first].astype(np.int64) if len(rows.ranks) else np.array([rows.rank])
        counts = np.diff(first, append=len(rows))
        hidden = np.zeros(len(ranks), dtype=np.int64)
        if len(rows.ranks):
            union, place = group_unions(rows.start_ns, rows.end_ns, np.repeat(np.arange(len(ranks)), counts))
        else:
            union = Intervals.of_ascending(*self._union.add(rows.start_ns, rows.end_ns))
            place = np.zeros(len(union), dtype=np.int64)
        self._busy.add_union(union)
        bounds = np.searchsorted(place, np.arange(len(ranks) + 1))
        lengths = np.concatenate(([0], np.cumsum(union.ends - union.starts)))
        for number, rank in enumerate(ranks.tolist() if self._compute else ()):
            if (compute := self._compute.get(rank)) is not None:
                part = slice(bounds[number], bounds[number + 1])
                hidden[number] = compute.covered_within(union.starts[part], union.ends[part]).sum()
        written = rows.op == WRITE
        amounts = (written, rows.length * written, rows.length, rows.duration_ns)
        writes, bytes_written, moved, took = (np.add.reduceat(each, first, dtype=np.int64) for each in amounts)
        columns = (ranks, counts - writes, writes, moved - bytes_written, bytes_written, took, np.diff(lengths[bounds]))
        return np.stack((*columns, hidden), axis=1)

    def totals(self) -> IoTotals:
        """Totals of all that was added."""
        fields = np.concatenate([np.zeros((0, len(RankTotals.__slots__)), dtype=np.int64), *self._ranks])
        first = runs(fields[:, 0])
        sums = np.add.reduceat(fields, first) if len(first) else fields
        sums[:, 0] = fields[first, 0]
        return IoTotals(
            ranks=tuple(RankTotals(*row) for row in sums.tolist()),
            files_used=self._files_used.copy(),
            size_bytes=self._size.distribution(),
            bandwidth_mib_s=self._bandwidth.distribution(),
            unmeasured=self._unmeasured,
            busy=self._busy.intervals(),
            busy_excess_ns=self._busy.closed_ns,
        )
