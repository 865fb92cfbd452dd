from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis import in_flight
from dxt_replay.profiler_merge.analysis.in_flight import Pieces, pieces, shares

TIMES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2000), st.integers(0, 1 << 45)), max_size=30)


def all_pieces(starts: np.ndarray, ends: np.ndarray, bin_ns: int) -> list[Pieces]:
    return list(pieces(starts, ends, bin_ns))


def columns(operations: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts, durations, amounts = (np.array([row[i] for row in operations], dtype=np.int64) for i in range(3))
    return starts, starts + durations, amounts


@given(TIMES, st.integers(1, 900))
def test_pieces_cover_each_operation_once_and_lie_in_their_bins(
    operations: list[tuple[int, int, int]], bin_ns: int
) -> None:
    starts, ends, _ = columns(operations)
    covered = np.zeros(len(starts), dtype=np.int64)
    for part in all_pieces(starts, ends, bin_ns):
        begin = starts[part.operation] + part.start_ns
        end = starts[part.operation] + part.end_ns
        assert (begin // bin_ns == part.bin).all()
        assert (end <= (part.bin + 1) * bin_ns).all()
        assert ((end > begin) | (starts == ends)[part.operation]).all()
        np.add.at(covered, part.operation, part.end_ns - part.start_ns)
    assert (covered == ends - starts).all()


@given(TIMES, st.integers(1, 900))
def test_shares_add_up_exactly_and_are_in_proportion(operations: list[tuple[int, int, int]], bin_ns: int) -> None:
    starts, ends, amounts = columns(operations)
    sums = np.zeros(len(starts), dtype=np.int64)
    for part in all_pieces(starts, ends, bin_ns):
        found = shares(amounts, ends - starts, part)
        assert (found >= 0).all()
        length = np.maximum(ends - starts, 1)[part.operation]
        ideal = amounts[part.operation] * ((part.end_ns - part.start_ns) / length)
        several = (part.end_ns - part.start_ns) < (ends - starts)[part.operation]
        assert (np.abs(found - ideal)[several] <= 2).all()
        np.add.at(sums, part.operation, found)
    assert (sums == amounts).all()


def test_pieces_come_in_bounded_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "PIECES_AT_A_TIME", 10)
    starts = np.arange(8, dtype=np.int64) * 3
    ends = starts + np.array([1, 50, 2, 3, 9, 9, 9, 1])
    found = all_pieces(starts, ends, 1)
    assert [len(part.bin) for part in found] == [1, 50, 5, 9, 9, 10]
    assert np.concatenate([part.operation for part in found]).tolist() == sorted(
        np.repeat(np.arange(8), ends - starts).tolist()
    )
