"""Reads dependencies from the columns `feeds`, `follows`, `follows_end` and `ready_ns` of a capture, and infers none.
Pure.

An operation that has neither `feeds` nor `follows` belongs to the checkpoint that it begins in. One that ended before
the first step holds that step up, and one that began after the loop waits for its end. Where the capture says its
production (`replay.causal.production`), what has `feeds` and no `follows` waits for the last moment of it before.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.causal.dependencies import DEPENDENCY, NO_MOMENT, nth
from dxt_replay.replay.causal.feed import Batches, LoopReads, containing
from dxt_replay.replay.causal.production import Production
from dxt_replay.replay.causal.training_loop import FETCH, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch, rows_by_lane
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.schema import READ

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
