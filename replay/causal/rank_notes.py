"""What the other ranks and the user must know of the causal model of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import format_duration

OUTSIDE_SHARE = 0.1
"""Share of the loop's bytes that steps outside of the profile consume, from which on there is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankNotes:
    """What the other ranks and the user must know of the model of a rank.

    collectives_ns: int64, durations of its collectives in order. step_number: int32, its profiled steps.
    recorder_ns: how long it waited for the recording. outside_share: the share of the loop's bytes that steps outside
    of the profile consume. input_waits, doubt: as of its loop and model.
    """

    collectives_ns: np.ndarray
    step_number: np.ndarray
    input_waits: bool
    recorder_ns: int
    outside_share: float
    doubt: str

    @classmethod
    def of(cls, model: LoopModel, waits: Intervals) -> RankNotes:
        """The notes of a model. `waits`: as of `Steps`."""
        loop = model.loop
        return cls(
            collectives_ns=loop.end_ns[loop.collectives] - loop.begin_ns[loop.collectives],
            step_number=loop.step_number,
            input_waits=loop.input_waits,
            recorder_ns=waits.length_ns,
            outside_share=model.outside_bytes / model.loop_bytes if model.loop_bytes else 0.0,
            doubt=model.doubt,
        )


def warnings_of(notes: Mapping[int, RankNotes]) -> tuple[str, ...]:
    """Sentences about the models of these ranks, for the user."""
    return (*_of_recorder(notes), *_outside(notes))


def _of_recorder(notes: Mapping[int, RankNotes]) -> list[str]:
    """A warning with the cost of the recording for the rank that waited longest for it."""
    rank = max(notes, key=lambda each: notes[each].recorder_ns, default=None)
    if rank is None or not notes[rank].recorder_ns:
        return []
    return [
        f"rank {rank} waited {format_duration(notes[rank].recorder_ns)} for input while Darshan wrote the logs of "
        "processes that had ended, and did nothing else: this cost of the recording is left out"
    ]


def _outside(notes: Mapping[int, RankNotes]) -> list[str]:
    """A warning if much was read for steps outside the profile; it names the rank with the most."""
    most = max(notes, key=lambda rank: notes[rank].outside_share, default=None)
    if most is None or notes[most].outside_share < OUTSIDE_SHARE:
        return []
    steps, share = notes[most].step_number, notes[most].outside_share
    return [
        f"rank {most}: the profile shows steps {steps[0]} to {steps[-1]}, and {100 * share:.0f} % of the "
        "loop's reads belong to other steps. Outside the profile each thread keeps its think times, as if compute hid "
        f"no read; --steps {steps[0]}-{steps[-1]} replays only the profiled part"
    ]
