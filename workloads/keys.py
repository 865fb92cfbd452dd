"""All keys of DLIO's YAML by their full names: those of the table in `description.py`, and those that are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from dxt_replay.workloads.description import Dead, Rule, Workload, WorkloadSource
from dxt_replay.workloads.note import NoteKind
from dxt_replay.workloads.times import Distribution
from dxt_replay.workloads.value_types import ValueType, value_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: its full name, the values that it takes, its default, and the readings without effect (`dead`)."""

    name: str
    takes: ValueType
    default: Any
    dead: Dead


def sections_of(section: type) -> dict[str, type]:
    """Name -> class of the sections below a section of the table."""
    hints = get_type_hints(section)
    return {
        each.name: hints[each.name]
        for each in fields(section)
        if is_dataclass(hints[each.name]) and hints[each.name] not in (Distribution, WorkloadSource)
    }


def _keys_below(section: type, prefix: str) -> Iterator[Key]:
    plain, rules, inner = get_type_hints(section), get_type_hints(section, include_extras=True), sections_of(section)
    for each in fields(section):
        name = prefix + each.name
        if each.name in inner:
            yield from _keys_below(inner[each.name], f"{name}.")
        elif name not in ("reading", "source"):
            rule = next(iter(getattr(rules[each.name], "__metadata__", ())), Rule())
            takes = rule.takes or value_type(plain[each.name], rule.least, rule.most)
            yield Key(name=name, takes=takes, default=each.default, dead=rule.dead)


KEYS: Mapping[str, Key] = {key.name: key for key in _keys_below(Workload, "")}
"""Full name -> key, for all keys that have a value in a `Workload`, in the order of DLIO's own files."""

NOT_FOLLOWED: Mapping[str, tuple[NoteKind, str]] = {
    "dataset.record_element_bytes": ("without effect", "DLIO computes it from record_element_type"),
    "reader.file_access": ("without effect", "DLIO stores it and nothing reads it"),
    "checkpoint.type": (
        "without effect", "DLIO stores it and nothing reads it: which ranks write follows from model.parallelism"
    ),
    "workflow.debug": ("without effect", "DLIO does not know it"),
    "storage.storage_options": (
        "not expressed", "requests to an object store cannot be expressed: the data set is taken as files"
    ),
    "reader.data_loader_classname": (
        "not expressed", "what your own class reads is not known: the loader is the one of data_loader"
    ),
    "reader.reader_classname": (
        "not expressed", "what your own class reads is not known: the reader is the one of the format"
    ),
    "checkpoint.checkpoint_mechanism_classname": (
        "not expressed", "what your own class writes is not known: taken as the framework's"
    ),
    "dataset.num_files_generated": ("not expressed", "the names of the files have num_files_train in its place"),
    "dataset.parquet": (
        "not expressed", "Parquet files cannot be described by DLIO's main line; see the shipped flux and dlrm"
    ),
    **dict.fromkeys(
        (
            "dataset.keep_files", "dataset.data_gen_method",
            "reader.pin_memory", "reader.multiprocessing_context", "reader.transformed_record_dims",
            "reader.transformed_record_element_type", "reader.write_threads", "checkpoint.randomize_tensor",
            "checkpoint.ksm", "workflow.profiling", "workflow.query", "output.folder", "output.log_file",
            "profiling.profiler", "profiling.iostat_devices", "storage.storage_library",
            "storage.post_generation_settle_seconds",
        ),
        ("not I/O", "it changes no request"),
    ),
}  # fmt: skip
"""Keys without a value in a `Workload`: the kind of the note on them, and why.

without effect: under any reading. not expressed: the note says what is assumed instead. not I/O: memory, logging,
profilers, names of output files."""

SECRET = "storage.storage_options"
"""The section that may hold access keys."""

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
"""Spellings of DLIO's documentation and of its version 1 -> the key that DLIO's code reads."""
