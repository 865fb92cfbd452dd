from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.lanes import (
    lanes_from_overlap,
    lanes_where_clear,
    latest_on_lanes,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=60)


def columns(intervals):
    ordered = sorted(intervals)
    start = np.array([begin for begin, _ in ordered], dtype=np.int64)
    return start, start + np.array([length for _, length in ordered], dtype=np.int64)


def greatest_overlap(start, end):
    """Most operations in flight at once, an operation counted in [start, end) and never for less than an instant."""
    return max((int(np.sum((start <= t) & (end > t))) for t in start), default=0)


def test_serial_operations_stay_on_one_lane():
    start = np.arange(0, 1000, 10)
    assert not lanes_from_overlap(start, start + 10).any()


def test_two_interleaved_readers_get_two_lanes():
    start = np.array([0, 5, 10, 15])
    assert lanes_from_overlap(start, start + 8).tolist() == [0, 1, 0, 1]


@given(INTERVALS)
def test_operations_of_one_lane_never_overlap(intervals):
    start, end = columns(intervals)
    lanes = lanes_from_overlap(start, end)
    for lane in np.unique(lanes):
        mine = lanes == lane
        assert np.all(start[mine][1:] >= end[mine][:-1])


@given(INTERVALS)
def test_no_more_lanes_than_operations_in_flight(intervals):
    start, end = columns([(begin, length + 1) for begin, length in intervals])
    lanes = lanes_from_overlap(start, end)
    assert len(np.unique(lanes)) == greatest_overlap(start, end)


def lanes_beside(wanted, start, end, lane, lane_start, lane_end, ranks=None):
    """Lanes of rows that are put beside operations with lanes. `ranks`: of each row, and of each operation."""
    rank, lane_rank = ranks or (np.zeros(len(wanted), dtype=np.int64), np.zeros(len(lane), dtype=np.int64))
    rows = np.flatnonzero(wanted >= 0)
    latest = latest_on_lanes((rank[rows], wanted[rows]), end[rows], (lane_rank, lane), lane_start, lane_end)
    used = np.zeros(1 + max(int(rank.max(initial=0)), int(lane_rank.max(initial=0))), dtype=np.int32)
    np.maximum.at(used, lane_rank, lane + np.int32(1))
    return lanes_where_clear(wanted, start, end, latest, used, rank)


@given(INTERVALS, INTERVALS, st.data())
def test_rows_beside_operations_never_overlap_on_a_lane(operations, rows, data):
    operations, rows = (sorted((start, start + width) for start, width in each) for each in (operations, rows))
    start, end = (np.array([each[i] for each in operations], dtype=np.int64) for i in (0, 1))
    lane = lanes_from_overlap(start, end)
    row_start, row_end = (np.array([each[i] for each in rows], dtype=np.int64) for i in (0, 1))
    highest = int(lane.max()) if len(lane) else -1
    wanted = np.array([data.draw(st.integers(-1, highest)) for _ in rows], dtype=np.int32)
    found = lanes_beside(wanted, row_start, row_end, lane, start, end)
    assert np.all((found == wanted) | (found > highest))
    for each in np.unique(found).tolist():
        mine, theirs = found == each, lane == each
        both = sorted(
            [
                *zip(row_start[mine].tolist(), row_end[mine].tolist(), strict=True),
                *zip(start[theirs].tolist(), end[theirs].tolist(), strict=True),
            ]
        )
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(both))


def test_a_row_takes_the_lane_that_it_wants_where_it_is_free():
    one = np.array([0], dtype=np.int32)
    for row, lane in (((10, 20), 0), ((15, 25), 1), ((40, 50), 0), ((30, 30), 1), ((20, 20), 0)):
        start, end = np.array([row[0]]), np.array([row[1]])
        assert lanes_beside(one, start, end, one, np.array([20]), np.array([40])).tolist() == [lane]


def several(ranks):
    """Columns of the ranks, one after the other, and the place of each row's rank."""
    found = [columns(intervals) for intervals in ranks]
    start, end = (np.concatenate([pair[side] for pair in found]) for side in (0, 1))
    return start, end, np.repeat(np.arange(len(ranks)), [len(pair[0]) for pair in found])


@given(st.lists(INTERVALS, min_size=1, max_size=5), st.integers(0, 1 << 61))
def test_several_ranks_have_the_lanes_that_each_has_alone(ranks, far):
    """`far`: times so far apart that ranks cannot be told from each other by a shift in 64 bits."""
    start, end, rank = several(ranks)
    moved = np.where(rank % 2, far, 0)
    start, end = start + moved, end + moved
    by_overlap = lanes_from_overlap(start, end, rank)
    for each in range(len(ranks)):
        mine = rank == each
        assert by_overlap[mine].tolist() == lanes_from_overlap(start[mine], end[mine]).tolist()


@given(st.lists(st.tuples(INTERVALS, INTERVALS), min_size=1, max_size=4), st.data())
def test_rows_of_several_ranks_are_put_beside_operations_as_those_of_each_alone(ranks, data):
    start, end, rank = several([operations for operations, _ in ranks])
    row_start, row_end, row_rank = several([rows for _, rows in ranks])
    lane = lanes_from_overlap(start, end, rank)
    wanted = np.array(
        data.draw(st.lists(st.integers(-1, 2), min_size=len(row_rank), max_size=len(row_rank))), dtype=np.int32
    )
    found = lanes_beside(wanted, row_start, row_end, lane, start, end, (row_rank, rank))
    for each in range(len(ranks)):
        rows, mine = row_rank == each, rank == each
        alone = lanes_beside(wanted[rows], row_start[rows], row_end[rows], lane[mine], start[mine], end[mine])
        assert found[rows].tolist() == alone.tolist()
