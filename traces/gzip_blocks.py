"""The bytes of a file that may be compressed with gzip or Zstandard, in blocks, in bounded memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from dxt_replay.traces.errors import exhausted

MOST_EXPANSION, FREE_BYTES = 200, 64 << 20
"""A gzip file may unpack to this many times its size, or to this many bytes. Profiles and traces grow 5 to 40 times;
gzip itself can grow 1,032 times, so that half a megabyte would fill the memory with events."""

_MAGIC = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = 16 + zlib.MAX_WBITS


class ExpansionError(ValueError):
    """A gzip file unpacks to far more than any recording does: a decompression bomb."""


def unpacked_blocks(file: BinaryIO, block_bytes: int, packed_bytes: int | None = None) -> Iterator[bytes]:
    """The bytes of a file from its beginning, at most `block_bytes` at a time; those of gzip, all its members, and
    of Zstandard unpacked.

    `packed_bytes`: how much of a gzip file is read at once, `block_bytes` when None.
    Raises: EOFError, after all that is readable, where a gzip file is cut off or damaged; ExpansionError.
    """
    begin = file.read(len(_ZSTD))
    file.seek(0)
    if begin == _ZSTD:
        yield from _unpacked_zstd(file, block_bytes)
        return
    if not begin.startswith(_MAGIC):
        while data := file.read(block_bytes):
            yield data
        return
    member, read, made, open_member = zlib.decompressobj(_GZIP), 0, 0, False
    try:
        while packed := file.read(packed_bytes or block_bytes):
            read += len(packed)
            while open_member or (packed := packed.lstrip(b"\0")):  # some writers pad the file
                piece = member.decompress(packed, block_bytes)
                made += len(piece)
                if made > max(FREE_BYTES, MOST_EXPANSION * read):
                    raise ExpansionError(f"it unpacks to more than {MOST_EXPANSION} times its size")
                if piece:
                    yield piece
                packed, open_member = member.unconsumed_tail, True
                if member.eof:
                    packed, open_member = member.unused_data, False
                    member = zlib.decompressobj(_GZIP)
                elif not packed and len(piece) < block_bytes:
                    break
    except zlib.error as error:
        raise EOFError(f"the gzip stream is damaged ({error})") from error
    if open_member:
        raise EOFError("the gzip stream is cut off")


def _unpacked_zstd(file: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    most = max(FREE_BYTES, MOST_EXPANSION * os.fstat(file.fileno()).st_size)
    made = 0
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as stream:
            while piece := stream.read(block_bytes):
                made += len(piece)
                if made > most:
                    raise ExpansionError(f"it unpacks to more than {MOST_EXPANSION} times its size")
                yield piece
    except (OSError, pa.ArrowException) as error:
        if exhausted(error) is not None:
            raise
        raise EOFError(f"the Zstandard stream is cut off or damaged ({error})") from error
