from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.replay.fidelity.exactness import MAX_DIFFERENCES, first_difference, inversions
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import READ, WRITE
from tests.capture_builder import build_capture, read, write
from tests.replay.fidelity.test_sequences import rows_of

OPERATION = st.tuples(st.sampled_from([READ, WRITE]), st.just(0), st.integers(0, 2), st.integers(0, 2), st.just(0))


def in_batches(operations: list, size: int) -> Iterator[OperationRows]:
    for begin in range(0, len(operations), size):
        yield rows_of(operations[begin : begin + size])


@given(st.lists(OPERATION, max_size=12), st.lists(OPERATION, max_size=12), st.integers(1, 4), st.integers(1, 4))
def test_the_first_difference_is_found_whatever_the_batches(one: list, other: list, size: int, step: int) -> None:
    if one == other:
        with pytest.raises(ValueError, match="equal"):
            first_difference(in_batches(one, size), in_batches(other, step))
        return
    expected = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    place, here, there = first_difference(in_batches(one, size), in_batches(other, step))
    assert place == expected
    assert (here == "nothing") == (place >= len(one))
    assert (there == "nothing") == (place >= len(other))


def test_a_difference_says_what_is_there() -> None:
    one, other = [(READ, 0, 8, 4, 0)], [(WRITE, 0, 9, 5, 0)]
    assert first_difference(in_batches(one, 1), in_batches(other, 1)) == (0, "read of 4 B at 8", "write of 5 B at 9")
    assert first_difference(in_batches(one, 1), in_batches([], 1)) == (0, "read of 4 B at 8", "nothing")


def test_only_the_first_differences_are_described(tmp_path: Path) -> None:
    files = [f"/data/{number}" for number in range(40)]
    ops = [
        made(file_id, rank=rank, length=10, start_ns=1000 * file_id)
        for rank in range(3)
        for file_id in range(len(files))
        for made in (read, write)
    ]
    source = build_capture(tmp_path, files=files, ops=ops, name="source")
    replay = build_capture(tmp_path, files=files, ops=[*ops, *ops], name="replay")
    found = compare(source, replay).exact
    assert not found.operations
    assert len(found.differences) == MAX_DIFFERENCES


def side(operations: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of (file, lane, start), sorted by start."""
    ordered = sorted(operations, key=lambda operation: operation[2])
    file, lane, start = np.array(ordered, dtype=np.int64).reshape(-1, 3).T
    return file, lane, start


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1000)), max_size=20))
def test_nothing_changes_places_with_itself(operations: list[tuple[int, int, int]]) -> None:
    assert inversions(side(operations), side(operations))[0] == 0


def test_neighbours_of_different_lanes_that_change_places_are_counted() -> None:
    source = [(0, 0, 10), (0, 1, 20), (0, 0, 30), (0, 1, 40), (7, 0, 5), (7, 1, 50)]
    replay = [(0, 0, 10), (0, 1, 35), (0, 0, 30), (0, 1, 40), (7, 0, 5), (7, 1, 50)]
    assert inversions(side(source), side(replay)) == (1, 4)


def test_only_operations_that_both_have_are_compared() -> None:
    source = [(0, 0, 10), (0, 1, 20), (0, 2, 30)]
    replay = [(0, 0, 20), (0, 1, 10)]
    assert inversions(side(source), side(replay)) == (1, 1)
