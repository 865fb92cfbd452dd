"""Darshan logs of a billion DXT segments: written rank by rank, in bounded memory and little time.

Each rank reads files of its own, all at once, 256 KiB after 256 KiB. A few patterns of times are drawn and compressed
once; a rank's stream is the records' headers, which name rank and file, as stored blocks of deflate between the blocks
of its pattern. So the contents differ from rank to rank, as in a real log, and so do the decoded data.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.traces.files import record_id
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    segment_dtype,
    write_log,
)

FILES_PER_RANK = 4
PATTERNS = 16
READ_BYTES = 1 << 18
MODULE_VERSION = 2
"""Version of DXT_POSIX, whose segments have thread ids. pydarshan knows version 1, without them."""

_SEED = 20261122
_QUANTUM_S = 2.0**-22
"""Quantum of Darshan's clock, a double of some 1.8e9 s: it makes a log compress as real ones do."""

_FIRST_THREAD = 140_000_000_000
_ZLIB_HEAD, _LAST_BLOCK = b"\x78\x01", b"\x03\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Reads of one file: their bytes, these as deflate blocks that end on a byte, and their counters."""

    reads: np.ndarray
    plain: bytes
    packed: bytes
    counters: Mapping[str, Any]


def write_large_log(path: Path, segments: int, ranks: int, version: int = MODULE_VERSION) -> int:
    """Write a log in which each of `ranks` ranks makes its share of `segments` reads; returns the number written.

    A share is rounded down to a multiple of FILES_PER_RANK. Memory: some 10 bytes a file, and the reads of PATTERNS
    ranks.
    """
    count = segments // (ranks * FILES_PER_RANK)
    numbers = range(min(PATTERNS, ranks))
    patterns = [[_pattern(number, file, count, version) for file in range(FILES_PER_RANK)] for number in numbers]
    names = {record_id(name): name for rank in range(ranks) for name in _names(rank)}
    dxt = (_dxt_stream(rank, patterns[rank % PATTERNS]) for rank in range(ranks))
    counters = (_counter_stream(rank, patterns[rank % PATTERNS]) for rank in range(ranks))
    modules = {
        "DXT_POSIX": ModuleSpec(version=version, streams=dxt, packed=True),
        "POSIX": ModuleSpec(version=4, streams=counters),
    }
    write_log(path, job=JobSpec(nprocs=ranks), names=names, modules=modules)
    return count * FILES_PER_RANK * ranks


def _names(rank: int) -> list[bytes]:
    return [f"/scratch/data/{rank:05d}-{file}.bin".encode() for file in range(FILES_PER_RANK)]


def _pattern(number: int, file: int, count: int, version: int) -> _Pattern:
    rng = np.random.default_rng((_SEED, number, file))
    durations = rng.integers(120, 400, count)
    ends = np.cumsum(rng.integers(4, 40, count) + durations)
    reads = np.zeros(count, segment_dtype("DXT_POSIX", version))
    reads["offset"], reads["length"] = np.arange(count) * READ_BYTES, READ_BYTES
    reads["start_s"], reads["end_s"] = 1 + (ends - durations) * _QUANTUM_S, 1 + ends * _QUANTUM_S
    if "pthread_id" in (reads.dtype.names or ()):
        reads["pthread_id"] = _FIRST_THREAD + file
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain = reads.tobytes()
    packed = deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)
    return _Pattern(
        reads=reads, plain=plain, packed=packed, counters=posix_rows([DxtRecord(record_id=0, reads=reads)])[0]
    )


def _dxt_stream(rank: int, patterns: list[_Pattern]) -> bytes:
    """The rank's records as one zlib stream."""
    parts, checksum = [_ZLIB_HEAD], zlib.adler32(b"")
    for name, pattern in zip(_names(rank), patterns, strict=True):
        header = _record_header(DxtRecord(record_id=record_id(name), rank=rank), len(pattern.reads))
        stored = struct.pack("<BHH", 0, len(header), len(header) ^ 0xFFFF) + header
        parts += [stored, pattern.packed]
        checksum = zlib.adler32(pattern.plain, zlib.adler32(header, checksum))
    return b"".join([*parts, _LAST_BLOCK, struct.pack(">I", checksum)])


def _record_header(record: DxtRecord, reads: int) -> bytes:
    return encode_dxt([record])[:-8] + struct.pack("<q", reads)


def _counter_stream(rank: int, patterns: list[_Pattern]) -> bytes:
    rows = [
        {**pattern.counters, "record_id": record_id(name), "rank": rank}
        for name, pattern in zip(_names(rank), patterns, strict=True)
    ]
    return encode_counters("POSIX", rows, 4)
