"""A staged target: shared by captures, checked, beside mapped data, prepared for a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dxt_replay.replay.target.placement import TWIN_ROOT, parse_map, place
from dxt_replay.replay.target.stage import check_staged, prepare_run, unstage
from dxt_replay.replay.target.stage_plan import plan_stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture, files_table, read, write
from tests.replay.target.staging import capture_fixture, sizes, staged, target_fixture, tree, twin  # noqa: F401


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
        assert plan.already_staged.size.tolist() == [5]
        assert sizes(check_staged(first, target)) == [5, 5]
        assert sizes(check_staged(second, target)) == [5, 6, 7]
        assert twin(target) == {"same": 5, "larger": 5, "only": 7}
        assert not len(plan_stage(second, target).to_write)

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
        assert prepare_run(target, place(files_table([]), os.fsencode(target) + b"/")) == 0
        assert stranger.read_bytes() == b"mine"

    def test_without_a_target(self, target: Path) -> None:
        assert prepare_run(target, place(files_table([]), os.fsencode(target) + b"/")) == 0
