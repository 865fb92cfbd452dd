"""The queues of the simulated storage against the closed formulas of queueing theory, for any arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.simulation.model import Limit, RequestTime, Servers
from tests.replay.simulation.storage_cases import KIB, MIB, ends, model, read, time_ns

ARRIVALS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=25).map(sorted)
"""Time, ns, and bytes of requests, each of a rank of its own."""


def found(storage, arrivals):
    """When each request ends, ns."""
    return [end for (end,) in ends(storage, *(read(length, due=due) for due, length in arrivals))[0]]


def through(arrivals, ns_per_byte=1):
    """When the bytes of each request are through a pipe: the latest of all begins of its busy period (Lindley)."""
    return [
        max(
            arrivals[begin][0] + ns_per_byte * sum(length for _, length in arrivals[begin : last + 1])
            for begin in range(last + 1)
        )
        for last in range(len(arrivals))
    ]


@given(arrivals=ARRIVALS, slots=st.integers(1, 4), service=st.integers(1, 800))
def test_a_server_with_slots_is_a_queue_of_the_kind_g_d_k(arrivals, slots, service) -> None:
    """With equal service times requests leave in order: each begins when the one `slots` before it has left."""
    truth: list[int] = []
    for number, (arrival, _) in enumerate(arrivals):
        truth.append(max(arrival, truth[number - slots] if number >= slots else 0) + service)
    storage = model(operations={"read": RequestTime.affine(service)}, servers=Servers(slots=slots))
    assert found(storage, arrivals) == truth


@given(arrivals=ARRIVALS, burst=st.integers(900, 5000))
def test_a_limit_with_a_burst_is_a_token_bucket(arrivals, burst) -> None:
    """It is through as much earlier than in a pipe as the burst takes there, but not before it comes."""
    storage = model(limits=(Limit(name="bucket", each="server", per_s=1e9, burst=burst),))
    truth = [max(arrival, end - burst) for (arrival, _), end in zip(arrivals, through(arrivals), strict=True)]
    assert found(storage, arrivals) == truth


@given(arrivals=ARRIVALS, latency=st.integers(0, 2000))
def test_the_slowest_pipe_of_a_row_decides(arrivals, latency) -> None:
    """The request begins when all pipes have served the earlier ones, and ends when its bytes are through all."""
    pipes = tuple(
        Limit(name=each, each=each, per_s=1e9 / ns) for each, ns in (("node", 1), ("system", 4), ("server", 2))
    )
    truth = [
        max(max(arrival, *(passed - ns * length for passed, ns in of)) + latency, *(passed for passed, _ in of))
        for (arrival, length), *of in zip(
            arrivals, *([(end, ns) for end in through(arrivals, ns)] for ns in (1, 2, 4)), strict=True
        )
    ]
    storage = model(operations={"read": RequestTime.affine(latency)}, limits=pipes)
    assert found(storage, arrivals) == truth


@given(arrivals=ARRIVALS, pieces=st.integers(1, 5))
def test_where_requests_count_each_takes_as_long_for_each_piece(arrivals, pieces) -> None:
    each = -(-900 // pieces)
    storage = model(
        limits=(Limit(name="iops", each="server", per_s=1e7, counts_requests=True, request_bytes=each),),
    )
    assert found(storage, arrivals) == through([(due, -(-length // each)) for due, length in arrivals], 100)


@given(
    counts=st.sets(st.integers(1, 8), min_size=1, max_size=3),
    sizes=st.sets(st.integers(0, MIB), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    share=st.floats(0, 1),
)
def test_times_are_linear_between_the_values_of_a_table(counts, sizes, seed, share) -> None:
    """Of requests that begin together the nth takes the time of n in flight, to the ns above."""
    times = np.random.default_rng(seed).integers(1, 10**6, (len(counts), len(sizes))).astype(float)
    table = RequestTime(in_flight=tuple(sorted(counts)), sizes=tuple(sorted(sizes)), time_ns=tuple(map(tuple, times)))
    size = max(1, round(min(sizes) + share * (max(sizes) - min(sizes))))
    truth = [time_ns(table, size, count) for count in range(1, max(counts) + 1)]
    ended = found(model(operations={"read": table}), [(0, size)] * max(counts))
    assert ended == pytest.approx(np.ceil(truth), abs=1)


def test_beyond_its_last_values_a_table_goes_on_but_does_not_fall() -> None:
    rising = RequestTime(in_flight=(1, 4), sizes=(1000, 2000), time_ns=((10.0, 20.0), (40.0, 80.0)))
    assert [found(model(operations={"read": rising}), [(0, size)]) for size in (1, 1000, 4000)] == [[10], [10], [40]]
    assert found(model(operations={"read": rising}), [(0, 2000)] * 7) == [20, 40, 60, 80, 100, 120, 140]
    falling = RequestTime(in_flight=(1, 2), sizes=(1, 10), time_ns=((20.0, 10.0), (5.0, 4.0)))
    assert found(model(operations={"read": falling}), [(0, KIB)]) == [10]
    assert found(model(operations={"read": falling}), [(0, 1)] * 3) == [20, 5, 5]
