"""Overlap in a lane, found in batches of any size and of any number of ranks, against a walk of the rows in Python."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.verifying.capture_contents import LaneOrder
from tests.capture_builder import build_capture, read

Row = tuple[int, int, int, int]
"""Rank, lane, start and end."""


def table(rows: list[Row]) -> pa.Table:
    names = ("rank", "lane", "start_ns", "end_ns")
    types = (np.int32, np.int32, np.int64, np.int64)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return pa.table({name: column.astype(dtype) for name, column, dtype in zip(names, columns, types, strict=True)})


def first_overlaps(rows: list[Row]) -> dict[str, str]:
    """The first operation of each lane that begins before the one before it ended."""
    found: dict[str, str] = {}
    ends: dict[tuple[int, int], int] = {}
    named: set[tuple[int, int]] = set()
    for at, (rank, lane, start, end) in enumerate(rows):
        number = at - next(place for place, row in enumerate(rows) if row[0] == rank)
        if start < ends.get((rank, lane), start) and (rank, lane) not in named:
            named.add((rank, lane))
            found[f"lane {lane} of rank {rank}: start_ns of row {number} of the rank"] = str(start)
        ends[rank, lane] = end
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_the_first_overlap_of_each_lane_is_named(drawn: list[Row], cuts: list[int]) -> None:
    rows = sorted((rank, lane, start, start + lasts) for rank, lane, start, lasts in drawn)
    rows.sort(key=lambda row: (row[0], row[2]))
    bounds = [0, *sorted(cuts), len(rows)]
    order = LaneOrder()
    found = [each for at, end in pairwise(bounds) for each in order.add(table(rows[at:end]))]
    assert {each.what: each.found for each in found} == first_overlaps(rows)


def test_verify_names_rank_lane_and_row(tmp_path: Path) -> None:
    ops = [
        read(0, length=1, start_ns=0, end_ns=10),
        read(0, length=1, lane=1, start_ns=5, end_ns=20),
        read(0, length=1, start_ns=10, end_ns=12),  # touches, which is no overlap
        read(0, length=1, lane=1, start_ns=19, end_ns=30),
    ]
    good = build_capture(tmp_path / "good", files=["/a"], ops=ops[:3])
    assert dxt_replay.verify(good.path).passed
    bad = build_capture(tmp_path / "bad", files=["/a"], ops=ops)
    (part,) = (each for each in dxt_replay.verify(bad.path).places[0].parts if each.different)
    (difference,) = part.differences
    assert (part.part, difference.file) == ("operations", "ops")
    assert difference.what == "lane 1 of rank 0: start_ns of row 3 of the rank"
    assert (difference.expected, difference.found) == (
        "at least 20, the end of the operation before it on the lane",
        "19",
    )
