"""Twins of HDF5 files: real HDF5 files whose chunks lie where the recorded ones lay, with their stored sizes.

So a request at a recorded offset finds the recorded chunk, whether it is made by the library or past it. What is not
metadata is the same noise as in a plain file; chunks that the recorded job compressed are deflated noise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.hdf5.compressed_chunks import deflate_to
from dxt_replay.replay.hdf5.file_metadata import metadata_of
from dxt_replay.replay.hdf5.layout import SUPERBLOCK_BYTES, DatasetLayout, Hdf5Layout
from dxt_replay.replay.target.content import BLOCK_BYTES, PlainStager, make_noise

_RECOGNISED_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Stager:
    """Makes a file of one layout that has `data_bytes` bytes besides its metadata."""

    layout: Hdf5Layout
    data_bytes: int

    may_be_sparse = False
    may_start_in_place = False

    @property
    def file_bytes(self) -> int:
        """Size of the whole file: the bytes that its accesses need, and the metadata."""
        return metadata_of(self.layout, self.data_bytes).file_bytes

    def fill(self, fd: int, record_id: int, size: int) -> Iterator[int]:
        """Noise, then the compressed chunks into it, then the metadata. `size` is `file_bytes`."""
        metadata = metadata_of(self.layout, self.data_bytes)
        yield from PlainStager().fill(fd, record_id, metadata.tail_offset)
        for offset, chunk in compressed_chunks(self.layout, record_id):
            _write(fd, chunk, offset)
        _write(fd, metadata.tail, metadata.tail_offset)
        _write(fd, metadata.superblock, 0)
        yield len(metadata.tail)

    def made(self, fd: int, record_id: int, size: int) -> bool:
        """Checks the superblock, which is written last and points to the metadata, and the noise behind it."""
        metadata = metadata_of(self.layout, self.data_bytes)
        if size != metadata.file_bytes or os.pread(fd, SUPERBLOCK_BYTES, 0) != metadata.superblock:
            return False
        starts, _ = self.layout.extents
        end = min(_RECOGNISED_BYTES, int(starts[0]))
        return os.pread(fd, end - SUPERBLOCK_BYTES, SUPERBLOCK_BYTES) == _noise(record_id, 0)[SUPERBLOCK_BYTES:end]


def compressed_chunks(layout: Hdf5Layout, record_id: int) -> Iterator[tuple[int, bytes]]:
    """Offset and stored bytes of the chunks that are not plain noise."""
    for dataset in layout.datasets:
        if dataset.compressed:
            for offset, size in zip(dataset.offset.tolist(), dataset.size.tolist(), strict=True):
                yield offset, _compressed_chunk(dataset, record_id, offset, size)


def _compressed_chunk(dataset: DatasetLayout, record_id: int, offset: int, size: int) -> bytes:
    chunk_bytes = dataset.chunk_bytes
    # the noise of another block than the file's own, which is there already
    blocks = range(-(-chunk_bytes // BLOCK_BYTES))
    noise = b"".join(_noise(record_id ^ offset, block, min(chunk_bytes, BLOCK_BYTES)) for block in blocks)
    return deflate_to(noise, stored=size, logical=chunk_bytes)


def _noise(record_id: int, block: int, size: int = _RECOGNISED_BYTES) -> bytes:
    words = np.empty(-(-size // 8), dtype=np.uint64)
    make_noise(record_id, block, words)
    return words.tobytes()


def _write(fd: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
