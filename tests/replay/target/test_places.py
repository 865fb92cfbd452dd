"""Where recorded paths go: readable, contained, distinct, and never a file where another needs a directory; and the
manifest on disk: round trip, replaced as a whole, damaged ones (tests of forged ones: test_containment)."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.replay.target import manifest as manifest_module
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, MANIFEST_NAME, PLANNED, WHOLE, Manifest
from dxt_replay.replay.target.placement import NAME_MAX, PATH_MAX, TWIN_ROOT, PathMap, parse_map, place
from dxt_replay.replay.target.posix import PosixReader, temporary_name
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError, UsageError
from tests.capture_builder import File, files_table
from tests.replay.target.test_stage import failing, manifest_of

TARGET = b"/scratch/target/"
ROOT = TARGET + os.fsencode(TWIN_ROOT) + b"/"


parts = st.one_of(
    st.sampled_from([b"", b".", b"..", b"a", b"b", b"a%20", b"%61", b"...", b"<STDOUT>", b"\n", b"\xff", b"a" * 255]),
    st.binary(max_size=6),
    st.integers(1, 400).map(lambda n: b"x" * n),
    st.integers(1, 200).map(lambda n: "é".encode() * n),
)
paths = st.builds(
    lambda lead, middle: lead + b"/".join(middle),
    st.sampled_from([b"/", b"", b"//", b"../", b"/../../"]),
    st.lists(parts, max_size=6),
)


def placed(*recorded):
    """Paths below the twin root, in order."""
    found = [placement.path for placement in place(files_table(recorded), TARGET)]
    assert all(path.startswith(ROOT) for path in found)
    return [path.removeprefix(ROOT) for path in found]


def assert_sound(found, root=ROOT):
    """Strictly below the root by names that no system call reads otherwise, distinct, none a directory of another."""
    as_parts = [tuple(path.removeprefix(root).split(b"/")) for path in found]
    for path, names in zip(found, as_parts, strict=True):
        assert path.startswith(root)
        assert not {b"", b".", b".."} & set(names)
        assert all(len(name) <= NAME_MAX and name.decode("utf-8").isprintable() for name in names)
        assert len(path) <= PATH_MAX
    assert len(set(as_parts)) == len(as_parts)
    directories = {names[:depth] for names in as_parts for depth in range(len(names))}
    assert not directories & set(as_parts)


DEEP = b"/" + b"/".join([b"t" * 250] * 14) + b"/"


@given(st.lists(st.tuples(paths, st.none() | st.integers(0, 3)), max_size=12), st.sampled_from([TARGET, DEEP]))
@example([(path, None) for path in (b"", b"/", b"/..", b"..", b".")], TARGET)
@example([(path, None) for path in (b"/a", b"/a/b", b"/a/b/c", b"a", b"/x/../a")], TARGET)
@example([(b"/" + b"/".join([b"d" * 200] * 30) + b"/f%d" % i, None) for i in range(3)], TARGET)
@example([(b"/" + b"/".join([b"d" * 200] * 30) + b"/" + b"f" * 250 + b"%d" % i, None) for i in range(3)], DEEP)
def test_arbitrary_paths_have_sound_places(recorded, target):
    """Also below a deep target, which shortens them, and of record ids that come twice."""
    files = [File(path, record_id=record_id) for path, record_id in recorded]
    found = [placement.path for placement in place(files_table(files), target)]
    assert_sound(found, target + os.fsencode(TWIN_ROOT) + b"/")


@given(st.lists(paths, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(recorded, random):
    files = [File(path, record_id=i) for i, path in enumerate(recorded)]
    shuffled = random.sample(files, len(files))
    there = {file.record_id: path for file, path in zip(files, placed(*files), strict=True)}
    assert {file.record_id: path for file, path in zip(shuffled, placed(*shuffled), strict=True)} == there


UNNAMED = b"%~00000000000003e8"
PLACES = {
    "/data/train/a.npz": b"data/train/a.npz", "/data//train/./a.npz": b"data/train/a.npz", "/etc/passwd": b"etc/passwd",
    "/data/test/../train/a.npz": b"data/train/a.npz", "/../../etc/passwd": b"etc/passwd", "../../x": b"x",
    "<STDOUT>": b"<STDOUT>", "/daten/größe.h5": "daten/größe.h5".encode(), "/a b/c": b"a b/c", "/a\nb": b"a%0Ab",
    b"/a\x00b": b"a%00b", b"/a\xffb": b"a%FFb", "/a%20b": b"a%2520b", "/\u202eevil": b"%E2%80%AEevil",
    "/": UNNAMED, "": UNNAMED,
}  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        *(([name], [place]) for name, place in PLACES.items()),
        (["/a", "/a/b"], [b"a" + UNNAMED, b"a/b"]),  # a directory is needed
        (["/x/../a", "/a", "a"], [b"a" + UNNAMED, b"a", b"a%~00000000000003ea"]),  # the plain record keeps it
        ([b"/a\xff", "/a%FF"], [b"a%FF", b"a%25FF"]),  # a name that looks escaped
    ],
)
def test_names_stay_readable_and_of_two_files_on_one_path_one_steps_aside(recorded, expected):
    assert placed(*recorded) == expected


def test_files_of_one_directory_with_a_long_name_stay_together():
    names = ["/" + "d" * 300 + "/1", "/" + "d" * 300 + "/2", "/" + "d" * 301 + "/1"]
    one, two, other = (path.split(b"/")[0] for path in placed(*names))
    assert one == two != other


def test_a_long_name_is_cut_between_characters():
    for name in ("xx" + "\n" * 200, "x" + "\n" * 200, "é" * 200, "x" + "é" * 200, "\n" * 200, "x\n" * 120):
        (path,) = placed("/" + name)
        assert_sound([ROOT + path])
        kept = path.decode("utf-8").rpartition("%-")[0]
        assert name.startswith(kept.replace("%0A", "\n"))


@pytest.mark.parametrize(
    ("maps", "recorded", "expected"),
    [
        (["/data=/mnt/real"], ["/data/x/a", "/data"], [b"/mnt/real/x/a", b"/mnt/real"]),
        (["/data=/mnt/real"], ["/database/a", "/home/a"], [ROOT + b"database/a", ROOT + b"home/a"]),
        (["/=/all", "/data/deep=/deep", "/data=/real/"], ["/data/deep/a", "/data/a"], [b"/deep/a", b"/real/a"]),
        (["/=/all", "/data=/real"], ["/b", "/x/../data//a/"], [b"/all/b", b"/real/a"]),
        (["/data=/one", "/data=/two"], [b"/data/a\xff%20\n"], [b"/one/a\xff%20\n"]),
        (["/data=/real"], ["/data/written", "/data/nul\0"], [ROOT + b"data/written", ROOT + b"data/nul%00"]),
    ],
)
def test_the_longest_prefix_wins_but_for_a_written_file(maps, recorded, expected):
    written = {number for number, path in enumerate(recorded) if path == "/data/written"}
    found = place(files_table(recorded), TARGET, [*map(parse_map, maps)], written=written)
    assert [each.path for each in found] == expected
    assert [each.mapped for each in found] == [not path.startswith(ROOT) for path in expected]


@given(paths)
@example(b"/data/../../etc/passwd")
@example(b"/data/..")
def test_mapped_paths_stay_below_their_directory(recorded):
    (found,) = place(files_table([b"/data/" + recorded]), TARGET, [parse_map("/data=/real")])
    if found.mapped:
        assert b".." not in found.path.split(b"/")
        assert found.path == b"/real" or found.path.startswith(b"/real/")
    else:
        assert_sound([found.path])


@pytest.mark.parametrize("text", ["", "=", "/data", "/data=", "=/real", "data=/real", "/data=/re\0al"])
def test_malformed_maps_are_refused(text):
    with pytest.raises(UsageError, match="--map"):
        parse_map(text)


def test_the_directory_becomes_absolute_and_may_hold_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = PathMap(prefix=(b"data", b"x"), directory=os.fsencode(tmp_path / "real=1"))
    assert parse_map("/data//x/=real=1") == expected


MORE = {"data_bytes": 5, "layout": 'x"y', "written": True}


def entry(name, **other):
    row = {"path": f"{TWIN_ROOT}/{name}", "size": 7, "record_id": 2**64 - 1, "sparse": False, "state": PLANNED}
    return row | {"data_bytes": None, "layout": None, "written": False} | other


def table(*entries):
    return manifest_module.manifest_files(**{name: [each[name] for each in entries] for name in entry("")})


def written(target, *entries):
    manifest = Manifest().with_files(table(*entries), "identity")
    with open_target(target, make=True) as opened:
        manifest_module.write_manifest(opened, manifest)
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
    for version, said in ((0, "is damaged or not ours"), (1, "update dxt-replay")):
        data["schema_version"] = manifest_module.MANIFEST_VERSION + version
        (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
        with pytest.raises(TargetError, match=said):
            manifest_of(tmp_path)


def test_adding_files_keeps_the_others_and_names_a_data_set_once():
    first, second = table(entry("b"), entry("a")), table(entry("b", size=9), entry("B"))
    manifest = Manifest().with_files(first, "1").with_files(second, "2")
    again = manifest.with_files(table(), "1")
    assert again.data_sets == ("1", "2")
    assert again.files.to_pylist() == [entry("B"), entry("a"), entry("b", size=9)]


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_disk_that_refuses_keeps_the_old_one(call, tmp_path, monkeypatch):
    old = written(tmp_path, entry("a"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(getattr(os, call), errno.ENOSPC))
        with pytest.raises(TargetError, match=f"cannot write {tmp_path}/{MANIFEST_NAME}: No space left"):
            written(tmp_path, entry("b"))
    assert manifest_of(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


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
    monkeypatch.setattr(PosixReader, "read_into", failing(None, code))
    with pytest.raises(TargetError, match=os.strerror(code)) as raised:
        manifest_of(tmp_path)
    assert "damaged" not in str(raised.value)
