"""Estimates the time to make a batch ready between its last read and its fetch. Pure."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.causal.training_loop import TrainingLoop

MIN_STARVED_FETCHES = 3
"""How many fetches must have waited for their batch to show how long making one ready takes: the start of the pipeline
itself may have delayed one or two."""


def ready_times(loop: TrainingLoop, last_end: np.ndarray, between_ns: int) -> np.ndarray:
    """Time of each fetch's batch to become ready after its reads (p,).

    If fetches waited for it, this is the shortest time between a batch's reads and its fetch. Otherwise it is the time
    that the last thread of the pipeline spent on a batch after its reads, or that readers spend between two batches
    (`between_ns`), at most that shortest time. The rest of a fetch is its residual. No batch takes longer than from
    its reads, or from the batch before it, to its fetch in the capture.
    """
    fetches = loop.fetches
    ready_ns = np.zeros(len(loop.kind), dtype=np.int64)
    fed = fetches[last_end[fetches] > 0]
    if not len(fed):
        return ready_ns
    shortest = max(0, int((loop.end_ns[fed] - last_end[fed]).min()))
    if _waited(loop, fed, last_end):
        typical = shortest
    elif len(loop.made_end_ns):
        made = loop.made_end_ns - np.maximum(loop.made_begin_ns, last_end[fetches])
        typical = min(max(0, int(np.median(made))), shortest)
    else:
        typical = min(between_ns, shortest)
    finished = 0
    columns = (fetches, last_end[fetches], loop.end_ns[fetches])
    for fetch, read, fetched in zip(*(column.tolist() for column in columns), strict=True):
        begins = max(finished, read)
        ready_ns[fetch] = max(0, min(typical, fetched - begins))
        finished = begins + int(ready_ns[fetch])
    return ready_ns


def _waited(loop: TrainingLoop, fed: np.ndarray, last_end: np.ndarray) -> bool:
    """Whether enough fetches waited for their reads, or for their batch to be made ready.

    A fetch that waited ends a constant time after its reads, whenever it began. One that did not wait lasts a constant
    time, whenever its reads ended.
    """
    starved = (last_end[fed] > loop.begin_ns[fed]) & (last_end[fed] <= loop.end_ns[fed])
    if starved.sum() >= MIN_STARVED_FETCHES:
        return True
    passed, lasted = loop.end_ns[fed] - last_end[fed], loop.end_ns[fed] - loop.begin_ns[fed]
    shortest = passed <= 1.1 * passed.min()
    return bool(shortest.sum() >= MIN_STARVED_FETCHES and np.ptp(lasted[shortest]) > np.ptp(passed[shortest]))


def ready_at(last_end: np.ndarray, ready_ns: np.ndarray) -> np.ndarray:
    """Times at which the batches were ready in the capture, one after the other."""
    finished, found = 0, []
    for read, ready in zip(last_end.tolist(), ready_ns.tolist(), strict=True):
        finished = max(finished, read) + ready
        found.append(finished)
    return np.array(found, dtype=np.int64)
