"""The causal model as items of lanes: I/O lanes, the input pipeline and the training thread's script. Pure.

The lanes of a rank wait for each other at counters (`replay.engine.wait_counters`): the *openings* and *batch fetches*
of its training thread, and for each I/O lane the number of events that no longer wait for any of its operations. Ranks
wait for each other at the counter of arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dxt_replay.replay.causal.dependencies import FETCHES, NO_FETCH, NO_GATE, OPENINGS, PRODUCED, Moments, nth
from dxt_replay.replay.causal.model import LoopModel, starts_batch
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.recorder_waits import batch_without
from dxt_replay.replay.causal.training_loop import COLLECTIVE, ENTRY, FETCH
from dxt_replay.replay.engine.items import SLEEP
from dxt_replay.replay.engine.wait_counters import ARRIVALS, OWN_ARRIVALS
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import (
    COMPUTE_KINDS,
    NO_EVENT,
    PLAN_ROW,
    Add,
    Gap,
    Item,
    Mark,
    OperationBatch,
    Wait,
    rows_of_arrays,
    rows_of_each,
)
from dxt_replay.traces.measures.intervals import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """Which counters a rank uses: `base` and the ones after it, as many as `count`."""

    base: int
    lanes: tuple[int, ...]

    @property
    def openings(self) -> int:
        """Openings of the training thread so far."""
        return self.base

    @property
    def fetches(self) -> int:
        """Batch fetches so far."""
        return self.base + 1

    @property
    def ready(self) -> int:
        """Batches that are ready to be fetched."""
        return self.base + 2

    def lane(self, lane: int) -> int:
        """Events that no longer wait for any operation of this lane."""
        return self.base + 3 + self.lanes.index(lane)

    @property
    def count(self) -> int:
        """Counters of the rank."""
        return 3 + len(self.lanes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meetings:
    """The collectives of all ranks: the i-th collective of each rank is one meeting of all of them.

    ranks: how many ranks meet.
    cost_ns: int64 (meetings,), the shortest duration over the ranks, since the rank that came last did not wait. Empty
    where the ranks do not have equally many collectives.
    """

    ranks: int
    cost_ns: np.ndarray

    @classmethod
    def of(cls, durations_ns: Sequence[np.ndarray]) -> Meetings:
        """From the durations of each rank's collectives in order; no meetings unless all ranks have equally many."""
        counts = {len(durations) for durations in durations_ns}
        if len(counts) != 1:
            return cls(ranks=len(durations_ns), cost_ns=np.empty(0, dtype=np.int64))
        return cls(ranks=len(durations_ns), cost_ns=np.min(np.stack(list(durations_ns)), axis=0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneWaits:
    """Between the n operations of a lane: what the lane waits for, lets go and how long it is busy. Times in ns.

    lets_go: (n + 1,), by how much the lane's counter rises before each operation, and after the last one.
    busy_ns: (n + 1,), how long the lane is busy before that.
    counter, until: (n,), the counter that the lane waits for before each operation, and until which sum; 0 for no wait.
    before_ns, after_ns: (n,), think time before the wait, and after it.
    is_end: whether the lane has no more operations.
    """

    lets_go: np.ndarray
    busy_ns: np.ndarray
    counter: np.ndarray
    until: np.ndarray
    before_ns: np.ndarray
    after_ns: np.ndarray
    is_end: bool

    def items(self, rows: np.ndarray, durations_ns: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray]:
        """The operations (`PLAN_ROW`) with the waits and additions between them, and the duration of each item.

        durations_ns: of the operations. own: the lane's counter.
        """
        waits, adds = self.until > 0, (self.lets_go > 0) | (self.busy_ns > 0)
        adds[-1] = self.is_end
        at = np.cumsum(1 + adds[:-1] + waits) - 1
        items = np.empty(len(rows) + int(waits.sum()) + int(adds.sum()), dtype=PLAN_ROW)
        durations = np.zeros(len(items), dtype=np.int64)
        items[at] = rows
        items["due_ns"][at] = self.after_ns
        durations[at] = durations_ns
        wait = Wait(counter=self.counter[waits], until=self.until[waits], due_ns=self.before_ns[waits])
        items[at[waits] - 1] = rows_of_arrays(wait, int(waits.sum()))
        add = Add(counter=own, amount=self.lets_go[adds], due_ns=self.busy_ns[adds])
        items[np.append(at - waits - 1, len(items) - 1)[adds]] = rows_of_arrays(add, int(adds.sum()))
        return items, durations


class CausalLanes:
    """The items of a rank's I/O lanes, batch after batch in the order of the op stream."""

    def __init__(
        self,
        model: LoopModel,
        counters: RankCounters,
        pacing: Pacing,
        lane_operations: Mapping[int, int],
        origin_ns: int,
        waits: Intervals,
    ) -> None:
        self._model, self._waits, self._counters = model, waits, counters
        self._reader = model.dependencies()
        moments = model.moments
        self._lanes = {
            lane: _CausalLane(model, moments, counters, pacing, lane, operations, origin_ns)
            for lane, operations in lane_operations.items()
        }

    def split(self, rows: np.ndarray, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Lane, items and recorded durations (0 for a wait or an addition), for the `PLAN_ROW`s of these operations."""
        batch = self._model.placed(batch_without(self._waits, batch))
        found = self._reader.dependencies(batch)
        for lane in np.unique(batch.lane).tolist():
            mine = np.flatnonzero(batch.lane == lane)
            start, end = batch.start_ns[mine], batch.end_ns[mine]
            waits = self._lanes[lane].waits(start, end, found[mine])
            yield lane, *waits.items(rows[mine], end - start, self._counters.lane(lane))


class _CausalLane:
    """What a lane waits for, from the dependencies of its operations and the times between them."""

    def __init__(
        self,
        model: LoopModel,
        moments: Moments,
        counters: RankCounters,
        pacing: Pacing,
        lane: int,
        operations: int,
        origin_ns: int,
    ) -> None:
        self._model, self._moments, self._pacing = model, moments, pacing
        self._counters = np.array([0, counters.openings, counters.fetches, counters.ready])
        self._awaited = {OPENINGS: 0, FETCHES: 0, PRODUCED: 0}
        self._left = operations
        self._is_worker = model.is_worker(lane)
        self._ready_ns = 0
        self._previous_need = NO_EVENT
        self._posted = 0
        self._previous_end_ns = origin_ns

    def waits(self, start_ns: np.ndarray, end_ns: np.ndarray, found: np.ndarray) -> LaneWaits:
        """For the next operations of the lane; `found`: their `DEPENDENCY`."""
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        gap = np.maximum(start_ns - previous, 0)
        let_ns = self._moments.time_ns[found["follows"]]
        self._left -= len(found)
        lets_go = self._lets_go(found["floor"])
        busy = np.zeros(len(found) + 1, dtype=np.int64)
        if self._is_worker:
            follows = found["follows"]
            waits = self._new_waits(follows)
            busy = np.concatenate(([self._ready_ns], found["ready_ns"]))
            self._ready_ns = int(busy[-1])
            busy[:-1] = np.where(lets_go[:-1] > 0, np.minimum(busy[:-1], gap), 0)
            # It makes its batch ready, waits for its turn, and goes on.
            gap = gap - busy[:-1]
            after = np.where(waits, np.clip(start_ns - np.maximum(previous + busy[:-1], let_ns), 0, gap), gap)
            before = np.zeros_like(gap)
        else:
            first = starts_batch(self._previous_need, found["need"])
            follows, free = self._model.unheld(self._moments, found, let_ns, previous, gap, first)
            waits = self._new_waits(follows)
            # After the wait comes the time between what it waited for and the operation.
            after = np.where(waits, np.clip(start_ns - np.maximum(previous, let_ns), 0, gap), gap)
            after[waits & free] = 0
            after = self._alone(after, start_ns, found["need"])
            before = np.where(waits, self._hidden(found, gap, after, first, free), 0)
        if self._left:
            busy[-1] = 0
        self._previous_need, self._previous_end_ns = int(found["need"][-1]), int(end_ns[-1])
        return LaneWaits(
            lets_go=lets_go,
            busy_ns=self._pacing.io_ns(busy),
            counter=self._counters[self._moments.gate[follows]],
            until=np.where(waits, self._moments.count[follows], 0),
            before_ns=self._pacing.io_ns(before),
            after_ns=self._pacing.io_ns(after),
            is_end=not self._left,
        )

    def _alone(self, after_ns: np.ndarray, start_ns: np.ndarray, need: np.ndarray) -> np.ndarray:
        """Think times without what a production shows to be none: a reader that waits for another one's data is not
        thinking, and one that thinks while the loop computes has fewer processors."""
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
        """The rest of the think time before a wait for a batch fetch, as far as the capture shows it: a reader that was
        held back hides how long it thought."""
        within, between = self._model.think_ns
        typical = np.where(free, gap, np.where(first, between, within))
        by_fetch = self._moments.gate[found["follows"]] == FETCHES
        return np.where(by_fetch, np.clip(typical, after_ns, gap), after_ns) - after_ns

    def _lets_go(self, floor: np.ndarray) -> np.ndarray:
        """By how much the lane's own counter rises before each operation, when all earlier ones are done, and when the
        last one is."""
        last = len(self._model.loop.kind) if not self._left else self._posted
        reached = np.maximum.accumulate(np.concatenate(([self._posted], floor, [last])))
        self._posted = int(reached[-1])
        return np.diff(reached)

    def _new_waits(self, follows: np.ndarray) -> np.ndarray:
        """Which operations wait: those whose lane has not yet waited for as late a moment of that kind."""
        waits = np.zeros(len(follows), dtype=bool)
        gate, count = self._moments.gate[follows], self._moments.count[follows]
        for kind, so_far in self._awaited.items():
            wanted = np.where(gate == kind, count, 0)
            awaited = np.maximum.accumulate(np.concatenate(([so_far], wanted)))
            waits |= wanted > awaited[:-1]
            self._awaited[kind] = int(awaited[-1])
        return waits


def script_rows(
    model: LoopModel, counters: RankCounters, pacing: Pacing, compute: str, meetings: Meetings
) -> np.ndarray:
    """The training thread as items (`PLAN_ROW`), each after the previous one.

    compute: how the gaps between events are spent: `sleep`, `spin`, or `skip`, which leaves them empty.
    What an event lasted beyond its operations is slept at the speed of I/O gaps.
    """
    return rows_of_each(_Script(model, counters, pacing, compute, meetings).items())


def makes_ready(model: LoopModel) -> bool:
    """Whether batches are made ready in a lane of their own (`ready_rows`); else batch fetches wait for the reads."""
    return model.production is not None or bool(model.ready_ns.any())


def ready_rows(model: LoopModel, counters: RankCounters, pacing: Pacing) -> np.ndarray:
    """The input pipeline between reads and batch fetches as items (`PLAN_ROW`): each batch waits for its reads, then is
    made ready. Empty where the capture does not show how long that takes."""
    if model.production is not None:
        return _production_rows(model, model.production, counters, pacing)
    if not makes_ready(model):
        return np.zeros(0, dtype=PLAN_ROW)
    fetches = model.loop.fetches
    durations = pacing.io_ns(model.ready_ns[fetches]).tolist()
    items: list[Item] = []
    for event, duration in zip(fetches.tolist(), durations, strict=True):
        items += _waits_for_reads(model, counters, event)
        items += [Gap(kind=SLEEP, duration_ns=duration), Add(counter=counters.ready)]
    return rows_of_each(items)


def _production_rows(model: LoopModel, made: Production, counters: RankCounters, pacing: Pacing) -> np.ndarray:
    """The entries of the production as items; each adds its begin and its end to the counter of batches ready."""
    gates, moments = {OPENINGS: counters.openings, FETCHES: counters.fetches}, model.moments
    columns = [moments.gate[made.follows], moments.count[made.follows]]
    columns += map(pacing.io_ns, (made.delay_ns, made.head_ns, made.tail_ns))
    rows = zip(model.loop.fetches.tolist(), *(column.tolist() for column in columns), strict=True)
    items: list[Item] = []
    for event, gate, count, delay, head, tail in rows:
        if gate != NO_GATE:
            items.append(Wait(counter=gates[gate], until=count))
        items += [Gap(kind=SLEEP, duration_ns=delay), Add(counter=counters.ready), Gap(kind=SLEEP, duration_ns=head)]
        items += _waits_for_reads(model, counters, event)
        items += [Gap(kind=SLEEP, duration_ns=tail), Add(counter=counters.ready)]
    return rows_of_each(items)


def _waits_for_reads(model: LoopModel, counters: RankCounters, event: int) -> list[Item]:
    return [Wait(counter=counter, until=event + 1) for counter in _lanes_needed(model, counters, event)]


def _lanes_needed(model: LoopModel, counters: RankCounters, event: int) -> list[int]:
    """The counters of the lanes whose operations an event waits for."""
    return [counters.lane(lane) for lane, events in model.needed.items() if events[event]]


class _Script:
    def __init__(
        self, model: LoopModel, counters: RankCounters, pacing: Pacing, compute: str, meetings: Meetings
    ) -> None:
        self._model, self._loop = model, model.loop
        self._counters = counters
        self._pacing = pacing
        self._gap_kind = COMPUTE_KINDS.get(compute, SLEEP)
        self._skips_compute = compute == "skip"
        self._meetings = meetings
        self._items: list[Item] = []
        self._met = 0
        self._taken = 0
        self._step_of_event = model.loop.step_at(model.loop.begin_ns).tolist()

    def items(self) -> list[Item]:
        loop = self._loop
        cursor = int(loop.begin_ns[0])
        borders = self._borders()
        events = zip(loop.kind.tolist(), loop.begin_ns.tolist(), loop.end_ns.tolist(), strict=True)
        for event, (kind, begin, end) in enumerate(events):
            borders = self._busy(cursor, begin, borders)
            self._event(event, kind, end - begin)
            cursor = end
        self._busy(cursor, loop.exit_ns, borders)
        self._items.append(Add(counter=self._counters.openings))
        return self._items

    def _borders(self) -> list[tuple[int, int, int]]:
        """Ends and begins of the steps as (time, 0 for begin or 1 for end, step), to be popped from the end."""
        loop = self._loop
        numbers = loop.step_number.tolist()
        begins = [(time, 1, 0, step) for time, step in zip(loop.step_begin_ns.tolist(), numbers, strict=True)]
        ends = [(time, 0, 1, step) for time, step in zip(loop.step_end_ns.tolist(), numbers, strict=True)]
        return [(time, border, step) for time, _, border, step in sorted(begins + ends, reverse=True)]

    def _busy(self, cursor: int, until: int, borders: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Busy from `cursor` to `until`, with the marks of the borders up to there; those that are left."""
        while borders and borders[-1][0] <= until:
            time, border, step = borders.pop()
            if time > cursor:
                self._gap(cursor, time)
                cursor = time
            self._items.append(Mark(is_end=border, step=step))
        if until > cursor:
            self._gap(cursor, until)
        return borders

    def _gap(self, begin: int, end: int) -> None:
        duration = 0 if self._skips_compute else int(self._pacing.compute_ns(np.array([end - begin]))[0])
        step = int(self._loop.step_at(np.array([begin]))[0])
        self._items.append(Gap(kind=self._gap_kind, duration_ns=duration, recorded_ns=begin, step=step))

    def _event(self, event: int, kind: int, duration: int) -> None:
        place = _Place(event=event, event_kind=kind, step=self._step_of_event[event])
        if kind == COLLECTIVE:
            self._items += self._meeting(place, duration)
            return
        if kind != ENTRY:
            self._items.append(Add(counter=self._counters.openings, **place))
        if kind == FETCH and makes_ready(self._model):
            self._taken += 1 if self._model.production is None else 2
            self._items.append(Wait(counter=self._counters.ready, until=self._taken, **place))
        else:
            lanes = _lanes_needed(self._model, self._counters, event)
            self._items += [Wait(counter=counter, until=event + 1, **place) for counter in lanes]
        residual = int(self._pacing.io_ns(self._model.residual_ns[event : event + 1])[0])
        self._items.append(Gap(kind=SLEEP, duration_ns=residual, **place))
        if kind == ENTRY:
            self._items.append(Add(counter=self._counters.openings, **place))
        elif kind == FETCH:
            self._items.append(Add(counter=self._counters.fetches, **place))

    def _meeting(self, place: _Place, duration: int) -> list[Item]:
        if self._met >= len(self._meetings.cost_ns):
            return [Gap(kind=SLEEP, duration_ns=int(self._pacing.io_ns(np.array([duration]))[0]), **place)]
        cost = int(self._pacing.io_ns(self._meetings.cost_ns[self._met : self._met + 1])[0])
        self._met += 1
        ranks = self._meetings.ranks
        return [
            Add(counter=OWN_ARRIVALS, **place),
            Add(counter=ARRIVALS, multiple=ranks, **place),
            Wait(counter=ARRIVALS, multiple=ranks, until=self._met * ranks, **place),
            Gap(kind=SLEEP, duration_ns=cost, **place),
        ]


class _Place(TypedDict):
    """The event that an item of the script belongs to."""

    event: int
    event_kind: int
    step: int
