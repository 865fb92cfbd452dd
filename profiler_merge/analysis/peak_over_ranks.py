"""Largest number of operations in flight over all ranks, per bin: the one pass that is shared by stretches of time.

All ranks must be read together, so ranks cannot be shared. A stretch needs the operations that start in it, and those
that are still in flight when it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dxt_replay.profiler_merge.analysis.collect import at_one_layer
from dxt_replay.profiler_merge.analysis.concurrency import PeaksPerBin, in_time_order
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import TIME_COLUMNS, OperationRows, rows_of_batch
from dxt_replay.traces.schema import RECONSTRUCTED
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import Workers

_ROW_GROUPS = 4
"""Row groups of a rank in a stretch of time, at least on average: those at its ends are read twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeaksOverRanks:
    """Peaks of the traced reads and writes that count, in bins of `bin_ns` from `start_ns` on."""

    capture: Capture
    layers: FileLayers
    start_ns: int
    bin_ns: int

    def peaks(self, bins: int, workers: Workers) -> np.ndarray:
        """int64 (bins,), the same for any stretches. Raises: CaptureError when a part is damaged."""
        stretches = list(pairwise(self._cuts(bins, workers.piece_operations)))
        operations = self.capture.stored_rows()
        with workers.results(self, stretches, operations=operations, named=_named) as results:
            return np.concatenate(list(results))

    def __call__(self, stretch: tuple[int, int]) -> np.ndarray:
        """The peaks of the bins from the first to before the second."""
        begin, end = (self.start_ns + self.bin_ns * place for place in stretch)
        peaks = PeaksPerBin(self.bin_ns)
        for starts, ends in in_time_order([self._stream(rank, begin, end) for rank in self.capture.ranks]):
            peaks.add(starts - begin, ends - begin)
        return peaks.peaks(stretch[1] - stretch[0])

    def _stream(self, rank: int, begin_ns: int, end_ns: int) -> Iterator[OperationRows]:
        """The operations of a rank that are in flight in a stretch, without their times outside of it."""
        index = self.capture.index
        groups = index.of(rank)
        ongoing = groups[index.last_ns[groups] > begin_ns]
        first_ns = min(int(index.first_ns[ongoing[0]]), begin_ns) if len(ongoing) else begin_ns
        for batch in self.capture.operations(rank, columns=TIME_COLUMNS, starts_ns=(first_ns, end_ns)):
            rows = at_one_layer(rows_of_batch(batch, rank, TIME_COLUMNS), self.layers)
            inside = (rows.end_ns > begin_ns) & (rows.start_ns < end_ns)
            rows = rows.where(rows.data & (rows.origin != RECONSTRUCTED) & inside)
            yield replace(rows, start_ns=np.maximum(rows.start_ns, begin_ns), end_ns=np.minimum(rows.end_ns, end_ns))

    def _cuts(self, bins: int, piece_operations: int) -> list[int]:
        """The first bin of each stretch, and the number of bins: about equally many operations start in each."""
        index = self.capture.index
        most = len(index.rows) // (_ROW_GROUPS * max(len(index.ranks), 1))
        count = min(int(index.rows.sum()) // piece_operations, most)
        order = np.argsort(index.first_ns, kind="stable")
        done = np.cumsum(index.rows[order])
        places = np.searchsorted(done, done[-1] * np.arange(1, count) // count) if count > 1 else []
        cuts = (index.first_ns[order][places] - self.start_ns) // self.bin_ns
        return np.unique(np.clip([0, *cuts, bins], 0, bins)).tolist()


def _named(stretch: tuple[int, int]) -> str:
    return f"bins {stretch[0]} to {stretch[1] - 1}"
