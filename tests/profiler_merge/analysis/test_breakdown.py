from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis import breakdown
from dxt_replay.profiler_merge.analysis.breakdown import BreakdownCollector, GroupTotals
from dxt_replay.traces.measures.operation_rows import operation_rows
from tests.capture_builder import File, build_capture, read, write

OPS = [
    read(0, rank=0, length=0, start_ns=0, end_ns=1_000),
    read(0, rank=0, length=1, start_ns=10, end_ns=2_010, step=0),
    read(1, rank=0, length=4096, start_ns=20, end_ns=3_020, step=0),
    read(1, rank=0, length=8191, start_ns=30, end_ns=4_030, step=7),
    write(1, rank=2, length=8192, start_ns=40, end_ns=5_040, step=7),
]


def groups(tmp_path: Path, by: str) -> dict[int | str, GroupTotals]:
    capture = build_capture(tmp_path, files=[File("/a", format="csv"), File("/b", format="hdf5")], ops=OPS)
    collector = BreakdownCollector(by, capture.files)
    for rows in operation_rows(capture):
        collector.add(rows)
    found = collector.groups()
    assert sum(group.reads for group in found) == 4
    assert sum(group.bytes_written for group in found) == 8192
    assert sum(group.io_time_s for group in found) == pytest.approx(15e-6)
    return {group.group: group for group in found}


def test_by_rank(tmp_path: Path) -> None:
    found = groups(tmp_path, "rank")
    assert list(found) == [0, 2]
    assert found[2] == GroupTotals(
        group=2, reads=0, writes=1, bytes_read=0, bytes_written=8192, io_ns=5000, io_time_s=pytest.approx(5e-6)
    )


def test_by_file(tmp_path: Path) -> None:
    found = groups(tmp_path, "file")
    assert {path: group.bytes_read for path, group in found.items()} == {"/a": 1, "/b": 4096 + 8191}


def test_by_format(tmp_path: Path) -> None:
    found = groups(tmp_path, "format")
    assert {name: (group.reads, group.writes) for name, group in found.items()} == {"csv": (2, 0), "hdf5": (2, 1)}


def test_by_step_has_a_row_for_no_step(tmp_path: Path) -> None:
    assert {step: group.reads + group.writes for step, group in groups(tmp_path, "step").items()} == {-1: 1, 0: 2, 7: 2}


def test_by_size_in_powers_of_two(tmp_path: Path) -> None:
    found = groups(tmp_path, "size")
    assert {size: group.reads + group.writes for size, group in found.items()} == {
        "0 B": 1,
        "1 B": 1,
        "4.00 KiB to < 8.00 KiB": 2,
        "8.00 KiB to < 16.0 KiB": 1,
    }


def test_groups_do_not_depend_on_when_they_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = groups(tmp_path / "late", "file")
    monkeypatch.setattr(breakdown, "_PENDING_GROUPS", 0)
    assert groups(tmp_path / "early", "file") == expected
