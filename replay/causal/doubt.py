"""Judges a causal model by the recording: why, or how far, predictions of a training may not be believed. Pure.

A wait for input is explained by the reads that the model knows, by the time of recorded threads on processors, and by
spans of compute and of the input pipeline. What nothing explains may be storage that no trace holds.

A model that reproduces the recorded time from the recorded durations proves nothing, because these durations include
all time that its rules do not explain. So each quarter of the steps is predicted anew: from its own recorded reads and
compute, and from the times that the other quarters took to process and hand over a batch (`held_out`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dxt_replay.replay.causal.lane_events import schedule
from dxt_replay.replay.causal.model import DOUBTED_SHARE, LoopModel
from dxt_replay.replay.causal.paced_ranks import MAX_CHECKED_OPERATIONS, Steps, planned_lanes, rank_batches
from dxt_replay.replay.engine.items import MARK
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import log_waits
from dxt_replay.traces.schema import BETWEEN_STEPS, SPAN_KINDS, CaptureInfo, codes
from dxt_replay.traces.storage_limit import BOUNDED, MODEL_ERROR_PCT, NO_DOUBT, Doubt, NoStorageLimitError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_signed, ns_to_seconds

PARTS = 4
"""Parts of a loop that are predicted one after the other."""

LEAST_STEPS = 5 * PARTS
"""Steps from which on there are parts."""

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
_WAIT = SPAN_KINDS.index("input_wait")


def is_exact(info: CaptureInfo) -> bool:
    """Whether nothing is inferred. Marks say what each operation of a recorded job waits for, and yet its threads wait
    for each other and for processors, which they do not say."""
    return info.dependencies == "known" and info.made_by.get("command") != "merge" and "doubt" not in info.made_by


def doubt_of(capture: Capture, steps: Steps, saved_ns: int, loop_ns: int) -> tuple[Doubt, bool]:
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
    under_way = {rank: _io(capture, steps, rank) for rank in waits}
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
    operations = sum(each.operations for each in steps.surveys.values())
    matters = min(waited_ns, _mean([_within_loop(under_way[rank], model) for rank, model in steps.models.items()]))
    tried = operations <= MOST_TRIED and matters > LEAST_SHARE * loop_ns
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
    found = Doubt(
        state=BOUNDED,
        reason="; ".join(reasons),
        error_pct=error_pct,
        unexplained_s=ns_to_seconds(round(max(unexplained_ns, busy_ns - saved_ns, 0.0))),
    )
    return found, prepared


def _waits(model: LoopModel) -> Intervals:
    """The input waits of a loop between its first step's begin and its last one's end."""
    loop = model.loop
    if not loop.input_waits or not len(loop.step_begin_ns):
        return Intervals()
    within = loop.step_begin_ns.min(), loop.step_end_ns.max()
    begin, end = (np.clip(each[loop.fetches], *within) for each in (loop.begin_ns, loop.end_ns))
    return Intervals.union_of(begin, end)


def _explained_ns(
    capture: Capture, steps: Steps, waits: Mapping[int, Intervals], waited_ns: float
) -> tuple[float, bool]:
    """How long recorded work explains the input waits, mean of the ranks, and whether processor times are known."""
    marked = [each for each in capture.info.made_by.get("marks", ()) if each.get("wait_ns")]
    logs = log_waits(capture.info, capture.spans) or {}
    found = []
    for rank, own in waits.items():
        spans = steps.spans[rank]
        work = np.isin(codes(spans, "kind"), _WORK)
        shown = Intervals.union_of(*(spans[name].to_numpy()[work] for name in ("start_ns", "end_ns")))
        if not len(steps.waits[rank]) and rank in logs:  # else they are no part of the waits
            shown = shown.union(logs[rank])
        found.append(int(own.covered_within(shown.starts, shown.ends).sum()))
    shares = [each["made_ns"] / each["wait_ns"] for each in marked]
    return _mean(found) + waited_ns * _mean(shares), bool(marked)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _within_loop(times: Intervals, model: LoopModel) -> int:
    return int(times.covered_within(np.array([model.loop.entry_ns]), np.array([model.loop.exit_ns]))[0])


def _io(capture: Capture, steps: Steps, rank: int) -> Intervals:
    """When operations of a rank were under way."""
    placed = partial(steps.placed, rank)
    batches = list(map(placed, rank_batches(capture, rank, steps.surveys[rank].layers)))
    return Intervals.union_of(*(np.concatenate([_NONE, *(getattr(each, name) for each in batches)]) for name in _TIMES))


_NONE, _TIMES = np.empty(0, dtype=np.int64), ("start_ns", "end_ns")


def _check_own_time(capture: Capture, steps: Steps, under_way: Mapping[int, Intervals]) -> None:
    """Raises: NoStorageLimitError if a loop that may fetch within its steps does neither compute nor wait for most of
    them, as far as was recorded."""
    marked = {each["rank"]: each for each in capture.info.made_by.get("marks", ())}
    for rank, model in steps.models.items():
        spans, loop = steps.spans[rank], model.loop
        names = spans.filter(codes(spans, "kind") == _WAIT)["name"].unique().to_pylist()
        if rank not in marked or names != [BETWEEN_STEPS]:
            continue
        events = Intervals.union_of(loop.begin_ns, loop.end_ns)
        work = np.isin(codes(spans, "kind"), _WORK)
        shown = events.union(Intervals.union_of(*(spans[name].to_numpy()[work] for name in _TIMES)))
        loop_ns, known = max(loop.exit_ns - loop.entry_ns, 1), marked[rank]
        elsewhere = (known["cpu_ns"] + known["device_ns"]) / max(known["loop_ns"], 1)
        idle = 1.0 - _within_loop(shown, model) / loop_ns - elsewhere
        read = _within_loop(under_way[rank].minus(shown), model) / loop_ns
        if idle > MOST_UNEXPLAINED or min(idle, read) > DOUBTED_SHARE:
            raise NoStorageLimitError(
                f"the loop's thread neither computes nor is seen to wait for input in {100 * idle:.0f} % of its time, "
                f"and files are read in {100 * read:.0f} %: steps that fetch their own batch hide it; mark the fetch"
            )


def held_out(capture: Capture, steps: Steps) -> list[dict[str, Any]]:
    """Predict each part of the training loop from the others, for all ranks together; step numbers are those of the
    first rank. Empty for too few steps, too many operations or no reads."""
    operations = sum(survey.operations for survey in steps.surveys.values())
    fewest = min((len(model.loop.step_number) for model in steps.models.values()), default=0)
    reads = sum(model.reads for model in steps.models.values())
    if fewest < LEAST_STEPS or operations > MAX_CHECKED_OPERATIONS // PARTS or not reads:
        return []
    found = []
    numbers = next(iter(steps.models.values())).loop.step_number
    for part in range(PARTS):
        models = {rank: _without(model, part) for rank, model in steps.models.items()}
        planned = planned_lanes(capture, dataclasses.replace(steps, models=models), Pacing(pace=Pace.STEPS))
        times = schedule(planned)
        recorded = predicted = 0
        for rank, model in steps.models.items():
            first, last = _bounds(len(model.loop.step_number), part)
            items, _ = planned[rank, "training"]
            marks = times[rank, "training"].begin_ns[items["kind"] == MARK]
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
    begin, end = loop.begin_ns[loop.fetches], loop.end_ns[loop.fetches]
    mine = (begin >= loop.step_begin_ns[first]) & (end <= loop.step_end_ns[last])
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
