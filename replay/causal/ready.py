"""How long batches take to be made ready between their last read and the take, as far as a capture shows it. Pure."""

from __future__ import annotations

import numpy as np

from replay.causal.training_loop import TrainingLoop

MIN_STARVED_TAKES = 3
"""From so many takes that waited for their batch it is told what making one ready takes; one or two may have paid for
the pipeline's own start."""


def ready_times(loop: TrainingLoop, last_end: np.ndarray, between_ns: int) -> np.ndarray:
    """How long each take's batch took to become ready after its reads (p,).

    In general the shortest time between a batch's reads and its take, where takes had to wait for that. Where it is
    hidden, what the pipeline's last thread spent on a batch after its reads, else what readers spend between two
    batches (`between_ns`); but no more than that. What a take lasted beyond is its residual. No batch takes longer than
    the capture left it after its reads and after the batch before it.
    """
    takes = loop.takes
    ready_ns = np.zeros(len(loop.kind), dtype=np.int64)
    fed = takes[last_end[takes] > 0]
    if not len(fed):
        return ready_ns
    shortest = max(0, int((loop.end_ns[fed] - last_end[fed]).min()))
    if _waited(loop, fed, last_end):
        typical = shortest
    elif len(loop.made_end_ns):
        made = loop.made_end_ns - np.maximum(loop.made_begin_ns, last_end[takes])
        typical = min(max(0, int(np.median(made))), shortest)
    else:
        typical = min(between_ns, shortest)
    finished = 0
    for take, read, taken in zip(takes.tolist(), last_end[takes].tolist(), loop.end_ns[takes].tolist(), strict=True):
        begins = max(finished, read)
        ready_ns[take] = max(0, min(typical, taken - begins))
        finished = begins + int(ready_ns[take])
    return ready_ns


def _waited(loop: TrainingLoop, fed: np.ndarray, last_end: np.ndarray) -> bool:
    """Whether enough takes waited for their reads, or for their batch to be made ready.

    The latter end in a constant time after their reads, whenever they began; those that did not wait last a constant
    time, whenever their reads ended.
    """
    starved = (last_end[fed] > loop.begin_ns[fed]) & (last_end[fed] <= loop.end_ns[fed])
    if starved.sum() >= MIN_STARVED_TAKES:
        return True
    passed, lasted = loop.end_ns[fed] - last_end[fed], loop.end_ns[fed] - loop.begin_ns[fed]
    shortest = passed <= 1.1 * passed.min()
    return bool(shortest.sum() >= MIN_STARVED_TAKES and np.ptp(lasted[shortest]) > np.ptp(passed[shortest]))


def ready_at(last_end: np.ndarray, ready_ns: np.ndarray) -> np.ndarray:
    """When each batch was ready in the capture: one after the other."""
    finished, found = 0, []
    for read, ready in zip(last_end.tolist(), ready_ns.tolist(), strict=True):
        finished = max(finished, read) + ready
        found.append(finished)
    return np.array(found, dtype=np.int64)
