"""Finds the begins of the ranks' streams in a module of a log, without unpacking the streams before them.

A module is a concatenation of compressed streams, one or more per rank, without an index. Bytes that look like the head
of a stream and unpack to the header of a record of this log are taken for one. Unpacking the previous stream then
verifies the guess: it ends there, or it is cut short.
"""

from __future__ import annotations

import bz2
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap

from dxt_replay.profiler_merge.darshan.dxt_stretches import HEADER_BYTES
from dxt_replay.profiler_merge.darshan.log import DarshanLog

_HEADS = {"zlib": re.compile(rb"\x78[\x01\x5e\x9c\xda]"), "bzip2": re.compile(rb"BZh[1-9]1AY&SY")}
_UNPACKED_BYTES = {"zlib": 1 << 10, "bzip2": 1 << 20}
"""Bytes of a stream that are examined: a block of bzip2 unpacks as a whole or not at all."""

_HEAD_BYTES = 10
_MAX_RANK = (1 << 31) - 1
_NEAR_BYTES = 1 << 16


def locatable(log: DarshanLog) -> bool:
    """Whether the streams of a log can be found; those of an uncompressed log cannot."""
    return log.compression in _HEADS


@dataclass(slots=True)
class StreamStarts:
    """The starts of streams in the bytes [begin, end) of `data`, for one DXT module of a log.

    The ranks of a module ascend. Memory: some 30 bytes for each stretch that was searched. No stretch is searched
    twice.
    """

    log: DarshanLog
    data: mmap | bytes
    begin: int
    end: int
    _searched: list[tuple[int, int, int]] = field(default_factory=list)

    def first_of(self, rank: int) -> int:
        """Begin of the first stream whose first record is of `rank` or a later one; `end` if there is none."""
        low, high = self.begin, self.end
        while high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            start, found = self._next(middle)
            if found >= rank:
                high = middle
            else:
                low = start + 1
        start, found = self._next(low)
        while found < rank:
            start, found = self._next(start + 1)
        return start

    def _next(self, at: int) -> tuple[int, int]:
        """The first start from `at` on, and the rank of its first record; without one, `end` and a rank beyond all."""
        place = bisect_right(self._searched, (at, self.end, _MAX_RANK))
        if place and self._searched[place - 1][1] >= at:
            return self._searched[place - 1][1:]
        known, *beyond = self._searched[place] if place < len(self._searched) else (self.end, self.end, _MAX_RANK)
        start, rank = next(self._within(at, known), beyond)
        self._searched.insert(place, (at, start, rank))
        return start, rank

    def _within(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The starts in [begin, end), or a few bytes later, and their ranks."""
        for match in _HEADS[self.log.compression].finditer(self.data, begin, min(end + _HEAD_BYTES, self.end)):
            rank = self._rank_at(match.start())
            if rank is not None:
                yield match.start(), rank

    def _rank_at(self, at: int) -> int | None:
        """The rank of the first record of a stream at `at`; None if no stream can begin there."""
        compression = self.log.compression
        packed = self.data[at : min(at + _UNPACKED_BYTES[compression], self.end)]
        try:
            if compression == "zlib":
                header = zlib.decompressobj().decompress(packed, HEADER_BYTES)
            else:
                header = bz2.BZ2Decompressor().decompress(packed, HEADER_BYTES)
        except (zlib.error, OSError, ValueError):
            return None
        if len(header) < HEADER_BYTES:
            return None
        record, rank, writes, reads = _header(self.log.byte_order, header)
        possible = 0 <= rank < _MAX_RANK and writes >= 0 and reads >= 0 and record in self.log.names
        return rank if possible else None


def _header(byte_order: str, header: bytes) -> tuple[int, int, int, int]:
    """Record id, rank, and numbers of writes and reads in the header of a record (darshan-dxt-log-format.h)."""
    record, rank = struct.unpack_from(byte_order + "Qq", header)
    writes, reads = struct.unpack_from(byte_order + "qq", header, HEADER_BYTES - 16)
    return record, rank, writes, reads


def cut_at(log: DarshanLog, module: str, ranks: Sequence[int]) -> list[int]:
    """Offsets in a DXT module at which the streams of each of some ranks (ascending) or later ones begin.

    Raises: OSError when the log cannot be read.
    """
    region = log.modules[module]
    with log.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        starts = StreamStarts(log, data, region.offset, region.offset + region.length)
        return [starts.first_of(rank) for rank in ranks]
