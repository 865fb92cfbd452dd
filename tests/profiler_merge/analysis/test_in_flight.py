from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.in_flight import PeaksPerBin, in_time_order
from dxt_replay.traces.measures.operation_rows import OperationRows

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), min_size=1, max_size=40)


def arrays(intervals: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(intervals)
    starts = np.array([start for start, _ in ordered], dtype=np.int64)
    return starts, starts + np.array([length for _, length in ordered], dtype=np.int64)


def in_flight(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How many are in flight in each nanosecond from 0 to 99."""
    count = np.zeros(100, dtype=np.int64)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        count[start:end] += 1
    return count


@given(INTERVALS, st.integers(1, 12), st.integers(1, 40))
def test_peaks_per_bin_are_those_of_every_nanosecond(intervals: list[tuple[int, int]], batch: int, bin_ns: int) -> None:
    starts, ends = arrays(intervals)
    starts, ends = starts[ends > starts], ends[ends > starts]
    peaks = PeaksPerBin(bin_ns)
    for begin in range(0, len(starts), batch):
        peaks.add(starts[begin : begin + batch], ends[begin : begin + batch])
    bins = -(-100 // bin_ns)
    count = np.pad(in_flight(starts, ends), (0, bins * bin_ns - 100))
    assert peaks.peaks(bins).tolist() == count.reshape(bins, bin_ns).max(axis=1).tolist()


@given(st.lists(st.tuples(INTERVALS, st.integers(1, 9)), max_size=5))
def test_streams_are_merged_in_time(streams: list[tuple[list[tuple[int, int]], int]]) -> None:
    def batches(intervals: list[tuple[int, int]], size: int) -> Iterator[OperationRows]:
        starts, ends = arrays(intervals)
        none = np.zeros(0, dtype=np.int64)
        for begin in range(0, len(starts), size):
            part = slice(begin, begin + size)
            op = np.zeros(len(starts[part]), dtype=np.int8)
            yield OperationRows(
                rank=0,
                op=op,
                api=op,
                file_id=op,
                offset=none,
                length=none,
                start_ns=starts[part],
                end_ns=ends[part],
                origin=op,
            )
            yield OperationRows(
                rank=0,
                op=none,
                api=none,
                file_id=none,
                offset=none,
                length=none,
                start_ns=none,
                end_ns=none,
                origin=none,
            )

    merged = list(in_time_order([batches(intervals, size) for intervals, size in streams]))
    starts = np.concatenate([part for part, _ in merged]) if merged else np.zeros(0)
    assert (np.diff(starts) >= 0).all()
    real = [(s, s + length) for intervals, _ in streams for s, length in intervals if length]
    for side, (found, expected) in enumerate(zip(zip(*merged, strict=True), zip(*real, strict=True), strict=True)):
        assert sorted(np.concatenate(found).tolist()) == sorted(expected), side
    assert bool(merged) == bool(real)
