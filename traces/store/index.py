"""`index.parquet`: which rows of which row group belong to a rank, their times, and how the rank uses each file.

Statistics of Parquet would tell neither where a rank of many in a row group is nor what it uses, and pyarrow aborts the
program at damaged ones. Each writer of parts notes its own stretches, and the process that completes the capture joins
them. For a capture without the file, from an earlier release or another writer, the index is made from the rows. The
counts are optional: where they are absent or do not add up, the op stream is counted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError, unreadable
from dxt_replay.traces.row_order import distinct_rows, few_together
from dxt_replay.traces.schema import (
    FILE_METADATA,
    INDEX_SCHEMA,
    OPS,
    OPS_SCHEMA,
    USAGE_SCHEMA,
    CaptureInfo,
    codes,
    table_from_columns,
)
from dxt_replay.traces.store.checks import MOST_NS, MOST_ROWS, check_columns, conforming, open_parquet, read_table
from dxt_replay.traces.store.digests import DOCUMENT, file_digest

OPS_FOLDER = "ops"
"""Folder of a capture: the parts of the op stream."""

INDEX_NAME = "index.parquet"

NOTES = "index-of-*.parquet"
"""Names of the files in `ops/` in which writers of parts note their stretches, until the capture is complete."""

USAGE_COLUMNS = ("rank", "lane", "op", "api", "origin", "file_id", "offset", "length", "other_file_id")
"""Columns of the op stream by which it is counted."""

_PLACES = ("part", "part_bytes", "row_group", "rank", "rows", "first_ns", "last_start_ns", "last_ns")
"""Columns of `INDEX_SCHEMA` that locate operations."""

_COLUMNS = ("part", "row_group", "begin", "rank", "rows", "first_ns", "last_start_ns", "last_ns")
_TOGETHER_ROWS = 1 << 16
"""Rows that are scanned or counted at once; stretches and counts that are kept until they are written."""

_NOTED = pa.schema([field for field in INDEX_SCHEMA if field.name not in ("part_bytes", "digest")])
"""Fields of a stretch that are known before its part is closed."""

_USAGE = _NOTED.field("usage").type
_ENUMERATED = ("op", "api", "origin")
_KEYS = ("rank", "lane", *_ENUMERATED, "file_id", "other_file_id")
_ADDED_UP = {"operations": np.add, "least_length": np.minimum, "reach": np.maximum}


@dataclass(frozen=True, kw_only=True, eq=False)
class OpsIndex:
    """Stretches of the op stream: the operations of one rank in one row group, ordered by rank and time.

    parts: the files that hold them.
    part: number in `parts`. row_group: number in the part. begin: number in the row group of the stretch's first row.
    rank; rows: number of operations. first_ns, last_start_ns: when the first and the last of them start.
    last_ns: when the last one ends.
    The columns are int64 (stretches,).
    """

    parts: tuple[Path, ...]
    part: np.ndarray
    row_group: np.ndarray
    begin: np.ndarray
    rank: np.ndarray
    rows: np.ndarray
    first_ns: np.ndarray
    last_start_ns: np.ndarray
    last_ns: np.ndarray

    def of(self, rank: int, starts_ns: tuple[int, int] | None = None) -> np.ndarray:
        """Numbers of the stretches of a rank, in order. `starts_ns`: only those with an operation that may start in
        [begin, end)."""
        found = np.arange(*np.searchsorted(self.rank, (rank, rank + 1)))
        if starts_ns is None:
            return found
        return found[(self.first_ns[found] < starts_ns[1]) & (self.last_start_ns[found] >= starts_ns[0])]

    def row_counts(self, ranks: Sequence[int]) -> np.ndarray:
        """int64 (ranks,): number of operations of each rank."""
        before, ends = self._rows_before, np.searchsorted(self.rank, ranks, "right")
        counts: np.ndarray = before[ends] - before[np.searchsorted(self.rank, ranks)]
        return counts

    def ranks_together(self, rows: int) -> Iterator[tuple[int, ...]]:
        """The ranks with operations, in groups of at most so many operations, or of a single larger rank."""
        counts = dict(zip(self.ranks, self.row_counts(self.ranks).tolist(), strict=True))
        return map(tuple, few_together(self.ranks, counts.__getitem__, rows))

    def is_single(self, rank: int) -> bool:
        """Whether one stretch holds all operations of a rank."""
        return len(self.of(rank)) == 1

    def first_starts(self) -> list[tuple[int, int]]:
        """(start in ns of its first operation, rank) of every rank with operations, ascending."""
        _, first = np.unique(self.rank, return_index=True)
        return sorted(zip(self.first_ns[first].tolist(), self.rank[first].tolist(), strict=True))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with operations, ascending."""
        return tuple(np.unique(self.rank).tolist())

    @cached_property
    def time_span_ns(self) -> tuple[int, int] | None:
        """First start and last end of all operations; None without any."""
        return (int(self.first_ns.min()), int(self.last_ns.max())) if len(self.rank) else None

    def together(self, stretch: int) -> np.ndarray:
        """Numbers of the stretches of its row group, in the order of their rows."""
        order, begins, group = self._groups
        return order[slice(*begins[group[stretch] : group[stretch] + 2])]

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The stretches by row group and place in it; where each row group begins there; the number of each one's."""
        key = self.part << 32 | self.row_group
        order = np.lexsort((self.begin, key))
        first = np.diff(key[order], prepend=-1) != 0
        group = np.empty_like(order)
        group[order] = np.cumsum(first) - 1
        return order, np.append(np.flatnonzero(first), len(order)), group

    @cached_property
    def _rows_before(self) -> np.ndarray:
        """int64 (stretches + 1,): operations before each stretch, and all."""
        return np.append(0, np.cumsum(self.rows))

    def place(self, stretch: int) -> str:
        """The row group of a stretch, for messages."""
        return f"{self.parts[self.part[stretch]]} (row group {self.row_group[stretch]})"

    def only(self, ranks: Collection[int]) -> OpsIndex:
        """The stretches of some ranks."""
        return self if set(self.ranks) <= set(ranks) else self._taken(np.isin(self.rank, list(ranks)))

    def _taken(self, chosen: np.ndarray) -> OpsIndex:
        return OpsIndex(parts=self.parts, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def checked(self, info: CaptureInfo, folder: Path) -> OpsIndex:
        """The index, sorted by rank and time.

        Raises: CaptureError where it contradicts `capture.json`, or where stretches of a rank overlap.
        """
        unknown = self.rank[~np.isin(self.rank, info.ranks)]
        if len(unknown):
            raise DamagedCaptureError(
                f"{folder} holds operations of rank {unknown.min()}, which capture.json does not list"
            )
        stored, expected = int(self.rows.sum()), info.made_by.get("operations_stored")
        if expected is not None and expected != stored:
            raise CaptureError(
                f"{folder} holds {stored} of {expected} operations: a file is missing or truncated; copy the "
                "capture again"
            )
        found = self._taken(np.lexsort((self.row_group, self.part, self.last_start_ns, self.first_ns, self.rank)))
        later = (found.rank[1:] == found.rank[:-1]) & (found.first_ns[1:] < found.last_start_ns[:-1])
        if later.any():
            place = int(later.argmax()) + 1
            raise DamagedCaptureError(
                f"{found.parts[found.part[place]]} is damaged: its operations of rank {found.rank[place]} are not in "
                "the order of their times"
            )
        return found


def ops_index(directory: Path, info: CaptureInfo, *, is_checked: bool = False) -> OpsIndex:
    """The index of a capture: the stored one, or one made from the rows.

    is_checked: another process has held the parts against the stored index. They are then neither listed nor looked at:
    on a shared file system these are requests, for each part by each of many workers.
    Raises: CaptureError where a part is missing, damaged or not of this job; OSError where it cannot be read.
    """
    folder = directory / OPS_FOLDER
    if not folder.is_dir():
        raise DamagedCaptureError(f"{directory} lacks its folder ops")
    stored = os.path.lexists(directory / INDEX_NAME)
    if stored and is_checked:
        return _stored_index(directory / INDEX_NAME, None).checked(info, folder)
    # glob would take a folder without read permission for an empty one
    parts = tuple(sorted(file for file in folder.iterdir() if file.match("part-*.parquet")))
    found = _stored_index(directory / INDEX_NAME, parts) if stored else _scanned_index(parts)
    return found.checked(info, folder)


def part_digests(directory: Path) -> dict[str, str]:
    """Path below the capture -> SHA-256 of each part, from the index; none if the index cannot be read."""
    try:
        table = read_table(directory / INDEX_NAME, ("part", "digest"))
        pairs = table.group_by(["part", "digest"]).aggregate([]).to_pylist()
        return {f"{OPS_FOLDER}/{pair['part']}": str(pair["digest"]) for pair in pairs}
    except (CaptureError, KeyError):
        return {}


def _stored_index(path: Path, found: tuple[Path, ...] | None) -> OpsIndex:
    """The stored index. `found`: the parts that are there; None if they have been checked.

    Raises: CaptureError where it contradicts the parts, or itself.
    """
    table = conforming(read_table(path, _PLACES), pa.schema([INDEX_SCHEMA.field(name) for name in _PLACES]), path)
    code = table["part"].combine_chunks().dictionary_encode()
    named = code.dictionary.to_pylist()
    parts = tuple(path.parent / OPS_FOLDER / name for name in sorted(named)) if found is None else found
    for part in parts:
        if part.name not in named:
            raise CaptureError(f"{path.name} does not list {part}: remove that file, or copy the capture again")
    there = {part.name: number for number, part in enumerate(parts)}
    for name in named:
        if name not in there:
            raise CaptureError(f"{path.parent / OPS_FOLDER} lacks {name}: copy the capture again")
    part = np.array([there[name] for name in named], dtype=np.int64)[code.indices.to_numpy()]
    columns = {name: table[name].to_numpy().astype(np.int64) for name in _PLACES if name != "part"} | {"part": part}
    listed = columns.pop("part_bytes")
    if found is not None and len(part):
        short = listed != np.array([each.stat().st_size for each in parts], dtype=np.int64)[part]
        if short.any():
            raise CaptureError(
                f"{parts[part[short.argmax()]]} does not have the size in {path.name}: copy the capture again"
            )
    order = np.lexsort([columns[name] for name in ("rank", "row_group", "part")])
    columns = {name: values[order] for name, values in columns.items()}
    part, group, rank, rows = (columns[name] for name in ("part", "row_group", "rank", "rows"))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (part[1:] == part[:-1]) & (group[1:] == group[:-1])
    before = np.cumsum(rows) - rows
    begin = before - np.maximum.accumulate(np.where(same, 0, before)) if len(order) else before
    first, last_start, last = (columns[name] for name in ("first_ns", "last_start_ns", "last_ns"))
    sound = (rows > 0) & (rows <= MOST_ROWS) & (begin + rows <= MOST_ROWS) & (rank >= 0) & (group >= 0)
    sound &= (first >= -MOST_NS) & (first <= last_start) & (last_start <= last) & (last <= MOST_NS)
    sound[1:] &= ~(same[1:] & (rank[1:] == rank[:-1]))
    if not sound.all():
        raise DamagedCaptureError(
            f"{path} is damaged: its entry for {parts[part[(~sound).argmax()]].name} is impossible"
        )
    return OpsIndex(parts=parts, begin=begin, **columns)


def _scanned_index(parts: tuple[Path, ...]) -> OpsIndex:
    """The index of these parts, made from the ranks and times of their rows.

    Raises: CaptureError where one is damaged, or its rows are not sorted by rank.
    """
    found: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype=np.int64)] for name in _COLUMNS}
    names = ["rank", "start_ns", "end_ns"]
    for number, path in enumerate(parts):
        file = open_parquet(path)
        check_columns(file.schema_arrow.names, OPS_SCHEMA, path)
        counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        for group, count in enumerate(counts):
            if not 0 <= count <= MOST_ROWS:
                raise CaptureError(
                    f"{path}: row group {group} has {count} rows; write row groups of at most {MOST_ROWS}"
                )
        run = np.array(list(accumulate(counts)), dtype=np.int64) // _TOGETHER_ROWS
        for groups in np.split(np.arange(len(counts)), np.flatnonzero(np.diff(run)) + 1) if counts else ():
            place = f"{path} (row groups {groups[0]} to {groups[-1]})"
            try:
                table = file.read_row_groups(groups.tolist(), columns=names, use_threads=False)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise unreadable(error, place) from error
            rank, start, end = (column.to_numpy() for column in conforming(table, OPS_SCHEMA, place, names))
            ends = np.cumsum([counts[group] for group in groups])
            if len(rank) != ends[-1]:
                raise DamagedCaptureError(f"{place} is damaged: it has {len(rank)} rows instead of {ends[-1]}")
            columns = _stretches(rank, start, end, ends, groups, place)
            for name, values in columns.items():
                found[name].append(values)
            found["part"].append(np.full(len(columns["rank"]), number))
    return OpsIndex(parts=parts, **{name: np.concatenate(values) for name, values in found.items()})


def _stretches(
    rank: np.ndarray, start: np.ndarray, end: np.ndarray, ends: np.ndarray, groups: np.ndarray, place: object
) -> dict[str, np.ndarray]:
    """The columns of `OpsIndex` except `part`, from the rows of whole row groups, which end at `ends`.

    Raises: CaptureError where ranks descend within a row group.
    """
    if not len(rank):
        return {name: np.empty(0, dtype=np.int64) for name in _COLUMNS if name != "part"}
    first = np.unique(np.concatenate(([0], np.flatnonzero(np.diff(rank)) + 1, ends[:-1][ends[:-1] < len(rank)])))
    rows = np.diff(np.append(first, len(rank)))
    group = np.searchsorted(ends, first, side="right")
    if ((np.diff(group) == 0) & (rank[first[1:]] <= rank[first[:-1]])).any():
        raise CaptureError(f"{place} is not sorted by rank: sort the operations by rank and start_ns")
    return {
        "row_group": groups[group].astype(np.int64),
        "begin": first - np.concatenate(([0], ends))[group],
        "rank": rank[first].astype(np.int64),
        "rows": rows,
        "first_ns": start[first],
        "last_start_ns": start[first + rows - 1],
        "last_ns": np.maximum.reduceat(end, first),
    }


class UsageCounter:
    """Counts an op stream, a batch at a time. Memory: a row per rank, lane, op, api, origin and file, and 64 Ki."""

    def __init__(self) -> None:
        self._parts: list[dict[str, np.ndarray]] = []
        self._rows = self._folded_rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count a batch with USAGE_COLUMNS."""
        length = batch.column("length").to_numpy()
        columns = {
            name: codes(batch, name) if name in _ENUMERATED else batch.column(name).fill_null(-1).to_numpy()
            for name in _KEYS
        }
        columns["operations"] = np.ones(len(length), dtype=np.int64)
        columns |= {"least_length": length, "reach": np.maximum(batch.column("offset").to_numpy(), 0) + length}
        self._parts.append(_added_up(columns))
        self._rows += len(self._parts[-1]["rank"])
        if self._rows - self._folded_rows > _TOGETHER_ROWS:
            self._fold()

    def _fold(self) -> None:
        self._parts = [
            _added_up({name: np.concatenate([each[name] for each in self._parts]) for name in self._parts[0]})
        ]
        self._rows = self._folded_rows = len(self._parts[0]["rank"])

    def table(self) -> pa.Table:
        """All that was counted (`USAGE_SCHEMA`), by rank."""
        if not self._parts:
            return USAGE_SCHEMA.empty_table()
        self._fold()
        columns = self._parts[0]
        order = np.argsort(columns["rank"], kind="stable")
        return table_from_columns({name: values[order] for name, values in columns.items()}, USAGE_SCHEMA)


def _added_up(counts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row for each key, in the order in which they appear."""
    _, first, inverse = distinct_rows(*(counts[name] for name in _KEYS))
    if not len(first):
        return dict(counts)
    order, by_key = np.argsort(first), np.argsort(inverse, kind="stable")
    begins = np.cumsum(np.bincount(inverse)) - np.bincount(inverse)
    found = {name: counts[name][first[order]] for name in _KEYS}
    return found | {name: how.reduceat(counts[name][by_key], begins)[order] for name, how in _ADDED_UP.items()}


class StoredUsage:
    """The counts in `index.parquet`, read a row group at a time. Damaged ones count as absent.

    Only one thread may read them: it owns the open Parquet file and the row group that was read last.
    """

    def __init__(self, index: Path, files: int) -> None:
        self._index, self._files = index, files
        self._read: tuple[int, pa.Table] | None = None
        try:
            self._file = open_parquet(index)
            # In little memory, and it refuses a column whose numbers would abort the program (`open_parquet`).
            self._file.scan_contents()
            groups = range(self._file.metadata.num_row_groups)
            ranks = [self._file.read_row_group(group, ["rank"], use_threads=False)["rank"] for group in groups]
            self._ranks = [pc.min_max(each).as_py() for each in ranks]
        except (pa.ArrowException, OSError, ValueError, CaptureError):
            self._ranks = []

    def of(self, ranks: Sequence[int]) -> pa.Table | None:
        """The stored counts of `ranks` (`USAGE_SCHEMA`), which ascend; None where there are none, or a damaged one."""
        tables = []
        for group, there in enumerate(self._ranks):
            if there["min"] is not None and there["min"] <= ranks[-1] and there["max"] >= ranks[0]:
                try:
                    table = self._row_group(group)
                except (pa.ArrowException, OSError, ValueError, CaptureError):
                    return None
                mine = np.isin(table["rank"].to_numpy(), ranks)
                tables.append(table if mine.all() else table.filter(pa.array(mine)))
        found = pa.concat_tables(tables) if tables else None
        return found if found is not None and found.num_rows and self._plausible(found) else None

    def _row_group(self, group: int) -> pa.Table:
        """The counts of a row group; the last one is kept, since the next rank's counts are likely to be in it."""
        if self._read is None or self._read[0] != group:
            footer = self._file.metadata.row_group(group)
            most = max(footer.column(at).num_values for at in range(footer.num_columns))
            # a few bytes may claim counts that would fill the memory
            if most > max(self._index.stat().st_size, MOST_ROWS):
                raise DamagedCaptureError(f"{self._index} is damaged: it claims {most} counts")
            rows = self._file.read_row_group(group, columns=["rank", "usage"], use_threads=False)
            usage = rows["usage"].combine_chunks()
            ranks = rows["rank"].combine_chunks().take(pc.list_parent_indices(usage))
            found = pa.Table.from_struct_array(usage.flatten()).append_column("rank", ranks)
            self._read = group, conforming(found, USAGE_SCHEMA, self._index)
        return self._read[1]

    def _plausible(self, counts: pa.Table) -> bool:
        """Whether every number is one that the counts of an op stream can have."""
        file_id, other = counts["file_id"].to_numpy(), counts["other_file_id"].to_numpy()
        renames = codes(counts, "op") == OPS.index("rename")
        numbers = np.concatenate([counts[name].to_numpy() for name in ("lane", *_ADDED_UP)])
        known = (file_id >= 0) & (file_id < self._files) & (other >= -1) & (other < self._files)
        return bool(known.all() and np.all(renames == (other >= 0)) and np.all(numbers >= 0))


class NewParquet:
    """A Parquet file with what every file of a capture says of itself. Raises: OSError, ArrowException."""

    def __init__(self, path: Path, schema: pa.Schema, order: Sequence[tuple[str, str]] = (), **options: Any) -> None:
        sorting = pq.SortingColumn.from_ordering(schema, order) if order else None
        self._sink = pa.OSFile(os.fspath(path), "wb")  # pyarrow would leave a file open that it cannot write
        self._writer = pq.ParquetWriter(
            self._sink, schema, sorting_columns=sorting, store_schema=True, write_page_checksum=True, **options
        )

    def write(self, table: pa.Table, row_group_rows: int | None = None) -> None:
        self._writer.write_table(table, row_group_size=row_group_rows)

    def close(self, told: Mapping[str, str] = FILE_METADATA) -> None:
        """Write the footer, with these key-values."""
        try:
            self._writer.add_key_value_metadata(told)
            self._writer.close()
        finally:
            self._sink.close()


class IndexWriter:
    """Notes the stretches of the parts that one writer makes, in a file beside them.

    Memory: the counts of the current rank, and 64 Ki stretches and counts. Raises: OSError, ArrowException when the
    disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes: NewParquet | None = None
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._counter = UsageCounter()
        self.digests: dict[str, str] = {}
        self.file: Path | None = None

    def add(self, part: str, row_group: int, rows: pa.Table, *, whole: bool) -> None:
        """Note a row group of a part. `whole`: no more rows of its last rank follow.

        A row group with several ranks is whole: none of them continues from an earlier row group.
        """
        rank, start, end = (rows[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
        columns = _stretches(rank, start, end, np.array([len(rank)]), np.array([row_group]), part)
        ranks = columns["rank"].astype(np.int32)
        self._counter.add(rows)
        usage = pa.nulls(len(ranks), _USAGE)
        if whole:
            counted, self._counter = self._counter.table(), UsageCounter()
            ends = np.searchsorted(counted["rank"].to_numpy(), ranks, side="right")
            values = counted.drop_columns("rank").combine_chunks().to_struct_array()
            values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
            usage = pa.ListArray.from_arrays(offsets, values.cast(_USAGE.value_type), type=_USAGE)
        noted = {name: pa.array(columns[name]) for name in columns if name != "begin"}
        noted |= {"part": pa.repeat(part, len(ranks)), "usage": usage}
        self._waiting.append(pa.table([noted[name].cast(_NOTED.field(name).type) for name in _NOTED.names], _NOTED))
        self._size += len(ranks) + len(usage.flatten())
        if self._size >= _TOGETHER_ROWS:
            self._flush()

    def close(self) -> None:
        """Write the pending notes, and the footer with `digests`: the SHA-256 of each part."""
        try:
            self._flush()
        finally:
            if self._notes is not None:
                self._notes.close(self.digests)

    def _flush(self) -> None:
        if not self._waiting:
            return
        noted = pa.concat_tables(self._waiting)
        if self._notes is None:
            self.file = self._folder / NOTES.replace("*.parquet", noted["part"][0].as_py())
            self._notes = NewParquet(self.file, _NOTED, compression="zstd")
        self._notes.write(noted)
        self._waiting, self._size = [], 0


def write_index(directory: Path, tables: Mapping[str, str]) -> str:
    """Join the notes of a capture's writers into `index.parquet`; without any notes an existing index stays.

    tables: digests of the other tables; the capture's id is computed from these and from those of the parts. Returns:
    the SHA-256 of the index. Raises: OSError, ArrowException when the disk refuses.
    """
    folder, index = directory / OPS_FOLDER, directory / INDEX_NAME
    notes = sorted(folder.glob(NOTES))
    if not notes and index.exists():
        return file_digest(index)
    every = {name: digest for name, digest in tables.items() if name not in (INDEX_NAME, DOCUMENT)}
    with pq.ParquetWriter(index, INDEX_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for path in notes:
            with pq.ParquetFile(path) as file:
                told = {name.decode(): value.decode() for name, value in file.metadata.metadata.items()}
                digests = {name: value for name, value in told.items() if name.endswith(".parquet")}
                every |= digests
                size = {part: (folder / part).stat().st_size for part in digests}
                for group in range(file.num_row_groups):
                    noted = file.read_row_group(group)
                    columns = {name: noted[name] for name in _NOTED.names}
                    parts = noted["part"].to_pylist()
                    columns["part_bytes"] = pa.array([size[part] for part in parts], pa.int64())
                    columns["digest"] = pa.array([digests[part] for part in parts])
                    writer.write_table(pa.table([columns[name] for name in INDEX_SCHEMA.names], INDEX_SCHEMA))
        identity = hashlib.sha256(repr(sorted(every.items())).encode()).hexdigest()
        writer.add_key_value_metadata({**FILE_METADATA, "dxt_replay.capture_id": identity})
    for path in notes:
        path.unlink()
    return file_digest(index)
