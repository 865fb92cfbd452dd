"""Checks a prediction by a replay of a window of the job on the real storage. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dxt_replay.traces.units import ns_to_seconds

ALIKE = 0.05  # A replay that differs by this share of the simulated time agrees with it: replays vary by a few per cent
GROSS = 1.5
"""A replay that takes so many times as long or as short as simulated says that the model is of another storage."""

LEAST_STORAGE = 0.05
"""Share of the simulated time from which on storage costs enough that its cost alone can be compared."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of a training thread goes: mean over the ranks, in seconds unless stated otherwise.

    input_wait: for its next batch. meetings: for the other ranks. loading: before the first step. client: of a storage
    model that has one, else 0.
    """

    compute: float
    input_wait: float
    meetings: float
    checkpoints: float
    evaluation: float
    loading: float
    client: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, each.name) for each in fields(TimeSpent)))


@dataclass(frozen=True, slots=True)
class StepTime(TimeSpent):
    """Where the time of one step goes, ms."""

    step: int = field(kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The same window of a job, simulated and replayed.

    steps: first and last step of the window; None for the whole job. simulated_ns: predicted. free_ns: with infinitely
    fast storage. measured_ns: how long the replay took.
    """

    steps: tuple[int, int] | None
    simulated_ns: int
    free_ns: int
    measured_ns: int

    @property
    def ratio(self) -> float:
        """Measured over simulated time."""
        return self.measured_ns / max(self.simulated_ns, 1)

    @property
    def difference_pct(self) -> float:
        """Excess of the measured time over the simulated one, per cent."""
        return 100.0 * (self.ratio - 1.0)

    @property
    def verdict(self) -> str:
        """ "agrees", "differs" (the interval must be wider) or "contradicts" (there is no prediction)."""
        if abs(self.ratio - 1.0) <= ALIKE:
            return "agrees"
        return "differs" if 1 / GROSS <= self.ratio <= GROSS else "contradicts"

    def widened(self, interval_ns: tuple[int, int], free_ns: int) -> tuple[int, int]:
        """An interval of the whole job that also holds what the window came to: the whole time scaled as the window's,
        and the cost of storage alone scaled so, which differs where storage costs the window more than the job."""
        ends = [*interval_ns, *(round(self.ratio * end) for end in interval_ns)]
        cost = self.simulated_ns - self.free_ns
        if cost >= LEAST_STORAGE * self.simulated_ns:
            times = max(self.measured_ns - self.free_ns, 0) / cost
            ends += [round(free_ns + times * max(end - free_ns, 0)) for end in interval_ns]
        return min(ends), max(ends)

    def as_json(self) -> dict[str, Any]:
        """The object `check` of `dxt-replay simulate --json`."""
        return {
            "verdict": self.verdict,
            "steps": None if self.steps is None else list(self.steps),
            "simulated_s": ns_to_seconds(self.simulated_ns),
            "measured_s": ns_to_seconds(self.measured_ns),
            "difference_pct": self.difference_pct,
        }


def first_steps(steps: Sequence[StepTime], seconds: float) -> tuple[int, int] | None:
    """The first and the last of the first steps that take so many seconds; None if all of them take no longer."""
    passed = itertools.accumulate(step.total / 1e3 for step in steps)
    last = next((place for place, done in enumerate(passed) if done >= seconds), len(steps))
    return (steps[0].step, steps[last].step) if last + 1 < len(steps) else None


def refusal(found: Agreement, name: str) -> str:
    """The reason why there is no prediction, and the remedy. `name`: of the storage model."""
    return (
        f"there is no prediction: the replayed window took {ns_to_seconds(found.measured_ns):.3g} s and "
        f"{ns_to_seconds(found.simulated_ns):.3g} s were simulated, so {name!r} does not describe this storage. "
        "Calibrate it again (`dxt-replay calibrate --target DIR -o MODEL.json`) while nothing else uses the machine or "
        "the storage, and check again"
    )
