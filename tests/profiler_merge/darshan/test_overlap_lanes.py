from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan._overlap_lanes import CompiledOverlap
from dxt_replay.profiler_merge.darshan.overlap_lanes import PythonOverlap, overlap_lanes

OPERATIONS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 30)), max_size=60)


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


@pytest.mark.parametrize("core", [PythonOverlap, CompiledOverlap])
@given(operations=OPERATIONS, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_lanes_are_those_of_the_contract_however_the_operations_are_cut(core, operations, cuts):
    operations = sorted((begin, -width) for begin, width in operations)
    start = np.array([begin for begin, _ in operations], dtype=np.int64)
    end = start + np.array([-width for _, width in operations], dtype=np.int64)
    lanes, bounds = core(), [0, *sorted(cuts), len(start)]
    found = [lanes.following(start[a:b], end[a:b]) for a, b in pairwise(bounds)]
    assert np.concatenate(found).tolist() == by_hand(start, end)
    assert all(part.dtype == np.int32 for part in found)


@pytest.mark.parametrize("core", [PythonOverlap, CompiledOverlap])
def test_hundreds_of_lanes_are_in_flight_at_once(core):
    start = np.arange(1_000)
    assert core().following(start, start + 1_000).tolist() == list(range(1_000))


def test_the_compiled_core_is_taken_where_it_is_there():
    assert type(overlap_lanes()) is CompiledOverlap
