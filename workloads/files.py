"""Names and exact sizes of the files of DLIO's data set, and the layout of its HDF5 files; the same on every machine.

DLIO's generator draws the dimensions of all files with NumPy's legacy generator from the seed 10, training files first
(`data_generator/data_generator.py` at commit e1919d7). Columns, not objects: a million files are a few arrays.
"""

from __future__ import annotations

import math
import posixpath
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.workloads.description import Dataset, Workload

GENERATION_SEED = 10

HDF5_HEADER_BYTES = 2048
"""Bytes before the data, in the layout of `libver="latest"`."""

LABEL_BYTES = 8
_MOST_DATASETS = 5
"""Datasets per file whose headers fit into the first 2,048 bytes."""
NEAR_HDF5_CHUNKS, _MOST_OTHER_CHUNKS = 160, 60
"""Chunks whose index fits into the first 2,048 bytes; fewer with a filter or a maximal shape."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileSet:
    """The training files, or those of the evaluation, in the order in which DLIO lists them: by number.

    folder: absolute; files lie in it or in its `subfolders`.
    dims: int64[files, d], of one record each. sample_bytes: int64[files], of one record. sizes: int64[files].
    sides: suffixes of the index files beside each data file; `side_bytes`: size of each.
    Sizes are exact but for csv of other numbers than uint8, and compressed or finely chunked data.
    """

    folder: str
    prefix: str
    extension: str
    subfolders: int
    dims: np.ndarray
    sample_bytes: np.ndarray
    sizes: np.ndarray
    sides: tuple[str, ...]
    side_bytes: int

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes of the data files."""
        return int(self.sizes.sum())

    def name(self, number: int) -> str:
        """The file's name without its folder."""
        count = len(self.sizes)
        return f"{self.prefix}_{str(number).rjust(len(str(count)), '0')}_of_{count}.{self.extension}"

    def path(self, number: int) -> str:
        """Absolute path of a data file."""
        inner = str(number % self.subfolders).rjust(len(str(self.subfolders)), "0") if self.subfolders > 1 else ""
        return posixpath.join(self.folder, inner, self.name(number))


def data_set_files(workload: Workload) -> tuple[FileSet, FileSet]:
    """The files for training and for evaluation that DLIO generates; a relative folder is taken from `/`."""
    data = workload.dataset
    files, count = data.num_files_train + data.num_files_eval, data.num_files_train
    if data.record_dims:
        dims = np.broadcast_to(np.array(data.record_dims, dtype=np.int64), (files, len(data.record_dims)))
    elif data.record_length_bytes_stdev:
        root = math.sqrt(data.record_length_bytes)
        state = np.random.RandomState(GENERATION_SEED)
        drawn = state.normal(int(root), data.record_length_bytes_stdev / 2.0 / root, 2 * files)
        dims = np.maximum(drawn.astype(np.int64), 1).reshape(files, 2)
    else:
        dims = np.broadcast_to(np.int64(math.sqrt(data.record_length_bytes)), (files, 2))
    train = _file_set(workload, "train", dims[:count], data.num_subfolders_train)
    return train, _file_set(workload, "valid", dims[count:], data.num_subfolders_eval)


def record_length(data: Dataset) -> float:
    """Bytes of a record as the description has them: its dimensions times its elements, or its mean length."""
    if data.format == "synthetic":
        return 0.0
    return math.prod(data.record_dims) * _element_bytes(data) if data.record_dims else data.record_length_bytes


def absolute_folder(workload: Workload, folder: str) -> str:
    """Absolute path of a folder of the description: DLIO's join with `storage_root`, below `/`."""
    return "/" + posixpath.normpath(posixpath.join("/", workload.storage.storage_root, folder)).strip("/")


def _file_set(workload: Workload, part: str, dims: np.ndarray, subfolders: int) -> FileSet:
    data = workload.dataset
    folder, samples = absolute_folder(workload, data.data_folder), data.num_samples_per_file
    elements = dims.prod(axis=1, dtype=np.int64)
    sample = elements * _element_bytes(data)
    if data.format == "hdf5" and len(dims):
        shapes, _, which = distinct_rows(*dims.T)  # each distinct record shape is laid out once
        layouts = [hdf5_layout(data, tuple(map(int, each))) for each in shapes]
        sizes = np.array([layout.file_bytes for layout in layouts], dtype=np.int64)[which]
    elif data.format == "tfrecord":
        sizes = samples * record_bytes(sample)
    else:
        sizes = _sizes(data, elements, sample)
    indexed = data.format in ("indexed_binary", "mmap_indexed_binary")
    return FileSet(
        folder=posixpath.join(folder, part),
        prefix=data.file_prefix,
        extension=data.format,
        subfolders=subfolders,
        dims=dims,
        sample_bytes=sample,
        sizes=sizes,
        sides=(".off.idx", ".sz.idx") if indexed else (),
        side_bytes=8 * samples,
    )


def _element_bytes(data: Dataset) -> int:
    return 1 if data.format in ("jpeg", "png") else np.dtype(data.record_element_type).itemsize


def _sizes(data: Dataset, elements: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """int64[files], for formats whose size has a formula; `elements` and `sample`: elements and bytes of one record."""
    samples = data.num_samples_per_file
    if data.format == "npz":
        return sample * samples + 8 * samples + 490
    if data.format == "npy":
        return sample * samples + 128
    if data.format == "csv":
        return _csv_bytes(data, elements)
    if data.format == "jpeg":  # MLPerf's generator writes as many bytes as a record has
        one_size = not data.record_dims and not data.record_length_bytes_stdev
        return np.full(len(elements), int(data.record_length_bytes)) if one_size else elements
    if data.format == "png":
        return elements + 5 * (elements // 16383 + 1) + 63
    if data.format == "synthetic":  # a file holds its number as text
        number = np.arange(len(sample), dtype=np.int64)
        return 1 + sum((number >= 10**power for power in range(1, 19)), np.zeros(len(sample), dtype=np.int64))
    return sample * samples


def record_bytes(sample: np.ndarray) -> np.ndarray:
    """int64: bytes of TFRecords with an Example of `sample` bytes of image and their number, framing included."""

    def varint(values: np.ndarray) -> np.ndarray:  # protobuf's integers of variable length
        return np.add.reduce([values >= 1 << bits for bits in range(7, 63, 7)], dtype=np.int64) + 1

    def message(content: np.ndarray) -> np.ndarray:
        return 1 + varint(content) + content

    def entry(key: str, value: np.ndarray) -> np.ndarray:  # of a map: its key and the message `value`, both with a tag
        return message(2 + len(key) + message(message(message(value))))

    framing = 8 + 4 + 4
    return message(entry("image", sample) + entry("size", varint(sample))) + framing


def _csv_bytes(data: Dataset, elements: np.ndarray) -> np.ndarray:
    """Rows of random numbers, each followed by a comma or the line's end."""
    element = data.record_element_type
    # Mean bytes of a number and its separator: exact for uint8, which is 0 to 254 with equal probability.
    means = {"uint8": (10 + 90 * 2 + 155 * 3) / 255 + 1, "float16": 7.0, "float32": 11.5, "float64": 19.5, "bool": 5.5}
    if element not in means:
        unsigned = element.startswith("u")
        bits = 8 * np.dtype(element).itemsize - (not unsigned)
        means[element] = bits * math.log10(2) + 0.9 + (0 if unsigned else 0.5)
    return np.rint(elements * means[element]).astype(np.int64) * data.num_samples_per_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Layout:
    """One HDF5 file's record datasets, which are alike. Dimensions: samples of the file first.

    Measured with h5py 3.16 and HDF5 2.0 on files written as DLIO writes them: datasets and chunks follow each other
    without gaps behind the headers, and `labels` (int64, one per sample) comes last. The index of many chunks follows
    the first chunk.
    chunk_shape: empty for contiguous datasets.
    data_offset: of the first dataset or chunk; with an index behind the headers, chunk 0 is taken to follow it.
    data_bytes: stored bytes of one dataset, in whole chunks.
    other_bytes: headers and chunk indices, before and between the data. The size of an index of many small chunks
    is known only to a few hundred bytes.
    """

    names: tuple[str, ...]
    type_size: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    filters: tuple[str, ...]
    data_offset: int
    data_bytes: int
    other_bytes: int

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

    @property
    def chunk_bytes(self) -> int:
        """Stored bytes of a chunk, or of a contiguous dataset."""
        return self.data_bytes // (_chunk_count(self.shape, self.chunk_shape) if self.chunk_shape else 1)

    def chunk_offsets(self, dataset: int) -> np.ndarray:
        """int64: offsets of the chunks of a dataset, in row-major order."""
        begin = self.data_offset + dataset * self.data_bytes
        return np.arange(begin, begin + self.data_bytes, max(self.chunk_bytes, 1), dtype=np.int64)


def hdf5_layout(dataset: Dataset, dims: tuple[int, ...]) -> Hdf5Layout:
    """The layout of a file whose records are `dims`: d1 x d2, or `record_dims`."""
    sets, compression, element = dataset.hdf5.num_dset_per_record, dataset.compression, dataset.record_element_type
    type_size, shape, chunk = np.dtype(element).itemsize, _shape(dataset, dims), dataset.hdf5.chunk_dims
    if not chunk and dataset.chunk_size:
        side = math.ceil(math.sqrt(dataset.chunk_size))
        chunk = (1, *(min(side, length) for length in shape[1:]))
    elif not chunk and (compression != "none" or dataset.hdf5.max_shape):
        chunk = _guessed_chunk(shape, type_size)
    count = _chunk_count(shape, chunk) if chunk else 0
    plain = math.prod(chunk or shape) * type_size
    other = _index_bytes(dataset, count)
    return Hdf5Layout(
        names=tuple(f"records_{number}" for number in range(sets)),
        type_size=type_size,
        shape=shape,
        chunk_shape=chunk,
        filters=() if compression == "none" else (compression,),
        data_offset=other if count else HDF5_HEADER_BYTES,
        data_bytes=compressed_bytes(plain, element, compression, dataset.compression_level) * max(count, 1),
        other_bytes=other,
    )


def _index_bytes(dataset: Dataset, count: int) -> int:
    """Bytes of a file that are not data, with `count` chunks per dataset."""
    sets = dataset.hdf5.num_dset_per_record
    plain = dataset.compression == "none" and not dataset.hdf5.max_shape
    if sets <= _MOST_DATASETS and count * sets <= (NEAR_HDF5_CHUNKS if plain else _MOST_OTHER_CHUNKS):
        return HDF5_HEADER_BYTES
    entry = 8 if dataset.compression == "none" else 20
    pages = -(-count // HDF5_PAGE_CHUNKS) if count > HDF5_PAGE_CHUNKS else 0
    array = max(18 + -(-pages // 8) + 4 * pages + entry * count, HDF5_HEADER_BYTES)  # the least that HDF5 sets aside
    return HDF5_HEADER_BYTES + 400 * max(sets - _MOST_DATASETS, 0) + sets * array


def largest_shape(dataset: Dataset) -> tuple[int, ...]:
    """Largest dimensions of a dataset: of records of the mean length, or `max_shape`."""
    side = math.isqrt(int(dataset.record_length_bytes))
    shape = _shape(dataset, dataset.record_dims or (side, side))
    return (shape[0], *dataset.hdf5.max_shape) if dataset.hdf5.max_shape else shape


def _shape(dataset: Dataset, dims: tuple[int, ...]) -> tuple[int, ...]:
    record = (dims[0] // dataset.hdf5.num_dset_per_record, *dims[1:])
    if dataset.record_dims and record[0] == 1 and len(record) > 1:
        record = record[1:]
    return (dataset.num_samples_per_file, *record)


def _guessed_chunk(shape: tuple[int, ...], type_size: int) -> tuple[int, ...]:
    """h5py's choice (its `_hl/filters.py`, guess_chunk): halve the dimensions in turn until a target is met."""
    base, least, most = 16384, 8192, 1048576
    chunk = [float(length) for length in shape]
    wanted = base * 2 ** math.log10(math.prod(chunk) * type_size / (1 << 20))
    target = min(max(wanted, least), most)
    turn = 0
    while True:
        size = math.prod(chunk) * type_size
        near = size < target or abs(size - target) / target < 0.5
        if (near and size < most) or math.prod(chunk) == 1:
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
