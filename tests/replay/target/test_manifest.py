"""The manifest on disk: round trip, replaced as a whole, damaged ones (tests of forged ones: test_containment)."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target import manifest as manifest_module
from dxt_replay.replay.target.manifest import (
    CREATED_BY_RUN,
    MANIFEST_NAME,
    MANIFEST_VERSION,
    PLANNED,
    WHOLE,
    Manifest,
    manifest_files,
    write_manifest,
)
from dxt_replay.replay.target.placement import TWIN_ROOT, place
from dxt_replay.replay.target.posix import PosixReader, temporary_name
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError
from tests.capture_builder import files_table
from tests.replay.target.staging import manifest_of

MORE = {"data_bytes": 5, "layout": 'x"y', "written": True}


def entry(name, **other):
    row = {"path": f"{TWIN_ROOT}/{name}", "size": 7, "record_id": 2**64 - 1, "sparse": False, "state": PLANNED}
    return row | {"data_bytes": None, "layout": None, "written": False} | other


def table(*entries):
    return manifest_files(**{name: [each[name] for each in entries] for name in entry("")})


def written(target, *entries):
    manifest = Manifest().with_files(table(*entries), "identity")
    with open_target(target, make=True) as opened:
        write_manifest(opened, manifest)
    return manifest


def test_it_comes_back_as_it_was(tmp_path):
    """Also of more files than are written at a time, and over what a killed process left."""
    (tmp_path / os.fsdecode(temporary_name(MANIFEST_NAME.encode()))).write_text("{")
    assert manifest_of(tmp_path) == Manifest()
    files = [entry("b/größe.h5"), *(entry(f"{number:06}", size=number) for number in range(70_000))]
    manifest = written(tmp_path, *files)
    assert manifest_of(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_a_line_is_what_json_makes_of_the_file(tmp_path):
    files = [
        entry('a "quoted" größe \U0001f600\\\t'),
        entry("b", sparse=True, state=WHOLE, **MORE),
        entry("c", written=True, state=CREATED_BY_RUN),
    ]
    written(tmp_path, *files)
    lines = (tmp_path / MANIFEST_NAME).read_text().splitlines()[1:-1]
    for line, file in zip(lines, files, strict=True):
        given = {name: value for name, value in file.items() if value not in (None, False) or name == "sparse"}
        assert json.loads(line.removesuffix(",")) == given
    assert manifest_of(tmp_path).files.to_pylist() == files


@pytest.mark.parametrize("change", [{"state": "unheard of"}, {"colour": "red"}])
def test_one_of_a_newer_release_is_named_as_such_whatever_its_lines_hold(change, tmp_path):
    written(tmp_path, entry("a"))
    data = json.loads((tmp_path / MANIFEST_NAME).read_text())
    data["files"][0] |= change
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
    with pytest.raises(TargetError, match="is damaged or not ours"):
        manifest_of(tmp_path)
    data["schema_version"] = MANIFEST_VERSION + 1
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
    with pytest.raises(TargetError, match="update dxt-replay"):
        manifest_of(tmp_path)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_every_placement_can_be_listed(tmp_path_factory, paths):
    places = [each.path.decode("utf-8") for each in place(files_table(paths), b"")]
    target = tmp_path_factory.mktemp("target")
    written(target, *(entry("", path=path) for path in places))
    assert sorted(manifest_of(target).path.to_pylist()) == sorted(places)


def test_adding_files_keeps_the_others_and_names_a_data_set_once():
    first, second = table(entry("b"), entry("a")), table(entry("b", size=9), entry("B"))
    manifest = Manifest().with_files(first, "1").with_files(second, "2")
    again = manifest.with_files(table(), "1")
    assert again.data_sets == ("1", "2")
    assert again.files.to_pylist() == [entry("B"), entry("a"), entry("b", size=9)]


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_disk_that_refuses_keeps_the_old_one(call, tmp_path, monkeypatch):
    old = written(tmp_path, entry("a"))

    def refused(*arguments, **options):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        with pytest.raises(TargetError, match=f"cannot write {tmp_path}/{MANIFEST_NAME}: No space left"):
            written(tmp_path, entry("b"))
    assert manifest_of(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


@given(
    place=st.integers(0, 700),
    cut=st.integers(0, 3),
    new=st.sampled_from([b"", b" ", b"\n", b",", b"0", b"-", b".5", b"e1", b"/..", b"}", b'"', b"\\u0000", b"null"])
    | st.binary(max_size=2),
)
def test_a_changed_one_is_read_as_json_has_it_or_refused(place, cut, new, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    written(target, entry("a/größe"), entry("a/b"), entry("b", **MORE), entry("c", sparse=True))
    file = target / MANIFEST_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:place] + new + whole[place + cut :])
    try:
        found = manifest_of(target)
    except TargetError:
        return
    listed = {each["path"]: entry("", **each) for each in json.loads(file.read_bytes())["files"]}
    for each in listed.values():
        each["written"] = bool(each["written"])
    assert found.files.to_pylist() == [listed[path] for path in sorted(listed)]
    assert all(path.startswith(TWIN_ROOT) and not {"", ".", ".."} & set(path.split("/")) for path in listed)


@pytest.mark.parametrize("indent", [None, 1])
def test_many_files_are_read_in_pieces_however_json_lays_them_out(tmp_path, monkeypatch, indent):
    monkeypatch.setattr(manifest_module, "_PIECE_BYTES", 1000)
    files = [entry(f"{number:06}/}},\n{{", size=number) for number in range(100)]
    manifest = written(tmp_path, *files)
    assert manifest_of(tmp_path).files.to_pylist() == files
    data = json.loads((tmp_path / MANIFEST_NAME).read_text())
    data["files"] = [*data["files"][:1], *reversed(data["files"])]
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data, indent=indent))
    assert manifest_of(tmp_path) == manifest


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_disk_that_cannot_be_read_is_not_damage(tmp_path, monkeypatch, code):
    written(tmp_path, entry("a"))

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(PosixReader, "read_into", refuse)
    with pytest.raises(TargetError, match=os.strerror(code)) as raised:
        manifest_of(tmp_path)
    assert "damaged" not in str(raised.value)
