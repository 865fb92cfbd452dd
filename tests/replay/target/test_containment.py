"""Nothing outside the target is read, written or removed, whatever names, links and manifests say."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.target import posix
from dxt_replay.replay.target.manifest import MANIFEST_NAME, MANIFEST_VERSION
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import open_directory, resolve_target, temporary_name
from dxt_replay.replay.target.protocol import LOCK_NAME, SMALL_BYTES, refusal
from dxt_replay.replay.target.stage import check_staged, plan_stage, prepare_run, stage, unstage
from dxt_replay.traces.errors import TargetError
from tests.capture_builder import build_capture, read, write
from tests.examples import examples
from tests.planted import make_outside, nothing_changes, plant
from tests.replay.target.test_stage import reads

HOSTILE = [
    b"/etc/passwd", b"../../x", b"/../../../../tmp/x", b"/a/../../outside/kept", b"outside/kept", b"/a\nb/c\r",
    b"/\xff\xfe/\x80", b"/nul\0byte", b"<STDOUT>", b"/", b"", b"..", b"/a/b", b"/a", b"/" + b"n" * 300,
    b"/" + b"/".join([b"deep"] * 2000), b"/%2e%2e/%2e%2e/x", b"/a/..%00/x", "/\u202edwssap/\u2025/x".encode(),
    b"/.dxt-replay-manifest.json.new", b"/../dxt-replay-manifest.json", b"~root/.bashrc", b"/proc/self/cwd/x",
    b"s3://bucket/../../x", b"s3://../x", b"s3:/bucket/a", b"s3://bucket/a", b"/a/" + temporary_name(b"b"),
    b"/" + LOCK_NAME.encode(),
]  # fmt: skip


def refused(message, use, *given):
    with pytest.raises(TargetError, match=message):
        use(*given)


@pytest.fixture
def outside(tmp_path):
    return make_outside(tmp_path)


def test_hostile_names_stay_inside(tmp_path, outside):
    half = len(HOSTILE) // 2
    ops = [read(i, length=100) if i < half else write(i, length=100) for i in range(len(HOSTILE))]
    capture, target = build_capture(tmp_path, files=HOSTILE, ops=ops), tmp_path / "target"
    with nothing_changes(outside):
        stage(plan_stage(capture, target))
        placements = check_staged(capture, target)
        for placement in list(placements)[half:]:
            Path(os.fsdecode(placement.path)).write_bytes(b"made by a run")
        assert prepare_run(target, placements) == len(HOSTILE) - half
        staged = [path for path in (target / TWIN_ROOT).rglob("*") if path.is_file()]
        assert len(staged) == half
        assert all(path.stat().st_size == 100 for path in staged)
        assert unstage(target) == half
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "target", capture.path.name}
    assert list(target.iterdir()) == []


names = st.lists(st.sampled_from([b"", b".", b"..", b"a", b"b", b"kept"]) | st.binary(max_size=5), max_size=5)


@settings(max_examples=examples(10))
@given(st.lists(names, max_size=8))
def test_arbitrary_names_stay_inside(names):
    with tempfile.TemporaryDirectory() as scratch:
        target, outside, paths = Path(scratch) / "target", make_outside(Path(scratch)), list(map(b"/".join, names))
        capture = build_capture(scratch, files=paths, ops=[read(i, length=1) for i in range(len(paths))])
        with nothing_changes(outside):
            stage(plan_stage(capture, target), workers=1)
            found = {os.path.realpath(placement.path) for placement in check_staged(capture, target)}
            assert len(found) == len(paths)
            assert all(path.startswith(os.fsencode(os.path.realpath(target)) + b"/") for path in found)
            unstage(target)


@pytest.fixture
def capture(tmp_path):
    return build_capture(tmp_path, files=["/a/b/c", "/w/x"], ops=[read(0, length=10), write(1, length=10)])


LINKS = ["link to a file", "link to a directory", "link to nothing"]
IN_THE_WAY = {"hard link": r"one of . names .hard", "FIFO": "not a plain file", "directory": "not a plain file"}


def message_of(where, thing):
    """What is said of a thing at the place of a directory or file."""
    if thing in LINKS:
        return "is a symbolic link.*remove"
    is_file = where in ("/a/b/c", "/w/x")
    return IN_THE_WAY.get(thing, "was not made by dxt-replay") if is_file else "is a file where a directory is needed"


@pytest.mark.parametrize(
    ("where", "thing"),
    [
        *((where, thing) for where in ("", "/a", "/a/b") for thing in (*LINKS[1:], "file")),
        *((where, thing) for where in ("/a/b/c", "/w/x") for thing in (*LINKS, *IN_THE_WAY, "file")),
        ("/w", "link to a directory"),
    ],
)
def test_what_is_at_a_place_of_a_twin_is_neither_followed_nor_replaced(where, thing, tmp_path, capture, outside):
    message = message_of(where, thing)

    def planted(target):
        there = Path(f"{target}/{TWIN_ROOT}{where}")
        plant(thing, there, outside, tmp_path / "aside")
        return there

    with nothing_changes(outside):
        target = tmp_path / "before the plan"
        there = [planted(target)]
        refused(message, plan_stage, capture, target)
        target = tmp_path / "before staging"
        plan = plan_stage(capture, target)
        there += [planted(target)]
        if where != "/w/x":  # made by a run, which looks again
            refused("symbolic link|was not made by dxt-replay|where a directory is needed", stage, plan)
        target = tmp_path / "before a run"
        stage(plan_stage(capture, target))
        placements = check_staged(capture, target)
        there += [planted(target)]
        if thing != "file" or where not in ("/a/b/c", "/w/x"):  # a file of the same name may be ours
            for look in (check_staged, plan_stage):
                refused(message, look, capture, target)
            for use in (lambda: prepare_run(target, placements), lambda: unstage(target)):
                with suppress(TargetError):  # what is inside may succeed
                    use()
            if thing == "hard link":
                there.pop()
    assert all(os.path.lexists(path) for path in there)


@pytest.mark.parametrize("thing", LINKS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (LOCK_NAME, "symbolic link|File exists"),
        (MANIFEST_NAME, "symbolic link"),
        (os.fsdecode(temporary_name(MANIFEST_NAME.encode())), "File exists"),
        (f"{TWIN_ROOT}/a/b/{os.fsdecode(temporary_name(b'large'))}", r"cannot write .*/a/b/large: File exists"),
    ],
)
def test_a_link_at_a_name_that_staging_itself_opens_is_neither_followed_nor_replaced(
    name, message, thing, tmp_path, outside
):
    """Its lock, the manifest, and the manifest and a large file while they are written."""
    capture = reads(tmp_path, {"/a/b/c": 10, "/a/b/large": SMALL_BYTES + 1})
    plant(thing, tmp_path / "target" / name, outside, tmp_path / "aside")
    with nothing_changes(outside):
        refused(message, lambda: stage(plan_stage(capture, tmp_path / "target")))
    assert (tmp_path / "target" / name).is_symlink()


def test_a_link_in_place_of_the_root_of_a_second_data_set_is_not_followed(tmp_path, capture, outside):
    target = tmp_path / "target"
    stage(plan_stage(capture, target))
    other = reads(tmp_path, {"/a/b/c": 11}, "other")
    root = plan_stage(other, target).to_write.path[0].as_py().partition("/")[0]
    assert root != TWIN_ROOT
    (target / root).symlink_to(outside)
    with nothing_changes(outside):
        refused("is a symbolic link", plan_stage, other, target)


def forged(**entry):
    """A manifest of one file, changed."""
    file = {"path": f"{TWIN_ROOT}/a", "size": 1, "record_id": 1, "sparse": False, "state": "created_by_run", **entry}
    return json.dumps({"schema_version": 1, "made_by": "dxt-replay", "data_sets": [], "files": [file]})


WRONG_PATHS = [
    "../outside/kept", f"{TWIN_ROOT}/../../outside/kept", f"{TWIN_ROOT}/./a", f"{TWIN_ROOT}//a", f"{TWIN_ROOT}/a\0b",
    f"{TWIN_ROOT}/\ud800", f"{TWIN_ROOT}/", f"{TWIN_ROOT}-mine/a", f"{TWIN_ROOT}-{'0' * 16}/../x", f"x\n{TWIN_ROOT}/a",
    f"{TWIN_ROOT.upper()}/a", TWIN_ROOT, "/etc/passwd", "mine", "", 7, None, ["a"],
]  # fmt: skip
WRONG = [("size", -1), ("size", 1.5), ("size", True), ("record_id", 2**64), ("state", "x"), ("sparse", 0)]
HEAD = '{"schema_version": 1, "made_by": "dxt-replay", "data_sets": [], "files": '


@pytest.mark.parametrize(
    "content",
    [
        *(forged(path=path) for path in WRONG_PATHS),
        *(forged(**{key: value}) for key, value in WRONG),
        *("", "{", "[]", "null", '{"schema_version": 1}', HEAD + "[{}]}", HEAD + "7}", "[" * 100_000, "\udcff"),
        HEAD.replace("dxt-replay", "somebody") + "[]}",
        HEAD.replace("1", str(MANIFEST_VERSION + 1)) + "[]}",
        *(lambda manifest: manifest.symlink_to("../outside/kept"), os.mkfifo, os.mkdir),
    ],
)
def test_a_manifest_that_is_not_ours_removes_nothing(content, tmp_path, capture, outside):
    """It is input."""
    target, manifest = tmp_path / "target", tmp_path / "target" / MANIFEST_NAME
    (target / TWIN_ROOT).mkdir(parents=True)
    (target / "mine").write_bytes(b"mine")
    if callable(content):
        content(manifest)
    else:
        manifest.write_bytes(content.encode("utf-8", "surrogateescape"))
    with nothing_changes(outside), nothing_changes(target / TWIN_ROOT):
        for use in (plan_stage, check_staged, lambda _, target: unstage(target)):
            refused(MANIFEST_NAME, use, capture, target)
    assert sorted(path.name for path in target.iterdir()) == sorted((TWIN_ROOT, "mine", MANIFEST_NAME))
    assert callable(content) or manifest.read_bytes() == content.encode("utf-8", "surrogateescape")


def test_no_descriptor_is_left_open_and_a_target_is_resolved_once(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/")
    before = os.listdir("/proc/self/fd")
    with open_directory(tmp_path) as target:
        for path in ("a/b", "none"):
            with target.directory(path, make=True), target.directory(path), target.locked():
                pass
        for make in (True, False):
            with pytest.raises(TargetError), target.directory("link/x", make=make):
                pass
    assert os.listdir("/proc/self/fd") == before
    (tmp_path / "real").mkdir()
    (tmp_path / "other").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert resolve_target(Path("other/below/..")) == tmp_path / "real"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EDQUOT, errno.EIO])
def test_a_refusal_says_what_where_and_what_to_do(code):
    message = str(refusal(OSError(code, "ignored"), "write /t/a"))
    assert message.startswith(f"cannot write /t/a: {os.strerror(code)}; ")
    assert ("the file system failed" if code == errno.EIO else "target") in message.split("; ")[1]


MOUNTED = """
import os, sys
from pathlib import Path
from dxt_replay.replay.target.stage import check_staged, unstage
from dxt_replay.replay.target.stage import plan_stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import open_capture

capture, target = open_capture(sys.argv[1]), Path(sys.argv[2])
for attempt in (lambda: plan_stage(capture, target), lambda: check_staged(capture, target), lambda: unstage(target)):
    try:
        attempt()
    except TargetError as error:
        print(error)
"""


@pytest.mark.parametrize("place", ["my out", "my out/log"])
def test_a_mount_point_in_a_twin_is_neither_written_nor_emptied(tmp_path, place, outside):
    capture = build_capture(tmp_path, files=["/my out/log"], ops=[write(0, length=10)])
    target = tmp_path / "target"
    stage(plan_stage(capture, target))
    inside, of = target / TWIN_ROOT / place, outside / ("kept" if place.endswith("log") else "dir")
    inside.parent.mkdir(exist_ok=True)
    if place.endswith("log"):
        inside.touch()
    command = 'mount --bind "$1" "$2" || exit 77; shift 2; exec "$@"'
    attempts = sys.executable, "-c", MOUNTED, capture.path, target
    words = ["unshare", "-m", "sh", "-c", command, "sh", of, inside, *attempts]
    with nothing_changes(outside):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode in (1, 77) and not done.stdout:
        pytest.skip(f"this user may not mount: {done.stderr}")
    assert done.stdout.count("is a mount point inside a twin") == 3, (done.stdout, done.stderr)


def test_mounts_beside_a_twin_are_nobodys_business(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 27 0:21 / {tmp_path / 'target'} rw - proc proc rw\n22 27 0:21 / {tmp_path}/x rw - a b rw\n")
    monkeypatch.setattr(posix, "_MOUNTS", mounts)
    (tmp_path / "target").mkdir()
    with open_directory(tmp_path / "target") as opened:
        assert opened.exists
