"""Usage of each file by each lane: counts that the index stores, so that a replay starts without a scan.

They are optional: where they are absent or do not add up, the op stream is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import OPS, USAGE_SCHEMA, VOCABULARY, codes, table_from_columns
from dxt_replay.traces.store.checks import MOST_ROWS, conforming
from dxt_replay.traces.store.tables import open_parquet

USAGE_COLUMNS = ("rank", "lane", "op", "api", "origin", "file_id", "offset", "length", "other_file_id")
"""Columns of the op stream by which it is counted."""

_ENUMERATED = ("op", "api", "origin")
_KEYS = ("rank", "lane", *_ENUMERATED, "file_id", "other_file_id")
_FOLD_ROWS = 1 << 17
"""Rows of partial counts after which they are added up."""


class UsageCounter:
    """Counts an op stream, a batch at a time. Memory: a row per rank, lane, op, api, origin and file, and 128 Ki."""

    def __init__(self) -> None:
        self._parts: list[list[np.ndarray]] = []
        self._rows = 0
        self._folded_rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count a batch with USAGE_COLUMNS."""
        self._parts.append(_counted(batch))
        self._rows += len(self._parts[-1][0])
        if self._rows - self._folded_rows > _FOLD_ROWS:
            self._fold()

    def table(self) -> pa.Table:
        """All that was counted (`USAGE_SCHEMA`), by rank."""
        if not self._parts:
            return USAGE_SCHEMA.empty_table()
        self._fold()
        order = np.argsort(self._parts[0][0], kind="stable")
        names = (*_KEYS, "operations", "least_length", "reach")
        columns = {name: values[order] for name, values in zip(names, self._parts[0], strict=True)}
        return table_from_columns(columns, USAGE_SCHEMA)

    def _fold(self) -> None:
        if len(self._parts) > 1:
            columns = [np.concatenate(values) for values in zip(*self._parts, strict=True)]
            self._parts = [_added_up(columns[: len(_KEYS)], *columns[len(_KEYS) :])]
        self._rows = self._folded_rows = len(self._parts[0][0])


def _counted(batch: pa.RecordBatch | pa.Table) -> list[np.ndarray]:
    offset, length = batch.column("offset").to_numpy(), batch.column("length").to_numpy()
    keys = [
        codes(batch, name) if name in _ENUMERATED else batch.column(name).fill_null(-1).to_numpy() for name in _KEYS
    ]
    return _added_up(keys, None, length, np.maximum(offset, 0) + length)


def _added_up(
    keys: Sequence[np.ndarray], operations: np.ndarray | None, least_length: np.ndarray, reach: np.ndarray
) -> list[np.ndarray]:
    """A column for each of _KEYS, three of counts, in the order in which keys appear. `operations`: None for ones."""
    _, first, inverse = distinct_rows(*keys)
    appearance = np.argsort(first)
    number = np.argsort(appearance)[inverse]
    least, most = least_length[first[appearance]], reach[first[appearance]]
    np.minimum.at(least, number, least_length)
    np.maximum.at(most, number, reach)
    total = np.bincount(number, operations, len(first)).astype(np.int64)  # exact below 2^53
    return [*(key[first[appearance]] for key in keys), total, least, most]


class StoredUsage:
    """The counts in `index.parquet`, read a row group at a time. Damaged ones count as absent.

    Only one thread may read them: it owns the open Parquet file and the row group that was read last.
    """

    def __init__(self, index: Path, files: int) -> None:
        self._index = index
        self._files = files
        self._read: tuple[int, pa.Table] | None = None
        try:
            self._file = open_parquet(index)
            # In little memory, and it refuses a column whose numbers would abort the program (`open_parquet`).
            self._file.scan_contents()
            footer = self._file.metadata
            ends = np.cumsum([footer.row_group(group).num_rows for group in range(footer.num_row_groups)])
            rank = self._file.read(columns=["rank"], use_threads=False)["rank"].to_numpy()
        except (pa.ArrowException, OSError, ValueError, CaptureError):
            ends, rank = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        begins = ends - np.diff(ends, prepend=0)
        self._first = np.minimum.reduceat(rank, begins) if len(ends) else ends
        self._last = np.maximum.reduceat(rank, begins) if len(ends) else ends

    def of(self, ranks: Sequence[int]) -> pa.Table | None:
        """The stored counts of `ranks` (`USAGE_SCHEMA`), which ascend; None where there are none, or a damaged one."""
        tables = []
        for group in np.flatnonzero((self._first <= ranks[-1]) & (self._last >= ranks[0])).tolist():
            try:
                table = self._row_group(group)
            except (pa.ArrowException, OSError, ValueError, CaptureError):
                return None
            tables.append(_of_ranks(table, ranks))
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
        numbers = np.concatenate([counts[name].to_numpy() for name in ("lane", "operations", "least_length", "reach")])
        return bool(
            np.all((file_id >= 0) & (file_id < self._files) & (other >= -1) & (other < self._files))
            and np.all(renames == (other >= 0))
            and np.all(numbers >= 0)
        )


def _of_ranks(counts: pa.Table, ranks: Sequence[int]) -> pa.Table:
    """The counts of `ranks`, which ascend: a slice where they are one stretch, as those of a single rank are."""
    rank = counts["rank"].to_numpy()
    left, right = np.searchsorted(rank, (ranks[0], ranks[-1] + 1)).tolist()
    if np.all(rank[1:] >= rank[:-1]) and ranks[-1] - ranks[0] + 1 == len(ranks):
        return counts.slice(left, right - left)
    mine = np.isin(rank, ranks)
    return counts if mine.all() else counts.filter(pa.array(mine))


class UsageCheck:
    """The stored counts of a rank, minus the rows read so far: rows beyond the counts show that the two disagree."""

    COLUMNS = frozenset(("lane", *_ENUMERATED, "file_id"))
    """Columns that rows need for this check."""

    def __init__(self, counts: pa.Table) -> None:
        self._left = []
        for column, key in _keys_of(counts).items():
            keys, index = np.unique(key, return_inverse=True)
            left = np.zeros(len(keys), dtype=np.int64)
            np.add.at(left, index, counts["operations"].to_numpy())
            self._left.append((column, pa.array(keys), left))

    def takes(self, rows: pa.RecordBatch) -> bool:
        """Whether all of these rows are covered by the counts that earlier calls left."""
        found = _keys_of(rows)
        for column, keys, left in self._left:
            index = pc.index_in(pa.array(found[column]), value_set=keys)
            if index.null_count:
                return False
            places = index.to_numpy()
            left -= np.bincount(places, minlength=len(left))
            if left.min(initial=0) < 0:
                return False
        return True


def _keys_of(rows: pa.Table | pa.RecordBatch) -> dict[str, np.ndarray]:
    """int64 by row, for `lane` and `file_id`: its value (below 2^31), op, interface and origin in one number."""
    kind, kinds = np.zeros(rows.num_rows, dtype=np.int64), 1
    for name in _ENUMERATED:
        kind = kind * len(VOCABULARY[name]) + codes(rows, name)
        kinds *= len(VOCABULARY[name])
    return {column: rows.column(column).to_numpy().astype(np.int64) * kinds + kind for column in ("lane", "file_id")}
