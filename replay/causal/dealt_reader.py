"""What the operations of a DataLoader's workers wait for, by how their batches were dealt. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.causal.dealing import Dealing
from dxt_replay.replay.causal.dependencies import FETCHES, NO_GATE, OPENINGS, Dependencies
from dxt_replay.replay.causal.training_loop import FETCH, OPENING, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch


class DealtReader:
    """Dependencies of the operations of DataLoader workers, batch after batch from the first one."""

    def __init__(self, loop: TrainingLoop, dealing: Dealing) -> None:
        self._loop = loop
        self._lanes = dealing.lanes
        self._openings, self._fetch_ends = loop.openings_ns, loop.fetch_ends_ns
        self._openings_until = 1 + np.cumsum(np.isin(loop.kind, OPENING))
        self._fetch_number = np.cumsum(loop.kind == FETCH)
        self._done = dict.fromkeys(dealing.lanes, 0)

    def dependencies(self, batch: OperationBatch, plain: Dependencies) -> Dependencies:
        """`plain`, with those of the workers' operations in place of what it has of them."""
        columns = {field.name: getattr(plain, field.name).copy() for field in dataclasses.fields(plain)}
        for lane, deal in self._lanes.items():
            mine = np.flatnonzero(batch.lane == lane)
            if not len(mine):
                continue
            place = self._done[lane] + np.arange(len(mine))
            self._done[lane] += len(mine)
            made = np.searchsorted(deal.first, place, side="right") - 1
            need, after = deal.event[made], deal.after_event[made]
            columns["need"][mine] = need
            # A batch that nobody fetched holds nothing up that the batches before it did not.
            columns["floor"][mine] = np.where(need == NO_EVENT, np.maximum.accumulate(deal.event)[made] + 1, need)
            columns["ready_ns"][mine] = np.where(
                np.append(deal.first, -1)[made + 1] == place + 1, deal.ready_ns[made], 0
            )
            gate, count, gate_ns = self._gates(batch.start_ns[mine], after, deal.is_early[made])
            columns["gate"][mine], columns["gate_count"][mine], columns["gate_ns"][mine] = gate, count, gate_ns
        return Dependencies(**columns)

    def _gates(self, start: np.ndarray, after: np.ndarray, early: np.ndarray) -> tuple[np.ndarray, ...]:
        """What operations of a worker wait for: the fetch `after`, or with `early`, whose batch may begin with its
        pass, what the training thread did last before they began, up to the first fetch `after` of the pass."""
        opened = np.minimum(np.searchsorted(self._openings, start, side="right"), self._openings_until[after])
        fetched = np.minimum(np.searchsorted(self._fetch_ends, start, side="right"), self._fetch_number[after] - 1)
        opened_ns, fetched_ns = self._openings[opened - 1], self._fetch_ends[fetched - 1]
        by_opening = early & ((fetched == 0) | (opened_ns >= fetched_ns))
        gate = np.where(by_opening, OPENINGS, FETCHES).astype(np.int8)
        count = np.where(by_opening, opened, np.where(early, fetched, self._fetch_number[after]))
        gate_ns = np.where(by_opening, opened_ns, np.where(early, fetched_ns, self._loop.end_ns[after]))
        unheld = early & ((start < self._loop.entry_ns) | (count == 0))
        gate[unheld], count[unheld], gate_ns[unheld] = NO_GATE, 0, np.iinfo(np.int64).min
        return gate, count, gate_ns
