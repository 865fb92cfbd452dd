from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.measures import _passes
from dxt_replay.traces.measures._passes import (
    add_at,
    covered_before,
    in_flight,
    rates,
)

LENGTHS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=20)
"""A gap and the interval after it, repeatedly."""


def intervals(lengths: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    edges = np.cumsum(np.array(lengths, dtype=np.int64).ravel())
    return edges[::2], edges[1::2]


@given(LENGTHS, st.lists(st.integers(-5, 300), max_size=30))
def test_covered_before_any_times_in_any_order(lengths: list[tuple[int, int]], times: list[int]) -> None:
    starts, ends = intervals(lengths)
    inside = {time for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for time in range(start, end)}
    found = covered_before(starts, ends, np.array(times, dtype=np.int64))
    assert found.tolist() == [sum(each < time for each in inside) for time in times]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=30), st.integers(0, 29))
def test_in_flight_counts_the_intervals_that_hold_a_start(pairs: list[tuple[int, int]], earlier: int) -> None:
    pairs = sorted(pairs)
    earlier = min(earlier, len(pairs) - 1)
    starts = np.array([start for start, _ in pairs], dtype=np.int64)[earlier:]
    ends = np.array([start + length for start, length in pairs], dtype=np.int64)
    _, before = in_flight(np.zeros(0, dtype=np.int64), np.array([s for s, _ in pairs[:earlier]]), ends[:earlier])
    counts, open_ends = in_flight(before, starts, ends[earlier:])
    for place, start in enumerate(starts.tolist()):
        begun = pairs[: earlier + place + 1]
        assert counts[place] == sum(begin + length > start for begin, length in begun)
    assert sorted(open_ends.tolist()) == sorted(end for end in ends.tolist() if end > starts[-1])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1 << 56)), max_size=50), st.integers(61, 100_000))
def test_add_at_is_exact(pairs: list[tuple[int, int]], size: int) -> None:
    totals = np.zeros(size, dtype=np.int64)
    places = np.array([place for place, _ in pairs], dtype=np.int64)
    add_at(totals, places, np.array([amount for _, amount in pairs], dtype=np.int64))
    expected = [0] * 61
    for place, amount in pairs:
        expected[place] += amount
    assert totals[:61].tolist() == expected


@pytest.mark.parametrize("place", [-1, 3])
def test_no_place_outside_of_the_totals_is_written(place: int) -> None:
    with pytest.raises(IndexError):
        add_at(np.zeros(3, dtype=np.int64), np.array([place]), np.array([1]))


@pytest.mark.parametrize("name", ["joined", "covered_before", "newly_covered", "add_at"])
def test_columns_of_unequal_length_are_refused(name: str) -> None:
    short, long = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    arguments = {
        "joined": (long, short),
        "covered_before": (long, short, short),
        "newly_covered": (long, short, 0),
        "add_at": (long, long, short),
    }
    with pytest.raises(ValueError, match="equal length"):
        getattr(_passes, name)(*arguments[name])


def test_accesses_of_unknown_files_and_columns_of_unequal_length_are_refused() -> None:
    counts, order = np.zeros((2, 12), dtype=np.int64), np.zeros((4, _passes.ORDER_STATE), dtype=np.int64)
    one, two = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    for file in (-1, 2):
        with pytest.raises(IndexError, match=f"place {file} of 2"):
            _passes.count_accesses(counts, order, one, one + file, one, one, one, two)
        with pytest.raises(IndexError, match=f"place {file} of 2"):
            _passes.follow_last_bytes(np.zeros((4, 3), dtype=np.int64), one, one, one + file, one, one)
    for change in ({3: two}, {5: two}, {6: two}, {7: one}, {1: order[:2]}, {0: counts[:, :11].copy()}):
        given = dict(enumerate((counts, order, one, one, one, one, one, two))) | change
        with pytest.raises(ValueError, match="equal length"):
            _passes.count_accesses(*given.values())
    assert not counts.any()


def test_rates_are_of_rows_with_a_length_and_a_duration() -> None:
    found, unmeasured = rates(np.array([6, 0, 5, 7]), np.array([3, 1, 0, 2]), 10.0)
    assert (found.tolist(), unmeasured) == ([20.0, 35.0], 1)
