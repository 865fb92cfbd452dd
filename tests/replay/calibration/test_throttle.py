"""Throttles are found in when requests ended: of bytes, of requests, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.calibration.throttle import Passed, passed, throttles

IN_FLIGHT, SIZES = 4, (4096, 32_768, 262_144, 2_097_152)
STEP_S = 0.1
"""A control group lets requests through in steps of this time."""


def pass_through(bytes_per_s: float = 1e15, per_s: float = 1e12, seconds: float = 2.0) -> list[Passed]:
    """How reads of each size pass two throttles, where the storage itself takes 20 us a read and 1 GB/s."""
    found = []
    for size in SIZES:
        count = np.arange(1, 20_000)
        steps = np.maximum(np.ceil(count * size / bytes_per_s / STEP_S), np.ceil(count / per_s / STEP_S)) - 1
        ended = np.maximum(steps * STEP_S, count * (20e-6 + size / 1e9))
        seen = passed(size, IN_FLIGHT, (ended[ended < seconds] * 1e9).astype(np.int64))
        assert seen is not None
        found.append(seen)
    return found


def test_storage_without_a_throttle_has_none() -> None:
    assert throttles(pass_through()) == ()


def test_a_throttle_of_bytes() -> None:
    (limit,) = throttles(pass_through(bytes_per_s=10e6))
    assert limit.per_s == pytest.approx(10e6, rel=0.03)
    assert limit.burst == pytest.approx(10e6 * STEP_S / 2, rel=0.3), "half a step, on the average"
    assert (limit.operations, limit.counts_requests) == (("read",), False)
    assert limit.step_ns == pytest.approx(STEP_S * 1e9, rel=0.03)


def test_a_throttle_without_steps_has_none() -> None:
    """What a token bucket lets through comes at even times."""
    count = np.arange(1, 20_000)
    ended = np.maximum((count * 4096 - 1e6) / 10e6, count * 20e-6)
    seen = passed(4096, IN_FLIGHT, (ended[ended < 2.0] * 1e9).astype(np.int64))
    assert seen is not None
    assert (seen.throttled, seen.step_s) == (True, 0.0)


def test_a_throttle_of_requests() -> None:
    (limit,) = throttles(pass_through(per_s=200))
    assert limit.counts_requests
    assert limit.per_s == pytest.approx(200, rel=0.03)
    assert limit.burst == pytest.approx(200 * STEP_S / 2, abs=3)
    assert limit.request_bytes == 0


def test_a_large_request_that_counts_for_several() -> None:
    found = pass_through(per_s=200)
    found[-1] = Passed(size=SIZES[-1], burst=0.0, per_s=100.0, throttled=False)
    (limit,) = throttles(found)
    assert limit.request_bytes == SIZES[-1] // 2


def test_both_throttles_at_once() -> None:
    limits = {limit.counts_requests: limit for limit in throttles(pass_through(bytes_per_s=50e6, per_s=1000))}
    assert limits[False].per_s == pytest.approx(50e6, rel=0.05)
    assert limits[True].per_s == pytest.approx(1000, rel=0.05)


def test_storage_that_becomes_slower_and_slower_is_not_throttled() -> None:
    ended = (np.linspace(0.01, 1.4, 2000) ** 2 * 1e9).astype(np.int64)
    found = passed(4096, IN_FLIGHT, ended)
    assert found is not None
    assert not found.throttled


def test_storage_that_begins_a_little_faster_is_not_throttled() -> None:
    quick, slow = np.arange(1, 800) / 800, 1.0 + np.arange(1, 640) / 640
    found = passed(4096, IN_FLIGHT, (np.concatenate([quick, slow]) * 1e9).astype(np.int64))
    assert found is not None
    assert not found.throttled


@pytest.mark.parametrize("ended", [[], [1, 2, 3], [5, 5, 5, 5]])
def test_too_few_requests_say_nothing(ended: list[int]) -> None:
    assert passed(4096, IN_FLIGHT, np.array(ended, dtype=np.int64)) is None
