"""Values to a workload: what is checked, what each reading makes of it, and that nothing is dropped silently."""

from __future__ import annotations

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import READINGS, Distribution
from dxt_replay.workloads.values import check_ranks, workload_from_values

NPZ = {"framework": "pytorch", "dataset": {"format": "npz"}, "reader": {"data_loader": "pytorch"}}
HDF5 = {"framework": "pytorch", "dataset": {"format": "hdf5"}, "reader": {"data_loader": "pytorch"}}
TF_NPZ = {"dataset": {"format": "npz"}, "reader": {"data_loader": "tensorflow"}}
TFRECORD = {"reader": {"data_loader": "tensorflow"}}


def values(base, *changes):
    """`base` with `changes`, pairs of a dotted key and its value."""
    changed = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in base.items()}
    for name, value in changes:
        section, _, key = name.partition(".")
        changed.setdefault(section, {})[key] = value
    return changed


def read(base, *changes, reading="documented"):
    return workload_from_values(values(base, *changes), reading=reading)


def notes_of(base, *changes, reading="documented"):
    return {(note.key, note.kind) for note in read(base, *changes, reading=reading)[1]}


def test_values_arrive_with_their_types():
    workload, notes = read(
        NPZ,
        ("dataset.num_files_train", 16.0),
        ("train.computation_time", 1),
        ("train.computation_time_stdev", 0.5),
        ("train.total_training_steps", -1),
        ("evaluation.eval_time", {"type": "uniform", "min": 1, "max": 2}),
        ("model.parallelism", {"tensor": 2}),
        ("output.metric", {"exclude_end_steps": 3}),
        ("reader.transfer_size", None),
    )
    assert notes == ()
    assert workload.dataset.num_files_train == 16
    assert workload.train.computation_time == Distribution(family="normal", parameters=(1.0, 0.5))
    assert workload.train.total_training_steps is None
    assert workload.evaluation.eval_time == Distribution(family="uniform", parameters=(1.0, 2.0))
    assert workload.model.parallelism.tensor == 2
    assert workload.metric.exclude_end_steps == 3


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dataset.num_files_train", "many", "dataset.num_files_train: 'many' is not a whole number of 0 to"),
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
    said = said.replace("whole number of 0 to", "whole number from 0 to")
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
        (HDF5, [("dataset.enable_chunking", True)], "without dataset.chunk_size"),
        (NPZ, [("model.num_layers", 2), ("model.parallelism", {"pipeline": 4})], "each stage"),
        (NPZ, [("model.parallelism", {"pipeline": 4, "zero_stage": 3})], "zero_stage 3"),
        (NPZ, [("model.parallelism", {"data": 4})], "checkpoint.mode subset"),
        (NPZ, [("checkpoint.mode", "subset")], "needs model.parallelism.data"),
        (NPZ, [("checkpoint.num_checkpoints_write", 1), ("checkpoint.num_checkpoints_read", 2)], "can be read"),
        (NPZ, [("data_reader.batch_size", 2)], "both data_reader and reader"),
        ({"dataset": "x"}, [], "is not a section"),
    ],
)
def test_contradictions_are_named(base, changes, said):
    with pytest.raises(UsageError, match=said):
        read(base, *changes)


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        ({"dataset": {"format": "npz"}}, [], "data_loader is left out"),
        (NPZ, [("reader.data_loader", "native_dali")], "before the first epoch"),
        (NPZ, [("reader.sample_shuffle", False)], "write 'off'"),
        (NPZ, [("dataset.num_subfolders_train", 1)], "use 0, or 2 or more"),
        (HDF5, [("dataset.compression", "none")], "no compression none"),
        (NPZ, [("dataset.format", "csv"), ("dataset.compression", "gzip")], "cannot read again"),
        (NPZ, [("storage.storage_type", "parallel_fs")], "use local_fs"),
    ],
)
@pytest.mark.parametrize("reading", READINGS)
def test_what_stops_dlio_stops_only_the_readings_of_its_code(base, changes, said, reading):
    if reading == "documented":
        if base is NPZ and ("reader.data_loader", "native_dali") in changes:
            changes = [*changes, ("dataset.format", "npy")]
        read(base, *changes)
        return
    with pytest.raises(UsageError, match=said):
        read(base, *changes, reading=reading)


@pytest.mark.parametrize(
    ("base", "changes", "documented", "code"),
    [
        (NPZ, [("reader.read_type", "on_demand")], "on_demand", "memory"),
        (TF_NPZ, [("reader.read_type", "memory")], "memory", "on_demand"),
        (TF_NPZ, [("reader.file_shuffle", False)], "off", "seed"),
        (TF_NPZ, [("reader.file_shuffle", "random")], "random", "seed"),
        (NPZ, [("reader.file_shuffle", "seed")], "seed", "off"),
        (NPZ, [("dataset.compression", "zip")], "zip", "none"),
        (HDF5, [("dataset.compression", "gzip")], "gzip", "gzip"),
        (NPZ, [("checkpoint.fsync", True)], True, False),
        (NPZ, [("checkpoint.recovery_rank_shift", True)], True, False),
        (NPZ, [("checkpoint.time_between_checkpoints", -3)], 0.0, 3.0),
        (TFRECORD, [("reader.preprocess_time", 1)], 1.0, 0.0),
    ],
)
def test_readings_differ(base, changes, documented, code):
    section, key = changes[0][0].split(".")
    for reading in ("documented", "head", "v2.0"):
        workload, notes = read(base, *changes, reading=reading)
        effective = getattr(getattr(workload, section), key)
        effective = effective.mean_s if isinstance(effective, Distribution) else effective
        assert effective == (documented if reading == "documented" else code)
        if effective != changes[0][1] and changes[0][1] is not False and key != "time_between_checkpoints":
            assert changes[0][0] in {note.key for note in notes}


def test_v2_does_not_know_dimensions_but_square_chunks():
    changes = (("dataset.record_dims", [8, 8]), ("dataset.enable_chunking", True), ("dataset.chunk_size", 4096))
    v2 = read(HDF5, *changes, reading="v2.0")[0].dataset
    head = read(HDF5, *changes, reading="head")[0].dataset
    assert (v2.record_dims, v2.chunk_size) == ((), 4096)
    assert (head.record_dims, head.chunk_size) == ((8, 8), 0)


def test_spellings_of_the_documentation_are_followed_by_that_reading_alone():
    changes = (("dataset.record_length", 1000), ("model.model_size", 77))
    documented, head = read(NPZ, *changes)[0], read(NPZ, *changes, reading="head")[0]
    assert (documented.dataset.record_length_bytes, documented.model.model_size_bytes) == (1000, 77)
    assert (head.dataset.record_length_bytes, head.model.model_size_bytes) == (65536, 10240)
    assert ("dataset.record_length", "without effect") in notes_of(NPZ, *changes, reading="head")


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("reader.batchsize", 4, "unknown"),
        ("dataset.parquet", {"columns": []}, "not expressed"),
        ("reader.file_access", "shared", "without effect"),
        ("reader.pin_memory", True, "not I/O"),
        ("checkpoint.ksm", {"await_time": 1}, "not I/O"),
        ("output.folder", "out", "not I/O"),
        ("storage.storage_type", "s3", "not expressed"),
        ("workflow.generate_data", True, "not expressed"),
        ("reader.transfer_size", 4096, "without effect"),
        ("reader.odirect", True, None),
        ("dataset.chunk_size", 4096, "without effect"),
        ("dataset.compression_level", 9, "without effect"),
    ],
)
@pytest.mark.parametrize("reading", READINGS)
def test_what_is_not_followed_is_listed(key, value, kind, reading):
    found = notes_of(NPZ, ("reader.read_threads", 2), (key, value), reading=reading)
    assert found == ({(key, kind)} if kind else set())


@pytest.mark.parametrize("reading", [name for name in READINGS if name != "v3.0"])  # v3.0 refuses TensorFlow
def test_checkpoints_of_tensorflow_are_said_to_be_approximate(reading):
    """PyTorch's equal DLIO's request by request; what TensorFlow does beside its final files was not modelled."""
    assert ("workflow.checkpoint", "read as") in notes_of(TF_NPZ, ("workflow.checkpoint", True), reading=reading)
    assert notes_of(NPZ, ("workflow.checkpoint", True), reading=reading) == set()


def test_an_unknown_key_gets_the_nearest_name():
    notes = read(NPZ, ("reader.batchsize", 4), ("train.batch_size", 4))[1]
    assert [note.why.partition("; ")[2] for note in notes] == ["did you mean reader.batch_size?"] * 2


def test_the_ranks_must_divide_the_model():
    workload = read(NPZ, ("workflow.checkpoint", True), ("model.parallelism", {"tensor": 4, "pipeline": 2}))[0]
    check_ranks(workload, 16)
    with pytest.raises(UsageError, match="give --ranks 8"):
        check_ranks(workload, 12)
    subset = read(
        NPZ, ("workflow.checkpoint", True), ("checkpoint.mode", "subset"), ("model.parallelism", {"data": 4})
    )[0]
    check_ranks(subset, 4)
    with pytest.raises(UsageError, match="5 ranks are more"):
        check_ranks(subset, 5)
