"""Small workloads of every loader and format, for tests of what is generated from them."""

from __future__ import annotations

import dataclasses
from typing import Any

from dxt_replay.workloads.description import (
    NO_TIME,
    Checkpoint,
    Dataset,
    Distribution,
    Evaluation,
    Model,
    Parallelism,
    Reader,
    Train,
    Transformer,
    Workflow,
    Workload,
)

Values = dict[str, Any]


def seconds(mean: float, stdev: float = 0.0) -> Distribution:
    """A constant time, or a normal one."""
    return Distribution(family="normal", parameters=(mean, stdev)) if stdev else Distribution(parameters=(mean,))


def workload_of(
    file_format: str, loader: str, *, files: int = 32, evaluation_files: int = 0, per_file: int = 1,
    record: int = 100_000, deviation: int = 0, batch: int = 2, readers: int = 2, epochs: int = 2,
    checkpoints: bool = False, compute: Distribution | None = None, preprocessing: Distribution = NO_TIME,
    dataset: Values | None = None, reader: Values | None = None, checkpoint: Values | None = None,
) -> Workload:  # fmt: skip
    """A small workload; `dataset`, `reader` and `checkpoint`: further values of these sections."""
    return Workload(
        framework="tensorflow" if loader == "tensorflow" else "pytorch",
        workflow=Workflow(train=True, evaluation=evaluation_files > 0, checkpoint=checkpoints),
        dataset=Dataset(
            format=file_format, num_files_train=files, num_files_eval=evaluation_files, num_samples_per_file=per_file,
            record_length_bytes=record, record_length_bytes_stdev=deviation, **(dataset or {}),
        ),
        reader=Reader(
            data_loader=loader, batch_size=batch, read_threads=readers, preprocess_time=preprocessing, **(reader or {})
        ),
        train=Train(epochs=epochs, computation_time=seconds(0.002, 0.0005) if compute is None else compute),
        evaluation=Evaluation(eval_time=seconds(0.001)),
        checkpoint=Checkpoint(**(checkpoint or {})),
        model=Model(model_size_bytes=3_000_000),
    )  # fmt: skip


def _made(*args: Any, ranks: int = 2, **values: Any) -> tuple[Workload, int]:
    return workload_of(*args, **values), ranks


_SAVES = workload_of(
    "npz",
    "pytorch",
    checkpoints=True,
    checkpoint={"num_checkpoints_write": 3, "num_checkpoints_read": 2, "time_between_checkpoints": 0.01},
)
_SAVES = dataclasses.replace(_SAVES, workflow=Workflow(train=False, checkpoint=True))
_DIVIDED = Model(
    type="transformer",
    num_layers=5,
    parallelism=Parallelism(tensor=2, pipeline=2, zero_stage=1),
    transformer=Transformer(
        vocab_size=1000, hidden_size=64, ffn_hidden_size=256, num_attention_heads=4, num_kv_heads=2
    ),
)

CASES: dict[str, tuple[Workload, int]] = {
    "npz of many sizes": _made("npz", "pytorch", deviation=40_000, ranks=4),
    "npz, fewer files than ranks": _made("npz", "pytorch", files=3, per_file=16, record=20_000, ranks=4),
    "npz, the training thread reads": _made("npz", "pytorch", readers=0),
    "npz with preprocessing": _made("npz", "pytorch", preprocessing=seconds(0.003, 0.001)),
    "npz with evaluations and checkpoints": _made("npz", "pytorch", evaluation_files=8, checkpoints=True, ranks=4),
    "npz with checkpoints by steps": _made(
        "npz", "pytorch", checkpoints=True, checkpoint={"steps_between_checkpoints": 3}
    ),
    "npz, shuffled": _made("npz", "pytorch", reader={"file_shuffle": "seed", "sample_shuffle": "seed"}),
    "csv in memory": _made("csv", "pytorch", per_file=4, record=5_000, reader={"read_type": "memory"}),
    "npz, DALI": _made("npz", "dali"),
    "jpeg": _made("jpeg", "pytorch"),
    "hdf5": _made("hdf5", "pytorch", per_file=4),
    "hdf5, tf.data": _made("hdf5", "tensorflow", per_file=4, batch=4),
    "hdf5 of small records": _made("hdf5", "pytorch", files=3, per_file=40, record=4096, batch=3, ranks=4),
    "hdf5 in chunks": _made("hdf5", "pytorch", per_file=4, dataset={"chunk_size": 10_000}),
    "npz, tf.data": _made("npz", "tensorflow", per_file=3, files=24, readers=3, batch=4, record=20_000),
    "npy, tf.data, shuffled": _made(
        "npy", "tensorflow", files=24, readers=3, record=20_000, reader={"file_shuffle": "seed"}
    ),
    "indexed binary": _made("indexed_binary", "pytorch", per_file=4, files=16, record=2_000),
    "mapped binary": _made("mmap_indexed_binary", "pytorch", per_file=4, files=16, record=2_000),
    "tfrecord": _made("tfrecord", "tensorflow", per_file=8, files=64, batch=4),
    "tfrecord with preprocessing": _made(
        "tfrecord", "tensorflow", per_file=8, files=32, batch=4, preprocessing=seconds(0.002, 0.001)
    ),
    "tfrecord, shuffled": _made(
        "tfrecord",
        "tensorflow",
        per_file=8,
        files=64,
        batch=4,
        deviation=20_000,
        readers=4,
        reader={"sample_shuffle": "seed", "shuffle_size": 16},
    ),
    "tfrecord of single samples": _made(
        "tfrecord", "tensorflow", files=64, batch=4, record=300_000, deviation=50_000, readers=4
    ),
    "tfrecord, fewer files than ranks": _made("tfrecord", "tensorflow", files=2, per_file=16, batch=2, ranks=4),
    "tfrecord, files that do not divide": _made("tfrecord", "tensorflow", per_file=8, files=7, record=30_000, ranks=3),
    "checkpoints alone": (_SAVES, 2),
    "checkpoints of a divided model": (dataclasses.replace(_SAVES, model=_DIVIDED), 8),
    "checkpoints of TensorFlow": (dataclasses.replace(_SAVES, framework="tensorflow"), 2),
}
"""Name -> workload and ranks."""
