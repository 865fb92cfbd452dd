"""Finds a throttle: storage that serves some requests at once and then a rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.simulation.model import Limit

LEAST_BURST_S = 0.02
"""Least burst of a throttle, as its time at the rate that follows, s. A smaller burst is a queue."""

SAME = 1.3
"""Rates of two sizes that differ by less than this factor count as equal."""

STEADY = 1.15
"""Largest factor between the rates in two parts of a trial. Storage that slows down further has no throttle."""

LEAST_STEPS = 3
"""Least number of steps by which a throttle in steps is known."""

EVEN = 0.7
"""Least share of these steps within 20 % of the typical one."""

SAMPLES = 128
"""Number of times, in each part of a trial, at which the completed requests are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The course of reads of one size after a pause: `burst` requests at once, then `per_s` requests a second.

    throttled: False if the burst is only a queue.
    step_s: time of the steps in which the rate is granted, as a control group does it; 0 where none were seen.
    """

    size: int
    burst: float
    per_s: float
    throttled: bool
    step_s: float = 0.0


def passed(size: int, in_flight: int, end_ns: np.ndarray) -> Passed | None:
    """The course of a closed loop, from the ends of its requests: ascending int64 ns from its start. None for fewer
    than 4.

    A line through the second half of the time gives the rate. Its value at the start is the burst. A throttle that
    grants its rate in steps, as a control group does every 100 ms, has a burst of half a step.
    """
    if len(end_ns) < 4 or end_ns[0] >= end_ns[-1]:
        return None
    ended = end_ns / 1e9
    per_s, burst = _line(ended, 0.5, 1.0)
    rates = [_line(ended, 0.4 + 0.3 * part, 0.7 + 0.3 * part)[0] for part in range(2)]
    early = ended[ended < ended[-1] / 2]
    ahead = np.arange(1, len(early) + 1) - per_s * early
    ahead = ahead[ahead >= per_s * early]  # requests that came at twice the later rate or faster
    at_once = float(np.max(ahead, initial=0.0))
    steady = min(rates) > 0 and max(rates) < STEADY * min(rates)
    throttled = steady and at_once > in_flight + 2 and at_once > LEAST_BURST_S * per_s
    step_s = _step_s(ended, in_flight) if throttled else 0.0
    return Passed(size=size, burst=max(burst, 0.0), per_s=per_s, throttled=bool(throttled), step_s=step_s)


def _step_s(ended: np.ndarray, in_flight: int) -> float:
    """The time from one rush of requests to the next, where they come at even times; else 0.

    A rush begins after a pause that is at least half of the longest one.
    """
    pauses = np.diff(ended)
    begins = ended[1:][pauses > pauses.max() / 2]
    between = np.diff(begins)
    rushes = len(between) >= LEAST_STEPS and len(ended) > 2 * in_flight * len(begins)
    typical = float(np.median(between)) if rushes else 0.0
    return typical if rushes and np.mean(np.abs(between - typical) < 0.2 * typical) > EVEN else 0.0


def _line(ended: np.ndarray, begin: float, until: float) -> tuple[float, float]:
    """Slope (per s) and intercept of the count of requests between two shares of the time. It is sampled at even
    times, because the ends of the requests themselves would give the quick ones of each step more weight."""
    times = np.linspace(begin * ended[-1], until * ended[-1], SAMPLES)
    slope, intercept = np.polyfit(times, np.searchsorted(ended, times, side="right"), 1)
    return float(slope), float(intercept)


def throttles(found: Sequence[Passed]) -> tuple[Limit, ...]:
    """The limits of reads: of bytes, of requests, or of both; none if no size was throttled.

    A rate in bytes or in requests that at least two sizes have in common is a limit. A throttled size with another
    rate has the other limit.
    """
    seen = {each.size for each in found if each.throttled}
    if not seen:
        return ()
    by_bytes = _group(found, [each.per_s * each.size for each in found])
    by_requests = _group(found, [each.per_s for each in found])
    if len(by_bytes) >= len(by_requests):
        left = [each for each in found if each.size in seen and each not in by_bytes and each.size < by_bytes[0].size]
        by_requests = left
    else:
        left = [each for each in found if each.size in seen and each not in by_requests]
        by_bytes = [each for each in left if each.size > by_requests[-1].size]
    return (*_bandwidth(by_bytes), *_request_rate(by_requests, found, by_bytes))


def _group(found: Sequence[Passed], rates: Sequence[float]) -> list[Passed]:
    """Sizes whose rate is within the factor SAME of the highest."""
    highest = max(rates)
    return [each for each, rate in zip(found, rates, strict=True) if rate * SAME >= highest]


def _bandwidth(group: Sequence[Passed]) -> list[Limit]:
    if not group:
        return []
    per_s = float(np.median([each.per_s * each.size for each in group]))
    burst = max((each.burst * each.size for each in group if each.throttled), default=0.0)
    return [
        Limit(
            name="throttle of bytes",
            each="server",
            operations=("read",),
            per_s=per_s,
            burst=round(burst),
            step_ns=_step_ns(group),
        )
    ]


def _step_ns(group: Sequence[Passed]) -> float:
    """Step of the smallest requests. Of larger ones too few pass in a step."""
    return round(1e9 * next((each.step_s for each in group if each.step_s), 0.0))


def _request_rate(group: Sequence[Passed], found: Sequence[Passed], by_bytes: Sequence[Passed]) -> list[Limit]:
    if not group:
        return []
    per_s = float(np.median([each.per_s for each in group]))
    burst = max((each.burst for each in group if each.throttled), default=0.0)
    # Without a limit of bytes, a large request that passes at a part of the rate counts as several.
    largest = found[-1]
    counts = 1 if by_bytes else round(per_s / largest.per_s)
    return [
        Limit(
            name="throttle of requests",
            each="server",
            operations=("read",),
            per_s=per_s,
            counts_requests=True,
            burst=round(burst),
            request_bytes=largest.size // counts if counts > 1 else 0,
            step_ns=_step_ns(group),
        )
    ]
