"""A capture as a directory: opened, verified, and read rank by rank. `traces.store.writer` writes it.

Layout (`traces.schema` has the columns, docs/capture-format.md describes it for other readers):

    NAME.capture/
      capture.json            written last: a directory without it is not a capture
      ops/part-*.parquet      the operations; a part's name carries its first rank
      index.parquet           which row groups hold which ranks (`traces.store.index`); made anew where it is absent
      files.parquet
      spans.parquet
      hdf5.parquet            only where the source knows HDF5 datasets
      lanes.parquet           only where the source knows the host, process, thread or role of a lane

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
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError, UnreadableError, exhausted, unreadable
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import APIS, HDF5_SCHEMA, LANES_SCHEMA, SPANS_SCHEMA, USAGE_SCHEMA, CaptureInfo
from dxt_replay.traces.store.checks import (
    columns_to_read,
    files_table,
    hdf5_table,
    is_ours,
    lanes_table,
    open_parquet,
    operations,
    read_info,
    read_table,
    spans_table,
)
from dxt_replay.traces.store.index import INDEX_NAME, USAGE_COLUMNS, OpsIndex, StoredUsage, UsageCounter, ops_index
from dxt_replay.traces.units import format_count

_KEPT_USAGES = 64
"""Row groups of small ranks, or large ranks, whose usage is kept for the next call of `Capture.usage`."""

COUNTED_TOGETHER = 1 << 20
"""Operations of the ranks whose counts are read at once: each has at most one count."""

_COUNTED_ROWS = 1 << 16
"""Rows of small ranks that are counted at once."""


class Capture:
    """A capture on disk, opened by `open_capture`. Tables are read when asked for; the op stream only in batches.

    path: its directory.
    named: the path in messages; for a temporary capture made from a log, the path of the log.
    info: the contents of `capture.json`.
    files: the whole files table; row i has file_id i.
    index: where the operations of each rank are.
    """

    def __init__(
        self, path: Path, info: CaptureInfo, files: pa.Table, index: OpsIndex, named: Path | None = None
    ) -> None:
        self.path = path
        self.named = named or path
        self.info = info
        self.files = files
        self.index = index
        self._footer: tuple[Path, pq.FileMetaData] | None = None
        self._shared: tuple[tuple[int, Sequence[str] | None], pa.RecordBatch] | None = None
        self._kept_usage: dict[tuple[int, ...], pa.Table] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path: another process opens the capture there, once."""
        return _opened_once, (self.path, self.named, _written_ns(self.path))

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r}: {', '.join(f'{value} {name}' for name, value in self._facts()[:3])}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a small table of facts, escaped."""
        facts = [("capture", str(self.path)), *self._facts(), *(("warning", text) for text in self.info.warnings)]
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
        return f"<table>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """(name, value) of facts that need no operations."""
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
        """The capture that this one is a part of; itself if it is no part."""
        return self

    @property
    def part(self) -> Part:
        """The part of `whole` that this capture is."""
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

    def operation_count(self, rank: int | None = None) -> int:
        """Rows of the op stream, of one rank or of all: from the index, without reading rows."""
        return int(self.index.row_counts(self.ranks if rank is None else (rank,)).sum())

    def stored_rows(self, rank: int | None = None) -> int:
        """As `operation_count`, but without reading rows in a part either: it includes rows outside of the window."""
        return Capture.operation_count(self, rank)

    def operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The op stream in (rank, start_ns) order, at most a row group at a time; a batch holds one rank.

        `columns`: names of `OPS_SCHEMA`, all when None. `starts_ns`: [begin, end): leaves out row groups in which no
        operation of the rank starts then. Memory: one row group. Opens all parts of a rank before its first batch.
        """
        return (batch for _, batch in self.rank_operations(ranks, columns, starts_ns))

    def rank_operations(
        self,
        ranks: Iterable[int] | int | None = None,
        columns: Sequence[str] | None = None,
        starts_ns: tuple[int, int] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `operations`, each batch after its rank."""
        wanted = self.ranks if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
        names = list(columns) if columns is not None else None
        opened: dict[Path, pq.ParquetFile] = {}
        for rank in wanted:
            stretches = self.index.of(rank, starts_ns).tolist()
            if not (len(stretches) == 1 and self._is_shared(stretches[0], names)):
                parts = {self.index.parts[self.index.part[each]] for each in stretches}
                # A replay that has used up its descriptors must still be able to read the next part.
                opened = {part: opened.get(part) or self._opened(part) for part in parts}
            for stretch in stretches:
                batch = self._rows(stretch, opened, names)
                yield rank, batch
                del batch  # else it would stay in memory until the next is read; there may be many streams

    def _opened(self, part: Path) -> pq.ParquetFile:
        """An open part. The last footer is kept: the next rank is likely to be in the same part."""
        footer = self._footer[1] if self._footer is not None and self._footer[0] == part else None
        file = open_parquet(part, footer)
        self._footer = part, file.metadata
        return file

    def _is_shared(self, stretch: int, columns: list[str] | None) -> bool:
        """Whether the row group of a stretch was read last, with these columns."""
        return self._shared is not None and self._shared[0] == (int(self.index.together(stretch)[0]), columns)

    def _rows(self, stretch: int, opened: Mapping[Path, pq.ParquetFile], columns: list[str] | None) -> pa.RecordBatch:
        """The operations of a stretch; those of a row group of several ranks are kept for the other ranks."""
        together = self.index.together(stretch)
        if len(together) == 1:
            return self._read(together, opened, columns)
        if self._shared is None or not self._is_shared(stretch, columns):
            self._shared = (int(together[0]), columns), self._read(together, opened, columns)
        begin = self.index.begin[stretch] - self.index.begin[together[0]]
        return self._shared[1].slice(begin, self.index.rows[stretch])

    def _read(
        self, stretches: np.ndarray, opened: Mapping[Path, pq.ParquetFile], columns: list[str] | None
    ) -> pa.RecordBatch:
        """The row group that consists of these stretches, held against what the index says."""
        index, place = self.index, self.index.place(stretches[0])
        file, group = opened[index.parts[index.part[stretches[0]]]], int(index.row_group[stretches[0]])
        rows = index.rows[stretches]
        begins = index.begin[stretches] - index.begin[stretches[0]]
        contradicted = DamagedCaptureError(f"{place} is damaged: it contradicts {INDEX_NAME}")
        if group >= file.num_row_groups or file.metadata.row_group(group).num_rows != rows.sum():
            raise contradicted
        try:
            stored = file.schema_arrow.names
            names = None if columns is None else columns_to_read(columns, stored)
            table = file.read_row_group(group, columns=names, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(error, place) from error
        rank = np.repeat(index.rank[stretches], rows)
        found = operations(
            table, place, rank=rank, files=self.files.num_rows, columns=columns, stored=stored, begins=begins[1:]
        )
        if found.num_columns and found.num_rows != rows.sum():
            raise contradicted
        for name, function, said in (
            ("start_ns", np.minimum, index.first_ns),
            ("start_ns", np.maximum, index.last_start_ns),
            ("end_ns", np.maximum, index.last_ns),
        ):
            if name in found.column_names and not np.array_equal(
                function.reduceat(found[name].to_numpy(), begins), said[stretches]
            ):
                raise contradicted
        (batch,) = found.to_batches()
        return batch

    def usage(self, rank: int) -> pa.Table:
        """Usage of each file by each lane of a rank (`schema.USAGE_SCHEMA`): the stored counts, or counted now."""
        stretches = self.index.of(rank)
        if not len(stretches):
            return USAGE_SCHEMA.empty_table()
        alone = len(stretches) > 1
        beside = (rank,) if alone else tuple(self.index.rank[self.index.together(stretches[0])].tolist())
        if beside not in self._kept_usage:
            if len(self._kept_usage) == _KEPT_USAGES:
                self._kept_usage.clear()
            self._kept_usage[beside] = self._usage_of(beside)
        used = self._kept_usage[beside]
        begin, end = np.searchsorted(used["rank"].to_numpy(), (rank, rank + 1)).tolist()
        return used.slice(begin, end - begin)

    def usages(self) -> Iterator[pa.Table]:
        """`usage` of all ranks with operations, of many small ones in one table."""
        return map(self._usage_of, self.index.ranks_together(COUNTED_TOGETHER))

    def _usage_of(self, ranks: Sequence[int]) -> pa.Table:
        """`usage` of several ranks, which ascend, by rank: the stored counts if each rank has as many operations there
        as the index says, else counts of the rows."""
        used = self._stored_usage.of(ranks)
        if used is None:
            return self._counted(ranks)
        counted, of_row = np.zeros(len(ranks), dtype=np.int64), used["rank"].to_numpy()
        np.add.at(counted, np.searchsorted(ranks, of_row), used["operations"].to_numpy())
        if not np.array_equal(counted, self.index.row_counts(ranks)):
            return self._counted(ranks)
        # Several processes may have written ranks in turn.
        return used if np.all(np.diff(of_row) >= 0) else used.take(np.argsort(of_row, kind="stable"))

    def _counted(self, ranks: Sequence[int]) -> pa.Table:
        counter = UsageCounter()
        some: list[pa.RecordBatch] = []
        rows = 0
        for batch in self.operations(ranks, columns=USAGE_COLUMNS):
            some.append(batch)
            rows += len(batch)
            if rows >= _COUNTED_ROWS:
                counter.add(pa.Table.from_batches(some).combine_chunks())
                some, rows = [], 0
        if some:
            counter.add(pa.Table.from_batches(some).combine_chunks())
        return counter.table()

    @cached_property
    def _stored_usage(self) -> StoredUsage:
        return StoredUsage(self.path / INDEX_NAME, self.files.num_rows)

    @cached_property
    def spans(self) -> pa.Table:
        """All spans (`SPANS_SCHEMA`), sorted by (rank, start_ns)."""
        path = self.path / "spans.parquet"
        if not path.exists():
            return SPANS_SCHEMA.empty_table()
        return spans_table(read_table(path), path, self.info.ranks)

    @cached_property
    def hdf5(self) -> pa.Table:
        """The HDF5 datasets that the source knows (`HDF5_SCHEMA`); no rows in most captures, and in replays."""
        path = self.path / "hdf5.parquet"
        if not path.exists():
            return HDF5_SCHEMA.empty_table()
        return hdf5_table(read_table(path), path, self.files.num_rows)

    @cached_property
    def lanes(self) -> pa.Table:
        """What the source knows of the lanes (`LANES_SCHEMA`), by rank and lane; no rows where that is nothing."""
        path = self.path / "lanes.parquet"
        if not path.exists():
            return LANES_SCHEMA.empty_table()
        return lanes_table(read_table(path), path, self.info.ranks)

    @cached_property
    def time_span_ns(self) -> tuple[int, int]:
        """First start and last end over operations and spans; (0, 0) for an empty capture."""
        spans = [] if self.index.time_span_ns is None else [self.index.time_span_ns]
        if self.spans.num_rows:
            spans.append((int(self.spans["start_ns"].to_numpy().min()), int(self.spans["end_ns"].to_numpy().max())))
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else (0, 0)

    def paths(self) -> list[str]:
        """Path of each file as recorded, by file_id (escaped where it is not UTF-8)."""
        return self.files["path"].to_pylist()


def open_capture(path: Path | str, *, named: Path | None = None, is_checked: bool = False) -> Capture:
    """Open a capture; reads `capture.json`, the files table and the index.

    `named`: the path that messages about the capture's contents show, its own when None. `is_checked`: another process
    has opened it, and checked that its parts are there.
    Raises: CaptureError when `path` is not a capture, lacks a part, is truncated, cannot be read, or was written by a
    newer release.
    """
    path = Path(path)
    try:
        info = read_info(path)
        files = files_table(read_table(path / "files.parquet"), path / "files.parquet")
        if is_ours(path, info) and not (path / "spans.parquet").is_file():
            raise CaptureError(f"{path} lacks spans.parquet: the capture is incomplete, merge or run again")
        index = ops_index(path, info, is_checked=is_checked)
    except OSError as error:
        remedy = exhausted(error) or "check who may read it and the directories above it"
        raise UnreadableError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
    return Capture(path, info, files, index, named)


def _written_ns(path: Path) -> int:
    """When a capture was written; 0 if the file cannot be seen any more: opening it explains why."""
    try:
        return (path / "capture.json").stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=2)
def _opened_once(path: Path, named: Path, written_ns: int) -> Capture:
    """Open a capture once per process, and anew when another one is at the path. `written_ns`: when it was written."""
    return open_capture(path, named=named, is_checked=True)
