"""Plain YAML values to a checked `Workload`, with a note on each key that it does not follow.

What a key does follows from DLIO's code: its main (commit e1919d7, June 2026) for TensorFlow and checkpoints, MLPerf
Storage v3.0's line of it (DLIO_local_changes, f6796ed, July 2026) for PyTorch. What the code ignores and DLIO's
documentation describes (`record_length`, `chunk_size`, `fsync`, preprocessing of TFRecord) is done. A description that
DLIO's code would not follow although it says which bytes are read is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, inspect

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import (
    FAMILY_PARAMETERS,
    MOST,
    NO_TIME,
    WHOLE_FILES,
    Distribution,
    Family,
    Note,
    NoteKind,
    Workload,
    WorkloadSource,
    shown,
)
from dxt_replay.workloads.files import largest_shape

NOT_FOLLOWED: Mapping[str, tuple[NoteKind, str]] = {
    "dataset.record_element_bytes": ("without effect", "DLIO computes it from record_element_type"),
    "reader.file_access": ("without effect", "DLIO stores it and nothing reads it"),
    "reader.dont_use_mmap": ("without effect", "it is for the loader native_dali"),
    "reader.data_loader_sampler": ("without effect", "the order of the samples is the loader's"),
    "checkpoint.recovery_rank_shift": ("without effect", "DLIO stores it under a name that nothing reads"),
    "checkpoint.type": (
        "without effect", "DLIO stores it and nothing reads it: which ranks write follows from model.parallelism"
    ),
    "workflow.debug": ("without effect", "DLIO does not know it"),
    "reading": ("without effect", "there is one reading of DLIO"),
    "storage.storage_options": (
        "not expressed", "requests to an object store cannot be expressed: the data set is taken as files"
    ),
    **dict.fromkeys(
        ("reader.data_loader_classname", "reader.reader_classname", "checkpoint.checkpoint_mechanism_classname"),
        ("not expressed", "what your own class does is not known: taken as what DLIO has in its place"),
    ),
    "dataset.num_files_generated": ("not expressed", "the names of the files have num_files_train in its place"),
    "dataset.listing_validation_interval": ("not expressed", "looking for the files is not part of the capture"),
    **dict.fromkeys(
        (
            "dataset.keep_files", "dataset.data_gen_method", "dataset.generation_buffer_size",
            "dataset.record_length_bytes_resize", "dataset.record_length_resize",
            "reader.pin_memory", "reader.multiprocessing_context", "reader.transformed_record_dims",
            "reader.transformed_record_element_type", "reader.write_threads", "checkpoint.randomize_tensor",
            "checkpoint.ksm", "workflow.profiling", "workflow.query", "output.folder", "output.log_file",
            "profiling.profiler", "profiling.iostat_devices", "storage.storage_library",
            "storage.post_generation_settle_seconds",
        ),
        ("not I/O", "it changes no request"),
    ),
}  # fmt: skip
"""Keys without a value in a `Workload`: the kind of the note on them, and why. not expressed: the note says what is
assumed instead. not I/O: memory, logging, profilers, names of output files."""

SECRET = "storage.storage_options"
"""The section that may hold access keys."""

SPELLINGS: Mapping[str, str] = {
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.num_dset_per_record": "dataset.hdf5.num_dset_per_record",
    "dataset.chunk_dims": "dataset.hdf5.chunk_dims",
    "dataset.max_shape": "dataset.hdf5.max_shape",
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
}
"""Spellings of DLIO's documentation and of its version 1 (MLPerf Storage v0.5 and v1.0) -> the key."""

REFERENCE = "${"
"""Begin of a reference in a text: one that is left refers to what the description does not hold."""

_MOST_S = 1e9
"""Longest time in seconds, 30 years: its nanoseconds fit 64 bits."""

_MOST_BYTES = 1 << 60
"""Most bytes of a data set: sums stay far below 64 bits."""


_Deviation = Annotated[float, Meta(ge=0, le=_MOST_S)]


class Key:
    """One key of DLIO: its full name, type, default, and `wanted`, which completes "... is not" in an error."""

    def __init__(self, name: str, hint: Any, default: Any) -> None:
        self.name, self.hint, self.default = name, hint, default
        kind = inspect.type_info(hint)
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        self.optional = isinstance(kind, inspect.UnionType)
        if isinstance(kind, inspect.UnionType):
            kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
        self.kind, self.wanted = kind, _wanted(hint, kind, self.optional)

    def value(self, value: Any) -> Any:
        """The value from YAML with its type. Raises: UsageError for values that the key does not take."""
        if isinstance(value, str) and REFERENCE in value:
            raise UsageError(f"{self.name}: {shown(value)} refers to what this file does not hold: write the value")
        try:
            return self._converted(value)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise UsageError(f"{self.name}: {shown(value)} is not {self.wanted}") from error

    def _converted(self, value: Any) -> Any:
        kind = self.kind
        if isinstance(kind, inspect.DataclassType):
            return _times(value)
        if isinstance(kind, inspect.LiteralType) and "off" in kind.values and value is False:
            return "off"  # YAML reads an unquoted off as a boolean
        if isinstance(kind, inspect.IntType):
            value = None if self.optional and value == -1 else _whole(value)
        elif isinstance(kind, inspect.VarTupleType):
            value = list(map(_whole, value)) if isinstance(value, list | tuple) else () if value is None else value
        elif isinstance(kind, inspect.StrType):
            value = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            if isinstance(value, str) and ("\0" in value or len(value.encode()) > 4000):
                raise ValueError
        found = msgspec.convert(value, self.hint)
        if (
            isinstance(kind, inspect.VarTupleType)
            and cast(inspect.IntType, kind.item_type).ge
            and math.prod(found) > MOST
        ):
            raise ValueError
        return value if isinstance(kind, inspect.FloatType) else found


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wanted(hint: Any, kind: inspect.Type, optional: bool) -> str:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        name = "whole number" if isinstance(kind, inspect.IntType) else "number"
        bounds = f"of {kind.ge} or more" if kind.le == MOST else f"from {kind.ge} to {kind.le}"
        return f"a {name} {bounds}{', or -1 for none' if optional else ''}"
    if isinstance(kind, inspect.VarTupleType):
        return f"a list of whole numbers of {cast(inspect.IntType, kind.item_type).ge} or more, such as [4, 2]"
    if isinstance(kind, inspect.LiteralType):
        literal = next(each for each in (hint, *get_args(hint)) if get_origin(each) is Literal)
        return f"one of {', '.join(get_args(literal))}"
    if isinstance(kind, inspect.DataclassType):
        families = [f"{{type: {name}, {', '.join(FAMILY_PARAMETERS[name])}}}" for name in FAMILY_PARAMETERS][1:]
        return f"a number of seconds, {{mean}}, {{mean, stdev}} or one of {', '.join(families)}"
    if isinstance(kind, inspect.StrType):
        return "part of a file's name: text of 200 characters at most, without /" if kind.pattern else "text"
    return "True or False"


def _times(value: Any) -> Distribution:
    given = dict(value) if isinstance(value, dict) else {} if value is None else {"mean": value}
    if not given:
        return NO_TIME
    family = given.pop("type", "normal" if "stdev" in given else "constant")
    names = FAMILY_PARAMETERS.get(cast(Family, family), ()) if isinstance(family, str) else ()
    if not names or set(given) != set(names):
        raise ValueError
    numbers = [msgspec.convert(given[name], float) for name in names]
    negative = [name for name, each in zip(names, numbers, strict=True) if each < 0]
    if not all(-_MOST_S <= each <= _MOST_S for each in numbers) or {"stdev", "shape", "scale", "lam"} & set(negative):
        raise ValueError
    if family == "uniform" and numbers[0] > numbers[1]:
        raise ValueError
    # A constant keeps its number as it is written, others are floats.
    only = family == "constant" and not isinstance(value, dict)
    return Distribution(family=cast(Family, family), parameters=(value,) if only else tuple(numbers))


def _sections(section: type) -> dict[str, type]:
    """Name -> class of the sections below a section."""
    return {
        name: hint
        for name, hint in get_type_hints(section).items()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in (Distribution, WorkloadSource)
    }


def _keys_below(section: Any, prefix: str = "") -> Iterator[Key]:
    hints, inner = get_type_hints(section, include_extras=True), _sections(section)
    for each in dataclasses.fields(section):
        name = prefix + each.name
        if each.name in inner:
            yield from _keys_below(inner[each.name], f"{name}.")
        elif name != "source":
            yield Key(name, hints[each.name], each.default)


KEYS: Mapping[str, Key] = {key.name: key for key in _keys_below(Workload)}
"""Full name -> key, for all keys that have a value in a `Workload`, in the order of DLIO's own files."""

_WITH_KEYS = frozenset(name.split(".")[0] for name in {*KEYS, *NOT_FOLLOWED} if "." in name)

SECTIONS = _WITH_KEYS | {"data_reader", "framework"}
"""Top-level keys of a description; a document with none of them is not a description."""

_DEVIATIONS = {f"{name}_stdev": name for name, key in KEYS.items() if key.hint is Distribution}
"""Key of a standard deviation beside a time -> the key of the time."""


def workload_from_values(
    values: Mapping[Any, Any], source: WorkloadSource | None = None
) -> tuple[Workload, tuple[Note, ...]]:
    """The workload that `values` (sections of keys, as in DLIO's YAML) describes, and notes.

    Raises: UsageError for a value that its key cannot have, for keys that contradict each other, and for keys that DLIO
    ignores although they say which bytes are read.
    """
    notes: list[Note] = []
    given = _Given({name: key.default for name, key in KEYS.items()})
    for name, value in _times_with_deviation(_one_spelling(dict(_flat(values)))).items():
        if name in KEYS:
            given[name] = KEYS[name].value(value)
        else:
            notes.append(_left_out(name, value))
    given.setdefault("reader.data_loader", given["framework"])
    notes += _effects(given)
    workload = _built(Workload, "", given, source=source or WorkloadSource())
    _check(workload)
    return workload, tuple(notes)


class _Given(dict[str, Any]):
    """Full name of a key -> its checked value, for the keys that the description gives; others have their defaults."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__()
        self._defaults = defaults

    def __missing__(self, name: str) -> Any:
        return self._defaults[name]

    def note(self, key: str, kind: NoteKind, why: str) -> Note:
        """A note on the value that the key has."""
        return Note(key=key, value=shown(self[key]), kind=kind, why=why)


def _effects(given: _Given) -> Iterator[Note]:
    """Change `given` to what has an effect, and say what has none, or another one than its text says."""
    trains, of, loader = given["workflow.train"], given["dataset.format"], given["reader.data_loader"]
    yield from _phases(given)
    if given["storage.storage_type"] in ("s3", "aistore"):
        why = "requests to an object store cannot be replayed; the objects are taken as files"
        yield given.note("storage.storage_type", "not expressed", why)
    elif given["storage.storage_type"] == "direct_fs":
        why = "that its reads bypass the page cache; replay with run --api direct"
        yield given.note("storage.storage_type", "not expressed", why)
    if given["dataset.compression"] not in (("none", "gzip", "lzf") if of == "hdf5" else ("none",)):
        raise UsageError(
            f"dataset.compression {given['dataset.compression']} with dataset.format {of}: DLIO compresses hdf5 alone, "
            "with gzip or lzf; leave the key out"
        )
    key, keeps = "reader.read_type", loader == "dali" or (loader == "pytorch" and of not in WHOLE_FILES)
    if key in given and (given[key] == "memory") != keeps:
        does = "takes any value for memory" if keeps else "reads a file again for each of its samples"
        raise UsageError(f"{key} {given[key]}: DLIO {does} with loader {loader} and format {of}; leave the key out")
    key = "reader.file_shuffle"
    if given.get(key) == "off":
        yield given.note(key, "read as", "DLIO shuffles for any value, off included; leave it out")
        given[key] = "seed"
    size, dims = "dataset.chunk_size", "dataset.hdf5.chunk_dims"
    hdf5_alone = ("dataset.enable_chunking", size, dims, "dataset.hdf5.num_dset_per_record", "dataset.hdf5.max_shape")
    for idle, why, *keys in (
        (of != "hdf5", f"it is for hdf5 files, and dataset.format is {of}", *hdf5_alone),
        (given[dims], f"{dims} is given too", size),
        (not given["dataset.enable_chunking"], "dataset.enable_chunking is off", size),
        (given["dataset.compression"] != "gzip", "only gzip has levels", "dataset.compression_level"),
        (of != "tfrecord", f"it is for tfrecord files, and dataset.format is {of}", "reader.transfer_size"),
        (of not in ("npy", "npz"), f"it is for npy and npz files, and dataset.format is {of}", "reader.odirect"),
        (of in ("jpeg", "png"), "images have elements of uint8", "dataset.record_element_type"),
    ):
        for key in keys:
            if idle and key in given:
                yield given.note(key, "without effect", why)
                del given[key]
    if given["dataset.enable_chunking"] and not (given[size] or given[dims]):
        raise UsageError(
            f"dataset.enable_chunking is on without {size}: give the bytes of a chunk, such as {size}=65536"
        )
    yield from _record(given)
    if trains and loader == "pytorch" and given["reader.read_threads"] == 1:
        why = "that MLPerf Storage starts up to 8 readers for 1, as many as a rank has cores: the capture has 1"
        yield given.note("reader.read_threads", "not expressed", why)
    if given["workflow.checkpoint"] and given["framework"] == "tensorflow":
        why = (
            "TensorFlow's checkpoints are approximate: their temporary files and renames, and what is read back while "
            "they are written, are left out, and each tensor is one write"
        )
        yield given.note("workflow.checkpoint", "read as", why)


def _phases(given: _Given) -> Iterator[Note]:
    trains, makes_data = given["workflow.train"], given["workflow.generate_data"]
    counts = [given[f"checkpoint.num_checkpoints_{each}"] for each in ("write", "read")]
    if not trains and not (given["workflow.checkpoint"] and max(counts) > 0):
        only = "it only writes its data set" if makes_data else "it has no I/O"
        raise UsageError(
            f"it neither trains nor writes checkpoints without training, so {only}: set workflow.train=true, or "
            "workflow.checkpoint with checkpoint.num_checkpoints_write (the data set is made by dxt-replay stage)"
        )
    if not trains and given["workflow.evaluation"]:
        raise UsageError("workflow.evaluation without workflow.train: DLIO does not evaluate then; leave it out")
    if makes_data:
        why = "writing the data set is not part of the capture: dxt-replay stage makes it"
        yield given.note("workflow.generate_data", "not expressed", why)


def _record(given: _Given) -> Iterator[Note]:
    dims, element, length = (f"dataset.record_{name}" for name in ("dims", "element_type", "length_bytes"))
    item_bytes = np.dtype(given[element]).itemsize
    if given[dims] and length in given:
        if (told := math.prod(given[dims]) * item_bytes) != given[length]:
            raise UsageError(
                f"{dims} has {told} bytes and {length} is {given[length]:.12g}: DLIO reads {dims} alone; leave one out"
            )
        del given[length]
    if item_bytes > 1 and not given[dims]:
        yield given.note(element, "read as", "DLIO writes record_length_bytes elements of this type, not bytes")


def _flat(values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """(full name, value) of each key that has a value."""
    if values.get("data_reader") is not None and "reader" in values:
        raise UsageError("the description has both data_reader and reader: DLIO reads data_reader alone; keep one")
    for section, keys in values.items():
        name = "reader" if section == "data_reader" else str(section)
        if keys is None:
            continue
        if name == "model" and isinstance(keys, str):  # DLIO's version 1 and MLPerf Storage v1.0 write it so
            yield "model.name", keys
        elif name not in _WITH_KEYS and not isinstance(keys, Mapping):
            yield name, keys
        else:
            yield from _keys_of(name, keys)


def _keys_of(section: str, keys: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(keys, Mapping):
        raise UsageError(f"{section}: {shown(keys)} is not a section: write its keys below it, indented")
    for key, value in keys.items():
        name = f"{section}.{key}"
        if name in ("dataset.hdf5", "model.parallelism", "model.transformer", "output.metric"):
            yield from _keys_of(name.removeprefix("output."), {} if value is None else value)
        elif value is not None:
            yield name, value


def _one_spelling(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with each key under one name. Raises: UsageError for two spellings with two values."""
    spelled: dict[str, Any] = {}
    for name, value in raw.items():
        right = SPELLINGS.get(name, name)
        if right in spelled and spelled[right] != value:
            first = next(each for each in raw if SPELLINGS.get(each, each) == right)
            raise UsageError(f"{first} {shown(spelled[right])} and {name} {shown(value)} are one key: leave one out")
        spelled[right] = value
    return spelled


def _times_with_deviation(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with each standard deviation moved into the map of its time, where DLIO puts it."""
    merged = {name: value for name, value in values.items() if name not in _DEVIATIONS}
    for name, time in _DEVIATIONS.items():
        if name in values:
            deviation = Key(name, _Deviation, None).value(values[name])
            mean = merged.get(time, 0)
            merged[time] = (
                {**mean, "stdev": deviation} if isinstance(mean, dict) else {"mean": mean, "stdev": deviation}
            )
    return merged


def _left_out(name: str, value: Any) -> Note:
    """The note on a key that is not followed."""
    outer = ".".join(name.split(".")[:2])
    known = sorted({*KEYS, *NOT_FOLLOWED, *SPELLINGS, *_DEVIATIONS})
    near = get_close_matches(name, known, n=1, cutoff=0.8)
    near += [each for each in known if each.split(".")[-1] == name.split(".")[-1]]
    unknown: tuple[NoteKind, str] = "unknown", f"DLIO ignores it{f'; did you mean {near[0]}?' if near else ''}"
    kind, why = NOT_FOLLOWED.get(outer, unknown)
    if name.startswith("hydra"):
        kind, why = "not I/O", "it changes no request"
    # Storage options hold keys of object stores, which must not appear on a terminal or in a capture.
    return Note(key=name, value="..." if outer == SECRET else shown(value), kind=kind, why=why)


def _built(section: Any, prefix: str, given: Mapping[str, Any], **more: Any) -> Any:
    """The section below `prefix`, built from the given keys; `more`: further fields."""
    inner = {name: _built(each, f"{prefix}{name}.", given) for name, each in _sections(section).items()}
    names = [each.name for each in dataclasses.fields(section)]
    return section(**inner, **{name: given[prefix + name] for name in names if prefix + name in given}, **more)


def _check(workload: Workload) -> None:
    """Raises: UsageError for keys that contradict each other."""
    data, reader, saving, model = workload.dataset, workload.reader, workload.checkpoint, workload.model
    loader, parallel, dims, sets = (
        reader.data_loader,
        model.parallelism,
        data.record_dims,
        data.hdf5.num_dset_per_record,
    )
    trains, chunk = workload.workflow.train, data.hdf5.chunk_dims
    largest = largest_shape(data)
    side = math.sqrt(data.record_length_bytes)
    elements = math.prod(dims) if dims else (side + 5 * data.record_length_bytes_stdev / side) ** 2
    samples = data.num_samples_per_file * max(data.num_files_train + data.num_files_eval, 1)
    for wrong, said in (
        (
            trains and loader in ("tensorflow", "pytorch") and loader != workload.framework,
            f"reader.data_loader {loader} does not go with framework {workload.framework}: DLIO runs a framework with "
            "its own loader or with dali",
        ),
        (
            trains and loader == "pytorch" and data.format == "tfrecord",
            "dataset.format tfrecord does not go with reader.data_loader pytorch: use tensorflow or dali",
        ),
        (
            trains and loader == "tensorflow" and not reader.read_threads,
            "reader.read_threads 0 is for pytorch: tensorflow reads with at least 1 thread",
        ),
        (
            dims and data.record_length_bytes_stdev,
            "dataset.record_dims and dataset.record_length_bytes_stdev are both given: records of given dimensions "
            "have one size; leave one out",
        ),
        (
            data.format in ("jpeg", "png") and dims and len(dims) != 2,
            f"dataset.record_dims {list(dims)}: a {data.format} image has 2 dimensions",
        ),
        (
            sets > 1 and (not dims or dims[0] % sets),
            f"dataset.hdf5.num_dset_per_record {sets} needs dataset.record_dims, whose first dimension is a multiple "
            "of it",
        ),
        (
            8 * elements * samples > _MOST_BYTES,
            "the data set would be larger than 1 EiB: give fewer files (dataset.num_files_train), samples "
            "(dataset.num_samples_per_file) or smaller records (dataset.record_length_bytes)",
        ),
        (
            chunk and (len(chunk) != len(largest) or any(map(int.__gt__, chunk, largest))),
            f"dataset.hdf5.chunk_dims {list(chunk)} is not a part of a dataset of {list(largest)}: it needs as many "
            "dimensions, samples of a file first, and none may be larger",
        ),
        (
            model.num_layers is not None and model.num_layers < parallel.pipeline,
            f"model.num_layers {model.num_layers} is less than model.parallelism.pipeline {parallel.pipeline}: each "
            "stage needs a layer",
        ),
        (
            parallel.pipeline > 1 and parallel.zero_stage == 3,
            "model.parallelism.zero_stage 3 does not go with model.parallelism.pipeline above 1",
        ),
        (
            parallel.data is not None and saving.mode == "default",
            "model.parallelism.data is for checkpoint.mode subset; else it follows from the ranks: leave it out",
        ),
        (
            parallel.data is None and saving.mode == "subset",
            "checkpoint.mode subset needs model.parallelism.data, the copies that the whole job would have",
        ),
        (
            trains and not data.num_files_train,
            "dataset.num_files_train is 0, so there is nothing to train on: give at least 1",
        ),
        (
            workload.workflow.evaluation and not data.num_files_eval,
            "workflow.evaluation is on and dataset.num_files_eval is 0: give at least 1, or switch it off",
        ),
        (
            0 < saving.num_checkpoints_write < saving.num_checkpoints_read,
            f"checkpoint.num_checkpoints_read {saving.num_checkpoints_read} is more than "
            f"checkpoint.num_checkpoints_write {saving.num_checkpoints_write}: only checkpoints that were written can "
            "be read",
        ),
    ):
        if wrong:
            raise UsageError(said)


def check_ranks(workload: Workload, ranks: int) -> None:
    """Raises: UsageError for a number of ranks over which the model of the checkpoints cannot be divided."""
    parallel = workload.model.parallelism
    one_copy = parallel.tensor * parallel.pipeline
    if not workload.workflow.checkpoint:
        return
    if workload.checkpoint.mode == "default" and ranks % one_copy:
        raise UsageError(
            f"{ranks} ranks are not a multiple of model.parallelism.tensor * pipeline = {one_copy}: give --ranks "
            f"{max(ranks // one_copy, 1) * one_copy}, or checkpoint.mode=subset with model.parallelism.data"
        )
    if parallel.data is not None and parallel.data * one_copy < ranks:
        raise UsageError(
            f"{ranks} ranks are more than model.parallelism.tensor * pipeline * data = {parallel.data * one_copy}: "
            "give fewer ranks or a larger model.parallelism.data"
        )
