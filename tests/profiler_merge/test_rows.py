"""Rows in any order and number come out in order, and have the lanes of their threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.rows import Spool, blocks, in_file, in_order, number_lanes, rows_of
from dxt_replay.traces.errors import TargetError

TIMES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 4)), max_size=80)


def rows(times, **columns):
    rank, start, width = np.array(times, dtype=np.int64).reshape(-1, 3).T
    columns |= {"rank": rank, "start_ns": start, "end_ns": start + width, "length": np.arange(len(rank))}
    return rows_of(columns, len(rank))


@given(TIMES, st.integers(1, 9))
def test_rows_through_files_are_those_of_memory(times, most):
    given_rows = rows(times)
    spool = Spool(None, most)
    for begin in range(0, len(times), 7):
        part = given_rows[begin : begin + 7]
        spool.room(len(part))[:] = part
    found = spool.rows()
    assert found.tolist() == in_order(given_rows).tolist()
    assert in_file(found) or len(times) <= most
    parts = list(blocks(found, most))
    assert [row for part in parts for row in found[part].tolist()] == found.tolist()
    together = [(found["rank"][part][-1], found["start_ns"][part][-1]) for part in parts]
    assert len(set(together)) == len(parts)


@given(TIMES, st.integers(1, 9), st.booleans())
def test_lanes_are_threads_in_order_of_appearance_or_the_fewest_without_overlap(times, most, threaded):
    threads = np.array([7 + start % 3 for _, start, _ in times], dtype=np.uint64)
    found = in_order(rows(times, thread=threads))
    number_lanes(found, threaded=threaded, most=most)
    for rank in range(3):
        own = found[found["rank"] == rank]
        if threaded:
            seen = list(dict.fromkeys(own["thread"].tolist()))
            assert own["lane"].tolist() == [seen.index(thread) for thread in own["thread"].tolist()]
        for lane in np.unique(own["lane"]).tolist() if not threaded else ():
            mine = own[own["lane"] == lane]
            assert (mine["start_ns"][1:] >= mine["end_ns"][:-1]).all()


def test_the_lanes_of_a_layer_come_after_those_of_the_layer_below():
    found = rows([(0, 0, 9), (0, 1, 2), (0, 2, 3), (0, 5, 1)], api=np.array([1, 0, 0, 1]))
    number_lanes(found, threaded=False, most=2)
    assert found["lane"].tolist() == [2, 0, 1, 3]


def test_a_disk_that_refuses_is_an_error_with_a_remedy(tmp_path):
    spool = Spool(tmp_path / "none", most=1)
    spool.room(2)[:] = rows([(0, 0, 1), (0, 1, 1)])
    with pytest.raises(TargetError, match=r"cannot keep the operations of a large rank .*: No such file.*free space"):
        spool.rows()
