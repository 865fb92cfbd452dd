"""Staging: what is planned, written, shared, checked, refused, resumed and taken away."""

from __future__ import annotations

import errno
import os
import stat as stat_modes
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from dxt_replay.replay.target import posix, writing
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, MANIFEST_NAME, PLANNED, WHOLE, read_manifest
from dxt_replay.replay.target.placement import TWIN_ROOT, parse_map
from dxt_replay.replay.target.posix import temporary_name
from dxt_replay.replay.target.protocol import SMALL_BYTES
from dxt_replay.replay.target.stage import check_staged, plan_stage, prepare_run, stage, unstage
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.target.writing import BATCH_FILES, SYNC_BYTES
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Op, build_capture, read, write
from tests.places import ROOT


def tree(directory):
    """Every file below `directory` with its bytes, directories as None."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(directory.rglob("*"))
    }


def twin(target):
    """Sizes of the files below the twin root, by path there."""
    root = target / TWIN_ROOT
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def manifest_of(target):
    with open_target(target) as opened:
        return read_manifest(opened)


def entries(target):
    """The rows of the manifest."""
    return manifest_of(target).files.to_pylist()


def staged(capture, target, **options):
    plan = plan_stage(capture, target, **options)
    stage(plan)
    return plan


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


@pytest.fixture
def capture(tmp_path):
    """Two files read, one only written, one only stat'ed, one that no operation names."""
    return build_capture(
        tmp_path,
        files=["/data/a.npz", "/data/b/c.npz", "/out/model.ckpt", File("/data/index", size=5000), File("/x", size=9)],
        ops=[
            read(0, offset=100, length=3_000_000),
            read(1, offset=0, length=10),
            write(1, offset=10, length=20),
            write(2, length=4096),
            Op("stat", 3),
        ],
    )


def failing(call, code, *, of=lambda *arguments: True):
    """`call`, of which the operating system refuses what `of` chooses with `code`."""

    def refused(*arguments, **options):
        if of(*arguments):
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return refused


def free_space(monkeypatch, free, *, inodes=1000):
    answer = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_favail=inodes, f_files=inodes, f_blocks=1)
    monkeypatch.setattr(os, "statvfs", lambda path: answer)


def reads(folder, sizes, name="test"):
    """A capture that reads whole files; `sizes`: by path."""
    ops = [read(file, length=size) for file, size in enumerate(sizes.values())]
    return build_capture(folder, name=name, files=list(sizes), ops=ops)


def test_each_file_has_one_role_and_is_made_as_planned(capture, target, tmp_path):
    plan = plan_stage(capture, target)
    sizes = {"data/a.npz": 3_000_100, "data/b/c.npz": 30, "data/index": 5000}
    planned = dict(zip(plan.to_write.path.to_pylist(), plan.to_write.size.tolist(), strict=True))
    assert planned == {f"{TWIN_ROOT}/{name}": size for name, size in sizes.items()}
    assert plan.created_by_run.path.to_pylist() == [f"{TWIN_ROOT}/out/model.ckpt"]
    assert plan.to_write.file_id[plan.sparse].tolist() == [3]
    assert (plan.bytes_to_write, target.exists()) == (3_000_130, False)
    manifest = stage(plan)
    assert twin(target) == sizes
    assert (target / TWIN_ROOT / "out").is_dir()
    assert manifest_of(target) == manifest
    assert {f["path"].removeprefix(f"{TWIN_ROOT}/"): (f["size"], f["sparse"], f["state"]) for f in entries(target)} == {
        **{name: (size, name == "data/index", WHOLE) for name, size in sizes.items()},
        "out/model.ckpt": (4096, False, CREATED_BY_RUN),
    }
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    staged(capture, tmp_path / "link")
    assert tree(tmp_path / "real") == tree(target), "the same bytes again, through a link to the target"


def log(first, origin="traced"):
    """A log that is continued, or the standard output of a job: its stat fails where nothing is there."""
    times = {op: 1_000 if op == first else 2_000 for op in ("stat", "open", "write")}
    more = {"stat": {"origin": origin}, "open": {"lane": 1}, "write": {"lane": 2, "offset": 49, "length": 3}}
    return [Op(op, 0, start_ns=start_ns, **more[op]) for op, start_ns in times.items()]


RENAMED = [Op("rename", 0, other_file_id=1, start_ns=10_000), Op("rename", 1, other_file_id=2, start_ns=20_000)]
REFUSED = [read(0, api="S3_REFUSED", start_ns=0, end_ns=10), write(0, length=1 << 20, api="S3", start_ns=20, end_ns=30)]
APIS = ("POSIX", "MPIIO", "MPIIO_COLL", "STDIO", "HDF5")


@pytest.mark.parametrize(
    ("files", "ops", "to_write", "created", "bytes_created"),
    [
        # A read of any interface counts, also one of nothing.
        *((["/a"], [read(0, length=n, api=api)], [("a", n)], 0, 0) for api in APIS for n in (0, 7)),
        # A size below the accesses is not believed.
        ([File("/a", size=5)], [read(0, offset=8, length=2)], [("a", 10)], 0, 0),
        ([File("/a", size=50)], [read(0, offset=-1, length=9)], [("a", 50)], 0, 0),
        # A written file that was looked at before is there.
        (["/log"], log("stat"), [("log", 52)], 0, 0),
        *((["/log"], log(first), [], 1, 52) for first in ("open", "write")),
        (["/log"], log("stat", "reconstructed"), [], 1, 52),
        # Bytes that get another name are counted once.
        ([*(File(f"/w{n}", size=700) for n in range(3)), "/x"], [write(0, length=700), *RENAMED, write(3, length=50)],
         [], 4, 750),
        # What is read before a rename replaces it is there.
        (["/a", "/a.tmp"],
         [read(0, length=100), write(1, start_ns=10_000, length=50), Op("rename", 1, other_file_id=0, start_ns=20_000)],
         [("a", 100)], 1, 0),
        # What a store refused before the job put it is not there.
        (["s3://bucket/key"], REFUSED, [], 1, 1 << 20),
        ([], [], [], 0, 0),
    ],
)  # fmt: skip
def test_what_is_staged_and_what_a_run_makes(files, ops, to_write, created, bytes_created, tmp_path, target):
    plan = staged(build_capture(tmp_path, files=files, ops=ops), target)
    assert twin(target) == dict(to_write)
    assert (len(plan.created_by_run), plan.as_json()["bytes_created_by_run"]) == (created, bytes_created)


def test_impossible_operations_are_an_error(tmp_path, target):
    for length, offset in ((2**63 - 1, 2**63 - 1), (-5, 0)):
        capture = build_capture(tmp_path, files=[File("/a", size=1)], ops=[read(0, offset=offset, length=length)])
        with pytest.raises(CaptureError, match="impossible"):
            plan_stage(capture, target)
    capture = reads(tmp_path, {"/a": 1})
    capture.files = capture.files.slice(0, 0)
    with pytest.raises(CaptureError, match=r"files\.parquet"):
        plan_stage(capture, target)


def test_the_description(tmp_path, target, monkeypatch):
    free_space(monkeypatch, 10 * MIB)
    (tmp_path / "real").mkdir()
    (tmp_path / "real/m").write_bytes(b"x" * 2048)
    names = [*(f"/d/{i}" for i in range(7)), "/w", "/map/m"]
    ops = [*(read(i, length=(i + 1) * 1024) for i in range(7)), write(7, length=512), read(8, length=2048)]
    capture = build_capture(tmp_path, files=names, ops=ops)
    maps = [parse_map(f"/map={tmp_path}/real")]
    plan = staged(capture, target, maps=maps)
    assert plan.lines()[6:8] == ["  and 2 more", "1 file, 2.00 KiB: read from mapped data"]
    assert plan.done_line(1) == f"Staged 7 files under {target}: 28.0 KiB in 1.000 s, 28.0 KiB/s"
    again = plan_stage(capture, target, maps=maps)
    assert again.lines()[:2] == [f"Nothing to write under {target}", "7 files, 28.0 KiB: there already"]
    assert again.done_line(1) == "The twin is complete."


@pytest.mark.parametrize("size", [1, 7, 8, 9, MIB - 1, MIB, MIB + 1, SYNC_BYTES + 3])
def test_sizes_around_the_blocks(size, tmp_path, target):
    capture, seen = reads(tmp_path, {"/a": size}), []
    stage(plan_stage(capture, target), progress=lambda done, total: seen.append((done, total)))
    assert twin(target) == {"a": size}
    assert (seen[-1], seen) == ((size, size), sorted(seen))
    assert not len(plan_stage(capture, target).to_write)


@pytest.mark.parametrize("workers", [1, 3, None])
def test_any_number_of_workers_writes_and_removes_the_same(workers, tmp_path, target, monkeypatch):
    """Small files in a directory with more than a thread takes at a time, and larger ones in several."""
    sizes = {**{f"d/{i}": i % 5 for i in range(BATCH_FILES + 3)}, **{f"e{i % 5}/{i}": i * 20_000 for i in range(40)}}
    capture = reads(tmp_path, {f"/{name}": size for name, size in sizes.items()})
    with pytest.raises(UsageError, match="at least 1"):
        stage(plan_stage(capture, target), workers=0)
    stage(plan_stage(capture, target), workers=workers)
    assert twin(target) == sizes
    assert all(f["state"] == WHOLE for f in entries(target))
    for name in ("d/0", f"d/{BATCH_FILES}"):
        begun = target / TWIN_ROOT / name
        begun.with_name(os.fsdecode(temporary_name(begun.name.encode()))).write_bytes(b"of a killed staging")
    monkeypatch.setattr(writing, "default_workers", lambda: workers or 16)
    monkeypatch.setattr(posix, "default_workers", lambda: workers or 16)
    assert unstage(target) == len(sizes)
    assert tree(target) == {}


def test_modes_follow_the_umask_and_staging_again_touches_nothing(capture, target):
    old = os.umask(0o027)
    try:
        plan = staged(capture, target)
    finally:
        os.umask(old)
    assert {stat_modes.S_IMODE(path.stat().st_mode) for path in target.rglob("*")} == {0o640, 0o750}
    before = {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in target.rglob("*")}
    assert staged(capture, target).bytes_to_write == 0
    assert {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in target.rglob("*")} == before
    with pytest.raises(TargetError, match="make a new plan"):
        stage(plan)


def test_a_file_of_ours_with_another_size_is_made_anew(capture, target, monkeypatch):
    staged(capture, target)
    before = tree(target)
    os.truncate(target / TWIN_ROOT / "data/a.npz", 17)
    with monkeypatch.context() as patch:  # the first attempt fails
        patch.setattr(os, "write", failing(os.write, errno.EIO, of=lambda fd, data: len(data) >= 4096))
        with pytest.raises(TargetError):
            stage(plan_stage(capture, target))
    assert twin(target)["data/a.npz"] == 17
    assert staged(capture, target).to_write.size.tolist() == [3_000_100]
    assert tree(target) == before


def test_holes_are_filled_when_real_data_is_wanted_and_not_dug_into_it(capture, target):
    plan = staged(capture, target, sparse=True)
    file = target / TWIN_ROOT / "data/a.npz"
    assert (plan.bytes_to_write, plan.bytes_on_disk) == (0, 0)
    assert (file.stat().st_size, file.stat().st_blocks) == (3_000_100, 0)
    assert staged(capture, target).bytes_to_write == 3_000_130
    assert file.stat().st_blocks * 512 >= 3_000_100
    assert not len(staged(capture, target, sparse=True).to_write)


def test_everything_of_ours_goes_and_nothing_else(capture, target):
    assert unstage(target) == 0
    target.mkdir()
    (target / "mine").write_bytes(b"mine")
    staged(capture, target)
    (target / TWIN_ROOT / "data/mine").write_bytes(b"mine too")
    assert (unstage(target), unstage(target)) == (3, 0)
    folders = dict.fromkeys((TWIN_ROOT, f"{TWIN_ROOT}/data"))
    assert tree(target) == folders | {"mine": b"mine", f"{TWIN_ROOT}/data/mine": b"mine too"}


def test_ctrl_c_leaves_no_half_written_file(capture, target):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(plan_stage(capture, target), progress=interrupt)
    assert [path for path in (target / TWIN_ROOT).rglob("*") if path.suffix == ".part"] == []
    staged(capture, target)
    assert len(twin(target)) == 3


def test_a_killed_staging_is_resumed(tmp_path, target):
    sizes = {"a": 5, "b": 9 * MIB, "c": 70_000}
    capture = reads(tmp_path, {f"/{name}": size for name, size in sizes.items()})
    program = (
        "import os, sys; from dxt_replay import open_capture;"
        "from dxt_replay.replay.target.stage import plan_stage, stage;"
        "plan = plan_stage(open_capture(sys.argv[1]), sys.argv[2]);"
        "stage(plan, workers=1, progress=lambda done, total: os.kill(os.getpid(), 9) if done > 3_000_000 else None)"
    )
    command = [sys.executable, "-c", program, str(capture.path), str(target)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -9
    left = twin(target)
    assert (left.pop("a"), left.pop("c")) == (5, 70_000)
    assert [Path(name).suffix for name in left] == [".part"]
    assert {f["state"] for f in entries(target)} == {PLANNED}
    plan = plan_stage(capture, target)
    assert plan.already_staged.path.to_pylist() == [f"{TWIN_ROOT}/a", f"{TWIN_ROOT}/c"]
    stage(plan)
    assert twin(target) == sizes
    assert {f["state"] for f in entries(target)} == {WHOLE}


@pytest.mark.parametrize(
    ("size", "found", "ours"),
    [
        *((70_000, cut, True) for cut in (0, 4096, 69_999)),
        *((70_000, bytes_, False) for bytes_ in (b"s", b"stranger", b"s" * 4096)),
        *((3_000_100, b"m" * size, False) for size in (4, 3_000_100)),
    ],
)
def test_a_file_that_was_cut_short_is_told_from_a_strangers(size, found, ours, tmp_path, target):
    """`found`: bytes of the planned file that are there, or what is in its place."""
    capture = reads(tmp_path, {"/a": size, "/b": 5})
    staged(capture, target)
    whole, file, manifest = tree(target), target / TWIN_ROOT / "a", target / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace(f'"{WHOLE}"', f'"{PLANNED}"'))
    file.write_bytes(found if isinstance(found, bytes) else file.read_bytes()[:found])
    if ours:
        assert staged(capture, target).to_write.path.to_pylist() == [f"{TWIN_ROOT}/a"]
        assert tree(target) == whole
    else:
        with pytest.raises(TargetError, match="a exists and was not made by dxt-replay"):
            plan_stage(capture, target)
        assert file.read_bytes() == found


def test_a_strangers_file_that_comes_while_writing_is_not_replaced(tmp_path, target):
    plan, file = plan_stage(reads(tmp_path, {"/a": SMALL_BYTES + 1}), target), target / TWIN_ROOT / "a"
    with pytest.raises(TargetError, match="not made by dxt-replay"):
        stage(plan, progress=lambda done, total: file.write_bytes(b"mine") and None)
    assert twin(target) == {"a": 4}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"/same": 5, "/larger": 5}, {"/same": 5, "/larger": 6, "/only": 7}),
        ({"/a": 5, "/b/c": 6}, {"/a/x": 7, "/b": 8}),
    ],
)
def test_files_that_fit_are_shared_and_others_stand_beside_them(first, second, tmp_path, target):
    captures = []
    for name, sizes in (("1", first), ("2", second)):
        captures.append((reads(tmp_path, sizes, name), sizes))
        staged(captures[-1][0], target)
    for capture, sizes in captures:
        assert [os.stat(each.path).st_size for each in check_staged(capture, target)] == [*sizes.values()]
        assert not len(plan_stage(capture, target).to_write)
    assert unstage(target) == 4
    assert tree(target) == {}


def test_what_one_creates_is_not_what_the_other_reads(tmp_path, target):
    reader = build_capture(tmp_path, name="r", files=["/a", "/b"], ops=[read(0, length=5), write(1, length=5)])
    writer = build_capture(tmp_path, name="w", files=["/a", "/b"], ops=[write(0, length=5), read(1, length=5)])
    places = []
    for capture in (reader, writer, reader):
        staged(capture, target)
        places.append([each.path for each in check_staged(capture, target)])
    assert places[0] == places[2]
    assert len({*places[0], *places[1]}) == 4


def test_places_and_what_is_missing(capture, target, tmp_path):
    with pytest.raises(TargetError, match=r"does not exist: make it \(or is it not mounted\?\), then run"):
        check_staged(capture, target)
    target.mkdir()
    with pytest.raises(TargetError, match=r"data/a\.npz is not staged: run `dxt-replay stage` first"):
        check_staged(capture, target)
    staged(capture, target)
    places = check_staged(capture, target)
    assert [(each.file_id, each.mapped) for each in places] == [(file, False) for file in range(5)]
    assert [os.stat(places.path(file)).st_size for file in (0, 1, 3)] == [3_000_100, 30, 5000]
    assert places.path(2) == os.fsencode(target / TWIN_ROOT / "out/model.ckpt")
    with pytest.raises(TargetError, match=r"a\.npz is not staged"):
        check_staged(reads(tmp_path, {"/data/a.npz": 11}, "other"), target)
    os.truncate(target / TWIN_ROOT / "data/b/c.npz", 29)
    with pytest.raises(TargetError, match=r"c\.npz has 29 of 30 bytes: run"):
        check_staged(capture, target)
    (target / TWIN_ROOT / "data/b/c.npz").unlink()
    with pytest.raises(TargetError, match=r"c\.npz is not staged"):
        check_staged(capture, target)


def test_mapped_files_are_not_staged_and_never_those_that_are_written(capture, target, tmp_path):
    real = tmp_path / "real"
    (real / "b").mkdir(parents=True)
    (real / "a.npz").write_bytes(b"r" * 3_000_100)
    (real / "b/c.npz").write_bytes(b"real")
    (real / "index").symlink_to(real / "a.npz")
    maps, before = [parse_map(f"/data={real}")], tree(real)
    plan = staged(capture, target, maps=maps)
    assert [path for path, _ in plan.mapped] == [os.fsencode(real / "a.npz"), os.fsencode(real / "index")]
    assert twin(target) == {"data/b/c.npz": 30}
    placements = check_staged(capture, target, maps)
    assert [p.mapped for p in placements] == [True, False, False, True, False]
    prepare_run(target, placements)
    unstage(target)
    assert tree(real) == before
    os.truncate(real / "a.npz", 3_000_099)
    staged(capture, target, maps=[])
    with pytest.raises(TargetError, match=r"a\.npz has 3000099 bytes, the capture reads 3000100"):
        plan_stage(capture, target, maps=maps)
    (real / "a.npz").unlink()
    with pytest.raises(TargetError, match=r"a\.npz: No such file or directory; correct --map"):
        check_staged(capture, target, maps)


def test_only_what_a_run_created_goes_before_the_next(capture, target):
    staged(capture, target)
    placements = check_staged(capture, target)
    made = Path(os.fsdecode(placements.path(2)))
    made.parent.rmdir()
    assert prepare_run(target, placements) == 0
    made.write_bytes(b"checkpoint")
    (made.parent / "mine").write_bytes(b"mine")
    assert prepare_run(target, check_staged(capture, target)) == 1
    assert not made.exists()
    assert (made.parent / "mine").read_bytes() == b"mine"
    assert len(twin(target)) == 4
    assert prepare_run(target / "none", placements) == 0


def test_a_file_that_gets_its_place_after_another_failed_is_listed(tmp_path, target, monkeypatch):
    capture = reads(tmp_path, {"/0": 300_000, "/1": 300_000})
    first_is_written, failed, rename = Event(), Event(), os.rename

    def one_fails_first(source, place, **options):
        if place == b"1":
            assert first_is_written.wait(60)
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if place == b"0":
            first_is_written.set()
            assert failed.wait(60)
            time.sleep(0.05)  # the failure is on its way to the caller
        rename(source, place, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", one_fails_first)
        with pytest.raises(TargetError, match=f"cannot write {target}/{TWIN_ROOT}/1: "):
            stage(plan_stage(capture, target), workers=2)
    assert twin(target) == {"0": 300_000}
    assert [f["path"] for f in entries(target) if f["state"] == WHOLE] == [f"{TWIN_ROOT}/0"]


def test_no_room(capture, target, monkeypatch):
    free_space(monkeypatch, MIB)
    plan = plan_stage(capture, target)
    assert plan.lines()[-1] == "Does not fit: 2.87 MiB are needed and 1.00 MiB are free, 1.87 MiB short"
    with pytest.raises(TargetError, match=f"no room under {target}: 2.87 MiB are needed .*--sparse"):
        stage(plan)
    free_space(monkeypatch, 1 << 40, inodes=2)
    with pytest.raises(TargetError, match="3 files are needed and 2 inodes free"):
        stage(plan_stage(capture, target))
    assert not target.exists()
    unknown = SimpleNamespace(f_bavail=0, f_frsize=4096, f_favail=0, f_files=0, f_blocks=0)
    monkeypatch.setattr(os, "statvfs", lambda path: unknown)
    plan = staged(capture, target)
    assert (plan.room.free_bytes, plan.room.free_files, plan.shortage) == (None, None, None)
    free_space(monkeypatch, 0)
    assert plan_stage(capture, target).shortage is None, "what is there already needs no room"


@pytest.mark.parametrize("sparse", [False, True])
def test_a_size_that_no_file_system_has(sparse, tmp_path, target):
    capture = build_capture(tmp_path, files=[File("/a", size=2**63 - 1)], ops=[read(0, length=1)])
    with pytest.raises(TargetError, match="no room" if not sparse else f"cannot write {target}"):
        stage(plan_stage(capture, target, sparse=sparse))
    assert not target.exists() or twin(target) == {}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        *((place, place.partition("/")[0]) for place in ("file", "file/deeper", "circle")),
        ("/proc/dxt-replay-test/x", "cannot make the target /proc/"),
        ("a\0b", "is not a path"),
    ],
)
def test_a_target_that_cannot_be(where, message, capture, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(TargetError, match=message):
        stage(plan_stage(capture, tmp_path / where))
    assert (tmp_path / "file").read_bytes() == b"mine"
