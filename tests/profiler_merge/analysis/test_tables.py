"""The tables of the analysis: descriptions, queries, formats."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.named_tables import flat_table, table_of, to_pandas, write_csv
from dxt_replay.profiler_merge.analysis.queries import GroupTotals, group_totals, made_by_query, query
from dxt_replay.profiler_merge.analysis.summary import Summary
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.traces.errors import CaptureError, MissingDependencyError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import unit_of
from tests.capture_builder import File, build_capture, read, write
from tests.schemas import schema


def test_every_column_is_of_a_table_and_explained() -> None:
    assert {column for table in (*TABLES.values(), GROUPS) for column in table.columns} == set(COLUMNS)
    assert all(column.meaning for column in COLUMNS.values())
    assert "-1" in COLUMNS["rank"].meaning


def test_a_column_has_one_type_but_for_texts_in_place_of_numbers() -> None:
    assert TABLES["findings"].schema.field("files").type == pa.string()
    assert TABLES["ranks"].schema.field("files").type == pa.int64()


def test_times_are_nanoseconds_in_every_table_but_for_what_is_at_stake() -> None:
    assert {column for column in COLUMNS if unit_of(column) == "s"} == {"at_stake_s"}
    assert (unit_of("bytes_read"), unit_of("read_mib_s"), unit_of("io_busy_share")) == ("bytes", "MiB/s", "0 to 1")
    assert unit_of("reads") == ""


def test_every_key_of_the_summary_is_explained() -> None:
    keys = schema("summary")["properties"].items()
    explained = {key for key, about in keys if "description" in about} - {"tables", "overlap", "unread"}
    fields = {field.name for field in dataclasses.fields(Summary)} - {"generated"}
    assert explained == fields | {"storage_limit", "model"}


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


def test_whole_numbers_stay_whole_in_pandas() -> None:
    frame = to_pandas(
        pa.table({"a": pa.array([1, None], pa.int64()), "b": pa.array([1, 2], pa.int64()), "c": ["x", None]})
    )
    assert frame["a"].tolist()[0] == 1
    assert str(frame["a"].dtype) == "Int64"
    assert str(frame["b"].dtype) == "int64"
    assert frame["a"].isna().tolist() == [False, True]


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dxt-replay\[pandas\]'"):
        to_pandas(pa.table({"a": [1]}))


def test_csv_reads_back_whatever_a_path_holds() -> None:
    rows = [{"path": 'a,"b"\nc', "n": 1}, {"path": "plain", "n": None}]
    out = io.BytesIO()
    write_csv(table_of(rows, pa.schema([("path", pa.string()), ("n", pa.int64())])), out)
    read = list(csv.reader(io.StringIO(out.getvalue().decode(), newline="")))
    assert read == [["path", "n"], ['a,"b"\nc', "1"], ["plain", ""]]


def test_nested_values_become_rows() -> None:
    table = flat_table({"a": {"b": 1, "c": None}, "d": ("x", "y")})
    assert table.to_pylist() == [
        {"name": "a.b", "value": "1"},
        {"name": "a.c", "value": None},
        {"name": "d.0", "value": "x"},
        {"name": "d.1", "value": "y"},
    ]
