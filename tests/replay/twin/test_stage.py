"""The twin data set: what is planned, written, resumed, shared, checked and taken away."""

from __future__ import annotations

import errno
import os
import stat as stat_modes
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from replay.twin.manifest import CREATED_BY_RUN, MANIFEST_NAME, PLANNED, WHOLE, load_manifest
from replay.twin.placement import TWIN_ROOT, parse_map
from replay.twin.stage import StagePlan, as_json, check_staged, describe, plan_stage, prepare_run, stage, unstage
from replay.twin.writer import SYNC_BYTES, temporary_name
from tests.capture_builder import File, Op, build_capture, read, write
from traces.errors import CaptureError, TargetError, UsageError
from traces.store import Capture
from traces.units import MIB

ROOT = Path(__file__).resolve().parents[3]


def tree(directory: Path) -> dict[str, bytes | None]:
    """Every file below `directory` with its bytes, directories as None."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(directory.rglob("*"))
    }


def twin(target: Path) -> dict[str, int]:
    """Sizes of the files below the twin root, by path there."""
    root = target / TWIN_ROOT
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def staged(capture: Capture, target: Path, **options: Any) -> StagePlan:
    plan = plan_stage(capture, target, **options)
    stage(plan)
    return plan


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
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


class TestPlan:
    def test_each_file_has_one_role(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target)
        assert [(f.path, f.size) for f in plan.to_write] == [
            (f"{TWIN_ROOT}/data/a.npz", 3_000_100),
            (f"{TWIN_ROOT}/data/b/c.npz", 30),
            (f"{TWIN_ROOT}/data/index", 5000),
        ]
        assert [f.path for f in plan.created_by_run] == [f"{TWIN_ROOT}/out/model.ckpt"]
        assert plan.sparse == {3}
        assert plan.bytes_to_write == 3_000_130

    def test_it_changes_nothing(self, capture: Capture, target: Path) -> None:
        describe(plan_stage(capture, target))
        assert not target.exists()

    @pytest.mark.parametrize("api", ["POSIX", "MPIIO", "MPIIO_COLL", "STDIO", "HDF5"])
    def test_a_read_of_any_interface_counts(self, api: str, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=7, api=api)])
        assert [f.size for f in plan_stage(capture, target).to_write] == [7]

    def test_a_read_at_the_end_of_an_empty_file_stages_it(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)])
        staged(capture, target)
        assert twin(target) == {"a": 0}

    def test_a_size_below_the_accesses_is_not_believed(self, tmp_path: Path, target: Path) -> None:
        files = [File("/a", size=5), File("/b", size=50)]
        capture = build_capture(tmp_path, files=files, ops=[read(0, offset=8, length=2), read(1, offset=-1, length=9)])
        assert [f.size for f in plan_stage(capture, target).to_write] == [10, 50]

    def test_many_row_groups_and_ranks_are_all_seen(self, tmp_path: Path, target: Path) -> None:
        ops = [read(i % 7, offset=i, length=1, rank=i % 3, start_ns=i) for i in range(300)]
        capture = build_capture(tmp_path, files=[f"/f{i}" for i in range(7)], ops=ops)
        sizes = [f.size for f in plan_stage(capture, target).to_write]
        assert sizes == [max(i for i in range(300) if i % 7 == file) + 1 for file in range(7)]

    @pytest.mark.parametrize(
        "op", [read(0, offset=2**63 - 1, length=2**63 - 1), read(0, length=-5)], ids=["overflow", "negative"]
    )
    def test_impossible_operations_are_an_error(self, op: Op, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=[File("/a", size=1)], ops=[op])
        with pytest.raises(CaptureError, match="impossible"):
            plan_stage(capture, target)

    def test_operations_on_unknown_files_are_an_error(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=[File("/a", size=1)], ops=[read(0)])
        capture.files = capture.files.slice(0, 0)
        with pytest.raises(CaptureError, match=r"files\.parquet"):
            plan_stage(capture, target)

    def test_an_empty_capture_needs_nothing(self, tmp_path: Path, target: Path) -> None:
        plan = staged(build_capture(tmp_path), target)
        assert plan.bytes_to_write == 0
        assert twin(target) == {}

    def test_bytes_that_get_another_name_are_counted_once(self, tmp_path: Path, target: Path) -> None:
        files = [File("/w.temp", size=700), File("/w.part", size=700), File("/w", size=700), "/other"]
        ops = [
            write(0, length=700),
            Op("rename", 0, offset=1, start_ns=10_000),
            Op("rename", 1, offset=2, start_ns=20_000),
            write(3, length=50),
        ]
        plan = plan_stage(build_capture(tmp_path, files=files, ops=ops), target)
        assert len(plan.created_by_run) == 4
        assert as_json(plan)["bytes_created_by_run"] == 750
        assert "4 files are only written: each run makes them, 750 B" in describe(plan)

    def test_the_description(self, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free_space(monkeypatch, 10 * MIB)
        (tmp_path / "real").mkdir()
        (tmp_path / "real/m").write_bytes(b"x" * 2048)
        names = [*(f"/d/{i}" for i in range(7)), "/w", "/map/m"]
        ops = [*(read(i, length=(i + 1) * 1024) for i in range(7)), write(7, length=512), read(8, length=2048)]
        capture = build_capture(tmp_path, files=names, ops=ops)
        maps = [parse_map(f"/map={tmp_path}/real")]
        assert describe(plan_stage(capture, target, maps=maps)) == [
            f"7 files to write under {target}: 28.0 KiB",
            "   7.00 KiB  dxt-replay-twin/d/6",
            "   6.00 KiB  dxt-replay-twin/d/5",
            "   5.00 KiB  dxt-replay-twin/d/4",
            "   4.00 KiB  dxt-replay-twin/d/3",
            "   3.00 KiB  dxt-replay-twin/d/2",
            "  and 2 more",
            "1 files, 2.00 KiB, are read from mapped data",
            "1 files are only written: each run makes them, 512 B",
            "10.0 MiB are free",
        ]
        staged(capture, target, maps=maps)
        assert describe(plan_stage(capture, target, maps=maps))[:2] == [
            f"0 files to write under {target}: 0 B",
            "7 files, 28.0 KiB, are there already",
        ]

    def test_the_plan_as_json(self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free_space(monkeypatch, MIB)
        assert as_json(plan_stage(capture, target)) == {
            "target": str(target),
            "to_write": [
                {"path": f"{TWIN_ROOT}/data/a.npz", "size_bytes": 3_000_100, "sparse": False},
                {"path": f"{TWIN_ROOT}/data/b/c.npz", "size_bytes": 30, "sparse": False},
                {"path": f"{TWIN_ROOT}/data/index", "size_bytes": 5000, "sparse": True},
            ],
            "already_staged": {"files": 0, "bytes": 0},
            "created_by_run": [f"{TWIN_ROOT}/out/model.ckpt"],
            "bytes_created_by_run": 4096,
            "plain_hdf5": [],
            "mapped": {"files": 0, "bytes": 0},
            "bytes_to_write": 3_000_130,
            "free_bytes": MIB,
            "fits": False,
        }


class TestStage:
    def test_files_have_their_sizes_and_do_not_compress(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        assert twin(target) == {"data/a.npz": 3_000_100, "data/b/c.npz": 30, "data/index": 5000}
        content = (target / TWIN_ROOT / "data/a.npz").read_bytes()
        assert len(zlib.compress(content)) > 0.99 * len(content)
        assert content[: len(content) // 2] not in content[len(content) // 2 :]
        assert (target / TWIN_ROOT / "out").is_dir()

    def test_two_files_differ_and_the_same_file_is_the_same_again(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a", "/b"], ops=[read(0, length=4096), read(1, length=4096)])
        staged(capture, target)
        staged(capture, tmp_path / "other")
        root, other = target / TWIN_ROOT, tmp_path / "other" / TWIN_ROOT
        assert (root / "a").read_bytes() != (root / "b").read_bytes()
        assert (root / "a").read_bytes() == (other / "a").read_bytes()

    @pytest.mark.parametrize("size", [1, 7, 8, 9, MIB - 1, MIB, MIB + 1, SYNC_BYTES + 3])
    def test_sizes_around_the_blocks(self, size: int, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=size)])
        seen: list[tuple[int, int]] = []
        stage(plan_stage(capture, target), progress=lambda done, total: seen.append((done, total)))
        assert twin(target) == {"a": size}
        assert seen[-1] == (size, size)
        assert seen == sorted(seen)
        assert plan_stage(capture, target).to_write == ()

    @pytest.mark.parametrize("workers", [1, 3, None])
    def test_any_number_of_workers_writes_the_same(self, workers: int | None, tmp_path: Path, target: Path) -> None:
        capture = build_capture(
            tmp_path, files=[f"/d{i % 5}/{i}" for i in range(40)], ops=[read(i, length=i * 1000) for i in range(40)]
        )
        seen: list[int] = []
        stage(plan_stage(capture, target), workers=workers, progress=lambda done, total: seen.append(done))
        assert twin(target) == {f"d{i % 5}/{i}": i * 1000 for i in range(40)}
        assert seen == sorted(seen)
        assert all(f.state == WHOLE for f in load_manifest(target).files.values())

    def test_workers_below_one_are_refused(self, capture: Capture, target: Path) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            stage(plan_stage(capture, target), workers=0)

    def test_the_manifest_lists_what_is_there(self, capture: Capture, target: Path) -> None:
        manifest = stage(plan_stage(capture, target))
        assert load_manifest(target) == manifest
        assert {f.path.removeprefix(TWIN_ROOT): (f.size, f.sparse, f.state) for f in manifest.files.values()} == {
            "/data/a.npz": (3_000_100, False, WHOLE),
            "/data/b/c.npz": (30, False, WHOLE),
            "/data/index": (5000, True, WHOLE),
            "/out/model.ckpt": (4096, False, CREATED_BY_RUN),
        }

    def test_staging_again_touches_nothing(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        before = {path: path.stat() for path in target.rglob("*")}
        plan = staged(capture, target)
        assert plan.bytes_to_write == 0
        assert {path: path.stat() for path in target.rglob("*")} == before

    def test_the_target_may_be_given_through_a_link(self, capture: Capture, target: Path, tmp_path: Path) -> None:
        target.mkdir()
        (tmp_path / "link").symlink_to(target)
        staged(capture, tmp_path / "link")
        assert len(twin(target)) == 3
        check_staged(capture, tmp_path / "link")

    def test_a_file_of_ours_with_another_size_is_made_anew(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        before = tree(target)
        os.truncate(target / TWIN_ROOT / "data/a.npz", 17)
        plan = staged(capture, target)
        assert [f.size for f in plan.to_write] == [3_000_100]
        assert tree(target) == before

    def test_holes_where_asked(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target, sparse=True)
        assert (plan.bytes_to_write, plan.bytes_on_disk) == (0, 0)
        stage(plan)
        assert twin(target)["data/a.npz"] == 3_000_100
        assert (target / TWIN_ROOT / "data/a.npz").stat().st_blocks == 0

    def test_holes_are_filled_when_real_data_is_wanted_and_not_dug_into_it(
        self, capture: Capture, target: Path
    ) -> None:
        staged(capture, target, sparse=True)
        assert staged(capture, target).bytes_to_write == 3_000_130
        assert (target / TWIN_ROOT / "data/a.npz").stat().st_blocks * 512 >= 3_000_100
        assert staged(capture, target, sparse=True).to_write == ()

    def test_a_plan_that_the_target_has_outrun_is_refused(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target)
        stage(plan)
        with pytest.raises(TargetError, match="plan again"):
            stage(plan)


def failing(call: Callable[..., Any], code: int, *, after: int = 0) -> Callable[..., Any]:
    """`call`, which the operating system refuses with `code` from call number `after` on."""
    count = 0

    def refused(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return refused


def free_space(monkeypatch: pytest.MonkeyPatch, free: int, *, inodes: int = 1000) -> None:
    answer = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_favail=inodes, f_files=inodes, f_blocks=1)
    monkeypatch.setattr(os, "statvfs", lambda path: answer)


class TestRefusals:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_a_disk_that_refuses_a_write(
        self, code: int, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capture = build_capture(
            tmp_path, files=[f"/{i}" for i in range(6)], ops=[read(i, length=3 * MIB) for i in range(6)]
        )
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(os.write, code, after=10))
            with pytest.raises(TargetError, match=f"cannot write {target}/{TWIN_ROOT}/.*{os.strerror(code)}"):
                stage(plan_stage(capture, target), workers=2)
        whole = [f for f in load_manifest(target).files.values() if f.state == WHOLE]
        assert 1 <= len(whole) <= 3
        assert sorted(twin(target)) == sorted(Path(f.path).name for f in whole)

        plan = staged(capture, target)
        assert len(plan.to_write) == 6 - len(whole)
        assert twin(target) == {str(i): 3 * MIB for i in range(6)}

    def test_a_file_that_gets_its_place_after_another_failed_is_listed(
        self, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capture = build_capture(tmp_path, files=["/0", "/1"], ops=[read(i, length=1000) for i in range(2)])
        first_is_written, failed, rename = Event(), Event(), os.rename

        def one_fails_first(source: bytes, place: bytes, **options: Any) -> None:
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
        assert twin(target) == {"0": 1000}
        assert [f.path for f in load_manifest(target).files.values() if f.state == WHOLE] == [f"{TWIN_ROOT}/0"]

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
    @pytest.mark.parametrize("call", ["mkdir", "rename"])
    def test_other_calls_that_are_refused(
        self, call: str, code: int, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target.mkdir()
        plan = plan_stage(capture, target)
        monkeypatch.setattr(os, call, failing(getattr(os, call), code))
        with pytest.raises(TargetError, match=f"{target}.*{os.strerror(code)}; .*target"):
            stage(plan)
        assert twin(target) == {}

    def test_no_space(self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free_space(monkeypatch, MIB)
        plan = plan_stage(capture, target)
        assert describe(plan)[-1] == "does not fit: 2.87 MiB are needed and 1.00 MiB are free, 1.87 MiB short"
        with pytest.raises(TargetError, match=f"no room under {target}: 2.87 MiB are needed .*--sparse"):
            stage(plan)
        assert not target.exists()
        stage(plan_stage(capture, target, sparse=True))

    def test_what_is_there_already_needs_no_space(
        self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staged(capture, target)
        free_space(monkeypatch, 0)
        assert plan_stage(capture, target).shortage is None

    def test_a_file_system_that_does_not_tell_its_space(
        self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = SimpleNamespace(f_bavail=0, f_frsize=4096, f_favail=0, f_files=0, f_blocks=0)
        monkeypatch.setattr(os, "statvfs", lambda path: answer)
        plan = staged(capture, target)
        assert (plan.free_bytes, plan.free_files, plan.shortage) == (None, None, None)
        assert not any("free" in line for line in describe(plan))

    def test_no_inodes(self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free_space(monkeypatch, 1 << 40, inodes=2)
        with pytest.raises(TargetError, match="3 files are needed and 2 inodes free"):
            stage(plan_stage(capture, target))

    @pytest.mark.parametrize("sparse", [False, True])
    def test_a_size_that_no_file_system_has(self, sparse: bool, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=[File("/a", size=2**63 - 1)], ops=[read(0, length=1)])
        with pytest.raises(TargetError, match="no room" if not sparse else f"cannot write {target}"):
            stage(plan_stage(capture, target, sparse=sparse))
        assert not target.exists() or twin(target) == {}

    def test_a_file_system_that_fills_up(self, capture: Capture, small_file_system: Path) -> None:
        plan = plan_stage(capture, small_file_system)
        with pytest.raises(TargetError, match="no room"):
            stage(plan)
        assert list(small_file_system.iterdir()) == []

    def test_a_file_system_that_somebody_else_fills(
        self, capture: Capture, small_file_system: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            free_space(patch, 1 << 40)
            plan = plan_stage(capture, small_file_system)
        with pytest.raises(TargetError, match="No space left on device"):
            stage(plan, workers=1)
        assert not [path for path in small_file_system.rglob("*") if path.suffix == ".part"]
        assert sum(path.stat().st_size for path in small_file_system.rglob("*") if path.is_file()) < MIB

    def test_a_target_without_permission(self, forbidden: tuple[StagePlan, Callable[[], None]]) -> None:
        plan, give_up_rights = forbidden
        give_up_rights()
        with pytest.raises(TargetError, match=f"{plan.target}.*Permission denied; get write permission"):
            stage(plan)

    @pytest.mark.parametrize("below", ["file", "file/deeper"])
    def test_a_target_at_or_below_a_file(self, below: str, capture: Capture, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"mine")
        with pytest.raises(TargetError, match="file"):
            stage(plan_stage(capture, tmp_path / below))
        assert (tmp_path / "file").read_bytes() == b"mine"

    def test_a_target_that_cannot_be_made(self, capture: Capture) -> None:
        with pytest.raises(TargetError, match="cannot make the target /proc/"):
            stage(plan_stage(capture, Path("/proc/dxt-replay-test/x")))

    def test_a_target_that_is_no_path(self, capture: Capture) -> None:
        with pytest.raises(TargetError, match="no path"):
            plan_stage(capture, Path("a\0b"))

    def test_a_target_whose_links_lead_in_a_circle(self, capture: Capture, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        with pytest.raises(TargetError):
            stage(plan_stage(capture, tmp_path / "a"))

    def test_two_at_once(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target)
        refused: list[bool] = []

        def second(done: int, total: int) -> None:
            with pytest.raises(TargetError, match="another process is staging"):
                unstage(target)
            refused.append(True)

        stage(plan, progress=second)
        assert refused
        assert len(twin(target)) == 3


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 1 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@pytest.fixture
def forbidden() -> Iterator[tuple[StagePlan, Callable[[], None]]]:
    """A plan for a directory that this process may not write once it has called the second."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        plan = plan_stage(build_capture(place, files=["/a"], ops=[read(0, length=1)]), place / "target")
        place.chmod(0o555)
        try:
            yield plan, (lambda: os.seteuid(65534)) if root else lambda: None
        finally:
            if root:
                os.seteuid(0)
            place.chmod(0o755)


class TestInterrupts:
    def test_ctrl_c_leaves_no_half_written_file(self, capture: Capture, target: Path) -> None:
        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            stage(plan_stage(capture, target), progress=interrupt)
        assert [path for path in (target / TWIN_ROOT).rglob("*") if path.suffix == ".part"] == []
        staged(capture, target)
        assert len(twin(target)) == 3

    def test_a_killed_staging_is_resumed(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(
            tmp_path, files=["/a", "/b", "/c"], ops=[read(0, length=5), read(1, length=9 * MIB), read(2, length=70_000)]
        )
        program = (
            "import os, sys; from pathlib import Path; from replay.twin.stage import plan_stage, stage;"
            "from traces.store import open_capture;"
            "plan = plan_stage(open_capture(sys.argv[1]), Path(sys.argv[2]));"
            "stage(plan, workers=1, progress=lambda done, total: os._exit(9) if done > 3_000_000 else None)"
        )
        command = [sys.executable, "-c", program, str(capture.path), str(target)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 9
        left = twin(target)
        assert left.pop("a") == 5
        assert [Path(name).suffix for name in left] == [".part"]
        assert {f.state for f in load_manifest(target).files.values()} == {PLANNED}

        plan = plan_stage(capture, target)
        assert [f.path for f in plan.already_staged] == [f"{TWIN_ROOT}/a"]
        stage(plan)
        assert twin(target) == {"a": 5, "b": 9 * MIB, "c": 70_000}
        assert {f.state for f in load_manifest(target).files.values()} == {WHOLE}

    def test_unstage_removes_what_a_killed_staging_left(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        written = target / TWIN_ROOT / "data/a.npz"
        (written.parent / os.fsdecode(temporary_name(b"a.npz"))).write_bytes(b"half")
        unstage(target)
        assert tree(target) == {}

    def test_a_staging_that_ends_while_it_replaces_a_file_of_ours_is_resumed(
        self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staged(capture, target)
        before = tree(target)
        os.truncate(target / TWIN_ROOT / "data/a.npz", 17)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(os.write, errno.EIO))
            with pytest.raises(TargetError):
                stage(plan_stage(capture, target))
        assert twin(target)["data/a.npz"] == 17
        staged(capture, target)
        assert tree(target) == before

    @pytest.mark.parametrize("content", [b"mine", b"m" * 3_000_100])
    def test_a_strangers_file_where_one_was_planned_is_not_taken_for_ours(
        self, content: bytes, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(os.write, errno.ENOSPC))
            with pytest.raises(TargetError):
                stage(plan_stage(capture, target))
        stranger = target / TWIN_ROOT / "data/a.npz"
        stranger.parent.mkdir(parents=True, exist_ok=True)
        stranger.write_bytes(content)
        with pytest.raises(TargetError, match=r"data/a\.npz exists and was not made by dxt-replay"):
            plan_stage(capture, target)
        assert stranger.read_bytes() == content

    def test_a_strangers_file_that_comes_while_writing_is_not_replaced(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=10)])

        def intrude() -> None:
            (target / TWIN_ROOT / "a").write_bytes(b"mine")

        with pytest.raises(TargetError, match="not made by dxt-replay"):
            stage(plan_stage(capture, target), progress=lambda done, total: intrude())
        assert twin(target) == {"a": 4}


class TestSharedTarget:
    """Several captures in one target."""

    def test_files_that_fit_are_shared_and_others_stand_beside_them(self, tmp_path: Path, target: Path) -> None:
        names = ["/same", "/larger", "/only"]
        first = build_capture(tmp_path, name="1", files=names[:2], ops=[read(0, length=5), read(1, length=5)])
        second = build_capture(
            tmp_path, name="2", files=names, ops=[read(0, length=5), read(1, length=6), read(2, length=7)]
        )
        staged(first, target)
        plan = staged(second, target)
        assert [f.size for f in plan.already_staged] == [5]
        assert sizes(check_staged(first, target)) == [5, 5]
        assert sizes(check_staged(second, target)) == [5, 6, 7]
        assert twin(target) == {"same": 5, "larger": 5, "only": 7}
        assert plan_stage(second, target).to_write == ()

    def test_what_one_creates_is_not_what_the_other_reads(self, tmp_path: Path, target: Path) -> None:
        reader = build_capture(tmp_path, name="r", files=["/a", "/b"], ops=[read(0, length=5), write(1, length=5)])
        writer = build_capture(tmp_path, name="w", files=["/a", "/b"], ops=[write(0, length=5), read(1, length=5)])
        staged(reader, target)
        staged(writer, target)
        read_a, write_b = [p.path for p in check_staged(reader, target)]
        write_a, read_b = [p.path for p in check_staged(writer, target)]
        assert len({read_a, write_b, write_a, read_b}) == 4
        assert sizes(check_staged(reader, target)[:1]) == sizes(check_staged(writer, target)[1:]) == [5]

    def test_a_file_of_one_where_the_other_has_a_directory(self, tmp_path: Path, target: Path) -> None:
        flat = build_capture(tmp_path, name="f", files=["/a", "/b/c"], ops=[read(0, length=5), read(1, length=6)])
        deep = build_capture(tmp_path, name="d", files=["/a/x", "/b"], ops=[read(0, length=7), read(1, length=8)])
        staged(flat, target)
        staged(deep, target)
        assert sizes(check_staged(flat, target)) == [5, 6]
        assert sizes(check_staged(deep, target)) == [7, 8]
        assert unstage(target) == 4
        assert tree(target) == {}


def sizes(placements: list[Any]) -> list[int]:
    return [os.stat(placement.path).st_size for placement in placements]


class TestCheckStaged:
    def test_before_staging(self, capture: Capture, target: Path) -> None:
        with pytest.raises(TargetError, match="run `dxt-replay stage` first"):
            check_staged(capture, target)
        target.mkdir()
        with pytest.raises(TargetError, match=r"data/a\.npz is not staged: run `dxt-replay stage` first"):
            check_staged(capture, target)

    def test_after_staging(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        placements = check_staged(capture, target)
        assert [p.file_id for p in placements] == [0, 1, 2, 3, 4]
        assert sizes([placements[0], placements[1], placements[3]]) == [3_000_100, 30, 5000]
        assert placements[2].path == os.fsencode(target / TWIN_ROOT / "out/model.ckpt")
        assert not any(p.mapped for p in placements)

    def test_a_file_that_is_gone(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        (target / TWIN_ROOT / "data/b/c.npz").unlink()
        with pytest.raises(TargetError, match=r"c\.npz is not staged"):
            check_staged(capture, target)

    def test_a_file_that_is_too_small(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        os.truncate(target / TWIN_ROOT / "data/b/c.npz", 29)
        with pytest.raises(TargetError, match=r"c\.npz has 29 of 30 bytes: run"):
            check_staged(capture, target)

    def test_a_capture_that_was_not_staged_here(self, capture: Capture, tmp_path: Path, target: Path) -> None:
        staged(capture, target)
        other = build_capture(tmp_path, name="other", files=["/data/a.npz"], ops=[read(0, length=11)])
        with pytest.raises(TargetError, match=r"a\.npz is not staged"):
            check_staged(other, target)


class TestMaps:
    @pytest.fixture
    def real(self, tmp_path: Path) -> Path:
        real = tmp_path / "real"
        (real / "b").mkdir(parents=True)
        (real / "a.npz").write_bytes(b"r" * 3_000_100)
        (real / "b/c.npz").write_bytes(b"real")
        (real / "index").symlink_to(real / "a.npz")
        return real

    def test_mapped_files_are_not_staged_and_never_those_that_are_written(
        self, capture: Capture, target: Path, real: Path
    ) -> None:
        maps = [parse_map(f"/data={real}")]
        before = tree(real)
        plan = staged(capture, target, maps=maps)
        assert [f.path for f in plan.mapped] == [os.fsencode(real / "a.npz"), os.fsencode(real / "index")]
        assert twin(target) == {"data/b/c.npz": 30}
        placements = check_staged(capture, target, maps)
        assert [p.mapped for p in placements] == [True, False, False, True, False]
        prepare_run(target, placements)
        unstage(target)
        assert tree(real) == before

    def test_mapped_data_that_is_missing_or_too_small(self, capture: Capture, target: Path, real: Path) -> None:
        maps = [parse_map(f"/data={real}")]
        staged(capture, target, maps=maps)
        os.truncate(real / "a.npz", 3_000_099)
        for check in (check_staged, lambda c, t, m: plan_stage(c, t, maps=m)):
            with pytest.raises(TargetError, match=r"a\.npz has 3000099 bytes, the capture reads 3000100"):
                check(capture, target, maps)
        (real / "a.npz").unlink()
        with pytest.raises(TargetError, match=r"a\.npz: No such file or directory; correct --map"):
            check_staged(capture, target, maps)


class TestPrepareRun:
    def test_only_what_a_run_created_goes(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        placements = check_staged(capture, target)
        made = Path(os.fsdecode(placements[2].path))
        assert prepare_run(target, placements) == 0
        made.write_bytes(b"checkpoint")
        (made.parent / "mine").write_bytes(b"mine")
        assert prepare_run(target, check_staged(capture, target)) == 1
        assert not made.exists()
        assert (made.parent / "mine").read_bytes() == b"mine"
        assert len(twin(target)) == 4

    def test_directories_that_are_gone_come_back(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        (target / TWIN_ROOT / "out").rmdir()
        prepare_run(target, check_staged(capture, target))
        assert (target / TWIN_ROOT / "out").is_dir()

    def test_a_strangers_file_where_the_run_would_create_one(self, capture: Capture, target: Path) -> None:
        stranger = target / TWIN_ROOT / "out/model.ckpt"
        stranger.parent.mkdir(parents=True)
        stranger.write_bytes(b"mine")
        with pytest.raises(TargetError, match=r"model\.ckpt exists and was not made by dxt-replay"):
            plan_stage(capture, target)
        assert prepare_run(target, []) == 0
        assert stranger.read_bytes() == b"mine"

    def test_without_a_target(self, target: Path) -> None:
        assert prepare_run(target, []) == 0


class TestUnstage:
    def test_everything_of_ours_goes_and_nothing_else(self, capture: Capture, target: Path) -> None:
        target.mkdir()
        (target / "mine").write_bytes(b"mine")
        staged(capture, target)
        (target / TWIN_ROOT / "data/mine").write_bytes(b"mine too")
        assert unstage(target) == 3
        assert tree(target) == {
            "mine": b"mine",
            TWIN_ROOT: None,
            f"{TWIN_ROOT}/data": None,
            f"{TWIN_ROOT}/data/mine": b"mine too",
        }

    def test_twice_and_without_a_target(self, capture: Capture, target: Path) -> None:
        assert unstage(target) == 0
        staged(capture, target)
        unstage(target)
        assert unstage(target) == 0
        assert target.is_dir()


def test_modes_follow_the_umask(capture: Capture, target: Path) -> None:
    old = os.umask(0o027)
    try:
        staged(capture, target)
    finally:
        os.umask(old)
    modes = {stat_modes.S_IMODE(path.stat().st_mode) for path in target.rglob("*")}
    assert modes == {0o640, 0o750}
    assert stat_modes.S_IMODE((target / MANIFEST_NAME).stat().st_mode) == 0o640
