"""Bounded decompression of one region of a Darshan log: the concatenated compressed streams of the ranks."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import format_bytes

COMPRESSIONS = ("zlib", "bzip2", "none")
"""Name by the header's comp_type (`enum darshan_comp_type` in darshan-log-format.h)."""

PIECE_BYTES = 4 << 20
"""Most decompressed bytes of one piece."""

_READ_BYTES = 1 << 20
_EXPANSION = 100
_EXPANSION_FLOOR_BYTES = 64 << 20
"""Largest growth of a region, as a factor and in bytes, before it counts as a decompression bomb.

The largest factor in a public log is 52; counters and names are held in memory as a whole."""


class DamagedLogError(LogError):
    """Damage that a reader may skip. `problem` is the message without its remedy."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}: the log is damaged; --skip-damaged reads the rest")
        self.problem = problem


class BombError(DamagedLogError):
    """A region that grows far more than counters or names do; the caller should discard what was unpacked."""


def pieces(path: Path, offset: int, length: int, compression: str, *, region: str) -> Iterator[bytes]:
    """Decompressed bytes of `length` bytes of the file from `offset`, at most PIECE_BYTES at a time, never empty.

    A piece never spans two streams. A region may grow 100 times, or to 64 MiB.
    Raises: DamagedLogError, after all readable pieces, when a stream is damaged or cut short, BombError when it grows
    more than that.
    """
    allowed = max(_EXPANSION_FLOOR_BYTES, _EXPANSION * length)
    produced = 0
    try:
        for piece in _decompress(_blocks(path, offset, length), compression):
            produced += len(piece)
            if produced > allowed:
                raise BombError(
                    f"{region} of {path} grows from {format_bytes(length)} to more than {format_bytes(allowed)}"
                )
            yield piece
    except (zlib.error, EOFError, OSError, ValueError) as error:
        raise DamagedLogError(
            f"{region} of {path} cannot be decompressed after {format_bytes(produced)} ({error})"
        ) from error


def _decompress(blocks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    if compression == "zlib":
        return _inflate(blocks)
    if compression == "bzip2":
        return _bunzip(blocks)
    return iter(blocks)


def _blocks(path: Path, offset: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            block = file.read(min(length, _READ_BYTES))
            if not block:
                raise EOFError("the file ends before the region does")
            length -= len(block)
            yield block


def _inflate(blocks: Iterable[bytes]) -> Iterator[bytes]:
    stream, open_stream = zlib.decompressobj(), False
    for block in blocks:
        data = block
        while data:
            piece = stream.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data, open_stream = stream.unconsumed_tail, True
            if stream.eof:
                data, open_stream = stream.unused_data, False
                stream = zlib.decompressobj()
    if open_stream:
        raise EOFError("a compressed stream ends early")


def _bunzip(blocks: Iterable[bytes]) -> Iterator[bytes]:
    stream, open_stream = bz2.BZ2Decompressor(), False
    for block in blocks:
        data = block
        while data or not stream.needs_input:
            piece = stream.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data, open_stream = b"", True
            if stream.eof:
                data, open_stream = stream.unused_data, False
                stream = bz2.BZ2Decompressor()
    if open_stream:
        raise EOFError("a compressed stream ends early")
