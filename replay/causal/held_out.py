"""How well a causal model predicts parts of the recording that it was not derived from. Pure.

That a model comes to the recorded time with the recorded durations proves nothing: what its rules leave unexplained is
part of those durations. So each quarter of the steps is predicted anew: from its reads and its compute as recorded, and
from how long the other quarters took to process a batch and to hand it over. Where storage hides in what a model takes
for processing, the quarters differ from what it says.
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

    first, last: numbers of its steps, of the first rank. recorded_ns, predicted_ns: how long it lasted.
    """

    first: int
    last: int
    recorded_ns: int
    predicted_ns: int

    @property
    def error_pct(self) -> float:
        """How much longer the prediction is than the recording, per cent."""
        return 100.0 * (self.predicted_ns / self.recorded_ns - 1.0) if self.recorded_ns else 0.0


def held_out(capture: Capture, steps: Steps) -> tuple[HeldOut, ...]:
    """Each part of the training loop as the others predict it; empty where there are too few steps, too many operations
    or no reads. For all ranks of the capture together."""
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
    """The model, in which the batches of a part take as long to be processed and handed over as others usually do."""
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
