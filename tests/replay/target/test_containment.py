"""Nothing outside the target is read, written or removed, whatever names, links and manifests say."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
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

HOSTILE = [
    b"/etc/passwd", b"../../x", b"/../../../../tmp/x", b"/a/../../outside/kept", b"outside/kept", b"/a\nb/c\r",
    b"/\xff\xfe/\x80", b"/nul\0byte", b"<STDOUT>", b"/", b"", b"..", b"/a/b", b"/a", b"/" + b"n" * 300,
    b"/" + b"/".join([b"deep"] * 2000), b"/%2e%2e/%2e%2e/x", b"/a/..%00/x", "/\u202edwssap/\u2025/x".encode(),
    b"/.dxt-replay-manifest.json.new", b"/../dxt-replay-manifest.json", b"~root/.bashrc", b"/proc/self/cwd/x",
    b"s3://bucket/../../x", b"s3://../x", b"s3:/bucket/a", b"s3://bucket/a", b"/a/" + temporary_name(b"b"),
    b"/" + LOCK_NAME.encode(),
]  # fmt: skip


@contextmanager
def nothing_outside_changes(place):
    """Everything in `place` but `place`/target is the same afterwards, as are a few files of the machine."""
    before = _state(place)
    yield
    assert _state(place) == before


def _state(place, *, inside=False):
    """Of all that is beside the target, or `inside`, of which a lock comes and goes."""
    found = [path for path in place.rglob("*") if inside or path.relative_to(place).parts[0] != "target"]
    seen = [(path, path.lstat()) for path in [*sorted(found), Path("/etc/passwd"), Path("/etc"), Path("/")]]
    whole = {path for path, status in seen if not (inside and stat.S_ISDIR(status.st_mode))}
    return [(str(path), each.st_ino, each.st_size, each.st_mtime_ns if path in whole else 0) for path, each in seen]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_bytes(b"kept")
    return tmp_path


def test_hostile_names_stay_inside(place):
    half = len(HOSTILE) // 2
    ops = [read(i, length=100) if i < half else write(i, length=100) for i in range(len(HOSTILE))]
    capture = build_capture(place, files=HOSTILE, ops=ops)
    target = place / "target"
    with nothing_outside_changes(place):
        stage(plan_stage(capture, target))
        placements = check_staged(capture, target)
        for placement in list(placements)[half:]:
            Path(os.fsdecode(placement.path)).write_bytes(b"made by a run")
        assert prepare_run(target, placements) == len(HOSTILE) - half
        staged = [path for path in (target / TWIN_ROOT).rglob("*") if path.is_file()]
        assert len(staged) == half
        assert all(path.stat().st_size == 100 for path in staged)
        assert unstage(target) == half
    assert list(target.iterdir()) == []


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.lists(st.sampled_from([b"", b".", b"..", b"a", b"b", b"kept"]) | st.binary(max_size=5), max_size=5),
        max_size=8,
    )
)
def test_arbitrary_names_stay_inside(names):
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "outside").mkdir()
        paths = [b"/".join(parts) for parts in names]
        capture = build_capture(place, files=paths, ops=[read(i, length=1) for i in range(len(paths))])
        with nothing_outside_changes(place):
            stage(plan_stage(capture, place / "target"), workers=1)
            found = {os.path.realpath(placement.path) for placement in check_staged(capture, place / "target")}
            assert len(found) == len(paths)
            assert all(path.startswith(os.fsencode(os.path.realpath(place / "target")) + b"/") for path in found)
            unstage(place / "target")


@pytest.fixture
def capture(place):
    return build_capture(place, files=["/a/b/c", "/w/x"], ops=[read(0, length=10), write(1, length=10)])


LINKS = ["", "/a", "/a/b", "/a/b/c", "/w"]
HALF_WRITTEN = [
    os.fsdecode(temporary_name(MANIFEST_NAME.encode())),
    f"{TWIN_ROOT}/a/b/{os.fsdecode(temporary_name(b'large'))}",
]


@pytest.mark.parametrize("where", [*LINKS, "/w/x"])
@pytest.mark.parametrize("to", ["outside", "outside/kept", "outside/new"])
@pytest.mark.parametrize("when", ["before the plan", "before staging", "before a run"])
def test_a_link_at_any_place_of_a_twin_is_neither_followed_nor_replaced(where, to, when, place, capture):
    target, link = place / "target", place / f"target/{TWIN_ROOT}{where}"
    plan = None if when == "before the plan" else plan_stage(capture, target)
    if when == "before a run":
        stage(plan)
    if link.exists():
        link.rename(target / "moved")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(place / to)
    with nothing_outside_changes(place):
        if when == "before staging" and where != "/w/x":  # made by a run: prepare_run looks again
            with pytest.raises(TargetError, match=r"symbolic link|not made by dxt-replay"):
                stage(plan)
        elif when == "before staging":
            stage(plan)
        for look in (check_staged, plan_stage):
            if look is plan_stage or when == "before a run":
                with pytest.raises(TargetError, match=r"is a symbolic link.*remove"):
                    look(capture, target)
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, r"symbolic link|File exists") for name in (LOCK_NAME, MANIFEST_NAME, *HALF_WRITTEN[:1])),
        (HALF_WRITTEN[1], r"cannot write .*/a/b/large: File exists"),
    ],
)
@pytest.mark.parametrize("to", ["outside", "outside/kept", "outside/new"])
def test_a_link_at_a_name_that_staging_itself_opens_is_neither_followed_nor_replaced(name, message, to, place):
    """Its lock, the manifest, and the manifest and a large file while they are written."""
    ops = [read(0, length=10), read(1, length=SMALL_BYTES + 1)]
    capture = build_capture(place / "outside", files=["/a/b/c", "/a/b/large"], ops=ops)
    link = place / "target" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(place / to)
    with nothing_outside_changes(place), pytest.raises(TargetError, match=message):
        stage(plan_stage(capture, place / "target"))
    assert link.is_symlink()


def test_a_link_in_place_of_the_root_of_a_second_data_set_is_not_followed(place, capture):
    target = place / "target"
    stage(plan_stage(capture, target))
    other = build_capture(place, name="other", files=["/a/b/c"], ops=[read(0, length=11)])
    root = plan_stage(other, target).to_write.path[0].as_py().partition("/")[0]
    assert root != TWIN_ROOT
    (target / root).symlink_to(place / "outside")
    with nothing_outside_changes(place), pytest.raises(TargetError, match="is a symbolic link"):
        plan_stage(other, target)


@pytest.mark.parametrize("where", LINKS)
def test_removing_follows_no_links(where, place, capture):
    target = place / "target"
    stage(plan_stage(capture, target))
    placements = check_staged(capture, target)
    outside = place / "outside"
    for copy in ("a/b/c", "b/c", "c", "w/x", "x"):
        (outside / copy).parent.mkdir(parents=True, exist_ok=True)
        if not (outside / copy).exists():
            (outside / copy).write_bytes(b"kept")
    (target / f"{TWIN_ROOT}{where}").rename(target / "moved")
    (target / f"{TWIN_ROOT}{where}").symlink_to(outside if where != "/a/b/c" else outside / "kept")
    with nothing_outside_changes(place):
        for use in (lambda: prepare_run(target, placements), lambda: unstage(target)):
            try:  # what is inside may succeed
                use()
            except TargetError as error:
                assert "symbolic link" in str(error)  # noqa: PT017
    assert (target / f"{TWIN_ROOT}{where}").is_symlink()


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("a/b/c", "directory", "is not a plain file"),
        ("a/b/c", "fifo", "is not a plain file"),
        ("a", "file", "is a file where a directory is needed"),
        ("a/b/c", "file", "a/b/c exists and was not made by dxt-replay"),
        ("w/x", "file", "w/x exists and was not made by dxt-replay"),
    ],
)
def test_what_is_in_the_way_is_refused_and_stays(where, kind, message, place, capture):
    there = place / "target" / TWIN_ROOT / where
    there.parent.mkdir(parents=True)
    {"directory": there.mkdir, "fifo": lambda: os.mkfifo(there), "file": lambda: there.write_bytes(b"mine")}[kind]()
    before = there.lstat()
    with pytest.raises(TargetError, match=message):
        plan_stage(capture, place / "target")
    assert there.lstat() == before


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
def test_a_manifest_that_is_not_ours_removes_nothing(content, place, capture):
    """It is input."""
    target, manifest = place / "target", place / "target" / MANIFEST_NAME
    (target / TWIN_ROOT).mkdir(parents=True)
    (target / "mine").write_bytes(b"mine")
    if callable(content):
        content(manifest)
    else:
        manifest.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = _state(place, inside=True)
    for use in (plan_stage, check_staged, lambda _, target: unstage(target)):
        with pytest.raises(TargetError, match=MANIFEST_NAME):
            use(capture, target)
    assert _state(place, inside=True) == before


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


@pytest.mark.parametrize("where", ["/a/b/c", "/w/x"])
def test_a_hard_link_is_refused_before_a_run_writes_through_it(where, place, capture):
    target = place / "target"
    stage(plan_stage(capture, target))
    link = target / f"{TWIN_ROOT}{where}"
    link.unlink(missing_ok=True)
    link.hardlink_to(place / "outside/kept")
    for look in (lambda: check_staged(capture, target), lambda: plan_stage(capture, target)):
        with nothing_outside_changes(place), pytest.raises(TargetError, match=r"one of 2 names \(hard links\)"):
            look()


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
def test_a_mount_point_in_a_twin_is_neither_written_nor_emptied(tmp_path, place):
    capture = build_capture(tmp_path, files=["/my out/log"], ops=[write(0, length=10)])
    target = tmp_path / "target"
    stage(plan_stage(capture, target))
    inside = target / TWIN_ROOT / place
    inside.parent.mkdir(exist_ok=True)
    precious = tmp_path / ("outside" if place.endswith("log") else "outside/log")
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious")
    if place.endswith("log"):
        inside.touch()
    command = 'mount --bind "$1" "$2" || exit 77; shift 2; exec "$@"'
    replaying = [sys.executable, "-c", MOUNTED, str(capture.path), str(target)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(tmp_path / "outside"), str(inside), *replaying],
        capture_output=True,
        text=True,
    )
    if done.returncode in (1, 77) and not done.stdout:
        pytest.skip(f"this user may not mount: {done.stderr}")
    assert done.stdout.count("is a mount point inside a twin") == 3, (done.stdout, done.stderr)
    assert precious.read_text() == "precious"


def test_mounts_beside_a_twin_are_nobodys_business(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 27 0:21 / {tmp_path / 'target'} rw - proc proc rw\n22 27 0:21 / {tmp_path}/x rw - a b rw\n")
    monkeypatch.setattr(posix, "_MOUNTS", mounts)
    (tmp_path / "target").mkdir()
    with open_directory(tmp_path / "target") as opened:
        assert opened.exists
