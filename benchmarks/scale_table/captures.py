"""Captures of any size, written without a recording. Operations of a lane never overlap: `verify` passes all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    OPS_SCHEMA,
    READ,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    WRITE,
    CaptureInfo,
    Job,
    table_from_columns,
)
from dxt_replay.traces.store.writer import OpsWriter, create_capture, write_capture_info, write_files, write_spans

RANKS, FILES, LANES = 8, 64, 4
STEP_NS = 250_000_000
FILES_IN_DIRECTORY = 1_000

_BATCH = 1 << 18
_SEED = 20261121
_BLOCK_BYTES = 1 << 12
_BLOCKS = 1 << 20

Columns = dict[str, object]


def mixed_capture(path: Path, operations: int, ranks: int = RANKS, files: int = FILES) -> int:
    """Write a capture of `operations` reads and writes, in steps with computation; returns their number.

    Each rank uses any of the files in four lanes. Sizes and durations are spread over thousands of values, as real ones
    are.
    """
    generator = np.random.default_rng(_SEED)
    ends = [0]

    def batches() -> Iterator[Columns]:
        for rank in range(ranks):
            count, now = operations // ranks + (rank < operations % ranks), 0
            for begin in range(0, count, _BATCH):
                columns, now = _mixed(generator, rank, min(_BATCH, count - begin), now, files)
                yield columns
            ends.append(now)

    names = [f"/data/part-{number:05}.tfrecord" for number in range(files)]
    sizes = _BLOCKS * _BLOCK_BYTES + (1 << 20)
    _write(path, ranks, batches(), names, sizes, lambda: _spans(max(ends), ranks), lambda: max(ends) / 1e9 + 1)
    return operations


def _mixed(generator: np.random.Generator, rank: int, count: int, now: int, files: int) -> tuple[Columns, int]:
    """Rows of one rank from `now` on, and the end of the last one."""
    start = now + np.cumsum(generator.integers(1_000, 100_000, count))
    end = start + generator.integers(5_000, 200_000, count)
    end[:-LANES] = np.minimum(end[:-LANES], start[LANES:])  # a lane makes one operation after the other
    length = generator.choice([2_096, 4_096, 65_536, 262_144], count) + generator.integers(0, 64, count)
    columns = _columns(
        rank,
        count,
        lane=np.arange(count) % LANES,
        op=np.where(generator.random(count) < 0.1, WRITE, READ),
        file_id=generator.integers(0, files, count),
        offset=generator.integers(0, _BLOCKS, count) * _BLOCK_BYTES,
        length=length,
        start_ns=start,
        end_ns=end,
        step=start // STEP_NS,
    )
    return columns, int(end.max())


def even_capture(path: Path, ranks: int, each: int, gap_ns: int) -> int:
    """Write a capture in which each of `ranks` ranks makes `each` reads in two lanes, one every `gap_ns`; returns
    their number."""
    number = np.arange(each)
    size = 1 << 16

    def rows(rank: int) -> Columns:
        offset = ((rank + number) % 1_024) * size
        start = number * gap_ns
        return _columns(
            rank, each, lane=number % 2, file_id=(rank + number) % FILES, offset=offset, length=size, start_ns=start,
            end_ns=start + gap_ns // 2,
        )  # fmt: skip

    names = [f"/data/{place:05d}.bin" for place in range(FILES)]
    _write(
        path, ranks, map(rows, range(ranks)), names, 1_024 * size, SPANS_SCHEMA.empty_table, lambda: each * gap_ns / 1e9
    )
    return ranks * each


def files_capture(path: Path, files: int, file_bytes: int) -> int:
    """Write a capture in which one rank reads each of `files` files once; returns their number."""
    number = np.arange(files)
    start = number * 50_000
    rows = _columns(0, files, file_id=number, length=file_bytes, start_ns=start, end_ns=start + 40_000)
    names = [f"/data/train/{place // FILES_IN_DIRECTORY:05}/image-{place:08}.jpg" for place in range(files)]
    _write(path, 1, [rows], names, file_bytes, SPANS_SCHEMA.empty_table, lambda: files * 50_000 / 1e9)
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
    path: Path,
    ranks: int,
    batches: Iterable[Columns],
    names: list[str],
    file_bytes: int,
    spans: Callable[[], pa.Table],
    run_time_s: Callable[[], float],
) -> None:
    """Write a capture. `spans` and `run_time_s` are called once all batches are written."""
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
    write_spans(path, spans())
    job = Job(nprocs=ranks, run_time_s=run_time_s())
    write_capture_info(path, CaptureInfo(job=job, ranks=tuple(range(ranks)), lanes="recorded"))


def _spans(last_ns: int, ranks: int) -> pa.Table:
    """A step each quarter of a second, of which the last three fifths are compute."""
    starts = np.arange(0, max(last_ns, 1), STEP_NS)
    step, compute = SPAN_KINDS.index("step"), SPAN_KINDS.index("compute")
    count = 2 * len(starts) * ranks
    begin = np.stack([starts, starts + STEP_NS * 2 // 5], axis=1).ravel()
    columns: Columns = {
        "rank": np.repeat(np.arange(ranks, dtype=np.int32), 2 * len(starts)),
        "thread": np.full(count, UNION_THREAD),
        "kind": np.tile(np.array([step, compute], dtype=np.int8), count // 2),
        "name": ["train", "compute"] * (count // 2),
        "step": np.tile(np.repeat(np.arange(len(starts), dtype=np.int32), 2), ranks),
        "start_ns": np.tile(begin, ranks),
        "end_ns": np.tile(np.repeat(starts + STEP_NS, 2), ranks),
    }
    return table_from_columns(columns, SPANS_SCHEMA)
