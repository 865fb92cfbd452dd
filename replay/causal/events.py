"""Runs lanes of items without a clock, and computes when each item begins and ends.

Items are those of the pace `steps` (`replay.engine.items`, paced as `think`). A gap lasts its own duration. A wait
lasts until its counter reaches the amount. An operation lasts its given duration, or else a *service* decides, such as
a simulated storage. The service gets operations in the order of their begins; of two that begin together, that of the
earlier lane comes first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal._lane_events import Service, run
from dxt_replay.replay.engine.items import ADD
from dxt_replay.traces.errors import ReplayError

KINDS, CODES = ADD + 1, 32
"""Shape of `Watch.class_of`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneTimes:
    """When each item of a lane begins and ends, int64 ns from the start (n,)."""

    begin_ns: np.ndarray
    end_ns: np.ndarray

    @classmethod
    def room(cls, count: int) -> LaneTimes:
        return cls(begin_ns=np.zeros(count, dtype=np.int64), end_ns=np.zeros(count, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventLane:
    """One lane of a simulation.

    items: `PLAN_ROW` (n,), which several lanes may share. durations_ns: int64 (n,), durations of operations; None if
    the service decides. times: filled if given.
    counter_shift: added to the numbers of counters that belong to a single rank. file_shift: added to file numbers.
    rank: place among the ranks, from 0. watched: whether its time is counted by `Watch`.
    """

    items: np.ndarray
    durations_ns: np.ndarray | None = None
    times: LaneTimes | None = None
    counter_shift: int = 0
    file_shift: int = 0
    rank: int = 0
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watch:
    """Sums of the time of watched lanes by class.

    class_of: uint8 (KINDS, CODES), the class of an item by its kind and, plus one, its `event_kind`.
    spent_ns: int64 (steps + 1, classes), to which durations are added; the last row has what lies outside of steps.
    first_step: number of the step of row 0.
    """

    class_of: np.ndarray
    spent_ns: np.ndarray
    first_step: int = 0


class StuckLanesError(ReplayError):
    """Lanes wait for each other in a circle. `lanes`: their numbers."""

    def __init__(self, lanes: Sequence[int]) -> None:
        super().__init__(f"{len(lanes)} lanes wait for each other: the causal model contradicts itself")
        self.lanes = list(lanes)


def run_lanes(
    lanes: Sequence[EventLane],
    service: Service | None = None,
    watch: Watch | None = None,
    served: np.ndarray | None = None,
) -> np.ndarray:
    """Run lanes; int64 by lane, its end. Counters with the same number are one.

    service: for lanes without durations; None: their operations take no time.
    served: int64 (1,), zero; counts the operations that the service timed, for another thread to read meanwhile.
    Raises: StuckLanesError when lanes wait for each other in a circle.
    """
    end_ns, undone = run(lanes, service, watch, np.zeros(1, dtype=np.int64) if served is None else served)
    if undone:
        raise StuckLanesError(undone)
    return end_ns


def schedule(lanes: Mapping[Hashable, tuple[np.ndarray, np.ndarray]]) -> dict[Hashable, LaneTimes]:
    """When the items of each lane begin and end. lanes: for each its items (`PLAN_ROW`, paced as `think`), and the
    duration of each operation, int64 ns by item.

    With the recorded durations the result must equal the recorded times, which is the first evidence for a causal
    model. With other durations it is a prediction. Raises: ReplayError when lanes wait for each other in a circle.
    """
    times = {name: LaneTimes.room(len(items)) for name, (items, _) in lanes.items()}
    try:
        run_lanes(
            [EventLane(items=made, durations_ns=lasts, times=times[name]) for name, (made, lasts) in lanes.items()]
        )
    except StuckLanesError as error:
        stuck = ", ".join(str(list(lanes)[number]) for number in error.lanes)
        raise ReplayError(f"lanes {stuck} wait for each other: the causal model contradicts itself") from error
    return times
