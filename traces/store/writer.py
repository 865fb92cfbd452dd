"""Writes a capture: its op stream part by part, its tables, and the final rename to its name."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, TargetError, exhausted
from dxt_replay.traces.output import DirectoryKind, begin_directory, check_output, discard_directory, place_directory
from dxt_replay.traces.plain import plain
from dxt_replay.traces.schema import (
    BY_RANK_AND_START,
    FILES_SCHEMA,
    HDF5_SCHEMA,
    LANES_SCHEMA,
    OPS_SCHEMA,
    SCHEMA_VERSION,
    SPANS_SCHEMA,
    CaptureInfo,
)
from dxt_replay.traces.store.digests import DOCUMENT, file_digest, gathered_digests, sealed
from dxt_replay.traces.store.index import INDEX_NAME, NOTES, OPS_FOLDER, IndexWriter, NewParquet, write_index

ROW_GROUP_ROWS = 1 << 16
"""Operations per row group: the unit of streaming. 64 Ki rows are about 5 MB in memory."""

SHARED_ROWS = 1 << 13
"""Rows of a rank from which it gets row groups of its own; smaller ranks share one, which costs a reader no more."""

PART_ROW_GROUPS = 1 << 8
"""Row groups of a part: a footer takes some 20 KB of memory for each. A part holds at most 16 Mi operations."""

_TABLES = (DOCUMENT, f".{DOCUMENT}.new", "files.parquet", "spans.parquet", "hdf5.parquet", "lanes.parquet", INDEX_NAME)
_PART_NAME = re.compile(r"((index-of-)?part|usage)-[0-9]{7,}(-[0-9]{4,})?\.parquet")
"""Names allowed in a capture's folders. Captures before schema version 5 keep counts in files of their own."""

_USAGE_FOLDER = "usage"
"""Folder of those counts."""

_DELTAS = ("offset", "start_ns", "end_ns", "due_ns", "feeds", "follows", "other_file_id", "open_flags", "first_byte_ns")
"""Columns whose values differ little from row to row: stored as differences, they are read 3 times as fast. So are
nulls, which need no compression."""

_LAYOUT: Mapping[str, Any] = {
    # LZ4 halves the time of reading. Only lengths are smaller with Zstandard: by up to 7 % of a capture.
    "compression": {**dict.fromkeys(OPS_SCHEMA.names, "lz4"), **dict.fromkeys(_DELTAS, "none"), "length": "zstd"},
    # Least and greatest of a few names tell nothing, and take a fifth of the time of writing.
    "write_statistics": [field.name for field in OPS_SCHEMA if not pa.types.is_dictionary(field.type)],
    "use_dictionary": [name for name in OPS_SCHEMA.names if name not in _DELTAS],
    "column_encoding": dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
}

_FACTS = [name for name in LANES_SCHEMA.names if name not in ("rank", "lane")]


@contextmanager
def _refusals(what: object) -> Iterator[None]:
    """Raises: TargetError where the disk refuses to write `what`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        remedy = exhausted(error) or "free space there, or choose another place for the output"
        raise TargetError(f"cannot write {what}: {error}; {remedy}") from error


class OpsWriter:
    """Writes a sorted op stream into `directory`/ops, and notes its index.

    Rows of one rank must come together and in start order. Leaving the context by an exception removes the parts.

    `row_group_rows`: rows of a row group, the unit that a reader can skip.
    Raises: CaptureError when rows are out of order or a rank comes back; TargetError when the disk refuses.
    """

    def __init__(self, directory: Path, *, row_group_rows: int = ROW_GROUP_ROWS) -> None:
        self._folder = directory / OPS_FOLDER
        self._row_group_rows = row_group_rows
        self._file: NewParquet | None = None
        self._groups_in_part = 0
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._whole_rows = 0
        """Pending rows of the ranks before the current one."""
        self._rank: int | None = None
        self._begun = False
        """Whether the current rank has row groups already."""
        self._last_start = 0
        self._seen: set[int] = set()
        self._parts: list[Path] = []
        self._index = IndexWriter(self._folder)
        self.rows = 0
        _make_directory(self._folder)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts so far."""
        return tuple(part.name for part in self._parts)

    def write(self, table: pa.Table) -> None:
        """Append rows of `OPS_SCHEMA`; several ranks may follow each other in one table."""
        if not table.schema.equals(OPS_SCHEMA):
            table = table.cast(OPS_SCHEMA)
        ranks, starts = table["rank"].to_numpy(), table["start_ns"].to_numpy()
        if not len(ranks):
            return
        back = np.flatnonzero((starts[1:] < starts[:-1]) & (ranks[1:] == ranks[:-1]))
        if ranks[0] == self._rank and starts[0] < self._last_start:
            back = np.array([0])
        if len(back):
            raise CaptureError(f"operations of rank {ranks[back[0]]} are not in the order of their start")
        cuts = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
        for begin, end in pairwise(cuts):
            rank = int(ranks[begin])
            if rank != self._rank:
                if rank in self._seen:
                    raise CaptureError(
                        f"operations of rank {rank} come in two places: sort them by rank before writing"
                    )
                self._end_rank(rank)
                self._seen.add(rank)
            self._pending.append(table.slice(begin, end - begin))
            self._pending_rows += end - begin
            if self._pending_rows > self._row_group_rows:
                # The ranks before this one, then full row groups of it; at least one row stays pending.
                self._write_pending(self._whole_rows, whole=True)
                while self._pending_rows > self._row_group_rows:
                    self._write_pending(self._row_group_rows, whole=False)
        self._last_start = int(starts[-1])

    def _end_rank(self, following: int | None) -> None:
        """End the current rank: write its rows, unless there are few and the next rank may share their row group."""
        self._whole_rows = self._pending_rows
        joins = following is not None and (self._rank is None or following > self._rank)
        if self._begun or not joins or self._pending_rows >= min(SHARED_ROWS, self._row_group_rows):
            self._write_pending(self._pending_rows, whole=True)
        self._rank = following

    def _write_pending(self, rows: int, *, whole: bool) -> None:
        """Write the first of the pending rows as a row group. `whole`: no more rows of its last rank follow."""
        if not rows:
            return
        table = pa.concat_tables(self._pending)
        group, rest = table.slice(0, rows).combine_chunks(), table.slice(rows)
        with _refusals(f"the operations under {self._folder}"):
            if self._groups_in_part >= PART_ROW_GROUPS:
                self._close_part()
            if self._file is None:
                part = self._folder / f"part-{group['rank'][0].as_py():07d}-{len(self._parts):04d}.parquet"
                self._file = NewParquet(part, OPS_SCHEMA, BY_RANK_AND_START, **_LAYOUT)
                self._parts.append(part)
                self._groups_in_part = 0
            self._file.write(group, rows)
            self._index.add(self._parts[-1].name, self._groups_in_part, group, whole=whole)
        self._groups_in_part += 1
        self.rows += rows
        self._pending = [rest] if rest.num_rows else []
        self._pending_rows -= rows
        self._whole_rows = 0
        self._begun = not whole

    def close(self) -> None:
        """Write the pending rows and the footers."""
        self._end_rank(None)
        with _refusals(f"the operations under {self._folder}"):
            self._close_part()
            self._index.close()

    def _close_part(self) -> None:
        """Write the footer of the part. If that fails, the writer must not be used again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._index.digests[self._parts[-1].name] = file_digest(self._parts[-1])

    def __enter__(self) -> OpsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        if kind is None:
            try:
                self.close()
                return
            except TargetError:
                self._take_back()
                raise
        self._take_back()

    def _take_back(self) -> None:
        for close in (self._close_part, self._index.close):
            with suppress(OSError, pa.ArrowException):
                close()
        for part in (*self._parts, self._index.file):
            if part is not None:
                with suppress(OSError):
                    part.unlink(missing_ok=True)


class TableWriter:
    """Writes a table of a capture in one call of `write` or several; a context manager.

    order: the columns that the rows are sorted by. rows: their number so far.
    Raises: TargetError when the disk refuses.
    """

    def __init__(self, path: Path, schema: pa.Schema, order: Sequence[tuple[str, str]] = ()) -> None:
        self._path, self._schema, self._order = path, schema, order
        self.rows = 0

    def __enter__(self) -> TableWriter:
        with _refusals(self._path):
            self._file = NewParquet(self._path, self._schema, self._order, compression="zstd")
        return self

    def write(self, rows: pa.Table) -> None:
        """Append rows, which are cast to the schema."""
        with _refusals(self._path):
            self._file.write(rows.cast(self._schema), ROW_GROUP_ROWS)
        self.rows += rows.num_rows

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        try:
            with _refusals(self._path):
                if not self.rows:
                    self._file.write(self._schema.empty_table())
                self._file.close()
        except TargetError:
            if kind is None:
                raise


def spans_writer(directory: Path) -> TableWriter:
    """A writer of `spans.parquet`; tables come sorted by (rank, start_ns), each after those before it."""
    return TableWriter(directory / "spans.parquet", SPANS_SCHEMA, BY_RANK_AND_START)


def write_spans(directory: Path, spans: pa.Table) -> None:
    """Write `spans.parquet`, sorted by (rank, start_ns). Raises: TargetError when the disk refuses."""
    with spans_writer(directory) as writer:
        writer.write(spans.sort_by([*BY_RANK_AND_START, ("end_ns", "descending")]) if spans.num_rows else spans)


def write_files(directory: Path, files: pa.Table) -> None:
    """Write `files.parquet`. Raises: CaptureError when row i has not file_id i; TargetError when the disk refuses."""
    if not np.array_equal(files["file_id"].to_numpy(), np.arange(files.num_rows)):
        raise CaptureError("files are not numbered 0, 1, 2 ... in order")
    with TableWriter(directory / "files.parquet", FILES_SCHEMA, (("file_id", "ascending"),)) as writer:
        writer.write(files)


def write_hdf5(directory: Path, datasets: pa.Table) -> None:
    """Write `hdf5.parquet`, if there are any rows. Raises: TargetError when the disk refuses."""
    if datasets.num_rows:
        with TableWriter(directory / "hdf5.parquet", HDF5_SCHEMA) as writer:
            writer.write(datasets)


def lanes_in(rank: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int32 (lanes,): rank and lane of each lane in some operations, by rank and lane."""
    keys = np.sort(pc.unique(pa.array(_keys(rank, lane))).to_numpy())
    return (keys >> 32).astype(np.int32), keys.astype(np.int32)


def _keys(rank: np.ndarray, lane: np.ndarray) -> np.ndarray:
    return (rank.astype(np.int64) << 32) | lane


def written_lanes(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """As `lanes_in`, of the operations that closed `OpsWriter`s wrote into a capture that is not complete yet.

    Raises: TargetError where their notes cannot be read.
    """
    ranks, lanes = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    try:
        for path in sorted((directory / OPS_FOLDER).glob(NOTES)):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    noted = file.read_row_group(group, columns=["rank", "usage.list.element.lane"])
                    usage = noted["usage"].combine_chunks()
                    of_usage = noted["rank"].to_numpy()[pc.list_parent_indices(usage).to_numpy()]
                    rank, lane = lanes_in(of_usage, usage.flatten().field("lane").to_numpy())
                    ranks.append(rank)
                    lanes.append(lane)
    except (OSError, pa.ArrowException) as error:
        raise TargetError(f"cannot read the index of {directory}: {error}") from error
    return lanes_in(np.concatenate(ranks), np.concatenate(lanes))


def write_lanes(directory: Path, facts: pa.Table) -> None:
    """Write `lanes.parquet` for the operations that are in the capture; nothing where no fact is known of any lane.

    facts: rows of `LANES_SCHEMA`; lanes without operations are left out, and of several rows of a lane the first
    counts. So the table has one row for each lane with operations, whatever the source said of others.
    Raises: TargetError when the disk refuses.
    """
    if all(facts[name].null_count == facts.num_rows for name in _FACTS):
        return
    rank, lane = written_lanes(directory)
    keys, first = np.unique(_keys(facts["rank"].to_numpy(), facts["lane"].to_numpy()), return_index=True)
    wanted = _keys(rank, lane)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = facts.take(pa.array(first[place], mask=keys[place] != wanted))
    columns = {"rank": pa.array(rank), "lane": pa.array(lane), **{name: known[name] for name in _FACTS}}
    order = (("rank", "ascending"), ("lane", "ascending"))
    with TableWriter(directory / "lanes.parquet", LANES_SCHEMA, order) as writer:
        writer.write(pa.table([columns[name] for name in LANES_SCHEMA.names], schema=LANES_SCHEMA))


def lanes_with_facts(lanes: pa.Table, names: Sequence[str]) -> pa.Table:
    """The lanes (`LANES_SCHEMA`) with the facts `names` alone; the others are null."""
    kept = {"rank", "lane", *names}
    columns = [lanes[each.name] if each.name in kept else pa.nulls(lanes.num_rows, each.type) for each in LANES_SCHEMA]
    return pa.table(columns, schema=LANES_SCHEMA)


def write_capture_info(directory: Path, info: CaptureInfo) -> None:
    """Write `index.parquet` and `capture.json` with the digests of all files. This last step makes the directory a
    capture.

    Raises: TargetError when the disk refuses.
    """
    temporary = directory / f".{DOCUMENT}.new"
    with _refusals(directory / DOCUMENT):
        tables = gathered_digests(directory)
        digests = {**tables, INDEX_NAME: write_index(directory, tables)}
        whole = dataclasses.replace(info, digests=digests, schema_version=SCHEMA_VERSION)
        text = json.dumps(plain(whole), indent=1, sort_keys=True, allow_nan=False)
        temporary.write_text(sealed(text + "\n"), encoding="utf-8")
        os.replace(temporary, directory / DOCUMENT)


def create_capture(directory: Path) -> None:
    """Make an empty capture directory, for a capture that no command shows; remove an old one's tables and rows.

    Raises: TargetError when `directory` holds anything else, or cannot be made.
    """
    foreign = foreign_name(directory) if os.path.lexists(directory) else None
    if foreign is not None:
        raise TargetError(f"{directory} exists and holds {foreign}: choose another name")
    _make_directory(directory / OPS_FOLDER)
    for folder in (OPS_FOLDER, _USAGE_FOLDER):
        for part in (directory / folder).glob("*"):
            part.unlink()
    for name in _TABLES:
        (directory / name).unlink(missing_ok=True)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"cannot make {path}: {error.strerror or error}") from error


def foreign_name(directory: Path) -> str | None:
    """A name in a directory that does not belong to a capture; the directory's own if it is a link or a file."""
    if directory.is_symlink() or not directory.is_dir():
        return directory.name
    for entry in directory.iterdir():
        if entry.name in (OPS_FOLDER, _USAGE_FOLDER) and entry.is_dir() and not entry.is_symlink():
            for part in entry.iterdir():
                if not _PART_NAME.fullmatch(part.name) or part.is_dir():
                    return f"{entry.name}/{part.name}"
        elif entry.name not in _TABLES or entry.is_dir():
            return entry.name
    return None


def _objection(directory: Path) -> str | None:
    """Why a directory is not a whole capture of this product and nothing else; None if it is one."""
    try:
        info = json.loads((directory / DOCUMENT).read_bytes())
        ours = isinstance(info, dict) and {"schema_version", "job", "ranks", "clock", "coverage"} <= info.keys()
    except FileNotFoundError:
        return "is not a capture (no capture.json)" if any(directory.iterdir()) else None
    except (ValueError, RecursionError):
        ours = False
    if not ours:
        return "is not a capture (capture.json is damaged or another program's)"
    foreign = foreign_name(directory)
    return None if foreign is None else f"holds {foreign}, which is not part of a capture"


CAPTURE = DirectoryKind(name="a capture", objection=_objection)
"""Captures as outputs: what --force may replace."""


def check_capture_output(path: Path, *, force: bool = False) -> None:
    """Refuse `path` for a new capture before any work is done. Raises: TargetError as `output.check_output`."""
    check_output(path, force=force, kind=CAPTURE)


def begin_capture(path: Path, *, force: bool = False) -> Path:
    """Make an empty working directory beside `path`, to fill and then publish; `path` itself is not touched.

    Raises: TargetError when `path` may not be replaced, or the directory cannot be made.
    """
    working = begin_directory(path, CAPTURE, force=force)
    try:
        create_capture(working)
    except BaseException:
        discard_directory(working)
        raise
    return working


def publish_capture(working: Path, path: Path, *, force: bool = False) -> None:
    """Rename a filled working directory to `path`. Raises: TargetError as `output.place_directory`."""
    place_directory(working, path, CAPTURE, force=force)


discard_capture = discard_directory
"""Removes a working directory that will not be published."""
