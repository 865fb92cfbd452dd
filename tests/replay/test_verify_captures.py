"""A damaged capture is found: any bit where digests are there, and contradictions where they are not."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay import verify as verifying
from dxt_replay.replay.target import writing
from dxt_replay.replay.verify import LaneOrder
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import HDF5_SCHEMA, INDEX_SCHEMA, CaptureInfo, Job, Source, table_from_columns
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.store.index import INDEX_NAME, StoredUsage
from dxt_replay.traces.store.writer import write_capture_info, write_hdf5
from tests.capture_builder import Span, build_capture, lanes_table, read, write
from tests.examples import examples


def differences(found):
    return [difference for place in found.places for part in place.parts for difference in part.differences]


def made(folder, **info):
    """A capture of two ranks with every kind of file."""
    stated = CaptureInfo(job=Job(nprocs=2, run_time_s=1.0, metadata={"note": "x" * 50}), ranks=(0, 1), **info)
    capture = build_capture(
        folder,
        files=["/data/a.h5", "/data/b"],
        ops=[
            *(read(i % 2, offset=i * 10, length=10 + i, start_ns=i * 5_000, rank=i % 2) for i in range(40)),
            write(1, length=9, start_ns=900_000, rank=1),
        ],
        spans=[Span("step", 0, 500_000, step=0)],
        info=stated,
    )
    dataset = {"file_id": [0], "dataset": ["/d"], "type_size": [4], "points": [100]}
    write_hdf5(capture.path, table_from_columns(dataset, HDF5_SCHEMA))
    write_capture_info(capture.path, stated)
    return capture.path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "c.capture"))


def without_digests(capture):
    document = json.loads((capture / "capture.json").read_text())
    del document["digests"]
    document["schema_version"] = 3
    (capture / INDEX_NAME).unlink()
    (capture / "capture.json").write_text(json.dumps(document))


def test_a_whole_capture_passes_and_says_what_was_checked(whole):
    found = dxt_replay.verify(whole)
    assert found.passed, differences(found)
    checked = {part.part: part.checked for part in found.places[0].parts}
    assert checked["operations"] == 41
    assert checked["digests"] == 5
    assert checked["index"] == 3
    assert checked["hdf5"] == checked["spans"] == 1
    assert not [path for path in whole.rglob(".*") if path.is_file()], "a digest was left beside its file"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(whole, data):
    file = data.draw(st.sampled_from(sorted(path for path in whole.rglob("*") if path.is_file())))
    place = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(whole, Path(scratch) / "c.capture"))
        name = file.relative_to(whole)
        damaged = bytearray(file.read_bytes())
        damaged[place // 8] ^= 1 << place % 8
        (copy / name).write_bytes(damaged)
        found = dxt_replay.verify(copy)
        assert not found.passed
        assert str(name) in {each.file for each in differences(found)}


PART = "ops/part-0000000-0000.parquet"


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        *((name, "gone", "not there") for name in (PART, "files.parquet", "spans.parquet", "hdf5.parquet")),
        *((name, "FIFO", "") for name in ("capture.json", "files.parquet", PART, "index.parquet")),
        *((name, "new", "there") for name in ("ops/part-0000009-0000.parquet", "notes.txt", "usage/x", "ops/deeper/x")),
        ("files.parquet", "link", "a symbolic link"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_named(whole, copy, name, kind, found):
    """A FIFO is not waited for."""
    if kind == "new":
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"x")
    else:
        (copy / name).unlink()
    if kind == "FIFO":
        os.mkfifo(copy / name)
        with pytest.raises(
            CaptureError, match=r"not a regular file|no capture\.json|does not have the size in index.parquet"
        ):
            dxt_replay.open_capture(copy)
    elif kind == "link":
        (copy / name).symlink_to(whole / name)
    assert any(each.file == name and found in each.found for each in differences(dxt_replay.verify(copy)))


def test_no_thread_reads_the_counts_with_the_reader_of_another(whole, monkeypatch):
    """Two threads that read one Parquet file ended in SIGSEGV, or in counts that nobody checked."""
    users: dict[int, set[int]] = {}
    both = threading.Barrier(2, timeout=30)
    read_counts = StoredUsage.of

    def seen(self, ranks):
        users.setdefault(id(self), set()).add(threading.get_ident())
        both.wait()
        return read_counts(self, ranks)

    monkeypatch.setattr(StoredUsage, "of", seen)
    monkeypatch.setattr(writing, "default_workers", lambda: 2)
    monkeypatch.setattr(verifying, "_ROWS_TOGETHER", 1)
    assert dxt_replay.verify(whole).passed
    assert [len(threads) for threads in users.values()] == [1, 1]


def test_counts_that_are_not_those_of_the_rows_are_named(copy):
    index = pq.read_table(copy / INDEX_NAME).to_pylist()
    index[1]["usage"][0]["least_length"] += 1
    pq.write_table(pa.Table.from_pylist(index, schema=INDEX_SCHEMA), copy / INDEX_NAME)
    (part,) = (part for part in verifying._contents(copy) if part.different)
    assert [(each.file, each.what) for each in part.differences] == [(INDEX_NAME, "counts of rank 1")]


def test_digests_that_were_removed_are_missed(copy):
    """They alone protect `capture.json`, here the name of the program."""
    document = json.loads((copy / "capture.json").read_text())
    del document["digests"]
    document["job"]["exe"] = "another"
    (copy / "capture.json").write_text(json.dumps(document))
    (difference,) = differences(dxt_replay.verify(copy))
    assert (difference.file, difference.what, difference.found[:4]) == ("capture.json", "digests", "none")


class TestWithoutDigests:
    """Captures of earlier releases."""

    @pytest.fixture
    def old(self, copy):
        without_digests(copy)
        return copy

    def test_they_pass_by_their_counts_and_it_says_so(self, old):
        found = dxt_replay.verify(old)
        assert found.passed
        assert "checked by counts alone" in found.places[0].parts[1].note

    def test_lost_spans_are_missed(self, old):
        (old / "spans.parquet").unlink()
        assert not dxt_replay.verify(old).passed
        with pytest.raises(CaptureError, match=r"lacks spans\.parquet"):
            dxt_replay.open_capture(old)

    def test_a_missing_row_contradicts_the_number_of_operations(self, old):
        document = json.loads((old / "capture.json").read_text())
        document["made_by"]["operations_stored"] = 41
        (old / "capture.json").write_text(json.dumps(document))
        assert dxt_replay.verify(old).passed
        part = old / "ops" / "part-0000000-0000.parquet"
        pq.write_table(pq.read_table(part).slice(1), part)
        (difference,) = differences(dxt_replay.verify(old))
        assert "holds 40 of 41 operations" in difference.found

    def test_a_file_number_that_is_not_there_is_found(self, old):
        pq.write_table(pq.read_table(old / "files.parquet").slice(0, 1), old / "files.parquet")
        assert any("names a file" in each.found for each in differences(dxt_replay.verify(old)))

    def test_a_damaged_document_is_named(self, old):
        (old / "capture.json").write_text("{")
        (difference,) = differences(dxt_replay.verify(old))
        assert difference.file == "capture.json"


def test_a_replay_whose_rows_are_not_those_that_it_counted(tmp_path):
    result = {"operations": 3, "bytes": {"read": 7, "written": 0}}
    capture = build_capture(
        tmp_path,
        ops=[read(0, length=7, due_ns=0, result=7), read(0, length=7, start_ns=5_000, due_ns=0, result=-5)],
        files=["/a"],
        info=CaptureInfo(
            job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by={"command": "run", "pace": "none", "result": result}
        ),
    )
    (difference,) = differences(dxt_replay.verify(capture.path))
    assert (difference.what, difference.expected, difference.found) == ("operations of the replay", "3", "2")


class TestSources:
    @pytest.fixture
    def log(self, tmp_path):
        (tmp_path / "away").mkdir()
        (tmp_path / "away" / "job.log").write_bytes(b"what was recorded")
        return tmp_path / "away" / "job.log"

    @pytest.fixture
    def capture(self, tmp_path, log):
        return made(tmp_path, sources=(Source(name="job.log", sha256=file_digest(log), kind="strace"),))

    def test_a_given_one_is_held_against_its_digest(self, capture, log):
        assert "not at hand" in dxt_replay.verify(capture).places[0].parts[-1].note
        assert dxt_replay.verify(capture, sources=[log]).places[0].parts[-1].checked == 1
        assert dxt_replay.verify(capture, sources=[log]).passed
        log.write_bytes(b"what was recordet")
        (difference,) = differences(dxt_replay.verify(capture, sources=[log]))
        assert difference.file == str(log)

    def test_one_beside_the_capture_is_found(self, capture, log):
        shutil.copy(log, capture.parent / "job.log")
        found = dxt_replay.verify(capture)
        assert found.passed
        assert found.places[0].parts[-1].checked == 1
        (capture.parent / "job.log").write_bytes(b"another")
        assert not dxt_replay.verify(capture).passed

    def test_a_replay_knows_the_capture_that_it_replayed(self, tmp_path):
        (tmp_path / "1").mkdir()
        source = dxt_replay.open_capture(made(tmp_path / "1"))
        replay = build_capture(tmp_path, ops=[read(0, length=1)], files=["/a"], name="replay", replay_of=source)
        assert dxt_replay.verify(replay.path, sources=[source.path]).passed
        (source.path / "capture.json").write_text((source.path / "capture.json").read_text() + " ")
        assert not dxt_replay.verify(replay.path, sources=[source.path]).passed


@pytest.mark.parametrize(
    ("lanes", "what"),
    [
        ([(0, 0, "a", 1, None)], "lane 2 of rank 1"),
        ([(0, 0, "a", 1, None), (0, 1, "a", 1, None), (1, 2, "b", 2, None)], "lane 1 of rank 0"),
        ([(0, 0, "a", 1, None), (0, 0, "a", 1, None)], "contents"),
    ],
)
def test_lanes_are_held_against_the_operations(lanes, what, tmp_path):
    right = [(0, 0, "a", 1, "main"), (1, 2, "b", 2, None)]
    ops = [read(0, length=8), read(0, length=8, rank=1, lane=2)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], lanes=lanes_table(right))
    found = dxt_replay.verify(capture.path)
    assert found.passed
    assert {part.part: part.checked for part in found.places[0].parts}["lanes"] == 2
    pq.write_table(lanes_table(lanes), capture.path / "lanes.parquet")
    write_capture_info(capture.path, capture.info)  # with its new digest: only the contents are wrong
    found = dxt_replay.verify(capture.path)
    assert [(each.file, each.what) for each in differences(found)] == [("lanes.parquet", what)]


Row = tuple[int, int, int, int]
"""Rank, lane, start and end."""


def table(rows):
    names = ("rank", "lane", "start_ns", "end_ns")
    types = (np.int32, np.int32, np.int64, np.int64)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return pa.table({name: column.astype(dtype) for name, column, dtype in zip(names, columns, types, strict=True)})


def first_overlaps(rows):
    """The first operation of each lane that begins before the one before it ended."""
    found: dict[str, int] = {}
    ends: dict[tuple[int, int], int] = {}
    named: set[tuple[int, int]] = set()
    for at, (rank, lane, start, end) in enumerate(rows):
        number = at - next(place for place, row in enumerate(rows) if row[0] == rank)
        if start < ends.get((rank, lane), start) and (rank, lane) not in named:
            named.add((rank, lane))
            found[f"lane {lane} of rank {rank}: start_ns of row {number} of the rank"] = start
        ends[rank, lane] = end
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_the_first_overlap_of_each_lane_is_named(drawn, cuts):
    rows = sorted((rank, lane, start, start + lasts) for rank, lane, start, lasts in drawn)
    rows.sort(key=lambda row: (row[0], row[2]))
    bounds = [0, *sorted(cuts), len(rows)]
    order = LaneOrder()
    found = [each for at, end in pairwise(bounds) for each in order.add(table(rows[at:end]))]
    assert {what: seen for what, _, seen in found} == first_overlaps(rows)


def test_verify_names_rank_lane_and_row(tmp_path):
    ops = [
        read(0, length=1, start_ns=0, end_ns=10),
        read(0, length=1, lane=1, start_ns=5, end_ns=20),
        read(0, length=1, start_ns=10, end_ns=12),  # touches, which is no overlap
        read(0, length=1, lane=1, start_ns=19, end_ns=30),
    ]
    good = build_capture(tmp_path / "good", files=["/a"], ops=ops[:3])
    assert dxt_replay.verify(good.path).passed
    bad = build_capture(tmp_path / "bad", files=["/a"], ops=ops)
    (part,) = (each for each in dxt_replay.verify(bad.path).places[0].parts if each.different)
    (difference,) = part.differences
    assert (part.part, difference.file) == ("operations", "ops")
    assert difference.what == "lane 1 of rank 0: start_ns of row 3 of the rank"
    assert (difference.expected, difference.found) == (
        "at least 20, the end of the operation before it on the lane",
        "19",
    )
