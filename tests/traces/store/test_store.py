"""What is written comes back bit for bit, for any reader; lanes, and what two captures are to each other."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    HDF5_SCHEMA,
    INDEX_SCHEMA,
    LANES_SCHEMA,
    OPS_SCHEMA,
    ORIGINS,
    SCHEMA_VERSION,
    SPANS_SCHEMA,
    USAGE_SCHEMA,
    VOCABULARY,
    CaptureInfo,
    Coverage,
    Job,
    RankClock,
    Source,
)
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.relation import Relation, relation_of
from dxt_replay.traces.store.writer import (
    OpsWriter,
    create_capture,
    lanes_with_facts,
    write_capture_info,
    write_files,
    write_lanes,
    write_spans,
    written_lanes,
)
from tests.capture_builder import (
    File,
    Op,
    Span,
    build_capture,
    files_table,
    lanes_table,
    ops_table,
    read,
    spans_table,
    write,
)
from tests.examples import examples
from tests.places import ROOT


def lasting(duration_ns: int, start_ns: int, **columns: Any) -> Op:
    return read(start_ns=start_ns, end_ns=start_ns + duration_ns, **columns)


OPERATIONS = st.lists(
    st.builds(
        lasting, st.integers(0, 2**40), file_id=st.integers(0, 2), rank=st.integers(0, 4), lane=st.integers(0, 3),
        offset=st.integers(0, 2**62 - 1), length=st.integers(0, 2**62 - 1), start_ns=st.integers(-(2**40), 2**60),
        step=st.integers(-1, 1000), api=st.sampled_from(["POSIX", "MPIIO", "HDF5"]),
        due_ns=st.none() | st.integers(0, 2**62), result=st.none() | st.integers(-133, 2**62),
        origin=st.sampled_from(ORIGINS), feeds=st.none() | st.integers(0, 2**31 - 1),
        follows=st.none() | st.integers(0, 2**31 - 1), follows_end=st.booleans(),
        ready_ns=st.none() | st.integers(0, 2**60),
    ),
    max_size=25,
)  # fmt: skip


@example([read(0, offset=2**62 - 1, length=2**62 - 1)])
@settings(max_examples=examples(12))
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
        ranks=(0, 1), sources=(Source(name="a.darshan", sha256="0" * 64, kind="darshan"),),
        clock=(RankClock(rank=1, method="anchors", offset_ns=-5, residual_ns=1, interval_ns=(-6, -4)),),
        coverage=Coverage(bytes=0.5, operations=None, ranks={0: (1.0, None)}), lanes="pthread_id", dependencies="known",
        warnings=("partial",), partial=True, made_by={"program": "test", "lag_us": {"p50": 0.1}},
    )  # fmt: skip
    files = [File(b"/x\xff\n", size=9, counters={"posix_reads": 3}), File("/é", stripe_count=4)]
    spans = [Span("step", 5, 9, step=1), Span("compute", 1, 2, name="c", rank=1)]
    capture = build_capture(tmp_path, ops=[read(0, length=9)], files=files, spans=spans, info=info)
    assert capture.info == dataclasses.replace(info, digests=capture.info.digests)
    assert capture.files["path_bytes"].to_pylist() == [b"/x\xff\n", None]
    assert capture.files["posix_reads"].to_pylist() == [3, None]
    assert capture.spans["start_ns"].to_pylist() == [5, 1]
    assert capture.time_span_ns == (0, 1000)


OPS = [
    read(0, rank=rank, lane=lane, start_ns=10 * lane + start) for rank in (0, 3) for lane in (0, 2) for start in (0, 5)
]


def build(folder: Path, facts: pa.Table) -> Capture:
    path = folder / "test.capture"
    create_capture(path)
    for rank in (0, 3):  # two writers, as two processes have them
        with OpsWriter(path, row_group_rows=3) as writer:
            writer.write(ops_table(op for op in OPS if op.rank == rank))
    write_files(path, files_table(["/a"], OPS))
    write_spans(path, spans_table([]))
    assert [column.tolist() for column in written_lanes(path)] == [[0, 0, 3, 3], [0, 2, 0, 2]]
    write_lanes(path, facts)
    write_capture_info(path, CaptureInfo(job=Job(nprocs=4, run_time_s=1.0), ranks=(0, 1, 3)))
    return open_capture(path)


def test_each_lane_with_operations_has_one_row_and_no_other(tmp_path: Path) -> None:
    told = [
        (3, 2, "b", 9, "worker"), (0, 0, "a", 7, "main"), (0, 1, "a", 8, "thread"), (1, 0, "a", 8, None),
        (0, 0, "late", 1, "reader"),
    ]  # fmt: skip
    capture = build(tmp_path, lanes_table(told))
    assert [tuple(row.values()) for row in capture.lanes.to_pylist()] == [
        (0, 0, "a", 7, 7, "main"),
        (0, 2, None, None, None, None),
        (3, 0, None, None, None, None),
        (3, 2, "b", 9, 9, "worker"),
    ]
    assert "lanes.parquet" in capture.info.digests
    assert part_of(capture, Part(ranks=(3,))).lanes["lane"].to_pylist() == [0, 2]
    only = lanes_with_facts(capture.lanes, ["role"])
    assert only["host"].null_count == only["pid"].null_count == only.num_rows
    assert only["role"].to_pylist() == ["main", None, None, "worker"]


@pytest.mark.parametrize("facts", [LANES_SCHEMA.empty_table(), lanes_table([(0, 0, None, None, None)])])
def test_where_nothing_is_known_there_is_no_table(facts: pa.Table, tmp_path: Path) -> None:
    capture = build(tmp_path, facts)
    assert not (capture.path / "lanes.parquet").exists()
    assert capture.lanes.equals(LANES_SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, "a", 1, None), (0, 0, "b", 2, None)], "two rows of one lane"),
        ([(2, 0, "a", 1, None)], "a rank that capture.json does not list"),
        ([(0, -1, "a", 1, None)], "below 0"),
    ],
)
def test_damage_is_named(
    rows: list[tuple[int, int, str | None, int | None, str | None]], message: str, tmp_path: Path
) -> None:
    capture = build(tmp_path, lanes_table([(0, 0, "a", 7, "main")]))
    pq.write_table(lanes_table(rows), capture.path / "lanes.parquet")
    with pytest.raises(CaptureError, match=message):
        _ = open_capture(capture.path).lanes


LOG, OTHER_LOG = (Source(name="job.darshan", sha256=each * 32, kind="darshan") for each in ("ab", "cd"))


def made(folder: Path, name: str, length: int = 1, sources: tuple[Source, ...] = (), **keywords: object) -> Capture:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=length), ranks=(0,), sources=sources)
    return build_capture(folder, name=name, files=["/a"], ops=[read(0, length=length)], info=info, **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [{"rank": 0, "start_ns": 1}, {"rank": 1, "start_ns": 9}])
def test_rows_out_of_order_are_refused_and_leave_no_part(tmp_path: Path, columns: dict[str, int]) -> None:
    def write_one_by_one() -> None:
        with OpsWriter(tmp_path) as writer:
            for row in (read(0, start_ns=5), read(0, **columns), read(0, start_ns=10)):
                writer.write(ops_table([row]))

    with pytest.raises(CaptureError):
        write_one_by_one()
    assert not list((tmp_path / "ops").iterdir())


@pytest.mark.parametrize("part", ["capture.json", "files.parquet", "spans.parquet", "ops"])
def test_a_part_that_is_cut_or_missing_is_told(tmp_path: Path, part: str) -> None:
    capture = build_capture(tmp_path, ops=[read(0), write(0, length=3)], files=["/a"], spans=[Span("step", 0, 1)])
    file = next((capture.path / part).glob("*.parquet")) if part == "ops" else capture.path / part
    whole = file.read_bytes()
    for keep in range(0, len(whole) - 2, max(1, len(whole) // 25)):
        file.write_bytes(whole[:keep])
        with pytest.raises(CaptureError):
            _ = open_capture(capture.path).spans
    (capture.path / part).rename(tmp_path / "elsewhere")
    with pytest.raises(CaptureError, match=part.split(".", maxsplit=1)[0]):
        open_capture(capture.path)


def test_other_readers_find_exactly_the_operations(tmp_path: Path) -> None:
    ops = [read(i % 2, rank=rank, start_ns=i, offset=8 * i, length=8, result=8) for rank in (0, 3) for i in range(10)]
    capture = build_capture(tmp_path, ops=[*ops, write(1, rank=3, start_ns=99)], files=["/a", "/b"])
    frame = pd.read_parquet(capture.path / "ops")
    assert list(frame.columns) == OPS_SCHEMA.names
    assert len(frame) == capture.operation_count() == 21
    assert all(
        pd.api.types.is_integer_dtype(frame[each.name])
        for each in OPS_SCHEMA
        if str(each.type) == "int64" and not each.nullable
    )
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select count(*), sum(length) from read_parquet('{capture.path}/ops/*.parquet')").fetchall()
    assert found == [(21, 160)]


def test_the_description_names_every_column_version_and_name() -> None:
    text = (ROOT / "docs" / "capture-format.md").read_text(encoding="utf-8")
    schemas = (OPS_SCHEMA, FILES_SCHEMA, SPANS_SCHEMA, HDF5_SCHEMA, INDEX_SCHEMA, USAGE_SCHEMA, LANES_SCHEMA)
    names = {name for each in (*(schema.names for schema in schemas), *VOCABULARY.values()) for name in each}
    assert not {name for name in names if f"`{name}`" not in text}
    assert all(f"| {version} |" in text for version in range(1, SCHEMA_VERSION + 1))


def test_what_two_captures_are_to_each_other(tmp_path: Path) -> None:
    source = made(tmp_path, "source", sources=(LOG,))
    replay, other = made(tmp_path, "replay", replay_of=source), made(tmp_path, "other", sources=(OTHER_LOG,))
    copy = open_capture(shutil.copytree(source.path, tmp_path / "copy.capture"))
    for one, second, expected in (
        (source, replay, Relation.REPLAY),
        (replay, source, Relation.REVERSED),
        (replay, made(tmp_path, "again", length=2, replay_of=source), Relation.BOTH_REPLAYS),
        (source, source, Relation.SAME),
        (source, copy, Relation.SAME),
        (source, made(tmp_path, "merged again", length=3, sources=(LOG,)), Relation.SAME),
        (source, other, Relation.DIFFERENT),
        (source, made(tmp_path, "its replay", replay_of=other), Relation.DIFFERENT),
        (made(tmp_path, "one"), made(tmp_path, "two"), Relation.DIFFERENT),  # equal, but of no source
    ):
        assert relation_of(one, second) is expected
