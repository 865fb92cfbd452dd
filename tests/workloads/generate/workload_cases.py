"""Small workloads of every loader and format, for tests of what is generated from them."""

from __future__ import annotations

from typing import Any

from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.source import overridden
from dxt_replay.workloads.values import KEYS, workload_from_values

NAMES = {
    **{key.rpartition(".")[2]: key for key in KEYS},
    "loader": "reader.data_loader", "files": "dataset.num_files_train", "evaluation_files": "dataset.num_files_eval",
    "per_file": "dataset.num_samples_per_file", "record": "dataset.record_length_bytes",
    "deviation": "dataset.record_length_bytes_stdev", "batch": "reader.batch_size", "readers": "reader.read_threads",
    "compute": "train.computation_time", "preprocessing": "reader.preprocess_time",
    "checkpoints": "workflow.checkpoint", "every": "checkpoint.steps_between_checkpoints",
}  # fmt: skip
"""Names of `workload_of`: the last part of each key, and short ones -> the key."""


def workload_of(file_format: str, loader: str, **keys: Any) -> Workload:
    """A small workload; `keys`: by a name of NAMES."""
    framework = "tensorflow" if loader == "tensorflow" else "pytorch"
    small = {
        "framework": framework, "format": file_format, "loader": loader, "files": 32, "record": 100_000, "batch": 2,
        "readers": 2, "epochs": 2, "compute": {"mean": 0.002, "stdev": 0.0005}, "eval_time": 0.001,
        "model_size_bytes": 3_000_000, "evaluation": keys.get("evaluation_files", 0) > 0,
    }  # fmt: skip
    values: dict[str, Any] = {}
    for name, value in {**small, **keys}.items():
        values = overridden(values, NAMES[name].split("."), value)
    return workload_from_values(values)[0]


def _made(*args: str, ranks: int = 2, **keys: Any) -> tuple[Workload, int]:
    return workload_of(*args, **keys), ranks


SAVES = {
    "train": False, "checkpoints": True, "num_checkpoints_write": 3, "num_checkpoints_read": 2,
    "time_between_checkpoints": 0.01,
}  # fmt: skip
DIVIDED = {
    "type": "transformer", "num_layers": 5, "tensor": 2, "pipeline": 2, "zero_stage": 1, "vocab_size": 1000,
    "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4, "num_kv_heads": 2,
}  # fmt: skip

CASES: dict[str, tuple[Workload, int]] = {
    "npz of many sizes": _made("npz", "pytorch", deviation=40_000, ranks=4),
    "npz, fewer files than ranks": _made("npz", "pytorch", files=3, per_file=16, record=20_000, ranks=4),
    "npz, the training thread reads": _made("npz", "pytorch", readers=0),
    "npz with preprocessing": _made("npz", "pytorch", preprocessing={"mean": 0.003, "stdev": 0.001}),
    "npz with evaluations and checkpoints": _made("npz", "pytorch", evaluation_files=8, checkpoints=True, ranks=4),
    "npz with checkpoints by steps": _made("npz", "pytorch", checkpoints=True, every=3),
    "npz, shuffled": _made("npz", "pytorch", file_shuffle="seed", sample_shuffle="seed"),
    "csv in memory": _made("csv", "pytorch", per_file=4, record=5_000, read_type="memory"),
    "npz, DALI": _made("npz", "dali"),
    "jpeg": _made("jpeg", "pytorch"),
    "hdf5": _made("hdf5", "pytorch", per_file=4),
    "hdf5, tf.data": _made("hdf5", "tensorflow", per_file=4, batch=4),
    "hdf5 of small records": _made("hdf5", "pytorch", files=3, per_file=40, record=4096, batch=3, ranks=4),
    "hdf5 in chunks": _made("hdf5", "pytorch", per_file=4, enable_chunking=True, chunk_size=10_000),
    "npz, tf.data": _made("npz", "tensorflow", per_file=3, files=24, readers=3, batch=4, record=20_000),
    "npy, tf.data, shuffled": _made("npy", "tensorflow", files=24, readers=3, record=20_000, file_shuffle="seed"),
    "indexed binary": _made("indexed_binary", "pytorch", per_file=4, files=16, record=2_000),
    "mapped binary": _made("mmap_indexed_binary", "pytorch", per_file=4, files=16, record=2_000),
    "tfrecord": _made("tfrecord", "tensorflow", per_file=8, files=64, batch=4),
    "tfrecord with preprocessing": _made(
        "tfrecord", "tensorflow", per_file=8, batch=4, preprocessing={"mean": 0.002, "stdev": 0.001}
    ),
    "tfrecord, shuffled": _made(
        *("tfrecord", "tensorflow"), per_file=8, files=64, batch=4, deviation=20_000, readers=4, sample_shuffle="seed",
        shuffle_size=16,
    ),
    "tfrecord of single samples": _made(
        "tfrecord", "tensorflow", files=64, batch=4, record=300_000, deviation=50_000, readers=4
    ),
    "tfrecord, fewer files than ranks": _made("tfrecord", "tensorflow", files=2, per_file=16, ranks=4),
    "tfrecord, files that do not divide": _made("tfrecord", "tensorflow", per_file=8, files=7, record=30_000, ranks=3),
    "checkpoints alone": _made("npz", "pytorch", **SAVES),
    "checkpoints of a divided model": _made("npz", "pytorch", **SAVES, **DIVIDED, ranks=8),
    "checkpoints of TensorFlow": _made("npz", "tensorflow", **SAVES),
}  # fmt: skip
"""Name -> workload and ranks."""
