"""Captures as the releases of each schema version wrote them (`captures/version-N`) give the rows of today."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.store.reader import Capture, open_capture

OLDER = {version: Path(__file__).parent / "captures" / f"version-{version}" for version in (1, 2, 3, 4)}
SHOWN = ("rank", "op", "origin", "offset", "length", "other_file_id")
WAITS = ("feeds", "follows", "follows_end")
LAST = 2**30 - 1

ROWS = {
    1: [
        (0, "read", "traced", 0, 5, None), (0, "write", "traced", 0, 7, None), (0, "seek", "traced", 0, 0, None),
        (1, "read", "traced", 0, 9, None),
    ],
    2: [
        (0, "read", "traced", 0, 4096, None), (0, "read", "traced", 4096, 100, None),
        (1, "write", "traced", 0, 7, None), (1, "rename", "reconstructed", -1, 0, 0),
    ],
    3: [
        (0, "read", "traced", 0, 4096, None), (0, "read", "traced", 4096, 100, None),
        (1, "write", "reconstructed", 0, 7, None), (1, "rename", "traced", -1, 0, 1),
    ],
    4: [
        (0, "read", "traced", 0, 5, None, 1, 0, False), (0, "read", "traced", 0, 5, None, 4, 3, True),
        (0, "rename", "traced", -1, 0, 2), (0, "seek", "traced", 2, 0, None),
        (0, "write", "traced", 1, 7, None, 6, LAST, True), (1, "rename", "traced", -1, 0, 0),
        (1, "read", "traced", -1, 3, None),
    ],
}  # fmt: skip
"""Of each version; `WAITS` are null where a row ends before them."""


def rows_of(capture: Capture, columns: tuple[str, ...] | None = None) -> list[dict[str, object]]:
    return [row for batch in capture.operations(columns=columns) for row in batch.to_pylist()]


@pytest.mark.parametrize("version", ROWS)
def test_all_rows_are_those_that_were_written(version: int) -> None:
    capture = open_capture(OLDER[version])
    assert capture.info.schema_version == version
    assert capture.info.dependencies == ("known" if version == 4 else "inferred")
    expected = [(*row, None, None, None)[:9] for row in ROWS[version]]
    assert [tuple(row[name] for name in SHOWN + WAITS) for row in rows_of(capture)] == expected
    for rank in (0, 1):
        counted = sorted(str(row["op"]) for row in capture.usage(rank).to_pylist() for _ in range(row["operations"]))
        assert counted == sorted(row[1] for row in expected if row[0] == rank)
    assert (
        capture.paths()
        == [["/a", "/b"], ["/data/a", "/ckpt/b"], ["/data/a", "/ckpt/b"], ["/a", "/b", "/c"]][version - 1]
    )
    assert capture.spans.num_rows == (1 if version in (1, 4) else 2)
    assert capture.files["offsets"].null_count == capture.files.num_rows


@pytest.mark.parametrize("columns", [*combinations(("op", "offset", "other_file_id", *WAITS[1:]), 2), ("follows",)])
def test_whichever_columns_are_read(columns: tuple[str, ...]) -> None:
    capture = open_capture(OLDER[4])
    whole = rows_of(capture)
    assert rows_of(capture, columns) == [{name: row[name] for name in row if name in columns} for row in whole]


@pytest.mark.parametrize("new_name", [-1, 3, 1 << 40])
def test_a_new_name_that_is_no_file_is_damage(new_name: int, tmp_path: Path) -> None:
    shutil.copytree(OLDER[4], tmp_path / "old")
    part = next((tmp_path / "old" / "ops").iterdir())
    rows = pq.read_table(part)
    offset = [new_name if op == "rename" else 0 for op in rows["op"].to_pylist()]
    pq.write_table(rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offset)), part)
    old = open_capture(tmp_path / "old")
    assert len(rows_of(old, ("length",))) == 7
    with pytest.raises(CaptureError, match=r"a rename names a file that files\.parquet lacks"):
        rows_of(old)
