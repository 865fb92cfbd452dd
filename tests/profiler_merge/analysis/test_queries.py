from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.queries import GroupTotals, group_totals, made_by_query, query
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, build_capture, read, write

SIZES = [0, 1, 100, 101, 1024, 1025, 4096, 4096, 4096, 8191, 8192]


def sized(tmp_path: Path, sizes: list[int]) -> Capture:
    return build_capture(
        tmp_path,
        files=["/a"],
        ops=[
            *(read(0, length=size, start_ns=n) for n, size in enumerate(sizes)),
            write(0, length=100, start_ns=50),
            write(0, length=5, start_ns=60, api="STDIO", origin="reconstructed"),
        ],
    )


def rows(capture: Capture, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = made_by_query(capture, TABLES[name]).to_pylist()
    return found


@pytest.mark.parametrize(
    ("table", "bins"),
    [
        ("sizes", {"0": (0, 0, 1), "2^0": (1, 1, 1), "2^6": (64, 127, 2), "2^10": (1024, 2047, 2),
                   "2^12": (4096, 8191, 4), "2^13": (8192, 16383, 1), "2^49": (1 << 49, (2 << 49) - 1, 1)}),
        ("darshan-sizes", {"0_100": (0, 100, 3), "100_1K": (101, 1024, 2), "1K_10K": (1025, 10240, 6),
                           "1G_PLUS": ((1 << 30) + 1, None, 1)}),
    ],
)  # fmt: skip
def test_classes_of_sizes(tmp_path: Path, table: str, bins: dict[str, tuple[int, int | None, int]]) -> None:
    found = rows(sized(tmp_path, [*SIZES, (2 << 49) - 1]), table)
    reads = [row for row in found if row["op"] == "read"]
    assert {row["bin"]: (row["least_bytes"], row["most_bytes"], row["operations"]) for row in reads} == bins
    assert sum(row["bytes"] for row in reads) == sum(SIZES) + (2 << 49) - 1
    kinds = [(row["interface"], row["op"], row["origin"], row["bytes"]) for row in found[len(bins) :]]
    assert kinds == [("POSIX", "write", "traced", 100), ("STDIO", "write", "reconstructed", 5)]


def test_exact_sizes_and_the_rest(tmp_path: Path) -> None:
    found = [row for row in rows(sized(tmp_path, [7, 7, *range(30)]), "exact-sizes") if row["op"] == "read"]
    shown = [(row["size_bytes"], row["operations"], row["bytes"]) for row in found]
    assert shown == [(7, 3, 21), *((n, 1, n) for n in range(20) if n != 7), (None, 10, sum(range(20, 30)))]
    assert sum(row["share"] for row in found) == pytest.approx(1)


OPS = [
    read(0, rank=0, length=0, start_ns=0, end_ns=1_000),
    read(0, rank=0, length=1, start_ns=10, end_ns=2_010, step=0),
    read(1, rank=0, length=4096, start_ns=20, end_ns=3_020, step=0),
    read(1, rank=0, length=8191, start_ns=30, end_ns=4_030, step=7),
    write(1, rank=2, length=8192, start_ns=40, end_ns=5_040, step=7),
]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("rank", {0: (4, 0), 2: (0, 1)}),
        ("file", {"/a": (2, 0), "/b": (2, 1)}),
        ("format", {"hdf5": (2, 1), "csv": (2, 0)}),
        ("step", {-1: (1, 0), 0: (2, 0), 7: (1, 1)}),
        ("size", {"0 B": (1, 0), "1 B": (1, 0), "4.00 KiB to < 8.00 KiB": (2, 0), "8.00 KiB to < 16.0 KiB": (0, 1)}),
    ],
)
def test_totals_by_group(tmp_path: Path, by: str, groups: dict[int | str, tuple[int, int]]) -> None:
    capture = build_capture(tmp_path, files=[File("/a", format="csv"), File("/b", format="hdf5")], ops=OPS)
    found = group_totals(capture, by)
    assert {each.group: (each.reads, each.writes) for each in found} == groups
    assert list(groups) == [each.group for each in found]
    assert sum(each.io_ns for each in found) == 15_000
    if by == "rank":
        assert found[1] == GroupTotals(
            group=2, reads=0, writes=1, bytes_read=0, bytes_written=8192, io_ns=5000, io_time_s=5e-6
        )


def test_users_may_ask_for_what_they_like(tmp_path: Path) -> None:
    ops = [read(0, length=4, start_ns=5, api="MPIIO"), read(0, length=4, start_ns=6), read(0, length=2, start_ns=9)]
    capture = part_of(build_capture(tmp_path, files=["/a"], ops=ops), Part(until_ns=9))
    found = query(capture, "SELECT path, sum(length) AS bytes FROM transfers JOIN files USING (file_id) GROUP BY path")
    assert found.to_pylist() == [{"path": "/a", "bytes": 4}]
    every = query(capture, "SELECT * FROM ops ORDER BY number").to_pylist()
    assert [(row["start_ns"], row["interface"], row["counted"], row["number"]) for row in every] == [
        (5, "MPIIO", False, 0),
        (6, "POSIX", True, 1),
    ]


def test_damage_is_the_error_of_the_reader(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a", "/b"], ops=OPS)
    part = next((capture.path / "ops").iterdir())
    part.write_bytes(part.read_bytes()[:-200] + bytes(200))
    with pytest.raises(CaptureError):
        query(capture, "SELECT count(*) FROM ops")
