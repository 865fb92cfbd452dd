from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, USAGE_SCHEMA
from dxt_replay.traces.store.index import INDEX_NAME, UsageCounter
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


def test_stale_counts_of_many_ranks_at_once_are_counted_again(tmp_path: Path) -> None:
    """As many operations in all, but not of each rank."""
    files = ["/a"]
    capture = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 0, 1, 1)], files=files)
    stale = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 1, 1, 1)], files=files, name="stale")
    again = with_counts_of(capture, stale)
    found = [(row["rank"], row["operations"]) for table in again.usages() for row in table.to_pylist()]
    assert found == [(0, 2), (1, 2)]
