"""The search finds the known border of a made storage, with as few runs as it promises, and says what noise hides."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.capacity import Search, largest_that_passes


def search(utilisation, most, guess=1, limit_pct=90.0):
    """A finished search, and the ranks of its runs. `utilisation`: per cent, of the ranks and the run's number."""
    found, runs = Search(limit_pct=limit_pct, most=most, guess=guess), []
    while (ranks := found.next_ranks()) is not None:
        assert 1 <= ranks <= most
        found.put(ranks, utilisation(ranks, len(runs)))
        runs.append(ranks)
    return found, runs


@given(st.integers(1, 4096), st.integers(0, 5000), st.integers(-3, 5000))
def test_the_border_is_found_from_any_guess(most, capacity, guess):
    found, runs = search(lambda ranks, run: 95.0 if ranks <= capacity else 80.0, most, guess)
    carried = min(capacity, most)
    assert (found.sustained, found.interval) == (carried, (carried, carried))
    assert (found.failing is None) == (carried == most)
    assert largest_that_passes(most, lambda ranks: ranks <= capacity) == carried
    assert len(runs) <= math.ceil(math.log2(most + 1)) + 3
    if 0 < carried < most:
        assert (runs[-2:], runs.count(carried)) == ([carried + 1, carried], 2), "both sides twice, the higher first"


def test_a_machine_that_became_slower_widens_the_interval():
    """Four ranks pass at first, and fail once the machine has slowed down: the answer must not be a single number."""
    found, _ = search(lambda ranks, run: 95.0 - 2.0 * (ranks - 2) - (4.0 if run > 3 else 0.0), 8, 4, limit_pct=90.5)
    low, high = found.interval
    assert low <= 4 <= high != low
