"""A workload: one typed value for each key of DLIO's YAML that has an effect on the I/O.

Classes are the sections of the YAML and fields are its keys, by the names of DLIO's code (commit e1919d7 of June 2026).
The annotation of a field is its whole rule: type and bounds. Reading a file, overrides, errors and what `fit` may write
follow from the fields: a new key is a field. A key without effect has its default, whatever the YAML says.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

Framework = Literal["tensorflow", "pytorch"]
Format = Literal[
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "synthetic"
]
WHOLE_FILES = ("npz", "npy", "jpeg", "png")
"""Formats whose files PyTorch's readers read whole for each sample, without decoding."""

Shuffle = Literal["off", "seed", "random"]

NoteKind = Literal["unknown", "without effect", "read as", "not expressed", "not I/O"]
"""unknown: not a key of DLIO.
without effect: DLIO ignores it.
read as: DLIO takes it for something else than its text says.
not expressed: a capture cannot hold it.
not I/O: it changes no request."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def shown(value: Any) -> str:
    """A value for a message, cut to a readable length, on one line."""
    return _SHORT.repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A part of a description that a capture does not follow. `value` is written as `shown`; `why` completes a
    sentence."""

    key: str
    value: str
    kind: NoteKind
    why: str

    @property
    def line(self) -> str:
        """The note on one line, such as `reader.file_access 'shared' is without effect: ...`."""
        return f"{self.key} {self.value}{'' if self.kind == 'read as' else f' is {self.kind}'}: {self.why}"


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


MOST = 1 << 62
"""Largest whole number: byte offsets and products of a few counts stay below 64 bits."""

_SECONDS = 1_000_000_000
Size = Annotated[int, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Limit = Annotated[int, Meta(ge=1, le=MOST)] | None
"""None, or -1 in the YAML, for no limit."""

Number = Annotated[float, Meta(ge=0, le=float(MOST))]
Sizes = Annotated[tuple[Size, ...], Meta(max_length=10_000)]
Dims = Annotated[tuple[Count, ...], Meta(max_length=10_000)]
"""Dimensions, whose product is MOST at most."""

Files = Annotated[int, Meta(ge=0, le=20_000_000)]
Folders = Annotated[int, Meta(ge=0, le=1_000_000)]
Threads = Annotated[int, Meta(ge=0, le=100_000)]
Ranks = Annotated[int, Meta(ge=1, le=1_000_000)]
ElementType = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
]
DataType = Literal["fp16", "bf16", "fp32", "fp64", "int8", "uint8"]


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

    storage_type: Literal["local_fs", "parallel_fs", "s3", "aistore", "direct_fs"] = "local_fs"
    storage_root: str = "./"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5:
    """Layout of the datasets of HDF5 files.

    chunk_dims: elements of a chunk in each dimension, the samples of a file first; empty for a contiguous dataset.
    max_shape: largest dimensions of a record in a dataset that can grow; empty for one that cannot.
    """

    chunk_dims: Dims = ()
    num_dset_per_record: Annotated[int, Meta(ge=1, le=10_000)] = 1
    max_shape: Dims = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The files. `record_dims`, where not empty, replaces `record_length_bytes` (`files.py` has exact sizes).

    chunk_size: of HDF5 files, bytes of a square chunk of one sample, where `hdf5.chunk_dims` is empty; 0: none.
    skip_listing: PyTorch's loader computes the names instead of listing the folder.
    """

    format: Format = "tfrecord"
    data_folder: str = "./data/"
    num_files_train: Files = 8
    num_files_eval: Files = 0
    num_samples_per_file: Count = 1
    record_length_bytes: Annotated[float, Meta(ge=1, le=float(MOST))] = 65536
    record_length_bytes_stdev: Number = 0
    record_dims: Dims = ()
    record_element_type: ElementType = "uint8"
    enable_chunking: bool = False
    chunk_size: Size = 0
    hdf5: Hdf5 = field(default_factory=Hdf5)
    compression: Literal["none", "gzip", "lzf", "bz2", "zip", "xz"] = "none"
    compression_level: Annotated[int, Meta(ge=0, le=9)] = 4
    num_subfolders_train: Folders = 0
    num_subfolders_eval: Folders = 0
    file_prefix: Annotated[str, Meta(pattern="^[^/]*$", max_length=200)] = "img"
    skip_listing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The data loader. `read_threads` 0: the training thread reads itself.

    transfer_size: bytes of a request for TFRecord; 0: one request for each record's header and one for its rest; None:
    TensorFlow's 262,144.
    read_type: `memory` keeps every file open and in memory after its first sample.
    preprocess_time: per sample, in the reader.
    """

    data_loader: Literal["tensorflow", "pytorch", "dali"] = "tensorflow"
    batch_size: Count = 1
    batch_size_eval: Count = 1
    read_threads: Threads = 1
    computation_threads: Threads = 1
    prefetch_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 2
    shuffle_size: Size = 1024
    file_shuffle: Shuffle = "off"
    sample_shuffle: Shuffle = "off"
    read_type: Literal["on_demand", "memory"] = "on_demand"
    transfer_size: Size | None = None
    preprocess_time: Distribution = NO_TIME
    odirect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The training loop. `total_training_steps`: of the run; None for all. computation_time: per step, whatever the
    batch size."""

    epochs: Ranks = 1
    total_training_steps: Limit = None
    computation_time: Distribution = NO_TIME
    seed: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 123
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

    time_between_checkpoints: seconds before each checkpoint of a run without training; the absolute value counts.
    num_checkpoints_write, num_checkpoints_read: of a run without training.
    """

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: Count = 1
    epochs_between_checkpoints: Count = 1
    steps_between_checkpoints: Limit = None
    mode: Literal["default", "subset"] = "default"
    fsync: bool = False
    rank_sync: bool = False
    time_between_checkpoints: Annotated[float, Meta(ge=-_SECONDS, le=_SECONDS)] = -1.0
    num_checkpoints_write: Annotated[int, Meta(ge=-1, le=MOST)] = 0
    num_checkpoints_read: Annotated[int, Meta(ge=-1, le=MOST)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The division of a model over ranks. `data` None: R / (tensor * pipeline) with R ranks."""

    tensor: Ranks = 1
    pipeline: Ranks = 1
    data: Limit = None
    zero_stage: Annotated[int, Meta(ge=0, le=3)] = 0


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
    model_size_bytes: Size = 10240
    model_datatype: DataType = "fp16"
    optimizer_datatype: DataType = "fp32"
    optimization_groups: Sizes = ()
    num_layers: Limit = None
    layer_parameters: Sizes = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    transformer: Transformer = field(default_factory=Transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How accelerator utilisation is counted: steps to leave out at both ends of a block, and the least share that
    passes."""

    exclude_start_steps: Size = 1
    exclude_end_steps: Size = 0
    au: Annotated[float, Meta(ge=0, le=1)] = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """Origin of a description: file or shipped name, SHA-256 of its text, and the `KEY=VALUE` given with it."""

    name: str = ""
    sha256: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A validated description. Paths of its files are `storage_root` joined with the folders, as DLIO joins them."""

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
