"""Parts of earlier captures, in which `offset` and `follows` held two facts each, give the rows of today."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import OPS_SCHEMA, CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import Op, build_capture, read, write

TOUCHED = ("op", "offset", "other_file_id", "follows", "follows_end")


def made(folder: Path) -> Capture:
    """Two ranks: renames among seeks and reads, and operations that follow begins and ends of fetches."""
    ops = [
        read(0, length=5, start_ns=1, feeds=1, follows=0),
        read(1, length=5, start_ns=2, feeds=4, follows=3, follows_end=True),
        Op("rename", 1, other_file_id=2, start_ns=3),
        Op("seek", 0, offset=2, start_ns=4),
        write(2, offset=1, length=7, start_ns=5, feeds=6, follows=2**30 - 1, follows_end=True),
        Op("rename", 0, other_file_id=0, start_ns=6, rank=1),
        read(0, offset=-1, length=3, start_ns=7, rank=1),
    ]
    info = CaptureInfo(job=Job(nprocs=2, run_time_s=1.0), ranks=(0, 1), dependencies="known")
    return build_capture(folder, ops=ops, files=["/a", "/b", "/c"], info=info)


def as_version_4(capture: Capture, new_name: int | None = None) -> Capture:
    """The capture as releases wrote it until version 5: each fact pair in one column. `new_name`: of each rename."""
    for part in (capture.path / "ops").glob("*.parquet"):
        rows = pq.read_table(part)
        columns = {name: rows[name].to_pylist() for name in TOUCHED}
        offset = [
            place if op != "rename" else other if new_name is None else new_name
            for op, place, other in zip(columns["op"], columns["offset"], columns["other_file_id"], strict=True)
        ]
        follows = [
            None if fetch is None else 2 * fetch + end
            for fetch, end in zip(columns["follows"], columns["follows_end"], strict=True)
        ]
        old = rows.drop_columns(["other_file_id", "follows_end"])
        for name, values in (("offset", offset), ("follows", follows)):
            column = pa.array(values, type=OPS_SCHEMA.field(name).type)
            old = old.set_column(old.schema.get_field_index(name), old.schema.field(name), column)
        pq.write_table(old, part, row_group_size=3)
    (capture.path / "index.parquet").unlink()
    document = json.loads((capture.path / "capture.json").read_text())
    (capture.path / "capture.json").write_text(json.dumps(document | {"schema_version": 4, "digests": {}}))
    return open_capture(capture.path)


def rows_of(capture: Capture, columns: tuple[str, ...] | None = None) -> list[dict[str, object]]:
    return [row for batch in capture.operations(columns=columns) for row in batch.to_pylist()]


def test_all_rows_are_those_of_a_capture_of_today(tmp_path: Path) -> None:
    capture = made(tmp_path)
    expected, counts = rows_of(capture), [capture.usage(rank).to_pylist() for rank in (0, 1)]
    assert [row["other_file_id"] for row in expected] == [None, None, 2, None, None, 0, None]
    old = as_version_4(capture)
    assert old.info.schema_version == 4
    assert rows_of(old) == expected

    def ordered(found: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted(found, key=repr)

    assert [ordered(old.usage(rank).to_pylist()) for rank in (0, 1)] == [ordered(each) for each in counts]


@pytest.mark.parametrize("columns", [*combinations(TOUCHED, 1), *combinations(TOUCHED, 2), TOUCHED])
def test_whichever_columns_are_read(columns: tuple[str, ...], tmp_path: Path) -> None:
    capture = made(tmp_path)
    expected = [{name: row[name] for name in columns} for row in rows_of(capture)]
    (batch, *_) = as_version_4(capture).operations(columns=columns)
    assert set(batch.schema.names) == set(columns)
    assert rows_of(open_capture(capture.path), columns) == expected


@pytest.mark.parametrize("new_name", [-1, 3, 1 << 40])
def test_a_new_name_that_is_no_file_is_damage(new_name: int, tmp_path: Path) -> None:
    old = as_version_4(made(tmp_path), new_name)
    with pytest.raises(CaptureError, match=r"a rename names a file that files\.parquet lacks"):
        rows_of(old)
    assert np.sum([len(batch) for batch in old.operations(columns=["length"])]) == 7
