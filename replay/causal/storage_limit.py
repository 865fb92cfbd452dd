"""Computes how much storage limits a training: its duration by the causal model when operations are faster. Pure.

The items of the pace `steps` run without a clock, once with the recorded durations of the operations and once with
durations of 0. The difference is the cost of storage. It includes the waits of other ranks at collectives, and excludes
I/O that overlaps with compute. Decoding and preprocessing keep their recorded durations.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.doubt import doubt_of, is_exact
from dxt_replay.replay.causal.lane_events import schedule
from dxt_replay.replay.causal.paced_ranks import Lanes, Steps, planned_lanes, steps_of
from dxt_replay.replay.causal.rules import ColumnsContradictError
from dxt_replay.replay.engine.items import MARK, READ_AT, WRITE_AT
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.plan_row import OPERATION_ROW, is_operation
from dxt_replay.replay.plan.survey import spans_by_rank
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.span_times import computed_in_loops, training_ns
from dxt_replay.traces.schema import SPAN_KINDS, codes
from dxt_replay.traces.storage_limit import Doubt, LimitPoint, NoStorageLimitError, StorageLimit, TooLargeError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count
from dxt_replay.traces.unseen import unseen_of, why_not_judged

MOST_OPERATIONS, MOST_SPANS = 2_000_000, 1_000_000
"""Operations, and steps, waits, checkpoints and collectives, up to which the limit is worked out."""
_UNCOUNTED = [SPAN_KINDS.index(kind) for kind in ("compute", "pipeline", "other")]
"""Kinds of spans that the model joins, or does not need."""

MOST_ERROR_PCT = 5.0
"""Difference, per cent, between model and recording above which the model does not explain the run."""

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Speeds of the curve, in multiples of the recorded one."""

MATTERS_PCT = 2.0
"""Storage matters while training takes this much longer than with infinitely fast storage."""

_LEAST_PCT = 0.001

LEAST_RATIO = 4.0
"""Sizes must differ by this factor to show what a byte takes and what a request takes."""

LEAST_SHARE = 0.01
"""Share of the operations of a kind that a class of sizes must have to count among these."""

_POWERS = 64


def doubt_of_capture(capture: Capture, steps: Steps | None = None, reasons: Iterable[str] = ()) -> Doubt:
    """How far predictions of this training may be believed. steps: its models, if they were derived already.

    reasons: those of models of a capture that may be too large for more. Raises: CaptureError when it is damaged.
    """
    if is_exact(capture.info):
        return Doubt(error_pct=0.0)
    try:
        return storage_limit(capture, steps=steps).doubt
    except TooLargeError as error:
        return next((NoStorageLimitError(reason).doubt for reason in reasons if reason), error.doubt)
    except NoStorageLimitError as error:
        return error.doubt


def storage_limit(capture: Capture, *, curve: bool = False, steps: Steps | None = None) -> StorageLimit:
    """The storage limit of a capture. `curve`: also the times at MULTIPLES of the recorded speed. `steps`: its models,
    if they were derived already.

    Raises: NoStorageLimitError if the capture has no steps, too many operations, or a model that does not explain it;
    CaptureError when it is damaged.
    """
    unjudged = why_not_judged(capture.info.coverage, unseen_of(capture.info, capture.files))
    if why := unjudged or capture.info.made_by.get("doubt"):
        raise NoStorageLimitError(why)
    counted = np.count_nonzero(~np.isin(codes(capture.spans, "kind"), _UNCOUNTED))
    if capture.operation_count() > MOST_OPERATIONS or counted > MOST_SPANS:
        raise TooLargeError(
            f"the causal model is not worked out above {format_count(MOST_OPERATIONS)} operations or "
            f"{format_count(MOST_SPANS)} steps and waits; choose a part, such as --steps 10-19"
        )
    steps = _steps(capture) if steps is None else steps
    spans = pa.concat_tables(steps.spans.values())
    recorded_ns = training_ns(spans) or 0
    if doubted := next((model.doubt for model in steps.models.values() if model.doubt), ""):
        raise NoStorageLimitError(doubted)
    lanes = planned_lanes(capture, steps, Pacing(pace=Pace.STEPS))
    try:
        training = _Training(lanes, *computed_in_loops(spans))
        recorded, fastest = training.recorded, training.run(0.0)
    except ReplayError as error:
        raise NoStorageLimitError(str(error)) from error
    error_pct = 100.0 * (recorded.elapsed_ns / recorded_ns - 1.0) if recorded_ns else 0.0
    if abs(error_pct) > MOST_ERROR_PCT:
        raise NoStorageLimitError(
            f"the causal model of the training comes to {recorded.elapsed_ns / 1e9:.3f} s, the recording took "
            f"{recorded_ns / 1e9:.3f} s"
        )
    saved_ns = max(recorded.elapsed_ns - fastest.elapsed_ns, 0)
    doubt, prepared = doubt_of(capture, steps, saved_ns, recorded_ns)
    points = tuple(training.curves(fastest)) if curve else ()
    return StorageLimit(
        doubt=doubt,
        prepared=prepared,
        recorded_ns=recorded_ns,
        model_ns=recorded.elapsed_ns,
        fastest_ns=min(fastest.elapsed_ns, recorded.elapsed_ns),
        utilisation_pct=training.utilisation_pct(recorded),
        fastest_utilisation_pct=training.utilisation_pct(fastest),
        points=points,
        enough={name: enough(points, name) for name in dict.fromkeys(point.quantity for point in points)},
    )


def enough(points: Sequence[LimitPoint], quantity: str) -> float | None:
    """The multiple from which faster storage gains little, interpolated between two points; see `StorageLimit`."""
    curve = [point for point in points if point.quantity == quantity and point.multiple is not None]
    if curve and curve[0].above_fastest_pct <= MATTERS_PCT:
        return curve[0].multiple
    for slower, faster in pairwise(curve):
        low, high = faster.above_fastest_pct, slower.above_fastest_pct
        if low <= MATTERS_PCT < high and slower.multiple is not None and faster.multiple is not None:
            share = np.log(high / MATTERS_PCT) / np.log(high / max(low, _LEAST_PCT))
            return float(slower.multiple * (faster.multiple / slower.multiple) ** share)
    return None


def _steps(capture: Capture) -> Steps:
    spans = spans_by_rank(capture.spans, capture.ranks)
    if any(not pc.any(pc.equal(found["kind"], "step")).as_py() for found in spans.values()):
        raise NoStorageLimitError("not every rank has training steps")
    try:
        return steps_of(capture)
    except ColumnsContradictError as error:
        raise NoStorageLimitError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Result of one run. `loops_ns`: duration of the training loops of all ranks, evaluations included."""

    elapsed_ns: int
    loops_ns: int


class _Training:
    """The lanes of a training, run with other durations of its operations. `recorded`: with the recorded ones.

    compute_ns, loops_ns: of the capture, as `computed_in_loops` has them.
    """

    def __init__(self, lanes: Lanes, compute_ns: int, loops_ns: int) -> None:
        self._lanes = lanes
        self._compute_ns, self._loops_ns = compute_ns, loops_ns
        self._marks = {name: np.flatnonzero(items["kind"] == MARK) for name, (items, _) in lanes.items()}
        self.recorded = self.run(1.0)

    def utilisation_pct(self, run: _Run) -> float | None:
        """Accelerator utilisation of a run, from the ratio of its loops to those of the model as recorded."""
        loops_ns = self._loops_ns + run.loops_ns - self.recorded.loops_ns
        return min(100.0 * self._compute_ns / loops_ns, 100.0) if self._compute_ns and loops_ns > 0 else None

    def run(self, share: float, same: Mapping[Hashable, np.ndarray] | None = None) -> _Run:
        """Run with `share` times the recorded durations. `same`: the constant part of each duration, ns."""
        lanes = {}
        for name, (items, durations) in self._lanes.items():
            kept = np.zeros_like(durations) if same is None else same[name]
            lanes[name] = items, kept + np.rint((durations - kept) * share).astype(np.int64)
        times = schedule(lanes)
        loops = [times[name].begin_ns[marks] for name, marks in self._marks.items() if len(marks)]
        elapsed_ns = max(int(each.max()) for each in loops) - min(int(each.min()) for each in loops) if loops else 0
        return _Run(elapsed_ns=elapsed_ns, loops_ns=sum(int(np.ptp(each)) for each in loops))

    def curves(self, fastest: _Run) -> list[LimitPoint]:
        """The points of all curves: each from slow to infinitely fast."""
        runs = [(each, self.run(1.0 / each) if each != 1.0 else self.recorded) for each in MULTIPLES]
        points = [self._point("speed", each, run, fastest) for each, run in [*runs, (None, fastest)]]
        latency = self._latency_ns()
        if latency is None:
            return points
        rest = {name: durations - latency[name] for name, (_, durations) in self._lanes.items()}
        for quantity, kept in (("bandwidth", latency), ("latency", rest)):
            limit = self.run(0.0, kept)
            runs = [(each, self.run(1.0 / each, kept) if each != 1.0 else self.recorded) for each in MULTIPLES]
            points += [self._point(quantity, each, run, limit) for each, run in [*runs, (None, limit)]]
        return points

    def _point(self, quantity: str, multiple: float | None, run: _Run, fastest: _Run) -> LimitPoint:
        above = 100.0 * (run.elapsed_ns / fastest.elapsed_ns - 1.0) if fastest.elapsed_ns else 0.0
        return LimitPoint(
            quantity=quantity,
            multiple=multiple,
            elapsed_ns=run.elapsed_ns,
            above_fastest_pct=max(above, 0.0),
            utilisation_pct=self.utilisation_pct(run),
        )

    def _latency_ns(self) -> dict[Hashable, np.ndarray] | None:
        """The part of each duration that does not depend on the size; None if the sizes differ too little."""
        times = OperationTimes()
        for items, durations in self._lanes.values():
            times.add(items, durations)
        if not times.separable:
            return None
        return {name: times.latency_ns(items, durations) for name, (items, durations) in self._lanes.items()}


class OperationTimes:
    """Splits the time of reads and of writes into latency and transfer, by comparing operations of several sizes, in
    classes by powers of two."""

    def __init__(self) -> None:
        # By kind (read, write) and class: operations, bytes, ns.
        self._sums = np.zeros((2, _POWERS, 3))

    def add(self, items: np.ndarray, durations_ns: np.ndarray) -> None:
        """Count the operations among `PLAN_ROW`s, with the duration of each item, int64 (n,)."""
        for row, kind in enumerate((READ_AT, WRITE_AT)):
            mine = is_operation(items) & (items["kind"] == kind)
            length = items.view(OPERATION_ROW)["length"][mine]
            moved = length > 0
            length, lasted = length[moved], durations_ns[mine][moved]
            power = np.minimum(np.frexp(length.astype(np.float64))[1], _POWERS - 1)
            for column, weights in enumerate((np.ones(len(length)), length, lasted)):
                self._sums[row, :, column] += np.bincount(power, weights=weights, minlength=_POWERS)

    @property
    def separable(self) -> bool:
        """Whether the sizes of reads (of writes, if there are more writes) differ enough."""
        return self._line(int(self._sums[:, :, 0].sum(axis=1).argmax())) is not None

    def latency_ns(self, items: np.ndarray, durations_ns: np.ndarray) -> np.ndarray:
        """The part of each duration that does not depend on the size, int64 (n,); 0 for items that are not operations.

        An operation that moves no data is all latency. If the sizes of reads, or writes, differ too little, they are
        all transfer.
        """
        moves = items.view(OPERATION_ROW)["length"] > 0
        found = np.where(is_operation(items), durations_ns, 0)
        for row, kind in enumerate((READ_AT, WRITE_AT)):
            mine = (items["kind"] == kind) & moves
            found[mine] = np.minimum(found[mine], round(self._line(row) or 0.0))
        return found

    def _line(self, row: int) -> float | None:
        """Latency of a kind of request, ns, by least squares over the classes; None if the sizes differ too little."""
        counts, moved, lasted = self._sums[row].T
        enough = counts > max(LEAST_SHARE * counts.sum(), 0)
        if not enough.any():
            return None
        counts, size, time = counts[enough], moved[enough] / counts[enough], lasted[enough] / counts[enough]
        if size.max() < LEAST_RATIO * size.min():
            return None
        mean_size, mean_time = np.average(size, weights=counts), np.average(time, weights=counts)
        slope = np.average((size - mean_size) * (time - mean_time), weights=counts) / np.average(
            (size - mean_size) ** 2, weights=counts
        )
        return float(np.clip(mean_time - max(slope, 0.0) * mean_size, 0.0, None))
