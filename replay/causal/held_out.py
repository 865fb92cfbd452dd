"""Tests how well a causal model predicts parts of the recording that it was not derived from. Pure.

A model that reproduces the recorded time from the recorded durations proves nothing, because these durations include
all time that its rules do not explain. So each quarter of the steps is predicted anew: from its own recorded reads and
compute, and from the times that the other quarters took to process and hand over a batch. If the model mistakes storage
time for processing, the prediction misses the recorded quarter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.check import schedule
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.paced_ranks import MAX_CHECKED_OPERATIONS, Steps, planned_lanes
from dxt_replay.replay.engine.items import MARK
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.store.reader import Capture

PARTS = 4
"""Parts of a loop that are predicted one after the other."""

LEAST_STEPS = 5 * PARTS
"""Steps from which on there are parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A part of the steps, of all ranks together.

    first, last: step numbers on the first rank. recorded_ns, predicted_ns: duration of the part.
    """

    first: int
    last: int
    recorded_ns: int
    predicted_ns: int

    @property
    def error_pct(self) -> float:
        """Excess of the prediction over the recording, per cent."""
        return 100.0 * (self.predicted_ns / self.recorded_ns - 1.0) if self.recorded_ns else 0.0


def held_out(capture: Capture, steps: Steps) -> tuple[HeldOut, ...]:
    """Predict each part of the training loop from the others, for all ranks together. Empty for too few steps, too many
    operations or no reads."""
    operations = sum(survey.operations for survey in steps.surveys.values())
    fewest = min((len(model.loop.step_number) for model in steps.models.values()), default=0)
    reads = sum(model.reads for model in steps.models.values())
    if fewest < LEAST_STEPS or operations > MAX_CHECKED_OPERATIONS // PARTS or not reads:
        return ()
    found = []
    for part in range(PARTS):
        models = {rank: _without(model, part) for rank, model in steps.models.items()}
        times = schedule(planned := planned_lanes(capture, dataclasses.replace(steps, models=models), _PACING))
        recorded = predicted = 0
        for rank, model in steps.models.items():
            first, last = _bounds(len(model.loop.step_number), part)
            items, _ = planned[rank, "training"]
            marks = times[rank, "training"].begin_ns[items["kind"] == MARK]
            recorded += int(model.loop.step_end_ns[last] - model.loop.step_begin_ns[first])
            predicted += int(marks[2 * last + 1] - marks[2 * first])
        numbers = next(iter(steps.models.values())).loop.step_number
        first, last = _bounds(len(numbers), part)
        found.append(
            HeldOut(first=int(numbers[first]), last=int(numbers[last]), recorded_ns=recorded, predicted_ns=predicted)
        )
    return tuple(found)


_PACING = Pacing(pace=Pace.STEPS)


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
