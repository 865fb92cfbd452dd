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
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, exhausted
from dxt_replay.traces.few_together import few_together
from dxt_replay.traces.gzip_blocks import FREE_BYTES, MOST_EXPANSION
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import APIS, HDF5_SCHEMA, CaptureInfo
from dxt_replay.traces.store.checks import files_table, hdf5_table, spans_table
from dxt_replay.traces.store.info import read_info
from dxt_replay.traces.store.operation_batches import ranks_together, read_row_groups, together
from dxt_replay.traces.store.row_groups import RowGroup, index_row_groups, open_parquet
from dxt_replay.traces.store.usage import OPS_FOLDER, USAGE_COLUMNS, USAGE_FOLDER, StoredUsage, UsageCheck, UsageCounter
from dxt_replay.traces.units import format_bytes, format_count

MOST_TEXT_BYTES = 1 << 30
"""Bytes of text, such as paths, in a table that is read as a whole."""

MOST_ONE_TEXT_BYTES = 16 << 20
"""Bytes of one text, such as a path, of which Linux allows 4096."""

MOST_REPEATED_ROWS = 8 << 20
"""Rows of a table that may be stored in less than a byte each: thousands of equal ranks of a generated capture are."""

KEPT_USAGE_ROWS = 1 << 20
"""Rows of `Capture.usage` kept in memory for the next call: 50 MB."""

COUNTED_TOGETHER = 1 << 20
"""Operations of the ranks whose counts are read at once: there is at most one count for each."""


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
        groups: Mapping[int, tuple[RowGroup, ...]],
        named: Path | None = None,
    ) -> None:
        self.path = path
        self.named = named or path
        self.info = info
        self.files = files
        self._groups = groups
        self._usage: dict[int, pa.Table] = {}
        self._kept_usage_rows = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its path: another process opens it there, once."""
        return _opened_once, (self.path, self.named, _written_ns(self.path))

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
            ("run time", f"{self.info.job.run_time_s:.3f} s" if self.info.job.run_time_s else "not known"),
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

    def row_groups(self, rank: int) -> tuple[RowGroup, ...]:
        """Where the operations of a rank are, in order."""
        return self._groups.get(rank, ())

    def operation_count(self, rank: int | None = None) -> int:
        """Rows of the op stream, of one rank or of all: from the file footers, without reading rows."""
        ranks = self._groups if rank is None else (rank,)
        return sum(group.rows for r in ranks for group in self._groups.get(r, ()))

    def stored_rows(self, rank: int | None = None) -> int:
        """As `operation_count`; of a part as well without reading rows, and so with those outside of its window."""
        return Capture.operation_count(self, rank)

    def operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The op stream in (rank, start_ns) order, a row group at a time; a batch holds one rank.

        `columns`: names of `OPS_SCHEMA`, all when None. `starts_ns`: [begin, end): row groups in which no operation
        starts then are left out. Memory: one row group, or small ones with at most TOGETHER_ROWS. Opens all parts of a
        rank before its first batch.
        Raises: CaptureError when a part cannot be read.
        """
        return (batch for _, batch in self.rank_operations(ranks, columns, starts_ns))

    def rank_operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: tuple[int, int] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `operations`, each batch after its rank. Many small ranks at once are read several times as fast as one by
        one."""
        wanted = self.ranks if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
        names = list(columns) if columns is not None else None
        opened: dict[Path, pq.ParquetFile] = {}
        check: tuple[int, UsageCheck | None] | None = None
        for groups in ranks_together(self._groups_of(wanted, starts_ns)):
            parts = {group.part: group.footer for group in groups}
            # A replay that has used up its descriptors can still read the next part.
            opened = {part: opened.get(part) or open_parquet(part, footer) for part, footer in parts.items()}
            for near in together(groups):
                # A loop over the batches would hold the last one until the next is read: there may be many streams.
                batches = read_row_groups(opened[near[0].part], near, names, self.files.num_rows)
                while batches:
                    rank, batch = batches.pop(0)
                    if check is None or check[0] != rank:
                        check = rank, self._usage_check(rank, names)
                    if check[1] is not None and not check[1].takes(batch):
                        raise CaptureError(
                            f"{self.named} is damaged: its operations of rank {rank} are not those that its folder "
                            f"{USAGE_FOLDER} counts. Copy or make it again; without that folder they are counted anew"
                        )
                    yield rank, batch
                    del batch

    def _usage_check(self, rank: int, columns: list[str] | None) -> UsageCheck | None:
        """For rows that somebody reads who was given stored counts of the rank and relies on both."""
        checkable = columns is None or UsageCheck.COLUMNS.issubset(columns)
        return UsageCheck(self._usage[rank]) if checkable and rank in self._usage else None

    def _groups_of(self, ranks: Iterable[int], starts_ns: tuple[int, int] | None) -> Iterator[tuple[RowGroup, ...]]:
        for rank in ranks:
            yield tuple(group for group in self._groups.get(rank, ()) if group.starts_within(starts_ns))

    def usage(self, rank: int) -> pa.Table:
        """How much each lane of a rank uses each file (`usage.USAGE_SCHEMA`): the stored counts, or counted now.

        Raises: CaptureError when a part cannot be read.
        """
        if rank in self._usage:
            return self._usage[rank]
        used = self._stored_usage.of((rank,))
        if used is None or pc.sum(used["operations"]).as_py() != self.operation_count(rank):
            used = self._counted(rank)
        if self._kept_usage_rows + used.num_rows <= KEPT_USAGE_ROWS:
            self._usage[rank] = used
            self._kept_usage_rows += used.num_rows
        return used

    def usages(self) -> Iterator[pa.Table]:
        """`usage` of all ranks, of many small ones in one table.

        Raises: CaptureError when a part cannot be read.
        """
        for ranks in few_together(sorted(self._groups), self.stored_rows, COUNTED_TOGETHER):
            used = self._stored_usage.of(ranks)
            if used is not None and self._adds_up(ranks, used):
                yield used
            else:
                yield from map(self.usage, ranks)

    def _adds_up(self, ranks: Sequence[int], used: pa.Table) -> bool:
        """Whether each rank has as many operations as its row groups."""
        counted = np.zeros(len(ranks), dtype=np.int64)
        np.add.at(counted, np.searchsorted(ranks, used["rank"].to_numpy()), used["operations"].to_numpy())
        return counted.tolist() == [self.operation_count(rank) for rank in ranks]

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
        last = [group.last_end_ns for group in groups]
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
        groups = index_row_groups(path / OPS_FOLDER, info)
    except OSError as error:
        remedy = exhausted(error) or "check who may read it and the directories above it"
        raise CaptureError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
    return Capture(path, info, files, groups, named)


def _written_ns(path: Path) -> int:
    """When a capture was written; 0 where it cannot be seen any more, which whoever opens it explains."""
    try:
        return (path / "capture.json").stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=2)
def _opened_once(path: Path, named: Path, written_ns: int) -> Capture:
    """`written_ns`: when it was written; another capture at the path is opened anew."""
    return open_capture(path, named=named)


def _read_table(path: Path) -> pa.Table:
    """All of a small table, as it lies in its file. Raises: CaptureError where it would fill the memory."""
    file = open_parquet(path)
    rows, stored = file.metadata.num_rows, path.stat().st_size
    if rows > max(stored, MOST_REPEATED_ROWS):
        raise CaptureError(f"{path} is damaged: it claims {rows} rows in {stored} bytes")
    unpacked = _unpacked_text_bytes(file)
    if unpacked > max(FREE_BYTES, MOST_EXPANSION * stored):
        raise CaptureError(f"{path} is damaged: it claims {format_bytes(unpacked)} of text in {stored} bytes")
    try:
        whole = pq.ParquetFile(
            path, memory_map=False, read_dictionary=_texts(file.schema_arrow), page_checksum_verification=True
        )
        columns: dict[str, pa.Array] = {}
        nulls: dict[pa.DataType, pa.Array] = {}
        texts = 0
        for name in file.schema_arrow.names:  # one by one: as dictionaries, paths take several times their memory
            stored_type, chunks = file.schema_arrow.field(name).type, []
            for group in range(file.metadata.num_row_groups):
                chunk = whole.read_row_group(group, columns=[name], use_threads=False)[name]
                if (texts := texts + _text_bytes(chunk)) > MOST_TEXT_BYTES:
                    raise CaptureError(f"{path} is damaged: it claims {format_bytes(texts)} of text in {stored} bytes")
                chunks += chunk.cast(stored_type).chunks
            column = pa.chunked_array(chunks, stored_type).combine_chunks()
            # Columns without a value share their memory: most counters of most captures are among them.
            columns[name] = nulls.setdefault(stored_type, column) if column.null_count == rows else column
        pa.default_memory_pool().release_unused()  # the allocator keeps what columns took on their way
        return pa.table(columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        if (remedy := exhausted(error)) is not None:
            raise CaptureError(f"cannot open {path}: {error}: {remedy}") from error
        raise CaptureError(f"{path} is damaged: {error}") from error


def _texts(schema: pa.Schema) -> list[str]:
    """The columns of text, which are read as dictionaries: one long text in millions of rows is then held once."""
    return [column.name for column in schema if column.type in (pa.string(), pa.binary())]


def _unpacked_text_bytes(file: pq.ParquetFile) -> int:
    """What the footer says that the columns of text take before they are decoded: what reading them would allocate."""
    footer = file.metadata
    texts = [at for at in range(footer.num_columns) if footer.schema.column(at).physical_type == "BYTE_ARRAY"]
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return sum(group.column(at).total_uncompressed_size for group in groups for at in texts)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the texts of a dictionary column, were each row to hold its own; 0 for other columns.

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
