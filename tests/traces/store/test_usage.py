from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture_builder import Op, build_capture, ops_table
from traces.schema import OPS
from traces.store.reader import Capture, open_capture
from traces.store.usage import USAGE_SCHEMA, UsageCounter

ROWS = st.builds(
    Op,
    op=st.sampled_from([op for op in OPS if op != "rename"]),
    file_id=st.integers(0, 3),
    lane=st.integers(0, 2),
    api=st.sampled_from(["POSIX", "STDIO"]),
    offset=st.integers(-1, 100),
    length=st.integers(0, 50),
    start_ns=st.integers(0, 1000),
)


@given(st.lists(ROWS, min_size=1), st.integers(1, 10))
def test_counts_are_those_of_the_rows_however_they_come(ops: list[Op], cut: int) -> None:
    table = ops_table(ops)
    counter = UsageCounter()
    for begin in range(0, len(ops), cut):
        counter.add(table.slice(begin, cut))
    counted = counter.table(5)
    assert counted.schema.equals(USAGE_SCHEMA)
    found = {
        (row["lane"], row["op"], row["api"], row["file_id"]): (row["operations"], row["least_length"], row["reach"])
        for row in counted.to_pylist()
    }
    keys = Counter((op.lane, op.op, op.api, op.file_id) for op in ops)
    assert found.keys() == keys.keys()
    for key, count in keys.items():
        rows = [op for op in ops if (op.lane, op.op, op.api, op.file_id) == key]
        reach = max(max(op.offset, 0) + op.length for op in rows)
        assert found[key] == (count, min(op.length for op in rows), reach)
    assert set(counted["rank"].to_pylist()) == {5}


def test_a_rename_names_its_other_file_and_reaches_nowhere() -> None:
    counter = UsageCounter()
    counter.add(
        ops_table(
            [
                Op("rename", 1, offset=7),
                Op("read", 2, offset=3, length=10, start_ns=2),
            ]
        )
    )
    rows = {row["op"]: row for row in counter.table(0).to_pylist()}
    assert (rows["rename"]["other_file_id"], rows["rename"]["reach"]) == (7, 0)
    assert (rows["read"]["other_file_id"], rows["read"]["reach"]) == (-1, 13)


def two_ranks(folder: Path) -> Capture:
    ops = [Op("read", i % 2, rank=rank, start_ns=i, length=8) for rank in (0, 3) for i in range(10)]
    return build_capture(folder, ops=ops, files=["/a", "/b"])


def test_the_writer_stores_what_a_scan_would_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = two_ranks(tmp_path)
    for file in (capture.path / "usage").glob("usage-*"):
        file.rename(tmp_path / file.name)
    scanned = {rank: open_capture(capture.path).usage(rank) for rank in (0, 3)}
    for file in tmp_path.glob("usage-*"):
        file.rename(capture.path / "usage" / file.name)
    again = open_capture(capture.path)
    monkeypatch.setattr(Capture, "operations", lambda *_, **__: pytest.fail("scanned"))
    for rank in (0, 3):
        order = [(name, "ascending") for name in ("lane", "file_id")]
        assert again.usage(rank).sort_by(order).equals(scanned[rank].sort_by(order))


@pytest.mark.parametrize("damage", ["truncated", "of another capture"])
def test_what_does_not_add_up_is_counted_anew(tmp_path: Path, damage: str) -> None:
    capture = two_ranks(tmp_path)
    (file,) = (capture.path / "usage").glob("usage-*")
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:50])
    else:
        other = build_capture(tmp_path, ops=[Op("read", 0, length=1)], files=["/a"], name="other")
        (stored,) = (other.path / "usage").glob("usage-*")
        file.write_bytes(stored.read_bytes())
    again = open_capture(capture.path)
    assert [sum(again.usage(rank)["operations"].to_pylist()) for rank in (0, 3)] == [10, 10]


def test_an_older_capture_is_emptied_with_its_counts(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    capture = build_capture(tmp_path, ops=[Op("read", 0, rank=1, length=1)], files=["/a"])
    assert [file.name for file in (capture.path / "usage").glob("usage-*")] == ["usage-0000001.parquet"]
