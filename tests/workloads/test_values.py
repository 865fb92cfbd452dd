"""Values to a workload: what is checked, what DLIO makes of it, and that nothing is dropped silently."""

from __future__ import annotations

import functools

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Distribution, Metric, Parallelism
from dxt_replay.workloads.source import overridden
from dxt_replay.workloads.values import check_ranks, workload_from_values

NPZ = {"framework": "pytorch", "dataset": {"format": "npz"}, "reader": {"data_loader": "pytorch", "read_threads": 2}}
HDF5 = {"framework": "pytorch", "dataset": {"format": "hdf5"}, "reader": {"data_loader": "pytorch", "read_threads": 2}}
TF_NPZ = {"dataset": {"format": "npz"}, "reader": {"data_loader": "tensorflow"}}
TFRECORD = {"reader": {"data_loader": "tensorflow"}}


def read(base, *changes):
    """What `base` with `changes`, pairs of a dotted key and its value, is read as."""
    for name, value in changes:
        base = overridden(base, name.split("."), value)
    return workload_from_values(base)


SAVES = [("workflow.train", False), ("workflow.checkpoint", True)]
NORMAL, UNIFORM = Distribution(family="normal", parameters=(1.0, 0.5)), {"type": "uniform", "min": 1, "max": 2}


@pytest.mark.parametrize(
    ("base", "changes", "key", "arrives"),
    [
        (NPZ, [("dataset.num_files_train", 16.0)], "", 16),
        (NPZ, [("train.computation_time", {"mean": 1, "stdev": 0.5})], "", NORMAL),
        (NPZ, [("train.computation_time_stdev", 0.5), ("train.computation_time", 1)], "", NORMAL),
        (NPZ, [("train.total_training_steps", -1)], "", None),
        (NPZ, [("evaluation.eval_time", UNIFORM)], "", Distribution(family="uniform", parameters=(1.0, 2.0))),
        (NPZ, [("output.metric", {"exclude_end_steps": 3})], "metric", Metric(exclude_end_steps=3)),
        (NPZ, [("model.parallelism", {"tensor": 2})], "", Parallelism(tensor=2)),
        (NPZ, [("reader.transfer_size", None)], "", None),
        (NPZ, [("dataset.record_length", 1000)], "dataset.record_length_bytes", 1000),
        (NPZ, [("model.model_size", 77)], "model.model_size_bytes", 77),
        (NPZ, [("reader.file_shuffle", False)], "", "seed"),  # DLIO shuffles for any value
        (NPZ, [("reader.sample_shuffle", False)], "", "off"),
        (NPZ, [("checkpoint.fsync", True)], "", True),
        ({"framework": "pytorch", "dataset": {"format": "npz"}}, [], "reader.data_loader", "pytorch"),
        (HDF5, [("reader.read_type", "memory")], "", "memory"),
        (HDF5, [("dataset.compression", "gzip")], "", "gzip"),
        (HDF5, [("dataset.enable_chunking", True), ("dataset.chunk_size", 4096)], "", 4096),
        (TFRECORD, [("reader.preprocess_time", 1)], "", Distribution(parameters=(1,))),
    ],
)
def test_values_arrive_with_their_types(base, changes, key, arrives):
    workload, notes = read(base, *changes)
    assert functools.reduce(getattr, (key or changes[-1][0]).split("."), workload) == arrives
    assert {note.key for note in notes} <= {"reader.file_shuffle", "reader.read_threads"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dataset.num_files_train", "many", "dataset.num_files_train: 'many' is not a whole number from 0 to"),
        ("dataset.num_files_train", True, "True is not a whole number"),
        ("reader.batch_size", 0, "reader.batch_size: 0 is not a whole number of 1 or more"),
        ("dataset.format", "parquet", "one of tfrecord, hdf5"),
        ("dataset.record_length_bytes", float("nan"), "is not a number of 1 or more"),
        ("dataset.record_dims", [4, 0], "a list of whole numbers of 1 or more"),
        ("dataset.record_element_type", "complex", "one of bool, int8"),
        ("dataset.file_prefix", "a/b", "part of a file's name"),
        ("dataset.data_folder", "${hydra:run.dir}", "refers to"),
        ("train.computation_time", {"type": "cauchy", "x": 1}, "{type: gamma, shape, scale}"),
        ("train.computation_time", {"mean": 1, "stdev": -1}, "is not a number of seconds"),
        ("train.computation_time_stdev", "x", "train.computation_time_stdev: 'x' is not a number"),
        ("reader.sample_shuffle", "no", "one of off, seed, random"),
        ("workflow.train", "yes", "True or False"),
        ("reader.odirect", 1, "True or False"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key, value, said):
    with pytest.raises(UsageError) as caught:
        read(NPZ, (key, value))
    assert key in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (NPZ, [("dataset.num_files_train", 0)], "nothing to train on"),
        (NPZ, [("workflow.train", False)], "no I/O"),
        (NPZ, [("workflow.evaluation", True)], "num_files_eval is 0"),
        (NPZ, [("reader.data_loader", "tensorflow")], "does not go with framework pytorch"),
        (NPZ, [("dataset.format", "tfrecord")], "does not go with reader.data_loader pytorch"),
        (TFRECORD, [("reader.read_threads", 0)], "is for pytorch"),
        (NPZ, [("dataset.record_dims", [4, 4]), ("dataset.record_length_bytes_stdev", 3)], "both given"),
        (NPZ, [("dataset.format", "png"), ("dataset.record_dims", [4])], "2 dimensions"),
        (HDF5, [("dataset.hdf5", {"num_dset_per_record": 2})], "needs dataset.record_dims"),
        (HDF5, [("dataset.hdf5", {"chunk_dims": [9, 9]})], "not a part of"),
        (HDF5, [("dataset.hdf5", {"chunk_dims": [1, 1, 1, 1]})], "not a part of"),
        (HDF5, [("dataset.enable_chunking", True)], "without dataset.chunk_size"),
        (NPZ, [("model.num_layers", 2), ("model.parallelism", {"pipeline": 4})], "each stage"),
        (NPZ, [("model.parallelism", {"pipeline": 4, "zero_stage": 3})], "zero_stage 3"),
        (NPZ, [("model.parallelism", {"data": 4})], "checkpoint.mode subset"),
        (NPZ, [("checkpoint.mode", "subset")], "needs model.parallelism.data"),
        (NPZ, [("checkpoint.num_checkpoints_write", 1), ("checkpoint.num_checkpoints_read", 2)], "can be read"),
        (NPZ, [("data_reader.batch_size", 2)], "both data_reader and reader"),
        ({"dataset": "x"}, [], "is not a section"),
        (NPZ, SAVES, "it has no I/O"),
        (NPZ, [*SAVES, ("checkpoint.num_checkpoints_write", 1), ("workflow.evaluation", True)], "not evaluate"),
        # What DLIO ignores although it says which bytes are read:
        (NPZ, [("dataset.record_length", 9), ("dataset.record_length_bytes", 8)], "are one key: leave one out"),
        (NPZ, [("dataset.record_dims", [4, 4]), ("dataset.record_length_bytes", 9)], "DLIO reads dataset.record_dims"),
        (NPZ, [("dataset.compression", "zip")], "DLIO compresses hdf5 alone"),
        (HDF5, [("dataset.compression", "bz2")], "with gzip or lzf; leave the key out"),
        (NPZ, [("reader.read_type", "memory")], "reads a file again for each of its samples with loader pytorch"),
        (TF_NPZ, [("reader.read_type", "memory")], "with loader tensorflow and format npz; leave the key out"),
        (HDF5, [("reader.read_type", "on_demand")], "takes any value for memory"),
    ],
)
def test_contradictions_are_named(base, changes, said):
    with pytest.raises(UsageError, match=said):
        read(base, *changes)


@pytest.mark.parametrize(
    ("base", "key", "value", "kind"),
    [
        (NPZ, "reader.batchsize", 4, "unknown"),
        (NPZ, "reader.file_access", "shared", "without effect"),
        (NPZ, "reader.pin_memory", True, "not I/O"),
        (NPZ, "checkpoint.ksm", {"await_time": 1}, "not I/O"),
        (NPZ, "output.folder", "out", "not I/O"),
        (NPZ, "storage.storage_type", "s3", "not expressed"),
        (NPZ, "workflow.generate_data", True, "not expressed"),
        (NPZ, "reader.transfer_size", 4096, "without effect"),
        (NPZ, "reader.odirect", True, None),
        (NPZ, "reader.file_shuffle", "off", "read as"),
        (NPZ, "reader.read_threads", 1, "not expressed"),
        (NPZ, "dataset.chunk_size", 4096, "without effect"),
        (NPZ, "dataset.compression_level", 9, "without effect"),
        # PyTorch's equal DLIO's request by request; what TensorFlow does beside its final files was not modelled.
        (NPZ, "workflow.checkpoint", True, None),
        (TF_NPZ, "workflow.checkpoint", True, "read as"),
    ],
)
def test_what_is_not_followed_is_listed(base, key, value, kind):
    found = {(note.key, note.kind) for note in read(base, (key, value))[1]}
    assert found == ({(key, kind)} if kind else set())


def test_an_unknown_key_gets_the_nearest_name():
    notes = read(NPZ, ("reader.batchsize", 4), ("train.batch_size", 4))[1]
    assert [note.why.partition("; ")[2] for note in notes] == ["did you mean reader.batch_size?"] * 2


def test_the_ranks_must_divide_the_model():
    workload = read(NPZ, ("workflow.checkpoint", True), ("model.parallelism", {"tensor": 4, "pipeline": 2}))[0]
    check_ranks(workload, 16)
    with pytest.raises(UsageError, match="give --ranks 8"):
        check_ranks(workload, 12)
    changes = [("workflow.checkpoint", True), ("checkpoint.mode", "subset"), ("model.parallelism", {"data": 4})]
    subset = read(NPZ, *changes)[0]
    check_ranks(subset, 4)
    with pytest.raises(UsageError, match="5 ranks are more"):
        check_ranks(subset, 5)
