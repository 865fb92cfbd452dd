"""A shipped workload at a small scale: the same format, loader, threads and kinds of events, with few small files."""

from __future__ import annotations

from typing import Any

import yaml

from dxt_replay.workloads.source import SHIPPED

MOST: dict[str, float] = {
    "dataset.num_files_train": 8, "dataset.num_files_eval": 4, "dataset.num_samples_per_file": 16,
    "dataset.num_subfolders_train": 2, "dataset.num_subfolders_eval": 2, "dataset.record_length_bytes": 40_000,
    "dataset.record_length_bytes_stdev": 9_000, "dataset.chunk_size": 4_096,
    "reader.batch_size": 2, "reader.read_threads": 3, "reader.shuffle_size": 4, "reader.preprocess_time": 0.001,
    "train.epochs": 2, "train.total_training_steps": 3, "train.computation_time": 0.002, "evaluation.eval_time": 0.001,
    "checkpoint.steps_between_checkpoints": 2, "checkpoint.time_between_checkpoints": 0.001,
    "checkpoint.num_checkpoints_write": 2, "checkpoint.num_checkpoints_read": 2,
    "model.model_size_bytes": 300_000, "model.num_layers": 4,
    "model.parallelism.tensor": 2, "model.parallelism.pipeline": 2,
    "model.transformer.vocab_size": 1_000, "model.transformer.hidden_size": 64,
    "model.transformer.ffn_hidden_size": 128, "model.transformer.num_attention_heads": 8,
    "model.transformer.num_kv_heads": 4,
}  # fmt: skip
"""The largest value that a key keeps."""

RANKS = 4


def small_overrides(name: str) -> dict[str, Any]:
    """What makes the shipped workload `name` small: overrides of its keys."""
    values = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"))
    found = {}
    for key, most in MOST.items():
        value: Any = values
        for part in key.split("."):
            value = value.get(part, {}) if isinstance(value, dict) else {}
        if isinstance(value, int | float) and value > most:
            found[key] = most
    dims = values.get("dataset", {}).get("record_dims")
    if dims:
        found["dataset.record_dims"] = [*dims[:-1], min(dims[-1], 2_000)]
    model = values.get("model", {})
    for key in ("optimization_groups", "layer_parameters"):
        if model.get(key):
            found[f"model.{key}"] = [size // 100_000 for size in model[key]]
    return found
