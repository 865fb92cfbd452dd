"""Checks that the keys of a description do not contradict each other or the number of ranks."""

from __future__ import annotations

import math

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Dataset, Workload
from dxt_replay.workloads.hdf5_data_set import largest_shape

_MOST_BYTES = 1 << 60
"""Most bytes of a data set: sums stay far below 64 bits."""


def check_consistency(workload: Workload) -> None:
    """Raises: UsageError for keys that contradict each other."""
    if workload.workflow.train:
        _check_loader(workload)
    _check_records(workload)
    _check_model(workload)
    if workload.workflow.train and not workload.dataset.num_files_train:
        raise UsageError("dataset.num_files_train is 0, so there is nothing to train on: give at least 1")
    if workload.workflow.evaluation and not workload.dataset.num_files_eval:
        raise UsageError("workflow.evaluation is on and dataset.num_files_eval is 0: give at least 1, or switch it off")
    writes, reads = workload.checkpoint.num_checkpoints_write, workload.checkpoint.num_checkpoints_read
    if 0 < writes < reads:
        raise UsageError(
            f"checkpoint.num_checkpoints_read {reads} is more than checkpoint.num_checkpoints_write {writes}: only "
            "checkpoints that were written can be read"
        )


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


def _check_loader(workload: Workload) -> None:
    loader, of = workload.reader.data_loader, workload.dataset.format
    if loader in ("tensorflow", "pytorch") and loader != workload.framework:
        raise UsageError(
            f"reader.data_loader {loader} does not go with framework {workload.framework}: DLIO runs a framework with "
            "its own loader or with dali"
        )
    if loader == "pytorch" and of == "tfrecord":
        raise UsageError("dataset.format tfrecord does not go with reader.data_loader pytorch: use tensorflow or dali")
    if loader == "tensorflow" and not workload.reader.read_threads:
        raise UsageError("reader.read_threads 0 is for pytorch: tensorflow reads with at least 1 thread")
    if loader == "native_dali" and of not in ("jpeg", "png", "npy", "tfrecord"):
        raise UsageError(f"reader.data_loader native_dali reads jpeg, png, npy and tfrecord, not {of}")


def _check_records(workload: Workload) -> None:
    data = workload.dataset
    dims, sets = data.record_dims, data.hdf5.num_dset_per_record
    if dims and data.record_length_bytes_stdev:
        raise UsageError(
            "dataset.record_dims and dataset.record_length_bytes_stdev are both given: records of given dimensions "
            "have one size; leave one out"
        )
    if data.format in ("jpeg", "png") and dims and len(dims) != 2:
        raise UsageError(f"dataset.record_dims {list(dims)}: a {data.format} image has 2 dimensions")
    if sets > 1 and (not dims or dims[0] % sets):
        raise UsageError(
            f"dataset.hdf5.num_dset_per_record {sets} needs dataset.record_dims, whose first dimension is a multiple "
            "of it"
        )
    _check_sizes(data)
    if data.hdf5.chunk_dims:
        _check_chunks(workload)


def _check_sizes(data: Dataset) -> None:
    side = math.sqrt(data.record_length_bytes)
    largest = (side + 5 * data.record_length_bytes_stdev / side) ** 2
    elements = math.prod(data.record_dims) if data.record_dims else largest
    files = max(data.num_files_train + data.num_files_eval, 1)
    if 8 * elements * data.num_samples_per_file * files > _MOST_BYTES:
        raise UsageError(
            "the data set would be larger than 1 EiB: give fewer files (dataset.num_files_train), samples "
            "(dataset.num_samples_per_file) or smaller records (dataset.record_length_bytes)"
        )


def _check_chunks(workload: Workload) -> None:
    chunk, shape = workload.dataset.hdf5.chunk_dims, largest_shape(workload.dataset)
    if len(chunk) != len(shape) or any(small > large for small, large in zip(chunk, shape, strict=True)):
        raise UsageError(
            f"dataset.hdf5.chunk_dims {list(chunk)} is not a part of a dataset of {list(shape)}: it needs as many "
            "dimensions, samples of a file first, and none may be larger"
        )


def _check_model(workload: Workload) -> None:
    model, mode = workload.model, workload.checkpoint.mode
    parallel = model.parallelism
    if model.num_layers is not None and model.num_layers < parallel.pipeline:
        raise UsageError(
            f"model.num_layers {model.num_layers} is less than model.parallelism.pipeline {parallel.pipeline}: each "
            "stage needs a layer"
        )
    if parallel.pipeline > 1 and parallel.zero_stage == 3:
        raise UsageError("model.parallelism.zero_stage 3 does not go with model.parallelism.pipeline above 1")
    if parallel.data is not None and mode == "default":
        raise UsageError(
            "model.parallelism.data is for checkpoint.mode subset; else it follows from the ranks: leave it out"
        )
    if parallel.data is None and mode == "subset":
        raise UsageError(
            "checkpoint.mode subset needs model.parallelism.data, the copies that the whole job would have"
        )
