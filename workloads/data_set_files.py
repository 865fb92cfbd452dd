"""Names and exact sizes of the files of DLIO's data set; they are the same on every machine.

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
from dxt_replay.workloads.hdf5_data_set import compressed_bytes, hdf5_layout

GENERATION_SEED = 10
_ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8}
_JPEG_SHARE = 0.57
"""Bytes of a JPEG of grey noise per pixel, from DLIO's documentation: 150,528 pixels become 85.3 kB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideFiles:
    """A small file beside each data file: `folder` and `suffix` make its path; `sizes`: int64[files]."""

    folder: str
    suffix: str
    sizes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileSet:
    """The training files, or those of the evaluation, in the order in which DLIO lists them: by number.

    folder: absolute; files lie in it or in its `subfolders`.
    dims: int64[files, d], of one record each. sample_bytes: int64[files], of one record. sizes: int64[files].
    exact: False where sizes are estimates (csv of other numbers than uint8, jpeg, compressed or finely chunked data).
    """

    folder: str
    prefix: str
    extension: str
    subfolders: int
    dims: np.ndarray
    sample_bytes: np.ndarray
    sizes: np.ndarray
    sides: tuple[SideFiles, ...]
    exact: bool

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

    def side_path(self, side: SideFiles, number: int) -> str:
        """Absolute path of a small file beside a data file."""
        if not side.folder:
            return self.path(number) + side.suffix
        return posixpath.join(side.folder, self.name(number) + side.suffix)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSetFiles:
    """All files of a data set."""

    train: FileSet
    evaluation: FileSet


def data_set_files(workload: Workload) -> DataSetFiles:
    """The files that DLIO generates for `workload`; a relative folder is taken from `/`."""
    data = workload.dataset
    dims = _dimensions(data)
    count = data.num_files_train
    return DataSetFiles(
        train=_file_set(workload, "train", dims[:count], data.num_subfolders_train),
        evaluation=_file_set(workload, "valid", dims[count:], data.num_subfolders_eval),
    )


def record_length(data: Dataset) -> float:
    """Bytes of a record as the description has them: its dimensions times its elements, or its mean length."""
    if data.format == "synthetic":
        return 0.0
    return math.prod(data.record_dims) * _element_bytes(data) if data.record_dims else data.record_length_bytes


def absolute_folder(workload: Workload, folder: str) -> str:
    """Absolute path of a folder of the description: DLIO's join with `storage_root`, below `/`."""
    joined = posixpath.join("/", workload.storage.storage_root, folder)
    return "/" + posixpath.normpath(joined).strip("/")


def _dimensions(data: Dataset) -> np.ndarray:
    """int64[files, d]: the dimensions of the records of each file, training files first."""
    files = data.num_files_train + data.num_files_eval
    if data.record_dims:
        return np.broadcast_to(np.array(data.record_dims, dtype=np.int64), (files, len(data.record_dims)))
    side = int(math.sqrt(data.record_length_bytes))
    deviation = data.record_length_bytes_stdev / 2.0 / math.sqrt(data.record_length_bytes)
    if not deviation:
        return np.broadcast_to(np.array([side, side], dtype=np.int64), (files, 2))
    drawn = np.random.RandomState(GENERATION_SEED).normal(side, deviation, 2 * files)
    return np.maximum(drawn.astype(np.int64), 1).reshape(files, 2)


def _file_set(workload: Workload, part: str, dims: np.ndarray, subfolders: int) -> FileSet:
    data = workload.dataset
    elements = dims.prod(axis=1, dtype=np.int64)
    sample = elements * _element_bytes(data)
    exact = data.format not in ("jpeg", "png") and (data.format != "csv" or data.record_element_type == "uint8")
    if data.format == "hdf5":
        sizes, exact = _hdf5_sizes(workload, dims)
    else:
        sizes = _sizes(workload, elements, sample)
    folder = absolute_folder(workload, data.data_folder)
    return FileSet(
        folder=posixpath.join(folder, part),
        prefix=data.file_prefix,
        extension=data.format,
        subfolders=subfolders,
        dims=dims,
        sample_bytes=sample,
        sizes=sizes,
        sides=_sides(workload, posixpath.join(folder, "index", part), sample),
        exact=exact and data.compression == "none",
    )


def _element_bytes(data: Dataset) -> int:
    return 1 if data.format in ("jpeg", "png") else np.dtype(data.record_element_type).itemsize


def _sizes(workload: Workload, elements: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """int64[files], for formats whose size has a formula; `elements` and `sample`: elements and bytes of one record."""
    data = workload.dataset
    samples = data.num_samples_per_file
    if data.format == "npz" and data.compression == "zip":
        arrays, which = np.unique(sample * samples, return_inverse=True)
        deflated = [compressed_bytes(int(each), data.record_element_type, "gzip", 6) for each in arrays]
        return np.array(deflated, dtype=np.int64)[which.reshape(-1)] + 490
    if data.format == "npz":
        return sample * samples + 8 * samples + 490
    if data.format == "npy":
        return sample * samples + 128
    if data.format == "tfrecord":
        return samples * _record_bytes(workload, sample)
    if data.format == "csv":
        return _csv_bytes(workload, elements)
    if data.format == "jpeg" and workload.reading == "v3.0":
        one_size = not data.record_dims and not data.record_length_bytes_stdev
        return np.full(len(elements), int(data.record_length_bytes)) if one_size else elements
    if data.format == "jpeg":
        return np.rint(elements * _JPEG_SHARE).astype(np.int64)
    if data.format == "png":
        return elements + 5 * (elements // 16383 + 1) + 63
    if data.format == "synthetic":
        number = np.arange(len(sample), dtype=np.int64)
        return 1 + sum((number >= 10**power for power in range(1, 19)), np.zeros(len(sample), dtype=np.int64))
    return sample * samples


def _varint_bytes(values: np.ndarray) -> np.ndarray:
    """Bytes of protobuf's variable-length integers."""
    size = np.ones(values.shape, dtype=np.int64)
    for bits in range(7, 63, 7):
        size += values >= 1 << bits
    return size


def _record_bytes(workload: Workload, sample: np.ndarray) -> np.ndarray:
    """int64[files]: bytes of a record; v2.0 stores the side of an image as its size."""
    side = np.full(len(sample), int(math.sqrt(workload.dataset.record_length_bytes)), dtype=np.int64)
    return record_bytes(sample, side if workload.reading == "v2.0" else sample)


def record_bytes(sample: np.ndarray, size: np.ndarray) -> np.ndarray:
    """int64: bytes of TFRecords with an Example of `sample` bytes of image and the number `size`, framing included."""

    def message(content: np.ndarray) -> np.ndarray:
        return 1 + _varint_bytes(content) + content

    image = message(_entry_bytes("image", message(message(message(sample)))))
    number = message(_entry_bytes("size", message(message(message(_varint_bytes(size))))))
    framing = 8 + 4 + 4
    return message(image + number) + framing


def _entry_bytes(key: str, value: np.ndarray) -> np.ndarray:
    """Bytes of an entry of a protobuf map: its key and the message `value`, tag and length of both included."""
    return 2 + len(key) + value


def _csv_bytes(workload: Workload, elements: np.ndarray) -> np.ndarray:
    """Rows of random numbers, each followed by a comma or the line's end; v2.0 has row numbers and a heading too."""
    data = workload.dataset
    sizes = (
        np.rint(elements * _csv_element_bytes(data.record_element_type)).astype(np.int64) * data.num_samples_per_file
    )
    if workload.reading == "v2.0":
        rows = data.num_samples_per_file
        sizes += _digits_below(np.array([rows]))[0] + rows + 1
        sizes += _digits_below(elements) + elements
    return sizes


def _csv_element_bytes(element: str) -> float:
    """Mean bytes of a number and its separator. Exact for uint8, which is 0 to 254 with equal probability; else an
    estimate."""
    if element == "uint8":
        return (10 * 1 + 90 * 2 + 155 * 3) / 255 + 1
    if element in _ITEM_BYTES:
        return {"float16": 7.0, "float32": 11.5, "float64": 19.5}[element]
    if element == "bool":
        return 5.5
    bits = 8 * np.dtype(element).itemsize - (not element.startswith("u"))
    return bits * math.log10(2) + 0.9 + (0 if element.startswith("u") else 0.5)


def _digits_below(counts: np.ndarray) -> np.ndarray:
    """Total number of digits of all whole numbers from 0 to `counts` - 1, for each of `counts`."""
    digits = counts.astype(np.int64).copy()
    for power in range(1, 19):
        digits += np.maximum(counts - 10**power, 0)
    return digits


def _hdf5_sizes(workload: Workload, dims: np.ndarray) -> tuple[np.ndarray, bool]:
    """int64[files] and whether they are exact; each distinct record shape is laid out once."""
    if not len(dims):
        return np.empty(0, dtype=np.int64), True
    shapes, _, which = distinct_rows(*dims.T)
    layouts = [hdf5_layout(workload.dataset, tuple(map(int, each)), workload.reading) for each in shapes]
    sizes = np.array([layout.file_bytes for layout in layouts], dtype=np.int64)
    return sizes[which], all(layout.exact for layout in layouts)


def _sides(workload: Workload, index_folder: str, sample: np.ndarray) -> tuple[SideFiles, ...]:
    data = workload.dataset
    samples = data.num_samples_per_file
    if data.format in ("indexed_binary", "mmap_indexed_binary"):
        each = np.full(len(sample), 8 * samples, dtype=np.int64)
        return tuple(SideFiles(folder="", suffix=suffix, sizes=each) for suffix in (".off.idx", ".sz.idx"))
    if data.format == "tfrecord":
        text = _index_text_bytes(_record_bytes(workload, sample), samples)
        return (SideFiles(folder=index_folder, suffix=".idx", sizes=text),)
    return ()


def _index_text_bytes(record: np.ndarray, samples: int) -> np.ndarray:
    """Bytes of a text of lines `offset length`, one per record of `record` bytes."""
    digits = np.full(len(record), samples, dtype=np.int64)
    for power in range(1, 19):
        digits += np.maximum(samples - -(-(10**power) // record), 0)
    return digits + samples * (1 + 1 + sum(record >= 10**power for power in range(19)))
