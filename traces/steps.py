"""The training step at a given time. Pure."""

from __future__ import annotations

import numpy as np

from dxt_replay.traces.schema import NO_STEP


def step_row_at(times: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int64 (n,): row of the step [begin, end) that holds each time, -1 for none; steps ascend and are disjoint."""
    if not len(begins):
        return np.full(len(times), -1, dtype=np.int64)
    row = np.searchsorted(begins, times, side="right") - 1
    inside: np.ndarray = (row >= 0) & (times < ends[np.maximum(row, 0)])
    return np.where(inside, row, -1)


def step_at(times: np.ndarray, begins: np.ndarray, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """int32 (n,): number of the step that holds each time, NO_STEP for none; steps are disjoint, in any order."""
    if not len(begins):
        return np.full(len(times), NO_STEP, dtype=np.int32)
    order = np.argsort(begins, kind="stable")
    row = step_row_at(times, begins[order], ends[order])
    return np.where(row >= 0, numbers[order][row], NO_STEP).astype(np.int32)
