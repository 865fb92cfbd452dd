"""Finds figures that others contradict, so that a disturbed trial does not become part of a model. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dxt_replay.replay.calibration.estimates import Estimate, Measured

FACTOR = 2.0
"""A figure is in doubt if it exceeds its upper bound by this factor."""


def doubtful(measured: Sequence[Measured]) -> list[Measured]:
    """Figures that exceed an upper bound given by other figures.

    A request takes at most as long as a larger one. A cached read takes at most as long as a cold one, and as most
    cached reads of its size. Without a larger one, a request takes at most the time of the next smaller one times the
    ratio of their sizes. A figure is in doubt only if most of its requests were far quicker than its mean: a call that
    is always slow was not disturbed.
    """
    uneven = [each for each in measured if FACTOR * each.p50_ns < each.time_ns.value]
    return [each for each in uneven if each.time_ns.value > _bound(each, measured)]


def _bound(one: Measured, measured: Sequence[Measured]) -> float:
    alike = [each for each in measured if each.call == one.call and each.in_flight == one.in_flight]
    same = [each for each in alike if each.state == one.state]
    bounds = [each.time_ns.value for each in same if each.size > one.size]
    if one.state == "cached":
        bounds.append(FACTOR * one.p50_ns)  # memory has no slow requests of its own
        bounds += [each.time_ns.value for each in alike if each.state == "cold" and each.size == one.size]
    below = max((each for each in same if 0 < each.size < one.size), key=lambda each: each.size, default=None)
    if not bounds and below is not None:
        bounds.append(below.time_ns.value * one.size / below.size)
    return FACTOR * min(bounds, default=float("inf"))


def without_disturbance(one: Measured) -> Measured:
    """The figure with the median of its requests as its value, and an interval that includes it."""
    time = one.time_ns
    return dataclasses.replace(
        one, time_ns=Estimate(value=one.p50_ns, low=min(one.p50_ns, time.low), high=time.high, trials=time.trials)
    )
