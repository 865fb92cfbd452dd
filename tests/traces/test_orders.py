"""Orders, distinct rows, steps at times and groups of few, as slower ways give them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.traces.row_order import distinct, distinct_rows, few_together, order_by_start, step_at, step_row_at
from dxt_replay.traces.schema import NO_STEP
from dxt_replay.traces.stable_order import runs, stable_order


@given(st.lists(st.integers(0, 5) | st.integers(0, 2**17) | st.integers(0, 2**40) | st.integers(-9, 9), max_size=40))
def test_order_is_that_of_a_stable_argsort(keys: list[int]) -> None:
    array = np.array(keys, dtype=np.int64)
    np.testing.assert_array_equal(stable_order(array), np.argsort(array, kind="stable"))
    assert runs(array).tolist() == [at for at, key in enumerate(keys) if not at or keys[at - 1] != key]


LEAST, MOST = -(1 << 63), (1 << 63) - 1
INTEGERS = st.one_of(
    st.integers(-3, 3), st.integers(MOST - 2, MOST), st.integers(LEAST, LEAST + 2), st.integers(LEAST, MOST)
)


def columns_of(width: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    return st.lists(st.tuples(*[INTEGERS] * width), max_size=30)


@given(st.one_of(columns_of(1), columns_of(2), columns_of(4)))
@example([(LEAST, MOST, 0, 1), (MOST, LEAST, 1, 0), (LEAST, MOST, 0, 1)])
def test_distinct_rows_are_those_of_numpy(rows: list[tuple[int, ...]]) -> None:
    keys = np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 2)
    values, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    found = distinct_rows(*keys.T)
    assert found.values.tolist() == values.tolist()
    assert found.first.tolist() == first.tolist()
    assert found.inverse.tolist() == inverse.reshape(-1).tolist()


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.int64, np.uint64])
@given(data=st.data())
def test_distinct_values_are_those_of_numpy(dtype: type, data: st.DataObject) -> None:
    limits = (0, 1) if dtype is np.bool_ else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    near = st.integers(limits[1] - 1, limits[1])
    values = data.draw(st.lists(st.one_of(near, st.integers(*limits)), max_size=300))
    array: np.ndarray = np.array(values, dtype=dtype)
    array = np.repeat(array, data.draw(st.integers(1, 4)))
    found = distinct(array)
    for mine, expected in zip(found, np.unique(array, return_index=True, return_inverse=True), strict=True):
        assert mine.tolist() == expected.tolist()
    assert found.values.dtype == dtype
    both = distinct_rows(array, array)
    assert both.values[:, 1].tolist() == found.values.tolist()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3), st.integers(0, 2), st.integers(0, 2))))
def test_the_order_is_that_of_a_sort_by_all_keys(rows: list[tuple[int, int, int, int]]) -> None:
    rank, start, one, other = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    assert order_by_start(start, [one, other], rank).tolist() == np.lexsort((other, one, start, rank)).tolist()
    assert order_by_start(start, [one]).tolist() == np.lexsort((one, start)).tolist()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=6), st.randoms(), st.lists(st.integers(-3, 99))
)
def test_a_step_holds_its_begin_and_not_its_end(
    stretches: list[tuple[int, int]], order: object, times: list[int]
) -> None:
    steps, at = [], 0
    for number, (gap, length) in enumerate(stretches):
        steps.append((10 * number, at + gap, at + gap + length))
        at += gap + length
    expected = [next((n for n, begin, end in steps if begin <= t < end), NO_STEP) for t in times]
    given_times = np.array(times, dtype=np.int64)
    shuffled = list(steps)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    number, begin, end = np.array(shuffled, dtype=np.int64).reshape(-1, 3).T
    found = step_at(given_times, begin, end, number)
    assert (found.dtype, found.tolist()) == (np.int32, expected)
    _, begin, end = np.array(steps, dtype=np.int64).reshape(-1, 3).T
    rows = step_row_at(given_times, begin, end)
    assert rows.tolist() == [step // 10 if step != NO_STEP else -1 for step in expected]


@given(sizes=st.lists(st.integers(0, 12)), most=st.integers(0, 20))
def test_groups_are_as_long_as_they_may_be(sizes: list[int], most: int) -> None:
    groups = list(few_together(sizes, lambda size: size, most))
    assert [size for group in groups for size in group] == sizes
    assert all(group and (sum(group) <= most or len(group) == 1) for group in groups)
    assert all(sum(group) + after[0] > most for group, after in pairwise(groups))
