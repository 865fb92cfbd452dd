"""Counters: what they stand at, and when they reached it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.wait_counters import COUNTER_STAMPS, COUNTER_WORDS, Counters

amounts = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2_000)), min_size=1, max_size=30)


@pytest.fixture
def counters() -> Counters:
    return Counters.of(3)


def test_a_counter_remembers_when_it_reached_its_latest_sums(counters: Counters) -> None:
    for number in range(1, 21):
        counters.add(1, 1, 1, 100 * number)
    known = [counters.reached_ns(1, least, 1) for least in range(21)]
    oldest = 20 - (COUNTER_STAMPS - 2)
    assert known == [0] + [100 * oldest] * (oldest - 1) + [100 * number for number in range(oldest, 21)]
    assert counters.cells[0].tolist() == counters.cells[2].tolist() == [0] * COUNTER_WORDS


@given(amounts=amounts, multiple=st.integers(1, 4))
def test_a_time_is_never_too_early_and_exact_while_it_is_kept(amounts: list[int], multiple: int) -> None:
    counters = Counters.of(1)
    for now, amount in enumerate(amounts, 1):
        counters.add(0, amount, multiple, now)
    sums = np.cumsum(amounts)
    last = int(sums[-1]) // multiple
    exact = [1 + int(np.searchsorted(sums, unit * multiple)) for unit in range(1, last + 1)]
    known = [counters.reached_ns(0, unit * multiple, multiple) for unit in range(1, last + 1)]
    oldest = max(1, last - (COUNTER_STAMPS - 2))
    assert known == [max(time, exact[oldest - 1]) for time in exact]


def test_of_those_who_meet_the_last_one_counts(counters: Counters) -> None:
    for now in (30, 10, 20):
        counters.add(0, 1, 3, now)
    assert counters.reached_ns(0, 3, 3) == 30
    counters.add(0, 1, 3, 40)  # one is at the next meeting already
    assert counters.reached_ns(0, 3, 3) == 30


def test_arrivals_told_together_may_belong_to_two_meetings(counters: Counters) -> None:
    counters.add(0, 2, 3, 10)
    counters.add(0, 2, 3, 50)
    assert counters.reached_ns(0, 3, 3) == 50
    counters.add(0, 2, 3, 70)
    assert counters.reached_ns(0, 6, 3) == 70


def test_counters_are_rows_of_one_array() -> None:
    with pytest.raises(ValueError, match=f"int64\\[n, {COUNTER_WORDS}\\]"):
        Counters(np.zeros(4, dtype=np.int64))
