"""What each operation of a rank waits for and what waits for it, as columns. Pure.

Rules write them (`replay.causal.rules`): what a capture says, or what its times show. `RankColumns` then adds think
times, lane by lane and batch after batch. Replay, simulation, storage limit, transform and tables all read these
columns, and `replay.causal.items` alone makes items of them.

An operation waits for a *moment* of the training thread, whose events (`replay.causal.training_loop`) do not overlap.
Moment 2 e is the begin of event e, moment 2 e + 1 its end. After the last event comes the exit from the loop. If the
profile shows the production of the batches (`replay.causal.production`), the moments of the production follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.replay.causal.training_loop import FETCH, IS_OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, rows_by_lane
from dxt_replay.traces.errors import DamagedCaptureError

if TYPE_CHECKING:
    from dxt_replay.replay.causal.model import LoopModel

NO_MOMENT = -1
"""Number of a moment for an operation that waits for its lane alone."""

NO_FETCH = -1
"""Number of an event that is not a batch fetch."""

NO_GATE, OPENINGS, FETCHES, PRODUCED = range(4)
"""What is counted at a moment: nothing, an opening of the training thread, a batch fetch, or one of the production."""

DEPENDENCY = np.dtype([(name, "<i8") for name in ("need", "floor", "follows", "ready_ns", "behind", "behind_ns")])
"""What an operation waits for, and what waits for it.

need: the event that waits for the operation, NO_EVENT for none.
floor: the first event that this operation or a later one of its lane can be needed by.
follows: the moment that lets it begin, NO_MOMENT for none.
ready_ns: how long after it its batch is ready, where its reader makes whole batches and this was the last operation.
behind, behind_ns: where it begins a batch in a lane of a worker with several, the event that fetches the worker's batch
before, and when that was ready; NO_EVENT for none.
"""

COLUMNS = np.dtype(
    [(name, "<i8") for name in ("need", "follows", "before_ns", "after_ns", "lets_go", "busy_ns", "ready_ns", "behind")]
    + [("waits", "?"), ("held", "?")]
)
"""The dependencies of n operations of a lane, and the time that the lane is busy between them: n + 1 rows, of which the
last one has `lets_go` and `busy_ns` alone, and `waits` where the lane ends.

need, ready_ns, behind: as of `DEPENDENCY`. follows: as there, or an earlier moment for a read that was not held back.
waits: whether the lane has not waited for that moment before. held: whether it was free before the moment came.
before_ns, after_ns: think time before and after the wait.
lets_go: before each operation and after the last: the number of further events that wait for no later operation of the
lane. busy_ns: how long the lane makes a batch ready before that.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """The m moments of a loop; arrays (m + 1,), of which the last one stands for NO_MOMENT.

    time_ns: recorded time of each; the smallest number for NO_MOMENT.
    gate: int8, the kind of counter that counts the moment. count: the value of that counter then.
    openings, fetches: the moments, ascending, that count as openings and as batch fetches.
    fetch_number: int64 (e,), the number of each event among the batch fetches, NO_FETCH for other events.
    """

    time_ns: np.ndarray
    gate: np.ndarray
    count: np.ndarray
    openings: np.ndarray
    fetches: np.ndarray
    fetch_number: np.ndarray

    @classmethod
    def of(cls, loop: TrainingLoop, produced_ns: np.ndarray | None = None) -> Moments:
        """The moments of a loop, and of its production at these times."""
        produced = np.empty(0, dtype=np.int64) if produced_ns is None else produced_ns
        events = len(loop.kind)
        training = np.append(np.stack((loop.begin_ns, loop.end_ns), axis=1).ravel(), loop.exit_ns)
        openings = np.concatenate(([1], 2 * np.flatnonzero(IS_OPENING[loop.kind]), [2 * events]))
        is_fetch = loop.kind == FETCH
        fetches = 2 * np.flatnonzero(is_fetch) + 1
        gate = np.zeros(len(training) + len(produced) + 1, dtype=np.int8)
        count = np.zeros(len(gate), dtype=np.int64)
        of_production = np.arange(len(training), len(gate) - 1)
        for code, mine in ((OPENINGS, openings), (FETCHES, fetches), (PRODUCED, of_production)):
            gate[mine], count[mine] = code, np.arange(1, len(mine) + 1)
        time_ns = np.concatenate((training, produced, [np.iinfo(np.int64).min]))
        return cls(
            time_ns=time_ns,
            gate=gate,
            count=count,
            openings=openings,
            fetches=fetches,
            fetch_number=np.where(is_fetch, np.cumsum(is_fetch) - 1, NO_FETCH),
        )

    def opened(self, times_ns: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Number of openings up to each of these times, at most `most`."""
        found: np.ndarray = np.minimum(np.searchsorted(self.time_ns[self.openings], times_ns, side="right"), most)
        return found

    def fetched(self, times_ns: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Number of batch fetches that had ended at each of these times, at most `most`."""
        found: np.ndarray = np.minimum(np.searchsorted(self.time_ns[self.fetches], times_ns, side="right"), most)
        return found

    def new_waits(self, follows: np.ndarray, awaited: dict[int, int] | None = None) -> np.ndarray:
        """bool (n,): which operations of a lane wait, because it has not waited for an equal or later moment of that
        kind. follows: their moments. awaited: by kind the last count that it has waited for, which is updated."""
        waits = np.zeros(len(follows), dtype=bool)
        gate, count = self.gate[follows], self.count[follows]
        awaited = {} if awaited is None else awaited
        for kind in (OPENINGS, FETCHES, PRODUCED):
            wanted = np.where(gate == kind, count, 0)
            reached = np.maximum.accumulate(np.concatenate(([awaited.get(kind, 0)], wanted)))
            waits |= wanted > reached[:-1]
            awaited[kind] = int(reached[-1])
        return waits


def nth(numbers: np.ndarray, index: np.ndarray) -> np.ndarray:
    """numbers[index]; NO_EVENT (which equals NO_MOMENT) for an index out of range."""
    inside = (index >= 0) & (index < len(numbers))
    return np.where(inside, np.append(numbers, NO_EVENT)[np.where(inside, index, -1)], NO_EVENT)


def starts_batch(previous_need: int, need: np.ndarray) -> np.ndarray:
    """Which operations of a lane feed another event than the operation before."""
    return need != np.concatenate(([previous_need], need[:-1]))


class RankColumns:
    """The columns of a rank's operations, batch after batch from the first one.

    lane_operations: number of operations of each lane. origin_ns: recorded time of the replay's start. placed: moves
    operations to the times of the model. others: by lane, the other lanes of its worker; without `together` none, the
    time that a lane waits for them is think time, and so is none before the moment that an operation follows.
    """

    def __init__(
        self,
        model: LoopModel,
        lane_operations: Mapping[int, int],
        origin_ns: int,
        placed: Callable[[OperationBatch], OperationBatch],
        *,
        together: bool = True,
    ) -> None:
        self.moments = model.moments
        self._placed, self._dependencies, self._together = placed, model.dependencies(), together
        self._lanes = {
            lane: _Lane(model, self.moments, lane, operations, origin_ns, together=together)
            for lane, operations in lane_operations.items()
        }
        deals = model.dealing.lanes if model.dealing is not None else {}
        self.others = {lane: deal.others for lane, deal in deals.items() if deal.others and together}

    def lanes(self, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """By lane of the batch, indices of its operations, and their `COLUMNS` (n + 1,). Raises: CaptureError."""
        batch = self._placed(batch)
        found = self._dependencies(batch)
        if not self._together:
            found["behind"] = NO_EVENT
        for lane, mine in rows_by_lane(batch.lane):
            if lane not in self._lanes:
                raise DamagedCaptureError(f"the capture is damaged: index.parquet counts no operation of lane {lane}")
            yield lane, mine, self._lanes[lane].next(batch.start_ns[mine], batch.end_ns[mine], found[mine])


class _Lane:
    def __init__(
        self, model: LoopModel, moments: Moments, lane: int, operations: int, origin_ns: int, *, together: bool
    ) -> None:
        self._model, self._moments, self._together = model, moments, together
        self._is_worker = model.is_worker(lane)
        self._left = operations
        self._awaited: dict[int, int] = {}
        self._ready_ns = self._let_go = 0
        self._previous_need, self._previous_end_ns = NO_EVENT, origin_ns

    def next(self, start_ns: np.ndarray, end_ns: np.ndarray, found: np.ndarray) -> np.ndarray:
        """`COLUMNS` of the lane's next operations; `found`: their `DEPENDENCY`."""
        self._left -= len(found)
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        gap, let_ns = np.maximum(start_ns - previous, 0), self._moments.time_ns[found["follows"]]
        made = np.zeros(len(found) + 1, dtype=COLUMNS)
        own = made[:-1]
        for name in ("need", "ready_ns", "behind"):
            own[name] = found[name]
        lets_go = made["lets_go"] = self._lets_go(found["floor"])
        if self._is_worker:
            follows, free = found["follows"], np.zeros(len(found), dtype=bool)
            waits = self._moments.new_waits(follows, self._awaited)
            ready = np.concatenate(([self._ready_ns], found["ready_ns"]))
            self._ready_ns = int(ready[-1])
            busy = np.where(lets_go[:-1] > 0, np.minimum(ready[:-1], gap), 0)
            made["busy_ns"] = np.append(busy, 0 if self._left else ready[-1])
            # The lane makes its batch ready, waits for its turn and for the worker's other lanes, and goes on.
            gap, previous = gap - busy, previous + busy
            together = found["behind"] != NO_EVENT
            let_ns = np.where(together, np.maximum(let_ns, found["behind_ns"]), let_ns)
            counted = waits | together if self._together else np.ones_like(waits)
            own["after_ns"] = _since(start_ns, previous, let_ns, gap, counted)
        else:
            first = starts_batch(self._previous_need, found["need"])
            follows, free = self._unheld(found, let_ns, previous, gap, first)
            waits = self._moments.new_waits(follows, self._awaited)
            # After the wait comes the time from the awaited moment to the operation.
            after = _since(start_ns, previous, let_ns, gap, waits)
            after[waits & free] = 0
            own["after_ns"] = after = self._alone(after, start_ns, found["need"])
            own["before_ns"] = np.where(waits, self._hidden(found, gap, after, first, free), 0)
        own["follows"], own["waits"] = follows, waits
        own["held"] = ~free & (let_ns > previous)
        made["waits"][-1] = not self._left
        self._previous_need, self._previous_end_ns = int(found["need"][-1]), int(end_ns[-1])
        return made

    def _unheld(
        self, found: np.ndarray, let_ns: np.ndarray, previous_ns: np.ndarray, gap_ns: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find reads that began because their lane was free, not because a batch fetch made room.

        The fetch had happened before the lane was free, or the gap before the operation is a usual think time. Such
        reads may run ahead of the loop by the depth of the buffer. Returns the moments that they wait for, and bool.
        let_ns: times of the moments that they follow. previous_ns, gap_ns: since when their lane was free, and for how
        long. first: which begin a batch.
        """
        moments, follows = self._moments, found["follows"]
        within, between = self._model.long_think_ns
        fed = nth(moments.fetch_number, found["need"])
        thought = (let_ns <= previous_ns) | (gap_ns <= np.where(first, between, within))
        free = thought & (moments.gate[follows] == FETCHES) & (fed != NO_FETCH)
        allowed = np.minimum(fed - self._model.lead, moments.count[follows])
        return np.where(free, nth(moments.fetches, allowed - 1), follows), free

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
        """The column, by the first event that each operation or a later one can be needed by."""
        last = self._let_go if self._left else len(self._model.loop.kind)
        reached = np.maximum.accumulate(np.concatenate(([self._let_go], floor, [last])))
        self._let_go = int(reached[-1])
        return np.diff(reached)


def _since(
    start_ns: np.ndarray, previous_ns: np.ndarray, let_ns: np.ndarray, gap_ns: np.ndarray, waits: np.ndarray
) -> np.ndarray:
    """How long after its lane was free, and after the moment that it `waits` for, each operation began."""
    return np.where(waits, np.clip(start_ns - np.maximum(previous_ns, let_ns), 0, gap_ns), gap_ns)
