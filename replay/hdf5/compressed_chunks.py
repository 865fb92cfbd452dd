"""Compressed chunks of exactly a given stored size, which decode to exactly the chunk's size.

A zlib stream (RFC 1950, 1951) of stored blocks of noise, then a deflated run of zeros; how much of the chunk is noise
decides how large it is. Whatever filter the recorded chunks had, those of a twin are deflated.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

from dxt_replay.traces.errors import ReplayError

_BLOCK_BYTES = 65535
_BLOCK_HEAD = 5
_HEAD, _TRAILER_BYTES = b"\x78\x9c", 4
_EMPTY_STORED = bytes.fromhex("000000ffff")
_EMPTY_FIXED_AND_STORED = bytes.fromhex("02000000ffff")
_PADS = (0, 5, 6, 10, 11, 12, 15)
_TRIES = 24


def smallest_stored(logical: int) -> int:
    """The smallest compressed size in bytes that `deflate_to` can make of a chunk of so many bytes: the format of
    deflate compresses at most 1032 to 1."""
    return 32 + logical // 1000


def largest_stored(logical: int) -> int:
    """The largest compressed size in bytes that `deflate_to` can make of a chunk of so many bytes."""
    return _stream_bytes(logical, logical)


def deflate_to(noise: bytes, *, stored: int, logical: int) -> bytes:
    """A zlib stream of `stored` bytes that inflates to `logical` bytes; `noise` has at least as many.

    Raises: ReplayError when `stored` is not between `smallest_stored` and `largest_stored`.
    """
    for pad in _PADS:
        count = _noise_bytes(stored - pad, logical)
        if count is not None:
            return _stream(noise[:count], logical - count, pad)
    raise ReplayError(f"a chunk of {logical} bytes cannot be compressed to exactly {stored} bytes")


def _noise_bytes(stored: int, logical: int) -> int | None:
    """Number of bytes of noise that make a stream of exactly `stored` bytes; None if no number does."""
    count = min(max(stored - _stream_bytes(0, logical), 0), logical)
    for _ in range(_TRIES):
        missing = stored - _stream_bytes(count, logical)
        if not missing:
            return count
        following = min(max(count + missing, 0), logical)
        if following == count:
            return None
        count = following
    return None


def _stream_bytes(count: int, logical: int) -> int:
    heads = _BLOCK_HEAD * -(-count // _BLOCK_BYTES)
    return len(_HEAD) + heads + count + len(_zeros(logical - count)) + _TRAILER_BYTES


def _stream(noise: bytes, zeros: int, pad: int) -> bytes:
    blocks = b"".join(_stored(noise[at : at + _BLOCK_BYTES]) for at in range(0, len(noise), _BLOCK_BYTES))
    checksum = zlib.adler32(bytes(zeros), zlib.adler32(noise))
    return _HEAD + _padding(pad) + blocks + _zeros(zeros) + checksum.to_bytes(_TRAILER_BYTES, "big")


def _stored(data: bytes) -> bytes:
    size = len(data)
    return b"\0" + size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little") + data


def _padding(size: int) -> bytes:
    """Empty blocks of together `size` bytes: stored ones of 5, or of 6 with an empty block of fixed codes before."""
    longer = size % 5
    return _EMPTY_FIXED_AND_STORED * longer + _EMPTY_STORED * ((size - 6 * longer) // 5)


@lru_cache(maxsize=1024)
def _zeros(count: int) -> bytes:
    """The last block of a stream: so many zeros, deflated."""
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(bytes(count)) + encoder.flush()
