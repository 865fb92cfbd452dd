import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiler_merge.lanes import lanes_from_overlap, lanes_from_threads

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


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40))
def test_threads_become_lanes_in_order_of_appearance(threads):
    lanes = lanes_from_threads(np.array(threads, dtype=np.uint64))
    seen = list(dict.fromkeys(threads))
    assert lanes.tolist() == [seen.index(thread) for thread in threads]
