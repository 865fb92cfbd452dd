"""What a generated capture keeps for the figures of its benchmark, and who carries it on."""

from __future__ import annotations

from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.traces.benchmark_run import benchmark_run
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.workload_source import read_workload

SMALL = (
    "dataset.num_files_train=8",
    "dataset.record_length_bytes=100000",
    "dataset.record_length_bytes_stdev=0",
    "reader.batch_size=1",
    "train.epochs=2",
    "train.computation_time=0.01",
)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    overrides = (*SMALL, "checkpoint.steps_between_checkpoints=3", "checkpoint.checkpoint_folder=ckpt")
    generate(read_workload("unet3d_h100", overrides).workload, 2, tmp_path / "u.capture")
    return open_capture(tmp_path / "u.capture")


def test_blocks_end_at_checkpoints_and_epochs(capture: Capture) -> None:
    run = benchmark_run(capture.info)
    assert run is not None
    assert (run.workload, run.batch_size, run.files, run.record_bytes) == ("unet3d_h100", 1, 8, 100_000)
    epochs = [epoch for epoch, _, _ in run.blocks]
    assert sorted(set(epochs)) == [1, 2]
    assert sum(last - first + 1 for _, first, last in run.blocks) == 8
    assert run.blocks[0] == (1, 1, 3)


def test_a_replay_has_the_figures_too(capture: Capture, tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(capture, tmp_path / "twin")
    dxt_replay.run(capture, tmp_path / "twin", tmp_path / "r.capture", pace="steps")
    replay = open_capture(tmp_path / "r.capture")
    assert benchmark_run(replay.info) == benchmark_run(capture.info)
    (generated,), (replayed,) = (
        [each for each in findings(found) if each.code == "mlperf-storage"] for found in (capture, replay)
    )
    assert replayed.values["counted_steps"] == generated.values["counted_steps"]
    assert "replayed" in replayed.evidence
    assert "may not change checkpoint.steps_between_checkpoints" in replayed.evidence


def test_a_transformed_capture_has_none(capture: Capture, tmp_path: Path) -> None:
    dxt_replay.transform(capture, tmp_path / "t.capture", compute_speed=2.0)
    assert benchmark_run(open_capture(tmp_path / "t.capture").info) is None
