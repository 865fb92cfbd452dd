"""The bytes of staged files. They do not compress, and are made faster than a disk takes them.

Each byte is a function of the record id of its file, its offset and, in a real HDF5 file, the layout of the chunks. So
any block of a file can be made again, to check it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.target.protocol import Reader
from dxt_replay.traces.units import MIB

BLOCK_BYTES = MIB  # Bytes written at a time: with the noise that they are made from they fit into a core's cache
_NOISE_SEED = 0x5D7C_3A11_0D15_7A6E
_MASK = (1 << 64) - 1
_SHOWN_BYTES = 8

Difference = tuple[int, str, str]
"""Offset of the first byte that differs, and in hex what was expected there and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The `size` bytes of a staged file: the noise of its record id, or zeros for a hole.

    `inserts`: (offset, bytes) of what is not noise, such as the metadata of an HDF5 file."""

    record_id: int
    size: int
    inserts: Sequence[tuple[int, bytes]] = ()
    is_hole: bool = False

    def block(self, number: int, words: np.ndarray) -> memoryview:
        """The bytes of block `number`, or as many as `words`, uint64[up to BLOCK_BYTES / 8], in which they are made."""
        begin = number * BLOCK_BYTES
        if self.is_hole:
            words[:] = 0
        else:
            make_noise(self.record_id, number, words)
        data = words.view(np.uint8)[: self.size - begin]
        for offset, text in self.inserts:
            first, last = max(begin, offset), min(begin + len(data), offset + len(text))
            if first < last:
                data[first - begin : last - begin] = np.frombuffer(text, dtype=np.uint8)[first - offset : last - offset]
        return data.data

    def blocks(self) -> Iterator[memoryview]:
        """All bytes; each block is valid until the next is asked for."""
        words = _words(self.size)
        for number in range(-(-self.size // BLOCK_BYTES)):
            yield self.block(number, words)

    def first_difference(self, file: Reader, begin: int, end: int) -> Difference | None:
        """The first wrong byte in [begin, end) of a file; None if all are right. The rest of a hole is
        skipped, not read. `begin` is a multiple of BLOCK_BYTES. Raises: OSError."""
        words = _words(end - begin)
        at, buffer = begin, np.empty(len(words) * 8, dtype=np.uint8)
        while at < end:
            if self.is_hole:
                at = max(at, file.data_from(at) // BLOCK_BYTES * BLOCK_BYTES)
                if at >= end:
                    break
            expected = np.frombuffer(self.block(at // BLOCK_BYTES, words), dtype=np.uint8)[: end - at]
            there = buffer[: len(expected)]
            read = file.read_into(there.data, at)
            wrong = expected != there
            wrong[read:] = True
            if wrong.any():
                some = slice(first := int(wrong.argmax()), first + _SHOWN_BYTES)
                found = there[:read][some].tobytes().hex() or "the end of the file"
                return at + first, expected[some].tobytes().hex(), found
            at += BLOCK_BYTES
        return None


def _words(size: int) -> np.ndarray:
    """Room for a block, or for as many bytes."""
    return np.empty(-(-min(BLOCK_BYTES, size) // 8), dtype=np.uint64)


def make_noise(record_id: int, block: int, words: np.ndarray) -> None:
    """Fill `words`, uint64[up to BLOCK_BYTES / 8], with the start of block number `block` of a file.

    Each word of one block of noise is combined with a key of this file and block. A compressor finds no repeated bytes
    and deduplication no equal blocks. It is several times as fast as a random generator."""
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
