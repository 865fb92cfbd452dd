"""Twins of HDF5 files: real HDF5 files with chunks at the recorded places and of the recorded stored sizes.

So a request at a recorded offset finds the recorded chunk, through the library or past it. All bytes but the metadata
are the same noise as in a plain file; compressed chunks are deflated noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dxt_replay.replay.hdf5.compressed_chunks import deflate_to
from dxt_replay.replay.hdf5.file_metadata import Metadata, metadata_of
from dxt_replay.replay.hdf5.layout import DatasetLayout, Hdf5Layout
from dxt_replay.replay.target.content import BLOCK_BYTES, Content, make_noise


@dataclass(kw_only=True, eq=False)
class Hdf5Inserts:
    """The metadata and compressed chunks of a file of one layout with `data_bytes` bytes of data; the rest is noise."""

    layout: Hdf5Layout
    data_bytes: int
    record_id: int
    _chunk: tuple[int, bytes] = (-1, b"")
    """The compressed chunk that was made last: the next block may hold the rest of it."""

    @cached_property
    def metadata(self) -> Metadata:
        """All bytes of the file outside its datasets."""
        return metadata_of(self.layout, self.data_bytes)

    @cached_property
    def _chunks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64 each: offset, stored size, and number of the dataset of all compressed chunks, ascending."""
        offset, size, owner = (
            np.concatenate([np.zeros(0, dtype=np.int64), *found])
            for found in zip(
                *(
                    (dataset.offset, dataset.size, np.full(len(dataset.size), number))
                    for number, dataset in enumerate(self.layout.datasets)
                    if dataset.compressed
                ),
                strict=True,
            )
        )
        order = np.argsort(offset, kind="stable")
        return offset[order], size[order], owner[order]

    def put_into(self, data: np.ndarray, begin: int) -> None:
        """Overwrite what is not noise in `data`, the bytes (uint8) of the file from `begin` on."""
        if any(dataset.compressed for dataset in self.layout.datasets):
            offset, size, owner = self._chunks
            first = np.searchsorted(offset + size, begin, side="right")
            for row in range(first, np.searchsorted(offset, begin + len(data))):
                dataset = self.layout.datasets[owner[row]]
                _overlay(data, begin, self._compressed(dataset, int(offset[row]), int(size[row])), int(offset[row]))
        _overlay(data, begin, self.metadata.superblock, 0)
        _overlay(data, begin, self.metadata.tail, self.metadata.tail_offset)

    def _compressed(self, dataset: DatasetLayout, offset: int, size: int) -> bytes:
        if self._chunk[0] != offset:
            chunk_bytes = dataset.chunk_bytes
            words = -(-min(chunk_bytes, BLOCK_BYTES) // 8)
            noise = np.empty((-(-chunk_bytes // BLOCK_BYTES), words), dtype=np.uint64)
            # the noise of another block than the file's own, which is there already
            for number, block in enumerate(noise):
                make_noise(self.record_id ^ offset, number, block)
            self._chunk = offset, deflate_to(noise.tobytes(), stored=size, logical=chunk_bytes)
        return self._chunk[1]


def hdf5_bytes(layout: Hdf5Layout, data_bytes: int) -> int:
    """Size of the whole file: the bytes that its accesses need, and the metadata."""
    return metadata_of(layout, data_bytes).file_bytes


def file_content(record_id: int, size: int, layout: Hdf5Layout | None, data_bytes: int) -> Content:
    """The content of a staged file of `size` bytes. `data_bytes`: bytes that accesses to a real HDF5 file need."""
    inserts = None if layout is None else Hdf5Inserts(layout=layout, data_bytes=data_bytes, record_id=record_id)
    return Content(record_id=record_id, size=size, inserts=inserts)


def _overlay(data: np.ndarray, begin: int, text: bytes, offset: int) -> None:
    """Put those bytes of `text`, which is at `offset`, that lie in `data`."""
    first, last = max(begin, offset), min(begin + len(data), offset + len(text))
    if first < last:
        data[first - begin : last - begin] = np.frombuffer(text, dtype=np.uint8)[first - offset : last - offset]
