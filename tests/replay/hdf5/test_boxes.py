"""Runs of points as boxes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.backends.hdf5 import boxes_of


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    points = int(np.prod(shape))
    first = draw(st.integers(0, points))
    return shape, first, draw(st.integers(first, points))


@given(runs())
def test_the_boxes_hold_the_points_of_the_run_in_order(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, first, last = run
    block = np.arange(int(np.prod(shape))).reshape(shape)
    found: list[int] = []
    for start, count in boxes_of(shape, first, last):
        found += block[tuple(slice(s, s + n) for s, n in zip(start, count, strict=True))].ravel().tolist()
    assert found == list(range(first, last))


def test_whole_rows_are_one_box() -> None:
    assert list(boxes_of((4, 5, 6), 30, 90)) == [((1, 0, 0), (2, 5, 6))]
    assert list(boxes_of((4, 5, 6), 36, 48)) == [((1, 1, 0), (1, 2, 6))]


@given(runs())
def test_there_are_no_more_than_needed(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, first, last = run
    assert len(list(boxes_of(shape, first, last))) <= max(2 * len(shape) - 1, 1)
