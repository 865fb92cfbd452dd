"""The causal model as items of lanes: I/O lanes, the input pipeline and the training thread's script. Pure.

The lanes of a rank wait for each other at counters (`replay.engine.wait_counters`): the *openings* and *batch fetches*
of its training thread, and for each I/O lane the number of events that no longer wait for any of its operations. Ranks
wait for each other at the counter of arrivals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dxt_replay.replay.causal.dependencies import FETCHES, MOMENTS, NO_GATE, OPENINGS, Dependencies, DependencyReader
from dxt_replay.replay.causal.feed import NO_EVENT
from dxt_replay.replay.causal.model import LoopModel, starts_batch
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.recorder_waits import batch_without
from dxt_replay.replay.causal.training_loop import COLLECTIVE, ENTRY, FETCH
from dxt_replay.replay.engine.items import SLEEP
from dxt_replay.replay.engine.wait_counters import ARRIVALS, OWN_ARRIVALS
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import (
    COMPUTE_KINDS,
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

NO_FETCH = -1
"""Number of an event that is not a batch fetch."""


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
        self._model, self._waits = model, waits
        self._reader: DependencyReader = model.dependencies()
        self._lanes = {
            lane: _CausalLane(model, counters, pacing, lane, operations, origin_ns)
            for lane, operations in lane_operations.items()
        }

    def split(self, rows: np.ndarray, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Lane, items and recorded durations (0 for a wait or an addition), for the `PLAN_ROW`s of these operations."""
        batch = self._model.placed(batch_without(self._waits, batch))
        dependencies = self._reader.dependencies(batch)
        for lane in np.unique(batch.lane).tolist():
            mine = np.flatnonzero(batch.lane == lane)
            yield (
                lane,
                *self._lanes[lane].items(rows[mine], batch.start_ns[mine], batch.end_ns[mine], _of(dependencies, mine)),
            )


def _of(dependencies: Dependencies, mine: np.ndarray) -> Dependencies:
    return Dependencies(
        need=dependencies.need[mine],
        floor=dependencies.floor[mine],
        gate=dependencies.gate[mine],
        gate_count=dependencies.gate_count[mine],
        gate_ns=dependencies.gate_ns[mine],
        ready_ns=dependencies.ready_ns[mine],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Gaps:
    """The gaps before the operations of a lane, int64 ns (n,).

    waits: which operations wait at their gate. before_ns, after_ns: how long the lane is busy before and after it.
    ready_ns: (n + 1,), how long the lane is busy before it lets go what its counter stands for, and after the last one.
    """

    waits: np.ndarray
    before_ns: np.ndarray
    after_ns: np.ndarray
    ready_ns: np.ndarray


class _CausalLane:
    def __init__(
        self, model: LoopModel, counters: RankCounters, pacing: Pacing, lane: int, operations: int, origin_ns: int
    ) -> None:
        self._pacing = pacing
        self._think_ns = model.think_ns
        self._long_think_ns = model.long_think_ns
        self._lead = model.lead
        self._fetch_number = np.where(model.loop.kind == FETCH, np.cumsum(model.loop.kind == FETCH) - 1, NO_FETCH)
        self._own = counters.lane(lane)
        self._gates = np.array([0, counters.openings, counters.fetches, counters.ready])
        self._awaited = {OPENINGS: 0, FETCHES: 0, MOMENTS: 0}
        self._production = model.production
        self._left = operations
        self._is_worker = model.is_worker(lane)
        self._ready_ns = 0
        self._previous_need = NO_EVENT
        self._events = len(model.loop.kind)
        self._posted = 0
        self._previous_end_ns = origin_ns

    def items(
        self, rows: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, dependencies: Dependencies
    ) -> tuple[np.ndarray, np.ndarray]:
        """The operations with the waits and additions between them, and the recorded duration of each item."""
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        gap = np.maximum(start_ns - previous, 0)
        self._previous_end_ns = int(end_ns[-1])
        self._left -= len(rows)
        first = starts_batch(self._previous_need, dependencies.need)
        self._previous_need = int(dependencies.need[-1])
        let_go, dependencies, gaps = self._paced(dependencies, previous, start_ns, gap, first)
        last = int(self._left == 0)
        waits, adds = gaps.waits, let_go > 0
        counts = 1 + adds + waits
        at = np.cumsum(counts) - 1
        items = np.empty(int(counts.sum()) + last, dtype=PLAN_ROW)
        durations = np.zeros(len(items), dtype=np.int64)
        items[at] = rows
        items["due_ns"][at] = self._pacing.io_ns(gaps.after_ns)
        durations[at] = end_ns - start_ns
        items[at[waits] - 1] = rows_of_arrays(
            Wait(
                counter=self._gates[dependencies.gate[waits]],
                until=dependencies.gate_count[waits],
                due_ns=self._pacing.io_ns(gaps.before_ns)[waits],
            ),
            int(waits.sum()),
        )
        ready_ns = self._pacing.io_ns(gaps.ready_ns)
        items[(at - waits - 1)[adds]] = rows_of_arrays(
            Add(counter=self._own, amount=let_go[adds], due_ns=ready_ns[:-1][adds]), int(adds.sum())
        )
        if last:
            amount = self._events - self._posted
            items[-1:] = rows_of_each([Add(counter=self._own, amount=amount, due_ns=int(ready_ns[-1]))])
        return items, durations

    def _paced(
        self, dependencies: Dependencies, previous: np.ndarray, start_ns: np.ndarray, gap: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, Dependencies, _Gaps]:
        """By how much the lane's counter rises before each operation, what the operations wait for, and the gaps."""
        if self._is_worker:
            let_go = self._additions(dependencies.floor)
            return let_go, dependencies, self._worker_gaps(dependencies, previous, start_ns, gap, let_go > 0)
        free = self._not_held_back(dependencies, previous, gap, first)
        dependencies = self._freed(dependencies, free)
        let_go = self._additions(dependencies.floor)
        waits = self._waits(dependencies)
        # `after` the gate comes the time between the gate and the operation. Before the gate comes the rest of the
        # think time, as far as the capture shows it: a reader that was held back hides how long it thought.
        after = np.where(waits, np.clip(start_ns - np.maximum(previous, dependencies.gate_ns), 0, gap), gap)
        after[waits & free] = 0
        if self._production is not None:
            # A reader that waits for another one's data is not thinking.
            after -= np.minimum(self._production.busy.covered_within(start_ns - after, start_ns), after)
            fed = self._fed(dependencies)
            share = np.where(fed == NO_FETCH, 1.0, self._production.alone[np.maximum(fed, 0)])
            after = np.rint(after * share).astype(np.int64)
        within, between = self._think_ns
        typical = np.where(free, gap, np.where(first, between, within))
        thought = np.where(waits & (dependencies.gate == FETCHES), np.clip(typical, after, gap), after)
        ready_ns = np.zeros(len(gap) + 1, dtype=np.int64)
        return let_go, dependencies, _Gaps(waits=waits, before_ns=thought - after, after_ns=after, ready_ns=ready_ns)

    def _worker_gaps(
        self, dependencies: Dependencies, previous: np.ndarray, start_ns: np.ndarray, gap: np.ndarray, adds: np.ndarray
    ) -> _Gaps:
        """The gaps of a lane that makes whole batches: it makes its batch ready, waits for its turn, and goes on."""
        waits = self._waits(dependencies)
        ready = np.concatenate(([self._ready_ns], dependencies.ready_ns))
        self._ready_ns = int(ready[-1])
        ready[:-1] = np.where(adds, np.minimum(ready[:-1], gap), 0)
        left = gap - ready[:-1]
        held = np.clip(start_ns - np.maximum(previous + ready[:-1], dependencies.gate_ns), 0, left)
        return _Gaps(waits=waits, before_ns=np.zeros_like(gap), after_ns=np.where(waits, held, left), ready_ns=ready)

    def _not_held_back(
        self, dependencies: Dependencies, previous: np.ndarray, gap: np.ndarray, first: np.ndarray
    ) -> np.ndarray:
        """Which reads began because their lane was free, not because a batch fetch made room for them: the last fetch
        had happened before the lane was free, or the gap before the read is a usual think time."""
        within, between = self._long_think_ns
        thought = (dependencies.gate_ns <= previous) | (gap <= np.where(first, between, within))
        free: np.ndarray = thought & (dependencies.gate == FETCHES) & (self._fed(dependencies) != NO_FETCH)
        return free

    def _freed(self, dependencies: Dependencies, free: np.ndarray) -> Dependencies:
        """The dependencies, in which the reads `free` may run ahead of the loop by the depth of the buffer."""
        count = np.clip(self._fed(dependencies) - self._lead, 0, dependencies.gate_count)
        return dataclasses.replace(dependencies, gate_count=np.where(free, count, dependencies.gate_count))

    def _fed(self, dependencies: Dependencies) -> np.ndarray:
        """Number of the batch fetch that each operation feeds, NO_FETCH for none."""
        return np.where(dependencies.need == NO_EVENT, NO_FETCH, self._fetch_number[dependencies.need])

    def _additions(self, floor: np.ndarray) -> np.ndarray:
        """By how much the lane's own counter rises before each operation, when all earlier ones are done."""
        reached = np.maximum.accumulate(np.concatenate(([self._posted], floor)))
        self._posted = int(reached[-1])
        return np.diff(reached)

    def _waits(self, dependencies: Dependencies) -> np.ndarray:
        """Which operations wait at their gate: those whose lane has not yet waited for as high a count."""
        waits = np.zeros(len(dependencies.gate), dtype=bool)
        for gate in self._awaited:
            wanted = np.where(dependencies.gate == gate, dependencies.gate_count, 0)
            awaited = np.maximum.accumulate(np.concatenate(([self._awaited[gate]], wanted)))
            waits |= wanted > awaited[:-1]
            self._awaited[gate] = int(awaited[-1])
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
    gates = {OPENINGS: counters.openings, FETCHES: counters.fetches}
    columns = [made.gate, made.gate_count, *map(pacing.io_ns, (made.delay_ns, made.head_ns, made.tail_ns))]
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
