"""How much the pages of a Parquet file unpack to, from their own headers.

A reader makes room for a page as its header says, before it looks at the values: a page of some kilobytes can ask for
gigabytes, whatever the footer says. pyarrow has no limit for that, so the headers are looked at before a large row
group is read. They are structs of Thrift's compact protocol, `PageHeader` in parquet.thrift,
https://github.com/apache/parquet-format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import CaptureError

MOST_PAGE_BYTES = 256 << 20
"""Bytes that one page may unpack to. dxt-replay and most writers make pages of a megabyte."""

_INFLATION = {"UNCOMPRESSED": 1, "SNAPPY": 22, "GZIP": 1040, "ZSTD": 1 << 15}
"""Compression -> the most bytes that a stored byte can stand for; what is not listed has no bound."""

_HEADER_BYTES = (1 << 8, 1 << 20)
"""How much is read to find a page's header: nearly always the first is enough."""

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenParquet:
    """An open Parquet file, and the bytes below it, which have its only descriptor."""

    path: Path
    reader: pq.ParquetFile
    source: pa.NativeFile


def open_pages(path: Path, footer: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()) -> OpenParquet:
    """`footer`: its metadata where they are known. `dictionaries`: columns of text that are read as such.

    Raises: OSError, pa.ArrowException, ValueError where it is not a whole Parquet file.
    """
    # Not mapped: pages that were read would stay in the process's resident memory, up to the whole stream.
    source = pa.OSFile(str(path))
    reader = pq.ParquetFile(
        source, metadata=footer, read_dictionary=list(dictionaries), page_checksum_verification=True
    )
    return OpenParquet(path=path, reader=reader, source=source)


def check_page_sizes(opened: OpenParquet, groups: Iterable[int], columns: Collection[str] | None = None) -> None:
    """Look at the pages of some row groups of a file, of all columns when None.

    Raises: CaptureError where one says that it unpacks to more than MOST_PAGE_BYTES; OSError where the file cannot be
    read.
    """
    found = map(opened.reader.metadata.row_group, groups)
    chunks = [chunk for group in found for chunk in map(group.column, range(group.num_columns)) if not _small(chunk)]
    if columns is not None:
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
    for chunk in chunks:
        _check(opened, chunk)


def _check(opened: OpenParquet, chunk: pq.ColumnChunkMetaData) -> None:
    place = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    end = place + chunk.total_compressed_size
    while 0 <= place < end:
        found = next(filter(None, (_page(opened.source.read_at(size, place)) for size in _HEADER_BYTES)), None)
        if found is None:
            return  # pyarrow cannot read it either, and says so
        length, unpacked, stored = found
        if not 0 <= unpacked <= MOST_PAGE_BYTES or stored < 0:
            raise CaptureError(
                f"{opened.path} is damaged: a page of {chunk.path_in_schema} claims to unpack to {unpacked} bytes"
            )
        place += length + stored


def _small(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column chunk is so small that no page of it can unpack to more than MOST_PAGE_BYTES, or has none."""
    most = _INFLATION.get(chunk.compression)
    return chunk.num_values == 0 or (most is not None and chunk.total_compressed_size * most <= MOST_PAGE_BYTES)


def _page(header: bytes) -> tuple[int, int, int] | None:
    """Bytes of a page's header, those that the page unpacks to, and those that are stored; None where it is cut off."""
    try:
        sizes = dict.fromkeys((2, 3), -1)
        place = _skip_struct(header, 0, sizes, depth=0)
    except (IndexError, RecursionError):
        return None
    return place, sizes[2], sizes[3]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _skip_struct(data: bytes, place: int, sizes: dict[int, int], depth: int) -> int:
    """The place after a struct. Its fields that `sizes` has are put there, where they are 32-bit integers."""
    field = 0
    while True:
        byte = data[place]
        place += 1
        kind = byte & 0x0F
        if kind == _STOP:
            return place
        if byte >> 4:
            field += byte >> 4
        else:
            value, place = _varint(data, place)
            field = value >> 1 ^ -(value & 1)
        if kind == _I32 and field in sizes:
            value, place = _varint(data, place)
            sizes[field] = value >> 1 ^ -(value & 1)
        else:
            place = _skip(data, place, kind, depth)


def _skip(data: bytes, place: int, kind: int, depth: int) -> int:
    """The place after a value of a field. Raises: IndexError where the data end before it."""
    if kind in (_TRUE, _FALSE):
        return place
    if kind in (_I16, _I32, _I64):
        return _varint(data, place)[1]
    if kind == _BYTE:
        return place + 1
    if kind == _DOUBLE:
        return place + 8
    if kind == _BINARY:
        length, place = _varint(data, place)
        return place + length
    if kind == _STRUCT and depth < 8:
        return _skip_struct(data, place, {}, depth + 1)
    raise IndexError("page headers have no such fields")
