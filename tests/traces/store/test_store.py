"""The store: what is written comes back bit for bit, and what is damaged is told, not guessed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import (
    ORIGINS,
    CaptureInfo,
    Coverage,
    Job,
    RankClock,
    Source,
    codes,
)
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import (
    OpsWriter,
    write_capture_info,
)
from tests.capture_builder import File, Op, Span, build_capture, ops_table, read, write
from tests.examples import examples

INT63 = st.integers(0, 2**62)
PLACES = st.integers(0, 2**62 - 1)  # a file's size, the sum of two, is an int64 too
DURATIONS = st.integers(0, 2**40)


def lasting(duration_ns: int, start_ns: int, **columns: Any) -> Op:
    return read(start_ns=start_ns, end_ns=start_ns + duration_ns, **columns)


OPERATIONS = st.lists(
    st.builds(
        lasting,
        DURATIONS,
        file_id=st.integers(0, 2),
        rank=st.integers(0, 4),
        lane=st.integers(0, 3),
        offset=PLACES,
        length=PLACES,
        start_ns=st.integers(-(2**40), 2**60),
        step=st.integers(-1, 1000),
        api=st.sampled_from(["POSIX", "MPIIO", "HDF5"]),
        due_ns=st.none() | INT63,
        result=st.none() | st.integers(-133, 2**62),
        origin=st.sampled_from(ORIGINS),
        feeds=st.none() | st.integers(0, 2**31 - 1),
        follows=st.none() | st.integers(0, 2**31 - 1),
        follows_end=st.booleans(),
        ready_ns=st.none() | st.integers(0, 2**60),
    ),
    max_size=40,
)


@example([read(0, offset=2**62 - 1, length=2**62 - 1)])
@settings(max_examples=examples(30))
@given(OPERATIONS)
def test_operations_come_back_bit_for_bit(tmp_path_factory, operations):
    capture = build_capture(tmp_path_factory.mktemp("store"), ops=operations, files=["/a", "/b", "/c"], ranks=range(5))
    batches = list(capture.operations())
    assert sum(batch.num_rows for batch in batches) == capture.operation_count() == len(operations)
    if batches:
        assert pa.Table.from_batches(batches).combine_chunks().equals(ops_table(operations).combine_chunks())


def test_files_spans_and_info_come_back(tmp_path):
    info = CaptureInfo(
        job=Job(
            nprocs=2, run_time_s=1.5, start_ns=17, zero_ns=18, job_id=3, exe="train.py", metadata={"lib_ver": "3.5"}
        ),
        ranks=(0, 1),
        sources=(Source(name="a.darshan", sha256="0" * 64, kind="darshan"),),
        clock=(RankClock(rank=1, method="anchors", offset_ns=-5, residual_ns=1, interval_ns=(-6, -4)),),
        coverage=Coverage(bytes=0.5, operations=None, ranks={0: (1.0, None)}),
        lanes="pthread_id",
        dependencies="known",
        warnings=("partial",),
        partial=True,
        made_by={"program": "test", "lag_us": {"p50": 0.1}},
    )
    files = [File(b"/x\xff\n", size=9, counters={"posix_reads": 3}), File("/é", stripe_count=4)]
    spans = [Span("step", 5, 9, step=1), Span("compute", 1, 2, name="c", rank=1)]
    capture = build_capture(tmp_path, ops=[read(0, length=9)], files=files, spans=spans, info=info)
    assert capture.info == dataclasses.replace(info, digests=capture.info.digests)
    assert capture.files["path_bytes"].to_pylist() == [b"/x\xff\n", None]
    assert capture.files["posix_reads"].to_pylist() == [3, None]
    assert capture.spans["start_ns"].to_pylist() == [5, 1]
    assert capture.time_span_ns == (0, 1000)


def write_one_by_one(path, rows):
    with OpsWriter(path) as writer:
        for row in rows:
            writer.write(ops_table([row]))


@pytest.mark.parametrize("columns", [{"rank": 0, "start_ns": 1}, {"rank": 1, "start_ns": 9}])
def test_rows_out_of_order_are_refused(tmp_path, columns):
    rows = [read(0, rank=0, start_ns=5), read(0, **columns), read(0, rank=0, start_ns=10)]
    with pytest.raises(CaptureError):
        write_one_by_one(tmp_path, rows)
    assert not list((tmp_path / "ops").iterdir())


def test_a_newer_schema_is_refused_by_name(tmp_path):
    capture = build_capture(tmp_path, ops=[read(0)], files=["/a"])
    file = capture.path / "capture.json"
    data = json.loads(file.read_text())
    data["schema_version"] = 99
    file.write_text(json.dumps(data))
    with pytest.raises(CaptureError, match="schema version 99"):
        open_capture(capture.path)


@pytest.mark.parametrize("part", ["capture.json", "files.parquet", "spans.parquet", "ops"])
def test_a_missing_part_is_named(tmp_path, part):
    capture = build_capture(tmp_path, ops=[read(0)], files=["/a"])
    missing = capture.path / part
    missing.rename(tmp_path / "elsewhere")
    with pytest.raises(CaptureError, match=part.split(".", maxsplit=1)[0]):
        open_capture(capture.path)


@pytest.mark.parametrize("part", ["files.parquet", "spans.parquet", "ops", "capture.json"])
def test_a_truncated_part_is_told(tmp_path, part):
    capture = build_capture(tmp_path, ops=[read(0), write(0, length=3)], files=["/a"], spans=[Span("step", 0, 1)])
    file = next((capture.path / part).glob("*.parquet")) if part == "ops" else capture.path / part
    whole = file.read_bytes()
    for keep in range(0, len(whole) - 2, max(1, len(whole) // 25)):
        file.write_bytes(whole[:keep])
        with pytest.raises(CaptureError):
            open_capture(capture.path).spans  # noqa: B018


def test_a_part_that_vanished_is_noticed(tmp_path):
    capture = build_capture(tmp_path, ops=[read(0), read(0, rank=1)], files=["/a"])
    info = CaptureInfo(job=capture.info.job, ranks=(0, 1), made_by={"operations_stored": 3})
    write_capture_info(capture.path, info)
    with pytest.raises(CaptureError, match="2 of 3 operations"):
        open_capture(capture.path)


def test_codes_translate_foreign_dictionaries():
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array(["write", "read"]))
    assert codes(pa.table({"op": column}), "op").tolist() == [2, 3, 2]


def as_version_1(capture):
    """Rewrite a capture as release 0.1.0 wrote it: seven operations, no column `offsets`, schema version 1."""
    operations = ("open", "close", "read", "write", "stat", "sync", "seek")
    for part in (capture.path / "ops").glob("*.parquet"):
        table = pq.read_table(part)
        op = pa.DictionaryArray.from_arrays(pa.array(codes(table, "op")), pa.array(operations))
        pq.write_table(table.set_column(table.schema.get_field_index("op"), "op", op), part)
    (capture.path / "index.parquet").unlink()
    files = pq.read_table(capture.path / "files.parquet").drop_columns("offsets")
    pq.write_table(files, capture.path / "files.parquet")
    info = json.loads((capture.path / "capture.json").read_text())
    (capture.path / "capture.json").write_text(json.dumps(info | {"schema_version": 1}))


def test_a_capture_of_version_1_is_read(tmp_path):
    ops = [read(0, length=5, start_ns=1), write(1, length=7, start_ns=2), Op("seek", 0, start_ns=3)]
    written = build_capture(tmp_path, ops=ops, files=["/a", "/b"])
    before = [batch.to_pylist() for batch in written.operations()]
    as_version_1(written)
    capture = open_capture(written.path)
    assert capture.info.schema_version == 1
    assert [batch.to_pylist() for batch in capture.operations()] == before
    assert capture.files["offsets"].null_count == capture.files.num_rows == 2
    assert capture.paths() == ["/a", "/b"]


@pytest.mark.parametrize("name", ["files.parquet", "ops/part-0000000-0000.parquet", "spans.parquet"])
def test_two_columns_of_one_name_are_damage(tmp_path: Path, name: str) -> None:
    capture = build_capture(tmp_path, ops=[read(0, length=1)], files=["/a"], spans=[Span("step", 0, 9, step=0)])
    table = pq.ParquetFile(capture.path / name).read()
    pq.write_table(table.append_column("twin", table[0]).append_column("twin", table[0]), capture.path / name)
    (capture.path / "index.parquet").unlink()
    with pytest.raises(CaptureError, match="two columns 'twin'"):
        assert open_capture(capture.path).spans


@pytest.mark.parametrize("length", [20 << 20, 100 << 20])
def test_a_name_that_fills_the_memory_is_damage(tmp_path: Path, length: int) -> None:
    """The longer one is a few kB in the file; it is refused by what the footer says, before it is unpacked."""
    capture = build_capture(tmp_path, ops=[read(0, length=1)], files=["/a"])
    path = capture.path / "files.parquet"
    table = pq.ParquetFile(path).read()
    place = table.schema.get_field_index("path")
    long = pa.array([b"x" * length], table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), long), path, compression="zstd")
    with pytest.raises(CaptureError, match=r"is damaged: (a text|it claims)"):
        open_capture(capture.path)
