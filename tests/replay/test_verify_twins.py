"""A staged twin that is not what its manifest says is named, to the byte; verifying changes nothing."""

from __future__ import annotations

import json
import os
import socket

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.target.manifest import MANIFEST_NAME
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.traces.schema import HDF5_SCHEMA, table_from_columns
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_hdf5
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, build_capture, read, write
from tests.replay.target.test_stage import staged, tree

SIZE = 2 * MIB + 12_345


def differences(*paths, **options):
    found = dxt_replay.verify(*paths, **options)
    listed = [difference for place in found.places for part in place.parts for difference in part.differences]
    assert found.passed == (not listed)
    return listed


@pytest.fixture
def capture(tmp_path):
    """A large file, a small one, one that is written too, one that a run makes, and one that is looked at."""
    return build_capture(
        tmp_path,
        files=["/d/large", "/d/small", "/e/both", "/e/made", File("/d/seen", size=5000)],
        ops=[
            read(0, length=SIZE),
            read(1, length=100, start_ns=2_000),
            read(2, length=500, start_ns=4_000),
            write(2, offset=100, length=50, start_ns=6_000),
            write(3, length=10, start_ns=8_000),
            read(4, length=0, start_ns=10_000),
        ],
    )


@pytest.fixture
def target(capture, tmp_path):
    staged(capture, tmp_path / "target")
    return tmp_path / "target"


def test_a_twin_as_staged_passes_and_nothing_changes(target):
    before = tree(target), os.stat(target).st_mtime_ns
    assert differences(target) == []
    assert differences(target, sizes_only=True) == []
    assert (tree(target), os.stat(target).st_mtime_ns) == before


@pytest.mark.parametrize("offset", [0, 1, 4097, MIB - 1, MIB, 2 * MIB + 5, SIZE - 1])
def test_a_changed_byte_is_named(target, offset):
    with open(target / TWIN_ROOT / "d/large", "r+b") as file:
        file.seek(offset)
        was = file.read(1)
        file.seek(offset)
        file.write(bytes([was[0] ^ 16]))
    (found,) = differences(target)
    assert (found.file, found.offset) == (f"{TWIN_ROOT}/d/large", offset)
    assert found.expected.startswith(was.hex())
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
        assert (f"{TWIN_ROOT}/d/small", what, found) in {
            (each.file.replace("seen", "small"), each.what, each.found)
            for each in differences(target, sizes_only=sizes_only)
        }


def test_a_hole_that_holds_data_is_named(target):
    with open(target / TWIN_ROOT / "d/seen", "r+b") as file:
        file.seek(4500)
        file.write(b"x")
    (found,) = differences(target)
    assert (found.file, found.offset, found.found[:2]) == (f"{TWIN_ROOT}/d/seen", 4500, b"x".hex())


@pytest.mark.parametrize("name", ["d/more", "new/x", "d/.%~0123456789abcdef.part"])
def test_what_the_manifest_does_not_list_is_named(target, name):
    (target / TWIN_ROOT / name).parent.mkdir(exist_ok=True)
    (target / TWIN_ROOT / name).write_bytes(b"")
    assert f"{TWIN_ROOT}/{name}" in {each.file for each in differences(target)}


def test_files_beside_the_twin_are_the_users(target):
    (target / "notes").write_bytes(b"mine")
    assert differences(target) == []


def test_what_a_replay_writes_is_not_damage(capture, target, tmp_path):
    dxt_replay.run(capture, target, tmp_path / "r.capture", pace="none")
    found = dxt_replay.verify(target, tmp_path / "r.capture")
    assert found.passed
    assert "1 hold what replays wrote" in found.places[0].parts[2].note
    assert (target / TWIN_ROOT / "e/made").exists()


def test_a_staged_file_to_which_a_replay_gives_another_name_may_be_gone(target):
    (target / TWIN_ROOT / "e/both").unlink()
    assert differences(target) == []
    (target / TWIN_ROOT / "d/small").unlink()
    assert [each.what for each in differences(target)] == ["file"]


def planned(document):
    for entry in document["files"]:
        entry["state"] = "planned"


def of_version_2(document):
    document["schema_version"] = 2
    for entry in document["files"]:
        entry.pop("written", None)


def below_a_file(document):
    document["files"].append({**document["files"][0], "path": f"{TWIN_ROOT}/d/small/x"})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (planned, "did not end"),
        (below_a_file, f"below the file {TWIN_ROOT}/d/small"),
        (of_version_2, None),
        (None, "damaged"),
        (lambda document: document.update(data_sets=[]), "none"),
    ],
)
def test_a_manifest_that_is_changed(change, found, target):
    """None: it is damaged, or nothing is found."""
    document = json.loads((target / MANIFEST_NAME).read_text())
    if change is not None:
        change(document)
    (target / MANIFEST_NAME).write_text("{" if change is None else json.dumps(document))
    seen = differences(target)
    assert any(found in each.found for each in seen) if found else seen == []


def test_without_a_manifest_all_files_are_extra(target):
    (target / MANIFEST_NAME).unlink()
    assert {MANIFEST_NAME, f"{TWIN_ROOT}/d/large"} <= {each.file for each in differences(target)}


class TestHdf5:
    """Chunks that a filter compressed, contiguous data, metadata: every byte has one right value."""

    @pytest.fixture
    def chunks(self, tmp_path):
        offsets, sizes = np.array([4096, 40_000, 90_000]), np.array([30_000, 31_000, 29_000])
        capture = build_capture(
            tmp_path,
            files=[File("/d/x.h5", format="hdf5")],
            ops=[
                read(0, offset=int(o), length=int(s), start_ns=i * 9000)
                for i, (o, s) in enumerate(zip(offsets, sizes, strict=True))
            ],
        )
        row = {
            "file_id": [0], "dataset": ["/x"], "type_size": [4], "points": [30_000], "shape": [[30_000]],
            "chunk_shape": [[10_000]], "filters": [["gzip"]], "chunk_index": [[0, 1, 2]],
            "chunk_offset": [offsets.tolist()], "chunk_size": [sizes.tolist()], "chunk_mask": [[0, 0, 0]],
        }  # fmt: skip
        write_hdf5(capture.path, table_from_columns(row, HDF5_SCHEMA))
        return open_capture(capture.path)

    def test_each_kind_of_byte_is_compared_with_the_capture(self, chunks, tmp_path):
        target = tmp_path / "target"
        made = staged(chunks, target).to_write
        assert made.layout.null_count == 0
        path = target / made.path[0].as_py()
        size = path.stat().st_size
        assert [part.note for part in dxt_replay.verify(target).places[0].parts if "by size alone" in part.note]
        for offset in (0, 50, 200, 4096, 20_000, 45_000, 71_500, 118_999, size - 300, size - 1):
            whole = path.read_bytes()
            damaged = bytearray(whole)
            damaged[offset] ^= 1
            path.write_bytes(damaged)
            found = dxt_replay.verify(chunks.path, target).places[1].parts[2].differences
            assert [each.offset for each in found] == [offset]
            path.write_bytes(whole)
        assert not dxt_replay.verify(chunks.path, target).places[1].different


def test_a_manifest_without_a_file_that_the_capture_needs(capture, target):
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


def test_another_capture_beside_a_twin_says_that_it_was_not_staged_there(tmp_path, target):
    other = build_capture(tmp_path, files=["/z"], ops=[read(0, length=9)], name="other")
    found = dxt_replay.verify(other.path, target)
    assert found.passed
    assert "staged elsewhere" in found.places[1].parts[0].note
