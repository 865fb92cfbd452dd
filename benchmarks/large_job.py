"""Darshan logs and captures of any size, written without a recording, in bounded memory and little time.

In a log each rank reads files of its own, all at once, 256 KiB after 256 KiB. A few patterns of times are drawn and
compressed once; a rank's stream is the records' headers, which name rank and file, as stored blocks of deflate between
the blocks of its pattern. So the contents differ from rank to rank, as in a real log. Operations of a lane of a capture
never overlap: `verify` passes all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dxt_replay.traces import schema
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import FILES_SCHEMA, OPS_SCHEMA, READ, SPAN_KINDS, SPANS_SCHEMA, table_from_columns
from dxt_replay.traces.store.writer import OpsWriter, create_capture, write_capture_info, write_files, write_spans
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

FILES_PER_RANK, PATTERNS = 4, 16
RANKS, FILES, LANES, STEP_NS = 8, 64, 4, 250_000_000
_BATCH, _BLOCK_BYTES, _BLOCKS = 1 << 18, 1 << 12, 1 << 20
Columns = dict[str, object]


class _Pattern(NamedTuple):
    """Reads of one file: their bytes, these as deflate blocks that end on a byte, and their counters."""

    reads: int
    plain: bytes
    packed: bytes
    counters: Mapping[str, Any]


def write_large_log(path: Path, segments: int, ranks: int) -> int:
    """Write a log in which each of `ranks` ranks makes its share of `segments` reads; returns the number written.

    A share is rounded down to a multiple of FILES_PER_RANK. Memory: some 10 bytes a file, and the reads of PATTERNS
    ranks.
    """
    count = segments // (ranks * FILES_PER_RANK)
    patterns = [
        [_pattern(number, file, count) for file in range(FILES_PER_RANK)] for number in range(min(PATTERNS, ranks))
    ]
    names = {record_id(name): name for rank in range(ranks) for name in _names(rank)}
    dxt = (_dxt_stream(rank, patterns[rank % PATTERNS]) for rank in range(ranks))
    counters = (_counter_stream(rank, patterns[rank % PATTERNS]) for rank in range(ranks))
    modules = {
        "DXT_POSIX": ModuleSpec(version=2, streams=dxt, packed=True),
        "POSIX": ModuleSpec(version=4, streams=counters),
    }
    write_log(path, job=JobSpec(nprocs=ranks), names=names, modules=modules)
    return count * FILES_PER_RANK * ranks


def _names(rank: int) -> list[bytes]:
    return [f"/scratch/data/{rank:05d}-{file}.bin".encode() for file in range(FILES_PER_RANK)]


def _pattern(number: int, file: int, count: int) -> _Pattern:
    generator = np.random.default_rng((20261122, number, file))
    durations = generator.integers(120, 400, count)
    ends = np.cumsum(generator.integers(4, 40, count) + durations)
    quantum_s = 2.0**-22  # of Darshan's clock, a double of some 1.8e9 s: a log compresses as real ones do
    reads = np.zeros(count, segment_dtype("DXT_POSIX", 2))
    reads["offset"], reads["length"] = np.arange(count) << 18, 1 << 18
    reads["start_s"], reads["end_s"] = 1 + (ends - durations) * quantum_s, 1 + ends * quantum_s
    reads["pthread_id"] = 140_000_000_000 + file
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain = reads.tobytes()
    packed = deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)
    return _Pattern(count, plain, packed, posix_rows([DxtRecord(record_id=0, reads=reads)])[0])


def _dxt_stream(rank: int, patterns: list[_Pattern]) -> bytes:
    """The rank's records as one zlib stream."""
    parts, checksum = [b"\x78\x01"], zlib.adler32(b"")
    for name, pattern in zip(_names(rank), patterns, strict=True):
        empty = encode_dxt([DxtRecord(record_id=record_id(name), rank=rank)])
        header = empty[:-8] + struct.pack("<q", pattern.reads)
        parts += [struct.pack("<BHH", 0, len(header), len(header) ^ 0xFFFF) + header, pattern.packed]
        checksum = zlib.adler32(pattern.plain, zlib.adler32(header, checksum))
    return b"".join([*parts, b"\x03\x00", struct.pack(">I", checksum)])


def _counter_stream(rank: int, patterns: list[_Pattern]) -> bytes:
    rows = [
        {**pattern.counters, "record_id": record_id(name), "rank": rank}
        for name, pattern in zip(_names(rank), patterns, strict=True)
    ]
    return encode_counters("POSIX", rows, 4)


def mixed_capture(path: Path, operations: int, ranks: int = RANKS, files: int = FILES) -> int:
    """Write a capture of `operations` reads and writes, in steps with computation; returns their number.

    Each rank uses any of the files in four lanes. Sizes and durations are spread over thousands of values, as real ones
    are.
    """
    generator, ends = np.random.default_rng(20261121), [0]

    def batches() -> Iterator[Columns]:
        for rank in range(ranks):
            count, now = operations // ranks + (rank < operations % ranks), 0
            for begin in range(0, count, _BATCH):
                columns = _mixed(generator, rank, min(_BATCH, count - begin), now, files)
                now = int(np.max(columns["end_ns"]))  # type: ignore[call-overload]
                yield columns
            ends.append(now)

    names = [f"/data/part-{number:05}.tfrecord" for number in range(files)]
    _write(path, ranks, batches(), names, _BLOCKS * _BLOCK_BYTES + (1 << 20), ends, steps=True)
    return operations


def _mixed(generator: np.random.Generator, rank: int, count: int, now: int, files: int) -> Columns:
    """Rows of one rank from `now` on."""
    start = now + np.cumsum(generator.integers(1_000, 100_000, count))
    end = start + generator.integers(5_000, 200_000, count)
    end[:-LANES] = np.minimum(end[:-LANES], start[LANES:])  # a lane makes one operation after the other
    return _columns(
        rank,
        count,
        lane=np.arange(count) % LANES,
        op=np.where(generator.random(count) < 0.1, schema.WRITE, READ),
        file_id=generator.integers(0, files, count),
        offset=generator.integers(0, _BLOCKS, count) * _BLOCK_BYTES,
        length=generator.choice([2_096, 4_096, 65_536, 262_144], count) + generator.integers(0, 64, count),
        start_ns=start,
        end_ns=end,
        step=start // STEP_NS,
    )


def even_capture(path: Path, ranks: int, each: int, gap_ns: int) -> int:
    """Write a capture in which each rank makes `each` reads in two lanes, one every `gap_ns`; returns their number."""
    number, size = np.arange(each), 1 << 16
    start, ends = number * gap_ns, number * gap_ns + gap_ns // 2
    rows = (
        _columns(rank, each, lane=number % 2, file_id=(rank + number) % FILES, offset=((rank + number) % 1_024) * size,
                 length=size, start_ns=start, end_ns=ends)
        for rank in range(ranks)
    )  # fmt: skip
    _write(path, ranks, rows, [f"/data/{place:05d}.bin" for place in range(FILES)], 1_024 * size, [each * gap_ns])
    return ranks * each


def files_capture(path: Path, files: int, file_bytes: int) -> int:
    """Write a capture in which one rank reads each of `files` files once; returns their number."""
    number = np.arange(files)
    rows = _columns(
        0, files, file_id=number, length=file_bytes, start_ns=number * 50_000, end_ns=number * 50_000 + 40_000
    )
    names = [f"/data/train/{place // 1_000:05}/image-{place:08}.jpg" for place in range(files)]
    _write(path, 1, [rows], names, file_bytes, [files * 50_000])
    return files


def _columns(rank: int, count: int, **given: object) -> Columns:
    """All columns of `count` reads; those that are not given are 0."""
    rest = dict.fromkeys(("lane", "api", "offset", "step", "origin"), 0)
    columns: Columns = {}
    for name, value in ({"rank": rank, "op": READ} | rest | given).items():
        kind = OPS_SCHEMA.field(name).type
        codes = kind.index_type if pa.types.is_dictionary(kind) else kind
        columns[name] = np.broadcast_to(np.asarray(value), count).astype(codes.to_pandas_dtype())
    return columns


def _write(
    path: Path, ranks: int, batches: Iterable[Columns], names: list[str], file_bytes: int, ends: list[int],
    *, steps: bool = False,
) -> None:  # fmt: skip
    """Write a capture; `ends` is read once all batches are written."""
    create_capture(path)
    with OpsWriter(path) as writer:
        for columns in batches:
            writer.write(table_from_columns(columns, OPS_SCHEMA))
    number = np.arange(len(names))
    table: Columns = {
        "file_id": number.astype(np.int32),
        "record_id": (number + 1).astype(np.uint64),
        "path": names,
        "size": np.full(len(names), file_bytes),
        "format": np.zeros(len(names), dtype=np.int8),
        "mount": ["/"] * len(names),
        "fs_type": ["lustre"] * len(names),
    }
    write_files(path, table_from_columns(table, FILES_SCHEMA))
    write_spans(path, _spans(max(ends), ranks) if steps else SPANS_SCHEMA.empty_table())
    job = schema.Job(nprocs=ranks, run_time_s=max(ends) / 1e9 + 1)
    write_capture_info(path, schema.CaptureInfo(job=job, ranks=tuple(range(ranks)), lanes="recorded"))


def _spans(last_ns: int, ranks: int) -> pa.Table:
    """A step each quarter of a second, of which the last three fifths are compute."""
    starts = np.arange(0, max(last_ns, 1), STEP_NS)
    kinds = [SPAN_KINDS.index("step"), SPAN_KINDS.index("compute")]
    count = 2 * len(starts) * ranks
    columns: Columns = {
        "rank": np.repeat(np.arange(ranks, dtype=np.int32), 2 * len(starts)),
        "thread": np.full(count, schema.UNION_THREAD),
        "kind": np.tile(np.array(kinds, dtype=np.int8), count // 2),
        "name": ["train", "compute"] * (count // 2),
        "step": np.tile(np.repeat(np.arange(len(starts), dtype=np.int32), 2), ranks),
        "start_ns": np.tile(np.stack([starts, starts + STEP_NS * 2 // 5], axis=1).ravel(), ranks),
        "end_ns": np.tile(np.repeat(starts + STEP_NS, 2), ranks),
    }
    return table_from_columns(columns, SPANS_SCHEMA)
