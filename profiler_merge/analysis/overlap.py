"""Compute and I/O: the share of I/O hidden by compute, and the waits of the training loop, step by step.

I/O is the union of the traced reads and writes of a rank; *hidden* is the part of it inside compute-busy, *exposed* the
rest. The *pipeline* is I/O together with the work on input: the paper's share of I/O and preprocessing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.line_totals import RANKS_SCHEMA, LineTotals, lines_of
from dxt_replay.profiler_merge.analysis.step_times import STEPS_SCHEMA
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import RECONSTRUCTED
from dxt_replay.traces.store.part_capture import only_ranks
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import ns_to_seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlap:
    """`ranks`: `RANKS_SCHEMA`, of all ranks examined; `steps`: `STEPS_SCHEMA`, by rank and time.

    `run_time_s`: of the job. `rebuilt_in_loop_ns`: time of I/O from counters in the loops, sum of the ranks.

    Shares are in per cent of sums over ranks. Those that need spans cover the profiled ranks; None without any.
    """

    run_time_s: float
    rebuilt_in_loop_ns: int
    ranks: pa.Table
    steps: pa.Table

    @property
    def io_of_run_pct(self) -> float | None:
        """I/O time (union, mean of the ranks) as a share of the job's run time: the paper's share of I/O."""
        total_s = self.run_time_s * len(self.ranks)
        return 100 * ns_to_seconds(self.total("io_ns")) / total_s if total_s else None

    @property
    def pipeline_of_run_pct(self) -> float | None:
        """I/O and preprocessing of the profiled ranks as a share of the job's run time."""
        total_s = self.run_time_s * sum(self.ranks["profiled"].to_pylist())
        return 100 * ns_to_seconds(self.total("pipeline_ns", profiled=True)) / total_s if total_s else None

    @property
    def io_hidden_pct(self) -> float | None:
        """I/O time inside compute-busy, as a share of the I/O time of the profiled ranks outside of evaluations."""
        io_ns = self.total("io_ns", profiled=True) - self.total("io_in_evaluation_ns", profiled=True)
        return 100 * self.total("io_hidden_ns", profiled=True) / io_ns if io_ns else None

    @property
    def io_of_loop_pct(self) -> float | None:
        """I/O time within the training loop, as a share of the loop."""
        return self._pct("io_in_loop_ns", "loop_ns")

    @property
    def input_wait_pct(self) -> float | None:
        """Time that the training loop waited for input (or read it itself), as a share of the loop."""
        return self._pct("input_wait_in_loop_ns", "loop_ns")

    @property
    def compute_pct(self) -> float | None:
        """Compute-busy time as a share of the loop."""
        return self._pct("compute_in_loop_ns", "loop_ns")

    @property
    def checkpoint_pct(self) -> float | None:
        """Saving and restoring as a share of the loop."""
        return self._pct("checkpoint_in_loop_ns", "loop_ns")

    @property
    def collective_pct(self) -> float | None:
        """Time inside collectives, including waits for other ranks, as a share of the loop."""
        return self._pct("collective_in_loop_ns", "loop_ns")

    def total(self, quantity: str, *, profiled: bool = False) -> int:
        """Sum of a column of `ranks`, or of its profiled ranks."""
        ranks = self.ranks.filter(self.ranks["profiled"]) if profiled else self.ranks
        return sum(ranks[quantity].to_pylist())

    def _pct(self, part: str, whole: str) -> float | None:
        of = self.total(whole, profiled=True)
        return 100 * self.total(part, profiled=True) / of if of else None

    def shares(self) -> dict[str, float | None]:
        """All shares by name, in per cent."""
        names = (
            "io_of_run_pct", "pipeline_of_run_pct", "io_hidden_pct", "io_of_loop_pct", "input_wait_pct", "compute_pct",
            "collective_pct", "checkpoint_pct",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def slowest(self, count: int = 10) -> pa.Table:
        """The steps with the largest excess over their rank's median, slowest first; rows of `steps`."""
        excess = self.steps["excess_ns"].to_numpy()
        order = np.argsort(-excess, kind="stable")[:count]
        return self.steps.take(pa.array(order[excess[order] > 0]))


def overlap(capture: Capture) -> Overlap:
    """Overlap of compute and I/O per rank, per step and in total.

    Raises: CaptureError when a part is damaged.
    """
    return collect(capture, OverlapCollector, without=("lane", "step")).overlap()


class OverlapCollector(Collector):
    """Collects an `Overlap` from rows of one rank after another, or of all of several ranks."""

    STAY = ("_capture", "_layers")
    takes_several_ranks = True

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._capture = capture
        self._layers = layers
        self._run_time_s = capture.info.job.run_time_s
        self._lines: list[LineTotals] | None = None
        self._stretch_of: int | None = None
        self._rebuilt_in_loop_ns = 0
        self._ranks: list[pa.Table] = []
        self._steps: list[pa.Table] = []

    def begin_stretch(self, before: OperationRows) -> None:
        """As `Collector.begin_stretch`."""
        self._stretch_of, self._lines = before.rank, lines_of(self._capture)
        before = at_one_layer(before, self._layers)
        before = before.where(before.data)
        for traced in (True, False):
            self._lines[0].begin_stretch(before.where((before.origin != RECONSTRUCTED) == traced), traced=traced)

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        rows = at_one_layer(rows, self._layers)
        data = rows.where(rows.data)
        if self._lines is None:
            self._lines = lines_of(self._capture)
        if len(self._lines) > 1 and len(data.ranks):
            for each in data.each_rank():
                self._add(self._lines, each)
        else:
            self._add(self._lines, data)

    def _add(self, lines: list[LineTotals], data: OperationRows) -> None:
        line = lines[bisect_left(lines, data.rank, key=LineTotals.last_rank)]
        traced = data.origin != RECONSTRUCTED
        if not traced.all():
            line.add(data.where(~traced), traced=False)
            data = data.where(traced)
        line.add(data, traced=True)

    def _finish(self) -> None:
        """Turn the sums into results; nothing may be added afterwards."""
        if self._lines is None and not self._ranks:
            self._lines = lines_of(self._capture)
        for line in self._lines or ():
            self._ranks.append(line.totals())
            self._rebuilt_in_loop_ns += line.rebuilt_in_loop_ns
            self._steps.append(line.steps())
        self._lines = []

    def merge(self, later: OverlapCollector) -> None:
        """As `Sums.merge`."""
        rank = later._stretch_of
        if self._lines and (rank is None or rank != self._stretch_of):
            self._finish()
        if rank is not None and later._lines:
            if not self._lines:
                self._stretch_of, self._lines = rank, lines_of(only_ranks(self._capture, (rank,)))
            self._lines[0].merge(later._lines[0])
            return
        later._finish()
        self._ranks += later._ranks
        self._rebuilt_in_loop_ns += later._rebuilt_in_loop_ns
        self._steps += later._steps

    def __getstate__(self) -> dict[str, Any]:
        if self._stretch_of is None:
            self._finish()
        return super().__getstate__()

    def overlap(self) -> Overlap:
        """Overlap of all that was added."""
        self._finish()
        return Overlap(
            run_time_s=self._run_time_s,
            rebuilt_in_loop_ns=self._rebuilt_in_loop_ns,
            ranks=pa.concat_tables([RANKS_SCHEMA.empty_table(), *self._ranks]).combine_chunks(),
            steps=pa.concat_tables([STEPS_SCHEMA.empty_table(), *self._steps]),
        )
