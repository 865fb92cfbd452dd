"""A workload description: one typed value for each key of DLIO's YAML that has an effect on the I/O.

Classes are the sections of the YAML and fields are its keys, by DLIO's names (commit e1919d7 of June 2026). Values are
the effective ones under `Workload.reading`: a key without effect there has its default here, whatever the YAML says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Reading = Literal["documented", "head", "v2.0", "v3.0"]
"""documented: what DLIO's documentation says. head, v2.0: what its code does (main of June 2026; the branch
mlperf_storage_v2.0, which MLPerf Storage v2.0 runs). v3.0: what MLPerf Storage v3.0's own line of it does (the
repository DLIO_local_changes of mlcommons, July 2026)."""

READINGS: tuple[Reading, ...] = ("documented", "head", "v2.0", "v3.0")

Framework = Literal["tensorflow", "pytorch"]
Storage = Literal["local_fs", "parallel_fs", "s3", "aistore", "direct_fs"]
Loader = Literal["tensorflow", "pytorch", "dali", "native_dali", "synthetic"]
Format = Literal[
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "synthetic"
]
WHOLE_FILES = ("npz", "npy", "jpeg", "png")
"""Formats whose files MLPerf Storage v3.0 reads whole for each sample, without decoding them."""

Compression = Literal["none", "gzip", "lzf", "bz2", "zip", "xz"]
Shuffle = Literal["off", "seed", "random"]
ReadType = Literal["on_demand", "memory"]
Sampler = Literal["iterative", "index"]
CheckpointMode = Literal["default", "subset"]
DataType = Literal["fp16", "bf16", "fp32", "fp64", "int8", "uint8"]
Family = Literal["constant", "normal", "uniform", "gamma", "exponential", "poisson"]

FAMILY_PARAMETERS: Mapping[Family, tuple[str, ...]] = {
    "constant": ("mean",),
    "normal": ("mean", "stdev"),
    "uniform": ("min", "max"),
    "gamma": ("shape", "scale"),
    "exponential": ("scale",),
    "poisson": ("lam",),
}
"""Family of distributions -> its parameters, as DLIO names them and in the order of `Distribution.parameters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Times in seconds: the absolute value of a draw from `family`. `parameters`: see FAMILY_PARAMETERS."""

    family: Family = "constant"
    parameters: tuple[float, ...] = (0.0,)

    @property
    def mean_s(self) -> float:
        """Expectation of the family in seconds, before the absolute value is taken."""
        first, last = self.parameters[0], self.parameters[-1]
        if self.family == "uniform":
            return (first + last) / 2
        return first * last if self.family == "gamma" else first


NO_TIME = Distribution()
"""The distribution of a time that is always 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """What a run does. `train` off and `checkpoint` on: only checkpoints; evaluation needs `train`."""

    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5:
    """Layout of the datasets of HDF5 files.

    chunk_dims: elements of a chunk in each dimension, the samples of a file first; empty for a contiguous dataset.
    max_shape: largest dimensions of a record in a dataset that can grow; empty for one that cannot.
    """

    chunk_dims: tuple[int, ...] = ()
    num_dset_per_record: int = 1
    max_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The files. `record_dims`, where not empty, replaces `record_length_bytes` (`data_set_files.py` has exact sizes).

    chunk_size: of HDF5 files, bytes of a square chunk of one sample, where `hdf5.chunk_dims` is empty; 0: none.
    generation_buffer_size: bytes that the generator of indexed binary files holds; offsets restart with each buffer.
    skip_listing: names are made up and not listed, and of the files the first, the last and each
    `listing_validation_interval`-th are looked at; no file for 0 (v3.0).
    """

    format: Format = "tfrecord"
    data_folder: str = "./data/"
    num_files_train: int = 8
    num_files_eval: int = 0
    num_samples_per_file: int = 1
    record_length_bytes: float = 65536
    record_length_bytes_stdev: float = 0
    record_length_bytes_resize: float = 0
    record_dims: tuple[int, ...] = ()
    record_element_type: str = "uint8"
    chunk_size: int = 0
    hdf5: Hdf5 = field(default_factory=Hdf5)
    compression: Compression = "none"
    compression_level: int = 4
    num_subfolders_train: int = 0
    num_subfolders_eval: int = 0
    file_prefix: str = "img"
    generation_buffer_size: int = 2 << 30
    skip_listing: bool = False
    listing_validation_interval: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The data loader. `read_threads` 0: the training thread reads itself.

    transfer_size: bytes of a request for TFRecord; 0: a request for each record's header and one for the rest of it;
    None: TensorFlow's 262,144.
    read_type: `memory` keeps every file open and in memory after its first sample.
    preprocess_time: per sample, in the reader.
    """

    data_loader: Loader = "tensorflow"
    data_loader_sampler: Sampler | None = None
    batch_size: int = 1
    batch_size_eval: int = 1
    read_threads: int = 1
    computation_threads: int = 1
    prefetch_size: int = 2
    shuffle_size: int = 1024
    file_shuffle: Shuffle = "off"
    sample_shuffle: Shuffle = "off"
    read_type: ReadType = "on_demand"
    transfer_size: int | None = None
    preprocess_time: Distribution = NO_TIME
    odirect: bool = False
    dont_use_mmap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The training loop. `total_training_steps` None: all steps; per epoch under head and v2.0, else over the run.

    computation_time: per step, whatever the batch size."""

    epochs: int = 1
    total_training_steps: int | None = None
    computation_time: Distribution = NO_TIME
    seed: int = 123
    seed_change_epoch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """When evaluations run, by epochs counted from 1, and how long a step of one computes."""

    eval_time: Distribution = NO_TIME
    eval_after_epoch: int = 1
    epochs_between_evals: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When checkpoints are written. `steps_between_checkpoints`, where given, replaces the rule by epochs.

    time_between_checkpoints: seconds before each checkpoint of a run without training.
    num_checkpoints_write, num_checkpoints_read: of a run without training.
    """

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: int = 1
    epochs_between_checkpoints: int = 1
    steps_between_checkpoints: int | None = None
    mode: CheckpointMode = "default"
    fsync: bool = False
    recovery_rank_shift: bool = False
    rank_sync: bool = False
    time_between_checkpoints: float = 0.0
    num_checkpoints_write: int = 0
    num_checkpoints_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a model is divided over ranks. `data` None: what the ranks leave, R / (tensor * pipeline)."""

    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    zero_stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The sizes from which the parameters of a transformer follow."""

    vocab_size: int = 32000
    hidden_size: int = 2048
    ffn_hidden_size: int = 8192
    num_attention_heads: int = 32
    num_kv_heads: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a checkpoint holds. `type` None with `num_layers` None: `model_size_bytes` by each writer.

    layer_parameters: values per tensor of a layer; optimization_groups: values per group (the older form).
    """

    name: str = "default"
    type: str | None = None
    model_size_bytes: int = 10240
    model_datatype: DataType = "fp16"
    optimizer_datatype: DataType = "fp32"
    optimization_groups: tuple[int, ...] = ()
    num_layers: int | None = None
    layer_parameters: tuple[int, ...] = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    transformer: Transformer = field(default_factory=Transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How accelerator utilisation is counted: steps left out at both ends of a block, and the least that passes."""

    exclude_start_steps: int = 1
    exclude_end_steps: int = 0
    au: float = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """Where a description came from: file or shipped name, SHA-256 of its text, and `KEY=VALUE` given beside it."""

    name: str = ""
    sha256: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A validated description. Paths of its files are `storage_root` joined with the folders, as DLIO joins them."""

    reading: Reading = "documented"
    source: WorkloadSource = field(default_factory=WorkloadSource)
    framework: Framework = "tensorflow"
    storage_root: str = "./"
    workflow: Workflow = field(default_factory=Workflow)
    dataset: Dataset = field(default_factory=Dataset)
    reader: Reader = field(default_factory=Reader)
    train: Train = field(default_factory=Train)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    model: Model = field(default_factory=Model)
    metric: Metric = field(default_factory=Metric)
