from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export.darshan_heatmap import MAX_BINS, Heatmap, heatmap_bins

WIDTH = 100_000_000


@pytest.mark.parametrize(
    ("end_s", "width_s", "bins"),
    [(0, 0.1, 1), (0.1, 0.1, 1), (0.11, 0.1, 2), (20, 0.1, 200), (20.01, 0.2, 101), (1_000, 6.4, 157)],
)
def test_bins_are_doubled_until_the_run_fits(end_s: float, width_s: float, bins: int) -> None:
    assert heatmap_bins(round(end_s * 1e9)) == (round(width_s * 1e9), bins)


def add(heatmap: Heatmap, *operations: tuple[int, int, int, bool]) -> None:
    length, start, end, write = (np.array(column) for column in zip(*operations, strict=True))
    heatmap.add(length, start, end, write.astype(bool))


def test_bytes_are_spread_over_the_time_of_their_operation() -> None:
    heatmap = Heatmap(WIDTH, 5)
    add(
        heatmap,
        (100, 0, WIDTH, False),
        (1000, WIDTH // 2, 3 * WIDTH, False),
        (7, 2 * WIDTH, 2 * WIDTH, True),
        (10, -WIDTH, WIDTH, True),
        (0, 0, 5 * WIDTH, True),
        (3, 9 * WIDTH, 20 * WIDTH, True),
    )
    assert heatmap.read.tolist() == [300, 400, 400, 0, 0]
    assert heatmap.write.tolist() == [10, 0, 7, 0, 3]


operation = st.tuples(st.integers(0, 1 << 40), st.integers(-3, 40), st.integers(0, 45), st.booleans())


@given(st.lists(operation, min_size=1, max_size=40))
def test_every_byte_counts_once(drawn: list[tuple[int, int, int, bool]]) -> None:
    tenth = WIDTH // 10
    heatmap = Heatmap(WIDTH, 3)
    add(
        heatmap,
        *((length, start * tenth, (start + duration) * tenth, write) for length, start, duration, write in drawn),
    )
    assert int(heatmap.read.sum()) == sum(length for length, _, _, write in drawn if not write)
    assert int(heatmap.write.sum()) == sum(length for length, _, _, write in drawn if write)
    assert heatmap.read.min() >= 0
    assert heatmap.write.min() >= 0


def test_a_record_is_darshans() -> None:
    heatmap = Heatmap(2 * WIDTH, 2)
    assert heatmap.encode(1, 0) == b""
    add(heatmap, (5, 0, 1, False), (6, 3 * WIDTH, 3 * WIDTH, True))
    head, bins = heatmap.encode((1 << 64) - 1, 3)[:48], heatmap.encode(1, 3)[48:]
    assert struct.unpack("<Qqdq16x", head) == ((1 << 64) - 1, 3, 0.2, 2)
    assert struct.unpack("<4q", bins) == (0, 6, 5, 0)
    assert MAX_BINS == 200
