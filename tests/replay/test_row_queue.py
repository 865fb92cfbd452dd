import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.row_queue import RowQueue

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
    queue = RowQueue(DTYPE, memory_rows=memory_rows)
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
def test_what_exceeds_memory_waits_on_disk(memory_rows, tmp_path):
    queue = RowQueue(DTYPE, memory_rows=memory_rows, folder=tmp_path)
    for begin in range(0, 1000, 10):
        queue.append(rows(begin, 10))
    assert queue._in_memory <= memory_rows
    assert np.array_equal(queue.pop(1000), rows(0, 1000))
    queue.close()
    assert not list(tmp_path.iterdir())
