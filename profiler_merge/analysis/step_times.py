"""The time of each training step by activity, and the cause of slow steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.loops import RankLoop
from dxt_replay.profiler_merge.analysis.rank_line import RankLine
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.steps import step_row_at
from dxt_replay.traces.sums import Sums

STEPS_SCHEMA = TABLES["steps"].schema
"""One row per step. compute + input_wait + collective + checkpoint + rest == duration. Operations and bytes are those
that start in the step, evaluations included. `why`: one of CAUSES."""

CAUSES = ("compute", "exposed I/O", "input wait", "checkpoint", "collective", "rest")
"""Causes of a slow step, which add up to its duration.

Exposed I/O is I/O within input wait and outside of all spans; input wait excludes its I/O; rest has neither a span nor
I/O."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineOperations:
    """Traced reads and writes of the ranks of a line (n,), by rank and start, with times on the line."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray
    written: np.ndarray


class StepTotals(Sums):
    """Collects the rows of `STEPS_SCHEMA` of the ranks of a line. `loops`: from `loops.loops_on_line`."""

    STAY = ("_line", "_loop", "_spans")

    def __init__(self, line: RankLine, loops: RankLoop) -> None:
        self._line = line
        self._loop = loops
        count = len(loops.step)
        self._io = {name: np.zeros(count, dtype=np.int64) for name in ("io", "compute", "wait", "idle")}
        self._operations = {name: np.zeros(count, dtype=np.int64) for name in ("operations", "read", "written")}
        self._spans = loops.wait.union(loops.collective).union(loops.checkpoint).union(loops.compute)

    def add(self, operations: LineOperations, starts: np.ndarray, ends: np.ndarray) -> None:
        """Add traced reads and writes, and the disjoint ascending times by which they extend the union of I/O."""
        self._count(operations)
        if not len(starts):
            return
        starts, ends = self._cut_at_steps(starts, ends)
        step = step_row_at(starts, self._loop.start_ns, self._loop.end_ns)
        inside = step >= 0
        starts, ends, step = starts[inside], ends[inside], step[inside]
        if not len(starts):
            return
        trained = ends - starts - self._loop.apart.covered_within(starts, ends)
        for name, covered in (
            ("io", trained),
            ("compute", self._loop.compute.covered_within(starts, ends)),
            ("wait", self._loop.wait.covered_within(starts, ends)),
            ("idle", trained - self._spans.covered_within(starts, ends)),
        ):
            add_at(self._io[name], step, covered)

    def merge(self, later: StepTotals) -> None:
        """Add other operations of the same ranks."""
        for sums, more in ((self._io, later._io), (self._operations, later._operations)):
            for name, column in more.items():
                sums[name] += column

    def _count(self, operations: LineOperations) -> None:
        step = step_row_at(operations.start_ns, self._loop.start_ns, self._loop.end_ns)
        inside = step >= 0
        written = operations.written
        for name, amount in (
            ("operations", np.ones(len(step), dtype=np.int64)),
            ("read", operations.length * ~written),
            ("written", operations.length * written),
        ):
            add_at(self._operations[name], step[inside], amount[inside])

    def _cut_at_steps(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same times, cut at the begin and end of each step."""
        loop = self._loop
        bounds = np.unique(np.concatenate((loop.start_ns, loop.end_ns)))
        bounds = bounds[np.searchsorted(bounds, starts[0]) : np.searchsorted(bounds, ends[-1], side="right")]
        place = np.searchsorted(starts, bounds, side="left") - 1
        inner = bounds[(place >= 0) & (bounds < ends[np.maximum(place, 0)])]
        if not len(inner):
            return starts, ends
        # A stable sort merges ascending parts in linear time.
        starts, ends = (np.sort(np.concatenate((times, inner)), kind="stable") for times in (starts, ends))
        return starts, ends

    def table(self) -> pa.Table:
        """`STEPS_SCHEMA`, by rank and time."""
        loop = self._loop
        if not len(loop.step):
            return STEPS_SCHEMA.empty_table()
        places = self._line.places_at(loop.start_ns)
        compute, wait, collective, checkpoint = (
            self._within(times) for times in (loop.compute, loop.wait, loop.collective, loop.checkpoint)
        )
        rest = loop.steps_ns - compute - wait - collective - checkpoint
        exposed = self._io["wait"] + self._io["idle"]
        last = np.append(places[1:] != places[:-1], True)
        following = np.where(last, loop.end_ns, np.append(loop.start_ns[1:], 0))
        causes = compute, exposed, wait - self._io["wait"], checkpoint, collective, rest - self._io["idle"]
        why, why_excess = _why(np.stack([_above_median(cause, places) for cause in causes]))
        return pa.table(
            {
                "rank": self._line.ranks[places].astype(np.int32),
                "step": loop.step.astype(np.int32),
                "start_ns": self._line.taken(loop.start_ns, places),
                "duration_ns": loop.steps_ns,
                "evaluation_ns": self._within(loop.evaluation),
                "compute_ns": compute,
                "input_wait_ns": wait,
                "collective_ns": collective,
                "checkpoint_ns": checkpoint,
                "rest_ns": rest,
                "io_ns": self._io["io"],
                "io_hidden_ns": self._io["compute"],
                "io_exposed_ns": self._io["io"] - self._io["compute"],
                "io_in_wait_ns": self._io["wait"],
                "gap_ns": following - loop.end_ns - loop.apart.covered_within(loop.end_ns, following),
                "gap_checkpoint_ns": loop.checkpoint.covered_within(loop.end_ns, following),
                "operations": self._operations["operations"],
                "bytes_read": self._operations["read"],
                "bytes_written": self._operations["written"],
                "excess_ns": _above_median(loop.steps_ns, places),
                "why": why,
                "why_excess_ns": why_excess,
            },
            schema=STEPS_SCHEMA,
        )

    def _within(self, times: Intervals) -> np.ndarray:
        return times.covered_within(self._loop.start_ns, self._loop.end_ns)


def _above_median(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """int64: excess of each value over the median at its place; places ascend."""
    ordered = values[np.lexsort((values, places))]
    first = runs(places)
    count = np.diff(first, append=len(places))
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = ((low.astype(np.float64) + high.astype(np.float64)) / 2).astype(np.int64)
    excess: np.ndarray = values - np.repeat(median, count)
    return excess


def _why(excess: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """For each step, the cause (of (causes, steps)) with the largest excess over its median, and the excess."""
    largest = excess.argmax(axis=0)
    by = np.take_along_axis(excess, largest[None, :], axis=0)[0]
    names = np.array(CAUSES, dtype=object)[largest]
    return pa.array(np.where(by > 0, names, None), pa.string()), np.maximum(by, 0)
