"""Whole numbers as planes of bytes: nothing is lost, and the planes are no more than the largest number needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.measures.byte_planes import from_planes, from_step_planes, planes, step_planes

ANY = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300)


@given(st.lists(st.integers(0, (1 << 63) - 1) | st.integers(0, 70_000)))
def test_numbers_return_as_they_were(numbers: list[int]) -> None:
    found = from_planes(planes(np.array(numbers, dtype=np.int64)))
    assert found.dtype == np.int64
    assert found.tolist() == numbers


@pytest.mark.parametrize(
    ("largest", "size"), [(0, 1), (255, 1), (256, 2), (65_536, 4), ((1 << 32) - 1, 4), (1 << 32, 8)]
)
def test_the_planes_are_those_of_the_largest_number_lowest_first(largest: int, size: int) -> None:
    found = planes(np.array([1, largest]))
    assert found.shape == (size, 2)
    assert found[:, 1].tolist() == list(largest.to_bytes(size, "little"))


@given(st.lists(ANY), st.sampled_from([1, 2]))
def test_steps_return_as_they_were_even_where_they_wrap(numbers: list[int], order: int) -> None:
    values = np.array(numbers, dtype=np.int64)
    assert from_step_planes(step_planes(values, order), order).tolist() == numbers


@given(st.lists(st.floats(allow_nan=False)))
def test_the_bits_of_floating_point_numbers_return(numbers: list[float]) -> None:
    bits = np.array(numbers, dtype=np.float64).view(np.int64)
    assert from_step_planes(step_planes(bits, 2), 2).tolist() == bits.tolist()
