"""Orders and distinct rows, as NumPy's slower ways give them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.traces.row_order import distinct, distinct_rows, order_by_start

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
