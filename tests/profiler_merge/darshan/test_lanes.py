"""Lanes from overlap: the rule in words, what the theory of interval graphs says of them, and rows beside them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan._overlap_lanes import OverlapLanes
from dxt_replay.profiler_merge.darshan.lanes import lanes_from_overlap, lanes_where_clear, latest_on_lanes

WIDTHS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 30)), max_size=60)


def columns(ranks):
    """Start and end, int64, of the operations (start, width) of some ranks, by rank and start, and the rank of each."""
    found = [np.array(sorted(each), dtype=np.int64).reshape(-1, 2) for each in ranks]
    start, width = np.concatenate(found).T
    return start, start + width, np.repeat(np.arange(len(ranks)), [len(each) for each in found])


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
    start, end, _ = columns([operations])
    lanes, bounds = OverlapLanes(), [0, *sorted(cuts), len(start)]
    found = np.concatenate([lanes.following(start[a:b], end[a:b]) for a, b in pairwise(bounds)])
    assert found.tolist() == by_hand(start, end)
    assert found.dtype == np.int32


def test_hundreds_of_lanes_and_a_missing_end():
    start = np.arange(1_000)
    assert OverlapLanes().following(start, start + 1_000).tolist() == list(range(1_000))
    with pytest.raises(ValueError, match="an end is needed for each start"):
        OverlapLanes().following(np.arange(2), np.arange(3))


@given(st.lists(st.tuples(WIDTHS, WIDTHS), min_size=1, max_size=4), st.integers(0, 1 << 61), st.data())
def test_rows_beside_operations_never_overlap_on_a_lane(ranks, far, data):
    """A row has the lane that it wants, or one behind those of the operations. `far`: times so far apart that ranks
    cannot be told from each other by a shift in 64 bits."""
    start, end, rank = columns([operations for operations, _ in ranks])
    row_start, row_end, row_rank = columns([rows for _, rows in ranks])
    start, end, row_start, row_end = (
        each + np.where(of % 2, far, 0)
        for each, of in ((start, rank), (end, rank), (row_start, row_rank), (row_end, row_rank))
    )
    lane, used = lanes_from_overlap(start, end, rank), np.zeros(len(ranks), dtype=np.int32)
    np.maximum.at(used, rank, lane + np.int32(1))
    wanted = np.array([data.draw(st.integers(-1, int(used[of]) - 1)) for of in row_rank.tolist()], dtype=np.int32)
    having = np.flatnonzero(wanted >= 0)
    latest = latest_on_lanes((row_rank[having], wanted[having]), row_end[having], (rank, lane), start, end)
    found = lanes_where_clear(wanted, row_start, row_end, latest, used, row_rank)
    assert np.all((found == wanted) | (found >= used[row_rank]))
    for of in range(len(ranks)):
        assert lane[rank == of].tolist() == lanes_from_overlap(start[rank == of], end[rank == of]).tolist()
        for each in np.unique(found[row_rank == of]).tolist():
            mine, theirs = (row_rank == of) & (found == each), (rank == of) & (lane == each)
            both = sorted(
                [*zip(row_start[mine], row_end[mine], strict=True), *zip(start[theirs], end[theirs], strict=True)]
            )
            assert all(later[0] >= earlier[1] for earlier, later in pairwise(both))


@pytest.mark.parametrize(("row", "lane"), [((10, 20), 0), ((15, 25), 1), ((40, 50), 0), ((30, 30), 1), ((20, 20), 0)])
def test_a_row_takes_the_lane_that_it_wants_where_it_is_free(row, lane):
    """Beside an operation from 20 to 40."""
    zero, none = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int64)
    begin, end = np.array(row[:1]), np.array(row[1:])
    latest = latest_on_lanes((none, zero), end, (none, zero), np.array([20]), np.array([40]))
    assert lanes_where_clear(zero, begin, end, latest, np.array([1], dtype=np.int32), none).tolist() == [lane]
