"""The operations with which a reader fetches samples: templates by file format, vectorised over samples. Pure.

Offsets and lengths were measured with strace on DLIO's readers under Python 3.11 with NumPy, h5py and Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.description import WHOLE_FILES, Format
from dxt_replay.workloads.hdf5_data_set import HDF5_HEADER_BYTES, HDF5_PAGE_CHUNKS, NEAR_HDF5_CHUNKS

OPEN, CLOSE, STAT = (OPS.index(name) for name in ("open", "close", "stat"))
NO_OFFSET = -1

ARRAY_READ_BYTES = 1 << 18
"""Size of NumPy's requests to a zip member (`numpy.lib.format.BUFFER_SIZE`)."""

NPZ_DATA_OFFSET = 183
"""Offset of the values of the first array of an `.npz`: after a zip header of 55 bytes and an `.npy` header of 128."""

IMAGE_READ_BYTES = 1 << 16
"""Size of Pillow's requests to an image file (`ImageFile.MAXBLOCK`)."""

PNG_DATA_OFFSET = 41
"""Offset of the first compressed data of a PNG: after its signature and header."""

CSV_READ_BYTES = 1 << 18
"""Size of pandas' requests to a CSV file."""

LATEST_HDF5_READS = ((0, 8), (0, 48), (48, 512), (179, 512))
"""Offset and length of the reads with which HDF5 opens a file of `libver="latest"` and its first dataset."""

LATEST_HDF5_INDEX = (447, 28, 475, 18, 8)
"""The index of a dataset of several chunks in such a file: offset and length of its header, offset of the array behind
it, bytes of that array without chunks, and bytes per chunk."""

HDF5_CHECKSUM_BYTES = 4
"""Bytes behind each page of the array; an array with more chunks than a page is read by pages."""

OLDER_HDF5_READS = ((0, 8), (0, 48), (48, 48), (96, 512), None, (680, 512), (136, 544), (1072, 328), (800, 512))
"""The same for a file of HDF5's default layout; None stands for a stat of the file."""

OLDER_HDF5_INDEX_READS = ((1400, 3136),)
"""Reads of the chunk index of such a file where one node holds it."""

HDF5_SIEVE_BYTES = 1 << 16
"""HDF5's buffer for each open dataset (its "sieve"), which smaller reads fill: `H5Pset_sieve_buf_size`."""

CALL_BYTES = 2_147_479_552
"""Most bytes that Linux moves in one call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """The operations of m samples, one sample after the other.

    counts: int64 (m,), operations of each sample.
    op: int8 (n,), index into `OPS`. offset, length: int64 (n,), bytes.
    """

    counts: np.ndarray
    op: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    @property
    def sample(self) -> np.ndarray:
        """int64 (n,): the sample of each operation."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Reads:
    """The layout of HDF5 files on disk.

    older: whether they have HDF5's default layout, not `libver="latest"`. data_offset: of the first dataset.
    datasets: those that make up a sample. chunk_rows: samples in a chunk; 0 for contiguous datasets.
    chunk_bytes: a chunk as stored, after its compression.
    """

    older: bool
    data_offset: int
    datasets: int = 1
    chunk_rows: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the requests of a format depend on, except for the files.

    block_bytes: block size of the file system (`st_blksize`), which Python's buffered files read.
    samples_per_file: samples in each file.
    odirect: whether `.npy` and `.npz` files are read past the page cache.
    whole: whether files of WHOLE_FILES are read whole and not decoded.
    hdf5: how HDF5 files lie on disk; None for other formats.
    """

    block_bytes: int = 4096
    samples_per_file: int = 1
    odirect: bool = False
    whole: bool = False
    hdf5: Hdf5Reads | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """m samples to be read, arrays (m,).

    size: bytes of the file. sample_bytes: bytes of the sample. index: its place in the file, from 0.
    opens, closes: bool, whether the reader opens the file before the sample, and closes it afterwards.
    row_chunks: HDF5 chunks of a dataset that cover the sample.
    """

    size: np.ndarray
    sample_bytes: np.ndarray
    row_chunks: np.ndarray
    index: np.ndarray
    opens: np.ndarray
    closes: np.ndarray


class RequestList:
    """Collects operations of m samples part by part; each part comes after the earlier ones of its sample."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def one(
        self, op: int, where: np.ndarray, offset: np.ndarray | int = NO_OFFSET, length: np.ndarray | int = 0
    ) -> None:
        """One operation for each sample of `where` (bool)."""
        sample = np.flatnonzero(where)
        offset, length = (np.broadcast_to(value, len(where))[sample] for value in (offset, length))
        self._parts.append((sample, np.full(len(sample), op, dtype=np.int8), offset, length))

    def reads(self, sample: np.ndarray, offset: np.ndarray, length: np.ndarray) -> None:
        """Reads in the order of their samples."""
        self._parts.append((sample, np.full(len(sample), READ, dtype=np.int8), offset, length))

    def run(self, where: np.ndarray, begin: np.ndarray | int, end: np.ndarray, size: int) -> None:
        """Reads of `size` bytes from `begin` to `end`, the last one short, for each sample of `where`."""
        begin, end = np.broadcast_to(begin, len(where)), np.broadcast_to(end, len(where))
        counts = np.where(where, np.maximum(-(-(end - begin) // size), 0), 0)
        sample, number = numbered(counts)
        offset = begin[sample] + number * size
        self.reads(sample, offset, np.minimum(size, end[sample] - offset))

    def requests(self) -> Requests:
        """All operations in order."""
        sample = np.concatenate([part[0] for part in self._parts])
        order = np.argsort(sample, kind="stable")
        op, offset, length = (np.concatenate([part[column] for part in self._parts])[order] for column in (1, 2, 3))
        return Requests(
            counts=np.bincount(sample, minlength=self._samples).astype(np.int64),
            op=op.astype(np.int8),
            offset=offset.astype(np.int64),
            length=length.astype(np.int64),
        )


def numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For rows with `counts` items each: the row of each item, and its number in the row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def sample_requests(file_format: Format, samples: Samples, layout: Layout) -> Requests:
    """The operations of each sample; includes the open and the close of its file if the reader does them for each
    sample."""
    requests = RequestList(len(samples.size))
    template = _TEMPLATES.get(file_format, _UNTOUCHED)
    if layout.odirect and file_format in ("npy", "npz"):
        template = _ODIRECT
    elif layout.whole and not layout.odirect and file_format in WHOLE_FILES:
        template = _WHOLE
    for op in template.opening:
        requests.one(op, samples.opens)
    template.reads(requests, samples, layout)
    if template.opening:
        requests.one(CLOSE, samples.closes if template.stays_open else samples.opens)
    return requests.requests()


def _npz(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """An `.npz`, loaded as a whole when it is opened: the zip directory from the end, then the first array."""
    opens, size, block = samples.opens, samples.size, layout.block_bytes
    requests.one(READ, opens, 0, np.minimum(block, size))
    for before_end in (22, 0, 42, 124):
        requests.one(READ, opens, size - before_end, before_end)
    requests.one(READ, opens, 0, np.minimum(block, size))
    end = NPZ_DATA_OFFSET + layout.samples_per_file * samples.sample_bytes
    # The header of the array is read in a piece of 4,096 bytes, the values in pieces of ARRAY_READ_BYTES.
    first = np.minimum(NPZ_DATA_OFFSET - 128 + 4096, end)
    _buffered(requests, samples, block, first=first, origin=NPZ_DATA_OFFSET, piece=ARRAY_READ_BYTES, end=end)


def _buffered(
    requests: RequestList,
    samples: Samples,
    block: int,
    *,
    first: np.ndarray | int,
    origin: int,
    piece: int,
    end: np.ndarray,
) -> None:
    """Reads of a file with a buffer of `block` bytes that holds its first block. The application reads up to `first`,
    then up to `origin` + k `piece` for k = 1, 2 ..., and finally up to `end`.

    Each request reads the whole blocks that it needs directly, past the buffer, and then one block into the buffer.
    """
    counts = np.where(samples.opens, 1 + np.maximum(-(-(end - origin) // piece), 0), 0)
    sample, number = numbered(counts)
    first, stop = np.broadcast_to(first, len(samples.opens))[sample], end[sample]
    until = np.where(number == 0, first, np.minimum(origin + number * piece, stop))
    before = np.where(number == 0, 0, np.where(number == 1, first, origin + (number - 1) * piece))
    filled = np.maximum(-(-before // block), 1) * block
    size, direct_end = samples.size[sample], until // block * block
    direct = (direct_end > filled) & (size > filled)
    fill = (until % block > 0) & (until > filled) & (size > direct_end)
    offset = np.stack((filled, np.maximum(direct_end, filled)), axis=1)
    length = np.minimum(np.stack((direct_end - filled, np.full(len(sample), block)), axis=1), size[:, None] - offset)
    chosen = np.stack((direct, fill), axis=1)
    requests.reads(np.repeat(sample, 2).reshape(-1, 2)[chosen], offset[chosen], length[chosen])


def _whole(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """Python's `open(path, "rb").read()`: the whole file, then its end."""
    requests.run(samples.opens, 0, samples.size, CALL_BYTES)
    requests.one(READ, samples.opens, samples.size, 0)


def _npy(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """An `.npy`: the header through Python's buffer, the values through a C stream on the same file."""
    opens, size, block = samples.opens, samples.size, layout.block_bytes
    whole = np.maximum((size - block) // block, 0) * block
    for length in (block, 128, block):
        requests.one(READ, opens, 0, np.minimum(length, size))
    requests.one(READ, opens & (whole > 0), block, whole)
    requests.one(READ, opens & (size > block + whole), block + whole, size - block - whole)


def _odirect(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """The whole file in one read, which is rounded up to blocks and ends with the file."""
    requests.one(READ, samples.opens, 0, samples.size)


def _hdf5(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """The headers when the file is opened; then the sample from each of its datasets, contiguous or by chunks."""
    assert layout.hdf5 is not None
    hdf5, per_file = layout.hdf5, layout.samples_per_file
    every = np.ones(len(samples.size), dtype=bool)
    for read in OLDER_HDF5_READS if hdf5.older else LATEST_HDF5_READS:
        requests.one(STAT, samples.opens) if read is None else requests.one(READ, samples.opens, *read)
    part = samples.sample_bytes // hdf5.datasets
    for dataset in range(hdf5.datasets):
        if hdf5.chunk_rows:
            row_bytes = samples.row_chunks * hdf5.chunk_bytes
            rows = dataset * -(-per_file // hdf5.chunk_rows) + samples.index // hdf5.chunk_rows
            begin = hdf5.data_offset + rows * row_bytes
            _hdf5_index(requests, samples, hdf5, -(-per_file // hdf5.chunk_rows))
            requests.run(every, begin, begin + row_bytes, hdf5.chunk_bytes)
        else:
            offset = hdf5.data_offset + (dataset * per_file + samples.index) * part
            end = hdf5.data_offset + (dataset + 1) * per_file * part
            requests.one(READ, every, offset, sieved_bytes(offset, part, end))


def sieved_bytes(offset: np.ndarray, wanted: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Bytes that HDF5 reads for the first `wanted` ones at `offset` in a contiguous dataset that ends at `end`.

    A request below HDF5_SIEVE_BYTES fills the buffer of the dataset. DLIO opens the dataset anew for each sample and
    the buffer is freed with it, so no sample finds data of an earlier one there.
    """
    return np.maximum(wanted, np.minimum(HDF5_SIEVE_BYTES, end - offset))


def _hdf5_index(requests: RequestList, samples: Samples, hdf5: Hdf5Reads, rows: int) -> None:
    """The index of a chunked dataset with this many rows of chunks, read when its file is opened."""
    if hdf5.older:
        for offset, length in OLDER_HDF5_INDEX_READS:
            requests.one(READ, samples.opens, offset, length)
        return
    header, header_bytes, near, array_bytes, chunk_bytes = LATEST_HDF5_INDEX
    chunks = rows * samples.row_chunks
    array = np.where(chunks > NEAR_HDF5_CHUNKS, HDF5_HEADER_BYTES + hdf5.chunk_bytes, near)
    requests.one(READ, samples.opens & (chunks > 1), header, header_bytes)
    whole = samples.opens & (chunks > 1) & (chunks <= HDF5_PAGE_CHUNKS)
    requests.one(READ, whole, array, array_bytes + chunk_bytes * chunks)
    # A longer array is read by the pages that hold the sample's chunks, behind a bit for each page.
    paged = samples.opens & (chunks > HDF5_PAGE_CHUNKS)
    bits = (chunks - 1) // (8 * HDF5_PAGE_CHUNKS) + 1
    requests.one(READ, paged, array, array_bytes + bits)
    begin = samples.index // hdf5.chunk_rows * samples.row_chunks
    first, last = begin // HDF5_PAGE_CHUNKS, (begin + samples.row_chunks - 1) // HDF5_PAGE_CHUNKS
    sample, number = numbered(np.where(paged, last - first + 1, 0))
    page, page_bytes = first[sample] + number, chunk_bytes * HDF5_PAGE_CHUNKS + HDF5_CHECKSUM_BYTES
    held = np.minimum(HDF5_PAGE_CHUNKS, chunks[sample] - page * HDF5_PAGE_CHUNKS)
    offset = array[sample] + array_bytes + bits[sample] + page * page_bytes
    requests.reads(sample, offset, chunk_bytes * held + HDF5_CHECKSUM_BYTES)


def _csv(requests: RequestList, samples: Samples, layout: Layout) -> None:
    requests.run(samples.opens, 0, samples.size, CSV_READ_BYTES)
    for _ in range(2):
        requests.one(READ, samples.opens, samples.size, 0)


def _jpeg(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """An image that is decoded in pieces of IMAGE_READ_BYTES, from its first byte to its end."""
    block, size, piece = layout.block_bytes, samples.size, IMAGE_READ_BYTES
    requests.one(READ, samples.opens, 0, np.minimum(block, size))
    _buffered(requests, samples, block, first=0, origin=0, piece=piece, end=-(-size // piece) * piece)
    requests.one(READ, samples.opens, size, 0)


def _png(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """An image whose data are read in pieces of IMAGE_READ_BYTES, from their begin to their end."""
    block, size, origin = layout.block_bytes, samples.size, PNG_DATA_OFFSET
    requests.one(READ, samples.opens, 0, np.minimum(block, size))
    first = np.minimum(origin, size)
    _buffered(requests, samples, block, first=first, origin=origin, piece=IMAGE_READ_BYTES, end=size)


def _indexed_binary(requests: RequestList, samples: Samples, layout: Layout) -> None:
    """One read of the sample, or of a block if the sample is smaller."""
    every = np.ones(len(samples.size), dtype=bool)
    begin = samples.index * samples.sample_bytes
    requests.one(
        READ, every, begin, np.clip(samples.size - begin, 0, np.maximum(samples.sample_bytes, layout.block_bytes))
    )


def _untouched(requests: RequestList, samples: Samples, layout: Layout) -> None:
    requests.one(READ, np.zeros(len(samples.size), dtype=bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """How a reader opens a file, its reads afterwards, and whether the file may stay open for further samples."""

    reads: Callable[[RequestList, Samples, Layout], None]
    opening: tuple[int, ...] = (OPEN, STAT)
    stays_open: bool = False


_TEMPLATES: Mapping[Format, _Template] = {
    "npz": _Template(reads=_npz, opening=(OPEN, STAT, STAT)),
    "npy": _Template(reads=_npy),
    "hdf5": _Template(reads=_hdf5, stays_open=True),
    "csv": _Template(reads=_csv, opening=(STAT, OPEN, STAT)),
    "jpeg": _Template(reads=_jpeg),
    "png": _Template(reads=_png),
    "indexed_binary": _Template(reads=_indexed_binary, stays_open=True),
}
_ODIRECT, _WHOLE = _Template(reads=_odirect), _Template(reads=_whole, opening=(OPEN, STAT, STAT))
_UNTOUCHED = _Template(reads=_untouched, opening=())
"""Formats that are mapped into memory or synthesised: no call reads them."""


def index_requests(samples_per_file: int, files: int) -> Requests:
    """The reads with which a worker loads one index file of each of `files` files of the format `indexed_binary`."""
    every, requests = np.ones(files, dtype=bool), RequestList(files)
    for op, offset, length in ((OPEN, NO_OFFSET, 0), (STAT, NO_OFFSET, 0), (READ, 0, 8 * samples_per_file)):
        requests.one(op, every, offset, length)
    requests.one(CLOSE, every)
    return requests.requests()
