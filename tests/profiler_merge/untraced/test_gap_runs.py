"""Gaps that are nearly as wide as their file: the runs that they are in have room for two accesses."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses
from dxt_replay.profiler_merge.untraced.gap_runs import gap_runs


def found(sizes, *, runs, room, width, count):
    accesses = SizedAccesses(stream=np.zeros(len(sizes), dtype=np.int64), size=np.sort(np.array(sizes))[::-1])
    gaps = np.array([[width, 0, 0, 0]]), np.array([[count, 0, 0, 0]])
    wide = gap_runs(accesses, np.array([runs]), np.array([room]), gaps)
    return wide, {
        int(number): accesses.size[wide.number == number].tolist()
        for number in np.unique(wide.number[wide.number >= 0])
    }


def test_two_sizes_that_end_at_the_highest_offset_are_taken():
    """An archive's header and its directory: 40 + 900 + 60 bytes."""
    wide, runs = found([500, 500, 40, 40, 60, 60, 3, 3], runs=6, room=1000, width=900, count=2)
    assert runs == {0: [60, 40], 1: [60, 40]}
    assert (int(wide.runs[0]), wide.left.tolist()) == (2, [[0, 0, 0, 0]])
    assert wide.gap[wide.number >= 0].tolist() == [0, 0, 900, 900]


def test_else_the_smallest_that_fit():
    wide, runs = found([700, 700, 9, 8, 7, 6], runs=4, room=1000, width=950, count=2)
    assert runs == {0: [9, 6], 1: [8, 7]}
    assert int(np.count_nonzero(wide.gap)) == 2


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([700, 700, 60, 60], 4),  # 60 + 950 + 60 is more than the file
        ([700, 9, 8], 1),  # the large one would have no run
        ([9, 8], 2),  # a run would have no access
    ],
)
def test_gaps_that_do_not_fit_are_left_to_the_others(sizes, runs):
    wide, made = found(sizes, runs=runs, room=1000, width=950, count=1)
    assert made == {}
    assert wide.left.tolist() == [[1, 0, 0, 0]]


def test_gaps_that_leave_room_are_no_such_runs():
    assert found([10, 10, 10, 10], runs=2, room=1000, width=100, count=1)[1] == {}
