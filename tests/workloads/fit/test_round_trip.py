"""generate -> fit gives the description back: shipped workloads at a small scale."""

from __future__ import annotations

import math

import pytest

from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.fit.fitted import fit, workload_of
from dxt_replay.workloads.fit.observation import observe
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.source import read_workload

EXACT = (
    "framework",
    "workflow.checkpoint",
    "workflow.evaluation",
    "dataset.format",
    "dataset.num_files_train",
    "dataset.num_files_eval",
    "dataset.num_subfolders_train",
    "dataset.num_subfolders_eval",
    "reader.data_loader",
    "reader.batch_size",
    "reader.read_threads",
    "train.epochs",
    "train.total_training_steps",
    "evaluation.eval_after_epoch",
    "evaluation.epochs_between_evals",
    "checkpoint.steps_between_checkpoints",
)
"""Keys that must come back as they were."""

SHIPPED = {
    "unet3d_h100": (
        2,
        ["dataset.num_files_train=56", "train.epochs=2", "dataset.record_length_bytes=400000",
         "dataset.record_length_bytes_stdev=40000", "workflow.checkpoint=False"],
        None,
    ),
    "retinanet_b200": (2, ["dataset.num_files_train=960", "train.epochs=2"], None),
    "default": (2, ["train.epochs=3"], None),
    "resnet50_h100": (
        2,
        ["dataset.num_files_train=64", "dataset.num_samples_per_file=50", "reader.batch_size=40", "train.epochs=2"],
        40,
    ),
    "bert_v100": (
        2,
        ["dataset.num_files_train=4", "dataset.num_samples_per_file=5000", "train.total_training_steps=100",
         "checkpoint.steps_between_checkpoints=25"],
        48,
    ),
    "cosmoflow_h100": (2, ["dataset.num_files_train=128", "train.epochs=2"], None),
}  # fmt: skip
"""Workload -> ranks, overrides that make it small, and the batch size where the requests do not show it (TFRecord)."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_generated_capture_gives_its_description_back(tmp_path, name):
    ranks, overrides, batch = SHIPPED[name]
    given = read_workload(name, overrides).workload
    generate(given, ranks, tmp_path / "g.capture")
    capture = open_capture(tmp_path / "g.capture")
    found = workload_of(fit(observe(capture), batch=batch))
    for key in EXACT:
        section, _, field = key.rpartition(".")
        one, other = (getattr(getattr(each, section) if section else each, field) for each in (given, found))
        assert other == one, key
    # A part of an epoch of TFRecord shows bytes in whole requests only.
    off = 0.01 if given.train.total_training_steps is None else 0.03
    assert _record_bytes(found) == pytest.approx(_record_bytes(given), rel=off)
    assert found.dataset.num_samples_per_file == pytest.approx(given.dataset.num_samples_per_file, rel=off)
    assert found.train.computation_time.mean_s == pytest.approx(given.train.computation_time.mean_s, rel=1e-3)
    assert found.reader.preprocess_time.mean_s == pytest.approx(given.reader.preprocess_time.mean_s, abs=1e-5)
    if given.workflow.checkpoint:
        assert found.model.model_size_bytes == pytest.approx(given.model.model_size_bytes, abs=10)
    if given.workflow.evaluation:
        assert found.reader.batch_size_eval == given.reader.batch_size_eval
        assert found.evaluation.eval_time.mean_s == pytest.approx(given.evaluation.eval_time.mean_s, rel=1e-3)


def _record_bytes(workload):
    data = workload.dataset
    return math.prod(data.record_dims) if data.record_dims else math.isqrt(int(data.record_length_bytes)) ** 2


def test_what_is_generated_from_a_fit_is_the_capture_again(tmp_path):
    given = read_workload("default", ["train.epochs=2"]).workload
    generate(given, 2, tmp_path / "one.capture")
    first = open_capture(tmp_path / "one.capture")
    found = fit(observe(first))
    generate(workload_of(found), 2, tmp_path / "two.capture")
    second = open_capture(tmp_path / "two.capture")
    assert second.operation_count() == first.operation_count()
    again = fit(observe(second))
    assert {key: value for key, (value, _) in again.items()} == {key: value for key, (value, _) in found.items()}
