"""I/O inside compute, waits and steps: sums for many ranks at once, whose times lie on one line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.loops import RankLoop, loops_on_line
from dxt_replay.profiler_merge.analysis.rank_line import RankLine, rank_lines
from dxt_replay.profiler_merge.analysis.step_times import LineOperations, StepTotals
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import StreamingUnion
from dxt_replay.traces.measures.log_waits import with_log_waits
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums

_INSIDE = ("compute", "wait", "collective", "checkpoint", "evaluation", "pipeline")


RANKS_SCHEMA = TABLES["overlap"].schema
"""One row per rank. The loop lasts from the first step's start to the last one's end, without evaluations; all numbers
with `loop` leave those out. `io_ns` is the union of the traced reads and writes, `reconstructed_io_ns` of those from
counters, which no other number includes."""


class LineTotals(Sums):
    """The sums of the ranks of a line; rows come rank by rank. `profiled`: which of the ranks have spans."""

    STAY = ("_loops", "_profiled", "_union")

    def __init__(self, line: RankLine, spans: pa.Table) -> None:
        self._line = line
        self._loops = loops_on_line(spans, line)
        self._profiled = np.isin(line.ranks, spans["rank"].to_numpy())
        count = len(line.ranks)
        self._union = {traced: StreamingUnion() for traced in (True, False)}
        self._io_ns = {traced: np.zeros(count, dtype=np.int64) for traced in (True, False)}
        self._inside = {name: np.zeros(count, dtype=np.int64) for name in _INSIDE}
        self._in_loop = np.zeros(count, dtype=np.int64)
        self.rebuilt_in_loop_ns = 0
        self._first, self._last, self._steps_of = _loop_bounds(self._loops, line)
        self._steps = StepTotals(line, self._loops)

    def last_rank(self) -> int:
        """The largest rank of the line."""
        return int(self._line.ranks[-1])

    def begin_stretch(self, before: OperationRows, *, traced: bool) -> None:
        """The rows to come follow others of the only rank, of which those of `before` are still in flight."""
        first_ns = self._line.first_ns
        self._union[traced].add(before.start_ns - first_ns, before.end_ns - first_ns)

    def merge(self, later: LineTotals) -> None:
        """Add other operations of the same ranks."""
        for traced, column in later._io_ns.items():
            self._io_ns[traced] += column
        for name, column in later._inside.items():
            self._inside[name] += column
        self._in_loop += later._in_loop
        self.rebuilt_in_loop_ns += later.rebuilt_in_loop_ns
        self._steps.merge(later._steps)

    def add(self, rows: OperationRows, *, traced: bool) -> None:
        """Add reads and writes of one rank, or of several: either traced ones, or those from counters."""
        if not len(rows):
            return
        place = self._line.places(rows.ranks if len(rows.ranks) else np.int64(rows.rank))
        operations = LineOperations(
            start_ns=self._line.put(rows.start_ns, place),
            end_ns=self._line.put(rows.end_ns, place),
            length=rows.length,
            written=rows.op == WRITE,
        )
        starts, ends = self._union[traced].add(operations.start_ns, operations.end_ns)
        place = self._line.places_at(starts)
        add_at(self._io_ns[traced], place, ends - starts)
        first, last = self._first[place], self._last[place]
        if not traced:
            self.rebuilt_in_loop_ns += int(np.maximum(np.minimum(ends, last) - np.maximum(starts, first), 0).sum())
            return
        for name, sums in self._inside.items():
            times = getattr(self._loops, name)
            if len(times):
                add_at(sums, place, times.covered_within(starts, ends))
        if len(self._loops.step):
            starts_in, ends_in = np.clip(starts, first, last), np.clip(ends, first, last)
            trained = ends_in - starts_in - self._loops.apart.covered_within(starts_in, ends_in)
            add_at(self._in_loop, place, trained)
            self._steps.add(operations, starts, ends)

    def steps(self) -> pa.Table:
        """`STEPS_SCHEMA` of the ranks."""
        return self._steps.table()

    def totals(self) -> pa.Table:
        """`RANKS_SCHEMA`, the sums of each rank."""
        line, loops, inside, io_ns = self._line, self._loops, self._inside, self._io_ns[True]
        spans = {
            "compute": loops.compute,
            "input_wait": loops.wait,
            "collective": loops.collective,
            "checkpoint": loops.checkpoint,
        }
        apart = loops.apart.covered_within(self._first, self._last)
        columns = {
            "rank": line.ranks.astype(np.int32),
            "profiled": self._profiled,
            "steps": self._steps_of,
            "loop_ns": self._last - self._first - apart,
            **{f"{name}_ns": line.lengths(times) for name, times in spans.items()},
            **{f"{name}_in_loop_ns": times.covered_within(self._first, self._last) for name, times in spans.items()},
            "evaluations": self._evaluations(),
            "evaluation_ns": line.lengths(loops.evaluation),
            "io_in_evaluation_ns": inside["evaluation"],
            "io_ns": io_ns,
            "io_hidden_ns": inside["compute"],
            "io_exposed_ns": io_ns - inside["compute"],
            "io_in_wait_ns": inside["wait"],
            "io_in_collective_ns": inside["collective"],
            "io_in_checkpoint_ns": inside["checkpoint"],
            "io_in_loop_ns": self._in_loop,
            "pipeline_ns": line.lengths(loops.pipeline) + io_ns - inside["pipeline"],
            "reconstructed_io_ns": self._io_ns[False],
        }
        return pa.table(columns, schema=RANKS_SCHEMA)

    def _evaluations(self) -> np.ndarray:
        """int64 (ranks,): evaluations of each rank, also before and after its loop."""
        place = self._line.places_at(self._loops.evaluation.starts)
        return np.bincount(place, minlength=len(self._line.ranks))


def lines_of(capture: Capture) -> list[LineTotals]:
    """Empty sums of all ranks of a capture, or of a part of one."""
    spans = with_log_waits(capture.info, capture.spans)
    operations_ns = capture.index.time_span_ns
    first, last = ([], []) if operations_ns is None else ([operations_ns[0]], [operations_ns[1]])
    if spans.num_rows:
        first.append(pc.min(spans["start_ns"]).as_py())
        last.append(pc.max(spans["end_ns"]).as_py())
    lines = rank_lines(capture.ranks, min(first, default=0), max(last, default=0))
    return [LineTotals(line, spans) for line in lines]


def _loop_bounds(loops: RankLoop, line: RankLine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each rank of the line, begin and end of its loop on the line, and its steps; 0 if it has no loop."""
    place = line.places_at(loops.start_ns)
    steps = np.bincount(place, minlength=len(line.ranks))
    first, last = np.zeros((2, len(line.ranks)), dtype=np.int64)
    if len(place):
        some = np.flatnonzero(steps)
        begins = np.cumsum(steps[some]) - steps[some]
        first[some] = loops.start_ns[begins]
        last[some] = np.maximum.reduceat(loops.end_ns, begins)
    return first, last, steps
