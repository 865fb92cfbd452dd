"""The compute time of a step, and the preparation of a batch. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, EVALUATION, FETCH
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.workloads.fit.observation import RankReads

CONSTANT_SHARE = 1e-4
"""Relative difference from the median up to which times count as equal."""

MOST_CONSTANT = 0.5
"""Share of the times that must be equal for a constant time. It is below 1 because the first steps of epochs are
longer."""


def computation(by_rank: list[np.ndarray]) -> tuple[Any, str]:
    """A time per step from the times of each rank (ns), the first step left out: constant, or a mean and deviation."""
    kept = [times[1:] if len(times) > 2 else times for times in by_rank]
    seconds = np.concatenate(kept) / NS_PER_S
    if not seconds.any():
        return 0.0, "the steps show no time of their own"
    middle, steps = float(np.median(seconds)), f"{len(seconds)} steps, without the first of each rank"
    if (np.abs(seconds - middle) <= CONSTANT_SHARE * middle).mean() >= MOST_CONSTANT:
        return float(f"{middle:.5g}"), f"median of {steps}"
    value = {"mean": float(f"{seconds.mean():.5g}"), "stdev": float(f"{seconds.std():.5g}")}
    return value, f"mean and deviation of {steps}"


def compute_ns(rank: RankReads, *, waits_for_input: bool) -> np.ndarray:
    """float64 (training steps,): time that the training thread was busy in each step, ns.

    It is the step minus its batch fetches, checkpoints, evaluations and waits for other ranks in collectives. The own
    cost of each collective stays: DLIO's barrier costs nothing.
    `waits_for_input`: whether DLIO waits for the reads of a step. If so, only the part of a fetch after its batch was
    ready is busy time; else the whole fetch.
    """
    loop = rank.loop
    begin, end = loop.step_begin_ns, loop.step_end_ns
    until = np.append(np.minimum(begin[1:], end[:-1] + (end[:-1] - begin[:-1])), end[-1])
    kinds = [CHECKPOINT, EVALUATION, COLLECTIVE, *([FETCH] if waits_for_input else [])]
    events = np.union1d(np.flatnonzero(np.isin(loop.kind, kinds)), loop.fetches[~rank.is_training])
    away = Intervals.union_of(loop.begin_ns[events], loop.end_ns[events])
    busy = (until - begin - away.covered_within(begin, until)).astype(float)
    stays = [(loop.begin_ns[loop.kind == COLLECTIVE], rank.cost_ns)]
    if waits_for_input and not rank.synchronous:
        fetches = loop.fetches[rank.is_training]
        stays.append((loop.begin_ns[fetches], rank.model.residual_ns[fetches]))
    for begins, amount in stays:
        step = np.searchsorted(begin, begins, side="right") - 1
        np.add.at(busy, step[step >= 0], amount[step >= 0])
    return np.maximum(busy, 0)[rank.training_steps]


def preparation_ns(rank: RankReads, files: np.ndarray) -> float:
    """Nanoseconds that the reader of a batch needs in addition to its operations: the median over the training steps.

    If the training thread reads, the rest of the fetch; else the time between the reads of a batch, plus the time from
    the last read until the batch is ready. 0 if nothing is read.
    """
    reads, loop, model = rank.trained_on(files), rank.loop, rank.model
    if not len(reads):
        return 0.0
    numbers, place = np.unique(reads["fetch"], return_inverse=True)
    events = loop.fetches[numbers]
    reading = np.bincount(place, weights=reads["end_ns"] - reads["start_ns"]) + rank.other_ns[numbers]
    if rank.synchronous and model.dealing is None:
        return float(np.median(np.maximum(loop.end_ns[events] - loop.begin_ns[events] - reading, 0)))
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(first, place, reads["start_ns"])
    np.maximum.at(last, place, reads["end_ns"])
    between = np.maximum(last - first - reading, 0)
    if model.known is not None:
        return float(np.median(between)) + (model.known.median if model.known.count else 0.0)
    ready = model.ready_ns[events].astype(float)
    if model.dealing is not None:
        for deal in model.dealing.lanes.values():
            mine = np.isin(deal.event, events)
            ready[np.searchsorted(events, deal.event[mine])] = deal.ready_ns[mine]
    return float(np.median(between + ready))
