"""Estimates of the record: length, deviation, dimensions, and the requests that read it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dxt_replay.workloads.data_set_files import data_set_files
from dxt_replay.workloads.description import Dataset, Format, Workload
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.estimate import Estimate, estimate, relative
from dxt_replay.workloads.fit.observation import Observation
from dxt_replay.workloads.fit.sample_shape import Samples
from dxt_replay.workloads.fit.sample_size import IMAGES, is_data, modal

_IMAGE_PIECE_BYTES = 1 << 16
_BLOCK_BYTES = 4096
_MOST_RECORD_BYTES = 1 << 50


def overhead_bytes(file_format: Format, record: int) -> int:
    """Bytes that TFRecord adds to a record of `record` bytes; 0 for formats that only have headers per file."""
    return _file_bytes(file_format, record, 1) - record if file_format == "tfrecord" else 0


def record_of_file(file_format: Format, file_bytes: float, per_file: int) -> int:
    """Largest record length for which a file of `per_file` samples is at most `file_bytes` long."""
    low, high = 1, 2
    while _file_bytes(file_format, high, per_file) <= file_bytes and high < _MOST_RECORD_BYTES:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _file_bytes(file_format, middle, per_file) <= file_bytes else (low, middle)
    return low


def _file_bytes(file_format: Format, record: int, per_file: int) -> int:
    """Size of a file of DLIO with `per_file` records of this length."""
    data = Dataset(
        format=file_format,
        num_files_train=1,
        num_samples_per_file=per_file,
        record_dims=(1, record) if file_format in (*IMAGES, "hdf5") else (record,),
    )
    return int(data_set_files(Workload(dataset=data)).train.sizes[0])


def record(seen: Observation, data: DataFiles, samples: Samples) -> Iterator[Estimate]:
    """Estimates of the record's keys, and of the requests."""
    if samples.one_file_each or samples.at_once:
        length = record_of_file(data.format, samples.file_bytes, samples.per_file)
        found = f"mean size of the files, {samples.file_bytes:,.0f} B, without what the format adds"
    else:
        length = max(round(samples.sample_bytes), 1)
        found = "bytes of a sample"
    deviation = _deviation(data, samples, length)
    request = _request(seen, data)
    dims, chunk = _dims(data, samples, length, request, deviation)
    square = math.isqrt(length) ** 2
    off = "" if dims or square == length else f"DLIO stores {square} B, {relative(square, length)}"
    others = _other_requests(data, samples, length, request)
    yield estimate("dataset.record_length_bytes", length, found, off, samples.unsure, *others)
    if deviation:
        found = f"sqrt(2) times the deviation of the sizes, {samples.deviation_bytes:,.0f} B"
        skewed = f"sizes are skewed by {samples.skewness:+.2g}, DLIO draws them nearly normal"
        error = skewed if abs(samples.skewness) > 0.3 else ""
        yield estimate("dataset.record_length_bytes_stdev", float(f"{deviation:.6g}"), found, error)
    if dims:
        yield estimate("dataset.record_dims", dims, "DLIO makes squares of lengths; these it keeps")
    if chunk:
        yield estimate("dataset.hdf5.chunk_dims", chunk, f"most bytes are read in requests of {request} B")
    if data.format == "tfrecord" and request:
        lengths = _lengths(seen, data)
        share = float(lengths[lengths == request].sum() / lengths.sum())
        found = f"{100 * share:.3g} % of the bytes are read in requests of this length"
        error = "" if share > 0.9 else "mixed sizes: DLIO's requests are all alike"
        yield estimate("reader.transfer_size", request, found, error)


def _other_requests(data: DataFiles, samples: Samples, length: int, request: int) -> Iterator[str]:
    """How DLIO's reader of the format differs from the application in its requests for a sample."""
    if data.format in IMAGES and samples.one_file_each and request > _IMAGE_PIECE_BYTES:
        yield "the application reads an image in one request, DLIO's reader in pieces of 64 KiB at most"
    if data.format == "indexed_binary" and length < _BLOCK_BYTES:
        yield f"DLIO reads {_BLOCK_BYTES} B, a block, for a record that is smaller"


def _deviation(data: DataFiles, samples: Samples, length: int) -> float:
    """DLIO's deviation of record lengths: it draws both dimensions, so that lengths deviate by this over sqrt(2)."""
    spread = samples.deviation_bytes / max(samples.file_bytes, 1)
    return math.sqrt(2) * spread * length if spread > 1e-3 else 0.0


def _request(seen: Observation, data: DataFiles) -> int:
    """Length of the requests that move most bytes of the data set."""
    lengths = _lengths(seen, data)
    lengths = lengths[lengths > 0]
    return modal(lengths[is_data(lengths)], weights=lengths[is_data(lengths)])[0] if len(lengths) else 0


def _lengths(seen: Observation, data: DataFiles) -> np.ndarray:
    return np.concatenate([rank.length[np.isin(rank.file_id, data.train)] for rank in seen.looked])


def _dims(
    data: DataFiles, samples: Samples, length: int, request: int, deviation: float
) -> tuple[list[int], list[int]]:
    """Dimensions of a record if its length is not enough, and of its chunks; empty for none."""
    if deviation or data.format in (*IMAGES, "csv"):
        return [], []
    if data.format == "hdf5" and 0 < request < length and length % request == 0:
        return [length // request, request], [1, 1, request]
    if data.format == "hdf5" and request > length and request % length == 0 and samples.per_file >= request // length:
        return [1, length], [request // length, 1, length]
    exact = math.isqrt(length) ** 2 == length
    return ([], []) if exact else ([1, length] if data.format == "hdf5" else [length], [])
