"""The lanes of a capture as its causal model has them, with other durations of their operations, for tests."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.ranks import Steps, planned_lanes
from dxt_replay.replay.engine.items import OPERATION_ROW, is_operation
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.store.reader import Capture

Lanes = dict[Hashable, tuple[np.ndarray, np.ndarray]]


def lanes_that_last(
    capture: Capture, steps: Steps, lasts: Callable[[np.ndarray], np.ndarray], pacing: Pacing | None = None
) -> Lanes:
    """The lanes of all ranks, in which operations (`OPERATION_ROW`) last as `lasts` says, in ns."""
    return {
        name: (items, np.where(is_operation(items), lasts(items.view(OPERATION_ROW)), 0))
        for name, (items, _) in planned_lanes(capture, steps, pacing or Pacing(pace=Pace.STEPS)).items()
    }


def elapsed_ns(lanes: Lanes) -> int:
    """When the last lane ends."""
    return max(int(each.end_ns[-1]) for each in schedule(lanes).values() if len(each.end_ns))
