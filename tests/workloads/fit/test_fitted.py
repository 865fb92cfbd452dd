"""A fit gives back the parameters of loops that are written from known ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.workloads.fit.fitted import fit
from dxt_replay.workloads.fit.observation import observe
from tests.capture_builder import File, Span, build_capture, read, write
from tests.workloads.fit.loops import STEP_NS, record_loop


def fitted(capture: Capture, batch: int | None = None) -> dict[str, Any]:
    return {key: value for key, (value, _) in fit(observe(capture), batch=batch).items()}


@pytest.mark.parametrize(
    ("batch", "record", "files", "per_file", "ranks"), [(4, 8192, 4, 40, 1), (1, 65536, 2, 20, 2), (16, 4096, 8, 40, 1)]
)
def test_records_at_random_places(tmp_path, batch, record, files, per_file, ranks):
    capture = record_loop(tmp_path, batch=batch, record=record, files=files, per_file=per_file, ranks=ranks)
    found = fitted(capture)
    assert found["dataset.format"] == "indexed_binary"
    assert found["dataset.num_files_train"] == files
    assert found["dataset.num_samples_per_file"] == per_file
    assert found["dataset.record_length_bytes"] == record
    assert found["reader.batch_size"] == batch
    assert (
        found["train.epochs"] == round(40 * batch * ranks / (files * per_file))
        or found["train.total_training_steps"] == 40
    )
    assert found["reader.sample_shuffle"] == "random"
    assert found["reader.read_threads"] == 0
    assert found["dataset.data_folder"] == "/data/set"


def test_a_file_for_each_sample(tmp_path):
    capture = record_loop(tmp_path, files=40, per_file=1, batch=2, open_each=True, suffix=".jpg", steps=60)
    found = fitted(capture)
    assert found["dataset.format"] == "jpeg"
    assert (found["reader.batch_size"], found["dataset.num_samples_per_file"], found["train.epochs"]) == (2, 1, 3)
    assert found["dataset.num_files_train"] == 40


def test_the_time_of_a_step_without_its_fetch_and_its_checkpoint(tmp_path):
    found = fitted(record_loop(tmp_path, steps=60, per_file=60, save_every=30))
    assert found["train.computation_time"] == pytest.approx(9e-3, rel=1e-3)
    assert found["checkpoint.steps_between_checkpoints"] == 30
    assert found["model.model_size_bytes"] == pytest.approx(100_000, rel=0.02)
    assert found["checkpoint.checkpoint_folder"] == "/run/ckpt"


def test_a_checkpoint_after_each_epoch_follows_epochs(tmp_path):
    found = fitted(record_loop(tmp_path, files=1, per_file=80, steps=60, save_every=20, open_each=True))
    assert found["train.epochs"] == 3
    assert found["checkpoint.checkpoint_after_epoch"] == 1
    assert found["checkpoint.epochs_between_checkpoints"] == 1
    assert "checkpoint.steps_between_checkpoints" not in found


def test_an_image_is_a_sample_where_workers_run_ahead_of_the_loop(tmp_path):
    """Two workers read 320 images of many sizes twice, in pieces and in bursts that no single step waits for."""
    steps, batch, images = 80, 8, 320
    sizes = np.random.default_rng(1).integers(20_000, 120_000, images)
    ops, spans = [], []
    for taken in range(steps * batch):
        size = int(sizes[taken % images])
        first = 1_000_000 + taken // 20 * 20 * STEP_NS // batch + taken % 20 * 100_000
        for piece in range(0, size, 50_000):
            at = first + piece
            length = min(50_000, size - piece)
            ops.append(read(taken % images, lane=1 + taken % 2, offset=piece, length=length, start_ns=at))
    for step in range(steps):
        begin = 2_000_000 + step * STEP_NS
        spans.append(Span("step", begin, begin + STEP_NS, name="ProfilerStep", thread=1, step=step))
        spans.append(Span("input_wait", begin, begin + 100_000, name="wait", thread=1, step=step))
    files = [File(f"/data/train/class{n % 4}/{n}.jpg", size=int(size)) for n, size in enumerate(sizes)]
    found = fitted(build_capture(tmp_path, ops=ops, files=files, spans=spans))
    assert (found["reader.batch_size"], found["dataset.num_samples_per_file"]) == (batch, 1)
    assert found["train.epochs"] == 2
    assert found["dataset.record_length_bytes"] < 3 * sizes.max()  # as decoded


def test_only_checkpoints_are_a_workload_too(tmp_path):
    spans = [Span("step", step * 10_000, step * 10_000 + 9_000, name="train", thread=1, step=step) for step in range(8)]
    spans += [
        Span("checkpoint", 35_000, 38_000, name="save", thread=1),
        Span("checkpoint", 75_000, 78_000, name="save", thread=1),
    ]
    ops = [write(0, length=5000, start_ns=35_100, end_ns=36_000), write(0, length=5000, start_ns=75_100, end_ns=76_000)]
    capture = build_capture(
        tmp_path, ops=ops, files=["/run/model.pt"], spans=sorted(spans, key=lambda each: each.start_ns)
    )
    found = fitted(capture)
    assert found["dataset.format"] == "synthetic"
    assert found["checkpoint.steps_between_checkpoints"] == 4
    assert 3000 < found["model.model_size_bytes"] < 5000  # DLIO adds the frame of an archive to it


def test_a_loop_that_neither_reads_nor_saves_is_an_error(tmp_path):
    capture = build_capture(
        tmp_path, files=["/a"], ops=[write(0, length=5)], spans=[Span("step", 10_000, 20_000, step=0)]
    )
    with pytest.raises(CaptureError, match="nothing to describe"):
        fitted(capture)


def test_a_capture_without_steps_is_an_error(tmp_path):
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=5)])
    with pytest.raises(CaptureError, match=r"no training steps.*merge with a profile"):
        fitted(capture)


def test_results_beside_the_loop_stand_as_a_checkpoint_at_its_end(tmp_path):
    after = 1_000_000 + 41 * 10_000_000
    results = tuple(
        write(4 + rank, rank=rank, offset=piece * 1000, length=1000, start_ns=after + piece * 2000)
        for rank in range(2)
        for piece in range(500)
    )
    files = (File("/run/result-0.json"), File("/run/result-1.json"))
    found = fitted(record_loop(tmp_path, ranks=2, extra=results, extra_files=files))
    assert found["checkpoint.checkpoint_after_epoch"] == found["train.epochs"]
    assert found["model.model_size_bytes"] == pytest.approx(500_000, rel=0.01)
    assert found["model.parallelism.zero_stage"] == 1


def test_a_part_and_a_replay_are_captures_too(tmp_path):
    capture = record_loop(tmp_path, ranks=2, steps=60)
    part = dxt_replay.part(capture, ranks="1", steps="0-39")
    found = fitted(part)
    assert (found["reader.batch_size"], found["dataset.record_length_bytes"]) == (4, 8192)
    (tmp_path / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(capture, tmp_path / "twin")
    dxt_replay.run(capture, tmp_path / "twin", tmp_path / "replay.capture", pace="steps", speed=1000)
    again = fitted(dxt_replay.open_capture(tmp_path / "replay.capture"))
    assert (again["reader.batch_size"], again["dataset.num_samples_per_file"]) == (4, 40)


def test_logs_without_a_profile_are_refused(tmp_path):
    with pytest.raises(UsageError, match="merge it with a profile"):
        dxt_replay.fit(dxt_replay.sample("imagenet").log, tmp_path / "run.yaml")
    assert not (tmp_path / "run.yaml").exists()


def test_an_output_is_kept_unless_forced(tmp_path):
    (tmp_path / "run.yaml").write_text("mine")
    with pytest.raises(TargetError, match="exists"):
        dxt_replay.fit(record_loop(tmp_path), tmp_path / "run.yaml")
    assert (tmp_path / "run.yaml").read_text() == "mine"


@pytest.mark.parametrize(("limit", "status"), [("50", 0), ("99.9", 1)])
def test_fail_under_is_the_exit_status(tmp_path, limit, status):
    record_loop(tmp_path)
    words = ["--quiet", "fit", str(tmp_path / "test.capture"), "-o", str(tmp_path / "run.yaml"), "--fail-under", limit]
    assert main(words) == status
    assert "similarity" in (tmp_path / "run.yaml").read_text()
