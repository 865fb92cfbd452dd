"""When each item of a causal plan begins and ends, if its operations last given times: without a clock. Pure.

With the recorded durations it must come to the recorded times, which is the first evidence for a model; with others it
predicts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from replay.engine.items import ADD, SLEEP, SPIN, WAIT
from replay.plan.plan_row import COUNTER_ROW, GAP_ROW
from traces.errors import ReplayError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneSchedule:
    """When each item of a lane began and ended, int64 ns from the start, (n,)."""

    begin_ns: np.ndarray
    end_ns: np.ndarray


class _Counter:
    """The history of a counter: sums in the order in which they were reached, and when."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self.times: list[int] = []

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


def schedule(lanes: Mapping[Hashable, tuple[np.ndarray, np.ndarray]]) -> dict[Hashable, LaneSchedule]:
    """When the items of each lane begin and end.

    lanes: of each lane its items (`PLAN_ROW`, paced as `think`), and int64 ns by item: how long an operation lasts.

    Counters with the same number are one counter for all lanes.
    Raises: ReplayError when lanes wait for each other in a circle.
    """
    counters: dict[int, _Counter] = defaultdict(_Counter)
    running = {name: _Lane(items, durations) for name, (items, durations) in lanes.items()}
    while any(not lane.done for lane in running.values()):
        # Each lane does as many of its items as the others let it.
        if not sum(lane.go_on(counters) for lane in running.values()):
            stuck = [str(name) for name, lane in running.items() if not lane.done]
            raise ReplayError(f"lanes {', '.join(stuck)} wait for each other: the causal model contradicts itself")
    return {
        name: LaneSchedule(begin_ns=np.array(lane.begins), end_ns=np.array(lane.ends)) for name, lane in running.items()
    }


class _Lane:
    def __init__(self, items: np.ndarray, durations: np.ndarray) -> None:
        gaps, counters = np.isin(items["kind"], (SLEEP, SPIN)), items.view(COUNTER_ROW)
        lasts_ns = np.where(gaps, items.view(GAP_ROW)["duration_ns"], durations)
        columns = (items["kind"], items["due_ns"], lasts_ns, counters["counter"], counters["amount"])
        self._items = list(zip(*(column.tolist() for column in columns), strict=True))
        self.begins: list[int] = []
        self.ends: list[int] = []
        self._now = 0

    @property
    def done(self) -> bool:
        return len(self.ends) == len(self._items)

    def go_on(self, counters: dict[int, _Counter]) -> int:
        """Do items up to the next wait that nothing has ended yet; how many."""
        before = len(self.ends)
        for kind, due_ns, lasts_ns, counter, amount in self._items[before:]:
            begin = end = self._now + due_ns
            if kind == WAIT:
                reached = counters[counter].reached(amount)
                if reached is None:
                    break
                end = max(begin, reached)
            elif kind == ADD:
                counters[counter].add(amount, begin)
            else:
                end = begin + lasts_ns
            self.begins.append(begin)
            self.ends.append(end)
            self._now = end
        return len(self.ends) - before
