"""Derives the waits of a rank's lanes from its causal model, in one pass over its operations. Pure.

Replay, simulation, storage limit and tables all use these dependencies; none infers its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.dependencies import FETCHES, NO_FETCH, Moments, nth
from dxt_replay.replay.causal.model import LoopModel, starts_batch
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, rows_by_lane


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneDependencies:
    """The dependencies of n operations of a lane, and the time that the lane is busy between them, in ns.

    need: (n,), the event that waits for each operation, NO_EVENT for none.
    follows: (n,), the moment that lets each begin, NO_MOMENT for none. waits: bool (n,), False if the lane has waited
    for that moment before.
    before_ns, after_ns: (n,), think time before and after the wait.
    lets_go: (n + 1,), before each operation and after the last: the number of further events that wait for no later
    operation of the lane.
    busy_ns: (n + 1,), how long the lane makes a batch ready before that.
    is_end: whether the lane has no more operations.
    behind: (n,), the event for which the lanes `others` must have ended their operations, NO_EVENT for none.
    """

    need: np.ndarray
    follows: np.ndarray
    waits: np.ndarray
    before_ns: np.ndarray
    after_ns: np.ndarray
    lets_go: np.ndarray
    busy_ns: np.ndarray
    is_end: bool
    behind: np.ndarray
    others: tuple[int, ...] = ()


class DependencyPass:
    """The dependencies of a rank's operations, batch after batch from the first one.

    lane_operations: number of operations of each lane. origin_ns: recorded time of the replay's start. placed: moves
    operations to the times of the model (`Steps.placed`).
    """

    def __init__(
        self,
        model: LoopModel,
        lane_operations: Mapping[int, int],
        origin_ns: int,
        placed: Callable[[OperationBatch], OperationBatch],
    ) -> None:
        self.moments = model.moments
        self._placed = placed
        self._dependencies = model.dependencies()
        self._lanes = {
            lane: _LanePass(model, self.moments, lane, operations, origin_ns)
            for lane, operations in lane_operations.items()
        }

    def lanes(self, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, LaneDependencies]]:
        """By lane of the batch, indices of its operations, and their dependencies. Raises: CaptureError."""
        batch = self._placed(batch)
        found = self._dependencies(batch)
        for lane, mine in rows_by_lane(batch.lane):
            yield lane, mine, self._lanes[lane].next(batch.start_ns[mine], batch.end_ns[mine], found[mine])


class _LanePass:
    def __init__(self, model: LoopModel, moments: Moments, lane: int, operations: int, origin_ns: int) -> None:
        self._model, self._moments = model, moments
        self._awaited: dict[int, int] = {}
        self._left = operations
        self._is_worker = model.is_worker(lane)
        self._others = model.dealing.lanes[lane].others if model.dealing is not None and self._is_worker else ()
        self._ready_ns = 0
        self._previous_need = NO_EVENT
        self._let_go = 0
        self._previous_end_ns = origin_ns

    def next(self, start_ns: np.ndarray, end_ns: np.ndarray, found: np.ndarray) -> LaneDependencies:
        """The dependencies of the lane's next operations; `found`: their `DEPENDENCY`."""
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        gap = np.maximum(start_ns - previous, 0)
        let_ns = self._moments.time_ns[found["follows"]]
        self._left -= len(found)
        lets_go = self._lets_go(found["floor"])
        busy = np.zeros(len(found) + 1, dtype=np.int64)
        if self._is_worker:
            follows = found["follows"]
            waits = self._moments.new_waits(follows, self._awaited)
            busy = np.concatenate(([self._ready_ns], found["ready_ns"]))
            self._ready_ns = int(busy[-1])
            busy[:-1] = np.where(lets_go[:-1] > 0, np.minimum(busy[:-1], gap), 0)
            # The lane makes its batch ready, waits for its turn and for the worker's other lanes, and goes on.
            gap = gap - busy[:-1]
            together = found["behind"] != NO_EVENT
            let_ns = np.where(together, np.maximum(let_ns, found["behind_ns"]), let_ns)
            after = np.where(
                waits | together, np.clip(start_ns - np.maximum(previous + busy[:-1], let_ns), 0, gap), gap
            )
            before = np.zeros_like(gap)
        else:
            first = starts_batch(self._previous_need, found["need"])
            follows, free = self._model.unheld(self._moments, found, let_ns, previous, gap, first)
            waits = self._moments.new_waits(follows, self._awaited)
            # After the wait comes the time from the awaited moment to the operation.
            after = np.where(waits, np.clip(start_ns - np.maximum(previous, let_ns), 0, gap), gap)
            after[waits & free] = 0
            after = self._alone(after, start_ns, found["need"])
            before = np.where(waits, self._hidden(found, gap, after, first, free), 0)
        if self._left:
            busy[-1] = 0
        self._previous_need, self._previous_end_ns = int(found["need"][-1]), int(end_ns[-1])
        return LaneDependencies(
            need=found["need"],
            follows=follows,
            waits=waits,
            before_ns=before,
            after_ns=after,
            lets_go=lets_go,
            busy_ns=busy,
            is_end=not self._left,
            behind=found["behind"],
            others=self._others,
        )

    def _alone(self, after_ns: np.ndarray, start_ns: np.ndarray, need: np.ndarray) -> np.ndarray:
        """Think times corrected by the production: remove waits for another reader's data, and the slowdown of a reader
        that thinks while the loop computes on its processors."""
        production = self._model.production
        if production is None:
            return after_ns
        after_ns = after_ns - np.minimum(production.busy.covered_within(start_ns - after_ns, start_ns), after_ns)
        fed = nth(self._moments.fetch_number, need)
        share = np.where(fed == NO_FETCH, 1.0, production.alone[np.maximum(fed, 0)])
        return np.rint(after_ns * share).astype(np.int64)

    def _hidden(
        self, found: np.ndarray, gap: np.ndarray, after_ns: np.ndarray, first: np.ndarray, free: np.ndarray
    ) -> np.ndarray:
        """The rest of the think time before a wait for a batch fetch. The capture shows only a part of it if the reader
        was held back."""
        within, between = self._model.think_ns
        typical = np.where(free, gap, np.where(first, between, within))
        by_fetch = self._moments.gate[found["follows"]] == FETCHES
        return np.where(by_fetch, np.clip(typical, after_ns, gap), after_ns) - after_ns

    def _lets_go(self, floor: np.ndarray) -> np.ndarray:
        """`LaneDependencies.lets_go`, by the first event that each operation or a later one can be needed by."""
        last = len(self._model.loop.kind) if not self._left else self._let_go
        reached = np.maximum.accumulate(np.concatenate(([self._let_go], floor, [last])))
        self._let_go = int(reached[-1])
        return np.diff(reached)
