import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.spill import RowQueue, SpillFile

DTYPE = np.dtype([("number", "<i8"), ("kind", "u1")])


def rows(begin, count):
    made = np.zeros(count, dtype=DTYPE)
    made["number"] = np.arange(begin, begin + count)
    made["kind"] = made["number"] % 7
    return made


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 60)), max_size=60),
    st.integers(0, 60),
)
def test_rows_of_queues_that_share_a_file_come_out_in_the_order_they_went_in(actions, memory_rows):
    spill = SpillFile()
    spill.memory_rows = memory_rows
    queues = [RowQueue(DTYPE, spill) for _ in range(3)]
    put, taken = [0, 0, 0], [0, 0, 0]
    for queue in queues:
        queue._extent_rows = 16
    for index, is_append, count in actions:
        base = 10**6 * index
        if is_append:
            queues[index].append(rows(base + put[index], count))
            put[index] += count
        else:
            got = queues[index].pop(count)
            assert np.array_equal(got, rows(base + taken[index], min(count, put[index] - taken[index])))
            taken[index] += len(got)
        assert len(queues[index]) == put[index] - taken[index]
    for index, queue in enumerate(queues):
        assert np.array_equal(queue.pop(10**5), rows(10**6 * index + taken[index], put[index] - taken[index]))
        queue.close()
    assert len(spill._free) == spill._extents
    spill.close()


def test_what_exceeds_memory_waits_in_a_file_without_a_name_whose_space_is_used_again(tmp_path):
    spill = SpillFile(tmp_path)
    spill.memory_rows = 10
    queue = RowQueue(DTYPE, spill)
    for begin in range(0, 10**6, 10**5):
        queue.append(rows(begin, 10**5))
        assert queue._in_memory <= 10
        assert np.array_equal(queue.pop(10**5), rows(begin, 10**5))
    assert spill._extents == 1
    assert not list(tmp_path.iterdir())
