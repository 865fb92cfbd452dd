from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, USAGE_SCHEMA
from dxt_replay.traces.store.index import INDEX_NAME, StoredUsage, UsageCounter
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import Op, build_capture, ops_table, with_counts_of

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
    table = ops_table([replace(op, rank=5) for op in ops])
    counter = UsageCounter()
    for begin in range(0, len(ops), cut):
        counter.add(table.slice(begin, cut))
    counted = counter.table()
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
                Op("rename", 1, other_file_id=7),
                Op("read", 2, offset=3, length=10, start_ns=2),
            ]
        )
    )
    rows = {row["op"]: row for row in counter.table().to_pylist()}
    assert (rows["rename"]["other_file_id"], rows["rename"]["reach"]) == (7, 0)
    assert (rows["read"]["other_file_id"], rows["read"]["reach"]) == (-1, 13)


def two_ranks(folder: Path) -> Capture:
    ops = [Op("read", i % 2, rank=rank, start_ns=i, length=8) for rank in (0, 3) for i in range(10)]
    return build_capture(folder, ops=ops, files=["/a", "/b"])


def test_the_writer_stores_what_a_scan_would_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = two_ranks(tmp_path)
    stored = capture.path / INDEX_NAME
    stored.rename(tmp_path / "away")
    scanned = {rank: open_capture(capture.path).usage(rank) for rank in (0, 3)}
    (tmp_path / "away").rename(stored)
    again = open_capture(capture.path)
    monkeypatch.setattr(Capture, "operations", lambda *_, **__: pytest.fail("scanned"))
    for rank in (0, 3):
        order = [(name, "ascending") for name in ("lane", "file_id")]
        assert again.usage(rank).sort_by(order).equals(scanned[rank].sort_by(order))


@pytest.mark.parametrize("asked", [(0,), (3,), (1, 2), (0, 3), (0, 2, 5), (0, 1, 2, 3, 5)])
def test_the_counts_of_some_ranks_are_theirs(tmp_path: Path, asked: tuple[int, ...]) -> None:
    ranks = (0, 1, 2, 3, 5)
    ops = [Op("read", rank=rank, file_id=file, length=rank + 1) for rank in ranks for file in range(rank % 2 + 1)]
    capture = build_capture(tmp_path, ops=ops, files=["/a", "/b"])
    found = StoredUsage(capture.path / INDEX_NAME, capture.files.num_rows).of(asked)
    assert found is not None
    keys = zip(*(found[name].to_pylist() for name in ("rank", "file_id", "least_length")), strict=True)
    assert sorted(keys) == sorted((op.rank, op.file_id, op.length) for op in ops if op.rank in asked)


def test_counts_that_do_not_add_up_are_counted_anew(tmp_path: Path) -> None:
    capture = two_ranks(tmp_path)
    ops = [Op("read", 0, length=1), Op("read", 0, rank=3, length=1)]
    again = with_counts_of(capture, build_capture(tmp_path, ops=ops, files=["/a"], name="other"))
    assert [sum(again.usage(rank)["operations"].to_pylist()) for rank in (0, 3)] == [10, 10]


def test_stale_counts_of_many_ranks_at_once_are_counted_again(tmp_path: Path) -> None:
    """As many operations in all, but not of each rank."""
    files = ["/a"]
    capture = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 0, 1, 1)], files=files)
    stale = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 1, 1, 1)], files=files, name="stale")
    again = with_counts_of(capture, stale)
    found = [(row["rank"], row["operations"]) for table in again.usages() for row in table.to_pylist()]
    assert found == [(0, 2), (1, 2)]
