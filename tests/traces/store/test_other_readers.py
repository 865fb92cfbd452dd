"""What docs/capture-format.md promises: any Parquet reader finds the operations, and older captures stay readable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from dxt_replay.traces.schema import (
    DEPENDENCY_COLUMNS,
    FILES_SCHEMA,
    HDF5_SCHEMA,
    INDEX_SCHEMA,
    OPS_SCHEMA,
    SCHEMA_VERSION,
    SPANS_SCHEMA,
    USAGE_SCHEMA,
)
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read, write
from tests.places import ROOT

VERSION_2 = Path(__file__).parent / "captures" / "version-2"
"""Written by the release before schema version 3: usage-0000000.parquet lies in ops/."""

INTEGERS = ("rank", "lane", "file_id", "offset", "length", "start_ns", "end_ns", "step")

VERSION_3 = Path(__file__).parent / "captures" / "version-3"
"""Written by the release before schema version 4: the operations lack `feeds`, `follows` and `ready_ns`."""


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    ops = [
        read(i % 2, rank=rank, lane=i % 3, start_ns=i, offset=8 * i, length=8, due_ns=i, result=8)
        for rank in (0, 3)
        for i in range(10)
    ]
    return build_capture(tmp_path, ops=[*ops, write(1, rank=3, start_ns=99)], files=["/a", "/b"])


def test_pandas_finds_exactly_the_operations(capture: Capture) -> None:
    frame = pd.read_parquet(capture.path / "ops")
    assert list(frame.columns) == OPS_SCHEMA.names
    assert len(frame) == capture.operation_count() == 21
    assert all(pd.api.types.is_integer_dtype(frame[name]) for name in INTEGERS)
    assert not frame[list(INTEGERS)].isna().any().any()


def test_duckdb_finds_exactly_the_operations(capture: Capture) -> None:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select count(*), sum(length) from read_parquet('{capture.path}/ops/*.parquet')").fetchall()
    assert found == [(21, 160)]


def test_a_capture_of_version_2_is_read(tmp_path: Path) -> None:
    capture = open_capture(VERSION_2)
    assert capture.info.schema_version == 2
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    assert [(row["rank"], row["op"], row["offset"], row["length"], row["other_file_id"]) for row in rows] == [
        (0, "read", 0, 4096, None),
        (0, "read", 4096, 100, None),
        (1, "write", 0, 7, None),
        (1, "rename", -1, 0, 0),
    ]
    assert capture.paths() == ["/data/a", "/ckpt/b"]
    assert capture.spans.num_rows == 2
    assert [capture.usage(rank)["operations"].to_pylist() for rank in (0, 1)] == [[1, 1], [1, 1]]


def test_a_capture_of_version_3_is_read() -> None:
    capture = open_capture(VERSION_3)
    assert (capture.info.schema_version, capture.info.dependencies) == (3, "inferred")
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    assert [(row["rank"], row["op"], row["origin"], row["length"]) for row in rows] == [
        (0, "read", "traced", 4096),
        (0, "read", "traced", 100),
        (1, "write", "reconstructed", 7),
        (1, "rename", "traced", 0),
    ]
    assert all(row[name] is None for row in rows for name in DEPENDENCY_COLUMNS)
    assert [capture.usage(rank).num_rows for rank in (0, 1)] == [2, 2]


def test_a_copied_capture_is_whole(capture: Capture, tmp_path: Path) -> None:
    shutil.copytree(capture.path, tmp_path / "copy.capture")
    (tmp_path / "copy.capture" / "index.parquet").unlink()
    assert open_capture(tmp_path / "copy.capture").usage(0).num_rows == capture.usage(0).num_rows


@pytest.mark.parametrize("schema", [OPS_SCHEMA, FILES_SCHEMA, SPANS_SCHEMA, HDF5_SCHEMA, INDEX_SCHEMA, USAGE_SCHEMA])
def test_the_description_names_every_column(schema: pa.Schema) -> None:
    text = (ROOT / "docs" / "capture-format.md").read_text(encoding="utf-8")
    missing = [name for name in schema.names if f"`{name}`" not in text]
    assert not missing


def test_the_description_knows_every_version_and_name() -> None:
    from dxt_replay.traces.schema import VOCABULARY

    text = (ROOT / "docs" / "capture-format.md").read_text(encoding="utf-8")
    assert all(f"| {version} |" in text for version in range(1, SCHEMA_VERSION + 1))
    assert not [name for names in VOCABULARY.values() for name in names if f"`{name}`" not in text]
