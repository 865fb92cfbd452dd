"""The manifest on disk: round trip, replaced as a whole, damaged ones (tests of forged ones: test_containment)."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target.containment import make_target
from dxt_replay.replay.target.manifest import MANIFEST_NAME, MANIFEST_VERSION, Manifest, load_manifest, write_manifest
from dxt_replay.replay.target.manifest_files import STATES, ManifestFile, ManifestFiles
from dxt_replay.replay.target.manifest_lines import lines, parse
from dxt_replay.replay.target.placement import TWIN_ROOT, place
from dxt_replay.traces.errors import TargetError
from tests.capture_builder import files_table


def entry(name: str, *, size: int = 7) -> ManifestFile:
    return ManifestFile(path=f"{TWIN_ROOT}/{name}", size=size, record_id=2**64 - 1, sparse=False, state=STATES[0])


def written(target: Path, *files: ManifestFile) -> Manifest:
    manifest = Manifest(target=target).with_files(ManifestFiles.of(files), "identity")
    with make_target(target) as opened:
        write_manifest(opened, manifest)
    return manifest


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = written(tmp_path, entry("b/größe.h5"), entry("a", size=0))
    assert load_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_without_one_nothing_is_ours(tmp_path: Path) -> None:
    assert load_manifest(tmp_path) == Manifest(target=tmp_path)
    assert load_manifest(tmp_path / "none").files == {}


def test_it_is_one_line_a_file(tmp_path: Path) -> None:
    written(tmp_path, entry("a"), entry("b"))
    lines = (tmp_path / MANIFEST_NAME).read_text().splitlines()
    assert json.loads(lines[1].rstrip(","))["path"] == f"{TWIN_ROOT}/a"
    assert json.loads("".join(lines))["schema_version"] == MANIFEST_VERSION


def test_a_line_is_what_json_makes_of_the_file(tmp_path: Path) -> None:
    more = {"data_bytes": 5, "layout": 'x"y', "written": True}
    files = [entry('a "quoted" größe \U0001f600'), replace(entry("b"), sparse=True, **more)]
    written(tmp_path, *files)
    lines = (tmp_path / MANIFEST_NAME).read_text().splitlines()[1:-1]
    given = [{name: value for name, value in asdict(file).items() if value is not None} for file in files]
    assert [line.removesuffix(",") for line in lines] == [json.dumps(values) for values in given]


@pytest.mark.parametrize("change", [{"state": "unheard of"}, {"colour": "red"}])
def test_one_of_a_newer_release_is_named_as_such_whatever_its_lines_hold(
    change: dict[str, str], tmp_path: Path
) -> None:
    written(tmp_path, entry("a"))
    data = json.loads((tmp_path / MANIFEST_NAME).read_text())
    data["files"][0] |= change
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
    with pytest.raises(TargetError, match="is damaged or not ours"):
        load_manifest(tmp_path)
    data["schema_version"] = MANIFEST_VERSION + 1
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
    with pytest.raises(TargetError, match="update dxt-replay"):
        load_manifest(tmp_path)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_every_placement_can_be_listed(paths: list[bytes]) -> None:
    target = Path("/t")
    for placement in place(files_table(paths), target):
        relative = placement.path.removeprefix(b"/t/").decode("utf-8")
        assert ManifestFile(path=relative, size=0, record_id=0, sparse=True, state=STATES[1]).path == relative


def test_adding_files_keeps_the_others_and_names_a_data_set_once() -> None:
    first, second = ManifestFiles.of([entry("a"), entry("b")]), ManifestFiles.of([entry("b", size=9)])
    manifest = Manifest(target=Path("/t")).with_files(first, "1").with_files(second, "2")
    again = manifest.with_files(ManifestFiles.of([]), "1")
    assert again.data_sets == ("1", "2")
    assert {path.rpartition("/")[2]: file.size for path, file in again.files.items()} == {"a": 7, "b": 9}


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_disk_that_refuses_keeps_the_old_one(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(tmp_path, entry("a"))

    def refused(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        with pytest.raises(TargetError, match=f"cannot write {tmp_path}/{MANIFEST_NAME}: No space left"):
            written(tmp_path, entry("b"))
    assert load_manifest(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_a_half_written_one_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f".{MANIFEST_NAME}.new").write_text("{")
    manifest = written(tmp_path, entry("a"))
    assert load_manifest(tmp_path) == manifest


MORE = {"data_bytes": 5, "layout": "x", "written": True}


@given(
    place=st.integers(0, 700),
    cut=st.integers(0, 3),
    new=st.sampled_from([b"", b" ", b"\n", b",", b"0", b"-", b".5", b"e1", b"/..", b"}", b'"', b"\\u0000", b"null"])
    | st.binary(max_size=2),
)
def test_a_changed_one_is_read_or_refused_whether_or_not_it_is_as_we_write_it(
    place: int, cut: int, new: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A space after the end means nothing to JSON, and keeps the columns from being read as we write them."""
    target = tmp_path_factory.mktemp("target")
    written(target, entry("a/größe"), entry("a/b"), replace(entry("b"), **MORE), replace(entry("c"), sparse=True))
    file = target / MANIFEST_NAME
    whole = file.read_bytes()
    changed = whole[:place] + new + whole[place + cut :]
    outcomes = []
    for text in (changed, changed + b" "):
        file.write_bytes(text)
        try:
            outcomes.append(load_manifest(target))
        except TargetError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


def test_a_path_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    written(tmp_path, entry("a"), entry("bXc"))
    manifest = tmp_path / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes().replace(b"bXc", b"b\xffc"))
    with pytest.raises(TargetError, match="is damaged or not ours"):
        load_manifest(tmp_path)


def test_many_files_come_back_as_they_were_also_in_blocks(tmp_path: Path) -> None:
    files = [entry(f"{number:06}/{'x' * 200}", size=number) for number in range(70_000)]
    assert parse(lines(ManifestFiles.of(files))) == ManifestFiles.of(files)
    written(tmp_path, *files)
    manifest = load_manifest(tmp_path)
    assert len(manifest.files) == len(files)
    assert manifest.files[files[-1].path] == files[-1]
    assert manifest == Manifest(target=tmp_path, data_sets=("identity",), files=ManifestFiles.of(files))
    assert (tmp_path / MANIFEST_NAME).stat().st_size > 2 * (8 << 20)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_disk_that_cannot_be_read_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    written(tmp_path, entry("a"))

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("dxt_replay.replay.target.manifest._read_lines", refuse)
    with pytest.raises(TargetError, match=os.strerror(code)) as raised:
        load_manifest(tmp_path)
    assert "damaged" not in str(raised.value)
