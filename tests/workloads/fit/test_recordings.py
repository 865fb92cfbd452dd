"""Fits of recorded applications, whose parameters are known: those that come with the package, and others beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.recognise import find_profiles
from tests.places import CAPTURES

KNOWN = {
    "cosmoflow": {
        "dataset.format": "tfrecord", "dataset.num_samples_per_file": 16, "train.epochs": 4, "reader.batch_size": 1,
        "reader.prefetch_size": 4,
    },
    "frnn": {"dataset.format": "npz", "reader.batch_size": 1, "reader.read_threads": 0},
    "torch_images": {
        "dataset.format": "jpeg", "dataset.num_files_train": 400, "dataset.num_subfolders_train": 10,
        "reader.batch_size": 16, "reader.read_threads": 2, "reader.prefetch_size": 4, "train.epochs": 4,
        "checkpoint.epochs_between_checkpoints": 1,
    },
    "torch_eval": {
        "reader.batch_size": 16, "dataset.record_length_bytes": 49152, "reader.read_threads": 2,
        "workflow.evaluation": True, "dataset.num_files_eval": 4, "checkpoint.steps_between_checkpoints": 20,
    },
    "torch_hdf5": {
        "dataset.format": "hdf5", "reader.batch_size": 6, "dataset.num_samples_per_file": 512,
        "dataset.record_length_bytes": 131072, "train.epochs": 3,
    },
}  # fmt: skip
"""Recording -> parameters of the application that was recorded."""

SIMILAR = {"imagenet": 0.95, "cosmictagger": 0.95, "cosmoflow": 0.95, "torch_hdf5": 0.95}
"""Recording -> least similarity of what the fitted description generates."""


def fit_of(folder: Path, logs, profiles):
    merge(list(logs), list(profiles), folder / "run.capture")
    return dxt_replay.fit(folder / "run.capture", folder / "run.yaml")


def keys_of(fitted):
    return {each.key: each.value for each in fitted.found.estimates}


def test_imagenet(tmp_path):
    sample = dxt_replay.sample("imagenet")
    fitted = fit_of(tmp_path, [sample.log], sample.profiles)
    found = keys_of(fitted)
    assert found["dataset.num_samples_per_file"] == 48
    assert (found["reader.batch_size"], found["train.epochs"], found["reader.prefetch_size"]) == (8, 5, 2)
    assert found["reader.transfer_size"] == 262144
    assert fitted.closeness is not None
    assert fitted.closeness.similarity > SIMILAR["imagenet"]


def test_cosmic_tagger(tmp_path):
    sample = dxt_replay.sample("cosmictagger")
    fitted = fit_of(tmp_path, [sample.log], sample.profiles)
    found = keys_of(fitted)
    assert (found["reader.batch_size"], found["dataset.num_samples_per_file"], found["train.epochs"]) == (8, 600, 4)
    assert found["dataset.record_dims"] == [20, 2048]
    assert found["dataset.hdf5.chunk_dims"] == [1, 1, 2048]
    assert found["model.model_size_bytes"] > 60_000
    assert fitted.closeness is not None
    assert fitted.closeness.similarity > SIMILAR["cosmictagger"]
    text = (tmp_path / "run.yaml").read_text()
    assert "similarity 0.9" in text
    assert all("#" in line for line in text.splitlines() if ": " in line)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no recorded captures beside this checkout")
@pytest.mark.parametrize("name", KNOWN)
def test_other_applications(tmp_path, name):
    folder = CAPTURES / name
    logs = sorted((folder / "logs").glob("*.darshan")) or [folder / "job.darshan"]
    fitted = fit_of(tmp_path, logs, find_profiles(folder / "profile"))
    found = keys_of(fitted)
    assert {key: found[key] for key in KNOWN[name]} == KNOWN[name]
    assert fitted.closeness is not None
    if name in SIMILAR:
        assert fitted.closeness.similarity > SIMILAR[name]
