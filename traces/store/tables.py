"""Opens a capture's Parquet files and reads whole tables without filling the memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import DamagedCaptureError, exhausted, unreadable
from dxt_replay.traces.gzip_blocks import FREE_BYTES, MOST_EXPANSION
from dxt_replay.traces.units import format_bytes

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
