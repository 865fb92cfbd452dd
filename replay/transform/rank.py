"""A rank between reading and writing: its operations with the columns of the causal model, which changes rewrite, and
the times that follow from them. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.columns import COLUMNS
from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.items import Meetings, RankCounters, lane_items, ready_rows, script_rows
from dxt_replay.replay.causal.loop import EVALUATION, FETCH, NO_FETCH, NO_MOMENT, Moments, TrainingLoop, nth
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.ranks import Lanes, Steps
from dxt_replay.replay.engine.clock import FIRST_RANK_COUNTER
from dxt_replay.replay.engine.items import ADD, EVENT_ROW, MARK, MARK_ROW, NO_EVENT, PLAN_ROW, READ_AT, is_operation
from dxt_replay.replay.plan.operations import OperationBatch, rows_by_lane
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import ORIGINS, READ, RECONSTRUCTED, codes

TRANSFORMED, MODELLED = ORIGINS.index("transformed"), ORIGINS.index("modelled")

Work = dict[str, np.ndarray]
"""n operations of a rank in the order of issue, which is also the order of each lane; arrays (n,).

lane, op, api, file_id, offset, length, origin, other_file_id, open_flags: as the columns of `OPS_SCHEMA`, enumerated
ones as codes, and -1 for null.
start_ns: recorded begin; for a new operation, that of the operation that it comes from. duration_ns: its duration.
need, follows, held: as of `replay.causal.columns.COLUMNS`; the moments are those that a capture can name.
think_ns: time from the later of two ends to its begin: of the lane's previous operation, and of what it follows.
busy_ns: how long its lane is busy with its data after its end (decoding)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankState:
    """A rank between reading and writing.

    model: its causal model, with the loop and the production as they are changed; an evaluation is a batch fetch.
    spans: rows of `SPANS_SCHEMA`, as in the capture; None for a rank whose loop was not recorded.
    readers: lanes that read the batches, 0 for the training thread. ahead: the most batches that they read ahead.
    by_file: whether readers take turns with files, as tf.data does, or with batches, as the workers of a PyTorch
    DataLoader do.
    pass_first: int64 (fetches,), the first fetch of the pass over the data that contains each fetch: no batch of a
    pass is read before that fetch begins. None: one pass, whose reads need not wait for its first fetch."""

    work: Work
    model: LoopModel
    spans: pa.Table | None
    readers: int = 0
    ahead: int = 0
    by_file: bool = False
    pass_first: np.ndarray | None = None

    @property
    def fed(self) -> np.ndarray:
        """int64 (n,): number of the batch fetch that waits for each operation, NO_FETCH for none."""
        return fed_by(self.work, self.model.loop)


def fetch_numbers(loop: TrainingLoop) -> np.ndarray:
    """int64 (events,): number of each batch fetch among the batch fetches, NO_FETCH for other events."""
    is_fetch = loop.kind == FETCH
    return np.where(is_fetch, np.cumsum(is_fetch) - 1, NO_FETCH)


def fed_by(work: Work, loop: TrainingLoop) -> np.ndarray:
    """See `RankState.fed`."""
    return nth(fetch_numbers(loop), work["need"])


def by_fetch(loop: TrainingLoop, moments: np.ndarray) -> np.ndarray:
    """Moments as 2 n for the begin of batch fetch n and 2 n + 1 for its end; NO_MOMENT for others."""
    number = nth(fetch_numbers(loop), moments // 2)
    return np.where(number == NO_FETCH, NO_MOMENT, 2 * number + moments % 2)


def of_fetch(loop: TrainingLoop, moments: np.ndarray) -> np.ndarray:
    """The reverse of `by_fetch`."""
    return np.where(moments < 0, NO_MOMENT, 2 * nth(loop.fetches, moments // 2) + moments % 2)


def data_reads(work: Work) -> np.ndarray:
    """bool (n,): reads with a known place that moved bytes."""
    mask: np.ndarray = (work["op"] == READ) & (work["offset"] >= 0) & (work["length"] > 0)
    return mask


def rows_of(work: Work, chosen: np.ndarray) -> Work:
    """The operations at these indices or of this mask, in that order."""
    return {name: values[chosen] for name, values in work.items()}


def joined(works: Sequence[Work]) -> Work:
    """All operations, one after the other."""
    return {name: np.concatenate([each[name] for each in works]) for name in works[0]}


def moved_origin(origin: np.ndarray) -> np.ndarray:
    """Origins of operations of a rank that the capture does not have. Those rebuilt from counters keep theirs: a replay
    does not count their failures."""
    return np.where(origin == RECONSTRUCTED, origin, np.maximum(origin, TRANSFORMED)).astype(origin.dtype)


def source_state(rows: pa.Table, steps: Steps, rank: int) -> RankState:
    """A rank as captured. rows: the rows that a replay issues (`OPS_SCHEMA`), in start order."""
    model = steps.models[rank]
    recorded = OperationBatch.of(rows, np.ones(rows.num_rows, dtype=bool))
    batch = steps.placed(rank, recorded)
    columns, found = steps.columns(rank, together=False), np.zeros(rows.num_rows, dtype=COLUMNS)
    for _, mine, own in columns.lanes(recorded):
        found[mine] = own[:-1]
    # The thread waits in an evaluation for its reads, as in a batch fetch.
    kind = np.where(model.loop.kind == EVALUATION, FETCH, model.loop.kind).astype(np.int8)
    loop = dataclasses.replace(model.loop, kind=kind)
    hidden = np.where(found["held"] | (model.production is not None), 0, found["before_ns"])
    work = {
        "lane": batch.lane,
        "op": batch.op,
        "file_id": batch.file_id,
        "length": batch.length,
        **{name: codes(rows, name) for name in ("api", "origin")},
        **{name: rows[name].fill_null(-1).to_numpy() for name in ("offset", "other_file_id", "open_flags")},
        "start_ns": batch.start_ns,
        "duration_ns": batch.end_ns - batch.start_ns,
        "think_ns": found["after_ns"] + hidden,
        "need": found["need"].copy(),
        "follows": _named(columns.moments, loop, found["follows"], found["need"]),
        "busy_ns": found["ready_ns"] * (model.known is not None),
        "held": found["held"] & (found["waits"] | (model.production is None)),
    }
    fed = fed_by(work, loop)
    ready_ns = model.ready_ns.copy()
    if model.known is None:
        np.maximum.at(ready_ns, found["need"][fed != NO_FETCH], found["ready_ns"][fed != NO_FETCH])
    model = dataclasses.replace(model, loop=loop, ready_ns=ready_ns)
    return _with_pipeline(RankState(work=work, model=model, spans=steps.spans[rank]), fed)


def _named(moments: Moments, loop: TrainingLoop, follows: np.ndarray, need: np.ndarray) -> np.ndarray:
    """The moments that operations follow, as far as a capture can name them: borders of batch fetches, the exit from
    the loop, and those of the production. The first fetch stands for the end of the entry, and what an event other than
    a fetch waits for follows its begin."""
    events, fetches = len(loop.kind), loop.fetches
    named = np.full(len(moments.time_ns), NO_MOMENT)
    named[2 * events : -1] = np.arange(2 * events, len(named) - 1)
    for side in (0, 1):
        named[2 * fetches + side] = 2 * fetches + side
    named[1] = 2 * fetches[0] if len(fetches) else NO_MOMENT
    found = named[follows]
    inside = (found == NO_MOMENT) & (need > 0) & (fetch_numbers(loop)[need] == NO_FETCH)
    return np.where(inside, 2 * need, found)


def _with_pipeline(state: RankState, fed: np.ndarray) -> RankState:
    """The rank with how its batches are read."""
    work, model, loop = state.work, state.model, state.model.loop

    def last_of(starts: np.ndarray) -> np.ndarray:
        """int64 (fetches,): the last of `starts` up to each fetch; 0 is always one."""
        starts = np.unique(np.append(starts, 0))
        found: np.ndarray = starts[np.searchsorted(starts, np.arange(len(loop.fetches)), side="right") - 1]
        return found

    if (dealing := model.dealing) is not None:
        begins = [fetch_numbers(loop)[deal["after_event"][deal["is_early"]]] for deal in dealing.lanes.values()]
        first = last_of(np.concatenate(begins))
        return dataclasses.replace(
            state, readers=dealing.workers, ahead=dealing.workers * dealing.prefetch, pass_first=first
        )
    feeding = data_reads(work) & (fed != NO_FETCH)
    # A loop that always waits for its readers looks like one that reads itself. Dependency columns tell them apart.
    if model.synchronous and (model.known is None or bool((work["follows"] == 2 * work["need"])[feeding].all())):
        return state
    follows, pass_first = by_fetch(loop, work["follows"]), None
    if model.known is not None:  # reads of a pass wait for its first fetch
        pass_first = last_of(follows[(fed != NO_FETCH) & (follows >= 0) & (follows % 2 == 0)] // 2)
    if model.production is not None:
        ahead = max(made_ahead(model.production, loop), 1)
    elif model.known is None:
        ahead = model.lead + 1
    else:  # the begin of fetch n comes after the end of the one before it
        gated = feeding & (follows != NO_MOMENT)
        ahead = max(int((fed - (follows - 1) // 2)[gated].max(initial=1)), 1)
    lane, batch = distinct_rows(work["lane"][feeding], fed[feeding]).values.T  # ascending
    by_file, count = len(np.unique(batch)) < len(batch), len(np.unique(lane))  # some batch is read in several lanes
    again = np.diff(batch)[np.diff(lane) == 0]
    if not by_file and len(again):  # readers take turns; new ones may start for each pass, and others for validations
        count = int(np.median(again))
    return dataclasses.replace(state, readers=count, ahead=ahead, by_file=by_file, pass_first=pass_first)


def made_ahead(made: Production, loop: TrainingLoop) -> int:
    """How many batches are made ahead of the loop."""
    before = nth(fetch_numbers(loop), made.follows // 2)
    ahead = np.arange(len(before)) - before
    return int(ahead[made.follows != 2 * loop.fetches].max(initial=0))


def with_made_ahead(made: Production, loop: TrainingLoop, ahead: int, begins_pass: np.ndarray) -> Production:
    """The production with room for so many batches; 0: each is made when the loop asks for it.

    begins_pass: bool (fetches,), batches that were made only when asked for. Where they are few, these begin a pass
    over the data, and nothing is made before."""
    number, fetches = np.arange(len(begins_pass)), loop.fetches
    if not ahead or begins_pass.mean() > 0.5:
        begins_pass = np.full(len(number), not ahead)
    room = np.where(number >= ahead, 2 * fetches[np.maximum(number - ahead, 0)] + 1, 1)
    return dataclasses.replace(made, follows=np.where(begins_pass, 2 * fetches, room))


def finished(state: RankState) -> RankState:
    """The rank with operations as a capture has them: `need` never falls among those of batch fetches in a lane, and a
    lane stays busy after the last operation of each batch until it is ready.

    What a lane reads for a later batch before it reads for an earlier one holds that one up: it feeds it, too. A batch
    without operations is ready together with the batch before it."""
    work, feeds = state.work, np.flatnonzero(state.fed != NO_FETCH)
    need, busy = work["need"].copy(), work["busy_ns"].copy()
    for _, mine in rows_by_lane(work["lane"][feeds]):
        own = feeds[mine]
        need[own] = np.minimum.accumulate(need[own][::-1])[::-1]
    last = np.full(len(state.model.loop.kind), -1, dtype=np.int64)
    np.maximum.at(last, need[feeds], feeds)
    has = last >= 0
    busy[last[has]] += state.model.ready_ns[has]
    return dataclasses.replace(state, work=work | {"need": need, "busy_ns": busy})


class Scheduled(NamedTuple):
    """A rank as scheduled: when each operation begins, int64 (n,); when the last operation and the loop have ended; the
    training loop at new times; when the making of each batch began and ended, int64 (2, fetches), None without a
    production."""

    start_ns: np.ndarray
    end_ns: int
    loop: TrainingLoop
    made_ns: np.ndarray | None


def scheduled(states: Mapping[int, RankState], pacing: Pacing, origin_ns: int) -> dict[int, Scheduled]:
    """Schedule all ranks: together if they meet at their collectives, else one by one.

    Raises: ReplayError when operations and loop wait for each other in a circle."""
    loops = [state.model.loop for state in states.values()]
    meetings = Meetings.of([loop.end_ns[loop.collectives] - loop.begin_ns[loop.collectives] for loop in loops])
    found: dict[int, Scheduled] = {}
    for group in [list(states)] if len(meetings.cost_ns) else [[rank] for rank in states]:
        lanes, base = Lanes(), FIRST_RANK_COUNTER
        for rank in group:
            counters = RankCounters(base=base, lanes=tuple(np.unique(states[rank].work["lane"]).tolist()))
            base += counters.count
            lanes |= {(rank, name): made for name, made in _lanes(states[rank], counters, pacing, meetings)}
        times = schedule(lanes)
        for rank in group:
            work, made_ns = states[rank].work, None
            script, of_script = lanes[rank, "training"][0], times[rank, "training"]
            loop = _at_times(states[rank].model.loop, script, of_script.begin_ns, of_script.end_ns, origin_ns)
            start_ns, end_ns = np.empty(len(work["op"]), dtype=np.int64), loop.exit_ns
            for lane, mine in rows_by_lane(work["lane"]):
                operations = is_operation(lanes[rank, lane][0])
                start_ns[mine] = times[rank, lane].begin_ns[operations] + origin_ns
                end_ns = max(end_ns, int(times[rank, lane].end_ns[operations].max()) + origin_ns)
            if states[rank].model.production is not None:
                adds = lanes[rank, "pipeline"][0]["kind"] == ADD
                made_ns = times[rank, "pipeline"].end_ns[adds].reshape(-1, 2).T + origin_ns
            found[rank] = Scheduled(start_ns, end_ns, loop, made_ns)
    return found


def _lanes(
    state: RankState, counters: RankCounters, pacing: Pacing, meetings: Meetings
) -> Iterator[tuple[Hashable, tuple[np.ndarray, np.ndarray]]]:
    """The lanes of a rank, "training" and "pipeline": the items of each and their durations."""
    work, loop, events = state.work, state.model.loop, len(state.model.loop.kind)
    moments, needed = Moments.of(loop, np.zeros(2 * len(loop.fetches), dtype=np.int64)), {}
    for lane, mine in rows_by_lane(work["lane"]):
        own = np.zeros(len(mine) + 1, dtype=COLUMNS)
        need = work["need"][mine]
        floor = np.minimum.accumulate(np.where(need == NO_EVENT, events, need)[::-1])[::-1]
        own["lets_go"], own["behind"] = np.diff(np.append(floor, events), prepend=0), NO_EVENT
        own["busy_ns"][1:], own["after_ns"][:-1] = work["busy_ns"][mine], work["think_ns"][mine]
        own["follows"][:-1] = work["follows"][mine]
        own["waits"] = np.append(moments.new_waits(work["follows"][mine]), True)
        needed[lane] = np.zeros(events, dtype=bool)
        needed[lane][need[need != NO_EVENT]] = True
        rows = np.zeros(len(mine), dtype=PLAN_ROW)
        rows["kind"] = READ_AT
        yield lane, lane_items(own, rows, work["duration_ns"][mine], moments, counters, lane, pacing)
    # Batches without a production are made ready in the lanes of their readers (`finished`).
    model = dataclasses.replace(state.model, ready_ns=np.zeros(events, dtype=np.int64), needed=needed)
    training = script_rows(model, counters, pacing, "sleep", meetings)
    for name, items in (("training", training), ("pipeline", ready_rows(model, counters, pacing))):
        yield name, (items, np.zeros(len(items), dtype=np.int64))


def _at_times(
    loop: TrainingLoop, script: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray, origin_ns: int
) -> TrainingLoop:
    """The loop at the times of its script, int64 from `origin_ns`."""
    begins, ends = begin_ns + origin_ns, end_ns + origin_ns
    event = script.view(EVENT_ROW)["event"]
    of_event = np.flatnonzero((event >= 0) & (script["kind"] != MARK))
    begin, end = np.full(len(loop.kind), np.iinfo(np.int64).max), np.zeros(len(loop.kind), dtype=np.int64)
    np.minimum.at(begin, event[of_event], begins[of_event])
    np.maximum.at(end, event[of_event], ends[of_event])
    begin[0] = origin_ns
    marks = np.flatnonzero(script["kind"] == MARK)
    is_end = script.view(MARK_ROW)["is_end"][marks] == 1
    return dataclasses.replace(
        loop,
        begin_ns=begin,
        end_ns=end,
        step_begin_ns=begins[marks[~is_end]],
        step_end_ns=begins[marks[is_end]],
        exit_ns=int(ends[-1]),
    )
