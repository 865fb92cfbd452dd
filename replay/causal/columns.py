"""What each operation of a rank waits for and what waits for it, as columns: one pass over a rank's operations. Pure.

Rules find the `DEPENDENCY` of each operation, from what the capture says (`KnownRules`) or from its times
(`InferredRules`). `RankColumns` then adds think times, lane by lane and batch after batch. Replay, simulation, storage
limit, transform and tables all read these columns, and `replay.causal.items` alone makes items of them.

*Known*: an operation that has neither `feeds` nor `follows` belongs to the checkpoint that it begins in. One that ended
before the first step holds that step up, and one that began after the loop waits for its end. Where the capture says
its production (`replay.causal.production`), what has `feeds` and no `follows` waits for the last moment of it before.

*Inferred*: byte counts and times come first (`replay.causal.feed`). Then one of two rules replaces what it covers: how
a DataLoader dealt its batches to workers (`replay.causal.dealing`), or what the profile says of the production of the
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.replay.causal.loop import (
    CHECKPOINT,
    EVALUATION,
    FETCH,
    FETCHES,
    IS_OPENING,
    NO_FETCH,
    NO_MOMENT,
    Moments,
    TrainingLoop,
    containing,
    nth,
)
from dxt_replay.replay.causal.production import ELSEWHERE, PREPARES_READ, Production
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import OperationBatch, rows_by_lane
from dxt_replay.traces.errors import CaptureError, DamagedCaptureError
from dxt_replay.traces.schema import READ

if TYPE_CHECKING:
    from dxt_replay.replay.causal.model import LoopModel

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

_NEVER = np.iinfo(np.int64).max


class ColumnsContradictError(CaptureError):
    """The columns `feeds` and `follows` contradict each other; the rest of the capture may be sound."""


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
        deals = model.dealing.others if model.dealing is not None else {}
        self.others = {lane: others for lane, others in deals.items() if others and together}

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
        last = self._let_go if self._left else len(self._model.loop.kind)
        reached = np.maximum.accumulate(np.concatenate(([self._let_go], found["floor"], [last])))
        self._let_go, made["lets_go"] = int(reached[-1]), np.diff(reached)
        if self._is_worker:
            follows, free = found["follows"], np.zeros(len(found), dtype=bool)
            waits = self._moments.new_waits(follows, self._awaited)
            ready = np.concatenate(([self._ready_ns], found["ready_ns"]))
            self._ready_ns = int(ready[-1])
            busy = np.where(own["lets_go"] > 0, np.minimum(ready[:-1], gap), 0)
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
            # The rest comes before a wait for a batch fetch. The capture shows only a part if the reader was held.
            within, between = self._model.think_ns
            typical = np.where(free, gap, np.where(first, between, within))
            by_fetch = waits & (self._moments.gate[found["follows"]] == FETCHES)
            own["before_ns"] = np.where(by_fetch, np.clip(typical, after, gap) - after, 0)
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


def _since(
    start_ns: np.ndarray, previous_ns: np.ndarray, let_ns: np.ndarray, gap_ns: np.ndarray, waits: np.ndarray
) -> np.ndarray:
    """How long after its lane was free, and after the moment that it `waits` for, each operation began."""
    return np.where(waits, np.clip(start_ns - np.maximum(previous_ns, let_ns), 0, gap_ns), gap_ns)


class KnownRules:
    """Known dependencies of a rank's operations, batch after batch from the first one."""

    def __init__(self, loop: TrainingLoop, production: Production | None = None) -> None:
        self._loop, self._production = loop, production
        self._fetches = loop.fetches
        self._fetched = np.cumsum(loop.kind == FETCH)
        self._floor: dict[int, int] = {}
        self._moment: dict[int, int] = {}
        self._needed: dict[int, int] = {}
        self._saves = _background_saves(loop)

    def dependencies(self, batch: OperationBatch) -> np.ndarray:
        """`DEPENDENCY` (n,) of these operations, which continue the earlier batches.

        Raises: ColumnsContradictError for an operation that waits for a moment after the event that waits for it.
        """
        loop, known = self._loop, batch.known
        start, end = batch.start_ns, batch.end_ns
        free = (known["feeds"] < 0) & (known["follows"] < 0)
        inside = np.where(free, containing(loop, loop.checkpoints, start), NO_EVENT)
        need = nth(self._fetches, known["feeds"])
        need[free & (start < loop.entry_ns) & (end <= loop.entry_ns)] = 0
        holds_up = (inside != NO_EVENT) & (end <= loop.end_ns[inside])
        need[holds_up] = inside[holds_up]
        event = np.where(known["follows"] < 0, inside, nth(self._fetches, known["follows"]))
        follows = np.where(event == NO_EVENT, NO_MOMENT, 2 * event + (known["follows_end"] > 0))
        follows[free & (start >= loop.exit_ns) & (inside == NO_EVENT)] = 2 * len(loop.kind)
        _save_in_background(self._saves, batch, ~free | (start < loop.entry_ns), inside, need, follows)
        floor = _floor(loop, start, need, inside)
        for lane, mine in rows_by_lane(batch.lane):
            floor[mine] = self._floors(lane, need[mine], floor[mine])
            # The lane must not wait for a moment after an event that waits for the lane.
            latest = np.maximum.accumulate(np.concatenate(([self._moment.get(lane, -1)], follows[mine])))
            self._moment[lane] = int(latest[-1])
            wrong = (need[mine] != NO_EVENT) & (latest[1:] > 2 * need[mine])
            if wrong.any():
                number = int(self._fetched[need[mine][wrong][0]]) - 1
                raise ColumnsContradictError(
                    f"an operation in lane {lane} feeds batch fetch {number} and waits for a later event: the columns "
                    "feeds and follows contradict each other"
                )
        if self._production is not None:
            behind = self._production.last_before(start, known["feeds"])
            made = (known["feeds"] >= 0) & (known["follows"] < 0) & (behind > 0)
            follows = np.where(made, 2 * len(loop.kind) + behind, follows)
        found = np.zeros(len(start), dtype=DEPENDENCY)
        found["need"], found["floor"], found["follows"] = need, floor, follows
        found["ready_ns"], found["behind"] = np.maximum(known["ready_ns"], 0), NO_EVENT
        return found

    def _floors(self, lane: int, need: np.ndarray, floor: np.ndarray) -> np.ndarray:
        """The floors of operations of one lane: no later one of them is needed by an earlier event, and what nothing
        needs holds up nothing that needs an operation before it."""
        reached = np.maximum.accumulate(np.concatenate(([self._needed.get(lane, NO_EVENT)], need)))
        self._needed[lane] = int(reached[-1])
        floor = np.where(need == NO_EVENT, np.maximum(floor, reached[:-1] + 1), floor)
        wanted = np.where(need == NO_EVENT, _NEVER, need)
        if wanted.min() < self._floor.get(lane, 0):
            number = int(self._fetched[wanted.min()]) - 1
            raise ColumnsContradictError(
                f"lane {lane} has operations of batch fetch {number} long after those of later fetches"
            )
        found: np.ndarray = np.minimum(floor, np.minimum.accumulate(wanted[::-1])[::-1])
        self._floor[lane] = max(self._floor.get(lane, 0), int(found.max()))
        return found


class InferredRules:
    """Inferred dependencies of a rank's operations, batch after batch from the first one."""

    def __init__(self, model: LoopModel) -> None:
        loop = model.loop
        self._model, self._moments = model, model.moments
        self._bytes_before: dict[int, int] = {}
        self._fetches, self._blocking = loop.fetches, loop.events(CHECKPOINT, EVALUATION)
        # Number of openings up to the begin of each event, and of fetches before it.
        self._openings_until = 1 + np.cumsum(IS_OPENING[loop.kind])
        self._fetches_until = np.cumsum(loop.kind == FETCH) - (loop.kind == FETCH)
        self._made = dict.fromkeys(model.dealing.lanes, 0) if model.dealing is not None else {}
        self._saves = _background_saves(loop)

    def dependencies(self, batch: OperationBatch) -> np.ndarray:
        """`DEPENDENCY` (n,) of these operations, which continue the earlier batches."""
        found = self._by_times(batch)
        if self._model.dealing is not None:
            self._deal(batch, found)
        if self._model.production is not None:
            self._produce(batch, found)
        return found

    def _by_times(self, batch: OperationBatch) -> np.ndarray:
        model, loop, moments = self._model, self._model.loop, self._moments
        start, end = batch.start_ns, batch.end_ns
        of_loop = model.loop_files[batch.file_id]
        reads = of_loop & (batch.op == READ)
        feeds = reads | (of_loop & np.isin(batch.op, PREPARES_READ) & _same_file_next(batch))
        checkpoint = np.where(feeds, NO_EVENT, containing(loop, self._blocking, start))
        before = start < loop.entry_ns
        loaded = before & (end <= loop.entry_ns)
        need = np.full(len(start), NO_EVENT, dtype=np.int64)
        need[loaded & (~of_loop | model.synchronous)] = 0
        fed, consumed = self._fed(batch, reads)
        mine = feeds & (need == NO_EVENT) & (start < loop.exit_ns)
        need[mine] = fed[mine]
        need[mine & loaded & consumed] = 0
        blocking = checkpoint != NO_EVENT
        blocking[blocking] &= end[blocking] <= loop.end_ns[checkpoint[blocking]]
        need[blocking] = checkpoint[blocking]
        # What the training thread does itself waits for an opening, else operations wait for a batch fetch. One that
        # begins exactly when the event that needs it ends does not wait for that event.
        own = (checkpoint != NO_EVENT) | (start >= loop.exit_ns) | model.synchronous
        opened = moments.opened(start, np.where(need == NO_EVENT, _NEVER, self._openings_until[need]))
        fetched = moments.fetched(start, np.where(need == NO_EVENT, _NEVER, self._fetches_until[need]))
        by_opening = nth(moments.openings, np.where(own, opened, np.minimum(opened, 1)) - 1)
        last = np.where(own | (fetched == 0), by_opening, nth(moments.fetches, fetched - 1))
        found = np.zeros(len(start), dtype=DEPENDENCY)
        found["need"], found["follows"] = need, np.where(before, NO_MOMENT, last)
        # An operation may end after its event if its time is made up, as that of a rebuilt close.
        _save_in_background(self._saves, batch, feeds | before, checkpoint, found["need"], found["follows"])
        found["floor"], found["behind"] = _floor(loop, start, found["need"], checkpoint), NO_EVENT
        return found

    def _fed(self, batch: OperationBatch, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch fetch (as an event) that each operation feeds, NO_EVENT beyond the last; and bool: it fed a fetch
        before the profile's first."""
        model, feed, turns = self._model, self._model.feed, self._model.turns
        # An operation cannot feed a fetch that ended before it.
        earliest = np.searchsorted(model.loop.fetch_ends_ns, batch.end_ns, side="left")
        consumed = np.zeros(len(earliest), dtype=bool)
        if feed.step_bytes:
            moved = np.where(reads, batch.length, 0)
            if turns:
                fed = np.zeros(len(moved), dtype=np.int64)
                for turn, lane in enumerate(turns):
                    mine = batch.lane == lane
                    made = np.floor(self._before(lane, moved[mine]) / feed.step_bytes).astype(np.int64)
                    fed[mine] = made * len(turns) + turn - round(feed.fetches_before)
            else:
                fed = np.floor(self._before(0, moved) / feed.step_bytes - feed.fetches_before).astype(np.int64)
            consumed = fed < 0
            earliest = np.maximum(earliest, fed)
        return nth(self._fetches, earliest), consumed

    def _before(self, account: int, moved: np.ndarray) -> np.ndarray:
        """Bytes moved before each operation; each `account` continues from batch to batch."""
        before = self._bytes_before.get(account, 0) + np.cumsum(moved) - moved
        self._bytes_before[account] = self._bytes_before.get(account, 0) + int(moved.sum())
        return before

    def _deal(self, batch: OperationBatch, found: np.ndarray) -> None:
        """Set the dependencies of a DataLoader's workers, from the dealing of their batches."""
        assert self._model.dealing is not None
        for lane, deal in self._model.dealing.lanes.items():
            mine = np.flatnonzero(batch.lane == lane)
            if not len(mine):
                continue
            place = self._made[lane] + np.arange(len(mine))
            self._made[lane] += len(mine)
            made = np.searchsorted(deal["first"], place, side="right") - 1
            own = deal[made]
            is_last = np.append(deal["first"], -1)[made + 1] == place + 1
            # A batch that was never fetched delays no further event.
            floor = np.where(own["event"] == NO_EVENT, np.maximum.accumulate(deal["event"])[made] + 1, own["event"])
            found["need"][mine], found["floor"][mine] = own["event"], floor
            found["ready_ns"][mine] = np.where(is_last, own["ready_ns"], 0)
            found["behind"][mine] = np.where(own["first"] == place, own["behind"], NO_EVENT)
            found["behind_ns"][mine] = own["behind_ns"]
            found["follows"][mine] = self._let_begin(batch.start_ns[mine], own["after_event"], own["is_early"])

    def _let_begin(self, start: np.ndarray, after: np.ndarray, early: np.ndarray) -> np.ndarray:
        """The moment that operations of a worker wait for: the end of the fetch `after`, or with `early`, whose batch
        may begin with its pass, what the training thread did last before they began, up to the first fetch of the
        pass, which then is `after`."""
        moments = self._moments
        opened = nth(moments.openings, moments.opened(start, self._openings_until[after]) - 1)
        fetched = nth(moments.fetches, moments.fetched(start, self._fetches_until[after]) - 1)
        later = np.where(moments.time_ns[opened] >= moments.time_ns[fetched], opened, fetched)
        return np.where(early, np.where(start < self._model.loop.entry_ns, NO_MOMENT, later), 2 * after + 1)

    def _produce(self, batch: OperationBatch, found: np.ndarray) -> None:
        """Set the dependencies of the operations in tf.data's threads, and of those that prepare them."""
        model, loop, production = self._model, self._model.loop, self._model.production
        assert production is not None
        of_loop = model.loop_files[batch.file_id] & (batch.start_ns < loop.exit_ns)
        mine = np.flatnonzero(of_loop & ((batch.op == READ) | np.isin(batch.op, PREPARES_READ)))
        need = production.needs(loop, batch.start_ns[mine], batch.end_ns[mine])
        need[batch.op[mine] != READ] = ELSEWHERE
        for _, own in rows_by_lane(batch.lane[mine]):  # what is ELSEWHERE is needed as the next one of its lane
            known = np.where(need[own] != ELSEWHERE, np.arange(len(own)), len(own))
            need[own] = np.append(need[own], ELSEWHERE)[np.minimum.accumulate(known[::-1])[::-1]]
        mine, need = mine[need != ELSEWHERE], need[need != ELSEWHERE]
        start = batch.start_ns[mine]
        moment = production.last_before(start, np.where(need == NO_EVENT, NO_FETCH, self._fetches_until[need]))
        found["need"][mine] = need
        # A batch that was made cannot have waited for an operation that begins later.
        made = np.searchsorted(production.end_ns, start, side="right")
        found["floor"][mine] = np.where(need == NO_EVENT, np.append(self._fetches, len(loop.kind))[made], need)
        behind = moment > 0
        found["follows"][mine[behind]] = 2 * len(loop.kind) + moment[behind]


def _floor(loop: TrainingLoop, start: np.ndarray, need: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """`floor` of operations by themselves: an event that has ended cannot have waited for one that begins later, nor
    the event `inside` which it begins for one that it does not need."""
    floor = np.where(need == NO_EVENT, np.searchsorted(loop.end_ns, start, side="right"), need)
    return np.maximum(floor, np.where((inside != NO_EVENT) & (need == NO_EVENT), inside + 1, 0))


def _background_saves(loop: TrainingLoop) -> tuple[np.ndarray, ...]:
    """Begin and end of each save in the background of which both events are left, and the checkpoint events in which
    the training thread starts it and waits for it."""
    begin, end = loop.background_begin_ns, loop.background_end_ns
    starts, awaits = containing(loop, loop.checkpoints, begin), containing(loop, loop.checkpoints, end)
    found = (starts != NO_EVENT) & (awaits != NO_EVENT) & (starts != awaits)
    return begin[found], end[found], starts[found], awaits[found]


def _save_in_background(
    saves: tuple[np.ndarray, ...],
    batch: OperationBatch,
    others: np.ndarray,
    event: np.ndarray,
    need: np.ndarray,
    follows: np.ndarray,
) -> None:
    """Set `need` and `follows` of the operations of saves in the background: the call that starts a save lets them
    begin, and the wait for the save needs them. saves: of `_background_saves`. others: bool, operations that cannot be
    of a save. event: which checkpoint or evaluation each operation begins in."""
    begin_ns, end_ns, starts, awaits = saves
    if not len(begin_ns):
        return
    save = np.searchsorted(begin_ns, batch.start_ns, side="right") - 1
    mine = ~others & (save >= 0) & (batch.end_ns <= end_ns[save])
    mine &= (event == NO_EVENT) | (event == starts[save]) | (event == awaits[save])
    need[mine] = awaits[save[mine]]
    follows[mine] = 2 * starts[save[mine]]


def _same_file_next(batch: OperationBatch) -> np.ndarray:
    """bool (n,): the next operation of the lane is of the same file, or is not in this batch.

    An open that was rebuilt from counters may overlap its thread's other operations by microseconds, and then has a
    lane of its own: it prepares no read there, and the time since the lane's previous one is no think time.
    """
    order = np.argsort(batch.lane, kind="stable")
    lane, file_id = batch.lane[order], batch.file_id[order]
    found = np.ones(len(order), dtype=bool)
    found[order[:-1]] = (lane[:-1] != lane[1:]) | (file_id[:-1] == file_id[1:])
    return found
