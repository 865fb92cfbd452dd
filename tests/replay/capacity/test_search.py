"""The search finds the known border of a made storage, with as few runs as it promises, and says what noise hides."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.capacity import MACHINE, STORAGE, LoadRun, Search, largest_that_passes, searched


def search(utilisation, most: int, guess: int = 1, limit_pct: float = 90.0) -> tuple[Search, int]:
    """A finished search, and how many runs it took. `utilisation`: per cent, of the ranks and the run's number."""
    found, runs = Search(limit_pct=limit_pct, most=most, guess=guess), 0
    while (ranks := found.next_ranks()) is not None:
        assert 1 <= ranks <= most
        found.put(ranks, utilisation(ranks, runs))
        runs += 1
    return found, runs


@given(st.integers(1, 4096), st.integers(0, 5000), st.integers(-3, 5000))
def test_the_border_is_found_from_any_guess(most: int, capacity: int, guess: int) -> None:
    found, runs = search(lambda ranks, run: 95.0 if ranks <= capacity else 80.0, most, guess)
    carried = min(capacity, most)
    assert found.sustained == carried
    assert found.interval == (carried, carried)
    assert (found.failing is None) == (carried == most)
    assert largest_that_passes(most, lambda ranks: ranks <= capacity) == carried
    assert runs <= math.ceil(math.log2(most + 1)) + 3


def test_both_sides_of_the_border_run_twice_and_the_higher_first() -> None:
    order = []
    search(lambda ranks, run: order.append(ranks) or (95.0 if ranks <= 5 else 80.0), 8)
    assert order[-2:] == [6, 5]
    assert order.count(5) == order.count(6) == 2


def test_a_machine_that_became_slower_widens_the_interval() -> None:
    """Four ranks pass at first, and fail once the machine has slowed down: the answer must not be a single number."""
    found, runs = search(lambda ranks, run: 95.0 - 2.0 * (ranks - 2) - (4.0 if run > 3 else 0.0), 8, 4, limit_pct=90.5)
    low, high = found.interval
    assert low < high
    assert low <= 4 <= high
    assert runs <= 4 + 3


@pytest.mark.parametrize(("processors_pct", "limit"), [(97.0, MACHINE), (40.0, STORAGE), (None, STORAGE)])
def test_the_client_is_the_limit_if_it_takes_the_machine(processors_pct: float | None, limit: str) -> None:
    """A replay that keeps its processors busy is the limit, not the storage."""

    class Measure:
        in_memory, free_pct = False, 99.0

        def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
            return LoadRun(
                ranks=ranks, utilisation_pct=50.0 if storage else 98.0, training_s=1.0, mib_s=1.0, latency_us=None,
                processors_pct=processors_pct if storage else 2.0, storage=storage,
            )  # fmt: skip

    measure: Any = Measure()
    assert searched(Search(limit_pct=90.0, most=1), measure, []) == limit
