"""The effect of each reading on the keys of a description: the places where DLIO's code contradicts its documentation.

A rule takes the given keys (full name -> checked value), replaces them by the values that have an effect, and returns
notes. The facts were read from DLIO's code (commit e1919d7, June 2026, and its branch mlperf_storage_v2.0) and from
MLPerf's line of it for v3.0 (DLIO_local_changes, July 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import WHOLE_FILES, Reading
from dxt_replay.workloads.keys import KEYS
from dxt_replay.workloads.note import Note, NoteKind, shown
from dxt_replay.workloads.times import NO_TIME


class Given(dict[str, Any]):
    """Full name of a key -> its checked value, for the keys that the description gives; others have their defaults."""

    def __missing__(self, name: str) -> Any:
        return KEYS[name].default


Rule = Callable[[Given, Mapping[str, Any], bool], Iterator[Note]]
"""(given, unchecked values, whether to follow the code instead of the documentation) -> notes."""

_COMPRESSORS = {"hdf5": ("gzip", "lzf"), "npz": ("zip",), "csv": ("gzip", "bz2", "zip", "xz")}
"""Format -> its compressions, as documented."""

_PER_SAMPLE_LOADERS = ("pytorch", "dali")


def apply_reading(given: Given, raw: Mapping[str, Any], reading: Reading) -> Iterator[Note]:
    """Change `given` to its effect under `reading`; `raw`: the values as the YAML has them.

    Raises: UsageError for values that stop DLIO's code, under the readings that follow it.
    """
    for rule in _MLPERF_RULES if reading == "v3.0" else _RULES:
        yield from rule(given, raw, reading != "documented")


def _note(given: Mapping[str, Any], key: str, kind: NoteKind, why: str) -> Note:
    return Note(key=key, value=shown(given[key]), kind=kind, why=why)


def _drop(given: Given, key: str, why: str) -> Iterator[Note]:
    """Without effect: the default stands."""
    if key in given:
        yield _note(given, key, "without effect", why)
        del given[key]


def _loader(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    trains = given["workflow.train"]
    loader, sampler = given.get("reader.data_loader"), given.get("reader.data_loader_sampler")
    if code and trains and sampler is None and loader in (None, "native_dali", "synthetic"):
        which = "left out" if loader is None else loader
        raise UsageError(
            f"reader.data_loader is {which}: DLIO's code stops before the first epoch then; write tensorflow, pytorch "
            "or dali, or use --reading documented"
        )
    if loader is None:
        given["reader.data_loader"] = given["framework"]
    yield from ()


def _is_iterative(given: Given) -> bool:
    sampler = given.get("reader.data_loader_sampler")
    return sampler == "iterative" or (sampler is None and given["reader.data_loader"] == "tensorflow")


def _file_shuffle(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key = "reader.file_shuffle"
    if not code or key not in given:
        return
    if not _is_iterative(given):
        if given[key] != "off":
            yield from _drop(given, key, "with this loader, files are read in the order of their names in every epoch")
        given[key] = "off"
        return
    if given["dataset.format"] == "tfrecord":
        why = "TensorFlow sorts the files again, so they are read in the order of their names in every epoch"
        yield _note(given, key, "without effect", why)
    elif given[key] != "seed":
        why = "DLIO's code shuffles for any value, off included; random and seed are the same"
        yield _note(given, key, "read as", why)
    given[key] = "seed"


def _sample_shuffle(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key = "reader.sample_shuffle"
    if code and raw.get(key) is False:
        raise UsageError(f"{key}: an unquoted off is the boolean False in YAML, and DLIO's code stops: write 'off'")
    if code and given[key] != "off":
        yield _note(given, key, "without effect", "it changes neither the samples that a rank reads nor their order")


def _compression(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key, level = "dataset.compression", "dataset.compression_level"
    kind, of = given.get(key), given["dataset.format"]
    if kind is not None and code:
        yield from _compression_of_code(given, kind, of)
    elif kind not in (None, "none", *_COMPRESSORS.get(of, ())):
        possible = ", ".join(_COMPRESSORS.get(of, ())) or "nothing"
        yield from _drop(given, key, f"{of} files can be compressed with {possible}")
    if given.get(key) != "gzip":
        yield from _drop(given, level, "only gzip has levels")


def _compression_of_code(given: Given, kind: str, of: str) -> Iterator[Note]:
    key = "dataset.compression"
    if of == "csv" or (of == "hdf5" and kind not in _COMPRESSORS["hdf5"]):
        problem = "writes files that it cannot read again" if kind != "none" else "stops at the word none"
        what = problem if of == "csv" else f"stops, since h5py has no compression {kind}"
        raise UsageError(f"{key} {kind!r} with format {of}: DLIO's code {what}; leave the key out")
    if of != "hdf5":
        if kind != "none":
            yield from _drop(given, key, f"DLIO's code stores {of} files uncompressed whatever it says")
        given[key] = "none"


def _chunks(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    enable, size, dims = "dataset.enable_chunking", "dataset.chunk_size", "dataset.hdf5.chunk_dims"
    of = given["dataset.format"]
    if of != "hdf5":
        for key in (enable, size, dims, "dataset.hdf5.num_dset_per_record", "dataset.hdf5.max_shape"):
            yield from _drop(given, key, f"it is for hdf5 files, and dataset.format is {of}")
    elif given[dims]:
        yield from _drop(given, size, f"{dims} is given too")
    elif not given[enable]:
        yield from _drop(given, size, f"{enable} is off")
    elif not given[size]:
        raise UsageError(f"{enable} is on without {size}: give the bytes of a chunk, such as {size}=65536")


def _read_type(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key = "reader.read_type"
    if not code or key not in given:
        return
    if given["reader.data_loader"] not in _PER_SAMPLE_LOADERS:
        yield from _drop(given, key, "this loader does not look at it")
        return
    if given[key] != "memory":
        why = "DLIO's code takes any value as memory: files stay open, and arrays are read in the first epoch alone"
        yield _note(given, key, "read as", why)
    given[key] = "memory"


def _reader_options(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    of = given["dataset.format"]
    if of != "tfrecord":
        yield from _drop(given, "reader.transfer_size", f"it is for tfrecord files, and dataset.format is {of}")
    elif code and given["reader.preprocess_time"] != NO_TIME:
        yield from _drop(given, "reader.preprocess_time", "DLIO's code does not preprocess tfrecord samples")
    if of not in ("npy", "npz") and given["reader.odirect"]:
        yield from _drop(given, "reader.odirect", f"it is for npy and npz files, and dataset.format is {of}")
    if given["reader.data_loader"] != "native_dali" and given["reader.dont_use_mmap"]:
        yield from _drop(given, "reader.dont_use_mmap", "it is for the loader native_dali")


def _subfolders(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    for key in ("dataset.num_subfolders_train", "dataset.num_subfolders_eval"):
        if given[key] != 1:
            continue
        if code and given["workflow.train"]:
            raise UsageError(f"{key} 1: DLIO writes the files into one folder and then stops: use 0, or 2 or more")
        yield _note(given, key, "read as", "one sub-folder is none: the files lie in the folder itself")
        given[key] = 0


def _workflow(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    trains = given["workflow.train"]
    counts = [given[f"checkpoint.num_checkpoints_{each}"] or 0 for each in ("write", "read")]
    saves = given["workflow.checkpoint"] and (max(counts) > 0 or not given["workflow.generate_data"])
    if not trains and not saves:
        only = "it only writes its data set" if given["workflow.generate_data"] else "it has no I/O"
        raise UsageError(
            f"it neither trains nor writes checkpoints without training, so {only}: switch one on, such as with "
            "workflow.train=true (the data set itself is made by dxt-replay stage)"
        )
    if given["workflow.generate_data"]:
        why = "writing the data set is not part of the capture: dxt-replay stage makes it"
        yield _note(given, "workflow.generate_data", "not expressed", why)
    if not trains and given["workflow.evaluation"]:
        yield from _drop(given, "workflow.evaluation", "without workflow.train, DLIO does not evaluate")


def _storage(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key = "storage.storage_type"
    kind = given[key]
    if kind == "parallel_fs" and code:
        raise UsageError(f"{key} parallel_fs: DLIO's code stops: use local_fs")
    if kind in ("s3", "aistore"):
        why = "requests to an object store cannot be replayed; the objects are taken as files"
        yield Note(key=key, value=shown(kind), kind="not expressed", why=why)
    elif kind == "direct_fs":
        why = "that its reads bypass the page cache; replay with run --direct"
        yield Note(key=key, value=shown(kind), kind="not expressed", why=why)


def _checkpoint(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    key = "checkpoint.time_between_checkpoints"
    pause = given.get(key, -1)
    if code and pause < 0 and not given["workflow.train"]:
        why = "DLIO's code sleeps for the absolute value, 1 s where the key is left out"
        yield Note(key=key, value=shown(pause), kind="read as", why=why)
    if given["workflow.checkpoint"] and given["framework"] == "tensorflow":
        why = (
            "TensorFlow's checkpoints are approximate: their temporary files and renames, and what is read back while "
            "they are written, are left out, and each tensor is one write"
        )
        yield _note(given, "workflow.checkpoint", "read as", why)
    given[key] = float(abs(pause)) if code else float(max(pause, 0))
    for count in ("checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"):
        given[count] = given[count] or 0


def _record(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    """A record of elements larger than a byte: DLIO takes the length as a number of elements."""
    element = given["dataset.record_element_type"]
    key = "dataset.record_element_type"
    if given["dataset.format"] in ("jpeg", "png") and element != "uint8":
        yield from _drop(given, key, "images have elements of uint8")
    elif element not in ("uint8", "int8", "bool") and not given["dataset.record_dims"]:
        why = "DLIO writes record_length_bytes elements of this type, not bytes"
        yield _note(given, key, "read as", why)
    if given["dataset.record_dims"]:
        yield from _drop(given, "dataset.record_length_bytes", "dataset.record_dims is given too")


def _mlperf(given: Given, raw: Mapping[str, Any], code: bool) -> Iterator[Note]:
    """The behaviour of MLPerf Storage v3.0's line of DLIO with PyTorch, which its own workloads use."""
    trains, of, shuffle = given["workflow.train"], given["dataset.format"], "reader.file_shuffle"
    framework, loader = given["framework"], given["reader.data_loader"]
    if framework != "pytorch" or (trains and loader != "pytorch"):
        raise UsageError(
            f"framework {framework} with reader.data_loader {loader}: the reading v3.0 is known for pytorch alone; use "
            "another --reading"
        )
    if shuffle in given:
        if given[shuffle] != "seed":
            why = "MLPerf's code shuffles for any value, off included; random and seed are the same"
            yield _note(given, shuffle, "read as", why)
        given[shuffle] = "seed"
    if of in WHOLE_FILES:
        yield from _drop(given, "reader.read_type", "MLPerf's readers read a file again for each of its samples")
    else:
        yield from _read_type(given, raw, code)
    if trains and given["reader.read_threads"] == 1:
        why = "that MLPerf's code starts up to 8 readers for 1, as many as a rank has cores: the capture has 1"
        yield Note(key="reader.read_threads", value="1", kind="not expressed", why=why)
    if given["checkpoint.num_checkpoints_read"]:
        why = "that 4 threads read a checkpoint at once, a quarter each: the capture reads one quarter after the other"
        yield _note(given, "checkpoint.num_checkpoints_read", "not expressed", why)
    kind = raw.get("storage.storage_type")
    if trains and of in WHOLE_FILES and kind in ("s3", "aistore", "direct_fs"):
        why = "that its readers fetch up to 64 files at once, ahead of the batches: files are read as on local_fs"
        yield Note(key="storage.storage_type", value=shown(kind), kind="not expressed", why=why)
    given["checkpoint.fsync"] = True


_RULES: tuple[Rule, ...] = (
    _workflow, _storage, _loader, _file_shuffle, _sample_shuffle, _compression, _chunks, _read_type, _reader_options,
    _subfolders, _checkpoint, _record,
)  # fmt: skip

_MLPERF_RULES = (*(rule for rule in _RULES if rule not in (_file_shuffle, _read_type)), _mlperf)
