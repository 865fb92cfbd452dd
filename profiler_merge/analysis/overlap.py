"""Compute and I/O: how much of the I/O hides behind compute, what the training loop waits for, step by step.

I/O is the union of the traced reads and writes of a rank; *hidden* is the part of it inside compute-busy, *exposed* the
rest. The *pipeline* is I/O together with the work on input: the paper's share of I/O and preprocessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiler_merge.analysis.collect import Collector, at_one_layer, collect
from profiler_merge.analysis.loops import RankLoop, rank_loops
from profiler_merge.analysis.step_times import STEPS_SCHEMA, StepTotals
from traces.layers import FileLayers
from traces.measures.intervals import Intervals, StreamingUnion
from traces.measures.operation_rows import OperationRows
from traces.schema import RECONSTRUCTED
from traces.store.reader import Capture
from traces.units import ns_to_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOverlap:
    """Times of one rank, int64 ns. The loop lasts from the first step's start to the last one's end.

    `io_ns`: union of its traced reads and writes; `io_hidden_ns` of it lies inside compute, `io_in_wait_ns` inside
    input wait, `io_in_collective_ns` inside collectives, `io_in_checkpoint_ns` inside checkpoints, `io_in_loop_ns`
    inside the loop.
    `pipeline_ns`: I/O or work on input.
    `loop_ns`, `compute_ns`, `input_wait_ns`, `collective_ns`, `checkpoint_ns`, and those with `_in_loop`: from the
    spans, 0 where `profiled` is False.
    `reconstructed_io_ns`: union of the reads and writes from counters, which no other number includes.
    """

    rank: int
    profiled: bool
    steps: int
    loop_ns: int
    compute_ns: int
    input_wait_ns: int
    collective_ns: int
    checkpoint_ns: int
    compute_in_loop_ns: int
    input_wait_in_loop_ns: int
    collective_in_loop_ns: int
    checkpoint_in_loop_ns: int
    io_ns: int
    io_hidden_ns: int
    io_in_wait_ns: int
    io_in_collective_ns: int
    io_in_checkpoint_ns: int
    io_in_loop_ns: int
    pipeline_ns: int
    reconstructed_io_ns: int

    @property
    def io_exposed_ns(self) -> int:
        """I/O outside of compute."""
        return self.io_ns - self.io_hidden_ns


RANKS_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("profiled", pa.bool_()),
        pa.field("steps", pa.int64()),
        *(
            pa.field(f"{name}_ns", pa.int64())
            for name in (
                "loop", "compute", "input_wait", "collective", "checkpoint", "compute_in_loop", "input_wait_in_loop",
                "collective_in_loop", "checkpoint_in_loop", "io", "io_hidden", "io_exposed",
                "io_in_wait", "io_in_collective", "io_in_checkpoint", "io_in_loop", "pipeline", "reconstructed_io",
            )
        ),
    ]
)  # fmt: skip
"""One row per rank: the fields of `RankOverlap`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlap:
    """`ranks`: of all ranks looked at; `steps`: `STEPS_SCHEMA`, by rank and time; `run_time_s`: the job's.

    Shares are in per cent of sums over ranks; those that need spans are over the profiled ranks, None without any.
    """

    run_time_s: float
    ranks: tuple[RankOverlap, ...]
    steps: pa.Table

    @property
    def io_of_run_pct(self) -> float | None:
        """I/O time (union, mean of the ranks) in the job's run time: the paper's share of I/O."""
        total_s = self.run_time_s * len(self.ranks)
        return 100 * ns_to_seconds(self.total("io_ns")) / total_s if total_s else None

    @property
    def pipeline_of_run_pct(self) -> float | None:
        """I/O and preprocessing in the job's run time, of the profiled ranks."""
        total_s = self.run_time_s * sum(rank.profiled for rank in self.ranks)
        return 100 * ns_to_seconds(self.total("pipeline_ns", profiled=True)) / total_s if total_s else None

    @property
    def io_hidden_pct(self) -> float | None:
        """I/O time that lies inside compute-busy, of the I/O time of the profiled ranks."""
        return self._pct("io_hidden_ns", "io_ns")

    @property
    def io_of_loop_pct(self) -> float | None:
        """I/O time within the training loop, of the loop."""
        return self._pct("io_in_loop_ns", "loop_ns")

    @property
    def input_wait_pct(self) -> float | None:
        """Time the training loop waited for input (or read it itself), of the loop."""
        return self._pct("input_wait_in_loop_ns", "loop_ns")

    @property
    def compute_pct(self) -> float | None:
        """Compute-busy, of the loop."""
        return self._pct("compute_in_loop_ns", "loop_ns")

    @property
    def checkpoint_pct(self) -> float | None:
        """Saving and restoring, of the loop."""
        return self._pct("checkpoint_in_loop_ns", "loop_ns")

    @property
    def collective_pct(self) -> float | None:
        """Inside collectives, waiting for other ranks included, of the loop."""
        return self._pct("collective_in_loop_ns", "loop_ns")

    def total(self, quantity: str, *, profiled: bool = False) -> int:
        """Sum of a field of `RankOverlap` over the ranks, or over the profiled ones."""
        return sum(getattr(rank, quantity) for rank in self.ranks if rank.profiled or not profiled)

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

    def ranks_table(self) -> pa.Table:
        """`RANKS_SCHEMA`."""
        return pa.Table.from_pylist(
            [{name: getattr(rank, name) for name in RANKS_SCHEMA.names} for rank in self.ranks], schema=RANKS_SCHEMA
        )

    def slowest(self, count: int = 10) -> pa.Table:
        """The steps that took longest above the median of their rank, slowest first; rows of `steps`."""
        excess = self.steps["excess_ns"].to_numpy()
        order = np.argsort(-excess, kind="stable")[:count]
        return self.steps.take(pa.array(order[excess[order] > 0]))


def overlap(capture: Capture) -> Overlap:
    """Overlap of compute and I/O per rank, per step and in total.

    Raises: CaptureError when a part is damaged.
    """
    return collect(capture, OverlapCollector, without=("lane", "step")).overlap()


class OverlapCollector(Collector):
    """Collects an `Overlap` from rows of one rank after another."""

    STAY = ("_layers", "_profiled")

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._layers = layers
        self._run_time_s = capture.info.job.run_time_s
        loops = rank_loops(capture.spans)
        self._profiled: Mapping[int, RankLoop] = loops
        self._ranks = {rank: _RankCollector(loops.get(rank, RankLoop())) for rank in capture.ranks}

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        rows = at_one_layer(rows, self._layers)
        data = rows.where(rows.data)
        collector = self._ranks[rows.rank]
        traced = data.origin != RECONSTRUCTED
        if not traced.all():
            collector.add_reconstructed(data.where(~traced))
            data = data.where(traced)
        if len(data):
            collector.add(data)

    def merge(self, later: OverlapCollector) -> None:
        """As `Sums.merge`."""
        self._ranks.update(later._ranks)

    def overlap(self) -> Overlap:
        """Overlap of all that was added."""
        tables = [collector.steps.table(rank) for rank, collector in self._ranks.items() if rank in self._profiled]
        return Overlap(
            run_time_s=self._run_time_s,
            ranks=tuple(
                collector.totals(rank, profiled=rank in self._profiled) for rank, collector in self._ranks.items()
            ),
            steps=pa.concat_tables([STEPS_SCHEMA.empty_table(), *tables]),
        )


class _RankCollector:
    """Times of one rank. `steps`: the rows of its training steps."""

    def __init__(self, loop: RankLoop) -> None:
        self._loop = loop
        self._union = StreamingUnion()
        self._reconstructed = StreamingUnion()
        self._inside = dict.fromkeys(("compute", "wait", "collective", "checkpoint", "pipeline"), 0)
        self._in_loop = 0
        self.steps = StepTotals(loop)

    def add(self, rows: OperationRows) -> None:
        """Traced reads and writes."""
        starts, ends = self._union.add(rows.start_ns, rows.end_ns)
        for name in self._inside:
            times = getattr(self._loop, name)
            if len(times):
                self._inside[name] += int(times.covered_within(starts, ends).sum())
        if len(self._loop.step):
            first, last = self._loop.start_ns.min(), self._loop.end_ns.max()
            self._in_loop += int((np.clip(ends, first, last) - np.clip(starts, first, last)).sum())
            self.steps.add(rows, starts, ends)

    def add_reconstructed(self, rows: OperationRows) -> None:
        """Reads and writes from counters."""
        self._reconstructed.add(rows.start_ns, rows.end_ns)

    def totals(self, rank: int, *, profiled: bool) -> RankOverlap:
        loop, inside = self._loop, self._inside
        spans = {
            "compute": loop.compute,
            "input_wait": loop.wait,
            "collective": loop.collective,
            "checkpoint": loop.checkpoint,
        }
        return RankOverlap(
            rank=rank,
            profiled=profiled,
            steps=len(loop.step),
            loop_ns=loop.loop_ns,
            **{f"{name}_ns": times.length_ns for name, times in spans.items()},
            **{f"{name}_in_loop_ns": self._within_loop(times) for name, times in spans.items()},
            io_ns=self._union.length_ns,
            io_hidden_ns=inside["compute"],
            io_in_wait_ns=inside["wait"],
            io_in_collective_ns=inside["collective"],
            io_in_checkpoint_ns=inside["checkpoint"],
            io_in_loop_ns=self._in_loop,
            pipeline_ns=loop.pipeline.length_ns + self._union.length_ns - inside["pipeline"],
            reconstructed_io_ns=self._reconstructed.length_ns,
        )

    def _within_loop(self, times: Intervals) -> int:
        loop = self._loop
        if not len(loop.step):
            return 0
        return int(times.covered_within(loop.start_ns[:1], loop.end_ns.max(keepdims=True)).sum())
