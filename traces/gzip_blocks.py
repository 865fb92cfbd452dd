"""The bytes of a file that may be a gzip file, in blocks, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

MOST_EXPANSION, FREE_BYTES = 200, 64 << 20
"""A gzip file may unpack to this many times its size, or to this many bytes. Profiles and traces grow 5 to 40 times;
gzip itself can grow 1,032 times, so that half a megabyte would fill the memory with events."""

_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS


class ExpansionError(ValueError):
    """A gzip file unpacks to far more than any recording does: a decompression bomb."""


def unpacked_blocks(file: BinaryIO, block_bytes: int, packed_bytes: int | None = None) -> Iterator[bytes]:
    """The bytes of a file from its beginning, at most `block_bytes` at a time; those of gzip unpacked, all its members.

    `packed_bytes`: how much of a gzip file is read at once, `block_bytes` when None.
    Raises: EOFError, after all that is readable, where a gzip file is cut off or damaged; ExpansionError.
    """
    if file.read(2) != _MAGIC:
        file.seek(0)
        while data := file.read(block_bytes):
            yield data
        return
    file.seek(0)
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
