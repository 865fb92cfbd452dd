"""Bounded decompression of one region of a Darshan log: the concatenated compressed streams of the ranks."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dxt_replay.traces.errors import LogError, exhausted
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


NOT_KNOWN = "not known"


def text(raw: bytes) -> str:
    """`raw` as UTF-8; bytes that are not are shown as `\\xNN`."""
    return raw.decode("utf-8", "backslashreplace")


class DamagedLogError(LogError):
    """Damage. `problem` is the message without its remedy. `missing`: how much lies behind it, as text."""

    def __init__(self, problem: str, missing: str = NOT_KNOWN) -> None:
        super().__init__(f"{problem}: the log is damaged; copy it again, or record the job again")
        self.problem, self.missing = problem, missing


class BombError(DamagedLogError):
    """A region that grows far more than counters or names do; the caller should discard what was unpacked."""


def pieces(path: Path, offset: int, length: int, compression: str, *, region: str) -> Iterator[bytes]:
    """Decompressed bytes of `length` bytes of the file from `offset`, at most PIECE_BYTES at a time, never empty.

    A piece never spans two streams. A region may grow 100 times, or to 64 MiB.
    Raises: DamagedLogError, after all readable pieces, when a stream is damaged or cut short or the file ends before
    the region does, BombError when it grows more than that.
    """
    # What a header claims beyond the end of the file must not allow more memory.
    allowed = max(_EXPANSION_FLOOR_BYTES, _EXPANSION * min(length, path.stat().st_size))
    produced = used = 0
    try:
        for piece, used in _decompress(_blocks(path, offset, length), compression):  # noqa: B007
            produced += len(piece)
            if produced > allowed:
                raise BombError(
                    f"{region} of {path} grows from {format_bytes(length)} to more than {format_bytes(allowed)}"
                )
            yield piece
    except (zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        if (remedy := exhausted(error)) is not None:
            raise LogError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; {remedy}") from error
        raise DamagedLogError(
            f"{region} of {path} cannot be decompressed after {format_bytes(produced)} ({error})",
            f"{length - used:,} of {length:,} compressed bytes",
        ) from error


def _blocks(path: Path, offset: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            block = file.read(min(length, _READ_BYTES))
            if not block:
                raise EOFError("the file ends before the region does")
            length -= len(block)
            yield block


def _decompress(blocks: Iterable[bytes], compression: str) -> Iterator[tuple[bytes, int]]:
    """Pieces, and how many bytes of the blocks are used up by then."""
    fed, open_stream = 0, False
    begin: Callable[[], Any] = zlib.decompressobj if compression == "zlib" else bz2.BZ2Decompressor
    stream = begin()
    for block in blocks:
        data, fed = block, fed + len(block)
        if compression == "none":
            yield block, fed
            continue
        # bzip2 keeps what it has not unpacked yet, zlib gives it back.
        while data or not getattr(stream, "needs_input", True):
            piece = stream.decompress(data, PIECE_BYTES)
            data, open_stream = getattr(stream, "unconsumed_tail", b""), True
            if stream.eof:
                data, open_stream, stream = stream.unused_data, False, begin()
            if piece:
                yield piece, fed - len(data)
    if open_stream:
        raise EOFError("a compressed stream ends early")
