"""The operations with which a reader fetches samples: templates by file format, vectorised over samples. Pure.

Offsets and lengths were measured with strace on DLIO's readers under Python 3.11 with NumPy, h5py and Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.description import WHOLE_FILES, Format
from dxt_replay.workloads.files import HDF5_HEADER_BYTES, HDF5_PAGE_CHUNKS, NEAR_HDF5_CHUNKS, Hdf5Layout

OPEN, CLOSE, STAT = (OPS.index(name) for name in ("open", "close", "stat"))
NO_OFFSET = -1

NPZ_DATA_OFFSET = 183
"""Offset of the values of the first array of an `.npz`: after a zip header of 55 bytes and an `.npy` header of 128."""

PNG_DATA_OFFSET = 41
"""Offset of the first compressed data of a PNG: after its signature and header."""

ARRAY_READ_BYTES, IMAGE_READ_BYTES, CSV_READ_BYTES = 1 << 18, 1 << 16, 1 << 18
"""Sizes of the requests of NumPy to a zip member (`numpy.lib.format.BUFFER_SIZE`), of Pillow to an image file
(`ImageFile.MAXBLOCK`), and of pandas to a CSV file."""

HDF5_READS = ((0, 8), (0, 48), (48, 512), (179, 512))
"""Offset and length of the reads with which HDF5 opens a file of `libver="latest"` and its first dataset."""

HDF5_INDEX = (447, 28, 475, 18, 8)
"""The index of a dataset of several chunks in such a file: offset and length of its header, offset of the array behind
it, bytes of that array without chunks, and bytes per chunk."""

HDF5_CHECKSUM_BYTES = 4
"""Bytes behind each page of the array; an array with more chunks than a page is read by pages."""

HDF5_SIEVE_BYTES = 1 << 16
"""HDF5's buffer for each open dataset (its "sieve"), which smaller reads fill: `H5Pset_sieve_buf_size`."""

CALL_BYTES = 2_147_479_552
"""Most bytes that Linux moves in one call."""

FILE = np.dtype([("file_id", np.int32), ("size", np.int64), ("sample_bytes", np.int64), ("row_chunks", np.int64)])
"""A data file: `sample_bytes` of each of its samples; HDF5 chunks of a dataset that cover a sample."""

SAMPLE = np.dtype([("file", FILE), ("index", np.int64), ("opens", np.bool_), ("closes", np.bool_)])
"""A sample to be read: its file, its place in it from 0, whether the reader opens the file before, and closes it
afterwards."""

REQUEST = np.dtype([("sample", np.int64), ("op", np.int8), ("offset", np.int64), ("length", np.int64)])
"""An operation for the sample of this number; `op`: index into `OPS`."""


def rows_of(kind: np.dtype[Any], **columns: np.ndarray | int) -> np.ndarray:
    """Structured rows from columns of one length, or of one value for all rows."""
    found = np.empty(max(np.size(each) if np.ndim(each) else 0 for each in columns.values()), dtype=kind)
    for name in kind.names or ():
        found[name] = columns[name]
    return found


def numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For rows with `counts` items each: the row of each item, and its number in the row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the requests of a format depend on, except for the files.

    block_bytes: block size of the file system (`st_blksize`), which Python's buffered files read.
    odirect: whether `.npy` and `.npz` files are read past the page cache.
    whole: whether files of WHOLE_FILES are read whole and not decoded.
    hdf5: how HDF5 files lie on disk; None for other formats.
    """

    format: Format
    block_bytes: int = 4096
    samples_per_file: int = 1
    odirect: bool = False
    whole: bool = False
    hdf5: Hdf5Layout | None = None


class _Requests:
    """Collects the operations of samples part by part; each part comes after the earlier ones of its sample."""

    def __init__(self, samples: np.ndarray, layout: Layout) -> None:
        self.opens, self.index, self.layout = samples["opens"], samples["index"], layout
        self.size, self.sample_bytes, self.row_chunks = (
            samples["file"][name] for name in ("size", "sample_bytes", "row_chunks")
        )
        self.every, self.parts = np.ones(len(samples), dtype=bool), [np.empty(0, dtype=REQUEST)]

    def one(
        self, op: int, where: np.ndarray, offset: np.ndarray | int = NO_OFFSET, length: np.ndarray | int = 0
    ) -> None:
        """One operation for each sample of `where` (bool)."""
        sample = np.flatnonzero(where)
        offset, length = (np.broadcast_to(value, len(where))[sample] for value in (offset, length))
        self.parts.append(rows_of(REQUEST, sample=sample, op=op, offset=offset, length=length))

    def reads(self, sample: np.ndarray, offset: np.ndarray, length: np.ndarray) -> None:
        """Reads in the order of their samples."""
        self.parts.append(rows_of(REQUEST, sample=sample, op=READ, offset=offset, length=length))

    def run(self, where: np.ndarray, begin: np.ndarray | int, end: np.ndarray, size: int) -> None:
        """Reads of `size` bytes from `begin` to `end`, the last one short, for each sample of `where`."""
        begin, end = np.broadcast_to(begin, len(where)), np.broadcast_to(end, len(where))
        sample, number = numbered(np.where(where, np.maximum(-(-(end - begin) // size), 0), 0))
        offset = begin[sample] + number * size
        self.reads(sample, offset, np.minimum(size, end[sample] - offset))

    def buffered(self, *, first: np.ndarray | int, origin: int, piece: int, end: np.ndarray) -> None:
        """Reads of a file through a buffer of a block that holds its first block. The application reads up to `first`,
        then up to `origin` + k `piece` for k = 1, 2 ..., and finally up to `end`.

        Each request reads the whole blocks that it needs directly, past the buffer, and then one block into the buffer.
        """
        block = self.layout.block_bytes
        sample, number = numbered(np.where(self.opens, 1 + np.maximum(-(-(end - origin) // piece), 0), 0))
        first, stop = np.broadcast_to(first, len(self.opens))[sample], end[sample]
        until = np.where(number == 0, first, np.minimum(origin + number * piece, stop))
        before = np.where(number == 0, 0, np.where(number == 1, first, origin + (number - 1) * piece))
        filled = np.maximum(-(-before // block), 1) * block
        size, direct_end = self.size[sample], until // block * block
        direct = (direct_end > filled) & (size > filled)
        fill = (until % block > 0) & (until > filled) & (size > direct_end)
        offset = np.stack((filled, np.maximum(direct_end, filled)), axis=1)
        wanted = np.stack((direct_end - filled, np.full(len(sample), block)), axis=1)
        chosen, length = np.stack((direct, fill), axis=1), np.minimum(wanted, size[:, None] - offset)
        self.reads(np.repeat(sample, 2).reshape(-1, 2)[chosen], offset[chosen], length[chosen])


def sample_requests(samples: np.ndarray, layout: Layout) -> np.ndarray:
    """The operations (REQUEST) of each sample (SAMPLE), one sample after the other; includes the open and the close of
    its file if the reader does them for the sample. None for formats that are mapped into memory or made up."""
    opening, reads, stays_open = _TEMPLATES.get(layout.format, ((), _untouched, False))
    if layout.odirect and layout.format in ("npy", "npz"):
        opening, reads = (OPEN, STAT), _at_once
    elif layout.whole and not layout.odirect and layout.format in WHOLE_FILES:
        opening, reads = (OPEN, STAT, STAT), _whole
    requests = _Requests(samples, layout)
    for op in opening:
        requests.one(op, samples["opens"])
    reads(requests)
    if opening:
        requests.one(CLOSE, samples["closes" if stays_open else "opens"])
    found = np.concatenate(requests.parts)
    return found[np.argsort(found["sample"], kind="stable")]


def _untouched(requests: _Requests) -> None:
    """No call reads a sample."""


def _npz(to: _Requests) -> None:
    """An `.npz`, loaded as a whole when it is opened: the zip directory from the end, then the first array."""
    head = np.minimum(to.layout.block_bytes, to.size)
    to.one(READ, to.opens, 0, head)
    for before_end in (22, 0, 42, 124):
        to.one(READ, to.opens, to.size - before_end, before_end)
    to.one(READ, to.opens, 0, head)
    end = NPZ_DATA_OFFSET + to.layout.samples_per_file * to.sample_bytes
    # The header of the array is read in a piece of 4,096 bytes, the values in pieces of ARRAY_READ_BYTES.
    first = np.minimum(NPZ_DATA_OFFSET - 128 + 4096, end)
    to.buffered(first=first, origin=NPZ_DATA_OFFSET, piece=ARRAY_READ_BYTES, end=end)


def _whole(to: _Requests) -> None:
    """Python's `open(path, "rb").read()`: the whole file, then its end."""
    to.run(to.opens, 0, to.size, CALL_BYTES)
    to.one(READ, to.opens, to.size, 0)


def _npy(to: _Requests) -> None:
    """An `.npy`: the header through Python's buffer, the values through a C stream on the same file."""
    opens, size, block = to.opens, to.size, to.layout.block_bytes
    whole = np.maximum((size - block) // block, 0) * block
    for length in (block, 128, block):
        to.one(READ, opens, 0, np.minimum(length, size))
    to.one(READ, opens & (whole > 0), block, whole)
    to.one(READ, opens & (size > block + whole), block + whole, size - block - whole)


def _at_once(to: _Requests) -> None:
    """The whole file in one read, which is rounded up to blocks and ends with the file."""
    to.one(READ, to.opens, 0, to.size)


def _hdf5(to: _Requests) -> None:
    """The headers when the file is opened; then the sample from each of its datasets, contiguous or by chunks.

    A request below HDF5_SIEVE_BYTES fills the buffer of a contiguous dataset, up to its end. DLIO opens the dataset
    anew for each sample and the buffer is freed with it, so no sample finds data of an earlier one there.
    """
    hdf5, per_file = to.layout.hdf5, to.layout.samples_per_file
    assert hdf5 is not None  # the format is hdf5
    for read in HDF5_READS:
        to.one(READ, to.opens, *read)
    part, chunk = to.sample_bytes // len(hdf5.names), hdf5.chunk_shape[0] if hdf5.chunk_shape else 0
    for dataset in range(len(hdf5.names)):
        if chunk:
            rows = -(-per_file // chunk)
            row_bytes = to.row_chunks * hdf5.chunk_bytes
            begin = hdf5.data_offset + (dataset * rows + to.index // chunk) * row_bytes
            _hdf5_index(to, hdf5, rows)
            to.run(to.every, begin, begin + row_bytes, hdf5.chunk_bytes)
        else:
            offset = hdf5.data_offset + (dataset * per_file + to.index) * part
            end = hdf5.data_offset + (dataset + 1) * per_file * part
            to.one(READ, to.every, offset, np.maximum(part, np.minimum(HDF5_SIEVE_BYTES, end - offset)))


def _hdf5_index(to: _Requests, hdf5: Hdf5Layout, rows: int) -> None:
    """The index of a chunked dataset with this many rows of chunks, read when its file is opened."""
    header, header_bytes, near, array_bytes, chunk_bytes = HDF5_INDEX
    chunks = rows * to.row_chunks
    array = np.where(chunks > NEAR_HDF5_CHUNKS, HDF5_HEADER_BYTES + hdf5.chunk_bytes, near)
    to.one(READ, to.opens & (chunks > 1), header, header_bytes)
    whole = to.opens & (chunks > 1) & (chunks <= HDF5_PAGE_CHUNKS)
    to.one(READ, whole, array, array_bytes + chunk_bytes * chunks)
    # A longer array is read by the pages that hold the sample's chunks, behind a bit for each page.
    paged = to.opens & (chunks > HDF5_PAGE_CHUNKS)
    bits = (chunks - 1) // (8 * HDF5_PAGE_CHUNKS) + 1
    to.one(READ, paged, array, array_bytes + bits)
    begin = to.index // hdf5.chunk_shape[0] * to.row_chunks
    first, last = begin // HDF5_PAGE_CHUNKS, (begin + to.row_chunks - 1) // HDF5_PAGE_CHUNKS
    sample, number = numbered(np.where(paged, last - first + 1, 0))
    page, page_bytes = first[sample] + number, chunk_bytes * HDF5_PAGE_CHUNKS + HDF5_CHECKSUM_BYTES
    held = np.minimum(HDF5_PAGE_CHUNKS, chunks[sample] - page * HDF5_PAGE_CHUNKS)
    offset = array[sample] + array_bytes + bits[sample] + page * page_bytes
    to.reads(sample, offset, chunk_bytes * held + HDF5_CHECKSUM_BYTES)


def _csv(to: _Requests) -> None:
    """A text that is read to its end, which is met twice."""
    to.run(to.opens, 0, to.size, CSV_READ_BYTES)
    for _ in range(2):
        to.one(READ, to.opens, to.size, 0)


def _jpeg(to: _Requests) -> None:
    """An image that is decoded in pieces of IMAGE_READ_BYTES, from its first byte to its end."""
    to.one(READ, to.opens, 0, np.minimum(to.layout.block_bytes, to.size))
    end = -(-to.size // IMAGE_READ_BYTES) * IMAGE_READ_BYTES
    to.buffered(first=0, origin=0, piece=IMAGE_READ_BYTES, end=end)
    to.one(READ, to.opens, to.size, 0)


def _png(to: _Requests) -> None:
    """An image whose data are read in pieces of IMAGE_READ_BYTES, from their begin to their end."""
    to.one(READ, to.opens, 0, np.minimum(to.layout.block_bytes, to.size))
    first = np.minimum(PNG_DATA_OFFSET, to.size)
    to.buffered(first=first, origin=PNG_DATA_OFFSET, piece=IMAGE_READ_BYTES, end=to.size)


def _indexed_binary(to: _Requests) -> None:
    """One read of the sample, or of a block if the sample is smaller."""
    begin = to.index * to.sample_bytes
    length = np.clip(to.size - begin, 0, np.maximum(to.sample_bytes, to.layout.block_bytes))
    to.one(READ, to.every, begin, length)


_TEMPLATES: Mapping[Format, tuple[tuple[int, ...], Callable[[_Requests], None], bool]] = {
    "npz": ((OPEN, STAT, STAT), _npz, False),
    "npy": ((OPEN, STAT), _npy, False),
    "hdf5": ((OPEN, STAT), _hdf5, True),
    "csv": ((STAT, OPEN, STAT), _csv, False),
    "jpeg": ((OPEN, STAT), _jpeg, False),
    "png": ((OPEN, STAT), _png, False),
    "indexed_binary": ((OPEN, STAT), _indexed_binary, True),
}
"""Format -> how a reader opens a file, its reads, and whether the file may stay open for further samples."""
