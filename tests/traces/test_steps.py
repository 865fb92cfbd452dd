from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.schema import NO_STEP
from dxt_replay.traces.steps import step_at, step_row_at


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
