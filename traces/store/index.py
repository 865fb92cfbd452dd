"""The index of the op stream: which rows of which row group belong to a rank, and their times.

It is stored as `index.parquet`, together with each rank's use of each file (`traces.store.usage`). For a capture
without that file, from an earlier release or another writer, `scanned_index` makes the index from the rows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError, unreadable
from dxt_replay.traces.few_together import few_together
from dxt_replay.traces.schema import INDEX_SCHEMA, OPS_SCHEMA, CaptureInfo
from dxt_replay.traces.store.checks import MOST_ROWS, check_columns, conforming
from dxt_replay.traces.store.info import MOST_NS
from dxt_replay.traces.store.tables import open_parquet, read_table

OPS_FOLDER = "ops"
"""Folder of a capture: the parts of the op stream."""

INDEX_NAME = "index.parquet"

_PLACES = ("part", "part_bytes", "row_group", "rank", "rows", "first_ns", "last_start_ns", "last_ns")
"""Columns of `INDEX_SCHEMA` that locate operations."""

_COLUMNS = ("part", "row_group", "begin", "rank", "rows", "first_ns", "last_start_ns", "last_ns")
_SCANNED = ["rank", "start_ns", "end_ns"]
_SCANNED_ROWS = 1 << 16
"""Rows of small row groups that are scanned at once."""

_READ_ROWS = 1 << 13
"""Rows of small row groups that are read at once, as if the ranks in them shared one, as in a new capture."""

_ROW_GROUP_COST = 128
"""A row group costs as much as so many of these rows: reading a single rank of a read is not much dearer than alone."""


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
        before = self._rows_before
        counts: np.ndarray = (
            before[np.searchsorted(self.rank, ranks, "right")] - before[np.searchsorted(self.rank, ranks)]
        )
        return counts

    def ranks_together(self, rows: int) -> Iterator[tuple[int, ...]]:
        """The ranks with operations, in groups of at most so many operations, or of a single larger rank."""
        counted = zip(self.ranks, self.row_counts(self.ranks).tolist(), strict=True)
        for some in few_together(counted, itemgetter(1), rows):
            yield tuple(rank for rank, _ in some)

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

    def ranks_beside(self, rank: int) -> tuple[int, ...]:
        """The rank and those whose operations are all read at once with all of its own, ascending; none without any."""
        found = self.of(rank)
        if len(found) != 1:
            return (rank,) if len(found) else ()
        beside = self.together(found[0])
        return tuple(np.sort(self.rank[beside[self._is_whole[beside]]]).tolist())

    def together(self, stretch: int) -> np.ndarray:
        """Numbers of all stretches that are read at once with this one, in the order of their rows.

        They are those of its row group, or of neighbouring small ones of whole ranks: captures of schema version 4 and
        older have one for each rank, and reading it takes far longer than its few rows do.
        """
        order, begins, read, _ = self._reads
        return order[slice(*begins[read[stretch] : read[stretch] + 2])]

    def row_in_read(self, stretch: int) -> int:
        """The number of its first row among those of `together`."""
        return int(self._reads[3][stretch])

    @cached_property
    def _rows_before(self) -> np.ndarray:
        """int64 (stretches + 1,): operations before each stretch, and all."""
        return np.append(0, np.cumsum(self.rows))

    @cached_property
    def _is_whole(self) -> np.ndarray:
        """bool (stretches,): which have all operations of their rank."""
        _, rank, counts = np.unique(self.rank, return_inverse=True, return_counts=True)
        mask: np.ndarray = counts[rank] == 1
        return mask

    @cached_property
    def _reads(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What is read at once: stretches by row group and place in it; where each read begins there; the read of each
        stretch, and its first row in it."""
        order = np.lexsort((self.begin, self.row_group, self.part))
        first = np.ones(len(order), dtype=bool)
        first[1:] = (np.diff(self.part[order]) != 0) | (np.diff(self.row_group[order]) != 0)
        begins = np.append(np.flatnonzero(first), len(order))
        reads = begins[[*self._first_groups(order, begins[:-1]), len(begins) - 1]]
        rows = np.append(0, np.cumsum(self.rows[order]))
        read, row = np.empty_like(order), np.empty_like(order)
        read[order] = np.repeat(np.arange(len(reads) - 1), np.diff(reads))
        row[order] = rows[:-1] - np.repeat(rows[reads[:-1]], np.diff(reads))
        return order, reads, read, row

    def _first_groups(self, order: np.ndarray, begins: np.ndarray) -> list[int]:
        """Of the row groups, which begin at `begins` of `order`, the first one of each read."""
        if not len(begins):
            return []
        part = self.part[order[begins]].tolist()
        costs = (np.add.reduceat(self.rows[order], begins) + _ROW_GROUP_COST).tolist()
        whole = np.logical_and.reduceat(self._is_whole[order], begins).tolist()
        runs = few_together(
            range(len(begins)),
            costs.__getitem__,
            _READ_ROWS,
            fit=lambda one, other: whole[one] and whole[other] and part[one] == part[other],
        )
        return [run[0] for run in runs]

    def place(self, stretch: int) -> str:
        """The row group of a stretch, for messages."""
        return f"{self.parts[self.part[stretch]]} (row group {self.row_group[stretch]})"

    def only(self, ranks: Collection[int]) -> OpsIndex:
        """The stretches of some ranks, and the layout of their row groups, which other ranks may share."""
        return self if set(self.ranks) <= set(ranks) else self._taken(np.isin(self.rank, list(ranks)))

    def _taken(self, chosen: np.ndarray) -> OpsIndex:
        """The stretches selected by a mask or an index array."""
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
        keys = (self.row_group, self.part, self.last_start_ns, self.first_ns, self.rank)
        found = self._taken(np.lexsort(keys))
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
    found = _stored_index(directory / INDEX_NAME, parts) if stored else scanned_index(parts)
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
    wanted = pa.schema([INDEX_SCHEMA.field(name) for name in _PLACES])
    table = conforming(read_table(path, _PLACES), wanted, path)
    code = table["part"].combine_chunks().dictionary_encode()
    named = {name: number for number, name in enumerate(code.dictionary.to_pylist())}
    parts = tuple(path.parent / OPS_FOLDER / name for name in sorted(named)) if found is None else found
    for part in parts:
        if part.name not in named:
            raise CaptureError(f"{path.name} does not list {part}: remove that file, or copy the capture again")
    there = {part.name: number for number, part in enumerate(parts)}
    for name in named:
        if name not in there:
            raise CaptureError(f"{path.parent / OPS_FOLDER} lacks {name}: copy the capture again")
    number = np.array([there[name] for name in named], dtype=np.int64)
    columns = {name: table[name].to_numpy().astype(np.int64) for name in _PLACES if name != "part"}
    columns["part"] = number[code.indices.to_numpy()] if len(code) else np.empty(0, dtype=np.int64)
    listed = columns.pop("part_bytes")
    if found is not None and len(code):
        sizes = np.array([part.stat().st_size for part in parts], dtype=np.int64)
        short = listed != sizes[columns["part"]]
        if short.any():
            raise CaptureError(
                f"{parts[columns['part'][short.argmax()]]} does not have the size in {path.name}: "
                "copy the capture again"
            )
    return _with_begins(columns, parts, path)


def _with_begins(columns: dict[str, np.ndarray], parts: tuple[Path, ...], path: Path) -> OpsIndex:
    """The stored stretches with the first row of each.

    Raises: CaptureError for values that no op stream has.
    """
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


def scanned_index(parts: tuple[Path, ...]) -> OpsIndex:
    """The index of these parts, made from the ranks and times of their rows.

    Raises: CaptureError where one is damaged, or its rows are not sorted by rank.
    """
    found: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype=np.int64)] for name in _COLUMNS}
    for number, path in enumerate(parts):
        file = open_parquet(path)
        check_columns(file.schema_arrow.names, OPS_SCHEMA, path)
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        for group, count in enumerate(rows):
            if not 0 <= count <= MOST_ROWS:
                raise CaptureError(
                    f"{path}: row group {group} has {count} rows; write row groups of at most {MOST_ROWS}"
                )
        for groups in few_together(range(len(rows)), rows.__getitem__, _SCANNED_ROWS):
            for name, values in _scanned(file, path, groups, rows).items():
                found[name].append(values)
            found["part"].append(np.full(len(found["rank"][-1]), number))
    return OpsIndex(parts=parts, **{name: np.concatenate(values) for name, values in found.items()})


def _scanned(file: pq.ParquetFile, path: Path, groups: Sequence[int], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """The stretches of some row groups, made from their rows."""
    place = f"{path} (row groups {groups[0]} to {groups[-1]})"
    try:
        table = file.read_row_groups(groups, columns=_SCANNED, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(error, place) from error
    rank, start, end = (column.to_numpy() for column in conforming(table, OPS_SCHEMA, place, _SCANNED))
    ends = np.cumsum([counts[group] for group in groups])
    if len(rank) != ends[-1]:
        raise DamagedCaptureError(f"{place} is damaged: it has {len(rank)} rows instead of {ends[-1]}")
    return stretches(rank, start, end, ends, np.array(groups), place)


def stretches(
    rank: np.ndarray, start: np.ndarray, end: np.ndarray, ends: np.ndarray, groups: np.ndarray, place: object
) -> dict[str, np.ndarray]:
    """The columns of `OpsIndex` except `part`, from the rows of whole row groups.

    `ends`: end of each row group in the rows; `groups`: numbers of the row groups.

    Raises: CaptureError where ranks descend within a row group.
    """
    cuts = np.flatnonzero(np.diff(rank)) + 1
    if not len(rank):
        return {name: np.empty(0, dtype=np.int64) for name in _COLUMNS if name != "part"}
    first = np.unique(np.concatenate(([0], cuts, ends[:-1][ends[:-1] < len(rank)])))
    rows = np.diff(np.append(first, len(rank)))
    group = np.searchsorted(ends, first, side="right")
    again = (np.diff(group) == 0) & (rank[first[1:]] <= rank[first[:-1]])
    if again.any():
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
