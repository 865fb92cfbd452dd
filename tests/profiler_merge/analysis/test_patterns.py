from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.patterns import patterns
from tests.capture_builder import File, Op, build_capture, read, write

MIB = 1 << 20


def one_file(tmp_path: Path, accesses: list[tuple[int, int]]) -> dict[str, int]:
    """Counts of a file that one rank reads at these (offset, length)."""
    ops = [read(0, offset=offset, length=length, start_ns=n) for n, (offset, length) in enumerate(accesses)]
    (row,) = patterns(build_capture(tmp_path, files=["/a"], ops=ops)).files.to_pylist()
    return row


@pytest.mark.parametrize(
    ("accesses", "expected", "pattern"),
    [
        ([(0, 10), (10, 10), (20, 5)], {"sequential": 2, "consecutive": 2}, "consecutive"),
        ([(0, 10), (100, 10), (200, 10), (300, 10)], {"sequential": 3, "strided": 2, "random": 1}, "strided"),
        ([(900, 10), (800, 10), (700, 10)], {"sequential": 0, "strided": 1, "random": 1}, "strided"),
        ([(0, 10), (500, 10), (30, 10), (700, 10), (90, 10)], {"sequential": 2, "random": 4}, "random"),
        ([(0, 10), (10, 10), (0, 10), (10, 10)], {"consecutive": 2, "restarts": 1, "random": 0}, "consecutive"),
        ([(50, 10)], {"sequential": 0, "consecutive": 0, "strided": 0, "random": 0}, None),
        ([(0, 10), (10, 0), (10, 10)], {"consecutive": 1}, "consecutive"),
        ([(5, 10), (5, 10), (5, 10)], {"strided": 0, "random": 2}, "random"),
    ],
)
def test_classes_of_accesses(
    tmp_path: Path, accesses: list[tuple[int, int]], expected: dict[str, int], pattern: str | None
) -> None:
    row = one_file(tmp_path, accesses)
    assert {name: row[name] for name in expected} == expected
    assert row["pattern"] == pattern


def test_bytes_read_again_by_the_rank_and_by_others(tmp_path: Path) -> None:
    found = patterns(
        build_capture(
            tmp_path,
            files=["/a", "/b"],
            ops=[
                read(0, offset=0, length=100, start_ns=0),
                read(0, offset=50, length=100, start_ns=1),
                read(0, offset=0, length=100, start_ns=2),
                read(0, offset=120, length=80, start_ns=0, rank=1),
                read(1, offset=0, length=7, start_ns=3, rank=1),
            ],
        )
    )
    first, second = found.files.to_pylist()
    assert (first["bytes_read"], first["unique_bytes_read"], first["reread_bytes"]) == (380, 200, 150)
    assert (first["read_by_several_bytes"], first["ranks"]) == (30, 2)
    assert (second["reread_bytes"], second["read_by_several_bytes"], second["ranks"]) == (0, 0, 1)
    ranks = found.ranks.to_pylist()
    assert [(row["files"], row["shared_files"], row["reread_bytes"]) for row in ranks] == [(1, 1, 150), (2, 1, 0)]


def test_metadata_and_reconstructed_rows_stand_apart(tmp_path: Path) -> None:
    found = patterns(
        build_capture(
            tmp_path,
            files=["/a", "/ckpt"],
            ops=[
                Op("open", 0, start_ns=0, end_ns=5_000),
                Op("stat", 0, start_ns=10_000, end_ns=11_000, origin="reconstructed"),
                read(0, length=10, start_ns=20_000, end_ns=27_000),
                write(1, length=99, start_ns=30_000, end_ns=90_000, api="STDIO", origin="reconstructed"),
            ],
        )
    )
    a, ckpt = found.files.to_pylist()
    assert (a["other_operations"], a["metadata_ns"], a["io_ns"]) == (1, 5_000, 7_000)
    assert (a["reconstructed_operations"], a["reconstructed_metadata_ns"], a["reconstructed_bytes"]) == (1, 1_000, 0)
    assert (ckpt["writes"], ckpt["bytes_written"], ckpt["reconstructed_bytes"], ckpt["ranks"]) == (0, 0, 99, 1)
    assert found.ranks["files"].to_pylist() == [2]


def test_small_is_below_the_stripe_and_below_the_file(tmp_path: Path) -> None:
    found = patterns(
        build_capture(
            tmp_path,
            files=[File("/striped", stripe_size=4096, size=MIB), File("/usual", size=2 * MIB), File("/tiny", size=10)],
            ops=[
                read(0, length=4095, start_ns=0),
                read(0, length=4096, start_ns=1),
                read(1, length=MIB - 1, start_ns=2),
                read(1, length=MIB, start_ns=3),
                read(1, length=0, start_ns=4),
                read(2, length=10, start_ns=5),
                write(2, length=9, start_ns=6),
            ],
        )
    )
    assert found.files["small_reads"].to_pylist() == [1, 1, 0]
    assert found.files["small_writes"].to_pylist() == [0, 0, 1]


def test_nothing_accessed(tmp_path: Path) -> None:
    found = patterns(build_capture(tmp_path, files=["/a"]))
    assert (found.files.num_rows, found.ranks.num_rows) == (0, 1)
