from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.job_logs import process_count
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.export.darshan_writer import FAILED, HDF5, WRITER_KEY, write_darshan
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import COUNTERS, CaptureInfo, Coverage, Job
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import darshan_oracle
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.examples import examples
from tests.places import SHARED

START_NS = 1_700_000_000_123_456_789
shared = pytest.mark.skipif(not darshan_oracle.shared_logs(), reason="no logs beside the checkout")


def info(ranks: int, **changes: Any) -> CaptureInfo:
    job = Job(
        nprocs=ranks, run_time_s=100.0, start_ns=START_NS, end_ns=START_NS + 100_000_000_000, zero_ns=START_NS,
        job_id=77, exe="python train.py --x", metadata={"lib_ver": "3.4.1", "h": "k=v"},
    )  # fmt: skip
    return CaptureInfo(**{"job": job, "ranks": tuple(range(ranks)), **changes})


def again(capture: Capture, folder: Path, dxt_version: int = 2) -> Capture:
    """The capture that a log of `capture` gives."""
    write_darshan(capture, folder / "again.darshan", dxt_version=dxt_version, force=True)
    merge([folder / "again.darshan"], [], folder / "again.capture", MergeOptions(force=True))
    return open_capture(folder / "again.capture")


def traced(capture: Capture) -> list[dict[str, Any]]:
    """The rows of DXT with paths in place of file ids, in an order of their own."""
    paths = capture.files["path"].to_pylist()
    rows = [row for batch in capture.operations() for row in batch.to_pylist() if row["origin"] == "traced"]
    for row in rows:
        row["path"] = paths[row.pop("file_id")]
        for name in ("step", "origin", "due_ns", "result"):
            del row[name]
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in sorted(row.keys() - {"lane"})))


def reconstructed(capture: Capture) -> Counter[tuple[Any, ...]]:
    """The other rows without their times, which are inferred; renames name their other file."""
    paths = capture.files["path"].to_pylist()
    found: Counter[tuple[Any, ...]] = Counter()
    for row in (row for batch in capture.operations() for row in batch.to_pylist()):
        if row["origin"] == "reconstructed":
            offset = paths[row["other_file_id"]] if row["op"] == "rename" else row["offset"]
            found[row["rank"], row["op"], row["api"], paths[row["file_id"]], offset, row["length"]] += 1
    return found


def without_lanes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "lane"} for row in rows]


def assert_same_lanes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Lanes may have other numbers, but hold the same operations."""
    keys = ["rank", "path", "op", "api", "offset", "length", "start_ns", "end_ns"]
    groups = []
    for rows in (before, after):
        lanes: dict[tuple[int, int], list[Any]] = {}
        for row in rows:
            lanes.setdefault((row["rank"], row["lane"]), []).append(tuple(row[key] for key in keys))
        groups.append(sorted(sorted(lane) for lane in lanes.values()))
    assert groups[0] == groups[1]


operation = st.builds(
    lambda op, api, file, rank, lane, offset, length, start, duration: Op(
        op, file, rank=rank, lane=lane, api=api, offset=offset, length=length, start_ns=start, end_ns=start + duration
    ),
    st.sampled_from(["read", "write"]),
    st.sampled_from(["POSIX", "MPIIO"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 1 << 42),
    st.sampled_from([0, 1, 4096]) | st.integers(0, 1 << 32),
    st.integers(-1_000_000_000, 90_000_000_000),
    st.integers(0, 5_000_000_000),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("darshan")


@settings(max_examples=examples(40))
@given(ops=st.lists(operation, min_size=1, max_size=25), dxt_version=st.sampled_from([1, 2]))
def test_a_log_merged_again_is_the_same_capture(folder: Path, ops: list[Op], dxt_version: int) -> None:
    files = [
        File("/data/a", record_id=5),
        File(b"/odd\xff", record_id=6),
        "/x y/b",
        File("/s/c", mount="/s", fs_type="nfs"),
    ]
    capture = build_capture(folder, files=files, ops=ops, info=info(3))
    found = again(capture, folder, dxt_version)
    before, after = traced(capture), traced(found)
    assert without_lanes(after) == without_lanes(before)
    if dxt_version == 2 and len({tuple(row.items()) for row in without_lanes(before)}) == len(before):
        assert_same_lanes(before, after)
    job = found.info.job
    assert (job.nprocs, job.start_ns, job.end_ns, job.zero_ns) == (3, START_NS, capture.info.job.end_ns, START_NS)
    assert (job.job_id, job.exe, job.run_time_s) == (77, "python train.py --x", 100.0)
    assert {key: value for key, value in job.metadata.items() if key != WRITER_KEY} == {"lib_ver": "3.4.1", "h": "k=v"}
    assert found.info.coverage.bytes in (1.0, None)
    for column in ("record_id", "path_bytes", "mount", "fs_type", "format"):
        old, new = (dict(zip(c.paths(), c.files[column].to_pylist(), strict=True)) for c in (capture, found))
        assert {path: old[path] for path in new} == new


def test_counters_without_rows_are_kept(tmp_path: Path) -> None:
    counters = {"posix_opens": 2, "posix_stats": 9, "stdio_opens": 1, "stdio_writes": 30, "stdio_bytes_written": 5000}
    files = [File("/ckpt/model", size=5000, counters=counters), "/data"]
    capture = build_capture(tmp_path, files=files, ops=[read(1, length=10)], info=info(2))
    found = again(capture, tmp_path)
    row = next(row for row in found.files.to_pylist() if row["path"] == "/ckpt/model")
    assert {name: row[name] for name in counters} == counters
    assert (row["size"], row["posix_reads"], row["mpiio_reads"]) == (5000, 0, None)
    log = open_log(tmp_path / "again.darshan")
    stdio = read_counters(log, "STDIO")
    assert stdio is not None
    assert stdio.ranks.tolist() == [SHARED_RANK]


def test_counters_of_fewer_operations_than_ranks_are_not_shared(tmp_path: Path) -> None:
    """A shared record says that every rank used the file, and the log would be refused as damaged."""
    files = [File("/all", size=9, counters={"stdio_opens": 4}), File("/one", size=9, counters={"stdio_opens": 3})]
    capture = build_capture(tmp_path, files=files, ops=[read(0, length=9)], info=info(4))
    result = write_darshan(capture, tmp_path / "out.darshan")
    log = open_log(tmp_path / "out.darshan")
    stdio = read_counters(log, "STDIO")
    assert process_count(log) == 4
    assert stdio is not None
    assert dict(zip(stdio.record_ids.tolist(), stdio.ranks.tolist(), strict=True)) == {1000: SHARED_RANK, 1001: 0}
    assert "counters of 1 file are written for rank 0" in " ".join(result.notes)


def test_stripes_are_kept(tmp_path: Path) -> None:
    files = [
        File("/l/a", stripe_size=1 << 20, stripe_count=48),
        "/b",
        File("/l/c", stripe_size=1 << 16, stripe_count=1),
    ]
    ops = [read(file, length=10) for file in range(3)]
    found = again(build_capture(tmp_path, files=files, ops=ops, info=info(1)), tmp_path)
    stripes = {row["path"]: (row["stripe_size"], row["stripe_count"]) for row in found.files.to_pylist()}
    assert stripes == {"/l/a": (1 << 20, 48), "/b": (None, None), "/l/c": (1 << 16, 1)}
    (answer,) = darshan_oracle.read_all([tmp_path / "again.darshan"]).values()
    assert not isinstance(answer, str), answer
    assert answer["LUSTRE counters"][:, :2].tolist() == [[1 << 20, 48], [1 << 16, 1]]


def test_metadata_rows_become_counters(tmp_path: Path) -> None:
    ops = [
        Op("open", 0, start_ns=1_000, origin="reconstructed", offset=-1),
        read(0, length=10, start_ns=3_000),
        Op("seek", 0, start_ns=5_000, origin="reconstructed"),
        Op("open", 0, start_ns=6_000, origin="reconstructed", offset=-1),
        Op("stat", 0, start_ns=7_000, origin="reconstructed", offset=-1),
        Op("sync", 0, start_ns=8_000, origin="reconstructed", offset=-1),
        Op("rename", 0, start_ns=8_500, origin="reconstructed", other_file_id=1),
        Op("close", 0, start_ns=9_000, origin="reconstructed", offset=-1),
        Op("open", 1, api="STDIO", start_ns=1_000, origin="reconstructed", offset=-1),
        write(1, api="STDIO", length=100, start_ns=2_000, origin="reconstructed"),
        write(1, api="STDIO", length=50, offset=100, start_ns=3_000, origin="reconstructed"),
        Op("sync", 1, api="STDIO", start_ns=4_000, origin="reconstructed", offset=-1),
    ]
    capture = build_capture(tmp_path, files=["/a", "/b"], ops=ops, info=info(1))
    result = write_darshan(capture, tmp_path / "x.darshan")
    log = open_log(tmp_path / "x.darshan")
    posix, stdio = read_counters(log, "POSIX"), read_counters(log, "STDIO")
    assert posix is not None
    assert stdio is not None
    found = {name.removeprefix("POSIX_"): column[0] for name, column in {**posix.counters, **posix.fcounters}.items()}
    assert found["OPENS"] == 2
    assert {found[name] for name in ("READS", "SEEKS", "STATS", "FSYNCS", "RENAME_SOURCES")} == {1}
    assert [found[f"F_{name}_TIMESTAMP"] for name in ("OPEN_START", "OPEN_END", "CLOSE_START", "CLOSE_END")] == [
        1e-6, 7e-6, 9e-6, 1e-5,
    ]  # fmt: skip
    # six calls of a microsecond, two of which overlap by half of it
    assert found["F_META_TIME"] == pytest.approx(5.5e-6)
    assert found["F_WRITE_TIME"] == pytest.approx(1e-6)
    assert posix.counters["POSIX_RENAME_TARGETS"].tolist() == [0, 1]
    assert posix.counters["POSIX_RENAMED_FROM"].tolist() == [0, 1000]
    names = ("OPENS", "WRITES", "FLUSHES", "BYTES_WRITTEN", "MAX_BYTE_WRITTEN")
    assert [stdio.counters[f"STDIO_{name}"].tolist() for name in names] == [[1], [2], [1], [150], [149]]
    (answer,) = darshan_oracle.read_all([log.path]).values()
    assert not isinstance(answer, str), answer
    assert [log.names[record] for record in answer["HEATMAP ids"].tolist()] == [b"heatmap:POSIX", b"heatmap:STDIO"]
    assert "11 operations are in the counters alone" in " ".join(result.notes)
    assert result.files[0].entries == 1


def seeks_of(arrays: Mapping[str, np.ndarray], module: str) -> dict[int, int]:
    """pydarshan's sums of SEEKS over all ranks, of each record with any."""
    found: Counter[int] = Counter()
    if f"{module} counters" in arrays:
        values = arrays[f"{module} counters"][arrays[f"{module} names"].tolist().index(f"{module}_SEEKS")]
        for record, seeks in zip(arrays[f"{module} ids"].tolist(), values.tolist(), strict=True):
            found[record] += seeks
    return {record: count for record, count in found.items() if count}


def test_seeks_without_an_operation_are_those_that_the_files_table_counts(tmp_path: Path) -> None:
    """/both: rank 1 made two traced ones of nine, any rank the others; /old: all have rows, as older captures do."""
    files = [
        File("/both", counters={"posix_seeks": 9}), File("/one", counters={"posix_seeks": 5, "stdio_seeks": 3}),
        File("/old", counters={"posix_seeks": 2}), File("/renamed", counters={"posix_seeks": 4}),
        File("/unused", counters={"posix_seeks": 6}),
    ]  # fmt: skip
    ops = [
        *(read(0, rank=rank, length=9, start_ns=10 * rank) for rank in (2, 1)),
        *(Op("seek", 0, rank=1, start_ns=100 + at) for at in (0, 20)),
        read(1, rank=2, length=9, start_ns=30),
        read(1, rank=3, length=9, api="STDIO", start_ns=30, origin="reconstructed"),
        *(Op("seek", 2, rank=1, start_ns=200 + at, origin="reconstructed") for at in (0, 20)),
        Op("rename", 0, rank=2, other_file_id=3, start_ns=400),
    ]
    capture = build_capture(tmp_path, files=files, ops=ops, info=info(4))
    result = write_darshan(capture, tmp_path / "x.darshan")
    log = open_log(tmp_path / "x.darshan")
    found = {}
    for module in ("POSIX", "STDIO"):
        table = read_counters(log, module)
        assert table is not None
        columns = (table.record_ids.tolist(), table.ranks.tolist(), table.counters[f"{module}_SEEKS"].tolist())
        found |= {(module, log.names[record], rank): seeks for record, rank, seeks in zip(*columns, strict=True)}
    assert {key: seeks for key, seeks in found.items() if seeks} == {
        ("POSIX", b"/both", 1): 9, ("POSIX", b"/one", 2): 5, ("STDIO", b"/one", 3): 3, ("POSIX", b"/old", 1): 2,
        ("POSIX", b"/renamed", 2): 4, ("POSIX", b"/unused", SHARED_RANK): 6,
    }  # fmt: skip
    assert found["POSIX", b"/both", 2] == 0
    assert "7 seeks on files of several ranks are written for the lowest of these" in " ".join(result.notes)


TORCH = sorted((SHARED / "captures").glob("torch_*/logs"))
SOUGHT = [*(SHARED / "captures").glob("frnn/job.darshan"), *(SHARED / "theta").glob("*.darshan"), *TORCH]


@pytest.mark.parametrize(
    "source", SOUGHT or [pytest.param(None, marks=pytest.mark.skip("no recordings beside the checkout"))], ids=str
)
def test_an_export_counts_the_seeks_of_the_log(tmp_path: Path, source: Path) -> None:
    logs = sorted(source.glob("*.darshan")) if source.is_dir() else [source]
    merge(logs, [], tmp_path / "once.capture")
    capture = open_capture(tmp_path / "once.capture")
    assert not any(pc.any(pc.equal(batch["op"].cast("string"), "seek")).as_py() for batch in capture.operations())
    write_darshan(capture, tmp_path / "x.darshan")
    (exported,), recorded = (darshan_oracle.read_all(some).values() for some in ([tmp_path / "x.darshan"], logs))
    assert not isinstance(exported, str), exported
    files = set(capture.files["record_id"].to_pylist())
    total = 0
    for module in ("POSIX", "STDIO"):
        known: Counter[int] = Counter()
        for arrays in recorded:
            assert not isinstance(arrays, str), arrays
            known.update({record: seeks for record, seeks in seeks_of(arrays, module).items() if record in files})
        assert seeks_of(exported, module) == known
        total += known.total()
    assert total > 0


def test_what_a_log_cannot_hold_is_told(tmp_path: Path) -> None:
    ops = [
        read(0, length=5, start_ns=-10, end_ns=5, result=5),
        read(0, length=0, start_ns=1, result=-5),
        read(0, length=9, start_ns=2, api="HDF5"),
        read(0, length=9, start_ns=3, offset=-1),
        read(0, length=9, start_ns=4, offset=-1, api="MPIIO_COLL"),
    ]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=[Span("step", 0, 100, step=0)])
    result = write_darshan(capture, tmp_path / "x.darshan")
    assert (result.operations, result.left_out, result.files[0].entries) == (3, {FAILED: 1, HDF5: 1}, 2)
    notes = " ".join(result.notes)
    for told in (
        "1 spans and the steps",
        "--dxt-version 2",
        "1 operations are in the counters alone",
        "1 operations that failed",
        "1 operations at HDF5",
        "1 collective operations",
        "1 operations begin before",
    ):
        assert told in notes
    assert "--dxt-version" not in " ".join(write_darshan(capture, tmp_path / "y.darshan", dxt_version=2).notes)


@pytest.mark.parametrize(
    ("changes", "partial"),
    [({}, False), ({"partial": True}, True), ({"coverage": Coverage(bytes=0.5, operations=1.0)}, True)],
)
def test_a_partial_trace_is_marked(tmp_path: Path, changes: Mapping[str, Any], partial: bool) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=5)], info=info(1, **changes))
    write_darshan(capture, tmp_path / "x.darshan")
    modules = open_log(tmp_path / "x.darshan").modules
    assert {name: module.partial for name, module in modules.items()} == {
        "POSIX": partial, "DXT_POSIX": partial, "HEATMAP": False,
    }  # fmt: skip


def test_records_are_named_by_darshans_hash_where_a_capture_has_no_ids(tmp_path: Path) -> None:
    files = [File("/a", record_id=3), File("/b", record_id=3)]
    capture = build_capture(tmp_path, files=files, ops=[read(0, length=5), read(1, length=5)])
    write_darshan(capture, tmp_path / "x.darshan")
    names = open_log(tmp_path / "x.darshan").names
    assert {names[record_id(path)] for path in ("/a", "/b")} == {b"/a", b"/b"}
    twice = build_capture(tmp_path, name="twice", files=[File("/a", record_id=0), File("/a", record_id=0)])
    with pytest.raises(CaptureError, match="two files have the same path"):
        write_darshan(twice, tmp_path / "y.darshan")


def test_damage_and_wrong_use_leave_no_file(tmp_path: Path) -> None:
    damaged = build_capture(
        tmp_path, name="d", files=["/a"], ops=[read(0, end_ns=20), Op("read", 0, start_ns=10, end_ns=5)]
    )
    good = build_capture(tmp_path, name="g", files=["/a"], ops=[read(0, length=1)])
    with pytest.raises(CaptureError, match="ends before it starts"):
        write_darshan(damaged, tmp_path / "x.darshan")
    lost = build_capture(tmp_path, name="r", files=["/a"], ops=[Op("rename", 0, other_file_id=4)])
    with pytest.raises(CaptureError, match="names a file"):
        write_darshan(lost, tmp_path / "x.darshan")
    with pytest.raises(UsageError, match="choose 1 or 2"):
        write_darshan(good, tmp_path / "x.darshan", dxt_version=3)
    with pytest.raises(TargetError, match="not a file"):
        write_darshan(good, good.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.capture", "g.capture", "r.capture"]


def test_an_empty_capture_is_an_empty_log(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, info=info(2))
    assert write_darshan(capture, tmp_path / "x.darshan").notes == ()
    log = open_log(tmp_path / "x.darshan")
    assert (dict(log.modules), log.job.nprocs, log.job.run_time_s) == ({}, 2, 100.0)


@shared
@pytest.mark.parametrize("name", ["cosmoflow_threads", "imagenet", "l2hmc"])
def test_a_real_capture_survives_the_way_through_a_log(name: str, tmp_path: Path) -> None:
    merge([darshan_oracle.SHARED / "captures" / name / "job.darshan"], [], tmp_path / "once.capture")
    capture = open_capture(tmp_path / "once.capture")
    found = again(capture, tmp_path)
    assert without_lanes(traced(found)) == without_lanes(traced(capture))
    assert_same_lanes(traced(capture), traced(found))
    assert reconstructed(found) == reconstructed(capture)
    assert sum(reconstructed(capture).values()) > 20
    assert found.info.coverage.bytes == capture.info.coverage.bytes
    assert found.info.coverage.traceable[0] == capture.info.coverage.traceable[0] == 1.0
    assert {row["path"] for row in found.files.to_pylist()} == set(capture.paths())


@shared
def test_mpiio_segments_survive(tmp_path: Path) -> None:
    source = next(path for path in darshan_oracle.shared_logs() if "treddy_mpi-io-test" in path.name)
    merge([source], [], tmp_path / "once.capture")
    capture = open_capture(tmp_path / "once.capture")
    for version in (1, 2):
        found = again(capture, tmp_path, version)
        assert {row["api"] for row in traced(found)} == {"POSIX", "MPIIO"}
        assert without_lanes(traced(found)) == without_lanes(traced(capture))
    columns = [name for name in COUNTERS if name.startswith("mpiio")]
    old, new = ({row["path"]: [row[name] for name in columns] for row in c.files.to_pylist()} for c in (capture, found))
    assert old == new


def test_darshans_own_job_summary_is_made_of_an_export(tmp_path: Path) -> None:
    merge([sample("imagenet").log], [], tmp_path / "once.capture")
    write_darshan(open_capture(tmp_path / "once.capture"), tmp_path / "x.darshan")
    command = [sys.executable, "-m", "darshan", "summary", "x.darshan", "--output", "report.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    for section in ("Heat Map: HEATMAP POSIX", "Heat Map: DXT_POSIX", "Access Sizes", "Operation Counts"):
        assert section in page
    assert "does not contain" not in page


def test_a_disk_that_cannot_be_read_again_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was mapped ended the process by SIGBUS."""
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(TargetError, match=r"cannot write .*Input/output error"):
        write_darshan(capture, tmp_path / "x.darshan")
    assert [path.name for path in tmp_path.iterdir()] == [capture.path.name]
