"""Staging that ends before it is done, and what resumes it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.target.manifest import MANIFEST_NAME, PLANNED, WHOLE
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import temporary_name
from dxt_replay.replay.target.protocol import SMALL_BYTES
from dxt_replay.replay.target.stage import stage, unstage
from dxt_replay.replay.target.stage_plan import plan_stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import build_capture, read
from tests.places import ROOT
from tests.replay.target.staging import capture_fixture, entries, failing_writes, staged, target_fixture, tree, twin  # noqa: F401


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
            "import os, sys; from pathlib import Path;"
            "from dxt_replay.replay.target.stage import stage;"
            "from dxt_replay.replay.target.stage_plan import plan_stage;"
            "from dxt_replay.traces.store.reader import open_capture;"
            "plan = plan_stage(open_capture(sys.argv[1]), Path(sys.argv[2]));"
            "stage(plan, workers=1, progress=lambda done, total: os._exit(9) if done > 3_000_000 else None)"
        )
        command = [sys.executable, "-c", program, str(capture.path), str(target)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 9
        left = twin(target)
        assert (left.pop("a"), left.pop("c")) == (5, 70_000)
        assert [Path(name).suffix for name in left] == [".part"]
        assert {f["state"] for f in entries(target)} == {PLANNED}

        plan = plan_stage(capture, target)
        assert plan.already_staged.path.to_pylist() == [f"{TWIN_ROOT}/a", f"{TWIN_ROOT}/c"]
        stage(plan)
        assert twin(target) == {"a": 5, "b": 9 * MIB, "c": 70_000}
        assert {f["state"] for f in entries(target)} == {WHOLE}

    def test_unstage_removes_what_a_killed_staging_left(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        written = target / TWIN_ROOT / "data/a.npz"
        (written.parent / os.fsdecode(temporary_name(b"a.npz"))).write_bytes(b"half")
        unstage(target)
        assert tree(target) == {}

    def test_unstage_goes_through_a_directory_of_many_files(
        self, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More than are removed in one call; what a killed staging left is of the first and of the last of them."""
        names = [f"{number}.npz" for number in range(5)]
        ops = [read(number, length=9) for number in range(5)]
        staged(build_capture(tmp_path, files=[f"/data/{name}" for name in names], ops=ops), target)
        for name in (names[0], names[-1]):
            (target / TWIN_ROOT / "data" / os.fsdecode(temporary_name(name.encode()))).write_bytes(b"half")
        monkeypatch.setattr("dxt_replay.replay.target.posix.REMOVED_FILES", 2)
        assert unstage(target) == 5
        assert tree(target) == {}

    def test_a_staging_that_ends_while_it_replaces_a_file_of_ours_is_resumed(
        self, capture: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staged(capture, target)
        before = tree(target)
        os.truncate(target / TWIN_ROOT / "data/a.npz", 17)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing_writes(errno.EIO))
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
            patch.setattr(os, "write", failing_writes(errno.ENOSPC))
            with pytest.raises(TargetError):
                stage(plan_stage(capture, target))
        stranger = target / TWIN_ROOT / "data/a.npz"
        stranger.parent.mkdir(parents=True, exist_ok=True)
        stranger.write_bytes(content)
        with pytest.raises(TargetError, match=r"data/a\.npz exists and was not made by dxt-replay"):
            plan_stage(capture, target)
        assert stranger.read_bytes() == content

    @pytest.mark.parametrize("kept_bytes", [0, 4096, 69_999])
    def test_a_small_file_that_was_cut_short_is_written_again(
        self, kept_bytes: int, tmp_path: Path, target: Path
    ) -> None:
        capture = build_capture(tmp_path, files=["/a", "/b"], ops=[read(0, length=70_000), read(1, length=5)])
        staged(capture, target)
        whole = tree(target)
        manifest = target / MANIFEST_NAME
        manifest.write_text(manifest.read_text().replace(f'"{WHOLE}"', f'"{PLANNED}"'))
        os.truncate(target / TWIN_ROOT / "a", kept_bytes)
        plan = plan_stage(capture, target)
        assert plan.to_write.path.to_pylist() == [f"{TWIN_ROOT}/a"]
        stage(plan)
        assert tree(target) == whole

    @pytest.mark.parametrize("content", [b"s", b"stranger", b"s" * 4096])
    def test_a_strangers_shorter_file_is_not_taken_for_one_that_was_cut_short(
        self, content: bytes, tmp_path: Path, target: Path
    ) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=70_000)])
        staged(capture, target)
        manifest = target / MANIFEST_NAME
        manifest.write_text(manifest.read_text().replace(f'"{WHOLE}"', f'"{PLANNED}"'))
        (target / TWIN_ROOT / "a").write_bytes(content)
        with pytest.raises(TargetError, match="not made by dxt-replay"):
            plan_stage(capture, target)
        assert (target / TWIN_ROOT / "a").read_bytes() == content

    def test_a_strangers_file_that_comes_while_writing_is_not_replaced(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=SMALL_BYTES + 1)])

        def intrude() -> None:
            (target / TWIN_ROOT / "a").write_bytes(b"mine")

        with pytest.raises(TargetError, match="not made by dxt-replay"):
            stage(plan_stage(capture, target), progress=lambda done, total: intrude())
        assert twin(target) == {"a": 4}
