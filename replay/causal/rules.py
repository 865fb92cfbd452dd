"""The rules that find what an operation waits for, and what waits for it: from the dependency columns of a capture, or
from the times of a recording. Each makes one pass over a rank's operations. Pure.

*Known*: an operation that has neither `feeds` nor `follows` belongs to the checkpoint that it begins in. One that ended
before the first step holds that step up, and one that began after the loop waits for its end. Where the capture says
its production (`replay.causal.production`), what has `feeds` and no `follows` waits for the last moment of it before.

*Inferred*: byte counts and times come first (`replay.causal.feed`). Then one of two rules replaces what it covers: how
a DataLoader dealt its batches to workers (`replay.causal.dealing`), or what the profile says of the production of the
batches (`replay.causal.production`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.replay.causal.columns import DEPENDENCY, NO_FETCH, NO_MOMENT, nth
from dxt_replay.replay.causal.feed import Batches, LoopReads, containing
from dxt_replay.replay.causal.production import ELSEWHERE, PREPARES_READ, Production
from dxt_replay.replay.causal.training_loop import FETCH, IS_OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, rows_by_lane
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.schema import READ

if TYPE_CHECKING:
    from dxt_replay.replay.causal.model import LoopModel

_NEVER = np.iinfo(np.int64).max


class ColumnsContradictError(CaptureError):
    """The columns `feeds` and `follows` contradict each other; the rest of the capture may be sound."""


def known_reads(loop: TrainingLoop, batches: Batches, files: int) -> tuple[LoopReads, Distribution]:
    """For a rank with known dependencies: the reads that feed batch fetches, and the times that batches took to become
    ready after their last operation, without batches that were ready at once. `files`: number of files."""
    found, ready = LoopReads(loop_files=np.zeros(files, dtype=bool)), DistributionCollector()
    for batch in batches():
        known = batch.known
        ready.add(known["ready_ns"][known["ready_ns"] > 0])
        found.add(loop, batch, (known["feeds"] >= 0) & (batch.op == READ))
    return found, ready.distribution()


class KnownReader:
    """Known dependencies of a rank's operations, batch after batch from the first one."""

    def __init__(self, loop: TrainingLoop, production: Production | None = None) -> None:
        self._loop, self._production = loop, production
        self._fetches = loop.fetches
        self._fetched = np.cumsum(loop.kind == FETCH)
        self._floor: dict[int, int] = {}
        self._moment: dict[int, int] = {}
        self._needed: dict[int, int] = {}
        self._background = _background_saves(loop)

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
        _save_in_background(self._background, batch, ~free | (start < loop.entry_ns), inside, need, follows)
        # An event that has ended cannot have waited for an operation that begins later.
        floor = np.where(need == NO_EVENT, np.searchsorted(loop.end_ns, start, side="right"), need)
        floor = np.maximum(floor, np.where((inside != NO_EVENT) & (need == NO_EVENT), inside + 1, 0))
        for lane, mine in rows_by_lane(batch.lane):
            floor[mine] = self._floors(lane, need[mine], floor[mine])
            self._check_order(lane, need[mine], follows[mine])
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

    def _check_order(self, lane: int, need: np.ndarray, moment: np.ndarray) -> None:
        """Raises: ColumnsContradictError if the lane would wait for a moment after an event that waits for the lane."""
        latest = np.maximum.accumulate(np.concatenate(([self._moment.get(lane, -1)], moment)))
        self._moment[lane] = int(latest[-1])
        wrong = (need != NO_EVENT) & (latest[1:] > 2 * need)
        if wrong.any():
            number = int(self._fetched[need[wrong][0]]) - 1
            raise ColumnsContradictError(
                f"an operation in lane {lane} feeds batch fetch {number} and waits for a later event: the columns "
                "feeds and follows contradict each other"
            )


class InferredReader:
    """Inferred dependencies of a rank's operations, batch after batch from the first one."""

    def __init__(self, model: LoopModel) -> None:
        loop = model.loop
        self._model, self._moments = model, model.moments
        self._bytes_before: dict[int, int] = {}
        self._fetches, self._blocking = loop.fetches, loop.blocking
        self._fetch_ends = loop.fetch_ends_ns
        # Number of openings up to the begin of each event, and of fetches before it.
        self._openings_until = 1 + np.cumsum(IS_OPENING[loop.kind])
        self._fetches_until = np.cumsum(loop.kind == FETCH) - (loop.kind == FETCH)
        self._made = dict.fromkeys(model.dealing.lanes, 0) if model.dealing is not None else {}
        self._background = _background_saves(loop)

    def dependencies(self, batch: OperationBatch) -> np.ndarray:
        """`DEPENDENCY` (n,) of these operations, which continue the earlier batches."""
        found = self._by_times(batch)
        if self._model.dealing is not None:
            self._deal(batch, found)
        if self._model.production is not None:
            self._produce(batch, found)
        return found

    def _by_times(self, batch: OperationBatch) -> np.ndarray:
        model, loop = self._model, self._model.loop
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
        own = (checkpoint != NO_EVENT) | (start >= loop.exit_ns) | model.synchronous
        found = np.zeros(len(start), dtype=DEPENDENCY)
        found["need"], found["behind"] = need, NO_EVENT
        found["follows"] = np.where(before, NO_MOMENT, self._last_moment(start, need, own))
        # An event cannot have waited for an operation that begins or ends after the event. An operation may end after
        # its event if its time is made up, as that of a rebuilt close.
        _save_in_background(self._background, batch, feeds | before, checkpoint, found["need"], found["follows"])
        need = found["need"]
        over = np.where((checkpoint != NO_EVENT) & (need == NO_EVENT), checkpoint + 1, 0)
        floor = np.where(need == NO_EVENT, np.searchsorted(loop.end_ns, start, side="right"), need)
        found["floor"] = np.maximum(floor, over)
        return found

    def _last_moment(self, start: np.ndarray, need: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The last opening (where the training thread's `own` operations wait) or batch fetch before each operation.

        An operation that begins exactly when the event that needs it ends does not wait for that event.
        """
        anyone = np.iinfo(np.int64).max
        opened = self._moments.opened(start, np.where(need == NO_EVENT, anyone, self._openings_until[need]))
        fetched = self._moments.fetched(start, np.where(need == NO_EVENT, anyone, self._fetches_until[need]))
        by_opening = nth(self._moments.openings, np.where(own, opened, np.minimum(opened, 1)) - 1)
        return np.where(own | (fetched == 0), by_opening, nth(self._moments.fetches, fetched - 1))

    def _fed(self, batch: OperationBatch, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch fetch (as an event) that each operation feeds, NO_EVENT beyond the last; and bool: it fed a fetch
        before the profile's first."""
        # An operation cannot feed a fetch that ended before it.
        earliest = np.searchsorted(self._fetch_ends, batch.end_ns, side="left")
        consumed = np.zeros(len(earliest), dtype=bool)
        if self._model.step_bytes:
            moved = np.where(reads, batch.length, 0)
            if self._model.turns:
                fed = self._in_turn(batch.lane, moved)
            else:
                batches = self._before(0, moved) / self._model.step_bytes
                fed = np.floor(batches - self._model.fetches_before).astype(np.int64)
            consumed = fed < 0
            earliest = np.maximum(earliest, fed)
        return nth(self._fetches, earliest), consumed

    def _in_turn(self, lane: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Number of the batch fetch that each operation feeds, for lanes that take turns with batches."""
        turns, fed = self._model.turns, np.zeros(len(lane), dtype=np.int64)
        for turn, reader in enumerate(turns):
            mine = lane == reader
            batches = np.floor(self._before(reader, moved[mine]) / self._model.step_bytes).astype(np.int64)
            fed[mine] = batches * len(turns) + turn - round(self._model.fetches_before)
        return fed

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
            made = np.searchsorted(deal.first, place, side="right") - 1
            need = deal.event[made]
            is_first, is_last = deal.first[made] == place, np.append(deal.first, -1)[made + 1] == place + 1
            found["need"][mine] = need
            # A batch that was never fetched delays no further event.
            found["floor"][mine] = np.where(need == NO_EVENT, np.maximum.accumulate(deal.event)[made] + 1, need)
            found["ready_ns"][mine] = np.where(is_last, deal.ready_ns[made], 0)
            found["behind"][mine] = np.where(is_first, deal.behind[made], NO_EVENT)
            found["behind_ns"][mine] = deal.behind_ns[made]
            found["follows"][mine] = self._let_begin(batch.start_ns[mine], deal.after_event[made], deal.is_early[made])

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
        need = _of_next_read(need, batch.lane[mine])
        mine, need = mine[need != ELSEWHERE], need[need != ELSEWHERE]
        start = batch.start_ns[mine]
        moment = production.last_before(start, np.where(need == NO_EVENT, NO_FETCH, self._fetches_until[need]))
        found["need"][mine] = need
        # A batch that was made cannot have waited for an operation that begins later.
        made = np.searchsorted(production.end_ns, start, side="right")
        found["floor"][mine] = np.where(need == NO_EVENT, np.append(self._fetches, len(loop.kind))[made], need)
        behind = moment > 0
        found["follows"][mine[behind]] = 2 * len(loop.kind) + moment[behind]


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


def _of_next_read(need: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """`need`, in which an operation ELSEWHERE has that of the next one of its lane."""
    found = need.copy()
    for _, mine in rows_by_lane(lane):
        known = np.where(need[mine] != ELSEWHERE, np.arange(len(mine)), len(mine))
        later = np.minimum.accumulate(known[::-1])[::-1]
        found[mine] = np.append(need[mine], ELSEWHERE)[later]
    return found
