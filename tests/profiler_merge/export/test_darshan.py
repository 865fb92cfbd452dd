"""Logs that we write: what this package, and pydarshan, read in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counters import CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.profiler_merge.export.darshan import FAILED, WRITER_KEY, write_darshan
from dxt_replay.profiler_merge.export.exported import Exported
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import APIS, OPS, CaptureInfo, Coverage, Job
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import darshan_model, darshan_oracle
from tests.capture_builder import File, Op, Span, build_capture, read
from tests.examples import examples

START_NS = 1_700_000_000_123_456_789
NOT_WRITTEN = re.compile(r"_(ACCESS|STRIDE)\d_|_FILE_NOT_ALIGNED")
SIZES = st.sampled_from(
    [0, 1, 2, 99, 100, 101, 512, 1024, 4096, 102_400, 1 << 20, (1 << 20) + 1, 1 << 31]
) | st.integers(0, 40)


def info(ranks: int, **changes: Any) -> CaptureInfo:
    job = Job(
        nprocs=ranks, run_time_s=100.0, start_ns=START_NS, end_ns=START_NS + 100_000_000_000, zero_ns=START_NS,
        job_id=77, exe="python train.py --x", metadata={"lib_ver": "3.4.1", "h": "k=v"},
    )  # fmt: skip
    return CaptureInfo(**{"job": job, "ranks": tuple(range(ranks)), **changes})


def logged(folder: Path, *, files: Any = ("/a",), **columns: Any) -> tuple[Exported, DarshanLog, CounterTable]:
    """What the export of a made capture said, the log, and its counters of POSIX."""
    made = write_darshan(build_capture(folder, files=files, **columns), folder / "x.darshan", force=True)
    log = open_log(folder / "x.darshan")
    table = read_counters(log, "POSIX")
    assert table is not None
    return made, log, table


def traced(capture: Capture) -> list[dict[str, Any]]:
    """The rows of DXT with paths in place of file ids, in an order of their own."""
    paths = capture.files["path"].to_pylist()
    rows = [row for batch in capture.operations() for row in batch.to_pylist() if row["origin"] == "traced"]
    for row in rows:
        row["path"] = paths[row.pop("file_id")]
        for name in ("lane", "step", "origin", "due_ns", "result"):
            del row[name]
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in sorted(row)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("darshan")


OPERATION = st.builds(
    lambda op, api, file, rank, lane, offset, length, start, duration: Op(
        op, file, rank=rank, lane=lane, api=api, offset=offset, length=length, start_ns=start, end_ns=start + duration
    ),
    *(st.sampled_from(["read", "write"]), st.sampled_from(["POSIX", "MPIIO"])),
    *(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1 << 42)),
    *(st.sampled_from([0, 1, 4096]) | st.integers(0, 1 << 32), st.integers(-1_000_000_000, 90_000_000_000)),
    st.integers(0, 5_000_000_000),
)


@settings(max_examples=examples(12))
@given(ops=st.lists(OPERATION, min_size=1, max_size=25))
def test_a_log_merged_again_is_the_same_capture(folder: Path, ops: list[Op]) -> None:
    files = [
        File("/data/a", record_id=5),
        File(b"/odd\xff", record_id=6),
        "/x y/b",
        File("/s/c", mount="/s", fs_type="nfs"),
    ]
    capture = build_capture(folder, files=files, ops=ops, info=info(3))
    write_darshan(capture, folder / "again.darshan", force=True)
    merge([folder / "again.darshan"], [], folder / "again.capture", MergeOptions(force=True))
    found = open_capture(folder / "again.capture")
    assert traced(found) == traced(capture)
    job = found.info.job
    assert (job.nprocs, job.start_ns, job.end_ns, job.zero_ns) == (3, START_NS, capture.info.job.end_ns, START_NS)
    assert (job.job_id, job.exe, job.run_time_s) == (77, "python train.py --x", 100.0)
    assert {key: value for key, value in job.metadata.items() if key != WRITER_KEY} == {"lib_ver": "3.4.1", "h": "k=v"}
    assert found.info.coverage.bytes in (1.0, None)
    for column in ("record_id", "path_bytes", "mount", "fs_type", "format"):
        old, new = (dict(zip(c.paths(), c.files[column].to_pylist(), strict=True)) for c in (capture, found))
        assert {path: old[path] for path in new} == new


COUNTED = st.builds(
    lambda op, api, file, offset, length, start, duration, lane: Op(
        op, file, lane=lane, api=api, start_ns=start * 10**9, end_ns=(start + duration) * 10**9,
        offset=offset if op in ("read", "write") else -1, length=length if op in ("read", "write") else 0,
    ),
    st.sampled_from([op for op in OPS if op not in ("rename", "list", "delete")]),
    *(st.sampled_from(["POSIX", "MPIIO", "STDIO"]), st.integers(0, 5), SIZES, SIZES),
    *(st.integers(1, 30), st.integers(0, 6), st.integers(0, 1)),
)  # fmt: skip


@settings(max_examples=examples(4))
@given(jobs=st.lists(st.lists(COUNTED, min_size=20, max_size=60), min_size=3, max_size=3))
def test_pydarshan_reads_the_counters_of_one_call_after_the_other(folder: Path, jobs: list[list[Op]]) -> None:
    """The model keeps the counters in plain Python, as the operations return."""
    logs = [folder / f"counted{number}.darshan" for number in range(len(jobs))]
    for log, ops in zip(logs, jobs, strict=True):
        capture = build_capture(folder, files=[f"/{i}" for i in range(6)], ops=ops, info=info(1))
        write_darshan(capture, log, force=True)
    answers = darshan_oracle.read_all(logs)
    for log, ops in zip(logs, jobs, strict=True):
        check_counters(answers[log], ops)


def check_counters(answer: Any, ops: list[Op]) -> None:
    assert not isinstance(answer, str), answer
    columns = (
        (op.file_id, OPS.index(op.op), APIS.index(op.api), op.offset, op.length, op.start_ns, op.end_ns) for op in ops
    )
    rows = np.array(list(columns), dtype=darshan_model.ROW)
    rows = rows[rows["api"] == APIS.index("POSIX")]
    files = {1000 + file for file in rows["file_id"].tolist()}
    assert set(answer.get("POSIX ids", np.empty(0)).tolist()) == files
    for place, record in enumerate(answer["POSIX ids"].tolist() if files else ()):
        found = dict(zip(answer["POSIX names"], answer["POSIX counters"][:, place], strict=True))
        found |= dict(zip(answer["POSIX fnames"], answer["POSIX fcounters"][:, place], strict=True))
        for name, value in darshan_model.expected("POSIX", list(rows[rows["file_id"] == record - 1000])).items():
            if not NOT_WRITTEN.search(name):
                assert found[name] == pytest.approx(value, rel=1e-12), name


def test_seeks_without_an_operation_are_those_that_the_files_table_counts(tmp_path: Path) -> None:
    """/both: rank 1 made two traced ones of nine, any rank the others; /old: all have rows, as older captures do."""
    seeks = {"/both": 9, "/one": 5, "/old": 2, "/renamed": 4}
    ops = [
        *(read(0, rank=rank, length=9, start_ns=10 * rank) for rank in (2, 1)),
        *(Op("seek", 0, rank=1, start_ns=100 + at) for at in (0, 20)),
        read(1, rank=2, length=9, start_ns=30),
        *(Op("seek", 2, rank=1, start_ns=200 + at, origin="reconstructed") for at in (0, 20)),
        Op("rename", 0, rank=2, other_file_id=3, start_ns=400),
    ]
    files = [File(path, counters={"posix_seeks": count}) for path, count in seeks.items()]
    made, log, table = logged(tmp_path, files=files, ops=ops, info=info(4))
    columns = (table.record_ids.tolist(), table.ranks.tolist(), table.counters["POSIX_SEEKS"].tolist())
    found = {(log.names[record].decode(), rank): count for record, rank, count in zip(*columns, strict=True) if count}
    assert found == {(path, {"/one": 2, "/renamed": 2}.get(path, 1)): count for path, count in seeks.items()}
    assert "7 seeks on files of several ranks are written for the lowest of these" in " ".join(made.notes)


def test_what_a_log_cannot_hold_is_told(tmp_path: Path) -> None:
    ops = [
        read(0, length=5, start_ns=-10, end_ns=5, result=5), read(0, length=0, start_ns=1, result=-5),
        read(0, length=9, start_ns=2, api="HDF5"), read(0, length=9, start_ns=3, offset=-1),
        read(0, length=9, start_ns=4, offset=-1, api="MPIIO_COLL"), read(1, length=9, start_ns=5, api="S3"),
        Op("list", 1, start_ns=6, api="S3"), read(0, length=9, start_ns=7, api="MMAP"),
        read(0, length=9, start_ns=8, api="STDIO"),
    ]  # fmt: skip
    made, log, posix = logged(tmp_path, files=["/a", "s3://b/k"], ops=ops, spans=[Span("step", 0, 100, step=0)])
    left_out = {FAILED: 1, "hdf5": 1, "s3": 2, "stdio": 1, "mmap": 1}
    assert (made.operations, made.left_out, made.files[0].entries) == (3, left_out, 2)
    beginnings = [" ".join(note.split()[:4]) for note in made.notes]
    assert beginnings == [
        "1 spans and the", "lanes are not kept:", "1 operations are in", "1 operations that failed",
        *(f"{left_out[kind]} operations at {kind.upper()}" for kind in ("hdf5", "mmap", "s3", "stdio")),
        "1 collective operations are", "1 operations begin before",
    ]  # fmt: skip
    assert [log.names[record] for record in posix.record_ids.tolist()] == [b"/a"]


@pytest.mark.parametrize(
    ("changes", "partial"),
    [({}, False), ({"partial": True}, True), ({"coverage": Coverage(bytes=0.5, operations=1.0)}, True)],
)
def test_a_partial_trace_is_marked_and_time_zero_is_not_never(
    tmp_path: Path, changes: Mapping[str, Any], partial: bool
) -> None:
    _, log, posix = logged(tmp_path, ops=[read(0, length=5, start_ns=0, end_ns=0)], info=info(1, **changes))
    assert {name: module.partial for name, module in log.modules.items()} == {"POSIX": partial, "DXT_POSIX": partial}
    for name in (f"{what}_{when}" for what in ("READ", "OPEN", "CLOSE") for when in ("START", "END")):
        assert 0 < posix.fcounters[f"POSIX_F_{name}_TIMESTAMP"][0] < 1e-9
    assert posix.fcounters["POSIX_F_WRITE_START_TIMESTAMP"].tolist() == [0]


def test_records_are_named_by_darshans_hash_where_a_capture_has_no_ids(tmp_path: Path) -> None:
    files = [File("/a", record_id=3), File("/b", record_id=3)]
    names = logged(tmp_path, files=files, ops=[read(0, length=5), read(1, length=5)])[1].names
    assert {names[record_id(path)] for path in ("/a", "/b")} == {b"/a", b"/b"}
    with pytest.raises(CaptureError, match="two files have the same path"):
        logged(tmp_path / "twice", files=[File("/a", record_id=0), File("/a", record_id=0)])


def test_a_rename_is_counted_at_both_names(tmp_path: Path) -> None:
    renames = ((0, 1, 0), (1, 2, 1), (1, 0, 0))
    ops = [Op("rename", old, other_file_id=2, start_ns=start, rank=rank) for old, start, rank in renames]
    posix = logged(tmp_path, files=["/a", File("/b", record_id=1 << 63), "/c"], ops=ops, info=info(2))[2]
    names = ("RENAME_SOURCES", "RENAME_TARGETS", "RENAMED_FROM")
    columns = [posix.ranks, posix.record_ids, *(posix.counters[f"POSIX_{name}"] for name in names)]
    high = -(1 << 63)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 1000, 1, 0, 0), (0, 1002, 0, 2, high), (0, 1 << 63, 1, 0, 0), (1, 1002, 0, 1, high), (1, 1 << 63, 1, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("exe", "keys", "mounts"), [("é" * 4000, 0, 1), ("python train.py", 0, 30), ("python train.py", 20, 1)]
)
def test_what_finds_no_room_is_cut_at_whole_entries(tmp_path: Path, exe: str, keys: int, mounts: int) -> None:
    files = [File(f"/{i}" + "m" * 200 + "/a", mount=f"/{i}" + "m" * 200, fs_type="nfs") for i in range(mounts)]
    metadata = {f"key{i}": "v" * 100 for i in range(keys)}
    job = Job(nprocs=1, run_time_s=1, zero_ns=START_NS, exe=exe, metadata=metadata)
    made, log, _ = logged(tmp_path, files=files, ops=[read(0, length=1)], info=CaptureInfo(job=job, ranks=(0,)))
    assert any("a job record has 4096 bytes" in note for note in made.notes)
    assert log.warnings == ()
    assert log.job.metadata["lib_ver"] == "3.5.0"
    assert all(value == "v" * 100 for key, value in log.job.metadata.items() if key.startswith("key"))
    assert log.job.mounts
    assert all(len(mount.path) > 200 for mount in log.job.mounts)
    assert log.job.exe
    assert log.job.exe.strip("é") in ("", "python train.py")
