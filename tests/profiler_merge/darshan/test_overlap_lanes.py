"""Lanes from overlap: the rule in words, and what the theory of interval graphs says of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan._overlap_lanes import OverlapLanes

WIDTHS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 30)), max_size=60)


def sorted_by_start(operations):
    """Start and end, int64, of operations (start, width)."""
    start, width = np.array(sorted(operations), dtype=np.int64).reshape(-1, 2).T
    return start, start + width


def by_hand(start, end):
    """The lanes as the contract words them, an operation at a time."""
    free_since: list[int] = []
    found = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        if all(ended <= begin for ended in free_since):
            free_since = []
        free = [(-ended, lane) for lane, ended in enumerate(free_since) if ended <= begin]
        if free:
            lane = min(free)[1]
            free_since[lane] = finish
        else:
            lane = len(free_since)
            free_since.append(finish)
        found.append(lane)
    return found


@given(operations=WIDTHS, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_lanes_are_those_of_the_contract_however_the_operations_are_cut(operations, cuts):
    start, end = sorted_by_start(operations)
    lanes, bounds = OverlapLanes(), [0, *sorted(cuts), len(start)]
    found = [lanes.following(start[a:b], end[a:b]) for a, b in pairwise(bounds)]
    assert np.concatenate(found).tolist() == by_hand(start, end)
    assert all(part.dtype == np.int32 for part in found)


@given(operations=WIDTHS)
def test_there_are_as_many_lanes_as_operations_in_flight_at_once(operations):
    """An interval graph is perfect: its chromatic number is the size of its largest clique."""
    start, end = sorted_by_start([(begin, width + 1) for begin, width in operations])
    lanes = OverlapLanes().following(start, end)
    in_flight = [int(((start <= moment) & (moment < end)).sum()) for moment in start.tolist()]
    assert lanes.max(initial=-1) + 1 == max(in_flight, default=0)
    for lane in np.unique(lanes):
        assert (start[lanes == lane][1:] >= end[lanes == lane][:-1]).all()


def test_hundreds_of_lanes_are_in_flight_at_once():
    start = np.arange(1_000)
    assert OverlapLanes().following(start, start + 1_000).tolist() == list(range(1_000))


def test_each_start_needs_an_end():
    with pytest.raises(ValueError, match="an end is needed for each start"):
        OverlapLanes().following(np.arange(2), np.arange(3))
