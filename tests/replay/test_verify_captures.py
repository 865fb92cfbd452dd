"""A damaged capture is found: any bit where digests are there, and contradictions where they are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.verify import LaneOrder
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import HDF5_SCHEMA, CaptureInfo, Job, Source, table_from_columns
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.store.index import INDEX_NAME
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


def test_a_whole_capture_passes_and_says_what_was_checked(whole):
    found = dxt_replay.verify(whole)
    assert found.passed, differences(found)
    checked = {part.part: part.checked for part in found.places[0].parts}
    assert checked["operations"] == 41
    assert checked["digests"] == 5
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


def test_digests_that_were_removed_are_missed(copy):
    """They alone protect `capture.json`, here the name of the program."""
    document = json.loads((copy / "capture.json").read_text())
    del document["digests"]
    document["job"]["exe"] = "another"
    (copy / "capture.json").write_text(json.dumps(document))
    (difference,) = differences(dxt_replay.verify(copy))
    assert (difference.file, difference.what, difference.found[:4]) == ("capture.json", "digests", "none")


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


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_the_first_overlap_of_each_lane_is_named(drawn, cuts):
    """`drawn`: rank, lane, start and duration of rows, which are looked at in several calls."""
    rows = sorted(drawn, key=lambda row: (row[0], row[2]))
    expected, ends = {}, {}
    for rank, lane, start, lasts in rows:
        if start < ends.get((rank, lane), start):
            expected.setdefault((lane, rank), start)
        ends[rank, lane] = start + lasts
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    rank, lane = columns[:2].astype(np.int32)
    table = pa.table({"rank": rank, "lane": lane, "start_ns": columns[2], "end_ns": columns[2] + columns[3]})
    order, bounds = LaneOrder(), [0, *sorted(cuts), len(rows)]
    found = [each for at, end in pairwise(bounds) for each in order.add(table.slice(at, max(end - at, 0)))]
    assert {tuple(map(int, re.findall(r"\d+", what)[:2])): start for what, _, start in found} == expected


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


def sliced(file, first, count):
    pq.write_table(pq.read_table(file).slice(first, count), file)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda old: None, None),
        (lambda old: (old / "spans.parquet").unlink(), r"lacks spans\.parquet"),
        (lambda old: sliced(old / PART, 1, 99), "holds 40 of 41 operations"),
        (lambda old: sliced(old / "files.parquet", 0, 1), "names a file"),
        (lambda old: (old / "capture.json").write_text("{"), "capture.json"),
    ],
)
def test_captures_of_earlier_releases_have_counts_and_no_digests(change, found, copy):
    document = json.loads((copy / "capture.json").read_text())
    del document["digests"]
    document |= {"schema_version": 3, "made_by": document["made_by"] | {"operations_stored": 41}}
    (copy / INDEX_NAME).unlink()
    (copy / "capture.json").write_text(json.dumps(document))
    change(copy)
    seen = dxt_replay.verify(copy)
    assert seen.passed == (found is None)
    if found is None:
        assert "checked by counts alone" in seen.places[0].parts[1].note
    else:
        assert any(re.search(found, f"{each.file} {each.found}") for each in differences(seen))


def test_sources_are_held_against_their_digests(tmp_path):
    """One that is given, one beside the capture, and the capture that a replay replayed."""
    log = tmp_path / "away" / "job.log"
    log.parent.mkdir()
    log.write_bytes(b"what was recorded")
    capture = made(tmp_path, sources=(Source(name="job.log", sha256=file_digest(log), kind="strace"),))
    assert "not at hand" in dxt_replay.verify(capture).places[0].parts[-1].note
    beside = capture.parent / "job.log"
    for place, sources in ((log, [log]), (beside, [])):
        if place is beside:
            beside.write_bytes(b"what was recorded")
        found = dxt_replay.verify(capture, sources=sources)
        assert (found.passed, found.places[0].parts[-1].checked) == (True, 1)
        place.write_bytes(b"what was recordet")
        (difference,) = differences(dxt_replay.verify(capture, sources=sources))
        assert difference.file == str(place)
    (tmp_path / "1").mkdir()
    source = dxt_replay.open_capture(made(tmp_path / "1"))
    replay = build_capture(tmp_path, ops=[read(0, length=1)], files=["/a"], name="replay", replay_of=source)
    assert dxt_replay.verify(replay.path, sources=[source.path]).passed
    (source.path / "capture.json").write_text((source.path / "capture.json").read_text() + " ")
    assert not dxt_replay.verify(replay.path, sources=[source.path]).passed
