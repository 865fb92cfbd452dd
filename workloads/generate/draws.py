"""Draws times from the distributions of a description: compute, evaluation, preprocessing.

DLIO draws from NumPy's process-wide generator (`utils/utility.py`, sleep, at commit e1919d7) and sleeps for the
absolute value. A shuffle seeds that generator on all ranks alike at the start of each epoch, so that all ranks then
compute for the same times; without a shuffle it is not seeded. PyTorch seeds NumPy in each worker from a constant,
alike on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.times import Distribution

MOST_SHUFFLED = 1 << 24
"""Longest array whose shuffle is repeated to reach DLIO's own state; after a longer one the draws differ from
DLIO's."""

_STEPS, _EVALUATION, _PREPROCESSING = range(3)
_MOST_NS = float(1 << 62)

_Draw = Callable[..., np.ndarray]


def compute_times_ns(
    workload: Workload,
    rank: int,
    epoch: int,
    count: int,
    *,
    seed: int,
    burn_in: Sequence[int] = (),
    trained: int | None = None,
) -> np.ndarray:
    """int64[count]: compute times of the steps of an epoch (counted from 1) on a rank. A longer draw begins with the
    same values.

    `trained`: None for training steps; for those of an evaluation, the training steps of the epoch, drawn before.
    `seed` is for draws that DLIO leaves to chance. `burn_in`: lengths of the arrays that DLIO shuffled since it seeded
    NumPy in this epoch. With them, the readings head and v2.0 reproduce DLIO's times exactly.
    """
    training, evaluation = workload.train.computation_time, workload.evaluation.eval_time
    times, which = (training, _STEPS) if trained is None else (evaluation, _EVALUATION)
    if not _is_seeded(workload):
        return _nanoseconds(times, np.random.default_rng([seed, which, epoch, rank]), count)
    state = _state_of_epoch(workload, epoch, tuple(burn_in))
    _nanoseconds(training, state, trained or 0)
    return _nanoseconds(times, state, count)


def preprocess_times_ns(workload: Workload, rank: int, reader: int, count: int, *, seed: int) -> np.ndarray:
    """int64[count]: preprocessing times of the samples that a reader of a rank fetches, in its order.

    Under head and v2.0, PyTorch's readers of one number draw alike on all ranks.
    """
    alike = workload.reading != "documented" and workload.reader.data_loader == "pytorch"
    generator = np.random.default_rng([seed, _PREPROCESSING, reader, 0 if alike else 1 + rank])
    return _nanoseconds(workload.reader.preprocess_time, generator, count)


def _is_seeded(workload: Workload) -> bool:
    """Whether DLIO seeds NumPy in each epoch: the readings of its code do, if a shuffle is on."""
    shuffles = [workload.reader.sample_shuffle]
    if workload.reading != "v3.0":  # there, a shuffle of files leaves each rank in another state
        shuffles.append(workload.reader.file_shuffle)
    return workload.reading != "documented" and any(shuffle != "off" for shuffle in shuffles)


def _state_of_epoch(workload: Workload, epoch: int, shuffled: tuple[int, ...]) -> np.random.RandomState:
    train = workload.train
    state = np.random.RandomState()
    state.set_state(_shuffled_state((train.seed + epoch * train.seed_change_epoch) % (1 << 32), shuffled))
    return state


@lru_cache(maxsize=16)
def _shuffled_state(seed: int, shuffled: tuple[int, ...]) -> Any:
    """State of the legacy generator after shuffles of arrays of these lengths: only the length matters."""
    state = np.random.RandomState(seed)
    for length in shuffled:
        if length <= MOST_SHUFFLED:
            state.shuffle(np.arange(length))
    return state.get_state()


def _nanoseconds(times: Distribution, generator: np.random.Generator | np.random.RandomState, count: int) -> np.ndarray:
    if times.family == "constant":
        seconds = np.full(count, times.parameters[0])
    else:
        draw: _Draw = getattr(generator, times.family)
        seconds = draw(*times.parameters, count)
    drawn: np.ndarray = np.rint(np.minimum(np.abs(seconds) * 1e9, _MOST_NS)).astype(np.int64)
    return drawn
