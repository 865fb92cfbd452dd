"""The table of DLIO's keys: one typed value for each key of its YAML that has an effect on the I/O.

Classes are the sections of the YAML and fields are its keys, by DLIO's names (commit e1919d7 of June 2026, and its
branch mlperf_storage_v2.0), with type, default, bounds, and the readings that do not look at them. Reading a file,
overrides, errors and what `fit` may write all follow from the fields: a new key is a new field here.
Values are the effective ones under `Workload.reading`: a key without effect has its default, whatever the YAML says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from dxt_replay.workloads.times import NO_TIME, Distribution
from dxt_replay.workloads.value_types import NAME_PART, SHUFFLE, ValueType, optional_whole

Reading = Literal["documented", "head", "v2.0", "v3.0"]
"""documented: follow DLIO's documentation.
head, v2.0: follow DLIO's code (main of June 2026; the branch mlperf_storage_v2.0, which MLPerf Storage v2.0 runs).
v3.0: follow MLPerf Storage v3.0's own line of the code (the repository DLIO_local_changes of mlcommons, July 2026)."""

READINGS: tuple[Reading, ...] = ("documented", "head", "v2.0", "v3.0")

Framework = Literal["tensorflow", "pytorch"]
StorageType = Literal["local_fs", "parallel_fs", "s3", "aistore", "direct_fs"]
Loader = Literal["tensorflow", "pytorch", "dali", "native_dali", "synthetic"]
Format = Literal[
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "synthetic"
]
WHOLE_FILES = ("npz", "npy", "jpeg", "png")
"""Formats whose files MLPerf Storage v3.0 reads whole for each sample, without decoding."""

Compression = Literal["none", "gzip", "lzf", "bz2", "zip", "xz"]
Shuffle = Literal["off", "seed", "random"]
ReadType = Literal["on_demand", "memory"]
Sampler = Literal["iterative", "index"]
CheckpointMode = Literal["default", "subset"]
ElementType = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
]  # fmt: skip
DataType = Literal["fp16", "bf16", "fp32", "fp64", "int8", "uint8"]
Dead = Mapping[Reading, str]
"""Reading -> why a key has no effect under it."""


def _code(why: str) -> Dead:
    return {"head": why, "v2.0": why, "v3.0": why}


_ABSENT_IN_V2: Dead = {"v2.0": "this version does not know it"}
_NO_CHUNK_SIZE: Dead = dict.fromkeys(
    ("head", "v3.0"), "DLIO stores it and nothing reads it: use dataset.hdf5.chunk_dims"
)
_V3_ALONE: Dead = dict.fromkeys(("documented", "head", "v2.0"), "MLPerf Storage v3.0 alone knows it (--reading v3.0)")
_NEVER_READ = _code("DLIO stores it under a name that nothing reads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the annotation of a key adds to its type.

    Bounds; `takes`, a value type that Python's type does not express; `dead`, the readings under which the key has no
    effect."""

    least: int | None = None
    most: int | None = None
    takes: ValueType | None = None
    dead: Dead = field(default_factory=dict)


Count = Annotated[int, Rule(least=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """The phases of a run. `train` off and `checkpoint` on: only checkpoints. Evaluation needs `train`."""

    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The root of all folders. Objects of s3 and aistore are treated as files."""

    storage_type: StorageType = "local_fs"
    storage_root: str = "./"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5:
    """Layout of the datasets of HDF5 files.

    chunk_dims: elements of a chunk in each dimension, the samples of a file first; empty for a contiguous dataset.
    max_shape: largest dimensions of a record in a dataset that can grow; empty for one that cannot.
    """

    chunk_dims: Annotated[tuple[int, ...], Rule(dead=_ABSENT_IN_V2)] = ()
    num_dset_per_record: Annotated[int, Rule(least=1, most=10_000, dead=_ABSENT_IN_V2)] = 1
    max_shape: Annotated[tuple[int, ...], Rule(dead=_ABSENT_IN_V2)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The files. `record_dims`, where not empty, replaces `record_length_bytes` (`data_set_files.py` has exact sizes).

    chunk_size: of HDF5 files, bytes of a square chunk of one sample, where `hdf5.chunk_dims` is empty; 0: none.
    generation_buffer_size: bytes that the generator of indexed binary files holds; offsets restart with each buffer.
    skip_listing: the loader computes the names instead of listing the folder, and stats the first, the last and each
    `listing_validation_interval`-th file; none if that is 0 (v3.0).
    """

    format: Format = "tfrecord"
    data_folder: str = "./data/"
    num_files_train: Annotated[int, Rule(most=20_000_000)] = 8
    num_files_eval: Annotated[int, Rule(most=20_000_000)] = 0
    num_samples_per_file: Count = 1
    record_length_bytes: Annotated[float, Rule(least=1)] = 65536
    record_length_bytes_stdev: float = 0
    record_length_bytes_resize: float = 0
    record_dims: Annotated[tuple[int, ...], Rule(dead=_ABSENT_IN_V2)] = ()
    record_element_type: Annotated[ElementType, Rule(dead=_ABSENT_IN_V2)] = "uint8"
    enable_chunking: Annotated[bool, Rule(dead=_NO_CHUNK_SIZE)] = False
    chunk_size: Annotated[int, Rule(dead=_NO_CHUNK_SIZE)] = 0
    hdf5: Hdf5 = field(default_factory=Hdf5)
    compression: Compression = "none"
    compression_level: Annotated[int, Rule(most=9)] = 4
    num_subfolders_train: Annotated[int, Rule(most=1_000_000)] = 0
    num_subfolders_eval: Annotated[int, Rule(most=1_000_000)] = 0
    file_prefix: Annotated[str, Rule(takes=NAME_PART)] = "img"
    generation_buffer_size: Count = 2 << 30
    skip_listing: Annotated[bool, Rule(dead=_V3_ALONE)] = False
    listing_validation_interval: Annotated[int, Rule(dead=_V3_ALONE)] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The data loader. `read_threads` 0: the training thread reads itself.

    transfer_size: bytes of a request for TFRecord; 0: one request for each record's header and one for its rest; None:
    TensorFlow's 262,144.
    read_type: `memory` keeps every file open and in memory after its first sample.
    preprocess_time: per sample, in the reader.
    """

    data_loader: Loader = "tensorflow"
    data_loader_sampler: Sampler | None = None
    batch_size: Count = 1
    batch_size_eval: Count = 1
    read_threads: Annotated[int, Rule(most=100_000)] = 1
    computation_threads: Annotated[int, Rule(most=100_000)] = 1
    prefetch_size: Annotated[int, Rule(most=1_000_000)] = 2
    shuffle_size: int = 1024
    file_shuffle: Annotated[Shuffle, Rule(takes=SHUFFLE)] = "off"
    sample_shuffle: Annotated[Shuffle, Rule(takes=SHUFFLE)] = "off"
    read_type: ReadType = "on_demand"
    transfer_size: Annotated[int | None, Rule(least=0)] = None
    preprocess_time: Distribution = NO_TIME
    odirect: bool = False
    dont_use_mmap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The training loop. `total_training_steps` None: all steps; per epoch under head and v2.0, else over the run.

    computation_time: per step, whatever the batch size."""

    epochs: Annotated[int, Rule(least=1, most=1_000_000)] = 1
    total_training_steps: int | None = None
    computation_time: Distribution = NO_TIME
    seed: Annotated[int, Rule(most=(1 << 32) - 1)] = 123
    seed_change_epoch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """When evaluations run, by epochs counted from 1, and how long a step of one computes."""

    eval_time: Distribution = NO_TIME
    eval_after_epoch: Count = 1
    epochs_between_evals: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When checkpoints are written. `steps_between_checkpoints`, where given, replaces the rule by epochs.

    time_between_checkpoints: seconds before each checkpoint of a run without training.
    num_checkpoints_write, num_checkpoints_read: of a run without training.
    """

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: Count = 1
    epochs_between_checkpoints: Count = 1
    steps_between_checkpoints: int | None = None
    mode: CheckpointMode = "default"
    fsync: Annotated[bool, Rule(dead={**_NEVER_READ, "v3.0": "MLPerf's writer syncs every checkpoint"})] = False
    recovery_rank_shift: Annotated[bool, Rule(dead=_NEVER_READ)] = False
    rank_sync: bool = False
    time_between_checkpoints: Annotated[float, Rule(least=-1_000_000_000, most=1_000_000_000)] = 0.0
    num_checkpoints_write: Annotated[int, Rule(takes=optional_whole(0))] = 0
    num_checkpoints_read: Annotated[int, Rule(takes=optional_whole(0))] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The division of a model over ranks. `data` None: R / (tensor * pipeline) with R ranks."""

    tensor: Annotated[int, Rule(least=1, most=1_000_000)] = 1
    pipeline: Annotated[int, Rule(least=1, most=1_000_000)] = 1
    data: int | None = None
    zero_stage: Annotated[int, Rule(most=3)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The sizes from which the parameters of a transformer follow."""

    vocab_size: Count = 32000
    hidden_size: Count = 2048
    ffn_hidden_size: Count = 8192
    num_attention_heads: Count = 32
    num_kv_heads: Count = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The contents of a checkpoint. `type` None and `num_layers` None: each writer writes `model_size_bytes`.

    layer_parameters: values per tensor of a layer; optimization_groups: values per group (the older form).
    """

    name: str = "default"
    type: str | None = None
    model_size_bytes: int = 10240
    model_datatype: DataType = "fp16"
    optimizer_datatype: DataType = "fp32"
    optimization_groups: Annotated[tuple[int, ...], Rule(least=0)] = ()
    num_layers: int | None = None
    layer_parameters: Annotated[tuple[int, ...], Rule(least=0)] = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    transformer: Transformer = field(default_factory=Transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How accelerator utilisation is counted: steps to leave out at both ends of a block, and the least share that
    passes."""

    exclude_start_steps: int = 1
    exclude_end_steps: int = 0
    au: Annotated[float, Rule(most=1)] = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """Origin of a description: file or shipped name, SHA-256 of its text, and the `KEY=VALUE` given with it."""

    name: str = ""
    sha256: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A validated description. Paths of its files are `storage_root` joined with the folders, as DLIO joins them."""

    reading: Reading = "documented"
    source: WorkloadSource = field(default_factory=WorkloadSource)
    framework: Framework = "tensorflow"
    workflow: Workflow = field(default_factory=Workflow)
    storage: Storage = field(default_factory=Storage)
    dataset: Dataset = field(default_factory=Dataset)
    reader: Reader = field(default_factory=Reader)
    train: Train = field(default_factory=Train)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    model: Model = field(default_factory=Model)
    metric: Metric = field(default_factory=Metric)
