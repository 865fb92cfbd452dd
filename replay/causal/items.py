"""Makes the items of a rank's lanes from its columns and its causal model: I/O lanes, the input pipeline and the
training thread's script. Pure.

The lanes of a rank wait for each other at counters (`replay.engine.clock`): the *openings* and *batch fetches*
of its training thread, and for each I/O lane the number of events that no longer wait for any of its operations. Ranks
wait for each other at the counter of arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.columns import RankColumns
from dxt_replay.replay.causal.loop import COLLECTIVE, ENTRY, FETCH, Moments
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.engine.clock import ARRIVALS, OWN_ARRIVALS
from dxt_replay.replay.engine.items import (
    COMPUTE_KINDS,
    EVENT_ROW,
    GAP_ROW,
    NO_EVENT,
    PLAN_ROW,
    SLEEP,
    Packed,
    add,
    gap,
    mark,
    rows_of_arrays,
    rows_of_each,
    wait,
)
from dxt_replay.replay.plan.operations import OperationBatch
from dxt_replay.replay.plan.pacing import Pacing


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """The counters that a rank uses: `count` counters from number `base` on."""

    base: int
    lanes: tuple[int, ...]

    @property
    def openings(self) -> int:
        return self.base

    @property
    def fetches(self) -> int:
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
    def of(cls, durations_ns: Sequence[np.ndarray]) -> Meetings:
        """From the durations of each rank's collectives in order; no meetings unless all ranks have equally many."""
        for lasting in (False, True):
            chosen = [durations[durations > 0] if lasting else durations for durations in durations_ns]
            if len({len(each) for each in chosen}) == 1:
                return cls(ranks=len(chosen), cost_ns=np.min(np.stack(chosen), axis=0), lasting=lasting)
        return cls(ranks=len(durations_ns), cost_ns=np.empty(0, dtype=np.int64))


def split(
    columns: RankColumns, counters: RankCounters, pacing: Pacing, rows: np.ndarray, batch: OperationBatch
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The next operations of a rank, `rows` (`PLAN_ROW`) and what was recorded, as items of its lanes: lane, items, and
    int64, the recorded duration of each (0 for waits and additions)."""
    for lane, mine, found in columns.lanes(batch):
        durations = batch.end_ns[mine] - batch.start_ns[mine]
        others = columns.others.get(lane, ())
        yield lane, *lane_items(found, rows[mine], durations, columns.moments, counters, lane, pacing, others)


def lane_items(
    found: np.ndarray,
    rows: np.ndarray,
    durations_ns: np.ndarray,
    moments: Moments,
    counters: RankCounters,
    lane: int,
    pacing: Pacing,
    others: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Operations of a lane (`PLAN_ROW` and durations) with the waits and additions of their `COLUMNS`. `others`: the
    lanes of its worker that `behind` speaks of."""
    own = found[:-1]
    waits, together = own["waits"], (own["behind"] != NO_EVENT) & bool(others)
    adds = (found["lets_go"] > 0) | (found["busy_ns"] > 0)
    adds[-1] = found["waits"][-1]
    added = waits + together * len(others)
    at = np.cumsum(1 + adds[:-1] + added) - 1
    items = np.empty(len(rows) + int(added.sum()) + int(adds.sum()), dtype=PLAN_ROW)
    durations = np.zeros(len(items), dtype=np.int64)
    items[at] = rows
    items["due_ns"][at] = pacing.io_ns(own["after_ns"])
    durations[at] = durations_ns
    follows = own["follows"][waits]
    waiting = wait(
        counter=counters.of_gates[moments.gate[follows]],
        until=moments.count[follows],
        due_ns=pacing.io_ns(own["before_ns"][waits]),
    )
    items[at[waits] - 1] = rows_of_arrays(waiting, int(waits.sum()))
    for number, other in enumerate(others, start=1):
        waiting = wait(counter=counters.lane(other), until=own["behind"][together] + 1)
        items[(at - waits - number)[together]] = rows_of_arrays(waiting, int(together.sum()))
    busy_ns = pacing.io_ns(found["busy_ns"][adds])
    adding = add(counter=counters.lane(lane), amount=found["lets_go"][adds], due_ns=busy_ns)
    items[np.append(at - added - 1, len(items) - 1)[adds]] = rows_of_arrays(adding, int(adds.sum()))
    return items, durations


def script_rows(
    model: LoopModel, counters: RankCounters, pacing: Pacing, compute: str, meetings: Meetings | None
) -> np.ndarray:
    """The training thread as items (`PLAN_ROW`), each after the previous one.

    compute: how the gaps between events are spent: `sleep` or `spin`. meetings: None for none as yet.
    What an event lasted beyond its operations is slept at the speed of I/O gaps.
    """
    loop, gap_kind, items = model.loop, COMPUTE_KINDS[compute], list[Packed]()
    # Where a step ends another one may begin: 0 at the end, 1 at the begin.
    steps = ((loop.step_begin_ns, 1), (loop.step_end_ns, 0))
    borders = [
        (*at, side) for times, side in steps for at in zip(times.tolist(), loop.step_number.tolist(), strict=True)
    ]
    borders.sort(key=lambda each: (each[0], each[2], each[1]), reverse=True)

    def busy(cursor: int, until: int) -> None:
        while borders and borders[-1][0] <= until:
            time, step, side = borders.pop()
            if time > cursor:
                items.append(gap(kind=gap_kind, duration_ns=time - cursor, recorded_ns=cursor))
                cursor = time
            items.append(mark(is_end=1 - side, step=step))
        if until > cursor:
            items.append(gap(kind=gap_kind, duration_ns=until - cursor, recorded_ns=cursor))

    # How many batches become ready for each fetch; 0 where it waits for reads.
    made = 0 if not makes_ready(model) else 1 if model.production is None else 2
    lasts_ns = np.where(loop.kind == COLLECTIVE, loop.end_ns - loop.begin_ns, model.residual_ns)
    columns = (loop.kind, loop.begin_ns, loop.end_ns, pacing.io_ns(lasts_ns), loop.step_at(loop.begin_ns))
    needed = [(counters.lane(lane), events.tolist()) for lane, events in model.needed.items()]
    cursor, taken = int(loop.begin_ns[0]), 0
    for event, (kind, begin, end, lasts, step) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        busy(cursor, begin)
        cursor, place = end, {"event": event, "event_kind": kind, "step": step}
        if kind not in (ENTRY, COLLECTIVE):
            items.append(add(counter=counters.openings, **place))
        if kind == FETCH and made:
            taken += made
            items.append(wait(counter=counters.ready, until=taken, **place))
        elif kind != COLLECTIVE:
            items += [wait(counter=counter, until=event + 1, **place) for counter, events in needed if events[event]]
        items.append(gap(kind=SLEEP, duration_ns=lasts, **place))
        if kind in (ENTRY, FETCH):
            items.append(add(counter=counters.openings if kind == ENTRY else counters.fetches, **place))
    busy(cursor, loop.exit_ns)
    rows = rows_of_each([*items, add(counter=counters.openings)])
    own = rows.view(GAP_ROW)
    gaps = np.flatnonzero((own["event"] == NO_EVENT) & (own["kind"] == gap_kind))
    own["step"][gaps] = loop.step_at(own["recorded_ns"][gaps])
    own["duration_ns"][gaps] = pacing.compute_ns(own["duration_ns"][gaps])
    return rows if meetings is None else with_meetings(rows, pacing, meetings)


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
    items[first] = rows_of_arrays(add(counter=OWN_ARRIVALS, **place), met)
    items[first + 1] = rows_of_arrays(add(counter=ARRIVALS, multiple=ranks, **place), met)
    items[first + 2] = rows_of_arrays(wait(counter=ARRIVALS, multiple=ranks, until=until, **place), met)
    items[first + 3] = rows_of_arrays(gap(kind=SLEEP, duration_ns=cost_ns, **place), met)
    return items


def makes_ready(model: LoopModel) -> bool:
    """Whether batches are made ready in a lane of their own (`ready_rows`); else batch fetches wait for the reads."""
    return model.production is not None or bool(model.ready_ns.any())


def ready_rows(model: LoopModel, counters: RankCounters, pacing: Pacing) -> np.ndarray:
    """The input pipeline between reads and batch fetches as items (`PLAN_ROW`): each batch waits for its reads, then is
    made ready. Empty where the capture does not show how long that takes.

    The entries of a production wait for their moment first, and each adds its begin and its end to the counter of
    batches ready.
    """
    made, fetches, moments = model.production, model.loop.fetches, model.moments
    items, ready = list[Packed](), add(counter=counters.ready)
    if not makes_ready(model):
        return np.zeros(0, dtype=PLAN_ROW)
    nothing = np.zeros(len(fetches), dtype=np.int64)
    if made is None:
        columns = [nothing, nothing, nothing, nothing, pacing.io_ns(model.ready_ns[fetches])]
    else:
        columns = [counters.of_gates[moments.gate[made.follows]], moments.count[made.follows]]
        columns += map(pacing.io_ns, (made.delay_ns, made.head_ns, made.tail_ns))
    needed = [(counters.lane(lane), events.tolist()) for lane, events in model.needed.items()]
    for event, counter, until, delay, head, tail in zip(
        fetches.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        if until:
            items.append(wait(counter=counter, until=until))
        if made is not None:
            items += [gap(kind=SLEEP, duration_ns=delay), ready, gap(kind=SLEEP, duration_ns=head)]
        items += [wait(counter=lane, until=event + 1) for lane, events in needed if events[event]]
        items += [gap(kind=SLEEP, duration_ns=tail), ready]
    return rows_of_each(items)
