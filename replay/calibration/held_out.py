"""Checks a fitted model on reads that the fit left out: those that the cache cuts or reads ahead. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.simulation.closed_loop import read_times_ns
from dxt_replay.replay.simulation.storage_model import StorageModel

FAR_BYTES = 1 << 40
"""Size of the simulated file. For a read in its middle nothing was fetched ahead."""

MOST_READS = 1 << 14
"""Most reads of a simulated trial."""

CLEAR = 0.2
"""Least gain, in the mean absolute logarithm of simulated / measured time, for which large reads are cut."""

ALIKE = 0.05
"""Sizes whose mean absolute logarithm is within this of the best one are equally good; the smallest is taken."""


def with_largest_fetch(model: StorageModel, measured: Sequence[Measured]) -> StorageModel:
    """The model with the size into which the cache cuts large cold reads, if their times show one: a read that waits
    for each of its parts takes longer than one with all of them in flight."""
    cache = model.cache
    if cache is None or not cache.read_ahead:
        return model
    large = [each for each in _alone(measured, "cold") if each.size > cache.read_ahead]
    free = dataclasses.replace(model, limits=())  # cold reads were measured with pauses for a throttle

    def cut_at(size: int, model: StorageModel) -> StorageModel:
        return dataclasses.replace(model, cache=dataclasses.replace(cache, largest_fetch=size))

    def error(size: int) -> float:
        found = [_log_ratio(cut_at(size, free), each, np.array([FAR_BYTES // 2])) for each in large]
        return float(np.mean(np.abs(found))) if found else 0.0

    sizes = [cache.read_ahead << power for power in range(16)]
    errors = {size: error(size) for size in sizes if any(each.size > size for each in large)}
    if not errors or min(errors.values()) + CLEAR > error(0):
        return model
    return cut_at(next(size for size, found in errors.items() if found < min(errors.values()) + ALIKE), model)


def model_error(model: StorageModel, measured: Sequence[Measured]) -> float:
    """Relative error of the model for sequential cold reads, which were left out of the fit: the median over their
    sizes; 0 without any."""
    found = [
        abs(_log_ratio(model, each, each.size * np.arange(min(each.requests // each.time_ns.trials + 1, MOST_READS))))
        for each in _alone(measured, "sequential")
    ]
    return math.expm1(float(np.median(found))) if found else 0.0


def _alone(measured: Sequence[Measured], state: str) -> list[Measured]:
    return [each for each in measured if each.call == "read" and each.state == state and each.in_flight == 1]


def _log_ratio(model: StorageModel, one: Measured, offsets: np.ndarray) -> float:
    simulated = float(read_times_ns(model, offsets, one.size, FAR_BYTES).mean())
    return math.log(max(simulated, 1.0) / max(one.time_ns.value, 1.0))
