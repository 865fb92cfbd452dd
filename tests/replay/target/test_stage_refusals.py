"""Staging where the disk or the target refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from dxt_replay.replay.target.manifest import WHOLE
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import LOCK_NAME
from dxt_replay.replay.target.stage import stage, unstage
from dxt_replay.replay.target.stage_lines import describe
from dxt_replay.replay.target.stage_plan import StagePlan, plan_stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, build_capture, read
from tests.replay.target.staging import (  # noqa: F401
    capture_fixture,
    entries,
    failing,
    failing_writes,
    free_space,
    staged,
    target_fixture,
    twin,
)


class TestRefusals:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_a_disk_that_refuses_a_write(
        self, code: int, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capture = build_capture(
            tmp_path, files=[f"/{i}" for i in range(6)], ops=[read(i, length=3 * MIB) for i in range(6)]
        )
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing_writes(code, after=10))
            with pytest.raises(TargetError, match=f"cannot write {target}/{TWIN_ROOT}/.*{os.strerror(code)}"):
                stage(plan_stage(capture, target), workers=2)
        whole = [f for f in entries(target) if f["state"] == WHOLE]
        assert 1 <= len(whole) <= 3
        assert sorted(twin(target)) == sorted(Path(f["path"]).name for f in whole)

        plan = staged(capture, target)
        assert len(plan.to_write) == 6 - len(whole)
        assert twin(target) == {str(i): 3 * MIB for i in range(6)}

    def test_a_file_that_gets_its_place_after_another_failed_is_listed(
        self, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capture = build_capture(tmp_path, files=["/0", "/1"], ops=[read(i, length=300_000) for i in range(2)])
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
        assert twin(target) == {"0": 300_000}
        assert [f["path"] for f in entries(target) if f["state"] == WHOLE] == [f"{TWIN_ROOT}/0"]

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
        assert describe(plan)[-1] == "Does not fit: 2.87 MiB are needed and 1.00 MiB are free, 1.87 MiB short"
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
        assert (plan.room.free_bytes, plan.room.free_files, plan.shortage) == (None, None, None)
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
        with pytest.raises(TargetError, match="is not a path"):
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
        assert LOCK_NAME not in {path.name for path in target.iterdir()}


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
