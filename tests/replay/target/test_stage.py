"""The twin data set: what is planned, written and taken away."""

from __future__ import annotations

import dataclasses
import os
import stat as stat_modes
import zlib
from pathlib import Path

import pytest

from dxt_replay.replay.target.data_set import file_use
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, MANIFEST_NAME, WHOLE
from dxt_replay.replay.target.placement import TWIN_ROOT, parse_map
from dxt_replay.replay.target.stage import check_staged, stage, unstage
from dxt_replay.replay.target.stage_lines import as_json, describe
from dxt_replay.replay.target.stage_plan import plan_stage
from dxt_replay.replay.target.writing import BATCH_FILES, SYNC_BYTES
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Op, build_capture, read, write
from tests.replay.target.staging import (  # noqa: F401
    capture_fixture,
    entries,
    free_space,
    manifest_of,
    staged,
    target_fixture,
    tree,
    twin,
)


class TestPlan:
    def test_each_file_has_one_role(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target)
        assert list(zip(plan.to_write.path.to_pylist(), plan.to_write.size.tolist(), strict=True)) == [
            (f"{TWIN_ROOT}/data/a.npz", 3_000_100),
            (f"{TWIN_ROOT}/data/b/c.npz", 30),
            (f"{TWIN_ROOT}/data/index", 5000),
        ]
        assert plan.created_by_run.path.to_pylist() == [f"{TWIN_ROOT}/out/model.ckpt"]
        assert plan.to_write.file_id[plan.sparse].tolist() == [3]
        assert plan.bytes_to_write == 3_000_130

    @pytest.mark.parametrize(
        ("first", "origin", "role"),
        [
            ("stat", "traced", "looked at"),
            ("open", "traced", "created"),
            ("write", "traced", "created"),
            ("stat", "reconstructed", "created"),
        ],
    )
    def test_a_written_file_that_was_looked_at_before_is_there(
        self, tmp_path: Path, target: Path, first: str, origin: str, role: str
    ) -> None:
        """A log that is continued, or the standard output of a job: its stat fails where nothing is there."""
        times = {op: 1_000 if op == first else 2_000 for op in ("stat", "open", "write")}
        ops = [
            Op("stat", 0, start_ns=times["stat"], origin=origin),
            Op("open", 0, start_ns=times["open"], lane=1),
            Op("write", 0, start_ns=times["write"], lane=2, offset=49, length=3),
        ]
        plan = staged(build_capture(tmp_path, files=["/job/log"], ops=ops), target)
        assert twin(target) == ({"job/log": 52} if role == "looked at" else {})
        assert (len(plan.to_write), len(plan.created_by_run)) == ((1, 0) if role == "looked at" else (0, 1))

    def test_it_changes_nothing(self, capture: Capture, target: Path) -> None:
        describe(plan_stage(capture, target))
        assert not target.exists()

    @pytest.mark.parametrize("api", ["POSIX", "MPIIO", "MPIIO_COLL", "STDIO", "HDF5"])
    def test_a_read_of_any_interface_counts(self, api: str, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=7, api=api)])
        assert plan_stage(capture, target).to_write.size.tolist() == [7]

    def test_a_read_at_the_end_of_an_empty_file_stages_it(self, tmp_path: Path, target: Path) -> None:
        capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)])
        staged(capture, target)
        assert twin(target) == {"a": 0}

    def test_a_size_below_the_accesses_is_not_believed(self, tmp_path: Path, target: Path) -> None:
        files = [File("/a", size=5), File("/b", size=50)]
        capture = build_capture(tmp_path, files=files, ops=[read(0, offset=8, length=2), read(1, offset=-1, length=9)])
        assert plan_stage(capture, target).to_write.size.tolist() == [10, 50]

    def test_many_row_groups_and_ranks_are_all_seen(self, tmp_path: Path, target: Path) -> None:
        ops = [read(i % 7, offset=i, length=1, rank=i % 3, start_ns=i) for i in range(300)]
        capture = build_capture(tmp_path, files=[f"/f{i}" for i in range(7)], ops=ops)
        sizes = plan_stage(capture, target).to_write.size.tolist()
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
            Op("rename", 0, other_file_id=1, start_ns=10_000),
            Op("rename", 1, other_file_id=2, start_ns=20_000),
            write(3, length=50),
        ]
        plan = plan_stage(build_capture(tmp_path, files=files, ops=ops), target)
        assert len(plan.created_by_run) == 4
        assert as_json(plan)["bytes_created_by_run"] == 750
        assert "4 files, 750 B: only written by the program, so each replay makes them" in describe(plan)

    def test_the_description(self, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free_space(monkeypatch, 10 * MIB)
        (tmp_path / "real").mkdir()
        (tmp_path / "real/m").write_bytes(b"x" * 2048)
        names = [*(f"/d/{i}" for i in range(7)), "/w", "/map/m"]
        ops = [*(read(i, length=(i + 1) * 1024) for i in range(7)), write(7, length=512), read(8, length=2048)]
        capture = build_capture(tmp_path, files=names, ops=ops)
        maps = [parse_map(f"/map={tmp_path}/real")]
        assert describe(plan_stage(capture, target, maps=maps)) == [
            f"Would write 7 files under {target}: 28.0 KiB",
            "   7.00 KiB  dxt-replay-twin/d/6",
            "   6.00 KiB  dxt-replay-twin/d/5",
            "   5.00 KiB  dxt-replay-twin/d/4",
            "   4.00 KiB  dxt-replay-twin/d/3",
            "   3.00 KiB  dxt-replay-twin/d/2",
            "  and 2 more",
            "1 file, 2.00 KiB: read from mapped data",
            "1 file, 512 B: only written by the program, so each replay makes them",
            "10.0 MiB are free",
        ]
        staged(capture, target, maps=maps)
        assert describe(plan_stage(capture, target, maps=maps))[:2] == [
            f"Nothing to write under {target}",
            "7 files, 28.0 KiB: there already",
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
        assert not len(plan_stage(capture, target).to_write)

    @pytest.mark.parametrize("workers", [1, 3, None])
    def test_any_number_of_workers_writes_the_same(self, workers: int | None, tmp_path: Path, target: Path) -> None:
        capture = build_capture(
            tmp_path, files=[f"/d{i % 5}/{i}" for i in range(40)], ops=[read(i, length=i * 1000) for i in range(40)]
        )
        seen: list[int] = []
        stage(plan_stage(capture, target), workers=workers, progress=lambda done, total: seen.append(done))
        assert twin(target) == {f"d{i % 5}/{i}": i * 1000 for i in range(40)}
        assert seen == sorted(seen)
        assert all(f["state"] == WHOLE for f in entries(target))

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_directory_with_more_files_than_a_thread_takes_at_a_time(
        self, workers: int, tmp_path: Path, target: Path
    ) -> None:
        count = BATCH_FILES + 3
        ops = [read(i, length=i % 5) for i in range(count)]
        capture = build_capture(tmp_path, files=[f"/d/{i}" for i in range(count)], ops=ops)
        stage(plan_stage(capture, target), workers=workers)
        assert twin(target) == {f"d/{i}": i % 5 for i in range(count)}

    def test_workers_below_one_are_refused(self, capture: Capture, target: Path) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            stage(plan_stage(capture, target), workers=0)

    def test_the_manifest_lists_what_is_there(self, capture: Capture, target: Path) -> None:
        manifest = stage(plan_stage(capture, target))
        assert manifest_of(target) == manifest
        assert {
            f["path"].removeprefix(TWIN_ROOT): (f["size"], f["sparse"], f["state"]) for f in manifest.files.to_pylist()
        } == {
            "/data/a.npz": (3_000_100, False, WHOLE),
            "/data/b/c.npz": (30, False, WHOLE),
            "/data/index": (5000, True, WHOLE),
            "/out/model.ckpt": (4096, False, CREATED_BY_RUN),
        }

    def test_staging_again_touches_nothing(self, capture: Capture, target: Path) -> None:
        staged(capture, target)
        before = {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in target.rglob("*")}
        plan = staged(capture, target)
        assert plan.bytes_to_write == 0
        assert {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in target.rglob("*")} == before

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
        assert plan.to_write.size.tolist() == [3_000_100]
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
        assert not len(staged(capture, target, sparse=True).to_write)

    def test_a_plan_that_the_target_has_outrun_is_refused(self, capture: Capture, target: Path) -> None:
        plan = plan_stage(capture, target)
        stage(plan)
        with pytest.raises(TargetError, match="make a new plan"):
            stage(plan)


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


def test_an_object_that_a_store_refused_before_the_job_put_it_is_not_staged(tmp_path: Path) -> None:
    asked = dataclasses.replace(read(0, length=0, start_ns=0, end_ns=10), api="S3_REFUSED")
    put = dataclasses.replace(write(0, length=1 << 20, start_ns=20, end_ns=30), api="S3")
    found = file_use(build_capture(tmp_path / "job.capture", files=["s3://bucket/key"], ops=[asked, put]))
    assert not found.read.any()
    assert found.created.all()
