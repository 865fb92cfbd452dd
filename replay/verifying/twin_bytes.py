"""The bytes of a staged file against those that its seed makes again, without a second copy of the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

import numpy as np

from dxt_replay.replay.hdf5.file_metadata import metadata_of
from dxt_replay.replay.hdf5.layout import Hdf5Layout
from dxt_replay.replay.target.content import BLOCK_BYTES, make_noise
from dxt_replay.replay.target.hdf5_twin import compressed_chunks
from dxt_replay.replay.target.manifest_files import ManifestFile

Layouts = Mapping[str, Hdf5Layout]
"""Digest of a layout -> the layout: the manifest has digests alone, captures have the layouts."""

Found = tuple[int, str, str]
"""Offset of the first byte that differs, and in hex what was expected there and what was found."""

_SHOWN_BYTES = 8


def unknown_layout(entry: ManifestFile, layouts: Layouts) -> bool:
    """Whether the file is HDF5 with chunks that no given capture places."""
    return entry.layout is not None and (entry.layout not in layouts or entry.data_bytes is None)


def first_difference(fd: int, entry: ManifestFile, begin: int, end: int, layouts: Layouts) -> Found | None:
    """The first difference in [begin, end) of an open file of the right size; None where all bytes are right.

    `begin` is a multiple of BLOCK_BYTES. An HDF5 file is compared as a whole. Raises: OSError.
    """
    if entry.sparse:
        return _first_data(fd, begin, end)
    if entry.layout is None:
        return _noise_difference(fd, entry.record_id, begin, end, [])
    return _hdf5_difference(fd, entry, layouts[entry.layout])


def _noise_difference(fd: int, record_id: int, begin: int, end: int, others: list[tuple[int, int]]) -> Found | None:
    """`others`: ascending [begin, end) stretches that hold something else than noise."""
    words = np.empty(BLOCK_BYTES // 8, dtype=np.uint64)
    buffer = bytearray(BLOCK_BYTES)
    there = np.frombuffer(buffer, dtype=np.uint64)
    for offset in range(begin, end, BLOCK_BYTES):
        size = min(BLOCK_BYTES, end - offset)
        make_noise(record_id, offset // BLOCK_BYTES, words)
        read = _read(fd, memoryview(buffer)[:size], offset)
        if read == size == BLOCK_BYTES and np.array_equal(words, there):
            continue
        wrong = words.view(np.uint8)[:size] != there.view(np.uint8)[:size]
        wrong[read:] = True
        for first, last in others:
            if first < offset + size and last > offset:
                wrong[max(first - offset, 0) : max(last - offset, 0)] = False
        if wrong.any():
            return _found(offset, int(wrong.argmax()), words.tobytes()[:size], bytes(buffer[:read]))
    return None


def _hdf5_difference(fd: int, entry: ManifestFile, layout: Hdf5Layout) -> Found | None:
    metadata = metadata_of(layout, entry.data_bytes or 0)
    chunks = [(d.offset, d.offset + d.size) for d in layout.datasets if d.compressed]
    others = [(0, len(metadata.superblock)), *((int(a), int(b)) for pair in chunks for a, b in zip(*pair, strict=True))]
    found = [_noise_difference(fd, entry.record_id, 0, metadata.tail_offset, sorted(others))]
    found += [_text_difference(fd, offset, chunk) for offset, chunk in compressed_chunks(layout, entry.record_id)]
    found += [_text_difference(fd, 0, metadata.superblock), _text_difference(fd, metadata.tail_offset, metadata.tail)]
    return min((difference for difference in found if difference is not None), default=None)


def _text_difference(fd: int, offset: int, expected: bytes) -> Found | None:
    buffer = bytearray(len(expected))
    there = bytes(buffer[: _read(fd, memoryview(buffer), offset)])
    if there == expected:
        return None
    same = next((at for at, pair in enumerate(zip(expected, there)) if pair[0] != pair[1]), len(there))  # noqa: B905
    return _found(offset, same, expected, there)


def _first_data(fd: int, begin: int, end: int) -> Found | None:
    """The first byte in [begin, end) of a hole that is not 0; holes are skipped, not read."""
    at = begin
    buffer = bytearray(BLOCK_BYTES)
    while at < end:
        try:
            at = max(at, os.lseek(fd, at, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise
        size = min(BLOCK_BYTES, end - at)
        if size <= 0:
            return None
        read = _read(fd, memoryview(buffer)[:size], at)
        wrong = np.frombuffer(buffer, dtype=np.uint8)[:read] != 0
        if read < size or wrong.any():
            first = int(wrong.argmax()) if wrong.any() else read
            return _found(at, first, bytes(size), bytes(buffer[:read]))
        at += size
    return None


def _read(fd: int, into: memoryview, offset: int) -> int:
    """Fill `into` from `offset`; how many bytes there were. Raises: OSError."""
    done = 0
    while done < len(into) and (count := os.preadv(fd, [into[done:]], offset + done)):
        done += count
    return done


def _found(offset: int, first: int, expected: bytes, there: bytes) -> Found:
    shown = there[first : first + _SHOWN_BYTES].hex() or "the end of the file"
    return offset + first, expected[first : first + _SHOWN_BYTES].hex(), shown
