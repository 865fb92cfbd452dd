from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.stable_order import runs, stable_order


@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**17) | st.integers(0, 2**40) | st.integers(-9, 9), max_size=40),
)
def test_order_is_that_of_a_stable_argsort(keys: list[int]) -> None:
    array = np.array(keys, dtype=np.int64)
    np.testing.assert_array_equal(stable_order(array), np.argsort(array, kind="stable"))


def test_runs_begin_where_the_value_changes() -> None:
    assert runs(np.array([4, 4, 5, 9, 9, 9])).tolist() == [0, 2, 3]
