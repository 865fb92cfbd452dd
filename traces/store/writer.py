"""Writing a capture: its op stream part by part, its tables, and the place that it takes when it is whole."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import CaptureError, TargetError
from traces.schema import FILES_SCHEMA, HDF5_SCHEMA, OPS_SCHEMA, SPANS_SCHEMA, CaptureInfo
from traces.store.usage import UsageWriter

ROW_GROUP_ROWS = 1 << 16
"""Operations per row group: the unit of streaming. 64 Ki rows are about 5 MB in memory."""

PART_ROWS = 1 << 24
"""Operations after which the writer begins a new part."""

_DELTAS = ("offset", "start_ns", "end_ns", "due_ns")
"""Columns of ever new values that differ little from row to row: stored as differences, read at 3 times the speed."""


class OpsWriter:
    """Writes a sorted op stream into `directory`/ops. Rows of one rank must come together and in start order.

    A context manager: leaving it by an exception removes the parts that it wrote.
    Raises: CaptureError when rows are out of order or a rank comes back; TargetError when the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "ops"
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_part = 0
        self._pending: deque[pa.Table] = deque()
        self._pending_rows = 0
        self._rank: int | None = None
        self._last_start = 0
        self._seen: set[int] = set()
        self._parts: list[Path] = []
        self._usage = UsageWriter(self._folder)
        self.rows = 0
        _make_directory(self._folder)

    def write(self, table: pa.Table) -> None:
        """Append rows of `OPS_SCHEMA`; several ranks may follow each other in one table."""
        if not table.schema.equals(OPS_SCHEMA):
            table = table.cast(OPS_SCHEMA)
        ranks = table["rank"].to_numpy()
        if not len(ranks):
            return
        cuts = np.flatnonzero(np.diff(ranks)) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(ranks)], strict=True):
            self._append(int(ranks[begin]), table.slice(begin, end - begin))

    def _append(self, rank: int, rows: pa.Table) -> None:
        starts = rows["start_ns"].to_numpy()
        if rank != self._rank:
            if rank in self._seen:
                raise CaptureError(f"operations of rank {rank} come in two places: sort them by rank before writing")
            self._flush(whole=True)
            self._rank, self._last_start = rank, int(starts[0])
            self._seen.add(rank)
        if starts[0] < self._last_start or np.any(np.diff(starts) < 0):
            raise CaptureError(f"operations of rank {rank} are not in the order of their start")
        self._last_start = int(starts[-1])
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS:
            self._flush(whole=False)

    def _flush(self, *, whole: bool) -> None:
        """Write full row groups of the current rank, and the rest of them if `whole`."""
        if not self._pending_rows or self._rank is None:
            return
        table = pa.concat_tables(self._pending)
        full = table.num_rows if whole else table.num_rows - table.num_rows % ROW_GROUP_ROWS
        try:
            for begin in range(0, full, ROW_GROUP_ROWS):
                group = table.slice(begin, min(ROW_GROUP_ROWS, full - begin))
                self._part_writer().write_table(group, row_group_size=ROW_GROUP_ROWS)
                self._usage.add(self._rank, group)
                self._rows_in_part += group.num_rows
                self.rows += group.num_rows
        except OSError as error:
            raise TargetError(f"cannot write the operations under {self._folder}: {error}") from error
        rest = table.slice(full)
        self._pending = deque([rest] if rest.num_rows else [])
        self._pending_rows = rest.num_rows

    def _part_writer(self) -> pq.ParquetWriter:
        if self._writer is not None and self._rows_in_part >= PART_ROWS:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            part = self._folder / f"part-{self._rank:07d}-{len(self._parts):04d}.parquet"
            self._writer = pq.ParquetWriter(
                part,
                OPS_SCHEMA,
                compression={name: "none" if name in _DELTAS else "zstd" for name in OPS_SCHEMA.names},
                use_dictionary=[name for name in OPS_SCHEMA.names if name not in _DELTAS],
                column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
                store_schema=True,
            )
            self._parts.append(part)
            self._rows_in_part = 0
        return self._writer

    def close(self) -> None:
        """Write what is pending and the footers."""
        self._flush(whole=True)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        try:
            self._usage.close()
        except OSError as error:
            raise TargetError(f"cannot write the operations under {self._folder}: {error}") from error

    def __enter__(self) -> OpsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            with suppress(OSError, pa.ArrowException):
                self._usage.close()
        for part in (*self._parts, self._usage.file):
            if part is not None:
                part.unlink(missing_ok=True)


def create_capture(directory: Path) -> None:
    """Make an empty capture directory, or empty an old one: its parts go, anything else is left alone.

    Raises: TargetError when `directory` exists and is no capture, or cannot be made.
    """
    _refuse_foreign(directory)
    _make_directory(directory / "ops")
    for name in ("capture.json", "files.parquet", "spans.parquet", "hdf5.parquet"):
        (directory / name).unlink(missing_ok=True)
    for pattern in ("part-*.parquet", "usage-*.parquet"):
        for part in (directory / "ops").glob(pattern):
            part.unlink()


def begin_capture(path: Path) -> Path:
    """An empty working directory beside `path`, to be filled and then published; an existing `path` stays as it is.

    Raises: TargetError when `path` exists and is no capture, or the directory cannot be made.
    """
    _refuse_foreign(path)
    working = path.absolute().parent / f".{path.name}.new"
    create_capture(working)
    return working


def publish_capture(working: Path, path: Path) -> None:
    """Let a filled working directory take the place of `path`. Raises: TargetError when the file system refuses."""
    _refuse_foreign(path)
    replaced = path.absolute().parent / f".{path.name}.old"
    try:
        shutil.rmtree(replaced, ignore_errors=True)
        if path.exists():
            os.replace(path, replaced)
        os.replace(working, path)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise TargetError(f"cannot put the finished capture at {path} (it is in {working}): {error}") from error


def discard_capture(working: Path) -> None:
    """Remove a working directory that will not be published."""
    shutil.rmtree(working, ignore_errors=True)


def _refuse_foreign(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise TargetError(f"{directory} exists and is not a capture: choose another name")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / "ops").is_dir():
        raise TargetError(f"{directory} exists, is not empty and is not a capture: choose another name")


def write_files(directory: Path, files: pa.Table) -> None:
    """Write `files.parquet`. Raises: CaptureError when row i has not file_id i; TargetError when the disk refuses."""
    if not np.array_equal(files["file_id"].to_numpy(), np.arange(files.num_rows)):
        raise CaptureError("files are not numbered 0, 1, 2 ... in order")
    _write_table(directory / "files.parquet", files.cast(FILES_SCHEMA))


def write_spans(directory: Path, spans: pa.Table) -> None:
    """Write `spans.parquet`, sorted by (rank, start_ns). Raises: TargetError when the disk refuses."""
    if spans.num_rows:
        spans = spans.sort_by([("rank", "ascending"), ("start_ns", "ascending"), ("end_ns", "descending")])
    _write_table(directory / "spans.parquet", spans.cast(SPANS_SCHEMA))


def write_hdf5(directory: Path, datasets: pa.Table) -> None:
    """Write `hdf5.parquet`, if there are any rows. Raises: TargetError when the disk refuses."""
    if datasets.num_rows:
        _write_table(directory / "hdf5.parquet", datasets.cast(HDF5_SCHEMA))


def write_capture_info(directory: Path, info: CaptureInfo) -> None:
    """Write `capture.json`: the last step, which makes the directory a capture."""
    text = json.dumps(_as_json(dataclasses.asdict(info)), indent=1, sort_keys=True, allow_nan=False)
    temporary = directory / ".capture.json.new"
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, directory / "capture.json")
    except OSError as error:
        raise TargetError(f"cannot write {directory / 'capture.json'}: {error}") from error


def _write_table(path: Path, table: pa.Table) -> None:
    try:
        pq.write_table(table, path, compression="zstd")
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error}") from error


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"cannot make {path}: {error.strerror or error}") from error


def _as_json(value: Any) -> Any:
    """Plain JSON types: tuples become lists, NumPy scalars numbers, mapping keys text."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
