"""What operations wait for where the profile shows the production of batches. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.causal.dependencies import MOMENTS, Dependencies, DependencyReader
from dxt_replay.replay.causal.production import ELSEWHERE, PREPARES_READ, Production, needs
from dxt_replay.replay.causal.training_loop import FETCH, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch
from dxt_replay.traces.schema import READ


class ProducedReader:
    """Dependencies of a rank's operations, batch after batch from the first one.

    other: what says the same of the operations that the production does not explain, such as checkpoints.
    """

    def __init__(
        self, loop: TrainingLoop, production: Production, loop_files: np.ndarray, other: DependencyReader
    ) -> None:
        self._loop, self._production, self._loop_files, self._other = loop, production, loop_files, other
        self._moments = production.moments_ns
        self._number = np.cumsum(loop.kind == FETCH) - 1
        self._next_event = np.append(loop.fetches, len(loop.kind))

    def dependencies(self, batch: OperationBatch) -> Dependencies:
        """Dependencies of these operations, which continue the earlier batches."""
        found = self._other.dependencies(batch)
        of_loop = self._loop_files[batch.file_id] & (batch.start_ns < self._loop.exit_ns)
        mine = np.flatnonzero(of_loop & ((batch.op == READ) | np.isin(batch.op, PREPARES_READ)))
        need = needs(self._production, self._loop, batch.start_ns[mine], batch.end_ns[mine])
        need[batch.op[mine] != READ] = ELSEWHERE
        need = _of_next_read(need, batch.lane[mine])
        mine, need = mine[need != ELSEWHERE], need[need != ELSEWHERE]
        moment = np.searchsorted(self._moments, batch.start_ns[mine], side="right")
        # No read waits for the end of its own batch.
        moment = np.where(need == NO_EVENT, moment, np.minimum(moment, 2 * self._number[need] + 1))
        columns = {field.name: getattr(found, field.name).copy() for field in dataclasses.fields(found)}
        columns["need"][mine] = need
        # A batch that was made cannot have waited for an operation that begins later.
        made = np.searchsorted(self._production.end_ns, batch.start_ns[mine], side="right")
        columns["floor"][mine] = np.where(need == NO_EVENT, self._next_event[made], need)
        columns["gate"][mine] = np.where(moment > 0, MOMENTS, columns["gate"][mine])
        columns["gate_count"][mine] = np.where(moment > 0, moment, columns["gate_count"][mine])
        columns["gate_ns"][mine] = np.where(
            moment > 0, self._moments[np.maximum(moment, 1) - 1], columns["gate_ns"][mine]
        )
        return Dependencies(**columns)


def _of_next_read(need: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """`need`, in which an operation ELSEWHERE has that of the next one of its lane."""
    found = need.copy()
    for each in np.unique(lane).tolist():
        mine = np.flatnonzero(lane == each)
        known = np.where(need[mine] != ELSEWHERE, np.arange(len(mine)), len(mine))
        later = np.minimum.accumulate(known[::-1])[::-1]
        found[mine] = np.append(need[mine], ELSEWHERE)[later]
    return found
