"""What a capture on disk claims, held against the contract once, as it is read, and translated from earlier versions.

A capture may be damaged or malicious. Whoever reads one through `traces.store` may rely on the types of
`traces.schema`, on values where the schema requires them, and on the checks here.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError, exhausted, unreadable
from dxt_replay.traces.files import exact_paths, record_id
from dxt_replay.traces.gzip_blocks import FREE_BYTES, MOST_EXPANSION
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    HDF5_SCHEMA,
    LANES_SCHEMA,
    LEFT_OUT,
    NO_STEP,
    OPEN_FLAGS,
    OPS,
    OPS_SCHEMA,
    SCHEMA_VERSION,
    SPANS_SCHEMA,
    VOCABULARY,
    CaptureInfo,
    codes,
)
from dxt_replay.traces.units import format_bytes

MOST_RANK = (1 << 31) - 1
"""Ranks are int32 in every table."""

MOST_NS = 1 << 61
"""Times of a capture lie within +-73 years of its zero, so that sums and differences of two fit into int64."""

MOST_ROWS = 1 << 22
"""Largest row group of the op stream, in rows: a reader holds it in memory as a whole (300 MB). dxt-replay writes
65,536."""

_RENAME = OPS.index("rename")
_NO_ROWS = np.empty(0, dtype=np.int64)
_MOST_OFFSET = (1 << 63) - 1
_NAMES = pa.schema([FILES_SCHEMA.field(name) for name in ("path", "path_bytes")])
_LEAST = {"rank": 0, "lane": 0, "file_id": 0, "offset": -1, "length": 0, "step": -1, "start_ns": -MOST_NS}
_MOST_WHERE_KNOWN = {
    "feeds": (1 << 31) - 1,
    "follows": (1 << 31) - 1,
    "ready_ns": MOST_NS,
    "open_flags": (1 << len(OPEN_FLAGS)) - 1,
}

_OTHERS_VERSION = 5
"""Schema version since which other programs may write captures."""


def read_info(path: Path) -> CaptureInfo:
    """The contents of `capture.json` in the directory `path`.

    Raises: CaptureError when it is not there, was written by a newer release, or contradicts the contract; OSError
    when it cannot be read.
    """
    file = path / "capture.json"
    if not path.is_dir() or not file.is_file():
        what = "does not exist" if not path.exists() else "is not a capture (no capture.json)"
        raise CaptureError(
            f"{path} {what}: give a capture, which `dxt-replay merge` or `run` writes, or a .darshan log"
        )
    text = file.read_bytes()
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCaptureError(f"{file} is damaged ({error!r})") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise CaptureError(
            f"{path} has schema version {version!r}; this release reads up to {SCHEMA_VERSION}: update dxt-replay"
        )
    try:
        info = msgspec.json.decode(text, type=CaptureInfo)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedCaptureError(f"{file} is damaged ({error})") from error
    for problem in _problems(info):
        raise DamagedCaptureError(f"{file} is damaged: {problem}")
    return info


def is_ours(path: Path, info: CaptureInfo) -> bool:
    """Whether dxt-replay wrote the capture in `path`, not another program that follows docs/capture-format.md.

    Such a capture is complete only with all its tables and, from schema version 4 on, with digests.
    """
    told = info.digests or info.made_by.get("program") == "dxt-replay"
    return bool(told) or info.schema_version < _OTHERS_VERSION or (path / "index.parquet").exists()


def _problems(info: CaptureInfo) -> Iterator[str]:
    job, coverage = info.job, info.coverage
    if not 0 <= job.nprocs <= MOST_RANK:
        yield f"its job has {job.nprocs} processes"
    if not 0 <= job.run_time_s <= MOST_NS / 1e9:
        yield f"its job has a run time of {job.run_time_s} s"
    for name in ("start_ns", "end_ns", "zero_ns", "job_id"):
        if not -(1 << 63) <= getattr(job, name) < 1 << 63:
            yield f"its job has a {name} of {getattr(job, name)}"
    ranks = list(info.ranks)
    if ranks != sorted(set(ranks)) or (ranks and not 0 <= ranks[0] <= ranks[-1] <= MOST_RANK):
        yield "its ranks are not ascending numbers from 0 to 2147483647"
    for clock in info.clock:
        low, high = clock.interval_ns
        # The offset moves a log's own time, which may count from 1970, to the capture's.
        if clock.worker < 0 or low > high or max(abs(low), abs(high), abs(clock.offset_ns)) > 2 * MOST_NS:
            yield f"the clock of rank {clock.rank} is impossible"
    pairs = [(coverage.bytes, coverage.operations), coverage.traceable, *coverage.ranks.values()]
    shares = [share for pair in pairs for share in pair]
    if any(share is not None and (share < 0 or not math.isfinite(share)) for share in shares):
        yield "it has a trace coverage below 0, or an infinite one"


def check_columns(names: Sequence[str], schema: pa.Schema, place: object) -> None:
    """Check that the columns are there which every writer must write.

    Raises: CaptureError for a missing one.
    """
    for column in schema:
        if not column.nullable and column.name not in names and column.name not in LEFT_OUT:
            raise DamagedCaptureError(f"{place} lacks the column {column.name}")


def conforming(table: pa.Table, schema: pa.Schema, place: object, columns: Sequence[str] | None = None) -> pa.Table:
    """The table with the types of `schema`: all of its columns, or the named ones.

    Absent columns are null, or have the default of `LEFT_OUT`.
    Raises: CaptureError for another type, for a null where the schema requires a value, or for an unknown name in an
    enumerated column.
    """
    wanted = pa.schema([schema.field(name) for name in schema.names if columns is None or name in columns])
    check_columns(table.column_names, wanted, place)
    arrays = []
    absent = {column.type for column in wanted if column.name not in table.column_names}
    nulls = {each: pa.nulls(table.num_rows, each) for each in absent}  # columns share them
    for column in wanted:
        if column.name not in table.column_names:
            left_out = pa.repeat(LEFT_OUT[column.name], table.num_rows) if not column.nullable else None
            arrays.append(nulls[column.type] if left_out is None else _as(left_out, column))
            continue
        try:
            stored = table[column.name]  # `combine_chunks` copies even a single chunk
            arrays.append(_as(stored.chunk(0) if stored.num_chunks == 1 else stored.combine_chunks(), column))
        except (pa.ArrowException, ValueError) as error:
            raise CaptureError(
                f"{place} is damaged: the column {column.name} is not {column.type} ({error})"
            ) from error
    found = pa.table(arrays, names=wanted.names)
    for column in wanted:
        if not column.nullable and found[column.name].null_count:
            raise DamagedCaptureError(f"{place} is damaged: the column {column.name} has rows without a value")
    return found.cast(wanted)


def _as(array: pa.Array, column: pa.Field) -> pa.Array:
    """The array with the type of `column`. Raises: ValueError, of Arrow too, where that cannot be."""
    if array.type == column.type:
        names = array.dictionary.to_pylist() if pa.types.is_dictionary(column.type) else []
        if all(name in VOCABULARY[column.name] for name in names):
            return array
    if not pa.types.is_dictionary(column.type):
        return array.cast(column.type)
    texts = array.cast(pa.string())
    numbers = pc.index_in(texts, value_set=pa.array(VOCABULARY[column.name]))
    unknown = texts.filter(pc.and_(numbers.is_null(), texts.is_valid()))
    if len(unknown):
        raise ValueError(f"this release does not know {unknown[0].as_py()!r}: update dxt-replay")
    return pa.DictionaryArray.from_arrays(numbers.cast(pa.int8()), pa.array(VOCABULARY[column.name]))


def operations(
    table: pa.Table,
    place: object,
    *,
    rank: int | np.ndarray,
    files: int,
    columns: Sequence[str] | None = None,
    stored: Sequence[str] | None = None,
    begins: np.ndarray = _NO_ROWS,
) -> pa.Table:
    """A row group of the op stream as `OPS_SCHEMA` describes it, with the columns that were read.

    `stored`: the names of the columns in the file, where `table` holds only those that `columns_to_read` gives.
    A group of several ranks has the rank of each row in `rank`; `begins` holds the first row of the second and later
    ranks.
    Raises: CaptureError for values that contradict the contract: another rank, an unknown file, an operation that ends
    before it starts or beyond the largest offset, rows that are not in start order.
    """
    stored = table.column_names if stored is None else stored
    needed = None if columns is None else columns_to_read(columns, stored)
    found = _translated(conforming(table, OPS_SCHEMA, place, needed), stored)
    if not found.num_rows:
        return found if columns is None else _selected(found, columns)
    values = {name: found[name].to_numpy() for name in found.column_names if name in _LEAST or name == "end_ns"}
    for name, least in _LEAST.items():
        if name in values and values[name].min() < least:
            raise DamagedCaptureError(f"{place} is damaged: an operation has {name} {values[name].min()}")
    for name in set(_MOST_WHERE_KNOWN).intersection(found.column_names):
        least, most = pc.min_max(found[name]).as_py().values()
        if least is not None and not 0 <= least <= most <= _MOST_WHERE_KNOWN[name]:
            raise DamagedCaptureError(f"{place} is damaged: an operation has {name} {least if least < 0 else most}")
    if "rank" in values and np.any(values["rank"] != rank):
        raise DamagedCaptureError(f"{place} is damaged: it holds rows of other ranks than its index says")
    if "file_id" in values and values["file_id"].max() >= files:
        raise DamagedCaptureError(f"{place}: an operation names a file that files.parquet lacks")
    if {"op", "other_file_id"} <= set(found.column_names):
        _check_new_names(found, place, files)
    if {"follows", "follows_end"} <= set(found.column_names):
        follows, ends = found["follows"], found["follows_end"]
        if min(follows.null_count, ends.null_count) < found.num_rows and not follows.is_null().equals(ends.is_null()):
            raise DamagedCaptureError(
                f"{place} is damaged: an operation has follows without follows_end, or the reverse"
            )
    if {"offset", "length"} <= values.keys() and np.any(values["offset"] > _MOST_OFFSET - values["length"]):
        raise DamagedCaptureError(f"{place} is damaged: an operation ends beyond the largest offset of a file")
    if "start_ns" in values:
        start = values["start_ns"]
        earlier = start[1:] < start[:-1]
        earlier[begins - 1] = False
        if start.max() > MOST_NS or np.any(earlier):
            raise DamagedCaptureError(f"{place} is damaged: its operations are not in the order of their times")
        if "end_ns" in values and (np.any(values["end_ns"] < start) or values["end_ns"].max() > MOST_NS):
            raise DamagedCaptureError(f"{place} is damaged: an operation ends before it starts, or after decades")
    return found if columns is None else _selected(found, columns)


def _selected(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """These columns, in the order of `OPS_SCHEMA`; those that it does not have are left out."""
    return rows.select([name for name in rows.column_names if name in columns])


def _check_new_names(rows: pa.Table, place: object, files: int) -> None:
    """Raises: CaptureError where a rename has no new name among the files, or another operation has one."""
    renames, new_names = codes(rows, "op") == _RENAME, rows["other_file_id"]
    if new_names.null_count == rows.num_rows and not renames.any():
        return
    known = new_names.fill_null(-1).to_numpy()
    if known[renames].min(initial=0) < 0 or known.max() >= files:
        raise DamagedCaptureError(f"{place}: a rename names a file that files.parquet lacks")
    if np.any(known[~renames] != -1):
        raise DamagedCaptureError(f"{place} is damaged: an operation that is no rename has an other_file_id")


def files_table(table: pa.Table, place: object) -> pa.Table:
    """The files table. Raises: CaptureError where row i does not have file_id i, or a size is negative."""
    if "record_id" not in table.column_names:
        names = conforming(table, _NAMES, place)
        made = pa.array(map(record_id, exact_paths(names)), type=pa.uint64())
        table = table.append_column("record_id", made)
    found = conforming(table, FILES_SCHEMA, place)
    if not np.array_equal(found["file_id"].to_numpy(), np.arange(found.num_rows)):
        raise DamagedCaptureError(f"{place} is damaged: its rows are not numbered from 0 by file_id")
    for name in ("size", "stripe_size", "stripe_count", "coverage"):
        least = pc.min(found[name]).as_py()
        if least is not None and least < 0:
            raise DamagedCaptureError(f"{place} is damaged: a file has {name} {least}")
    return found


def spans_table(table: pa.Table, place: object, ranks: Sequence[int]) -> pa.Table:
    """The spans, sorted by (rank, start_ns). Raises: CaptureError for a span of another rank or of negative length."""
    found = conforming(table, SPANS_SCHEMA, place)
    if not found.num_rows:
        return found
    rank, start, end = (found[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    if not set(np.unique(rank).tolist()) <= set(ranks):
        raise DamagedCaptureError(f"{place} is damaged: a span belongs to a rank that capture.json does not list")
    if np.any(end < start) or start.min() < -MOST_NS or end.max() > MOST_NS:
        raise DamagedCaptureError(f"{place} is damaged: a span ends before it starts, or after decades")
    if found["step"].to_numpy().min() < NO_STEP:
        raise DamagedCaptureError(f"{place} is damaged: a span has a step number below -1")
    later = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (start[1:] >= start[:-1]))
    return found if later.all() else found.sort_by([("rank", "ascending"), ("start_ns", "ascending")])


def lanes_table(table: pa.Table, place: object, ranks: Sequence[int]) -> pa.Table:
    """The lanes, sorted by (rank, lane). Raises: CaptureError for a lane of another rank, or one that comes twice."""
    found = conforming(table, LANES_SCHEMA, place).sort_by([("rank", "ascending"), ("lane", "ascending")])
    rank, lane = found["rank"].to_numpy(), found["lane"].to_numpy()
    if not np.isin(rank, ranks).all() or lane.min(initial=0) < 0:
        raise DamagedCaptureError(f"{place} is damaged: a lane of a rank that capture.json does not list, or below 0")
    if np.any((np.diff(rank) == 0) & (np.diff(lane) == 0)):
        raise DamagedCaptureError(f"{place} is damaged: it has two rows of one lane")
    return found


def hdf5_table(table: pa.Table, place: object, files: int) -> pa.Table:
    """The HDF5 datasets. Raises: CaptureError where a dataset contradicts itself or names an unknown file."""
    found = conforming(table, HDF5_SCHEMA, place)
    for row in found.to_pylist():
        if (problem := _dataset_problem(row, files)) is not None:
            raise DamagedCaptureError(f"{place} is damaged: {problem} of dataset {row['dataset']!r} cannot be right")
    return found


def _dataset_problem(row: Mapping[str, Any], files: int) -> str | None:
    if not 0 <= row["file_id"] < files:
        return "the file number"
    for name in ("shape", "chunk_shape", "chunk_index", "chunk_offset", "chunk_size", "chunk_mask"):
        values = row[name] or ()
        if any(value is None or value < (1 if name == "chunk_shape" else 0) for value in values):
            return f"a {name.replace('_', ' ')}"
    if row["type_size"] < 0 or row["points"] < 0:
        return "the number of its elements or their size"
    if len({len(row[name] or ()) for name in ("chunk_index", "chunk_offset", "chunk_size", "chunk_mask")}) > 1:
        return "the list of chunks"
    if row["shape"] and row["chunk_shape"] and len(row["shape"]) != len(row["chunk_shape"]):
        return "the shape of the chunks"
    return None


def columns_to_read(requested: Sequence[str], stored: Collection[str]) -> list[str]:
    """The columns to read of a part with the columns `stored`, so that `_translated` can make the requested ones."""
    needed = dict.fromkeys(requested)
    if "other_file_id" not in stored and not needed.keys().isdisjoint(("offset", "other_file_id")):
        needed |= dict.fromkeys(("op", "offset"))
    if "follows_end" not in stored and "follows_end" in needed:
        needed["follows"] = None
    return list(needed)


def _translated(rows: pa.Table, stored: Collection[str]) -> pa.Table:
    """Rows of a part with the columns `stored`, in the types of `OPS_SCHEMA`, with the meaning that they have there.

    Earlier versions held two facts in one column. Without `other_file_id`, the `offset` of a rename is the file_id of
    the new name; one that cannot be a file_id becomes null. Without `follows_end`, `follows` is 2 n for the begin of
    batch fetch n, and 2 n + 1 for its end.
    """
    if "other_file_id" not in stored and {"op", "offset"} <= set(rows.column_names):
        renames = codes(rows, "op") == _RENAME
        if renames.any():
            offset = rows["offset"].to_numpy()
            named = renames & (offset >= 0) & (offset <= np.iinfo(np.int32).max)
            new_name = pa.array(np.where(named, offset, 0).astype(np.int32), mask=~named)
            rows = _replaced(rows, offset=pa.array(np.where(renames, -1, offset)), other_file_id=new_name)
    if "follows_end" not in stored and "follows" in rows.column_names and rows["follows"].null_count < rows.num_rows:
        moment = rows["follows"]
        is_end = pc.equal(pc.bit_wise_and(moment, pa.scalar(1, pa.int32())), 1)
        rows = _replaced(rows, follows=pc.shift_right(moment, pa.scalar(1, pa.int32())), follows_end=is_end)
    return rows


def _replaced(rows: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    for name, column in columns.items():
        if name in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(name), OPS_SCHEMA.field(name), column)
    return rows


MOST_TEXT_BYTES = 1 << 30
"""Most bytes of text, such as paths, in a table that is read as a whole."""

MOST_ONE_TEXT_BYTES = 16 << 20
"""Most bytes of one text, such as a path; Linux allows 4096 in a path."""

MOST_REPEATED_ROWS = 8 << 20
"""Rows of a table may take less than a byte each: thousands of equal ranks of a generated capture do."""

_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())


def open_parquet(path: Path, footer: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file. `footer`: its metadata if they are known. `dictionaries`: columns to be read as such.

    Never ask pyarrow for the statistics of a footer, nor for a column of a row group that was not read before: it
    aborts the program at those that it cannot decode.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO would block
            raise OSError("not a regular file")
        # Not mapped: pages that were read would stay in the process's resident memory, up to the whole stream.
        file = pq.ParquetFile(
            path, memory_map=False, metadata=footer, read_dictionary=dictionaries, page_checksum_verification=True
        )
        names = file.schema_arrow.names if footer is None else ()
    except (pa.ArrowException, OSError, ValueError) as error:
        if exhausted(error) is not None:
            raise unreadable(error, path) from error
        raise DamagedCaptureError(f"{path} is missing, truncated or not Parquet ({error})") from error
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DamagedCaptureError(f"{path} is damaged: it has two columns {twice[0]!r}")
    return file


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A small table as stored, with those of `columns` that exist.

    Raises: CaptureError where it would fill the memory.
    """
    file = open_parquet(path)
    rows, stored = file.metadata.num_rows, path.stat().st_size
    if rows > max(stored, MOST_REPEATED_ROWS):
        raise DamagedCaptureError(f"{path} is damaged: it claims {rows} rows in {stored} bytes")
    unpacked = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
    if unpacked > max(FREE_BYTES, MOST_EXPANSION * stored):
        raise DamagedCaptureError(f"{path} is damaged: it claims {format_bytes(unpacked)} in {stored} bytes")
    try:
        # pyarrow takes dictionaries only when it opens a file; the footer is parsed once.
        whole = open_parquet(path, file.metadata, _texts(file.schema_arrow))
        found: dict[str, pa.Array] = {}
        nulls: dict[pa.DataType, pa.Array] = {}
        texts = 0
        names = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for name in names:  # one by one, because paths decoded from dictionaries take several times their memory
            stored_type, chunks = file.schema_arrow.field(name).type, []
            for group in range(file.metadata.num_row_groups):
                chunk = whole.read_row_group(group, columns=[name], use_threads=False)[name]
                if (texts := texts + _text_bytes(chunk)) > MOST_TEXT_BYTES:
                    raise DamagedCaptureError(
                        f"{path} is damaged: it claims {format_bytes(texts)} of text in {stored} bytes"
                    )
                chunks += chunk.cast(stored_type).chunks
            column = pa.chunked_array(chunks, stored_type).combine_chunks()
            # Columns without a value share their memory; most counters of most captures have none.
            found[name] = nulls.setdefault(stored_type, column) if column.null_count == rows else column
        pa.default_memory_pool().release_unused()  # the allocator keeps the memory of decoding
        return pa.table(found)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(error, path) from error


def _texts(schema: pa.Schema) -> list[str]:
    """The text columns, to be read as dictionaries: a long text in millions of rows is then held once."""
    return [column.name for column in schema if column.type in _TEXTS]


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of a dictionary column's texts if each row held its own; 0 for other columns.

    Raises: ValueError for a text that no producer writes.
    """
    total = 0
    for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
        lengths = pc.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False).astype(np.int64)
        if lengths.max(initial=0) > MOST_ONE_TEXT_BYTES:
            raise ValueError(f"a text of {format_bytes(int(lengths.max()))}")
        used = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(lengths))
        total += int(used @ lengths) if len(lengths) else 0
    return total
