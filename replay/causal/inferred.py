"""Infers dependencies from the times of a recording, in one pass over a rank's operations. Pure.

Byte counts and times come first (`replay.causal.feed`). Then one of two rules replaces what it covers: how a DataLoader
dealt its batches to workers (`replay.causal.dealing`), or what the profile says of the production of the batches
(`replay.causal.production`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.replay.causal.dependencies import DEPENDENCY, NO_FETCH, NO_MOMENT, nth
from dxt_replay.replay.causal.feed import containing
from dxt_replay.replay.causal.production import ELSEWHERE, PREPARES_READ
from dxt_replay.replay.causal.training_loop import FETCH, IS_OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, rows_by_lane
from dxt_replay.traces.schema import READ

if TYPE_CHECKING:
    from dxt_replay.replay.causal.model import LoopModel


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
        self._background = _BackgroundSaves.of(loop)

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
        self._save_in_background(batch, feeds | before, checkpoint, found)
        need = found["need"]
        over = np.where((checkpoint != NO_EVENT) & (need == NO_EVENT), checkpoint + 1, 0)
        floor = np.where(need == NO_EVENT, np.searchsorted(loop.end_ns, start, side="right"), need)
        found["floor"] = np.maximum(floor, over)
        return found

    def _save_in_background(
        self, batch: OperationBatch, others: np.ndarray, event: np.ndarray, found: np.ndarray
    ) -> None:
        """Set the dependencies of the operations of saves in the background: the call that starts a save lets them
        begin, and the wait for the save needs them. others: bool, operations that cannot be of a save. event: which
        checkpoint or evaluation each operation begins in."""
        saves = self._background
        if not len(saves.begin_ns):
            return
        save = np.searchsorted(saves.begin_ns, batch.start_ns, side="right") - 1
        mine = ~others & (save >= 0) & (batch.end_ns <= saves.end_ns[save])
        mine &= (event == NO_EVENT) | (event == saves.starts[save]) | (event == saves.awaits[save])
        found["need"][mine] = saves.awaits[save[mine]]
        found["follows"][mine] = 2 * saves.starts[save[mine]]

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BackgroundSaves:
    """Saves in the background, (saves,) each: begin_ns and end_ns of the loop, and the checkpoint events in which the
    training thread starts each of them and waits for it."""

    begin_ns: np.ndarray
    end_ns: np.ndarray
    starts: np.ndarray
    awaits: np.ndarray

    @classmethod
    def of(cls, loop: TrainingLoop) -> _BackgroundSaves:
        """Those of a loop of which both events are left."""
        begin, end = loop.background_begin_ns, loop.background_end_ns
        starts, awaits = containing(loop, loop.checkpoints, begin), containing(loop, loop.checkpoints, end)
        found = (starts != NO_EVENT) & (awaits != NO_EVENT) & (starts != awaits)
        return cls(begin_ns=begin[found], end_ns=end[found], starts=starts[found], awaits=awaits[found])


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
