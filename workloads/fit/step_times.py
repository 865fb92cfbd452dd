"""Estimates of the compute time of a step, the preparation of a sample, and DLIO's distribution that fits. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, EVALUATION, FETCH
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.workloads.fit.estimate import Estimate, estimate
from dxt_replay.workloads.fit.observation import RankReads

DRAWS = 20_000
"""Values drawn from each family for the comparison."""

CONSTANT_SHARE = 1e-4
"""Relative difference from the median up to which times count as equal."""

MOST_CONSTANT = 0.5
"""Share of the times that must be equal for a constant time. It is below 1 because the first steps of epochs are
longer."""

CLEARLY_BETTER = 0.02
"""Least improvement of the KS distance over the normal family for which another family is taken."""

NOTABLE = 0.05
"""Difference between the ranks, or trend over the steps, from which it is mentioned, as a share of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A distribution of DLIO: the value of its key, in seconds, and its KS distance to the times."""

    value: float | dict[str, object]
    ks: float

    @property
    def name(self) -> str:
        """Name of the family, as DLIO has it."""
        if not isinstance(self.value, dict):
            return "constant"
        return str(self.value.get("type", "normal"))


def fit_family(seconds: np.ndarray) -> Family:
    """The family of DLIO with the smallest Kolmogorov-Smirnov distance to the times. DLIO sleeps |draw|.

    Normal times need no `type` key. Candidates are constant, normal, uniform, gamma and exponential.
    """
    mean, deviation, middle = float(seconds.mean()), float(seconds.std()), float(np.median(seconds))
    if (np.abs(seconds - middle) <= CONSTANT_SHARE * middle).mean() >= MOST_CONSTANT:
        return Family(value=_rounded(middle), ks=0.0)
    seen = Distribution.of(seconds)
    rng = np.random.default_rng(1)
    shape = (mean / deviation) ** 2
    low, high = mean - math.sqrt(3) * deviation, mean + math.sqrt(3) * deviation
    candidates: list[tuple[dict[str, object], np.ndarray]] = [
        ({"mean": _rounded(mean), "stdev": _rounded(deviation)}, rng.normal(mean, deviation, DRAWS)),
        (
            {"type": "gamma", "shape": _rounded(shape), "scale": _rounded(mean / shape)},
            rng.gamma(shape, mean / shape, DRAWS),
        ),
        ({"type": "exponential", "scale": _rounded(mean)}, rng.exponential(mean, DRAWS)),
    ]
    if low >= 0:
        candidates.append(
            ({"type": "uniform", "min": _rounded(low), "max": _rounded(high)}, rng.uniform(low, high, DRAWS))
        )
    fitted = [Family(value=value, ks=seen.ks(Distribution.of(np.abs(drawn)))) for value, drawn in candidates]
    best = min(fitted, key=lambda family: family.ks)
    return best if best.ks < fitted[0].ks - CLEARLY_BETTER else fitted[0]


def compute_ns(rank: RankReads, cost_ns: np.ndarray, *, waits_for_input: bool) -> np.ndarray:
    """float64 (training steps,): time that the training thread was busy in each step, ns.

    It is the step minus its batch fetches, checkpoints, evaluations and waits for other ranks in collectives.
    `cost_ns`, the own cost of each collective, stays: DLIO's barrier costs nothing.
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
    collectives = np.flatnonzero(loop.kind == COLLECTIVE)
    _add_at_steps(busy, begin, loop.begin_ns[collectives], cost_ns)
    if waits_for_input and not rank.synchronous:
        fetches = loop.fetches[rank.is_training]
        _add_at_steps(busy, begin, loop.begin_ns[fetches], rank.model.residual_ns[fetches])
    return np.maximum(busy, 0)[rank.training_steps]


def _add_at_steps(busy: np.ndarray, step_begin_ns: np.ndarray, begin_ns: np.ndarray, amount: np.ndarray) -> None:
    """Add `amount` to the steps in which events begin; events before the first step are ignored."""
    step = np.searchsorted(step_begin_ns, begin_ns, side="right") - 1
    np.add.at(busy, step[step >= 0], amount[step >= 0])


def computation(key: str, by_rank: list[np.ndarray]) -> Estimate:
    """The estimate of a time per step from the times of each rank (ns), the first step left out."""
    kept = [times[1:] if len(times) > 2 else times for times in by_rank if len(times)]
    seconds = np.concatenate([np.empty(0), *kept]) / NS_PER_S
    if not seconds.any():
        return estimate(key, 0.0, "the steps show no time of their own")
    family = fit_family(seconds)
    notes = [f"KS distance {family.ks:.3g}"] if family.ks else []
    means = np.array([times.mean() for times in kept]) / NS_PER_S
    if len(means) > 1 and np.ptp(means) > NOTABLE * seconds.mean():
        notes.append(f"means of the ranks differ by {100 * np.ptp(means) / seconds.mean():.2g} %, DLIO has one law")
    trend = _trend(kept)
    if abs(trend) > NOTABLE:
        notes.append(f"{100 * trend:+.2g} % from the first to the last quarter of the steps, which DLIO cannot follow")
    measured = f"mean {seconds.mean():.4g} s" if family.ks else f"median {np.median(seconds):.4g} s"
    found = f"{family.name}, {measured} of {len(seconds)} steps without the first of each rank"
    return estimate(key, family.value, found, *notes)


def _trend(by_rank: list[np.ndarray]) -> float:
    """Relative difference of the median of the last quarter of the steps to that of the first."""
    first = np.concatenate([times[: max(len(times) // 4, 1)] for times in by_rank])
    last = np.concatenate([times[-max(len(times) // 4, 1) :] for times in by_rank])
    middle = float(np.median(first))
    return float(np.median(last)) / middle - 1 if middle else 0.0


def preparation_ns(rank: RankReads, files: np.ndarray) -> float:
    """Nanoseconds that the reader of a batch needs in addition to its operations: the median over the training steps.

    If the training thread reads, the rest of the fetch; else the time between the reads of a batch, plus the time from
    the last read until the batch is ready. 0 if nothing is read.
    """
    chosen = np.flatnonzero(rank.of_training & np.isin(rank.file_id, files))
    if not len(chosen):
        return 0.0
    fetch = rank.fetch[chosen]
    numbers, place = np.unique(fetch, return_inverse=True)
    reading = np.bincount(place, weights=(rank.end_ns - rank.start_ns)[chosen]) + rank.other_ns[numbers]
    loop = rank.loop
    events = loop.fetches[numbers]
    if rank.synchronous and rank.model.dealing is None:
        return float(np.median(np.maximum(loop.end_ns[events] - loop.begin_ns[events] - reading, 0)))
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    last = np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(first, place, rank.start_ns[chosen])
    np.maximum.at(last, place, rank.end_ns[chosen])
    between = np.maximum(last - first - reading, 0)
    if rank.model.known is not None:
        ready = rank.model.known
        return float(np.median(between)) + (ready.median if ready.count else 0.0)
    return float(np.median(between + _ready_ns(rank, numbers)))


def _ready_ns(rank: RankReads, numbers: np.ndarray) -> np.ndarray:
    """Time from the last read of each batch until it was ready, ns."""
    events = rank.loop.fetches[numbers]
    ready = rank.model.ready_ns[events].astype(float)
    if rank.model.dealing is not None:
        for deal in rank.model.dealing.lanes.values():
            mine = np.isin(deal.event, events)
            ready[np.searchsorted(events, deal.event[mine])] = deal.ready_ns[mine]
    return ready


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
