"""Computes when each item of a causal plan begins and ends, from the durations of its operations. No clock. Pure.

With the recorded durations the result must equal the recorded times; this is the first evidence for a model. With
other durations it is a prediction.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, StuckLanesError, run_lanes
from dxt_replay.traces.errors import ReplayError


def schedule(lanes: Mapping[Hashable, tuple[np.ndarray, np.ndarray]]) -> dict[Hashable, LaneTimes]:
    """Compute when the items of each lane begin and end.

    lanes: for each lane its items (`PLAN_ROW`, paced as `think`), and the duration of each operation, int64 ns by item.

    Counters with the same number are one counter for all lanes.
    Raises: ReplayError when lanes wait for each other in a circle.
    """
    placed = {
        name: EventLane(items=items, durations_ns=durations, times=LaneTimes.room(len(items)))
        for name, (items, durations) in lanes.items()
    }
    try:
        run_lanes(list(placed.values()))
    except StuckLanesError as error:
        names = list(placed)
        stuck = ", ".join(str(names[number]) for number in error.lanes)
        raise ReplayError(f"lanes {stuck} wait for each other: the causal model contradicts itself") from error
    return {name: lane.times for name, lane in placed.items() if lane.times is not None}
