from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.patterns import patterns
from dxt_replay.traces.measures.access_pattern import AccessPattern
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import ROW_GROUP_ROWS
from tests.capture_builder import File, Op, build_capture, read, write
from tests.examples import examples

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
    assert (found.files.num_rows, found.rank_files.num_rows, found.ranks.num_rows) == (0, 0, 1)


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 200), st.integers(0, 60), st.sampled_from("rw")),
    min_size=1,
    max_size=60,
)


def random_capture(
    tmp_path: Path, rows: list[tuple[int, int, int, int, str]], row_group_rows: int = ROW_GROUP_ROWS
) -> Capture:
    ops = [
        (read if op == "r" else write)(file, rank=rank, offset=offset, length=length, start_ns=n)
        for n, (rank, file, offset, length, op) in enumerate(rows)
    ]
    files = [File(f"/{n}", size=260) for n in range(3)]
    return build_capture(tmp_path, files=files, ops=ops, row_group_rows=row_group_rows)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.integers(1, 9))
def test_tables_against_a_plain_count(tmp_path: Path, rows: list[tuple[int, int, int, int, str]], group: int) -> None:
    found = patterns(random_capture(tmp_path, rows, row_group_rows=group))
    for row in found.rank_files.table().to_pylist():
        own = [r for r in rows if r[:2] == (row["rank"], row["file_id"])]
        seen = np.zeros(300, dtype=np.int64)
        for _, _, offset, length, op in own:
            seen[offset : offset + length] += op == "r"
        assert row["bytes_read"] == seen.sum()
        assert row["unique_bytes_read"] == (seen > 0).sum()
        assert row["reread_bytes"] == seen.sum() - (seen > 0).sum()
        assert row["reads"] + row["writes"] == len(own)
        counts = dict.fromkeys(("consecutive", "strided", "restarts", "random"), 0)
        for op in "rw":
            for name in plain_classes([(r[2], r[3]) for r in own if r[4] == op and r[3]]):
                counts[name] += 1
        assert {name: row[name] for name in counts} == counts
    sums = {
        name: sum(found.rank_files.table()[name].to_pylist()) for name in ("reads", "random", "reread_bytes", "io_ns")
    }
    assert sums == {name: sum(found.files[name].to_pylist()) for name in sums}
    assert sums == {name: sum(found.ranks[name].to_pylist()) for name in sums}


def plain_classes(accesses: list[tuple[int, int]]) -> list[str]:
    names = []
    for place in range(1, len(accesses)):
        offset, (last, length) = accesses[place][0], accesses[place - 1]
        moved = offset - last
        if moved == length:
            names.append("consecutive")
        elif place > 1 and moved != 0 and moved == last - accesses[place - 2][0]:
            names.append("strided")
        elif offset == 0:
            names.append("restarts")
        else:
            names.append("random")
    return names


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_sequential_and_consecutive_are_darshans(tmp_path: Path, rows: list[tuple[int, int, int, int, str]]) -> None:
    """But for the first access to a file, which Darshan compares with byte 0, and reads of nothing."""
    rows = [(rank, file, offset + 1, length + 1, op) for rank, file, offset, length, op in rows]
    capture = random_capture(tmp_path, rows)
    expected = AccessPattern(3)
    for batch in operation_rows(capture):
        expected.add(batch)
    firsts = {(rank, file, op): offset for rank, file, offset, _, op in reversed(rows)}
    found = patterns(capture).files
    assert sum(found["sequential"].to_pylist()) == expected.counts.sequential - sum(o > 0 for o in firsts.values())
    assert sum(found["consecutive"].to_pylist()) == expected.counts.consecutive - sum(o == 1 for o in firsts.values())


def test_filters(tmp_path: Path) -> None:
    rows = [(0, 0, 0, 5, "r"), (1, 1, 0, 7, "r"), (1, 1, 7, 7, "w")]
    found = patterns(part_of(random_capture(tmp_path, rows), Part(ranks=(1,), operations=("read",))))
    assert found.ranks["rank"].to_pylist() == [1]
    assert found.files["bytes_read"].to_pylist() == [7]
    assert found.files["bytes_written"].to_pylist() == [0]
