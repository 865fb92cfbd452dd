"""A capture as the lanes of a simulation: the very items that a replay with the pace `steps` issues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.lane_events import CODES, KINDS, EventLane, Watch
from dxt_replay.replay.causal.paced_ranks import Steps, io_lanes
from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, ENTRY, EVALUATION, FETCH
from dxt_replay.replay.engine.wait_counters import FIRST_RANK_COUNTER
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import NO_EVENT
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture

TIME_CLASSES = ("compute", "input_wait", "meetings", "checkpoints", "evaluation", "loading")
"""Where the time of a training thread goes."""

_CLASS_OF_EVENT = {
    NO_EVENT: "compute",
    FETCH: "input_wait",
    COLLECTIVE: "meetings",
    CHECKPOINT: "checkpoints",
    EVALUATION: "evaluation",
    ENTRY: "loading",
}

MAX_FILES = 1 << 31
"""Files of a simulation: their numbers are int32."""

MAX_STEPS = 1 << 20
"""Most steps that are counted one by one; what lies beyond counts as outside of steps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """The lanes of the recorded ranks, from which those of any number of ranks are made.

    steps: the causal models. io_lanes: by recorded rank, the items of its lanes and of its input pipeline (`PLAN_ROW`).
    file_bytes: int64 by file. operations: of all recorded ranks. compute_ns: of the accelerators in the loops of all
    recorded ranks, at the speed of the simulation; 0 where the capture shows none.
    """

    steps: Steps
    pacing: Pacing
    compute: str
    io_lanes: Mapping[int, Sequence[np.ndarray]]
    file_bytes: np.ndarray
    operations: int
    compute_ns: float

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len(self.io_lanes)

    def operations_of(self, ranks: int) -> int:
        """Operations of so many ranks."""
        counts = [survey.operations for survey in self.steps.surveys.values()]
        whole, rest = divmod(ranks, len(counts))
        return whole * sum(counts) + sum(counts[:rest])

    def lanes(self, ranks: int) -> list[EventLane]:
        """The lanes of `ranks` ranks. Rank i does what the recorded rank i modulo their number does.

        Each further set of ranks has files of its own, of the same sizes; all ranks meet at collectives.
        Raises: UsageError for more files than have numbers.
        """
        if -(-ranks // self.ranks) * len(self.file_bytes) >= MAX_FILES:
            raise UsageError(f"{ranks} ranks with files of their own have more than {MAX_FILES} files: simulate fewer")
        steps = self.steps
        meetings = dataclasses.replace(steps.meetings, ranks=ranks) if len(steps.meetings.cost_ns) else steps.meetings
        steps = dataclasses.replace(steps, meetings=meetings)
        counters = steps.counters(FIRST_RANK_COUNTER)
        recorded = list(self.io_lanes)[:ranks]
        scripts = {rank: steps.script(rank, counters[rank], self.pacing, self.compute) for rank in recorded}
        lanes = []
        for place in range(ranks):
            copy, rank = divmod(place, self.ranks)
            rank = recorded[rank]
            mine = [(items, False) for items in self.io_lanes[rank]] + [(scripts[rank], True)]
            lanes += [
                EventLane(
                    items=items,
                    counter_shift=copy * steps.counter_count,
                    file_shift=copy * len(self.file_bytes),
                    rank=place,
                    watched=watched,
                )
                for items, watched in mine
            ]
        return lanes

    def watch(self) -> Watch:
        """Counts where the time of the training threads goes, by step and TIME_CLASSES."""
        numbers = [model.loop.step_number for model in self.steps.models.values() if len(model.loop.step_number)]
        first = min((int(each.min()) for each in numbers), default=0)
        count = min(max((int(each.max()) for each in numbers), default=0) - first + 1, MAX_STEPS)
        class_of = np.zeros((KINDS, CODES), dtype=np.uint8)
        for event, name in _CLASS_OF_EVENT.items():
            class_of[:, (event + 1) % CODES] = TIME_CLASSES.index(name)
        spent = np.zeros((count + 1, len(TIME_CLASSES)), dtype=np.int64)
        return Watch(class_of=class_of, spent_ns=spent, first_step=first)


def simulated_job(capture: Capture, steps: Steps, pacing: Pacing, compute: str, compute_ns: int) -> SimulatedJob:
    """The job of a capture. `compute_ns`: as recorded, of its accelerators.

    Memory: 40 bytes an item, of which an operation has one to three, and 8 more while those of its rank are made.

    Raises: CaptureError when a part is damaged.
    """
    io = {}
    for rank, counters in steps.counters(FIRST_RANK_COUNTER).items():
        lanes = io_lanes(capture, steps, rank, counters, pacing)
        io[rank] = [items for items, _ in lanes.values() if len(items)]
    return SimulatedJob(
        steps=steps,
        pacing=pacing,
        compute=compute,
        io_lanes=io,
        file_bytes=capture.files.column("size").to_numpy().astype(np.int64),
        operations=sum(survey.operations for survey in steps.surveys.values()),
        compute_ns=compute_ns / (pacing.compute_speed or pacing.speed),
    )
