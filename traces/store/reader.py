"""A capture as a directory: opened, verified, and read rank by rank. `traces.store.writer` writes it.

Layout (`traces.schema` has the columns, docs/capture-format.md describes it for other readers):

    NAME.capture/
      capture.json            written last: a directory without it is not a capture
      ops/part-*.parquet      the operations; row groups never span ranks; a part's name carries its first rank
      files.parquet
      spans.parquet
      hdf5.parquet            only where the source knows HDF5 datasets
      usage/usage-*.parquet   counts of the operations (`traces.store.usage`); a capture is whole without them

Several processes may write parts of one capture (a replay under MPI): each makes an `OpsWriter`, and one of them
calls `write_capture_info` at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traces.errors import CaptureError
from traces.part import Part
from traces.schema import APIS, HDF5_SCHEMA, OPS_SCHEMA, CaptureInfo
from traces.store.checks import MOST_ROWS, check_columns, files_table, hdf5_table, operations, spans_table
from traces.store.info import read_info
from traces.store.usage import OPS_FOLDER, USAGE_COLUMNS, StoredUsage, UsageCounter
from traces.units import format_bytes, format_count

MOST_TEXT_BYTES = 1 << 30
"""Bytes of text, such as paths, in a table that is read as a whole."""

MOST_REPEATED_ROWS = 8 << 20
"""Rows of a table that may be stored in less than a byte each: thousands of equal ranks of a generated capture are."""

KEPT_USAGE_ROWS = 1 << 20
"""Rows of `Capture.usage` kept in memory for the next call: 50 MB."""


@dataclass(frozen=True, slots=True)
class _RowGroup:
    part: Path
    footer: pq.FileMetaData
    index: int
    rank: int
    rows: int
    first_ns: int
    last_start_ns: int
    last_end_ns: int | None


class Capture:
    """A capture on disk, opened by `open_capture`. Tables are read when asked for; the op stream only in batches.

    path: its directory.
    named: the path that messages show, which is that of the log where a capture was made of one for a while.
    info: the contents of `capture.json`.
    files: the whole files table; row i has file_id i.
    """

    def __init__(
        self,
        path: Path,
        info: CaptureInfo,
        files: pa.Table,
        groups: Mapping[int, tuple[_RowGroup, ...]],
        named: Path | None = None,
    ) -> None:
        self.path = path
        self.named = named or path
        self.info = info
        self.files = files
        self._groups = groups
        self._usage: dict[int, pa.Table] = {}

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r}: {', '.join(f'{value} {name}' for name, value in self._facts()[:3])}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts in a small table, everything escaped."""
        facts = [("capture", str(self.path)), *self._facts(), *(("warning", text) for text in self.info.warnings)]
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
        return f"<table>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """(name, value) of what is known without reading operations."""
        coverage = self.info.coverage.bytes
        return [
            ("ranks", format_count(len(self.ranks))),
            ("operations", format_count(self.operation_count())),
            ("files", format_count(self.files.num_rows)),
            ("run time", f"{self.info.job.run_time_s:.3f} s"),
            ("program", self.info.job.exe or "not recorded"),
            ("made by", f"dxt-replay {self.info.made_by.get('command', '')}".strip()),
            ("trace coverage, bytes", "not known" if coverage is None else f"{coverage:.1%}"),
            *([("incomplete", "the recording or the replay was stopped")] if self.info.partial else []),
        ]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the captured job, ascending; a rank may have no operations."""
        return self.info.ranks

    @property
    def whole(self) -> Capture:
        """The capture that this one is a part of; itself where it is all of it."""
        return self

    @property
    def part(self) -> Part:
        """Which part of `whole` this capture is."""
        return Part()

    @property
    def file_mask(self) -> np.ndarray:
        """bool (files,): which rows of the files table are in the part."""
        return np.ones(self.files.num_rows, dtype=bool)

    @property
    def api_mask(self) -> np.ndarray:
        """bool (apis,) by code: the interfaces whose operations are in the part."""
        return np.ones(len(APIS), dtype=bool)

    @property
    def takes_whole_files(self) -> bool:
        """Whether the counters of the files in `file_mask` count the operations of this part and no others."""
        return True

    def row_groups(self, rank: int) -> tuple[_RowGroup, ...]:
        """Where the operations of a rank are, in order."""
        return self._groups.get(rank, ())

    def operation_count(self, rank: int | None = None) -> int:
        """Rows of the op stream, of one rank or of all: from the file footers, without reading rows."""
        ranks = self._groups if rank is None else (rank,)
        return sum(group.rows for r in ranks for group in self._groups.get(r, ()))

    def operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The op stream in (rank, start_ns) order, a row group at a time; a batch holds one rank.

        `columns`: names of `OPS_SCHEMA`, all when None. `starts_ns`: [begin, end): row groups in which no operation
        starts then are left out. Memory: one row group. Opens all parts of a rank before its first batch.
        Raises: CaptureError when a part cannot be read.
        """
        wanted = self.ranks if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
        names = list(columns) if columns is not None else None
        opened: dict[Path, pq.ParquetFile] = {}
        for rank in wanted:
            groups = [group for group in self._groups.get(rank, ()) if _starts_within(group, starts_ns)]
            parts = {group.part: group.footer for group in groups}
            # A replay that has used up its descriptors can still read the next part.
            opened = {part: opened.get(part) or _open_parquet(part, footer) for part, footer in parts.items()}
            for group in groups:
                # A loop over the batches would hold the last one until the next is read: there may be many streams.
                batches = _read_row_group(opened[group.part], group, names, self.files.num_rows)
                while batches:
                    yield batches.pop(0)

    def usage(self, rank: int) -> pa.Table:
        """How much each lane of a rank uses each file (`usage.USAGE_SCHEMA`): the stored counts, or counted now.

        Raises: CaptureError when a part cannot be read.
        """
        if rank in self._usage:
            return self._usage[rank]
        used = self._stored_usage.of(rank)
        if used is None or pc.sum(used["operations"]).as_py() != self.operation_count(rank):
            used = self._counted(rank)
        if sum(table.num_rows for table in self._usage.values()) + used.num_rows <= KEPT_USAGE_ROWS:
            self._usage[rank] = used
        return used

    def _counted(self, rank: int) -> pa.Table:
        counter = UsageCounter()
        for batch in self.operations(rank, columns=USAGE_COLUMNS):
            counter.add(batch)
        return counter.table(rank)

    @cached_property
    def _stored_usage(self) -> StoredUsage:
        return StoredUsage(self.path, self.files.num_rows)

    @cached_property
    def spans(self) -> pa.Table:
        """All spans (`SPANS_SCHEMA`), sorted by (rank, start_ns)."""
        path = self.path / "spans.parquet"
        return spans_table(_read_table(path), path, self.info.ranks)

    @cached_property
    def hdf5(self) -> pa.Table:
        """The HDF5 datasets that the source knows (`HDF5_SCHEMA`); no rows in most captures, and in replays."""
        path = self.path / "hdf5.parquet"
        if not path.exists():
            return HDF5_SCHEMA.empty_table()
        return hdf5_table(_read_table(path), path, self.files.num_rows)

    @cached_property
    def time_span_ns(self) -> tuple[int, int]:
        """First start and last end over operations and spans; (0, 0) for an empty capture."""
        groups = [group for rank in self.ranks for group in self._groups.get(rank, ())]
        first = [group.first_ns for group in groups]
        last = [group.last_end_ns for group in groups if group.last_end_ns is not None]
        if len(last) < len(groups):
            last = [int(batch.column("end_ns").to_numpy().max()) for batch in self.operations(columns=["end_ns"])]
        if self.spans.num_rows:
            first.append(int(self.spans["start_ns"].to_numpy().min()))
            last.append(int(self.spans["end_ns"].to_numpy().max()))
        return (min(first), max(last)) if first else (0, 0)

    def paths(self) -> list[str]:
        """Path of each file as recorded, by file_id (escaped where it is not UTF-8)."""
        return self.files["path"].to_pylist()


def open_capture(path: Path | str, *, named: Path | None = None) -> Capture:
    """Open a capture; reads `capture.json`, the files table and the footers of the parts.

    `named`: the path that messages about the capture's contents show, its own when None.
    Raises: CaptureError when `path` is not a capture, lacks a part, is truncated, cannot be read, or was written by a
    newer release.
    """
    path = Path(path)
    try:
        info = read_info(path)
        files = files_table(_read_table(path / "files.parquet"), path / "files.parquet")
        if not (path / "spans.parquet").is_file():
            raise CaptureError(f"{path} lacks spans.parquet: the capture is incomplete, merge or run again")
        groups = _index_row_groups(path / OPS_FOLDER, info)
    except OSError as error:
        raise CaptureError(
            f"cannot read {path}: {error.strerror or error}; check who may read it and the directories above it"
        ) from error
    return Capture(path, info, files, groups, named)


def _index_row_groups(folder: Path, info: CaptureInfo) -> dict[int, tuple[_RowGroup, ...]]:
    if not folder.is_dir():
        raise CaptureError(f"{folder.parent} lacks its ops folder: the capture is incomplete, merge or run again")
    groups: dict[int, list[_RowGroup]] = {}
    # not glob, which takes a folder that may not be read for an empty one
    for part in sorted(file for file in folder.iterdir() if file.match("part-*.parquet")):
        footer = _open_parquet(part).metadata
        check_columns(footer.schema.names, OPS_SCHEMA, part)
        for index in range(footer.num_row_groups):
            group = _row_group(part, footer, index)
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


def _row_group(part: Path, footer: pq.FileMetaData, index: int) -> _RowGroup:
    """What the footer says of a row group. Raises: CaptureError where it is not one of the op stream."""
    group = footer.row_group(index)
    places = [footer.schema.names.index(name) for name in ("rank", "start_ns", "end_ns")]
    if any(group.column(place).physical_type != footer.schema.column(place).physical_type for place in places):
        raise CaptureError(f"{part} is damaged: its footer contradicts itself (row group {index})")
    # Not before that: pyarrow ends the program where the statistics are of another type than the column.
    rank, start, end = (group.column(place).statistics for place in places)
    if any(each is None or not each.has_min_max or not isinstance(each.min, int) for each in (rank, start)):
        raise CaptureError(f"{part}: row group {index} has no statistics; write it with dxt-replay")
    if rank.min != rank.max:
        raise CaptureError(f"{part}: row group {index} mixes ranks; write it with dxt-replay")
    if not 0 < group.num_rows <= MOST_ROWS:
        raise CaptureError(
            f"{part}: row group {index} has {group.num_rows} rows, at most {MOST_ROWS} are read at a time"
        )
    return _RowGroup(
        part=part,
        footer=footer,
        index=index,
        rank=rank.min,
        rows=group.num_rows,
        first_ns=start.min,
        last_start_ns=start.max,
        last_end_ns=end.max if end is not None and end.has_min_max and isinstance(end.max, int) else None,
    )


def _in_order(groups: list[_RowGroup]) -> tuple[_RowGroup, ...]:
    """A rank's row groups by time. Raises: CaptureError where they overlap."""
    ordered = sorted(groups, key=lambda group: (group.first_ns, group.last_start_ns, group.part, group.index))
    for before, after in pairwise(ordered):
        if after.first_ns < before.last_start_ns:
            raise CaptureError(
                f"{after.part} is damaged: its operations of rank {after.rank} are not in the order of their times"
            )
    return tuple(ordered)


def _starts_within(group: _RowGroup, starts_ns: tuple[int, int] | None) -> bool:
    return starts_ns is None or (group.first_ns < starts_ns[1] and group.last_start_ns >= starts_ns[0])


def _read_row_group(
    file: pq.ParquetFile, group: _RowGroup, columns: list[str] | None, files: int
) -> list[pa.RecordBatch]:
    try:
        table = file.read_row_group(group.index, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CaptureError(f"{group.part} is damaged (row group {group.index}): {error}") from error
    place = f"{group.part} (row group {group.index})"
    found = operations(table, place, rank=group.rank, files=files, columns=columns)
    batches: list[pa.RecordBatch] = found.to_batches()
    return batches


def _open_parquet(path: Path, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """`footer`: its metadata where they are known."""
    try:
        # Not mapped: pages that were read would stay in the process's resident memory, up to the whole stream.
        return pq.ParquetFile(path, memory_map=False, metadata=footer)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CaptureError(f"{path} is missing, truncated or not Parquet: {error}") from error


def _read_table(path: Path) -> pa.Table:
    """All of a small table, as it lies in its file. Raises: CaptureError where it would fill the memory."""
    file = _open_parquet(path)
    rows, stored = file.metadata.num_rows, path.stat().st_size
    if rows > max(stored, MOST_REPEATED_ROWS):
        raise CaptureError(f"{path} is damaged: it claims {rows} rows in {stored} bytes")
    try:
        whole = pq.ParquetFile(path, memory_map=False, read_dictionary=_texts(file.schema_arrow))
        table = whole.read(use_threads=False)
        if (length := sum(map(_text_bytes, table.columns))) > MOST_TEXT_BYTES:
            raise CaptureError(f"{path} is damaged: it claims {format_bytes(length)} of text in {stored} bytes")
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CaptureError(f"{path} is damaged: {error}") from error


def _texts(schema: pa.Schema) -> list[str]:
    """The columns of text, which are read as dictionaries: one long text in millions of rows is then held once."""
    return [column.name for column in schema if column.type in (pa.string(), pa.binary())]


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the texts of a dictionary column, were each row to hold its own; 0 for other columns."""
    total = 0
    for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
        lengths = pc.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False).astype(np.int64)
        used = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(lengths))
        total += int(used @ lengths) if len(lengths) else 0
    return total
