from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.fidelity.curves import BIN_NS, CurveCollector, relative_difference_pct
from dxt_replay.traces.measures.operation_rows import OperationRows

OPERATION = st.tuples(st.integers(0, 5 * BIN_NS), st.integers(0, 3 * BIN_NS), st.integers(0, 10_000))


def collected(
    operations: list[tuple[int, int, int]], batch: int = 100, origin_ns: int = 0, **choices: int
) -> CurveCollector:
    collector = CurveCollector(origin_ns, **choices)
    for begin in range(0, len(operations), batch):
        start, duration, length = np.array(operations[begin : begin + batch], dtype=np.int64).T
        zeros = np.zeros(len(start), dtype=np.int64)
        collector.add(
            OperationRows(
                rank=0,
                start_ns=start + origin_ns,
                end_ns=start + duration + origin_ns,
                length=length,
                **dict.fromkeys(("op", "api", "file_id", "offset", "origin"), zeros),
            )
        )
    return collector


@given(st.lists(OPERATION, max_size=15), st.integers(1, 6), st.integers(-BIN_NS, BIN_NS))
def test_curves_are_the_overlap_of_each_operation_with_each_bin(
    operations: list[tuple[int, int, int]], batch: int, origin: int
) -> None:
    found = collected(operations, batch, origin)
    bins = len(found.in_flight())
    in_flight, moved = np.zeros(bins), np.zeros(bins)
    for start, duration, length in operations:
        for place in range(bins):
            inside = max(0, min(start + duration, (place + 1) * BIN_NS) - max(start, place * BIN_NS))
            in_flight[place] += inside / BIN_NS
            if duration:
                moved[place] += length * inside / duration
        if not duration:
            moved[start // BIN_NS] += length
    np.testing.assert_allclose(found.in_flight(), in_flight, atol=1e-6)
    np.testing.assert_allclose(found.bytes_per_bin(), moved, atol=1e-3)
    assert found.bytes_per_bin().sum() == pytest.approx(sum(length for *_, length in operations), abs=1e-3)


def test_a_time_far_away_costs_no_memory() -> None:
    found = collected([(0, BIN_NS, 10), (2**62, 0, 5)], max_bins=8)
    assert len(found.bytes_per_bin()) == 8
    assert found.bytes_per_bin().sum() == pytest.approx(15)


def test_difference_of_curves_in_per_cent_of_the_source() -> None:
    assert relative_difference_pct(np.array([2.0, 2.0]), np.array([2.0, 2.0])) == 0
    assert relative_difference_pct(np.array([4.0]), np.array([3.0, 2.0])) == pytest.approx(75)
    assert relative_difference_pct(np.array([0.0]), np.array([3.0])) is None
    assert relative_difference_pct(np.empty(0), np.empty(0)) is None
