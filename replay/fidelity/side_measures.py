"""Collects all measures of one of the two captures of a comparison, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dxt_replay.replay.fidelity.curves import CurveCollector
from dxt_replay.replay.fidelity.replayed_rows import ReplayedCapture, ReplayedRows, first_start_ns
from dxt_replay.replay.fidelity.replayer_share import LatenessCollector
from dxt_replay.replay.fidelity.sequences import RankSequences, SequenceCollector
from dxt_replay.replay.fidelity.similarity import factors
from dxt_replay.traces.measures.access_pattern import AccessPattern
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.io_totals import IoCollector, IoTotals
from dxt_replay.traces.measures.lane_times import LaneTimeCollector
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.schema import RECONSTRUCTED
from dxt_replay.traces.sums import Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Facts of a capture that its measures need: the begin of its curves, and `ReplayedCapture.least_stride`."""

    origin_ns: int
    stride: int

    @classmethod
    def of(cls, replayed: ReplayedCapture) -> Start:
        """Raises: CaptureError when a part is damaged."""
        return cls(origin_ns=first_start_ns(replayed.capture), stride=replayed.least_stride())


class Measures(Sums):
    """Collects the measures of one capture, rank by rank. `numbers`: by file_id, the file numbers that both captures
    share, below `files`.

    `operations`: of any kind; `failed`: those that returned an error; `in_calls_ns`: the sum of their durations.
    `transfers`: reads and writes; `reconstructed`, `reconstructed_bytes`: those of them that no trace holds.
    """

    STAY = ("_replayed", "_numbers", "_compute", "_mine")

    def __init__(self, replayed: ReplayedCapture, numbers: np.ndarray, files: int, start: Start) -> None:
        capture = replayed.capture
        self._replayed = replayed
        self._mine = frozenset(capture.ranks)
        self._numbers, self._files = numbers, files
        self._compute = union_by_rank(capture.spans, "compute")
        self._io = IoCollector(capture.files.num_rows, self._compute)
        self._pattern = AccessPattern(capture.files.num_rows)
        self._latency = DistributionCollector()
        self._limits_ns: tuple[int, int, int] | None = None  # first start, last start, last end
        self.lanes = LaneTimeCollector(stride=start.stride)
        self.lateness = LatenessCollector()
        self.curves = CurveCollector(start.origin_ns)
        self.failed = 0
        self.operations = 0
        self.in_calls_ns = 0
        self.transfers = 0
        self.reconstructed = 0
        self.reconstructed_bytes = 0

    def add_ranks(self, ranks: Sequence[int]) -> RankSequences:
        """Measure one rank, or several that fit into memory together, and return what they did.

        Raises: CaptureError when a part is damaged.
        """
        sequences = SequenceCollector()
        mine = [rank for rank in ranks if rank in self._mine]
        parts = self._replayed.rows(mine[0]) if len(ranks) == 1 == len(mine) else (self._replayed.rows_together(mine),)
        for part in parts if mine else ():
            self._add(part)
            sequences.add(part.rows, self._file_numbers(part.rows, ranks))
            sequences.add(part.others, self._file_numbers(part.others, ranks))
        return sequences.sequences()

    def _file_numbers(self, rows: OperationRows, ranks: Sequence[int]) -> np.ndarray:
        """The number of the file of each row, as of `RankSequences`."""
        numbers = self._numbers[rows.file_id]
        return numbers + self._files * np.searchsorted(ranks, rows.ranks) if len(rows.ranks) else numbers

    def _add(self, part: ReplayedRows) -> None:
        rows = part.rows
        self.failed += int(part.others_failed.sum())
        self.operations += len(part.others)
        self.in_calls_ns += int(part.others.duration_ns.sum())
        if not len(rows):
            return
        duration_ns = rows.duration_ns
        self._io.add(rows)
        self._pattern.add(rows)
        self._latency.add(duration_ns)
        self.in_calls_ns += int(duration_ns.sum())
        self.lanes.add(rows)
        self.curves.add(rows)
        self.lateness.add(part)
        self.failed += int(part.failed.sum())
        self.operations += len(rows)
        untraced = rows.origin == RECONSTRUCTED
        self.transfers += len(rows)
        self.reconstructed += int(untraced.sum())
        self.reconstructed_bytes += int(rows.length[untraced].sum())
        self._widen((int(rows.start_ns.min()), int(rows.start_ns.max()), int(rows.end_ns.max())))

    def merge(self, later: Measures) -> None:
        """As `Sums.merge`."""
        self._io.merge(later._io)
        self._pattern.merge(later._pattern)
        self._latency.merge(later._latency)
        self.lanes.merge(later.lanes)
        self.lateness.merge(later.lateness)
        self.curves.merge(later.curves)
        for name in ("failed", "operations", "in_calls_ns", "transfers", "reconstructed", "reconstructed_bytes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        if later._limits_ns is not None:
            self._widen(later._limits_ns)

    def _widen(self, limits_ns: tuple[int, int, int]) -> None:
        first, last, end = self._limits_ns or limits_ns
        self._limits_ns = min(first, limits_ns[0]), max(last, limits_ns[1]), max(end, limits_ns[2])

    def limits_ns(self) -> tuple[int, int] | None:
        """First start and last end of the reads and writes; None without any."""
        return None if self._limits_ns is None else (self._limits_ns[0], self._limits_ns[2])

    def begins_ns(self) -> tuple[int, int] | None:
        """First and last start of the reads and writes; None without any."""
        return None if self._limits_ns is None else self._limits_ns[:2]

    @cached_property
    def totals(self) -> IoTotals:
        """Totals of all ranks; call it after the last rank."""
        return self._io.totals()

    def factors(self) -> dict[str, float]:
        """The paper's ten factors; all ranks of the job share the I/O time."""
        ranks = max(self._replayed.capture.info.job.nprocs, len(self._replayed.capture.ranks))
        return factors(self.totals, self._pattern.counts, ranks)

    @cached_property
    def latency_ns(self) -> Distribution:
        """Durations of the reads and writes, ns; call it after the last rank."""
        return self._latency.distribution()

    def distributions(self) -> dict[str, Distribution]:
        """Transfer sizes in bytes, gaps between starts and latencies in ns."""
        return {
            "transfer_size": self.totals.size_bytes,
            "inter_arrival": self.lanes.gaps_ns(),
            "latency": self.latency_ns,
        }

    def overlap_pct(self) -> float | None:
        """Share of the I/O time (union per rank) that lies inside compute-busy, over the ranks where that is known."""
        ranks = [rank for rank in self.totals.ranks if rank.rank in self._compute]
        union_ns = sum(rank.union_ns for rank in ranks)
        return 100 * sum(rank.hidden_ns for rank in ranks) / union_ns if union_ns else None
