"""Simulates one reader of one file, to compare a storage model with measurements."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, run_lanes
from dxt_replay.replay.plan.plan_row import operation_rows
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.storage_model import StorageModel
from dxt_replay.traces.schema import OPS


def read_times_ns(model: StorageModel, offsets: np.ndarray, size: int, file_bytes: int) -> np.ndarray:
    """int64 (n,): how long each read of `size` bytes takes where it begins when the one before has ended, without
    jitter. offsets: int64 (n,)."""
    rows = operation_rows(
        op=np.full(len(offsets), OPS.index("read")),
        api=0,
        origin=0,
        slot=np.zeros(len(offsets), dtype=np.int64),
        file_id=np.zeros(len(offsets), dtype=np.int64),
        step=0,
        offset=offsets,
        length=size,
    )
    times = LaneTimes.room(len(rows))
    storage = SimulatedStorage(dataclasses.replace(model, jitter=None), ranks=1, file_bytes=np.array([file_bytes]))
    run_lanes([EventLane(items=rows, times=times)], storage)
    return np.diff(times.end_ns, prepend=0)
