"""The row groups of the op stream: where they are, whose operations they hold and when, from the footers of the parts.

A footer is a claim of whoever wrote the file. pyarrow ends the whole program at statistics that it cannot decode (it
throws a C++ exception where Python cannot catch it), so it is never asked for them: `_claims` finds them in the bytes
of the footer, and where they do not look as expected the columns themselves are read. A row group is held against its
statistics when it is read.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, exhausted
from dxt_replay.traces.schema import OPS_SCHEMA, CaptureInfo
from dxt_replay.traces.store.checks import MOST_ROWS, check_columns, conforming

_WIDTHS = {"rank": 4, "start_ns": 8, "end_ns": 8}
"""Columns whose statistics are used -> bytes of a value."""

Claim = tuple[int, int]
"""Smallest and largest value of a column in a row group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group of the op stream: operations of one rank.

    part: the file that holds it.
    footer: the metadata of that file.
    index: its number there.
    rows: how many operations it holds, at most `MOST_ROWS`.
    first_ns, last_start_ns: when the first and the last of them start.
    last_end_ns: when the last one ends.
    """

    part: Path
    footer: pq.FileMetaData
    index: int
    rank: int
    rows: int
    first_ns: int
    last_start_ns: int
    last_end_ns: int

    def starts_within(self, starts_ns: tuple[int, int] | None) -> bool:
        """Whether an operation may start in [begin, end); True for None."""
        return starts_ns is None or (self.first_ns < starts_ns[1] and self.last_start_ns >= starts_ns[0])

    def check(self, rows: pa.Table) -> None:
        """Hold what was read against what the footer claims. Raises: CaptureError where they differ."""
        found = {name: rows[name].to_numpy() for name in ("start_ns", "end_ns") if name in rows.column_names}
        start, end = found.get("start_ns"), found.get("end_ns")
        if (
            rows.num_rows != self.rows
            or (start is not None and (int(start[0]), int(start[-1])) != (self.first_ns, self.last_start_ns))
            or (end is not None and int(end.max()) != self.last_end_ns)
        ):
            raise CaptureError(f"{self.part} is damaged: its footer contradicts its rows (row group {self.index})")


def index_row_groups(folder: Path, info: CaptureInfo) -> dict[int, tuple[RowGroup, ...]]:
    """The row groups of the parts in `folder`, by rank and in the order of their times.

    Raises: CaptureError where a part is missing, damaged or not of this job; OSError where it cannot be read.
    """
    if not folder.is_dir():
        raise CaptureError(f"{folder.parent} lacks its ops folder: the capture is incomplete, merge or run again")
    groups: dict[int, list[RowGroup]] = {}
    # not glob, which takes a folder that may not be read for an empty one
    for part in sorted(file for file in folder.iterdir() if file.match("part-*.parquet")):
        for group in _groups_of(part):
            groups.setdefault(group.rank, []).append(group)
    unknown = set(groups) - set(info.ranks)
    if unknown:
        raise CaptureError(
            f"{folder} holds operations of rank {min(unknown)}, which capture.json does not list: merge or run again"
        )
    stored = sum(group.rows for found in groups.values() for group in found)
    expected = info.made_by.get("operations_stored")
    if expected is not None and expected != stored:
        raise CaptureError(
            f"{folder} holds {stored} of {expected} operations: a part is missing or truncated, copy the capture again"
        )
    return {rank: _in_order(found) for rank, found in groups.items()}


def open_parquet(path: Path, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """`footer`: its metadata where they are known. Raises: CaptureError where it is not a whole Parquet file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would be waited for
            raise OSError("it is not a regular file")
        # Not mapped: pages that were read would stay in the process's resident memory, up to the whole stream.
        file = pq.ParquetFile(path, memory_map=False, metadata=footer, page_checksum_verification=True)
        names = file.schema_arrow.names if footer is None else ()
    except (pa.ArrowException, OSError, ValueError) as error:
        if (remedy := exhausted(error)) is not None:
            raise CaptureError(f"cannot open {path}: {error}: {remedy}") from error
        raise CaptureError(f"{path} is missing, truncated or not Parquet: {error}") from error
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise CaptureError(f"{path} is damaged: it has two columns {twice[0]!r}")
    return file


def claimed_ranks(path: Path, groups: int) -> list[Claim] | None:
    """Smallest and largest rank of each of the row groups of a file; None where its footer does not say.

    Raises: OSError when the file cannot be read.
    """
    return _claims(_footer_bytes(path), "rank", groups)


def _groups_of(part: Path) -> list[RowGroup]:
    """The row groups of a part. Raises: CaptureError where one is not of the op stream."""
    file = open_parquet(part)
    footer = file.metadata
    check_columns(file.schema_arrow.names, OPS_SCHEMA, part)
    rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    for index, count in enumerate(rows):
        if not 0 < count <= MOST_ROWS:
            raise CaptureError(f"{part}: row group {index} has {count} rows, at most {MOST_ROWS} are read at a time")
    written = _footer_bytes(part)
    known = {name: _claims(written, name, len(rows)) or _measured(file, name, part) for name in _WIDTHS}
    groups = []
    for index, (count, rank, start, end) in enumerate(zip(rows, *known.values(), strict=True)):
        if rank[0] != rank[1]:
            raise CaptureError(f"{part}: row group {index} mixes ranks; write it with dxt-replay")
        groups.append(
            RowGroup(
                part=part,
                footer=footer,
                index=index,
                rank=rank[0],
                rows=count,
                first_ns=start[0],
                last_start_ns=start[1],
                last_end_ns=end[1],
            )
        )
    return groups


def _footer_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        (length,) = struct.unpack("<I", file.read(4))
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)


def _claims(footer: bytes, column: str, groups: int) -> list[Claim] | None:
    """What the footer says of a column, by row group; None unless it says it for each of `groups`."""
    found = [
        (int.from_bytes(least, "little", signed=True), int.from_bytes(most, "little", signed=True))
        for most, least in _PATTERNS[column].findall(footer)
    ]
    return found if len(found) == groups else None


def _pattern(column: str) -> re.Pattern[bytes]:
    """A column chunk's path, the numbers after it, and its statistics, as Thrift's compact protocol writes them.

    A field begins with a byte of two halves: the distance of its number from that of the field before, and its type: 5
    and 6 integers, 8 bytes, 9 a list, 12 a struct. `ColumnMetaData` and `Statistics` are described in parquet.thrift,
    https://github.com/apache/parquet-format. The largest value stands before the smallest; older readers' pair of them,
    and a count of nulls, may stand before.
    """
    width, name = bytes([_WIDTHS[column]]), column.encode()
    numbers = rb"(?:%s[\x80-\xff]{0,9}[\x00-\x7f])*" % _field(5, 6)
    value = re.escape(width) + rb"(.{%d})" % width[0]
    path = rb"\x19\x18" + re.escape(bytes([len(name)]) + name)
    older = (rb"(?:\x18" + value + rb"\x18" + value + rb")?").replace(b"(.", b"(?:.")
    return re.compile(path + numbers + _field(12) + older + numbers + _field(8) + value + rb"\x18" + value, re.DOTALL)


def _field(*kinds: int) -> bytes:
    """A character class: the first byte of a field of one of the types."""
    return b"[" + b"".join(b"\\x%x%x" % (distance, kind) for kind in kinds for distance in range(1, 16)) + b"]"


_PATTERNS: Mapping[str, re.Pattern[bytes]] = {column: _pattern(column) for column in _WIDTHS}


def _measured(file: pq.ParquetFile, column: str, part: Path) -> list[Claim]:
    """Smallest and largest value of a column in each row group, by reading them all."""
    found = []
    for index in range(file.metadata.num_row_groups):
        try:
            table = file.read_row_group(index, columns=[column], use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CaptureError(f"{part} is damaged (row group {index}): {error}") from error
        values = conforming(table, OPS_SCHEMA, f"{part} (row group {index})", [column])[column].to_numpy()
        if not len(values):
            raise CaptureError(f"{part} is damaged: row group {index} holds no rows")
        found.append((int(np.min(values)), int(np.max(values))))
    return found


def _in_order(groups: Sequence[RowGroup]) -> tuple[RowGroup, ...]:
    """A rank's row groups by time. Raises: CaptureError where they overlap."""
    ordered = sorted(groups, key=lambda group: (group.first_ns, group.last_start_ns, group.part, group.index))
    for before, after in pairwise(ordered):
        if after.first_ns < before.last_start_ns:
            raise CaptureError(
                f"{after.part} is damaged: its operations of rank {after.rank} are not in the order of their times"
            )
    return tuple(ordered)
