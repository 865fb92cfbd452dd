"""What operations wait for, and what waits for them: the shape that all readers of dependencies share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch

NO_GATE, OPENINGS, FETCHES, MOMENTS = range(4)
"""What an operation waits for: nothing, an opening of the training thread, a batch fetch, or a moment of the production
(`replay.causal.production`)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dependencies:
    """What each of n operations waits for, and what waits for it; arrays (n,).

    need: the event that waits for the operation, NO_EVENT for none.
    floor: the first event that this operation or a later one can be needed by.
    gate: what the operation waits for: NO_GATE, OPENINGS, FETCHES or MOMENTS.
    gate_count: how many openings, batch fetches or moments.
    gate_ns: when the last of these happened in the capture.
    ready_ns: how long after the operation its batch is ready, where a worker made it and this was its last operation.
    """

    need: np.ndarray
    floor: np.ndarray
    gate: np.ndarray
    gate_count: np.ndarray
    gate_ns: np.ndarray
    ready_ns: np.ndarray


class DependencyReader(Protocol):
    """Dependencies of a rank's operations, batch after batch from the first one."""

    def dependencies(self, batch: OperationBatch) -> Dependencies:
        """Dependencies of these operations, which continue the earlier batches. Raises: CaptureError."""
        ...


def nth_event(events: np.ndarray, index: np.ndarray) -> np.ndarray:
    """events[index], NO_EVENT beyond the end."""
    if not len(events):
        return np.full(len(index), NO_EVENT, dtype=np.int64)
    return np.where(index < len(events), events[np.minimum(index, len(events) - 1)], NO_EVENT)
