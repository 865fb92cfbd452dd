"""Operations of the busiest files for the view of offsets over time: all of few, an even choice of many."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.analysis.bars import COLUMNS
from dxt_replay.profiler_merge.analysis.overview import MOST_FILES, file_offsets
from dxt_replay.profiler_merge.analysis.patterns import patterns
from dxt_replay.profiler_merge.analysis.queries import relations
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture, read, write

MS = 1_000_000


def offsets(capture: Capture, most_points: int = 1_000) -> tuple:
    with relations(capture, COLUMNS) as database:
        return file_offsets(database, patterns(capture).files, most_points=most_points)


def test_few_operations_are_all_there(tmp_path: Path) -> None:
    ops = [
        read(0, offset=10 * step, length=5, rank=rank, start_ns=step, end_ns=step + 7)
        for rank in (0, 1)
        for step in range(3)
    ]
    ops += [write(1, offset=100, length=3, start_ns=9, end_ns=10)]
    ops += [read(0, offset=0, length=1, start_ns=11, origin="reconstructed")]
    first, second = offsets(build_capture(tmp_path, ops=ops, files=["/a", "/b"]))
    assert (first.file_id, first.operations, first.one_in) == (0, 6, 1)
    assert first.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.offset.tolist() == [0, 10, 20] * 2
    assert (first.end_ns - first.start_ns).tolist() == [7] * 6
    assert (second.written.tolist(), second.length.tolist()) == ([1], [3])


def test_many_operations_are_chosen_evenly(tmp_path: Path) -> None:
    """Two readers take turns: each second operation is of the second half, and a plain every-other would miss one."""
    ops = [read(0, offset=step // 2 + 5_000 * (step % 2), length=1, start_ns=step * MS) for step in range(10_000)]
    ops += [read(1, offset=0, length=1, start_ns=1)]
    found = {part.file_id: part for part in offsets(build_capture(tmp_path, ops=ops, files=["/a", "/b"]), 501)}
    assert len(found[1].rank) == 1
    assert found[0].one_in == 20
    assert 450 <= len(found[0].rank) <= 550
    assert 0.4 < float((found[0].offset >= 5_000).mean()) < 0.6
    assert float(np.diff(found[0].start_ns).max()) < 60 * MS, "no gap is longer than three times the mean"


def test_files_and_operations_are_bounded(tmp_path: Path) -> None:
    ops = [read(file, offset=0, length=1, start_ns=time * MS + file) for file in range(30) for time in range(40)]
    found = offsets(build_capture(tmp_path, ops=ops, files=[f"/{number}" for number in range(30)]), 160)
    assert len(found) == MOST_FILES
    assert sum(len(part.rank) for part in found) <= 1.3 * 160


def test_a_capture_without_operations_has_none(tmp_path: Path) -> None:
    assert offsets(build_capture(tmp_path)) == ()
