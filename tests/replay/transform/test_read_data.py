from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.transform.read_data import CostFit, RequestCost


def fitted(length: list[int], duration_ns: list[int]) -> RequestCost:
    fit = CostFit()
    for size, lasted in zip(length, duration_ns, strict=True):  # in parts, as a stream comes
        fit.add(np.array([size]), np.array([lasted]))
    return fit.cost()


def test_a_line_is_found() -> None:
    cost = fitted([0, 1000, 5000, 9000], [700, 2700, 10700, 18700])
    assert (cost.latency_ns, cost.ns_per_byte) == pytest.approx((700, 2))
    assert cost.requests == 4


def test_neither_latency_nor_time_per_byte_is_negative() -> None:
    assert fitted([1, 1000], [5000, 1000]).ns_per_byte == 0.0
    assert fitted([1000, 2000], [100, 2000]).latency_ns == 0.0


def test_of_one_length_the_shortest_is_the_latency() -> None:
    cost = fitted([4096] * 3, [1000, 3000, 5000])
    assert cost.latency_ns == 1000
    assert cost.ns_per_byte * 4096 == 2000


def test_what_never_happened_costs_nothing() -> None:
    assert CostFit().cost() == RequestCost(latency_ns=0.0, ns_per_byte=0.0, requests=0)
