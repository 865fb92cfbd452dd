"""Peaks over all ranks: those of every nanosecond, wherever the time is cut."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.peak_over_ranks import PeaksOverRanks
from dxt_replay.traces.layers import file_layers
from dxt_replay.traces.workers import Workers
from tests.capture_builder import build_capture, read

LAST_NS = 200
OPERATIONS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(0, 80)), min_size=1, max_size=60)


def over_ranks(folder: str, operations: list[tuple[int, int, int]], rows: int, bin_ns: int) -> PeaksOverRanks:
    """Of reads (rank, start, length), each on a lane of its own, and a reconstructed one that does not count."""
    ops = [
        read(0, rank=rank, lane=lane, start_ns=start, end_ns=start + length, length=1)
        for lane, (rank, start, length) in enumerate(operations)
    ]
    ops.append(read(0, rank=0, start_ns=0, end_ns=LAST_NS, length=1, origin="reconstructed", lane=len(ops)))
    capture = build_capture(Path(folder), files=["/a"], ops=ops, row_group_rows=rows)
    return PeaksOverRanks(capture=capture, layers=file_layers(capture), start_ns=0, bin_ns=bin_ns)


def expected(operations: list[tuple[int, int, int]], bin_ns: int) -> list[int]:
    count = np.zeros(-(-LAST_NS // bin_ns) * bin_ns, dtype=np.int64)
    for _, start, length in operations:
        count[start : start + length] += 1
    return count.reshape(-1, bin_ns).max(axis=1).tolist()


@settings(deadline=None)
@given(OPERATIONS, st.integers(1, 9), st.integers(1, 40), st.lists(st.integers(0, LAST_NS), max_size=5))
def test_any_stretches_give_the_peaks_of_every_nanosecond(
    operations: list[tuple[int, int, int]], rows: int, bin_ns: int, cuts: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = over_ranks(folder, operations, rows, bin_ns)
        bins = -(-LAST_NS // bin_ns)
        edges = sorted({0, bins, *(cut // bin_ns for cut in cuts)})
        peaks = [peak for stretch in pairwise(edges) for peak in found(stretch).tolist()]
    assert peaks == expected(operations, bin_ns)


def test_processes_share_the_stretches_of_time(tmp_path: Path) -> None:
    """A long operation from the first row group is in flight in all stretches."""
    operations = [(0, 0, 199), *((rank, start, 7) for start in range(0, 190, 2) for rank in (0, 1, 2))]
    found = over_ranks(str(tmp_path), operations, 4, 10)
    said: list[str] = []
    with Workers(2, piece_operations=40) as workers:
        workers.on_choice = said.append
        assert found.peaks(20, workers).tolist() == expected(operations, 10)
    assert said == ["6 pieces of work, 2 at a time"]
