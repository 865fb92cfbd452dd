"""Runs of things that are done at once: all of them, in order, as many as fit."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.few_together import few_together

SIZES = st.lists(st.integers(0, 12))


@given(sizes=SIZES, most=st.integers(0, 20))
def test_runs_are_as_long_as_they_may_be(sizes: list[int], most: int) -> None:
    runs = list(few_together(sizes, lambda size: size, most))
    assert [size for run in runs for size in run] == sizes
    assert all(run and (sum(run) <= most or len(run) == 1) for run in runs)
    assert all(sum(run) + after[0] > most for run, after in pairwise(runs))


@given(sizes=SIZES)
def test_what_does_not_fit_together_is_apart(sizes: list[int]) -> None:
    runs = list(few_together(sizes, lambda size: 0, 0, fit=lambda one, other: one <= other))
    assert [size for run in runs for size in run] == sizes
    assert all(run == sorted(run) for run in runs)
    assert all(run[-1] > after[0] for run, after in pairwise(runs))
