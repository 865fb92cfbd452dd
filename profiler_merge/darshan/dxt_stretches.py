"""Cuts the bytes of a DXT module into stretches of whole records, without reading a segment.

A record's size is in its header, so the headers are walked one by one; no other Python runs per record. Headers and
segments are whole numbers of 64-bit words, so this module works on words.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.darshan.regions import DamagedLogError

HEADER_BYTES = 104
BLOCK_BYTES = 8 << 20
"""Least bytes of a stretch, except for the last. It must exceed a header, or no record would ever fit."""

_COUNTS_AT = 88
_WORD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Records and their segments as 64-bit words, in file order and byte order.

    headers: uint64 (n, 13).
    segments: uint64 (m, 4) or (m, 5).
    writes, reads: int64 (n,), segments of each record in this stretch. They differ from the header's counts only if a
    record is split.
    earlier: segments of the first record that earlier stretches hold.
    """

    headers: np.ndarray
    segments: np.ndarray
    writes: np.ndarray
    reads: np.ndarray
    earlier: int = 0


class _Source:
    """The chunks as buffers of at least BLOCK_BYTES. An error that ends them is raised after the rest is used up."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.damage: DamagedLogError | None = None
        self.ended = False

    def refill(self, rest: bytes) -> bytes:
        """`rest` and enough chunks to make a block."""
        parts = [rest] if rest else []
        have = len(rest)
        while have < BLOCK_BYTES and not self.ended:
            try:
                chunk = next(self._chunks, None)
            except DamagedLogError as error:
                self.damage, chunk = error, None
            if chunk is None:
                self.ended = True
            else:
                parts.append(chunk)
                have += len(chunk)
        return b"".join(parts)


def stretches(chunks: Iterator[bytes], segment_bytes: int, byte_order: str, *, place: str) -> Iterator[Stretch]:
    """Whole records, some BLOCK_BYTES at a time; a record larger than that is split between segments.

    Memory is bounded by the bytes of the module, whatever a header claims.
    Raises: DamagedLogError, after everything readable (in a record that is cut short, the segments before the cut),
    where a count is negative, a record is cut short or the chunks end in damage.
    """
    source = _Source(chunks)
    counts = struct.Struct(byte_order + "qq")
    rest = b""
    while rest or not source.ended:
        buffer = source.refill(rest)
        stretch, used = _whole_records(buffer, segment_bytes, counts)
        if stretch is not None:
            yield stretch
            rest = buffer[used:]
        elif len(buffer) < HEADER_BYTES:
            rest = buffer
            break
        else:
            rest = yield from _split_record(buffer, source, segment_bytes, counts, place)
    if source.damage is not None:
        raise source.damage
    if rest:
        raise DamagedLogError(f"{place} ends inside a record")


def _whole_records(buffer: bytes, segment_bytes: int, counts: struct.Struct) -> tuple[Stretch | None, int]:
    """The whole, sound records at the start of the buffer, and their size in bytes."""
    unpack, size = counts.unpack_from, len(buffer)
    starts: list[int] = []
    writes: list[int] = []
    reads: list[int] = []
    position = 0
    while (body := position + HEADER_BYTES) <= size:
        write_count, read_count = unpack(buffer, position + _COUNTS_AT)
        end = body + (write_count + read_count) * segment_bytes
        if end > size or write_count < 0 or read_count < 0:
            break
        starts.append(position)
        writes.append(write_count)
        reads.append(read_count)
        position = end
    if not starts:
        return None, 0
    words = np.frombuffer(buffer, np.uint64, position // _WORD)
    header_words = np.array(starts)[:, np.newaxis] // _WORD + np.arange(HEADER_BYTES // _WORD)
    headers = words[header_words]
    if len(starts) == 1:
        # No copy: one record that fills the block is the common case for large logs.
        segments = words[HEADER_BYTES // _WORD :]
    else:
        is_segment = np.ones(len(words), dtype=np.bool_)
        is_segment[header_words] = False
        segments = words[is_segment]
    stretch = Stretch(
        headers=headers,
        segments=segments.reshape(-1, segment_bytes // _WORD),
        writes=np.array(writes),
        reads=np.array(reads),
    )
    return stretch, position


def _split_record(
    buffer: bytes, source: _Source, segment_bytes: int, counts: struct.Struct, place: str
) -> Generator[Stretch, None, bytes]:
    """The record at the start of the buffer, in parts; returns the bytes behind it."""
    headers = np.frombuffer(buffer[:HEADER_BYTES], np.uint64).reshape(1, -1)
    writes, reads = counts.unpack_from(buffer, _COUNTS_AT)
    if writes < 0 or reads < 0:
        raise DamagedLogError(f"{place} has a record of {writes} writes and {reads} reads")
    done, position = 0, HEADER_BYTES
    while True:
        here = min(writes + reads - done, (len(buffer) - position) // segment_bytes)
        end = position + here * segment_bytes
        writes_here = min(max(writes - done, 0), here)
        words = np.frombuffer(buffer, np.uint64, (end - position) // _WORD, position)
        yield Stretch(
            headers=headers,
            segments=words.reshape(-1, segment_bytes // _WORD),
            writes=np.array([writes_here]),
            reads=np.array([here - writes_here]),
            earlier=done,
        )
        done += here
        if done == writes + reads:
            return buffer[end:]
        if source.ended:
            raise source.damage or DamagedLogError(
                f"{place} ends inside a record, after {done} of its {writes + reads} segments"
            )
        buffer, position = source.refill(buffer[end:]), 0
