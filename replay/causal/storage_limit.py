"""Computes how much storage limits a training, and judges by the recording how far its model may be believed. Pure.

The items of the pace `steps` run without a clock, once with the recorded durations of the operations and once with
durations of 0. The difference is the cost of storage. It includes the waits of other ranks at collectives, and excludes
I/O that overlaps with compute. Decoding and preprocessing keep their recorded durations.

A wait for input is explained by the reads that the model knows, by the time of recorded threads on processors, and by
spans of compute and of the input pipeline. What nothing explains may be storage that no trace holds.

A model that reproduces the recorded time from the recorded durations proves nothing, because these durations include
all time that its rules do not explain. So each quarter of the steps is predicted anew: from its own recorded reads and
compute, and from the times that the other quarters took to process and hand over a batch (`held_out`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.columns import ColumnsContradictError
from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.loop import INPUT_WAIT, NO_TIMES
from dxt_replay.replay.causal.model import DOUBTED_SHARE, LoopModel
from dxt_replay.replay.causal.ranks import MAX_CHECKED_OPERATIONS, Lanes, Steps, planned_lanes, rank_rows, steps_of
from dxt_replay.replay.engine.items import MARK, OPERATION_ROW, READ_AT, WRITE_AT, is_operation
from dxt_replay.replay.plan.layers import spans_by_rank
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import log_waits
from dxt_replay.traces.measures.span_times import computed_in_loops, training_ns
from dxt_replay.traces.schema import BETWEEN_STEPS, SPAN_KINDS, CaptureInfo, codes
from dxt_replay.traces.storage_limit import (
    BOUNDED,
    MODEL_ERROR_PCT,
    NO_DOUBT,
    Doubt,
    HiddenWaitError,
    LimitPoint,
    NoStorageLimitError,
    StorageLimit,
    TooLargeError,
    most_by_processors,
)
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count, format_signed, ns_to_seconds
from dxt_replay.traces.unseen import unseen_of, why_not_judged

MOST_OPERATIONS, MOST_SPANS = 2_000_000, 1_000_000
"""Operations, and steps, waits, checkpoints and collectives, up to which the limit is worked out."""

MOST_MODEL_ERROR_PCT = 5.0
"""Difference, per cent, between model and recording above which the model does not explain the run."""

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Speeds of the curve, in multiples of the recorded one."""

MATTERS_PCT = 2.0
"""Storage matters while training takes this much longer than with infinitely fast storage."""

LEAST_RATIO, LEAST_CLASS = 4.0, 0.01
"""Sizes must differ by this factor to show what a byte takes and what a request takes; and the share of the operations
of a kind that a class of sizes must have to count among these."""

PARTS = 4
"""Parts of a loop that are predicted one after the other, if it has 5 steps for each."""

MOST_TRIED = 1 << 18
"""Operations up to which parts of the loop are predicted from the others: about a second."""

LEAST_SHARE = 0.01
"""Input waits, or I/O, below this share of the loop cannot contradict a model."""

MOST_ERROR_PCT = 30.0
"""Error of a predicted part of the loop from which on no bound is given."""

MOST_UNEXPLAINED = 0.5
"""Share of the loop in input waits that nothing explains from which on no bound is given."""

CONTRADICTION = 1 / 3
"""Share of the loop by which waits with storage busy exceed what storage costs, where no processor time was recorded:
readers that overlap are busy in a wait without being what it waits for."""

_WORK = [SPAN_KINDS.index(kind) for kind in ("compute", "pipeline")]
_UNCOUNTED = [*_WORK, SPAN_KINDS.index("other")]
"""Kinds of spans that the model joins, or does not need."""

_LEAST_PCT, _POWERS = 0.001, 64


def is_exact(info: CaptureInfo) -> bool:
    """Whether nothing is inferred. Marks say what each operation of a recorded job waits for, and yet its threads wait
    for each other and for processors, which they do not say."""
    return info.dependencies == "known" and info.made_by.get("command") != "merge" and "doubt" not in info.made_by


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
            f"{format_count(MOST_SPANS)} steps and waits; choose a part, such as --part steps=10-19"
        )
    if steps is None:
        by_rank = spans_by_rank(capture.spans, capture.ranks)
        if any(not pc.any(pc.equal(found["kind"], "step")).as_py() for found in by_rank.values()):
            raise NoStorageLimitError("not every rank has training steps")
        try:
            steps = steps_of(capture)
        except ColumnsContradictError as error:
            raise NoStorageLimitError(str(error)) from error
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
    if abs(error_pct) > MOST_MODEL_ERROR_PCT:
        raise NoStorageLimitError(
            f"the causal model of the training comes to {recorded.elapsed_ns / 1e9:.3f} s, the recording took "
            f"{recorded_ns / 1e9:.3f} s"
        )
    saved_ns = max(recorded.elapsed_ns - fastest.elapsed_ns, 0)
    doubt, prepared = _doubt_of(capture, steps, saved_ns, recorded_ns)
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


class _Run(NamedTuple):
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
        kept: dict[str, Mapping[Hashable, np.ndarray] | None] = {"speed": None}
        if (latency := latencies(self._lanes)) is not None:
            kept["bandwidth"] = latency
            kept["latency"] = {name: durations - latency[name] for name, (_, durations) in self._lanes.items()}
        points = []
        for quantity, same in kept.items():
            limit = fastest if same is None else self.run(0.0, same)
            for multiple in (*MULTIPLES, None):
                run = limit if multiple is None else self.recorded if multiple == 1.0 else self.run(1 / multiple, same)
                above = 100.0 * (run.elapsed_ns / limit.elapsed_ns - 1.0) if limit.elapsed_ns else 0.0
                points.append(
                    LimitPoint(
                        quantity=quantity,
                        multiple=multiple,
                        elapsed_ns=run.elapsed_ns,
                        above_fastest_pct=max(above, 0.0),
                        utilisation_pct=self.utilisation_pct(run),
                    )
                )
        return points


def latencies(lanes: Lanes) -> dict[Hashable, np.ndarray] | None:
    """The part of each duration that does not depend on the size, int64 by item; 0 for items that are not operations.

    Operations of several sizes, in classes by powers of two, tell it, for reads and writes apart. An operation that
    moves no data is all latency. Where the sizes of one kind differ too little, it is all transfer. None where they do
    for reads, or for writes where there are more of these.
    """
    kinds, sums = (READ_AT, WRITE_AT), np.zeros((2, 3, _POWERS))  # operations, bytes, ns
    for items, durations in lanes.values():
        for row, kind in enumerate(kinds):
            length = items.view(OPERATION_ROW)["length"]
            mine = is_operation(items) & (items["kind"] == kind) & (length > 0)
            power = np.minimum(np.frexp(length[mine].astype(np.float64))[1], _POWERS - 1)
            for column, weights in enumerate((np.ones(len(power)), length[mine], durations[mine])):
                sums[row, column] += np.bincount(power, weights=weights, minlength=_POWERS)
    lines = [_latency(*row) for row in sums]
    if lines[int(sums[:, 0].sum(axis=1).argmax())] is None:
        return None
    found = {}
    for name, (items, durations) in lanes.items():
        found[name] = own = np.where(is_operation(items), durations, 0)
        for kind, line in zip(kinds, lines, strict=True):
            mine = (items["kind"] == kind) & (items.view(OPERATION_ROW)["length"] > 0)
            own[mine] = np.minimum(own[mine], round(line or 0.0))
    return found


def _latency(counts: np.ndarray, moved: np.ndarray, lasted: np.ndarray) -> float | None:
    """Latency of a kind of request, ns, by least squares over the classes; None if the sizes differ too little."""
    counted = counts > max(LEAST_CLASS * counts.sum(), 0)
    if not counted.any():
        return None
    counts, size, time = counts[counted], moved[counted] / counts[counted], lasted[counted] / counts[counted]
    if size.max() < LEAST_RATIO * size.min():
        return None
    mean_size, mean_time = np.average(size, weights=counts), np.average(time, weights=counts)
    slope = np.average((size - mean_size) * (time - mean_time), weights=counts)
    slope /= np.average((size - mean_size) ** 2, weights=counts)
    return float(np.clip(mean_time - max(slope, 0.0) * mean_size, 0.0, None))


# ------------------------------------------------------------------------------------------------------- the doubt
def _doubt_of(capture: Capture, steps: Steps, saved_ns: int, loop_ns: int) -> tuple[Doubt, bool]:
    """How far predictions by these models may be believed, and `StorageLimit.prepared`.

    saved_ns: what infinitely fast storage saves of `loop_ns`, by the models.
    Raises: NoStorageLimitError with the reason why they may not be believed at all.
    """
    if is_exact(capture.info):
        return Doubt(error_pct=0.0), True
    if not loop_ns:  # a part without whole steps
        return NO_DOUBT, False
    waits = {rank: _waits(model) for rank, model in steps.models.items()}
    waited_ns = _mean([each.length_ns for each in waits.values()])
    under_way = {}
    for rank in waits:
        rows = rank_rows(capture, rank, steps.surveys[rank].layers)
        batches = [steps.placed(rank, batch) for _, _, batch in rows]
        times = (np.concatenate([NO_TIMES, *(getattr(each, name) for each in batches)]) for name in _TIMES)
        under_way[rank] = Intervals.union_of(*times)
    _check_own_time(capture, steps, under_way)
    left_ns = max(waited_ns - saved_ns, 0.0)
    made_ns, used = _explained_ns(capture, steps, waits, waited_ns)
    prepared = made_ns > 0 and 2 * made_ns >= left_ns
    busy_ns = _mean([int(under_way[rank].covered_within(own.starts, own.ends).sum()) for rank, own in waits.items()])
    reasons, unexplained_ns = [], 0.0
    # On a busy machine threads wait for processors: half of the time on them explains a wait, and bounds do not.
    if used and left_ns - 2 * made_ns > DOUBTED_SHARE * loop_ns:
        unexplained_ns = left_ns - made_ns
        unknown = (
            f"training waits for input during {100 * unexplained_ns / loop_ns:.0f} % of the loop, and neither recorded "
            "I/O nor the processor time of a recorded thread explains it"
        )
        if left_ns - 2 * made_ns > MOST_UNEXPLAINED * loop_ns:
            raise NoStorageLimitError(unknown)
        reasons.append(unknown)
    elif not used and busy_ns - saved_ns > CONTRADICTION * loop_ns:
        raise NoStorageLimitError(
            f"the loop waits for input during {100 * busy_ns / loop_ns:.0f} % of its time while files are read, and by "
            f"the model storage costs {100 * saved_ns / loop_ns:.0f} %"
        )
    error_pct = MODEL_ERROR_PCT
    matters = min(waited_ns, _mean([_within_loop(under_way[rank], model) for rank, model in steps.models.items()]))
    tried = steps.operations <= MOST_TRIED and matters > LEAST_SHARE * loop_ns
    errors = [part["error_pct"] for part in held_out(capture, steps)] if tried else []
    if errors and max(map(abs, errors)) > MODEL_ERROR_PCT:
        error_pct = max(map(abs, errors))
        off = f"{format_signed(min(errors), 1)} to {format_signed(max(errors), 1)} %"
        wrong = f"predicting each quarter of the recording from the others is off by {off}"
        if error_pct > MOST_ERROR_PCT and busy_ns > DOUBTED_SHARE * loop_ns:
            raise NoStorageLimitError(wrong)
        reasons.append(wrong)
    if not reasons:
        return NO_DOUBT, prepared
    unseen_s = ns_to_seconds(round(max(unexplained_ns, busy_ns - saved_ns, 0.0)))
    return Doubt(state=BOUNDED, reason="; ".join(reasons), error_pct=error_pct, unexplained_s=unseen_s), prepared


_TIMES = ("start_ns", "end_ns")


def _waits(model: LoopModel) -> Intervals:
    """The input waits of a loop between its first step's begin and its last one's end."""
    loop = model.loop
    if not loop.input_waits or not len(loop.step_begin_ns):
        return Intervals()
    within = loop.step_begin_ns.min(), loop.step_end_ns.max()
    return Intervals.union_of(*(np.clip(each[loop.fetches], *within) for each in (loop.begin_ns, loop.end_ns)))


def _explained_ns(
    capture: Capture, steps: Steps, waits: Mapping[int, Intervals], waited_ns: float
) -> tuple[float, bool]:
    """How long recorded work explains the input waits, mean of the ranks, and whether processor times are known."""
    marked = [each for each in capture.info.made_by.get("marks", ()) if each.get("wait_ns")]
    logs = log_waits(capture.info, capture.spans) or {}
    found = []
    for rank, own in waits.items():
        shown = _work(steps.spans[rank])
        if not len(steps.waits[rank]) and rank in logs:  # else they are no part of the waits
            shown = shown.union(logs[rank])
        found.append(int(own.covered_within(shown.starts, shown.ends).sum()))
    shares = [each["made_ns"] / each["wait_ns"] for each in marked]
    return _mean(found) + waited_ns * _mean(shares), bool(marked)


def _work(spans: pa.Table) -> Intervals:
    """When compute or the input pipeline were at work."""
    work = np.isin(codes(spans, "kind"), _WORK)
    return Intervals.union_of(*(spans[name].to_numpy()[work] for name in _TIMES))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _within_loop(times: Intervals, model: LoopModel) -> int:
    return int(times.covered_within(np.array([model.loop.entry_ns]), np.array([model.loop.exit_ns]))[0])


def _check_own_time(capture: Capture, steps: Steps, under_way: Mapping[int, Intervals]) -> None:
    """Raises: NoStorageLimitError if a loop that may fetch within its steps does neither compute nor wait for most of
    them, as far as was recorded."""
    marked = {each["rank"]: each for each in capture.info.made_by.get("marks", ())}
    for rank, model in steps.models.items():
        spans, loop = steps.spans[rank], model.loop
        names = spans.filter(codes(spans, "kind") == INPUT_WAIT)["name"].unique().to_pylist()
        if rank not in marked or names != [BETWEEN_STEPS]:
            continue
        shown = Intervals.union_of(loop.begin_ns, loop.end_ns).union(_work(spans))
        loop_ns, known = max(loop.exit_ns - loop.entry_ns, 1), marked[rank]
        elsewhere = (known["cpu_ns"] + known["device_ns"]) / max(known["loop_ns"], 1)
        idle = 1.0 - _within_loop(shown, model) / loop_ns - elsewhere
        read = _within_loop(under_way[rank].minus(shown), model) / loop_ns
        if idle > MOST_UNEXPLAINED or min(idle, read) > DOUBTED_SHARE:
            raise HiddenWaitError(
                f"the loop's thread neither computes nor is seen to wait for input in {100 * idle:.0f} % of its time, "
                f"and files are read in {100 * read:.0f} %: steps that fetch their own batch hide it; mark the fetch. "
                f"{most_by_processors([known])}"
            )


def held_out(capture: Capture, steps: Steps) -> list[dict[str, Any]]:
    """Predict each part of the training loop from the others, for all ranks together; step numbers are those of the
    first rank. Empty for too few steps, too many operations or no reads."""
    models = steps.models
    fewest = min((len(model.loop.step_number) for model in models.values()), default=0)
    reads = sum(model.reads for model in models.values())
    if fewest < 5 * PARTS or steps.operations > MAX_CHECKED_OPERATIONS // PARTS or not reads:
        return []
    found, numbers = [], next(iter(models.values())).loop.step_number
    for part in range(PARTS):
        changed = dataclasses.replace(steps, models={rank: _without(each, part) for rank, each in models.items()})
        planned = planned_lanes(capture, changed, Pacing(pace=Pace.STEPS))
        times = schedule(planned)
        recorded = predicted = 0
        for rank, model in models.items():
            first, last = _bounds(len(model.loop.step_number), part)
            marks = times[rank, "training"].begin_ns[planned[rank, "training"][0]["kind"] == MARK]
            recorded += int(model.loop.step_end_ns[last] - model.loop.step_begin_ns[first])
            predicted += int(marks[2 * last + 1] - marks[2 * first])
        first, last = _bounds(len(numbers), part)
        found.append(
            {
                "first_step": int(numbers[first]),
                "last_step": int(numbers[last]),
                "recorded_s": ns_to_seconds(recorded),
                "predicted_s": ns_to_seconds(predicted),
                "error_pct": 100.0 * (predicted / recorded - 1.0) if recorded else 0.0,
            }
        )
    return found


def _bounds(steps: int, part: int) -> tuple[int, int]:
    """The first and the last step of a part."""
    return steps * part // PARTS, steps * (part + 1) // PARTS - 1


def _without(model: LoopModel, part: int) -> LoopModel:
    """The model with the usual times of the other parts for processing and handing over the batches of one part."""
    loop = model.loop
    first, last = _bounds(len(loop.step_number), part)
    mine = loop.begin_ns[loop.fetches] >= loop.step_begin_ns[first]
    mine &= loop.end_ns[loop.fetches] <= loop.step_end_ns[last]
    if mine.all() or not mine.any():
        return model
    residual, ready, made = model.residual_ns.copy(), model.ready_ns.copy(), model.production
    for times in (residual, ready):
        times[loop.fetches[mine]] = np.median(times[loop.fetches[~mine]])
    if made is not None:
        head, tail = made.head_ns.copy(), made.tail_ns.copy()
        for times in (head, tail):
            times[mine] = np.median(times[~mine])
        made = dataclasses.replace(made, head_ns=head, tail_ns=tail)
    return dataclasses.replace(model, residual_ns=residual, ready_ns=ready, production=made)
