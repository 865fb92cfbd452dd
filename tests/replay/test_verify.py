"""`verify` names what is damaged: any bit of a capture with digests, contradictions in one without, any byte of a twin.
And what docs/capture-format.md promises to other writers: `verify` accepts their captures, and `run` replays them."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.target.manifest import MANIFEST_NAME
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.verify import LaneOrder
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import HDF5_SCHEMA, CaptureInfo, Job, Source, table_from_columns
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.store.index import INDEX_NAME
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_capture_info, write_hdf5
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Span, build_capture, lanes_table, read, write
from tests.examples import examples
from tests.places import ROOT


def differences(*paths, **options):
    found = dxt_replay.verify(*paths, **options)
    listed = [difference for place in found.places for part in place.parts for difference in part.differences]
    assert found.passed == (not listed)
    return listed


def parts(*paths, **options):
    """The parts of the last place by their names."""
    return {part.part: part for part in dxt_replay.verify(*paths, **options).places[-1].parts}


def edited(file, change):
    """The JSON document in a file, changed in place."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


# ------------------------------------------------------------------------------------------------------------- captures

PART = "ops/part-0000000-0000.parquet"


def made(folder, **info):
    """A capture of two ranks with every kind of file."""
    stated = CaptureInfo(job=Job(nprocs=2, run_time_s=1.0, metadata={"note": "x" * 50}), ranks=(0, 1), **info)
    ops = [read(i % 2, offset=i * 10, length=10 + i, start_ns=i * 5_000, rank=i % 2) for i in range(40)]
    ops.append(write(1, length=9, start_ns=900_000, rank=1))
    steps = [Span("step", 0, 500_000, step=0)]
    capture = build_capture(folder, files=["/data/a.h5", "/data/b"], ops=ops, spans=steps, info=stated)
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
    assert differences(whole) == []
    checked = {name: part.checked for name, part in parts(whole).items()}
    assert [checked[name] for name in ("operations", "digests", "hdf5", "spans")] == [41, 5, 1, 1]
    assert not [path for path in whole.rglob(".*") if path.is_file()], "a digest was left beside its file"


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(whole, data):
    file = data.draw(st.sampled_from(sorted(path for path in whole.rglob("*") if path.is_file())))
    place = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
    with tempfile.TemporaryDirectory() as scratch:
        copy, name = Path(shutil.copytree(whole, Path(scratch) / "c.capture")), file.relative_to(whole)
        damaged = bytearray(file.read_bytes())
        damaged[place // 8] ^= 1 << place % 8
        (copy / name).write_bytes(damaged)
        assert str(name) in {each.file for each in differences(copy)}


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
        with pytest.raises(CaptureError, match=r"not a regular file|no capture\.json|not have the size in index.par"):
            dxt_replay.open_capture(copy)
    elif kind == "link":
        (copy / name).symlink_to(whole / name)
    assert any(each.file == name and found in each.found for each in differences(copy))


def test_digests_that_were_removed_are_missed(copy):
    """They alone protect `capture.json`, here the name of the program."""
    edited(copy / "capture.json", lambda document: (document.pop("digests"), document["job"].update(exe="another")))
    (difference,) = differences(copy)
    assert (difference.file, difference.what, difference.found[:4]) == ("capture.json", "digests", "none")


def test_a_replay_whose_rows_are_not_those_that_it_counted(tmp_path):
    result = {"operations": 3, "bytes": {"read": 7, "written": 0}}
    made_by = {"command": "run", "pace": "none", "result": result}
    ops = [read(0, length=7, due_ns=0, result=7), read(0, length=7, start_ns=5_000, due_ns=0, result=-5)]
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by=made_by)
    (difference,) = differences(build_capture(tmp_path, ops=ops, files=["/a"], info=info).path)
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
    right = lanes_table([(0, 0, "a", 1, "main"), (1, 2, "b", 2, None)])
    ops = [read(0, length=8), read(0, length=8, rank=1, lane=2)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], lanes=right)
    assert (differences(capture.path), parts(capture.path)["lanes"].checked) == ([], 2)
    pq.write_table(lanes_table(lanes), capture.path / "lanes.parquet")
    write_capture_info(capture.path, capture.info)  # with its new digest: only the contents are wrong
    assert [(each.file, each.what) for each in differences(capture.path)] == [("lanes.parquet", what)]


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


def test_an_overlap_is_named_by_rank_lane_and_row(tmp_path):
    times = [(0, 0, 10), (1, 5, 20), (0, 10, 12), (1, 19, 30)]  # the third touches, which is no overlap
    ops = [read(0, length=1, rank=1, lane=lane, start_ns=start, end_ns=end) for lane, start, end in times]
    ops = [*(read(0, length=1, start_ns=5_000 * i) for i in range(5)), *ops]
    assert differences(build_capture(tmp_path / "good", files=["/a"], ops=ops[:-1]).path) == []
    (found,) = differences(build_capture(tmp_path / "bad", files=["/a"], ops=ops).path)
    assert (found.file, found.what) == ("ops", "lane 1 of rank 1: start_ns of row 3 of the rank")
    assert (found.expected, found.found) == ("at least 20, the end of the operation before it on the lane", "19")


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
    edited(copy / "capture.json", lambda document: (document.pop("digests"), document.update(schema_version=3),
                                                    document["made_by"].update(operations_stored=41)))  # fmt: skip
    (copy / INDEX_NAME).unlink()
    change(copy)
    seen = differences(copy)
    if found is None:
        assert (seen, "checked by counts alone" in parts(copy)["digests"].note) == ([], True)
    else:
        assert any(re.search(found, f"{each.file} {each.found}") for each in seen)


def test_sources_are_held_against_their_digests(tmp_path):
    """One that is given, one beside the capture, and the capture that a replay replayed."""
    log = tmp_path / "away" / "job.log"
    log.parent.mkdir()
    log.write_bytes(b"what was recorded")
    capture = made(tmp_path, sources=(Source(name="job.log", sha256=file_digest(log), kind="strace"),))
    assert "not at hand" in parts(capture)["sources"].note
    for place, sources in ((log, [log]), (capture.parent / "job.log", [])):
        place.write_bytes(b"what was recorded")
        assert (differences(capture, sources=sources), parts(capture, sources=sources)["sources"].checked) == ([], 1)
        place.write_bytes(b"what was recordet")
        assert [each.file for each in differences(capture, sources=sources)] == [str(place)]
    (tmp_path / "1").mkdir()
    source = dxt_replay.open_capture(made(tmp_path / "1"))
    replay = build_capture(tmp_path, ops=[read(0, length=1)], files=["/a"], name="replay", replay_of=source)
    assert differences(replay.path, sources=[source.path]) == []
    (source.path / "capture.json").write_text((source.path / "capture.json").read_text() + " ")
    assert differences(replay.path, sources=[source.path])


# ---------------------------------------------------------------------------------------------------------------- twins

SIZE = 2 * MIB + 12_345


@pytest.fixture
def capture(tmp_path):
    """A large file, a small one, one that is written too, one that a run makes, and one that is looked at."""
    files = ["/d/large", "/d/small", "/e/both", "/e/made", File("/d/seen", size=5000)]
    ops = [read(0, length=SIZE), read(1, length=100, start_ns=2_000), read(2, length=500, start_ns=4_000)]
    ops += [write(2, offset=100, length=50, start_ns=6_000), write(3, length=10, start_ns=8_000)]
    return build_capture(tmp_path, files=files, ops=[*ops, read(4, length=0, start_ns=10_000)])


@pytest.fixture
def target(capture, tmp_path):
    (tmp_path / "target").mkdir()
    dxt_replay.stage(capture, tmp_path / "target")
    return tmp_path / "target"


def test_a_twin_as_staged_passes_and_nothing_changes_and_files_beside_it_are_the_users(target):
    (target / "notes").write_bytes(b"mine")

    def state():
        found = [target, *target.rglob("*")]
        return [(each, each.lstat().st_mtime_ns, each.is_file() and each.read_bytes()) for each in found]

    before = state()
    assert differences(target) == differences(target, sizes_only=True) == []
    assert (state(), parts(target)["files"].checked) == (before, 5)


@pytest.mark.parametrize(
    ("name", "offset"), [*(("large", offset) for offset in (0, 4097, MIB - 1, MIB, SIZE - 1)), ("seen", 4500)]
)
def test_a_changed_byte_is_named_in_a_hole_too(target, name, offset):
    with open(target / TWIN_ROOT / "d" / name, "r+b") as file:
        was = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([was ^ 16]), offset)
    (found,) = differences(target)
    assert (found.file, found.offset) == (f"{TWIN_ROOT}/d/{name}", offset)
    assert (found.expected[:2], found.found[:2]) == (f"{was:02x}", f"{was ^ 16:02x}")
    assert differences(target, sizes_only=True) == []


def swap(make):
    def change(target):
        path = target / TWIN_ROOT / "d/small"
        path.rename(target / "aside")
        make(path)

    return change


def bound(path):
    """A socket at a path that may be longer than an address may be."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


@pytest.mark.parametrize(
    ("change", "what", "found"),
    [
        (lambda t: (t / TWIN_ROOT / "d/small").unlink(), "file", "not there"),
        (lambda t: os.truncate(t / TWIN_ROOT / "d/small", 99), "size", "99"),
        (lambda t: os.truncate(t / TWIN_ROOT / "d/seen", 6000), "size", "6000"),
        (lambda t: os.link(t / TWIN_ROOT / "d/small", t / "other"), "names (hard links)", "2"),
        (swap(lambda path: path.symlink_to(path.parents[2] / "aside")), "kind", "a symbolic link"),
        (swap(lambda path: path.mkdir()), "kind", "a directory"),
        (swap(lambda path: os.mkfifo(path)), "kind", "a FIFO"),
        (swap(bound), "kind", "a socket"),
    ],
)
def test_what_is_not_the_staged_file_is_named(target, change, what, found):
    change(target)
    for sizes_only in (False, True):
        seen = {(each.file[-7:], each.what, each.found) for each in differences(target, sizes_only=sizes_only)}
        assert seen & {("d/small", what, found), ("/d/seen", what, found)}


@pytest.mark.parametrize("name", ["d/more", "new/x", "d/.%~0123456789abcdef.part"])
def test_what_the_manifest_does_not_list_is_named(target, name):
    (target / TWIN_ROOT / name).parent.mkdir(exist_ok=True)
    (target / TWIN_ROOT / name).write_bytes(b"")
    assert f"{TWIN_ROOT}/{name}" in {each.file for each in differences(target)}


def test_what_a_replay_writes_is_no_damage_nor_that_a_file_it_renames_is_gone(capture, target, tmp_path):
    dxt_replay.run(capture, target, tmp_path / "r.capture", pace="none")
    assert differences(target, tmp_path / "r.capture") == []
    assert "1 hold what replays wrote" in parts(target)["contents"].note
    assert (target / TWIN_ROOT / "e/made").exists()
    (target / TWIN_ROOT / "e/both").unlink()
    assert differences(target) == []
    (target / TWIN_ROOT / "d/small").unlink()
    assert [each.what for each in differences(target)] == ["file"]


def of_version_2(document):
    document["schema_version"] = 2
    for entry in document["files"]:
        entry.pop("written", None)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda document: [entry.update(state="planned") for entry in document["files"]], "did not end"),
        (of_version_2, None),
        (None, "damaged"),
    ],
)
def test_a_manifest_that_is_changed(change, found, target):
    """None: it is damaged, or nothing is found."""
    if change is None:
        (target / MANIFEST_NAME).write_text("{")
    else:
        edited(target / MANIFEST_NAME, change)
    seen = differences(target)
    assert any(found in each.found for each in seen) if found else seen == []


def test_without_a_manifest_all_files_are_extra(target):
    (target / MANIFEST_NAME).unlink()
    assert {MANIFEST_NAME, f"{TWIN_ROOT}/d/large"} <= {each.file for each in differences(target)}


def test_each_kind_of_byte_of_an_hdf5_file_is_compared_with_the_capture(tmp_path):
    """Chunks that a filter compressed, contiguous data, metadata: every byte has one right value."""
    offsets, sizes = [4096, 40_000, 90_000], [30_000, 31_000, 29_000]
    ops = [read(0, offset=offsets[i], length=sizes[i], start_ns=i * 9000) for i in range(3)]
    chunks = build_capture(tmp_path, files=[File("/d/x.h5", format="hdf5")], ops=ops).path
    row = {
        "file_id": [0], "dataset": ["/x"], "type_size": [4], "points": [30_000], "shape": [[30_000]],
        "chunk_shape": [[10_000]], "filters": [["gzip"]], "chunk_index": [[0, 1, 2]],
        "chunk_offset": [offsets], "chunk_size": [sizes], "chunk_mask": [[0, 0, 0]],
    }  # fmt: skip
    write_hdf5(chunks, table_from_columns(row, HDF5_SCHEMA))
    target = tmp_path / "target"
    target.mkdir()
    dxt_replay.stage(chunks, target)
    (path,) = (target / TWIN_ROOT).rglob("*.h5")
    whole = path.read_bytes()
    assert "by size alone" in parts(target)["contents"].note
    for offset in (0, 200, 4096, 45_000, 71_500, len(whole) - 1):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        assert [each.offset for each in parts(chunks, target)["contents"].differences] == [offset]
    path.write_bytes(whole)
    assert not dxt_replay.verify(chunks, target).places[1].different


def test_a_twin_beside_a_capture_that_needs_more_or_was_staged_elsewhere(capture, target, tmp_path):
    """File and entry are gone: only the capture knows of them."""
    assert differences(capture.path, target) == []
    gone = f"{TWIN_ROOT}/d/small"
    (target / gone).unlink()
    lines = (target / MANIFEST_NAME).read_text().split("\n")
    (target / MANIFEST_NAME).write_text("\n".join(line for line in lines if gone not in line))
    assert differences(target) == []
    assert [(each.file, each.what, each.found) for each in differences(capture.path, target)] == [
        (gone, "entry", "none")
    ]
    other = build_capture(tmp_path, files=["/z"], ops=[read(0, length=9)], name="other").path
    assert (differences(other, target), "staged elsewhere" in parts(other, target)["manifest"].note) == ([], True)


# ------------------------------------------------------------------------------------------- captures of other programs

PROGRAMS = re.findall(
    r"```python\n(.*?)```",
    (ROOT / "docs" / "capture-format.md").read_text(encoding="utf-8").partition("## Writing a capture")[2],
    re.DOTALL,
)


def with_pandas(folder, change=lambda ops: ops):
    """100 reads of two ranks, as a program without any other knowledge has them."""
    number = pd.Series(range(100))
    ops = {
        "rank": number // 50, "lane": np.int32(0), "op": "read", "api": "POSIX", "file_id": number % 3,
        "offset": 4096 * number, "length": 4096, "start_ns": 10**6 * number, "end_ns": 10**6 * number + 200_000,
    }  # fmt: skip
    path = folder / "job.capture"
    (path / "ops").mkdir(parents=True)
    change(pd.DataFrame(ops)).to_parquet(path / "ops" / "part-0000000.parquet")
    files = {"file_id": range(3), "path": [f"/data/{number}" for number in range(3)], "size": 409_600}
    pd.DataFrame(files).to_parquet(path / "files.parquet")
    document = {"schema_version": 5, "ranks": [0, 1], "job": {"nprocs": 2, "run_time_s": 0.1}}
    (path / "capture.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("writer", ["pandas", "polars"])
def test_a_capture_of_another_writer_is_verified_and_replayed(writer, tmp_path):
    capture = tmp_path / "job.capture"
    if writer == "pandas":
        with_pandas(tmp_path)
    elif importlib.util.find_spec(writer) is None:
        pytest.skip(f"{writer} is not installed")
    else:
        (program,) = [text for text in PROGRAMS if f"import {writer}" in text]
        # In a process of its own: Polars 2 takes over SIGINT, and Ctrl-C then ends no wait for a lock any more.
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert differences(capture) == []
    checked = parts(capture)
    assert (checked["operations"].checked, "another program wrote it" in checked["digests"].note) == (100, True)
    (tmp_path / "target").mkdir()
    dxt_replay.stage(capture, tmp_path / "target")
    dxt_replay.run(capture, tmp_path / "target", tmp_path / "replay.capture", pace="none")
    replay = open_capture(tmp_path / "replay.capture")
    assert [row["result"] for batch in replay.operations() for row in batch.to_pylist()] == [4096] * 100
    assert differences(replay.path) == []


def test_what_another_writer_leaves_out_is_not_guessed(tmp_path):
    path = with_pandas(tmp_path)
    capture = open_capture(path)
    row = next(capture.operations()).to_pylist()[1]
    assert (row["step"], row["origin"], row["due_ns"], row["feeds"]) == (-1, "traced", None, None)
    assert [batch.num_rows for batch in capture.operations(columns=["step"])] == [50, 50]
    assert capture.files["record_id"].to_pylist() == [record_id(f"/data/{number}") for number in range(3)]
    assert set(capture.files["format"].to_pylist()) == {"other"}
    assert capture.files["posix_reads"].null_count == 3
    assert capture.spans.num_rows == capture.hdf5.num_rows == 0
    assert capture.info.coverage.bytes is None
    edited(path / "capture.json", lambda document: document.update(made_by={"program": "dxt-replay"}))
    with pytest.raises(dxt_replay.CaptureError, match=r"lacks spans\.parquet"):
        dxt_replay.open_capture(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ops: ops.sort_values("start_ns", ascending=False), "sort the operations by rank and start_ns"),
        (lambda ops: ops.sort_values(["rank", "offset"], ascending=[True, False]), "not in the order of their times"),
        (lambda ops: ops.assign(op="pread"), "'pread'"),
    ],
)
def test_verify_says_what_is_wrong_with_it(tmp_path, change, expected):
    assert any(expected in each.found for each in differences(with_pandas(tmp_path, change)))
