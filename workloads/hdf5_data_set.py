"""The layout of DLIO's HDF5 files: shapes, chunks, and the begin of the data.

Measured with h5py 3.16 and HDF5 2.0 on files written as DLIO writes them: datasets and chunks follow each other without
gaps behind the headers, and `labels` (int64, one per sample) comes last. The index of many chunks follows the first
chunk. For small chunks its size is known only to a few hundred bytes (`Hdf5Layout.exact` is then False). DLIO v2.0
writes the older file layout, whose chunk index is a B-tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dxt_replay.workloads.description import Dataset

HDF5_HEADER_BYTES = 2048
"""Bytes before the data, in the layout of `libver="latest"`."""

_TREE_NODE_BYTES = 3136
"""A node of the older layout's chunk index for three dimensions: 64 chunks at most, about 57 in all but the first."""
_TREE_HEADER_BYTES = 4536
_TREE_BYTES = 6584
"""Bytes before the first chunk in the older layout, and in all layouts if one node holds the index."""

LABEL_BYTES = 8
_MOST_DATASETS = 5
"""Datasets per file whose headers fit into the first 2,048 bytes."""
NEAR_HDF5_CHUNKS = 160
"""Chunks whose index fits into the first 2,048 bytes; fewer with a filter or a maximal shape."""
_MOST_OTHER_CHUNKS = 60
HDF5_PAGE_CHUNKS = 1024
"""Chunks in a page of the index. An index of more chunks has several pages, each with a checksum, behind one bit per
page."""

_LEFT = {
    "gzip": {
        **dict.fromkeys(("float16", "uint32", "int32"), 0.857), "float32": 0.895, "float64": 0.943,
        **dict.fromkeys(("uint64", "int64"), 0.498), "bool": 0.003,
    },
    "lzf": {**dict.fromkeys(("uint64", "int64"), 0.63), "bool": 0.0115},
}  # fmt: skip
"""Size of compressed DLIO values as a share of the plain size. DLIO draws numbers of 24 random bits in [0, 1), scaled
to the range of whole numbers. Measured with zlib at level 4 (1.3 % more at lower levels) and h5py's lzf; 1 for others.
"""

_CHUNK_BASE, _CHUNK_MIN, _CHUNK_MAX = 16384, 8192, 1048576


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Layout:
    """One file's record datasets, which are alike. Dimensions: samples of the file first.

    chunk_shape: empty for contiguous datasets.
    data_offset: of the first dataset or chunk; with an index behind the headers, chunk 0 is taken to follow it.
    data_bytes: stored bytes of one dataset, in whole chunks.
    other_bytes: headers and chunk indices, before and between the data. exact: False where that is an estimate.
    """

    names: tuple[str, ...]
    type_size: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    filters: tuple[str, ...]
    data_offset: int
    data_bytes: int
    other_bytes: int
    exact: bool

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample, all datasets together."""
        return math.prod(self.shape[1:]) * self.type_size * len(self.names)

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.other_bytes + self.data_bytes * len(self.names) + LABEL_BYTES * self.shape[0]

    @property
    def row_chunks(self) -> int:
        """Chunks of a dataset that cover a sample; 0 for contiguous datasets."""
        return _chunk_count(self.shape[1:], self.chunk_shape[1:]) if self.chunk_shape else 0

    def chunk_columns(self, dataset: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64 (number, offset, stored bytes) of the chunks of a dataset, in row-major order."""
        count = 1 if not self.chunk_shape else _chunk_count(self.shape, self.chunk_shape)
        size = self.data_bytes // count
        number = np.arange(count, dtype=np.int64)
        offset = self.data_offset + dataset * self.data_bytes + number * size
        return number, offset, np.full(count, size, dtype=np.int64)


def hdf5_layout(dataset: Dataset, dims: tuple[int, ...], reading: str) -> Hdf5Layout:
    """The layout of a file whose records are `dims`: d1 x d2, or `record_dims`."""
    sets = dataset.hdf5.num_dset_per_record
    type_size = np.dtype(dataset.record_element_type).itemsize
    shape = _shape(dataset, dims)
    chunk = _chunk_shape(dataset, shape, type_size)
    filters = () if dataset.compression == "none" else (dataset.compression,)
    count = _chunk_count(shape, chunk) if chunk else 0
    plain = math.prod(chunk or shape) * type_size
    tree = reading == "v2.0" and bool(chunk)
    other, exact = _tree_bytes(count) if tree else _index_bytes(dataset, count, plain)
    element, compression = dataset.record_element_type, dataset.compression
    names = ("records",) if reading == "v2.0" else tuple(f"records_{number}" for number in range(sets))
    return Hdf5Layout(
        names=names,
        type_size=type_size,
        shape=shape,
        chunk_shape=chunk,
        filters=filters,
        data_offset=_TREE_HEADER_BYTES if tree else other if count else HDF5_HEADER_BYTES,
        data_bytes=compressed_bytes(plain, element, compression, dataset.compression_level) * max(count, 1),
        other_bytes=other,
        exact=exact and element not in _LEFT.get(compression, {}),
    )


def _index_bytes(dataset: Dataset, count: int, chunk_bytes: int) -> tuple[int, bool]:
    """Bytes of a file that are not data, with `count` chunks per dataset, and whether that is exact."""
    sets = dataset.hdf5.num_dset_per_record
    plain = dataset.compression == "none" and not dataset.hdf5.max_shape
    if sets <= _MOST_DATASETS and count * sets <= (NEAR_HDF5_CHUNKS if plain else _MOST_OTHER_CHUNKS):
        return HDF5_HEADER_BYTES, True
    entry = 8 if dataset.compression == "none" else 20
    pages = -(-count // HDF5_PAGE_CHUNKS) if count > HDF5_PAGE_CHUNKS else 0
    array = max(18 + -(-pages // 8) + 4 * pages + entry * count, HDF5_HEADER_BYTES)  # the least that HDF5 sets aside
    exact = plain and sets == 1 and chunk_bytes >= HDF5_HEADER_BYTES
    return HDF5_HEADER_BYTES + 400 * max(sets - _MOST_DATASETS, 0) + sets * array, exact


def _tree_bytes(count: int) -> tuple[int, bool]:
    return _TREE_BYTES + _TREE_NODE_BYTES * -(-max(count - 64, 0) // 57), count <= 64


def largest_shape(dataset: Dataset) -> tuple[int, ...]:
    """Largest dimensions of a dataset: of records of the mean length, or `max_shape`."""
    side = math.isqrt(int(dataset.record_length_bytes))
    shape = _shape(dataset, dataset.record_dims or (side, side))
    return (shape[0], *dataset.hdf5.max_shape) if dataset.hdf5.max_shape else shape


def _shape(dataset: Dataset, dims: tuple[int, ...]) -> tuple[int, ...]:
    sets = dataset.hdf5.num_dset_per_record
    record = (dims[0] // sets, *dims[1:])
    if dataset.record_dims and record[0] == 1 and len(record) > 1:
        record = record[1:]
    return (dataset.num_samples_per_file, *record)


def _chunk_shape(dataset: Dataset, shape: tuple[int, ...], type_size: int) -> tuple[int, ...]:
    """The chunks that are requested, or that h5py chooses if it needs some; empty for none."""
    if dataset.hdf5.chunk_dims:
        return dataset.hdf5.chunk_dims
    if dataset.chunk_size:
        side = math.ceil(math.sqrt(dataset.chunk_size))
        return (1, *(min(side, length) for length in shape[1:]))
    if dataset.compression != "none" or dataset.hdf5.max_shape:
        return _guessed_chunk(shape, type_size)
    return ()


def _guessed_chunk(shape: tuple[int, ...], type_size: int) -> tuple[int, ...]:
    """h5py's choice (its `_hl/filters.py`, guess_chunk): halve the dimensions in turn until a target is met."""
    chunk = [float(length) for length in shape]
    wanted = _CHUNK_BASE * 2 ** math.log10(math.prod(chunk) * type_size / (1 << 20))
    target = min(max(wanted, _CHUNK_MIN), _CHUNK_MAX)
    turn = 0
    while True:
        size = math.prod(chunk) * type_size
        near = size < target or abs(size - target) / target < 0.5
        if (near and size < _CHUNK_MAX) or math.prod(chunk) == 1:
            return tuple(int(length) for length in chunk)
        chunk[turn % len(chunk)] = math.ceil(chunk[turn % len(chunk)] / 2)
        turn += 1


def _chunk_count(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    return math.prod(-(-length // part) for length, part in zip(shape, chunk, strict=True))


def compressed_bytes(plain: int, element: str, compression: str, level: int) -> int:
    """Size of `plain` bytes of DLIO's random values after compression.

    gzip adds headers to values that do not shrink, and lzf stores them unchanged. level: of gzip, 0 to 9; 0 does not
    compress."""
    left = _LEFT.get(compression, {}) if level else {}
    if element in left:
        return math.ceil(plain * left[element])
    return plain if compression != "gzip" else plain + 6 + 5 * -(-plain // 16383)
