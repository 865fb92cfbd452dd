from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export.darshan_common_values import TOP, TRACKED, common_values
from tests.examples import examples


def one_after_the_other(values: list[int]) -> tuple[list[int], list[int]]:
    found: Counter[int] = Counter()
    for value in values:
        if value in found or len(found) < TRACKED:
            found[value] += 1
    best = sorted(((count, value) for value, count in found.items() if value), reverse=True)[:TOP]
    best += [(0, 0)] * (TOP - len(best))
    return [value for _, value in best], [count for count, _ in best]


@settings(max_examples=examples(200))
@given(st.lists(st.lists(st.integers(0, 6) | st.integers(0, 60), max_size=120), max_size=4))
def test_the_first_values_to_come_are_tracked(per_file: list[list[int]]) -> None:
    file = np.repeat(np.arange(len(per_file)), [len(values) for values in per_file])
    value = np.array([value for values in per_file for value in values], dtype=np.int64)
    found, counts = common_values(file, value, len(per_file))
    wanted = [one_after_the_other(values) for values in per_file]
    assert found.tolist() == [values for values, _ in wanted]
    assert counts.tolist() == [numbers for _, numbers in wanted]


def test_a_value_that_comes_late_is_not_counted() -> None:
    values = np.array([*range(1, TRACKED + 1), *[999] * 50], dtype=np.int64)
    found, counts = common_values(np.zeros(len(values), dtype=np.int64), values, 1)
    assert found.tolist() == [[32, 31, 30, 29]]
    assert counts.tolist() == [[1, 1, 1, 1]]
