"""A capture as the lanes of a simulation: the very items that a replay with the pace `steps` issues."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.items import Meetings, with_meetings
from dxt_replay.replay.causal.lane_events import CODES, KINDS, EventLane, Watch
from dxt_replay.replay.causal.paced_ranks import RankItems, meetings_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, ENTRY, EVALUATION, FETCH
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import NO_EVENT
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import training_ns
from dxt_replay.traces.records import BenchmarkRun, benchmark_run
from dxt_replay.traces.storage_limit import NO_DOUBT, Doubt
from dxt_replay.traces.store.reader import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Where the time of a training thread goes: mean over the ranks, in seconds unless stated otherwise.

    input_wait: for its next batch. meetings: for the other ranks. loading: before the first step.
    """

    compute: float
    input_wait: float
    meetings: float
    checkpoints: float
    evaluation: float
    loading: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, name) for name in TIME_CLASSES))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(TimeSpent):
    """Where the time of one step goes, ms."""

    step: int


TIME_CLASSES = tuple(field.name for field in dataclasses.fields(TimeSpent))
"""The columns of `Watch.spent_ns`."""

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

    recorded: the recorded ranks. meetings: the collectives of all of them. file_bytes: int64 by file.
    compute_ns: of the accelerators in the loops of all recorded ranks, at the speed of the simulation; 0 where the
    capture shows none.
    warnings: sentences about the causal models, for the user. doubt: how far they may be believed. recorded_ns: of the
    capture and of its training loop without what the recording cost; None where the simulation changes compute.
    benchmark: the run of a benchmark, which has a rule of its own for the utilisation.
    """

    recorded: Sequence[RankItems]
    meetings: Meetings
    pacing: Pacing
    file_bytes: np.ndarray
    compute_ns: float
    warnings: tuple[str, ...]
    doubt: Doubt = NO_DOUBT
    recorded_ns: tuple[int, int] | None = None
    benchmark: BenchmarkRun | None = None

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len(self.recorded)

    def operations_of(self, ranks: int) -> int:
        """Operations of so many ranks."""
        counts = [each.operations for each in self.recorded]
        whole, rest = divmod(ranks, len(counts))
        return whole * sum(counts) + sum(counts[:rest])

    def lanes(self, ranks: int) -> list[EventLane]:
        """The lanes of `ranks` ranks. Rank i does what the recorded rank i modulo their number does.

        Each further set of ranks has files of its own, of the same sizes; all ranks meet at collectives.
        Raises: UsageError for more files than have numbers.
        """
        if -(-ranks // self.ranks) * len(self.file_bytes) >= MAX_FILES:
            raise UsageError(f"{ranks} ranks with files of their own have more than {MAX_FILES} files: simulate fewer")
        meetings = dataclasses.replace(self.meetings, ranks=ranks)
        recorded = self.recorded[:ranks]
        scripts = [with_meetings(each.script, self.pacing, meetings) for each in recorded]
        lanes, shift = [], 0
        for place in range(ranks):
            copy, number = divmod(place, self.ranks)
            each = recorded[number]
            lanes += [
                EventLane(
                    items=items,
                    counter_shift=shift,
                    file_shift=copy * len(self.file_bytes),
                    rank=place,
                    watched=items is scripts[number],
                )
                for items in (*each.lanes, scripts[number])
            ]
            shift += each.counters
        return lanes

    def watch(self) -> Watch:
        """Counts where the time of the training threads goes, by step and TIME_CLASSES."""
        numbers = [each.notes.step_number for each in self.recorded if len(each.notes.step_number)]
        first = min((int(each.min()) for each in numbers), default=0)
        count = min(max((int(each.max()) for each in numbers), default=0) - first + 1, MAX_STEPS)
        class_of = np.zeros((KINDS, CODES), dtype=np.uint8)
        for event, name in _CLASS_OF_EVENT.items():
            class_of[:, (event + 1) % CODES] = TIME_CLASSES.index(name)
        spent = np.zeros((count + 1, len(TIME_CLASSES)), dtype=np.int64)
        return Watch(class_of=class_of, spent_ns=spent, first_step=first)


def simulated_job(capture: Capture, recorded: Sequence[RankItems], pacing: Pacing, compute_ns: int) -> SimulatedJob:
    """The job of a capture from the items of all its ranks. `compute_ns`: as recorded, of its accelerators."""
    notes = {rank: each.notes for rank, each in zip(capture.ranks, recorded, strict=True)}
    meetings, warnings = meetings_of(notes)
    return SimulatedJob(
        recorded=recorded,
        meetings=meetings,
        pacing=pacing,
        file_bytes=capture.files.column("size").to_numpy().astype(np.int64),
        compute_ns=compute_ns / (pacing.compute_speed or pacing.speed),
        warnings=warnings,
        doubt=doubt_of_capture(capture, reasons=[each.doubt for each in notes.values()]),
        recorded_ns=None if (pacing.compute_speed or pacing.speed) != 1.0 else _recorded_ns(capture),
        benchmark=benchmark_run(capture.info),
    )


def _recorded_ns(capture: Capture) -> tuple[int, int]:
    """`SimulatedJob.recorded_ns`."""
    begin_ns, end_ns = capture.time_span_ns
    cost_ns = longest_log_wait_ns(capture.info, capture.spans) or 0
    return end_ns - begin_ns - cost_ns, (training_ns(capture.spans) or 0) - cost_ns
