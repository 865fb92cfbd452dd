"""Medians of repeated trials with intervals, how trials of a probe become one figure, and which figures others
contradict, so that a disturbed trial does not become part of a model. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.95
"""Least probability with which an interval contains the median, given 6 trials or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median of some trials, with its interval. With fewer than 6 trials that is their whole range."""

    value: float
    low: float
    high: float
    trials: int

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Estimate:
        """From one value of each trial, at least one.

        The interval is that of order statistics: it assumes nothing about the distribution (David and Nagaraja, Order
        Statistics, 3rd ed., 7.1).
        """
        ranked = np.sort(np.asarray(values, dtype=float))
        outside = _outside(len(ranked))
        return cls(
            value=float(np.median(ranked)),
            low=float(ranked[outside]),
            high=float(ranked[-1 - outside]),
            trials=len(ranked),
        )

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the value; 0 where the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    def as_json(self, scale: float = 1.0) -> dict[str, Any]:
        """Value and interval, multiplied by `scale`."""
        return {"value": self.value * scale, "low": self.low * scale, "high": self.high * scale, "trials": self.trials}


def _outside(trials: int) -> int:
    """Number of ranked trials outside of the interval at each end."""
    outside, probability = -1, 0.0
    while probability <= (1 - LEVEL) / 2 and outside < trials:
        outside += 1
        probability += math.comb(trials, outside) * 0.5**trials
    return max(outside - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of all trials of one call of a probe.

    call: "read", "write", "open", "create", ... state: "cold", "cached", "sequential" or "" of a read.
    time_ns: mean time of a request in a trial. p50_ns to p99_ns: quantiles of all requests.
    bytes_per_s: of all lanes together, 0 where no bytes are moved.
    spread: times of all requests over the mean of their trial, ascending, at most 256 of them.
    between_trials: half of the range of 9 in 10 trials as a share of their median. A run meets conditions of its own,
        as a trial does: unlike the interval of the median, this does not shrink with the number of trials.
    """

    call: str
    state: str
    size: int
    in_flight: int
    requests: int
    time_ns: Estimate
    p50_ns: float
    p95_ns: float
    p99_ns: float
    spread: tuple[float, ...]
    between_trials: float = 0.0

    @classmethod
    def of(cls, call: str, state: str, size: int, in_flight: int, trials: Sequence[np.ndarray]) -> Measured:
        """From the times of the requests of each trial, int64 ns (n,), n at least 1."""
        every = np.concatenate(list(trials))
        p50, p95, p99 = np.quantile(every, (0.5, 0.95, 0.99))
        relative = np.concatenate([trial / max(trial.mean(), 1.0) for trial in trials])
        places = (np.arange(min(len(relative), 256)) + 0.5) / min(len(relative), 256)
        means = np.sort([float(trial.mean()) for trial in trials])
        outside = len(means) // 20
        between = (means[-1 - outside] - means[outside]) / 2 / max(float(np.median(means)), 1.0)
        return cls(
            call=call,
            state=state,
            size=size,
            in_flight=in_flight,
            requests=len(every),
            time_ns=Estimate.of(means),
            p50_ns=float(p50),
            p95_ns=float(p95),
            p99_ns=float(p99),
            spread=tuple(np.quantile(relative, places).tolist()),
            between_trials=float(between),
        )

    @property
    def bytes_per_s(self) -> float:
        """Of all lanes: in a closed loop, what is in flight over the time of a request (Little's law)."""
        return self.size * self.in_flight * 1e9 / self.time_ns.value if self.time_ns.value else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures for the file and for `--json`; times in us."""
        return {
            "call": self.call,
            "state": self.state,
            "size_bytes": self.size,
            "in_flight": self.in_flight,
            "requests": self.requests,
            "mean_us": self.time_ns.as_json(1e-3),
            "p50_us": self.p50_ns / 1e3,
            "p95_us": self.p95_ns / 1e3,
            "p99_us": self.p99_ns / 1e3,
            "mb_per_s": self.bytes_per_s / 1e6,
        }


DOUBT_FACTOR = 2.0
"""A figure is in doubt if it exceeds its upper bound by this factor."""


def doubtful(measured: Sequence[Measured]) -> list[Measured]:
    """Figures that exceed an upper bound given by other figures.

    A request takes at most as long as a larger one. A cached read takes at most as long as a cold one, and as most
    cached reads of its size. Without a larger one, a request takes at most the time of the next smaller one times the
    ratio of their sizes. A figure is in doubt only if most of its requests were far quicker than its mean: a call that
    is always slow was not disturbed.
    """
    uneven = [each for each in measured if DOUBT_FACTOR * each.p50_ns < each.time_ns.value]
    return [each for each in uneven if each.time_ns.value > _bound(each, measured)]


def _bound(one: Measured, measured: Sequence[Measured]) -> float:
    alike = [each for each in measured if each.call == one.call and each.in_flight == one.in_flight]
    same = [each for each in alike if each.state == one.state]
    bounds = [each.time_ns.value for each in same if each.size > one.size]
    if one.state == "cached":
        bounds.append(DOUBT_FACTOR * one.p50_ns)  # memory has no slow requests of its own
        bounds += [each.time_ns.value for each in alike if each.state == "cold" and each.size == one.size]
    below = max((each for each in same if 0 < each.size < one.size), key=lambda each: each.size, default=None)
    if not bounds and below is not None:
        bounds.append(below.time_ns.value * one.size / below.size)
    return DOUBT_FACTOR * min(bounds, default=float("inf"))


def at_most_p95(one: Measured) -> Measured:
    """The figure with at most `p95_ns` as its value: what 1 in 20 requests cost is not the storage's usual time, and
    the interval includes it."""
    time, most = one.time_ns, one.p95_ns
    low = min(time.low, most)
    return dataclasses.replace(one, time_ns=dataclasses.replace(time, value=min(time.value, most), low=low))


def without_disturbance(one: Measured) -> Measured:
    """The figure with the median of its requests as its value, and an interval that includes it."""
    time = one.time_ns
    return dataclasses.replace(
        one, time_ns=Estimate(value=one.p50_ns, low=min(one.p50_ns, time.low), high=time.high, trials=time.trials)
    )
