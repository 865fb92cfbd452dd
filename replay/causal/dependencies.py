"""The dependencies of operations, as columns that every model of a rank yields. Pure.

An operation waits for a *moment* of the training thread, whose events (`replay.causal.training_loop`) do not overlap.
Moment 2 e is the begin of event e, moment 2 e + 1 its end. After the last event comes the exit from the loop. If the
profile shows the production of the batches (`replay.causal.production`), the moments of the production follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.training_loop import FETCH, IS_OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT

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
