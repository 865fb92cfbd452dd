"""Medians of repeated trials with intervals, and how trials of a probe become one figure. Pure."""

from __future__ import annotations

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
