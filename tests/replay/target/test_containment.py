"""Nothing outside the target is read, written or removed, whatever names, links and manifests say."""

from __future__ import annotations

import errno
import json
import os
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
    b"/etc/passwd",
    b"../../x",
    b"/../../../../tmp/x",
    b"/a/../../outside/kept",
    b"outside/kept",
    b"/a\nb/c\r",
    b"/\xff\xfe/\x80",
    b"/nul\0byte",
    b"<STDOUT>",
    b"/",
    b"",
    b"..",
    b"/a/b",
    b"/a",
    b"/" + b"n" * 300,
    b"/" + b"/".join([b"deep"] * 2000),
    b"/%2e%2e/%2e%2e/x",
    b"/a/..%00/x",
    "/‮dwssap/‥/x".encode(),
    b"/.dxt-replay-manifest.json.new",
    b"/../dxt-replay-manifest.json",
    b"~root/.bashrc",
    b"/proc/self/cwd/x",
    b"s3://bucket/../../x",
    b"s3://../x",
    b"s3:/bucket/a",
    b"s3://bucket/a",
    b"/a/" + temporary_name(b"b"),
    b"/" + LOCK_NAME.encode(),
]


@contextmanager
def nothing_outside_changes(place):
    """Everything in `place` but `place`/target is the same afterwards, as are a few files of the machine."""
    before = _state(place)
    yield
    assert _state(place) == before


def _state(place):
    inside = [path for path in place.rglob("*") if path.relative_to(place).parts[0] != "target"]
    machine = [Path("/etc/passwd"), Path("/etc"), Path("/")]
    return [
        (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        for path in sorted(inside) + machine
        for status in [path.lstat()]
    ]


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
        st.lists(
            st.one_of(st.sampled_from([b"", b".", b"..", b"a", b"b", b"kept"]), st.binary(max_size=5)), max_size=5
        ),
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


@contextmanager
def only_links_refused():
    """What is inside may succeed, or refuse because of a link."""
    try:
        yield
    except TargetError as error:
        assert "symbolic link" in str(error)  # noqa: PT017


LINKS = ["", "/a", "/a/b", "/a/b/c", "/w"]


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


@pytest.mark.parametrize("name", [LOCK_NAME, MANIFEST_NAME, os.fsdecode(temporary_name(MANIFEST_NAME.encode()))])
@pytest.mark.parametrize("to", ["outside", "outside/kept", "outside/new"])
def test_a_link_in_place_of_a_file_of_our_own_is_neither_followed_nor_replaced(name, to, place, capture):
    """At each name that staging itself opens in the target: its lock, the manifest, and the manifest while written."""
    target = place / "target"
    target.mkdir()
    (target / name).symlink_to(place / to)
    with nothing_outside_changes(place), pytest.raises(TargetError, match=r"symbolic link|File exists"):
        stage(plan_stage(capture, target))
    assert (target / name).is_symlink()


def test_a_link_in_place_of_the_root_of_a_second_data_set_is_not_followed(place, capture):
    target = place / "target"
    stage(plan_stage(capture, target))
    other = build_capture(place, name="other", files=["/a/b/c"], ops=[read(0, length=11)])
    root = plan_stage(other, target).to_write.path[0].as_py().partition("/")[0]
    assert root != TWIN_ROOT
    (target / root).symlink_to(place / "outside")
    with nothing_outside_changes(place), pytest.raises(TargetError, match="is a symbolic link"):
        plan_stage(other, target)


def test_a_link_under_the_name_of_a_file_that_is_being_written_is_refused(place, tmp_path):
    capture = build_capture(tmp_path / "large", files=["/a/b/c"], ops=[read(0, length=SMALL_BYTES + 1)])
    link = place / "target" / TWIN_ROOT / "a/b" / os.fsdecode(temporary_name(b"c"))
    link.parent.mkdir(parents=True)
    link.symlink_to(place / "outside/kept")
    with nothing_outside_changes(place), pytest.raises(TargetError, match=r"cannot write .*/a/b/c: File exists"):
        stage(plan_stage(capture, place / "target"))
    assert link.is_symlink()
    assert (place / "outside/kept").read_bytes() == b"kept"


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
        with only_links_refused():
            prepare_run(target, placements)
        with only_links_refused():
            unstage(target)
    assert (target / f"{TWIN_ROOT}{where}").is_symlink()


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("a/b/c", "directory", "is not a plain file"),
        ("a/b/c", "fifo", "is not a plain file"),
        ("a", "file", "is a file where a directory is needed"),
        ("a/b/c", "file", "a/b/c exists and was not made by dxt-replay"),
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
    "../outside/kept",
    f"{TWIN_ROOT}/../../outside/kept",
    f"{TWIN_ROOT}/./a",
    f"{TWIN_ROOT}//a",
    f"{TWIN_ROOT}/a\0b",
    f"{TWIN_ROOT}/\ud800",
    f"{TWIN_ROOT}/",
    f"{TWIN_ROOT}-mine/a",
    f"{TWIN_ROOT}-{'0' * 16}/../x",
    f"x\n{TWIN_ROOT}/a",
    f"{TWIN_ROOT.upper()}/a",
    TWIN_ROOT,
    "/etc/passwd",
    "mine",
    "",
    7,
    None,
    ["a"],
]
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
    ],
)
def test_a_manifest_that_is_not_ours_removes_nothing(content, place, capture):
    """It is input."""
    target, manifest = place / "target", place / "target" / MANIFEST_NAME
    (target / TWIN_ROOT).mkdir(parents=True)
    (target / "mine").write_bytes(b"mine")
    manifest.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = manifest.read_bytes()
    with nothing_outside_changes(place):
        for use in (plan_stage, check_staged, lambda _, target: unstage(target)):
            with pytest.raises(TargetError, match=MANIFEST_NAME):
                use(capture, target)
    assert (manifest.read_bytes(), (target / "mine").read_bytes()) == (before, b"mine")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_manifest_that_is_no_file_is_neither_read_nor_replaced(kind, place, capture):
    manifest = place / "target" / MANIFEST_NAME
    manifest.parent.mkdir()
    {"link": lambda: manifest.symlink_to(place / "outside/kept"), "fifo": lambda: os.mkfifo(manifest),
     "directory": manifest.mkdir}[kind]()  # fmt: skip
    before = manifest.lstat()
    with nothing_outside_changes(place):
        for use in (plan_stage, check_staged, lambda _, target: unstage(target)):
            with pytest.raises(TargetError, match=MANIFEST_NAME):
                use(capture, place / "target")
    assert manifest.lstat().st_mode == before.st_mode


class TestTarget:
    def test_no_descriptor_is_left_open(self, tmp_path):
        (tmp_path / "link").symlink_to("/")
        before = os.listdir("/proc/self/fd")
        with open_directory(tmp_path) as target:
            for path in ("a/b", "none"):
                with target.directory(path, make=True), target.directory(path), target.locked():
                    pass
            with pytest.raises(TargetError), target.directory("link/x", make=True):
                pass
            with pytest.raises(TargetError), target.directory("link/x"):
                pass
        assert os.listdir("/proc/self/fd") == before

    def test_a_target_is_resolved_once(self, tmp_path, monkeypatch):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        monkeypatch.chdir(tmp_path)
        assert resolve_target(Path("link/below/..")) == tmp_path / "real"


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
    outside = tmp_path / "outside"
    if place.endswith("log"):
        outside.write_text("precious")
        inside.touch()
    else:
        outside.mkdir()
        (outside / "log").write_text("precious")
    command = 'mount --bind "$1" "$2" || exit 77; shift 2; exec "$@"'
    replaying = [sys.executable, "-c", MOUNTED, str(capture.path), str(target)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(outside), str(inside), *replaying],
        capture_output=True,
        text=True,
    )
    if done.returncode in (1, 77) and not done.stdout:
        pytest.skip(f"this user may not mount: {done.stderr}")
    assert done.stdout.count("is a mount point inside a twin") == 3, (done.stdout, done.stderr)
    assert (outside if outside.is_file() else outside / "log").read_text() == "precious"


def test_mounts_beside_a_twin_are_nobodys_business(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 27 0:21 / {tmp_path / 'target'} rw - proc proc rw\n22 27 0:21 / {tmp_path}/x rw - a b rw\n")
    monkeypatch.setattr(posix, "_MOUNTS", mounts)
    (tmp_path / "target").mkdir()
    with open_directory(tmp_path / "target") as opened:
        assert opened.exists
