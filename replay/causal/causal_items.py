"""The causal model as items of lanes: I/O lanes, the input pipeline and the training thread's script. Pure.

The lanes of a rank wait for each other at counters (`replay.engine.wait_counters`): the *openings* and *batch fetches*
of its training thread, and for each I/O lane the number of events that no longer wait for any of its operations. Ranks
wait for each other at the counter of arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dxt_replay.replay.causal.dependencies import Moments
from dxt_replay.replay.causal.dependency_pass import DependencyPass, LaneDependencies
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.training_loop import COLLECTIVE, ENTRY, FETCH
from dxt_replay.replay.engine.items import SLEEP
from dxt_replay.replay.engine.wait_counters import ARRIVALS, OWN_ARRIVALS
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import (
    COMPUTE_KINDS,
    EVENT_ROW,
    GAP_ROW,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """The counters that a rank uses: `count` counters from number `base` on."""

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
    def of_gates(self) -> np.ndarray:
        """The counters of NO_GATE, OPENINGS, FETCHES and PRODUCED; the first is none."""
        return np.array([0, self.openings, self.fetches, self.ready])

    @property
    def count(self) -> int:
        """Counters of the rank."""
        return 3 + len(self.lanes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meetings:
    """The collectives of all ranks: the i-th collective of each rank is one meeting of all of them.

    ranks: how many ranks meet.
    cost_ns: int64 (meetings,), the shortest duration over the ranks, because the last rank to arrive did not wait.
    Empty if the ranks have different numbers of collectives.
    lasting: whether collectives without a duration are none. The end of a save in the background is such a one
    (`training_loop`), and ranks may save alone.
    """

    ranks: int
    cost_ns: np.ndarray
    lasting: bool = False

    @classmethod
    def none(cls) -> Meetings:
        """No meetings: the collectives of a rank last as recorded."""
        return cls(ranks=1, cost_ns=np.empty(0, dtype=np.int64))

    @classmethod
    def of(cls, durations_ns: Sequence[np.ndarray]) -> Meetings:
        """From the durations of each rank's collectives in order; no meetings unless all ranks have equally many."""
        for lasting in (False, True):
            chosen = [durations[durations > 0] if lasting else durations for durations in durations_ns]
            if len({len(each) for each in chosen}) == 1:
                return cls(ranks=len(chosen), cost_ns=np.min(np.stack(chosen), axis=0), lasting=lasting)
        return cls(ranks=len(durations_ns), cost_ns=np.empty(0, dtype=np.int64))


class CausalLanes:
    """The items of a rank's I/O lanes, batch after batch in the order of the op stream."""

    def __init__(self, dependencies: DependencyPass, counters: RankCounters, pacing: Pacing) -> None:
        self._dependencies, self._counters, self._pacing = dependencies, counters, pacing

    def split(self, rows: np.ndarray, batch: OperationBatch) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Add waits and additions to operations: lane, items and recorded durations (0 for waits and additions)."""
        moments = self._dependencies.moments
        for lane, mine, found in self._dependencies.lanes(batch):
            durations = batch.end_ns[mine] - batch.start_ns[mine]
            yield lane, *lane_items(found, rows[mine], durations, moments, self._counters, lane, self._pacing)


def lane_items(
    found: LaneDependencies,
    rows: np.ndarray,
    durations_ns: np.ndarray,
    moments: Moments,
    counters: RankCounters,
    lane: int,
    pacing: Pacing,
) -> tuple[np.ndarray, np.ndarray]:
    """The operations (`PLAN_ROW`) of a lane with the waits and additions between them, and the duration of each item,
    of which `durations_ns` has those of the operations."""
    waits, adds = found.waits, (found.lets_go > 0) | (found.busy_ns > 0)
    adds[-1] = found.is_end
    together = (found.behind != NO_EVENT) & bool(found.others)
    added = waits + together * len(found.others)
    at = np.cumsum(1 + adds[:-1] + added) - 1
    items = np.empty(len(rows) + int(added.sum()) + int(adds.sum()), dtype=PLAN_ROW)
    durations = np.zeros(len(items), dtype=np.int64)
    items[at] = rows
    items["due_ns"][at] = pacing.io_ns(found.after_ns)
    durations[at] = durations_ns
    follows = found.follows[waits]
    wait = Wait(
        counter=counters.of_gates[moments.gate[follows]],
        until=moments.count[follows],
        due_ns=pacing.io_ns(found.before_ns[waits]),
    )
    items[at[waits] - 1] = rows_of_arrays(wait, int(waits.sum()))
    for number, other in enumerate(found.others, start=1):
        wait = Wait(counter=counters.lane(other), until=found.behind[together] + 1)
        items[(at - waits - number)[together]] = rows_of_arrays(wait, int(together.sum()))
    add = Add(counter=counters.lane(lane), amount=found.lets_go[adds], due_ns=pacing.io_ns(found.busy_ns[adds]))
    items[np.append(at - added - 1, len(items) - 1)[adds]] = rows_of_arrays(add, int(adds.sum()))
    return items, durations


def script_rows(
    model: LoopModel, counters: RankCounters, pacing: Pacing, compute: str, meetings: Meetings
) -> np.ndarray:
    """The training thread as items (`PLAN_ROW`), each after the previous one.

    compute: how the gaps between events are spent: `sleep` or `spin`.
    What an event lasted beyond its operations is slept at the speed of I/O gaps.
    """
    return with_meetings(_Script(model, counters, pacing, compute).rows(), pacing, meetings)


def with_meetings(script: np.ndarray, pacing: Pacing, meetings: Meetings) -> np.ndarray:
    """The script of a training thread in which its collectives, which are gaps, become meetings of all ranks."""
    if not len(meetings.cost_ns):
        return script
    is_met = (script["kind"] == SLEEP) & (script.view(EVENT_ROW)["event_kind"] == COLLECTIVE)
    found = np.flatnonzero(is_met & ((script.view(GAP_ROW)["duration_ns"] > 0) | (not meetings.lasting)))
    gaps, cost_ns = found[: len(meetings.cost_ns)], pacing.io_ns(meetings.cost_ns[: len(found)])
    counts = np.ones(len(script), dtype=np.int64)
    counts[gaps] = 4
    items, first, met = np.repeat(script, counts), gaps + 3 * np.arange(len(gaps)), len(gaps)
    place = {name: script.view(EVENT_ROW)[name][gaps] for name in ("event", "event_kind", "step")}
    ranks, until = meetings.ranks, np.arange(1, met + 1) * meetings.ranks
    items[first] = rows_of_arrays(Add(counter=OWN_ARRIVALS, **place), met)
    items[first + 1] = rows_of_arrays(Add(counter=ARRIVALS, multiple=ranks, **place), met)
    items[first + 2] = rows_of_arrays(Wait(counter=ARRIVALS, multiple=ranks, until=until, **place), met)
    items[first + 3] = rows_of_arrays(Gap(kind=SLEEP, duration_ns=cost_ns, **place), met)
    return items


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
    moments = model.moments
    columns = [counters.of_gates[moments.gate[made.follows]], moments.count[made.follows]]
    columns += map(pacing.io_ns, (made.delay_ns, made.head_ns, made.tail_ns))
    rows = zip(model.loop.fetches.tolist(), *(column.tolist() for column in columns), strict=True)
    items: list[Item] = []
    for event, counter, until, delay, head, tail in rows:
        if until:
            items.append(Wait(counter=counter, until=until))
        items += [Gap(kind=SLEEP, duration_ns=delay), Add(counter=counters.ready), Gap(kind=SLEEP, duration_ns=head)]
        items += _waits_for_reads(model, counters, event)
        items += [Gap(kind=SLEEP, duration_ns=tail), Add(counter=counters.ready)]
    return rows_of_each(items)


def _waits_for_reads(model: LoopModel, counters: RankCounters, event: int) -> list[Item]:
    return [Wait(counter=counter, until=event + 1) for counter in _lanes_needed(model, counters, event)]


def _lanes_needed(model: LoopModel, counters: RankCounters, event: int) -> list[int]:
    """The counters of the lanes for whose operations an event waits."""
    return [counters.lane(lane) for lane, events in model.needed.items() if events[event]]


class _Script:
    """Its gaps are made with recorded durations, and scaled together at the end."""

    def __init__(self, model: LoopModel, counters: RankCounters, pacing: Pacing, compute: str) -> None:
        self._loop, self._counters, self._pacing = model.loop, counters, pacing
        self._gap_kind = COMPUTE_KINDS[compute]
        self._items: list[Item] = []
        self._gaps: list[int] = []
        self._residual_ns = pacing.io_ns(model.residual_ns).tolist()
        self._lasts_ns = pacing.io_ns(model.loop.end_ns - model.loop.begin_ns).tolist()
        self._step_of_event = model.loop.step_at(model.loop.begin_ns).tolist()
        self._needed = [(counters.lane(lane), events.tolist()) for lane, events in model.needed.items()]
        # How many batches become ready for each fetch; 0 where it waits for reads.
        self._made = 0 if not makes_ready(model) else 1 if model.production is None else 2
        self._taken = 0

    def rows(self) -> np.ndarray:
        """`PLAN_ROW`, all items."""
        loop = self._loop
        cursor = int(loop.begin_ns[0])
        borders = self._borders()
        events = zip(loop.kind.tolist(), loop.begin_ns.tolist(), loop.end_ns.tolist(), strict=True)
        for event, (kind, begin, end) in enumerate(events):
            self._busy(cursor, begin, borders)
            self._event(event, kind)
            cursor = end
        self._busy(cursor, loop.exit_ns, borders)
        self._items.append(Add(counter=self._counters.openings))
        rows = rows_of_each(self._items)
        self._scale(rows, np.array(self._gaps, dtype=np.int64))
        return rows

    def _scale(self, rows: np.ndarray, gaps: np.ndarray) -> None:
        """Give the gaps between events their steps, and the durations of the replay."""
        own = rows.view(GAP_ROW)
        own["step"][gaps] = self._loop.step_at(own["recorded_ns"][gaps])
        own["duration_ns"][gaps] = self._pacing.compute_ns(own["duration_ns"][gaps])

    def _borders(self) -> list[tuple[int, int, int]]:
        """Ends and begins of the steps as (time, 0 for begin or 1 for end, step), to be popped from the end."""
        loop = self._loop
        numbers = loop.step_number.tolist()
        begins = [(time, 1, 0, step) for time, step in zip(loop.step_begin_ns.tolist(), numbers, strict=True)]
        ends = [(time, 0, 1, step) for time, step in zip(loop.step_end_ns.tolist(), numbers, strict=True)]
        return [(time, border, step) for time, _, border, step in sorted(begins + ends, reverse=True)]

    def _busy(self, cursor: int, until: int, borders: list[tuple[int, int, int]]) -> None:
        """Busy from `cursor` to `until`, with the marks of the borders up to there, which are taken."""
        while borders and borders[-1][0] <= until:
            time, border, step = borders.pop()
            if time > cursor:
                self._gap(cursor, time)
                cursor = time
            self._items.append(Mark(is_end=border, step=step))
        if until > cursor:
            self._gap(cursor, until)

    def _gap(self, begin: int, end: int) -> None:
        self._gaps.append(len(self._items))
        self._items.append(Gap(kind=self._gap_kind, duration_ns=end - begin, recorded_ns=begin))

    def _event(self, event: int, kind: int) -> None:
        place = _Place(event=event, event_kind=kind, step=self._step_of_event[event])
        if kind == COLLECTIVE:
            self._items.append(Gap(kind=SLEEP, duration_ns=self._lasts_ns[event], **place))
            return
        if kind != ENTRY:
            self._items.append(Add(counter=self._counters.openings, **place))
        if kind == FETCH and self._made:
            self._taken += self._made
            self._items.append(Wait(counter=self._counters.ready, until=self._taken, **place))
        else:
            self._items += [
                Wait(counter=counter, until=event + 1, **place) for counter, events in self._needed if events[event]
            ]
        self._items.append(Gap(kind=SLEEP, duration_ns=self._residual_ns[event], **place))
        if kind == ENTRY:
            self._items.append(Add(counter=self._counters.openings, **place))
        elif kind == FETCH:
            self._items.append(Add(counter=self._counters.fetches, **place))


class _Place(TypedDict):
    """The event that an item of the script belongs to."""

    event: int
    event_kind: int
    step: int
