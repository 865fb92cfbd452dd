"""Every key of DLIO's YAML: what it takes, whether it concerns I/O, and where it has no effect.

From DLIO's loader at commit e1919d7 (June
2026, `utils/config.py`) and its branch mlperf_storage_v2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dxt_replay.workloads import description
from dxt_replay.workloads.description import Reading
from dxt_replay.workloads.value_types import (
    ELEMENT_TYPE,
    FLAG,
    NAME_PART,
    OPTIONAL_TEXT,
    TEXT,
    TIMES,
    ValueType,
    choice,
    number,
    optional_whole,
    shuffle,
    whole,
    wholes,
)

Dead = Mapping[Reading, str]
"""Reading -> why a key has no effect under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `dead`: where it has no effect."""

    name: str
    takes: ValueType
    dead: Dead = field(default_factory=dict)


def _code(why: str) -> Dead:
    return {"head": why, "v2.0": why, "v3.0": why}


_ABSENT_IN_V2: Dead = {"v2.0": "this version does not know it"}
_NO_CHUNK_SIZE: Dead = dict.fromkeys(
    ("head", "v3.0"), "DLIO stores it and nothing reads it: use dataset.hdf5.chunk_dims"
)
_V3_ALONE: Dead = dict.fromkeys(("documented", "head", "v2.0"), "MLPerf Storage v3.0 alone knows it (--reading v3.0)")
_NEVER_READ = _code("DLIO stores it under a name that nothing reads")

_LIVE: tuple[tuple[str, ValueType], ...] = (
    ("framework", choice(description.Framework)),
    ("workflow.generate_data", FLAG),
    ("workflow.train", FLAG),
    ("workflow.evaluation", FLAG),
    ("workflow.checkpoint", FLAG),
    ("storage.storage_type", choice(description.Storage)),
    ("storage.storage_root", TEXT),
    ("dataset.format", choice(description.Format)),
    ("dataset.data_folder", TEXT),
    ("dataset.num_files_train", whole(0, 20_000_000)),
    ("dataset.num_files_eval", whole(0, 20_000_000)),
    ("dataset.num_samples_per_file", whole(1)),
    ("dataset.record_length_bytes", number(1)),
    ("dataset.record_length_bytes_stdev", number()),
    ("dataset.record_length_bytes_resize", number()),
    ("dataset.record_dims", wholes()),
    ("dataset.record_element_type", ELEMENT_TYPE),
    ("dataset.enable_chunking", FLAG),
    ("dataset.chunk_size", whole()),
    ("dataset.hdf5.chunk_dims", wholes()),
    ("dataset.hdf5.num_dset_per_record", whole(1, 10_000)),
    ("dataset.hdf5.max_shape", wholes()),
    ("dataset.compression", choice(description.Compression)),
    ("dataset.compression_level", whole(0, 9)),
    ("dataset.num_subfolders_train", whole(0, 1_000_000)),
    ("dataset.num_subfolders_eval", whole(0, 1_000_000)),
    ("dataset.file_prefix", NAME_PART),
    ("dataset.generation_buffer_size", whole(1)),
    ("dataset.skip_listing", FLAG),
    ("dataset.listing_validation_interval", whole()),
    ("reader.data_loader", choice(description.Loader)),
    ("reader.data_loader_sampler", choice(description.Sampler)),
    ("reader.batch_size", whole(1)),
    ("reader.batch_size_eval", whole(1)),
    ("reader.read_threads", whole(0, 100_000)),
    ("reader.computation_threads", whole(0, 100_000)),
    ("reader.prefetch_size", whole(0, 1_000_000)),
    ("reader.shuffle_size", whole()),
    ("reader.file_shuffle", shuffle(description.Shuffle)),
    ("reader.sample_shuffle", shuffle(description.Shuffle)),
    ("reader.read_type", choice(description.ReadType)),
    ("reader.transfer_size", optional_whole(0)),
    ("reader.preprocess_time", TIMES),
    ("reader.odirect", FLAG),
    ("reader.dont_use_mmap", FLAG),
    ("train.epochs", whole(1, 1_000_000)),
    ("train.total_training_steps", optional_whole()),
    ("train.computation_time", TIMES),
    ("train.seed", whole(0, (1 << 32) - 1)),
    ("train.seed_change_epoch", FLAG),
    ("evaluation.eval_time", TIMES),
    ("evaluation.eval_after_epoch", whole(1)),
    ("evaluation.epochs_between_evals", whole(1)),
    ("checkpoint.checkpoint_folder", TEXT),
    ("checkpoint.checkpoint_after_epoch", whole(1)),
    ("checkpoint.epochs_between_checkpoints", whole(1)),
    ("checkpoint.steps_between_checkpoints", optional_whole()),
    ("checkpoint.mode", choice(description.CheckpointMode)),
    ("checkpoint.fsync", FLAG),
    ("checkpoint.recovery_rank_shift", FLAG),
    ("checkpoint.rank_sync", FLAG),
    ("checkpoint.time_between_checkpoints", number(-1e9, 1e9)),
    ("checkpoint.num_checkpoints_write", optional_whole(0)),
    ("checkpoint.num_checkpoints_read", optional_whole(0)),
    ("model.name", TEXT),
    ("model.type", OPTIONAL_TEXT),
    ("model.model_size_bytes", whole()),
    ("model.model_datatype", choice(description.DataType)),
    ("model.optimizer_datatype", choice(description.DataType)),
    ("model.optimization_groups", wholes(0)),
    ("model.num_layers", optional_whole()),
    ("model.layer_parameters", wholes(0)),
    ("model.parallelism.tensor", whole(1, 1_000_000)),
    ("model.parallelism.pipeline", whole(1, 1_000_000)),
    ("model.parallelism.data", optional_whole()),
    ("model.parallelism.zero_stage", whole(0, 3)),
    ("model.transformer.vocab_size", whole(1)),
    ("model.transformer.hidden_size", whole(1)),
    ("model.transformer.ffn_hidden_size", whole(1)),
    ("model.transformer.num_attention_heads", whole(1)),
    ("model.transformer.num_kv_heads", whole(1)),
    ("metric.exclude_start_steps", whole()),
    ("metric.exclude_end_steps", whole()),
    ("metric.au", number(0, 1)),
)

_DEAD: Mapping[str, Dead] = {
    "dataset.enable_chunking": _NO_CHUNK_SIZE,
    "dataset.chunk_size": _NO_CHUNK_SIZE,
    "dataset.record_dims": _ABSENT_IN_V2,
    "dataset.record_element_type": _ABSENT_IN_V2,
    "dataset.hdf5.chunk_dims": _ABSENT_IN_V2,
    "dataset.hdf5.num_dset_per_record": _ABSENT_IN_V2,
    "dataset.hdf5.max_shape": _ABSENT_IN_V2,
    "dataset.skip_listing": _V3_ALONE,
    "dataset.listing_validation_interval": _V3_ALONE,
    "checkpoint.fsync": {**_NEVER_READ, "v3.0": "MLPerf's writer syncs every checkpoint"},
    "checkpoint.recovery_rank_shift": _NEVER_READ,
}

DEAD_EVERYWHERE: Mapping[str, str] = {
    "dataset.record_element_bytes": "DLIO computes it from record_element_type",
    "reader.file_access": "DLIO stores it and nothing reads it",
    "checkpoint.type": "DLIO stores it and nothing reads it: which ranks write follows from model.parallelism",
    "workflow.debug": "DLIO does not know it",
}
"""Keys that have no effect under any reading, with the reason."""

NOT_EXPRESSED: Mapping[str, str] = {
    "storage.storage_options": "requests to an object store cannot be expressed: the data set is taken as files",
    "reader.data_loader_classname": "what your own class reads is not known: the loader is the one of data_loader",
    "reader.reader_classname": "what your own class reads is not known: the reader is the one of the format",
    "checkpoint.checkpoint_mechanism_classname": "what your own class writes is not known: taken as the framework's",
    "dataset.num_files_generated": "the names of the files have num_files_train in its place",
    "dataset.parquet": "Parquet files cannot be described by DLIO's main line; see the shipped flux and dlrm",
}
"""Keys whose effect a capture cannot hold, with what is assumed instead."""

SECRET = "storage.storage_options"
"""The section that may hold access keys."""

NOT_IO = frozenset(
    {
        "dataset.keep_files", "dataset.data_gen_method",
        "reader.pin_memory", "reader.multiprocessing_context", "reader.transformed_record_dims",
        "reader.transformed_record_element_type", "reader.write_threads", "checkpoint.randomize_tensor",
        "checkpoint.ksm", "workflow.profiling", "workflow.query", "output.folder", "output.log_file",
        "profiling.profiler", "profiling.iostat_devices", "storage.storage_library",
        "storage.post_generation_settle_seconds",
    }
)  # fmt: skip
"""Keys that change nothing in the I/O: memory, logging, profilers, names of output files."""

SPELLINGS: Mapping[str, str] = {
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    "dataset.num_dset_per_record": "dataset.hdf5.num_dset_per_record",
    "dataset.chunk_dims": "dataset.hdf5.chunk_dims",
    "dataset.max_shape": "dataset.hdf5.max_shape",
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
}
"""Spellings of DLIO's documentation and of its version 1 -> the key that its code reads."""

KEYS: Mapping[str, Key] = {name: Key(name=name, takes=takes, dead=_DEAD.get(name, {})) for name, takes in _LIVE}
"""Full name -> key, for all keys that have a value in a `Workload`."""
