"""The effect of each reading on the keys of a description: the places where DLIO's code contradicts its documentation.

A rule takes the given keys (full name -> checked value), replaces them by the values that have an effect, and yields
notes. The facts were read from DLIO's code (commit e1919d7, June 2026, and its branch mlperf_storage_v2.0) and from
MLPerf's line of it for v3.0 (DLIO_local_changes, July 2026).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import NO_TIME, WHOLE_FILES, Note, NoteKind, Reading, shown

_COMPRESSORS = {"hdf5": ("gzip", "lzf"), "npz": ("zip",), "csv": ("gzip", "bz2", "zip", "xz")}
"""Format -> its compressions, as documented."""


class Given(dict[str, Any]):
    """Full name of a key -> its checked value, for the keys that the description gives; others have their defaults."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__()
        self._defaults = defaults

    def __missing__(self, name: str) -> Any:
        return self._defaults[name]

    def note(self, key: str, kind: NoteKind, why: str) -> Note:
        """A note on the value that the key has."""
        return Note(key=key, value=shown(self[key]), kind=kind, why=why)

    def drop(self, why: str, *keys: str) -> Iterator[Note]:
        """Keys without effect: their defaults stand, and those that were given get a note."""
        for key in keys:
            if key in self:
                yield self.note(key, "without effect", why)
                del self[key]


def apply_reading(given: Given, raw: Mapping[str, Any], reading: Reading) -> Iterator[Note]:
    """Change `given` to its effect under `reading`; `raw`: the values as the YAML has them.

    Raises: UsageError for values that stop DLIO's code, under the readings that follow it.
    """
    code, mlperf = reading != "documented", reading == "v3.0"
    yield from _phases(given)
    yield from _storage(given, code)
    loader = given.get("reader.data_loader")
    stops = loader in (None, "native_dali", "synthetic") and given.get("reader.data_loader_sampler") is None
    if code and given["workflow.train"] and stops:
        raise UsageError(
            f"reader.data_loader is {loader or 'left out'}: DLIO's code stops before the first epoch then; write "
            "tensorflow, pytorch or dali, or use --reading documented"
        )
    given.setdefault("reader.data_loader", given["framework"])
    if code and not mlperf and "reader.file_shuffle" in given:
        yield from _file_shuffle_of_code(given)
    if code and raw.get("reader.sample_shuffle") is False:
        raise UsageError(
            "reader.sample_shuffle: an unquoted off is the boolean False in YAML, and DLIO's code stops: write 'off'"
        )
    if code and given["reader.sample_shuffle"] != "off":
        why = "it changes neither the samples that a rank reads nor their order"
        yield given.note("reader.sample_shuffle", "without effect", why)
    yield from _compression(given, code)
    yield from _chunks(given)
    if code and not mlperf:
        yield from _read_type_of_code(given)
    yield from _of_some_formats(given, code)
    yield from _checkpoint(given, code)
    yield from _record(given)
    if mlperf:
        yield from _mlperf(given, raw)


def _phases(given: Given) -> Iterator[Note]:
    trains = given["workflow.train"]
    counts = [max(given[f"checkpoint.num_checkpoints_{each}"], 0) for each in ("write", "read")]
    saves = given["workflow.checkpoint"] and (max(counts) > 0 or not given["workflow.generate_data"])
    if not trains and not saves:
        only = "it only writes its data set" if given["workflow.generate_data"] else "it has no I/O"
        raise UsageError(
            f"it neither trains nor writes checkpoints without training, so {only}: switch one on, such as with "
            "workflow.train=true (the data set itself is made by dxt-replay stage)"
        )
    if given["workflow.generate_data"]:
        why = "writing the data set is not part of the capture: dxt-replay stage makes it"
        yield given.note("workflow.generate_data", "not expressed", why)
    if not trains and given["workflow.evaluation"]:
        yield from given.drop("without workflow.train, DLIO does not evaluate", "workflow.evaluation")


def _storage(given: Given, code: bool) -> Iterator[Note]:
    key = "storage.storage_type"
    if given[key] == "parallel_fs" and code:
        raise UsageError(f"{key} parallel_fs: DLIO's code stops: use local_fs")
    if given[key] in ("s3", "aistore"):
        why = "requests to an object store cannot be replayed; the objects are taken as files"
        yield given.note(key, "not expressed", why)
    elif given[key] == "direct_fs":
        why = "that its reads bypass the page cache; replay with run --api direct"
        yield given.note(key, "not expressed", why)


def _file_shuffle_of_code(given: Given) -> Iterator[Note]:
    key, sampler = "reader.file_shuffle", given.get("reader.data_loader_sampler")
    if sampler != "iterative" and (sampler is not None or given["reader.data_loader"] != "tensorflow"):
        if given[key] != "off":
            why = "with this loader, files are read in the order of their names in every epoch"
            yield given.note(key, "without effect", why)
        given[key] = "off"
        return
    if given["dataset.format"] == "tfrecord":
        why = "TensorFlow sorts the files again, so they are read in the order of their names in every epoch"
        yield given.note(key, "without effect", why)
    elif given[key] != "seed":
        why = "DLIO's code shuffles for any value, off included; random and seed are the same"
        yield given.note(key, "read as", why)
    given[key] = "seed"


def _compression(given: Given, code: bool) -> Iterator[Note]:
    key, kind, of = "dataset.compression", given.get("dataset.compression"), given["dataset.format"]
    possible = _COMPRESSORS.get(of, ())
    if kind is not None and code:
        if of == "csv" or (of == "hdf5" and kind not in possible):
            problem = "writes files that it cannot read again" if kind != "none" else "stops at the word none"
            what = problem if of == "csv" else f"stops, since h5py has no compression {kind}"
            raise UsageError(f"{key} {kind!r} with format {of}: DLIO's code {what}; leave the key out")
        if of != "hdf5":
            if kind != "none":
                yield from given.drop(f"DLIO's code stores {of} files uncompressed whatever it says", key)
            given[key] = "none"
    elif kind not in (None, "none", *possible):
        yield from given.drop(f"{of} files can be compressed with {', '.join(possible) or 'nothing'}", key)
    if given.get(key) != "gzip":
        yield from given.drop("only gzip has levels", "dataset.compression_level")


def _chunks(given: Given) -> Iterator[Note]:
    enable, size, dims = "dataset.enable_chunking", "dataset.chunk_size", "dataset.hdf5.chunk_dims"
    of = given["dataset.format"]
    if of != "hdf5":
        others = ("dataset.hdf5.num_dset_per_record", "dataset.hdf5.max_shape")
        yield from given.drop(f"it is for hdf5 files, and dataset.format is {of}", enable, size, dims, *others)
    elif given[dims]:
        yield from given.drop(f"{dims} is given too", size)
    elif not given[enable]:
        yield from given.drop(f"{enable} is off", size)
    elif not given[size]:
        raise UsageError(f"{enable} is on without {size}: give the bytes of a chunk, such as {size}=65536")


def _read_type_of_code(given: Given) -> Iterator[Note]:
    key = "reader.read_type"
    if given["reader.data_loader"] not in ("pytorch", "dali"):
        yield from given.drop("this loader does not look at it", key)
    elif key in given:
        if given[key] != "memory":
            why = "DLIO's code takes any value as memory: files stay open, and arrays are read in the first epoch alone"
            yield given.note(key, "read as", why)
        given[key] = "memory"


def _of_some_formats(given: Given, code: bool) -> Iterator[Note]:
    """Keys that have an effect with some formats and loaders alone."""
    of = given["dataset.format"]
    if of != "tfrecord":
        yield from given.drop(f"it is for tfrecord files, and dataset.format is {of}", "reader.transfer_size")
    elif code and given["reader.preprocess_time"] != NO_TIME:
        yield from given.drop("DLIO's code does not preprocess tfrecord samples", "reader.preprocess_time")
    if of not in ("npy", "npz") and given["reader.odirect"]:
        yield from given.drop(f"it is for npy and npz files, and dataset.format is {of}", "reader.odirect")
    if given["reader.data_loader"] != "native_dali" and given["reader.dont_use_mmap"]:
        yield from given.drop("it is for the loader native_dali", "reader.dont_use_mmap")
    for key in ("dataset.num_subfolders_train", "dataset.num_subfolders_eval"):
        if given[key] == 1:
            if code and given["workflow.train"]:
                raise UsageError(f"{key} 1: DLIO writes the files into one folder and then stops: use 0, or 2 or more")
            yield given.note(key, "read as", "one sub-folder is none: the files lie in the folder itself")
            given[key] = 0


def _record(given: Given) -> Iterator[Note]:
    element, key = given["dataset.record_element_type"], "dataset.record_element_type"
    if given["dataset.format"] in ("jpeg", "png") and element != "uint8":
        yield from given.drop("images have elements of uint8", key)
    elif element not in ("uint8", "int8", "bool") and not given["dataset.record_dims"]:
        yield given.note(key, "read as", "DLIO writes record_length_bytes elements of this type, not bytes")
    if given["dataset.record_dims"]:
        yield from given.drop("dataset.record_dims is given too", "dataset.record_length_bytes")


def _checkpoint(given: Given, code: bool) -> Iterator[Note]:
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
        yield given.note("workflow.checkpoint", "read as", why)
    given[key] = float(abs(pause)) if code else float(max(pause, 0))
    for count in ("checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"):
        given[count] = max(given[count], 0)


def _mlperf(given: Given, raw: Mapping[str, Any]) -> Iterator[Note]:
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
            yield given.note(shuffle, "read as", why)
        given[shuffle] = "seed"
    if of in WHOLE_FILES:
        yield from given.drop("MLPerf's readers read a file again for each of its samples", "reader.read_type")
    else:
        yield from _read_type_of_code(given)
    if trains and given["reader.read_threads"] == 1:
        why = "that MLPerf's code starts up to 8 readers for 1, as many as a rank has cores: the capture has 1"
        yield given.note("reader.read_threads", "not expressed", why)
    if given["checkpoint.num_checkpoints_read"]:
        why = "that 4 threads read a checkpoint at once, a quarter each: the capture reads one quarter after the other"
        yield given.note("checkpoint.num_checkpoints_read", "not expressed", why)
    if trains and of in WHOLE_FILES and given["storage.storage_type"] in ("s3", "aistore", "direct_fs"):
        why = "that its readers fetch up to 64 files at once, ahead of the batches: files are read as on local_fs"
        yield given.note("storage.storage_type", "not expressed", why)
    given["checkpoint.fsync"] = True
