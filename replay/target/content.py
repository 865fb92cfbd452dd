"""What fills a staged file: bytes that do not compress, made faster than a disk takes them.

A `Stager` makes the files of one format; HDF5 has its own where the twins are real HDF5 files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from dxt_replay.traces.units import MIB

BLOCK_BYTES = MIB
"""Bytes written at a time: with the noise that they are made from they fit into a core's cache."""

_NOISE_SEED = 0x5D7C_3A11_0D15_7A6E
_MASK = (1 << 64) - 1


class Stager(Protocol):
    """Makes files of one format. Stateless: a byte of a file follows from record id and offset alone."""

    may_be_sparse: bool
    """Whether a hole of the right size is a valid file of the format."""

    may_start_in_place: bool
    """Whether it makes noise from the first byte on, by which a file that was cut short is known."""

    def fill(self, fd: int, record_id: int, size: int) -> Iterator[int]:
        """Fill an empty file to `size` bytes; yields the number of bytes after each write. Raises: OSError."""

    def made(self, fd: int, record_id: int, size: int) -> bool:
        """Whether an open file of the right size starts as this stager would have begun it."""


class PlainStager:
    """Noise from the first byte to the last."""

    may_be_sparse = True
    may_start_in_place = True

    def fill(self, fd: int, record_id: int, size: int) -> Iterator[int]:
        buffer = bytearray(min(BLOCK_BYTES, -(-size // 8) * 8))
        words = np.frombuffer(buffer, dtype=np.uint64)
        for offset in range(0, size, BLOCK_BYTES):
            make_noise(record_id, offset // BLOCK_BYTES, words)
            data = memoryview(buffer)[: size - offset]
            done = 0
            while done < len(data):
                done += os.write(fd, data[done:])
            yield done

    def made(self, fd: int, record_id: int, size: int) -> bool:
        start = min(size, 4096)
        words = np.empty(4096 // 8, dtype=np.uint64)
        make_noise(record_id, 0, words)
        return os.pread(fd, start, 0) == words.tobytes()[:start]


STAGERS: Mapping[str, Stager] = {}
"""Stagers of single formats (`traces.schema.FORMATS`); every other format is plain."""

_PLAIN = PlainStager()


def stager_of(file_format: str) -> Stager:
    """The stager of a format."""
    return STAGERS.get(file_format, _PLAIN)


def make_noise(record_id: int, block: int, words: np.ndarray) -> None:
    """Fill `words`, uint64[up to BLOCK_BYTES / 8], with the start of block number `block` of a file.

    One block of noise, each word combined with a key of this file and block: neither a compressor, which
    looks for repeated bytes, nor deduplication finds anything, and it is several times as fast as a generator.
    """
    key = np.uint64(_mix(record_id ^ _mix(block)))
    np.bitwise_xor(noise_block()[: len(words)], key, out=words)


@functools.cache
def noise_block() -> np.ndarray:
    """The noise that every file is made from, uint64[BLOCK_BYTES / 8]; not to be changed."""
    return np.random.Generator(np.random.SFC64(_NOISE_SEED)).integers(0, 1 << 64, BLOCK_BYTES // 8, dtype=np.uint64)


def _mix(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), which spreads each bit over all 64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
