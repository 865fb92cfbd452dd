"""The training loop: what each rank does in it, how much I/O compute hides, and why steps are slow.

I/O is the union of the traced reads and writes of a rank; *hidden* is the part of it inside compute-busy, *exposed* the
rest. The *pipeline* is I/O together with the work on input: the paper's share of I/O and preprocessing. Ranks lie on
one line of time, one after the other, so that one array operation serves all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import Intervals, StreamingUnion
from dxt_replay.traces.measures.log_waits import with_log_waits
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import are_evaluations, are_log_waits, are_on_gpu
from dxt_replay.traces.row_order import step_row_at
from dxt_replay.traces.schema import NO_STEP, READING_WAITS, RECONSTRUCTED, SPAN_KINDS, WRITE, codes
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_duration, ns_to_seconds

RANKS_SCHEMA = TABLES["overlap"].schema
"""One row per rank. The loop lasts from the first step's start to the last one's end, without evaluations; all numbers
with `loop` leave those out. `io_ns` is the union of the traced reads and writes, `reconstructed_io_ns` of those from
counters, which no other number includes."""

STEPS_SCHEMA = TABLES["steps"].schema
"""One row per step. compute + input_wait + collective + checkpoint + rest == duration. Operations and bytes are those
that start in the step, evaluations included. `why`: one of CAUSES."""

CAUSES = ("compute", "exposed I/O", "input wait", "checkpoint", "collective", "rest")
"""Causes of a slow step, which add up to its duration.

Exposed I/O is I/O within input wait and outside of all spans; input wait excludes its I/O; rest has neither a span nor
I/O."""

_MOST_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLoop:
    """The spans of one rank as sets of times.

    step, start_ns, end_ns: int64 (steps,), in order.
    evaluation, wait, collective, checkpoint, compute: disjoint; an instant in several belongs to the first, but a wait
    in which a GPU works is none.
    apart: evaluations, and waits for logs of the recording, neither of which is part of the loop.
    pipeline: input being produced, by other threads or by the loop itself (a wait of READING_WAITS).
    """

    step: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    evaluation: Intervals
    apart: Intervals
    wait: Intervals
    collective: Intervals
    checkpoint: Intervals
    compute: Intervals
    pipeline: Intervals


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Ranks whose times lie on one line, one after the other. The place of a rank is its index in `ranks`, int64 (k,).

    width_ns: room for the times of each, which begin at `first_ns`; a nanosecond between two ranks stays free.
    """

    ranks: np.ndarray
    first_ns: int
    width_ns: int

    @classmethod
    def of(cls, ranks: Sequence[int], times_ns: Sequence[tuple[int, int]], named: object) -> _Line:
        """The ranks, ascending, whose times lie within these (first, last)."""
        first, last = min((each[0] for each in times_ns), default=0), max((each[1] for each in times_ns), default=0)
        if len(ranks) * (last - first + 2) > _MOST_NS:
            raise CaptureError(
                f"{named}: {len(ranks)} ranks over {format_duration(last - first)} are too much to be looked at "
                "together: choose some with --part ranks=A-B, or a window with --part from=TIME,until=TIME"
            )
        return cls(np.array(ranks, dtype=np.int64), first, last - first + 2)

    def put(self, times_ns: np.ndarray, places: np.ndarray | np.int64) -> np.ndarray:
        """Times of ranks at these places, moved onto the line."""
        result: np.ndarray = times_ns + (places * self.width_ns - self.first_ns)
        return result

    def taken(self, on_line: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Inverse of `put`."""
        result: np.ndarray = on_line - (places * self.width_ns - self.first_ns)
        return result

    def places_at(self, on_line: np.ndarray) -> np.ndarray:
        """The place of the rank to which each time on the line belongs."""
        result: np.ndarray = on_line // self.width_ns
        return result

    def edges(self) -> np.ndarray:
        """int64 (k + 1,): begin of each rank's times on the line, and end of the last rank's."""
        return np.arange(len(self.ranks) + 1, dtype=np.int64) * self.width_ns

    def lengths(self, times: Intervals) -> np.ndarray:
        """int64 (k,): length of a set of times on the line, by rank."""
        edges = self.edges()
        return times.covered_within(edges[:-1], edges[1:])


def rank_loops(spans: pa.Table, ranks: Collection[int]) -> dict[int, RankLoop]:
    """The loop of each of `ranks` that has spans."""
    there = np.intersect1d(spans["rank"].to_numpy(), list(ranks))
    return {int(rank): _loops_on(_Line(np.array([rank]), 0, _MOST_NS), spans) for rank in there}


def _loops_on(line: _Line, spans: pa.Table) -> RankLoop:
    """The loops of the ranks of a line as one loop, with all times on the line."""
    mine = spans.filter(pa.array(np.isin(spans["rank"].to_numpy(), line.ranks)))
    place = np.searchsorted(line.ranks, mine["rank"].to_numpy())
    start, end = (line.put(mine[name].to_numpy(), place) for name in ("start_ns", "end_ns"))
    kind, step = codes(mine, "kind"), mine["step"].to_numpy().astype(np.int64)

    def times(mask: np.ndarray) -> Intervals:
        return Intervals.union_of(start[mask], end[mask])

    steps = np.flatnonzero((kind == SPAN_KINDS.index("step")) & (step != NO_STEP))
    steps = steps[np.argsort(start[steps], kind="stable")]
    waits = kind == SPAN_KINDS.index("input_wait")
    reading = waits & pc.is_in(mine["name"], pa.array(READING_WAITS)).to_numpy()
    evaluation = times(are_evaluations(mine))
    taken = apart = evaluation.union(times(are_log_waits(mine)))
    disjoint = {}
    for name in ("input_wait", "collective", "checkpoint", "compute"):
        whole = times(kind == SPAN_KINDS.index(name))
        if name == "input_wait":
            whole = whole.minus(times(are_on_gpu(mine)))
        disjoint[name.removeprefix("input_")], taken = whole.minus(taken), taken.union(whole)
    return RankLoop(
        step=step[steps],
        start_ns=start[steps],
        end_ns=end[steps],
        evaluation=evaluation,
        apart=apart,
        **disjoint,
        pipeline=times(reading | (kind == SPAN_KINDS.index("pipeline"))),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlap:
    """`ranks`: `RANKS_SCHEMA`, of all ranks examined; `steps`: `STEPS_SCHEMA`, by rank and time.

    `run_time_s`: of the job. `rebuilt_in_loop_ns`: time of I/O from counters in the loops, sum of the ranks.
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
    def io_hidden_pct(self) -> float | None:
        """I/O time inside compute-busy, as a share of the I/O time of the profiled ranks outside of evaluations."""
        io_ns = self.total("io_ns", profiled=True) - self.total("io_in_evaluation_ns", profiled=True)
        return 100 * self.total("io_hidden_ns", profiled=True) / io_ns if io_ns else None

    def total(self, quantity: str, *, profiled: bool = False) -> int:
        """Sum of a column of `ranks`, or of its profiled ranks."""
        ranks = self.ranks.filter(self.ranks["profiled"]) if profiled else self.ranks
        return sum(ranks[quantity].to_pylist())

    def shares(self) -> dict[str, float | None]:
        """Shares in per cent of sums over ranks; None where there is nothing to share.

        All but io_of_run_pct cover the profiled ranks; those of the loop are I/O, waits, compute and so on within it.
        """

        def pct(part: float, whole: float) -> float | None:
            return 100 * part / whole if whole else None

        loop_ns, profiled = self.total("loop_ns", profiled=True), sum(self.ranks["profiled"].to_pylist())
        of_loop = {
            name: pct(self.total(f"{column}_in_loop_ns", profiled=True), loop_ns)
            for name, column in (
                ("io_of_loop_pct", "io"), ("input_wait_pct", "input_wait"), ("compute_pct", "compute"),
                ("collective_pct", "collective"), ("checkpoint_pct", "checkpoint"),
            )
        }  # fmt: skip
        return {
            "io_of_run_pct": self.io_of_run_pct,
            "pipeline_of_run_pct": pct(
                ns_to_seconds(self.total("pipeline_ns", profiled=True)), self.run_time_s * profiled
            ),
            "io_hidden_pct": self.io_hidden_pct,
            **of_loop,
        }

    def slowest(self, count: int = 10) -> pa.Table:
        """The steps with the largest excess over their rank's median, slowest first; rows of `steps`."""
        excess = self.steps["excess_ns"].to_numpy()
        order = np.argsort(-excess, kind="stable")[:count]
        return self.steps.take(pa.array(order[excess[order] > 0]))


def overlap(capture: Capture) -> Overlap:
    """Overlap of compute and I/O per rank, per step and in total."""
    found: Overlap = collect(capture, [OverlapCollector])[0].overlap()
    return found


class OverlapCollector(Collector):
    """Collects an `Overlap`. `_found`: of each piece the tables of ranks and of steps, and `rebuilt_in_loop_ns`."""

    STAY = ("_capture", "_layers", "_sums")
    _sums: _LoopSums | None = None

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._capture, self._layers = capture, layers
        self._found: list[tuple[pa.Table, pa.Table, int]] = []

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        rows = at_one_layer(rows, self._layers)
        data = rows.where(rows.data)
        self._sums = self._sums or _LoopSums(self._capture)
        traced = data.origin != RECONSTRUCTED
        if not traced.all():
            self._sums.add(data.where(~traced), traced=False)
        self._sums.add(data.where(traced), traced=True)

    def end(self) -> None:
        sums = self._sums or _LoopSums(self._capture)
        self._found.append((sums.ranks_table(), sums.steps_table(), sums.rebuilt_in_loop_ns))

    def overlap(self) -> Overlap:
        """Overlap of all that was added."""
        ranks, steps, rebuilt = zip(*self._found, strict=True)
        return Overlap(
            run_time_s=self._capture.info.job.run_time_s,
            rebuilt_in_loop_ns=sum(rebuilt),
            ranks=pa.concat_tables(ranks).combine_chunks(),
            steps=pa.concat_tables(steps),
        )


class _LoopSums:
    """I/O inside compute, waits and steps of all ranks of a capture; rows come rank by rank."""

    def __init__(self, capture: Capture) -> None:
        spans = with_log_waits(capture.info, capture.spans)
        operations_ns = capture.index.time_span_ns
        limits = [] if operations_ns is None else [operations_ns]
        if spans.num_rows:
            limits.insert(0, (pc.min(spans["start_ns"]).as_py(), pc.max(spans["end_ns"]).as_py()))
        self._line = line = _Line.of(capture.ranks, limits, capture.named)
        self._loops = loops = _loops_on(line, spans)
        self._profiled = np.isin(line.ranks, spans["rank"].to_numpy())
        self._union = {traced: StreamingUnion() for traced in (True, False)}
        self._io_ns = {traced: np.zeros(len(line.ranks), dtype=np.int64) for traced in (True, False)}
        inside = ("compute", "wait", "collective", "checkpoint", "evaluation", "pipeline", "loop")
        self._inside = {name: np.zeros(len(line.ranks), dtype=np.int64) for name in inside}
        self.rebuilt_in_loop_ns = 0
        self._step = {
            name: np.zeros(len(loops.step), dtype=np.int64)
            for name in ("io", "compute", "wait", "idle", "operations", "read", "written")
        }
        self._any_span = loops.wait.union(loops.collective).union(loops.checkpoint).union(loops.compute)
        # Of each rank, its steps, and begin and end of its loop on the line, 0 if it has none.
        place = line.places_at(loops.start_ns)
        self._steps_of = np.bincount(place, minlength=len(line.ranks))
        self._first, self._last = np.zeros((2, len(line.ranks)), dtype=np.int64)
        begins = runs(place)
        if len(begins):
            self._first[place[begins]] = loops.start_ns[begins]
            self._last[place[begins]] = np.maximum.reduceat(loops.end_ns, begins)

    def add(self, rows: OperationRows, *, traced: bool) -> None:
        """Add reads and writes of one rank, or of several: either traced ones, or those from counters."""
        if not len(rows):
            return
        line, loops = self._line, self._loops
        place = np.searchsorted(line.ranks, rows.ranks if len(rows.ranks) else rows.rank)
        began = line.put(rows.start_ns, place)
        starts, ends = self._union[traced].add(began, line.put(rows.end_ns, place))
        place = line.places_at(starts)
        add_at(self._io_ns[traced], place, ends - starts)
        first, last = self._first[place], self._last[place]
        if not traced:
            self.rebuilt_in_loop_ns += int(np.maximum(np.minimum(ends, last) - np.maximum(starts, first), 0).sum())
            return
        for name, sums in self._inside.items():
            if name != "loop" and len(times := getattr(loops, name)):
                add_at(sums, place, times.covered_within(starts, ends))
        if not len(loops.step):
            return
        starts_in, ends_in = np.clip(starts, first, last), np.clip(ends, first, last)
        trained = ends_in - starts_in - loops.apart.covered_within(starts_in, ends_in)
        add_at(self._inside["loop"], place, trained)
        step = step_row_at(began, loops.start_ns, loops.end_ns)
        some = step >= 0
        written, length = rows.op == WRITE, rows.length
        for name, amount in (
            ("operations", np.ones(len(step), dtype=np.int64)),
            ("read", length * ~written),
            ("written", length * written),
        ):
            add_at(self._step[name], step[some], amount[some])
        if len(starts):
            self._add_to_steps(*self._cut_at_steps(starts, ends))

    def _cut_at_steps(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same disjoint ascending times, cut at the begin and end of each step."""
        bounds = np.unique(np.concatenate((self._loops.start_ns, self._loops.end_ns)))
        bounds = bounds[np.searchsorted(bounds, starts[0]) : np.searchsorted(bounds, ends[-1], side="right")]
        place = np.searchsorted(starts, bounds, side="left") - 1
        inner = bounds[(place >= 0) & (bounds < ends[np.maximum(place, 0)])]
        if not len(inner):
            return starts, ends
        # A stable sort merges ascending parts in linear time.
        starts, ends = (np.sort(np.concatenate((times, inner)), kind="stable") for times in (starts, ends))
        return starts, ends

    def _add_to_steps(self, starts: np.ndarray, ends: np.ndarray) -> None:
        loops = self._loops
        step = step_row_at(starts, loops.start_ns, loops.end_ns)
        some = step >= 0
        starts, ends, step = starts[some], ends[some], step[some]
        if not len(starts):
            return
        trained = ends - starts - loops.apart.covered_within(starts, ends)
        for name, covered in (
            ("io", trained),
            ("compute", loops.compute.covered_within(starts, ends)),
            ("wait", loops.wait.covered_within(starts, ends)),
            ("idle", trained - self._any_span.covered_within(starts, ends)),
        ):
            add_at(self._step[name], step, covered)

    def ranks_table(self) -> pa.Table:
        """`RANKS_SCHEMA`."""
        line, loops, inside, io_ns = self._line, self._loops, self._inside, self._io_ns[True]
        spans = {
            "compute": loops.compute,
            "input_wait": loops.wait,
            "collective": loops.collective,
            "checkpoint": loops.checkpoint,
        }
        columns = {
            "rank": line.ranks.astype(np.int32),
            "profiled": self._profiled,
            "steps": self._steps_of,
            "loop_ns": self._last - self._first - loops.apart.covered_within(self._first, self._last),
            **{f"{name}_ns": line.lengths(times) for name, times in spans.items()},
            **{f"{name}_in_loop_ns": times.covered_within(self._first, self._last) for name, times in spans.items()},
            "evaluations": np.bincount(line.places_at(loops.evaluation.starts), minlength=len(line.ranks)),
            "evaluation_ns": line.lengths(loops.evaluation),
            "io_in_evaluation_ns": inside["evaluation"],
            "io_ns": io_ns,
            "io_hidden_ns": inside["compute"],
            "io_exposed_ns": io_ns - inside["compute"],
            "io_in_wait_ns": inside["wait"],
            "io_in_collective_ns": inside["collective"],
            "io_in_checkpoint_ns": inside["checkpoint"],
            "io_in_loop_ns": inside["loop"],
            "pipeline_ns": line.lengths(loops.pipeline) + io_ns - inside["pipeline"],
            "reconstructed_io_ns": self._io_ns[False],
        }
        return pa.table(columns, schema=RANKS_SCHEMA)

    def steps_table(self) -> pa.Table:
        """`STEPS_SCHEMA`, by rank and time."""
        loop, io = self._loops, self._step
        if not len(loop.step):
            return STEPS_SCHEMA.empty_table()
        places = self._line.places_at(loop.start_ns)
        compute, wait, collective, checkpoint, evaluation = (
            times.covered_within(loop.start_ns, loop.end_ns)
            for times in (loop.compute, loop.wait, loop.collective, loop.checkpoint, loop.evaluation)
        )
        duration = loop.end_ns - loop.start_ns - loop.apart.covered_within(loop.start_ns, loop.end_ns)
        rest = duration - compute - wait - collective - checkpoint
        last = np.append(places[1:] != places[:-1], True)
        following = np.where(last, loop.end_ns, np.append(loop.start_ns[1:], 0))
        causes = compute, io["wait"] + io["idle"], wait - io["wait"], checkpoint, collective, rest - io["idle"]
        excess = np.stack([_above_median(cause, places) for cause in causes])
        largest = excess.argmax(axis=0)
        by = excess[largest, np.arange(len(places))]
        return pa.table(
            {
                "rank": self._line.ranks[places].astype(np.int32),
                "step": loop.step.astype(np.int32),
                "start_ns": self._line.taken(loop.start_ns, places),
                "duration_ns": duration,
                "evaluation_ns": evaluation,
                "compute_ns": compute,
                "input_wait_ns": wait,
                "collective_ns": collective,
                "checkpoint_ns": checkpoint,
                "rest_ns": rest,
                "io_ns": io["io"],
                "io_hidden_ns": io["compute"],
                "io_exposed_ns": io["io"] - io["compute"],
                "io_in_wait_ns": io["wait"],
                "gap_ns": following - loop.end_ns - loop.apart.covered_within(loop.end_ns, following),
                "gap_checkpoint_ns": loop.checkpoint.covered_within(loop.end_ns, following),
                "operations": io["operations"],
                "bytes_read": io["read"],
                "bytes_written": io["written"],
                "excess_ns": _above_median(duration, places),
                "why": pa.array(np.where(by > 0, np.array(CAUSES, dtype=object)[largest], None), pa.string()),
                "why_excess_ns": np.maximum(by, 0),
            },
            schema=STEPS_SCHEMA,
        )


def _above_median(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """int64: excess of each value over the median at its place; places ascend."""
    ordered = values[np.lexsort((values, places))]
    first = runs(places)
    count = np.diff(first, append=len(places))
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = ((low.astype(np.float64) + high.astype(np.float64)) / 2).astype(np.int64)
    excess: np.ndarray = values - np.repeat(median, count)
    return excess
