"""Lanes of items run without a clock: when each item begins and ends.

`PythonLanes` is the specification, `replay.causal._lane_events.CompiledLanes` does the same in compiled code and
runs unless a service is in Python.

Items are those of the pace `steps` (`replay.plan.plan_row`, paced as `think`). A gap lasts as long as it says, a wait
until its counter has got there, an operation as long as given for it, or else as a *service* says: a simulated storage
is asked in the order of the times at which operations begin; of two that begin together, that of the earlier lane goes
first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dxt_replay.replay.causal._lane_events import CompiledLanes
from dxt_replay.replay.causal._lane_events import Service as CompiledService
from dxt_replay.replay.engine.items import ADD, SLEEP, SPIN, WAIT
from dxt_replay.replay.engine.wait_counters import FIRST_RANK_COUNTER
from dxt_replay.traces.errors import ReplayError

KINDS, CODES = 13, 32
"""Shape of `Watch.class_of` before it is flattened."""


class Service(Protocol):
    """What gives operations their time."""

    def serve(self, now: int, lane: EventLane, item: np.void) -> int:
        """When the operation `item` (a row of `PLAN_ROW`) of a lane ends that begins `now`, both in ns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneTimes:
    """When each item of a lane begins and ends, int64 ns from the start (n,)."""

    begin_ns: np.ndarray
    end_ns: np.ndarray

    @classmethod
    def room(cls, count: int) -> LaneTimes:
        """Room for the times of so many items."""
        return cls(begin_ns=np.zeros(count, dtype=np.int64), end_ns=np.zeros(count, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventLane:
    """One lane of a simulation.

    items: `PLAN_ROW` (n,), which several lanes may share. durations_ns: int64 (n,), how long operations last; None
    where the service says so. times: filled where given.
    counter_shift: is added to the numbers of counters that belong to a single rank. file_shift: to those of files.
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
    """Where the time of watched lanes goes.

    class_of: uint8 (KINDS * CODES,), the class of an item by its kind and, plus one, its `event_kind`.
    spent_ns: int64 (steps + 1, classes), to which durations are added; the last row has what lies outside of steps.
    first_step: number of the step of row 0.
    """

    class_of: np.ndarray
    spent_ns: np.ndarray
    first_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LanesRun:
    """What came of it. end_ns: int64 by lane, when it ended. served: operations that the service was asked for."""

    end_ns: np.ndarray
    served: int


def run_lanes(
    lanes: Sequence[EventLane], service: Service | CompiledService | None = None, watch: Watch | None = None
) -> LanesRun:
    """Run lanes, in Python where the service is. Counters with the same number are one.

    service: for lanes without durations; None: their operations take no time.
    Raises: StuckLanesError when lanes wait for each other in a circle.
    """
    runner: Any = CompiledLanes if service is None or isinstance(service, CompiledService) else PythonLanes
    run = runner(lanes, service, watch, FIRST_RANK_COUNTER)
    if not run.run():
        raise StuckLanesError(run.undone())
    return LanesRun(end_ns=run.end_ns(), served=run.served)


class StuckLanesError(ReplayError):
    """Lanes wait for each other in a circle. `lanes`: their numbers."""

    def __init__(self, lanes: Sequence[int]) -> None:
        super().__init__(f"{len(lanes)} lanes wait for each other: the causal model contradicts itself")
        self.lanes = list(lanes)


class _Counter:
    """The history of a counter: sums in the order in which they were reached, and when."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self.times: list[int] = []
        self.waiting: list[int] = []

    def add(self, amount: int, time: int) -> None:
        self.sums.append((self.sums[-1] if self.sums else 0) + amount)
        # Additions of several lanes are met out of order; a sum is there when the last of them is.
        self.times.append(max(time, self.times[-1]) if self.times else time)

    def reached(self, least: int) -> int | None:
        """When it was at least `least`; None when it is not yet."""
        if least <= 0:
            return 0
        at = bisect_left(self.sums, least)
        return self.times[at] if at < len(self.sums) else None


class PythonLanes:
    """The specification of `run_lanes`."""

    def __init__(
        self, lanes: Sequence[EventLane], service: Service | None, watch: Watch | None, first_rank_counter: int
    ) -> None:
        self._lanes = lanes
        self._service = service
        self._watch = watch
        self._first_rank_counter = first_rank_counter
        self._counters: dict[int, _Counter] = defaultdict(_Counter)
        self._at = [0] * len(lanes)
        self._now = [0] * len(lanes)
        self._ready = list(range(len(lanes)))
        self._events: list[tuple[int, int]] = []
        self.served = 0

    def run(self) -> bool:
        """Do all items; whether none was left."""
        while self._ready or self._events:
            while self._ready:
                self._go_on(self._ready.pop())
            if self._events:
                begin, number = heapq.heappop(self._events)
                lane = self._lanes[number]
                self.served += 1
                item = lane.items[self._at[number]]
                self._done(number, begin, begin if self._service is None else self._service.serve(begin, lane, item))
                self._go_on(number)
        return not self.undone()

    def undone(self) -> list[int]:
        """The numbers of the lanes that have items left."""
        return [number for number, lane in enumerate(self._lanes) if self._at[number] < len(lane.items)]

    def end_ns(self) -> np.ndarray:
        """When each lane ended, int64 (n,)."""
        return np.array(self._now, dtype=np.int64)

    def _go_on(self, number: int) -> None:
        """Do the items of a lane up to an operation for the service, or a wait that has not ended."""
        lane = self._lanes[number]
        while self._at[number] < len(lane.items):
            item = lane.items[self._at[number]]
            kind, slot, amount = int(item["kind"]), int(item["_slot"]), int(item["_amount"])
            begin = end = self._now[number] + int(item["due_ns"])
            counter = self._counters[slot + (lane.counter_shift if slot >= self._first_rank_counter else 0)]
            if kind in (SLEEP, SPIN):
                end = begin + amount
            elif kind == WAIT:
                reached = counter.reached(amount)
                if reached is None:
                    counter.waiting.append(number)
                    return
                end = max(begin, reached)
            elif kind == ADD:
                counter.add(amount, begin)
                self._ready += counter.waiting
                counter.waiting.clear()
            elif lane.durations_ns is not None:
                end = begin + int(lane.durations_ns[self._at[number]])
            elif kind < SLEEP:
                heapq.heappush(self._events, (begin, number))
                return
            self._done(number, begin, end)

    def _done(self, number: int, begin: int, end: int) -> None:
        lane, at = self._lanes[number], self._at[number]
        if lane.times is not None:
            lane.times.begin_ns[at], lane.times.end_ns[at] = begin, end
        if lane.watched and self._watch is not None:
            item, spent = lane.items[at], self._watch.spent_ns
            row = int(item["step"]) - self._watch.first_step
            row = row if item["step"] >= 0 and 0 <= row < len(spent) - 1 else -1
            spent[row, self._watch.class_of[int(item["kind"]) * CODES + (int(item["_code"]) + 1) % CODES]] += (
                end - self._now[number]
            )
        self._at[number], self._now[number] = at + 1, end
