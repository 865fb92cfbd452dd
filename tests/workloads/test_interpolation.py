"""References inside a description, as OmegaConf 2.3 resolves them, and resolved configurations of MLPerf runs."""

from __future__ import annotations

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.interpolation import resolved
from dxt_replay.workloads.workload_source import read_workload

V1 = """
workload:
  model: unet3d
  framework: pytorch
  workflow: {generate_data: false, train: true, checkpoint: true, profiling: false}
  dataset:
    data_folder: /mnt/store/unet3d
    format: npz
    num_files_train: 91000
    num_samples_per_file: 1
    record_length: 146600628
    record_length_stdev: 68341808
    record_length_resize: 2097152
    num_subfolders_train: 1000
  reader:
    data_loader: pytorch
    batch_size: 7
    read_threads: 32
    file_shuffle: seed
    sample_shuffle: seed
    prefetch_size: 0
    transfer_size: 0
  train: {epochs: 5, computation_time: 0.636}
  checkpoint: {checkpoint_folder: checkpoints/unet3d, checkpoint_after_epoch: 5, epochs_between_checkpoints: 2,
    model_size: 499153191}
  metric: {au: 0.9}
  profiling: {profiler: none}
"""


V2 = """
workload:
  model: {name: llama3_8b, type: transformer, num_layers: 32, parallelism: {tensor: 1, pipeline: 1, zero_stage: 3}}
  framework: pytorch
  workflow: {generate_data: false, train: false, checkpoint: true}
  checkpoint: {checkpoint_folder: '/mnt/${workload.model.name}', num_checkpoints_write: 10,
    num_checkpoints_read: '${.num_checkpoints_write}', time_between_checkpoints: 5, fsync: true, mode: default}
  output: {folder: '${hydra:run.dir}'}
"""


V05 = """
workload:
  model: unet3d
  framework: pytorch
  workflow: {generate_data: false, train: true, checkpoint: true, profiling: false}
  dataset: {data_folder: /mnt/store/client1, format: npz, num_files_train: 25000, num_samples_per_file: 1,
    record_length: 146600628, record_length_stdev: 68341808, num_subfolders_train: 20}
  reader: {data_loader: pytorch, batch_size: 4, read_threads: 4, file_shuffle: seed, sample_shuffle: seed,
    shuffle_size: 4}
  train: {seed_change_epoch: false, epochs: 5, computation_time: 1.3604}
  checkpoint: {checkpoint_folder: /mnt/store/client1, checkpoint_after_epoch: 5, epochs_between_checkpoints: 2,
    model_size: 499153191}
  profiling: {profiler: none}
"""

V05_BERT = """
workload:
  model: bert
  framework: tensorflow
  workflow: {generate_data: false, train: true, debug: false, checkpoint: true, profiling: false}
  dataset: {data_folder: /lustre/client/datagen_bert, format: tfrecord, num_files_train: 239,
    num_samples_per_file: 313532, record_length: 2500, file_prefix: part}
  train: {seed_change_epoch: false, computation_time: 0.968, total_training_steps: 1000}
  reader: {data_loader: tensorflow, read_threads: 4, computation_threads: 8, transfer_size: 262144, batch_size: 48,
    file_shuffle: seed, sample_shuffle: seed}
  checkpoint: {checkpoint_folder: /lustre/client/checkpoint_bert, steps_between_checkpoints: 250,
    model_size: 4034713312}
  storage: {storage_type: local_fs, storage_root: /lustre/client}
  profiling: {profiler: none}
"""
"""MLPerf Storage v0.5 has two workloads; these are as its submissions resolved them, with other folders."""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (V05, "unet3d"),
        (V05_BERT, "bert"),
        (V1, "unet3d"),
        (V1 + "hydra:\n  run: {dir: './results/${workload.model}/${now:%Y-%m-%d}'}\n", "unet3d"),
        (V2, "llama3_8b"),
    ],
)
def test_resolved_configurations_of_mlperf_are_read(tmp_path, text, name):
    (tmp_path / "config.yaml").write_text(text)
    for reading in ("documented", "v2.0"):
        found = read_workload(tmp_path, reading=reading)
        assert found.workload.model.name == name
        assert not [note for note in found.notes if note.kind == "unknown" and note.key != "workflow.debug"]


@pytest.mark.parametrize("folder", [".hydra", "configs", "dlio_config"])
def test_the_folder_of_a_run_is_enough_whatever_its_release_calls_the_inner_one(tmp_path, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.yaml").write_text(V05)
    assert read_workload(tmp_path).workload.model.name == "unet3d"


@pytest.mark.parametrize(("text", "record", "model"), [(V05, 146600628, 499153191), (V05_BERT, 2500, 4034713312)])
def test_sizes_stand_under_the_names_that_dlio_read_until_v1(tmp_path, text, record, model):
    (tmp_path / "config.yaml").write_text(text)
    found = read_workload(tmp_path)
    assert found.workload.dataset.record_length_bytes == record
    assert found.workload.model.model_size_bytes == model
    assert "ignores it since MLPerf Storage v2.0" in " ".join(note.line for note in found.notes)


def test_a_run_that_made_its_data_set_is_refused_though_it_has_a_rule_for_checkpoints(tmp_path):
    """As the file-creation runs of v0.5: checkpoints are on, but follow steps of a training that is off."""
    (tmp_path / "w.yaml").write_text(
        V05_BERT.replace("generate_data: false, train: true", "generate_data: true, train: false")
    )
    for reading in ("documented", "head", "v2.0"):
        with pytest.raises(UsageError, match=r"only writes its data set: .* made by dxt-replay stage"):
            read_workload(tmp_path / "w.yaml", reading=reading)


def test_references_stand_for_what_omegaconf_gives():
    """The values are those of OmegaConf.to_container(c["workload"], resolve=True)."""
    references = {
        "model": {"name": "unet3d", "big": True},
        "dataset": {
            "num_files_train": 16,
            "num_files_eval": "${.num_files_train}",
            "data_folder": "data/${workload.model.name}/${..model.big}",
            "l": [3, 4],
        },
        "reader": {
            "batch_size": "${workload.dataset.l[1]}",
            "read_threads": "${workload.dataset.l.0}",
            "x": "${..model}",
        },
    }
    assert resolved(references) == {
        "model": {"name": "unet3d", "big": True},
        "dataset": {"num_files_train": 16, "num_files_eval": 16, "data_folder": "data/unet3d/True", "l": [3, 4]},
        "reader": {"batch_size": 4, "read_threads": 3, "x": {"name": "unet3d", "big": True}},
    }


def test_a_reference_follows_an_override_and_needs_no_leading_name(tmp_path):
    (tmp_path / "w.yaml").write_text(
        "dataset: {format: npz, num_files_train: 8, num_files_eval: '${dataset.num_files_train}'}\n"
        "reader: {data_loader: tensorflow}\n"
    )
    found = read_workload(tmp_path / "w.yaml", ["dataset.num_files_train=24"]).workload.dataset
    assert found.num_files_eval == 24


@pytest.mark.parametrize(
    "value",
    ["${oc.env:FILES}", "${hydra:job.num}", "${dataset.no_such_key}", "${.num_files_eval}", "${.....x}", "${a.${b}}"],
)
def test_what_the_file_does_not_hold_is_an_error_where_it_changes_the_run(tmp_path, value):
    path = tmp_path / "w.yaml"
    path.write_text(f"dataset: {{format: npz, num_files_eval: '{value}'}}\nreader: {{data_loader: tensorflow}}\n")
    with pytest.raises(UsageError, match=r"dataset.num_files_eval: .* refers to what this file does not hold"):
        read_workload(path)
    path.write_text(f"dataset: {{format: npz}}\noutput: {{folder: '{value}'}}\nprofiling: {{profiler: '{value}'}}\n")
    assert {note.kind for note in read_workload(path).notes} == {"not I/O"}


def test_references_that_double_are_bounded():
    levels = {f"k{level}": f"${{dataset.k{level + 1}}}${{dataset.k{level + 1}}}" for level in range(40)}
    with pytest.raises(UsageError, match="more than 10000 values"):
        resolved({"dataset": {**levels, "k40": "x"}})
    nested = {
        f"k{level}": {"a": f"${{dataset.k{level + 1}}}", "b": f"${{dataset.k{level + 1}}}"} for level in range(40)
    }
    with pytest.raises(UsageError, match="more than 10000 values"):
        resolved({"dataset": {**nested, "k40": "x"}})
