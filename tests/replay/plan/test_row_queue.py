import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.row_queue import RowQueue, SpillFile

DTYPE = np.dtype([("number", "<i8"), ("kind", "u1")])


def rows(begin, count):
    made = np.zeros(count, dtype=DTYPE)
    made["number"] = np.arange(begin, begin + count)
    made["kind"] = made["number"] % 7
    return made


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40),
    st.integers(0, 60),
)
def test_rows_come_out_in_the_order_they_went_in(actions, memory_rows):
    queue = RowQueue(DTYPE, SpillFile(), memory_rows=memory_rows)
    put = taken = 0
    for is_append, count in actions:
        if is_append:
            queue.append(rows(put, count))
            put += count
        else:
            got = queue.pop(count)
            assert len(got) == min(count, put - taken)
            assert np.array_equal(got, rows(taken, len(got)))
            taken += len(got)
        assert len(queue) == put - taken
    assert np.array_equal(queue.pop(10**6), rows(taken, put - taken))
    queue.close()


@pytest.mark.parametrize("memory_rows", [0, 10])
def test_what_exceeds_memory_waits_in_a_file_without_a_name(memory_rows, tmp_path):
    spill = SpillFile(tmp_path)
    queue = RowQueue(DTYPE, spill, memory_rows=memory_rows)
    for begin in range(0, 1000, 10):
        queue.append(rows(begin, 10))
    assert queue._in_memory <= memory_rows
    assert np.array_equal(queue.pop(1000), rows(0, 1000))
    queue.close()
    assert not list(tmp_path.iterdir())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 60)), max_size=60))
def test_queues_that_share_a_file_do_not_mix(actions):
    spill = SpillFile()
    queues = [RowQueue(DTYPE, spill, memory_rows=5) for _ in range(3)]
    for queue in queues:
        queue._extent_rows = 16
    put, taken = [0, 0, 0], [0, 0, 0]
    for index, is_append, count in actions:
        base = 10**6 * index
        if is_append:
            queues[index].append(rows(base + put[index], count))
            put[index] += count
        else:
            got = queues[index].pop(count)
            assert np.array_equal(got, rows(base + taken[index], min(count, put[index] - taken[index])))
            taken[index] += len(got)
    for queue in queues:
        queue.close()
    assert len(spill._free) == spill._extents
    spill.close()


def test_space_that_was_read_is_used_again():
    spill = SpillFile()
    queue = RowQueue(DTYPE, spill, memory_rows=0)
    for begin in range(0, 10**6, 10**5):
        queue.append(rows(begin, 10**5))
        assert np.array_equal(queue.pop(10**5), rows(begin, 10**5))
    assert spill._extents == 1


def test_many_queues_keep_less_each():
    assert SpillFile(queues=1).memory_rows == 1 << 18
    assert SpillFile(queues=512).memory_rows < 1 << 13
