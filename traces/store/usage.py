"""How much each lane uses each file: counts stored beside the op stream, so that a replay starts without a scan.

`usage/usage-*.parquet` is not part of the contract: where it is absent, or does not add up, the op stream is counted.
Before schema version 3 the files lay in `ops/`, where other Parquet readers took them for rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import OPS, OPS_SCHEMA, VOCABULARY, codes, dictionary_array
from dxt_replay.traces.store.checks import MOST_ROWS, conforming
from dxt_replay.traces.store.row_groups import claimed_ranks, open_parquet

OPS_FOLDER, USAGE_FOLDER = "ops", "usage"
"""Folders of a capture: the op stream, and the counts."""

USAGE_COLUMNS = ("lane", "op", "api", "origin", "file_id", "offset", "length")
"""Columns of the op stream that are counted."""

USAGE_SCHEMA = pa.schema(
    [
        *(OPS_SCHEMA.field(name) for name in ("rank", "lane", "op", "api", "origin", "file_id")),
        pa.field("other_file_id", pa.int32(), nullable=False),
        pa.field("operations", pa.int64(), nullable=False),
        pa.field("least_length", pa.int64(), nullable=False),
        pa.field("reach", pa.int64(), nullable=False),
    ]
)
"""One row per rank, lane, op, api, origin and file. `other_file_id`: the new name's file of a rename, else -1;
`operations`: how many; `least_length`: of the shortest; `reach`: where the furthest ends, max(offset, 0) + length in
bytes."""

_ENUMERATED = ("op", "api", "origin")
_KEYS = ("rank", "lane", *_ENUMERATED, "file_id", "other_file_id")
_FOLD_ROWS = 1 << 17
"""Rows of partial counts after which they are added up."""

_ROW_GROUP_ROWS = 1 << 14
"""Rows of a row group: what is read at once to find the counts of one rank."""


class UsageCounter:
    """Counts one rank's op stream, a batch at a time. Memory: a row per lane, op, api, origin, file, and 128 Ki."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._folded_rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count a batch with USAGE_COLUMNS."""
        self._parts.append(_counted(batch, np.zeros(batch.num_rows, dtype=np.int32)))
        self._rows += self._parts[-1].num_rows
        if self._rows - self._folded_rows > _FOLD_ROWS:
            self._fold()

    def table(self, rank: int) -> pa.Table:
        """All that was counted (`USAGE_SCHEMA`), as this rank's."""
        if not self._parts:
            return USAGE_SCHEMA.empty_table()
        self._fold()
        ranks = pa.array(np.full(self._rows, rank, dtype=np.int32))
        return _as_usage(self._parts[0].set_column(0, "rank", ranks))

    def _fold(self) -> None:
        self._parts = [_folded(self._parts)]
        self._rows = self._folded_rows = self._parts[0].num_rows


def _counted(batch: pa.RecordBatch | pa.Table, ranks: np.ndarray) -> pa.Table:
    """The counts of a batch by rank and _KEYS, in the order in which these come; codes instead of names."""
    op, offset, length = codes(batch, "op"), batch.column("offset").to_numpy(), batch.column("length").to_numpy()
    renames = op == OPS.index("rename")
    part = {
        "rank": ranks,
        "lane": batch.column("lane").to_numpy(),
        "op": op,
        "api": codes(batch, "api"),
        "origin": codes(batch, "origin"),
        "file_id": batch.column("file_id").to_numpy(),
        "other_file_id": np.where(renames, offset, -1).astype(np.int32),
        "operations": np.ones(len(op), dtype=np.int64),
        "least_length": length,
        "reach": np.where(renames, 0, np.maximum(offset, 0) + length),
    }
    return _added_up(pa.table(part))


def _folded(parts: list[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else _added_up(pa.concat_tables(parts))


def _as_usage(counted: pa.Table) -> pa.Table:
    """The counts as `USAGE_SCHEMA`."""
    columns = {name: counted[name] for name in USAGE_SCHEMA.names if name not in _ENUMERATED}
    columns |= {name: dictionary_array(counted[name].to_numpy(), VOCABULARY[name]) for name in _ENUMERATED}
    return pa.table([columns[name] for name in USAGE_SCHEMA.names], schema=USAGE_SCHEMA)


def _added_up(parts: pa.Table) -> pa.Table:
    totals = parts.group_by(list(_KEYS), use_threads=False).aggregate(
        [("operations", "sum"), ("least_length", "min"), ("reach", "max")]
    )
    names = {"operations_sum": "operations", "least_length_min": "least_length", "reach_max": "reach"}
    return totals.rename_columns([names.get(name, name) for name in totals.column_names])


class UsageWriter:
    """Writes the counts of an op stream that comes rank by rank: those of many small ranks in one row group.

    Memory: the counts of the current rank, and 128 Ki rows. Raises: OSError when the disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: pq.ParquetWriter | None = None
        self._sink: IO[bytes] | None = None
        self._parts: list[pa.Table] = []
        self._rows = self._kept_rows = 0
        self.file: Path | None = None

    def add(self, rows: pa.Table) -> None:
        """Count rows of one rank or of several; the rows of a rank come together."""
        self._parts.append(_counted(rows, rows["rank"].to_numpy()))
        self._rows += self._parts[-1].num_rows
        if self._rows - self._kept_rows > _FOLD_ROWS:
            self._flush(whole=False)

    def close(self) -> None:
        """Write what is counted, and the footer. The file is closed in any case: who removes it needs that on NFS."""
        try:
            self._flush(whole=True)
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
        finally:
            if self._sink is not None:
                self._sink.close()

    def _flush(self, *, whole: bool) -> None:
        """Write the counts of all ranks, without the last one unless `whole`, as more of its rows may come."""
        if not self._parts:
            return
        counted = _folded(self._parts)
        ranks = counted["rank"].to_numpy()
        done = len(ranks) if whole else int(np.count_nonzero(ranks != ranks[-1]))
        if done:
            if self._writer is None:
                self.file = self._folder / f"usage-{ranks[0]:07d}.parquet"
                self._sink = open(self.file, "wb")  # noqa: SIM115 - `close` does
                to = pa.PythonFile(self._sink, mode="w")
                self._writer = pq.ParquetWriter(to, USAGE_SCHEMA, compression="zstd", write_page_checksum=True)
            self._writer.write_table(_as_usage(counted.slice(0, done)), row_group_size=_ROW_GROUP_ROWS)
        self._parts = [counted.slice(done)] if done < len(ranks) else []
        self._rows = self._kept_rows = len(ranks) - done


class StoredUsage:
    """The counts in the directory of a capture, read a rank at a time. Damaged ones count as absent."""

    def __init__(self, directory: Path, files: int) -> None:
        self._files = files
        self._places: list[tuple[Path, pq.FileMetaData, int]] = []
        bounds = []
        folders = (directory / USAGE_FOLDER, directory / OPS_FOLDER)
        for file in sorted(file for folder in folders for file in folder.glob("usage-*.parquet")):
            footer = _footer(file)
            for first, last, group in _row_groups(file, footer) if footer is not None else ():
                self._places.append((file, footer, group))
                bounds.append((first, last))
        self._first, self._last = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
        self._read: tuple[int, pa.Table] | None = None
        self._opened: tuple[Path, pq.ParquetFile] | None = None

    def of(self, ranks: Sequence[int]) -> pa.Table | None:
        """The stored counts of `ranks` (`USAGE_SCHEMA`), which ascend; None where there are none, or a damaged one."""
        tables = []
        for place in np.flatnonzero((self._first <= ranks[-1]) & (self._last >= ranks[0])).tolist():
            try:
                table = self._row_group(place)
            except (pa.ArrowException, OSError, ValueError, CaptureError):
                return None
            mine = np.isin(table["rank"].to_numpy(), ranks)
            tables.append(table if mine.all() else table.filter(pa.array(mine)))
        found = pa.concat_tables(tables) if tables else None
        return found if found is not None and found.num_rows and self._plausible(found) else None

    def _row_group(self, place: int) -> pa.Table:
        """A row group; the last one is kept, as the next rank's counts are likely to be in it, too."""
        if self._read is None or self._read[0] != place:
            file, footer, group = self._places[place]
            table = self._open(file, footer).read_row_group(group, use_threads=False)
            self._read = place, conforming(table, USAGE_SCHEMA, file)
        return self._read[1]

    def _open(self, file: Path, footer: pq.FileMetaData) -> pq.ParquetFile:
        """The file, which stays open: the ranks after this one are most often in it, too."""
        if self._opened is None or self._opened[0] != file:
            self._opened = (file, open_parquet(file, footer))
        return self._opened[1]

    def _plausible(self, counts: pa.Table) -> bool:
        """Whether no number lies outside of what any count of an op stream can have."""
        file_id, other = counts["file_id"].to_numpy(), counts["other_file_id"].to_numpy()
        renames = codes(counts, "op") == OPS.index("rename")
        numbers = np.concatenate([counts[name].to_numpy() for name in ("lane", "operations", "least_length", "reach")])
        return bool(
            np.all((file_id >= 0) & (file_id < self._files) & (other >= -1) & (other < self._files))
            and np.all(renames == (other >= 0))
            and np.all(numbers >= 0)
        )


class UsageCheck:
    """The stored counts of a rank, from which rows are taken as they are read: none may be left that nobody counted."""

    COLUMNS = frozenset(("lane", *_ENUMERATED, "file_id"))
    """Columns that rows must have to be checked."""

    def __init__(self, counts: pa.Table) -> None:
        self._left = []
        for column in ("lane", "file_id"):
            keys, index = np.unique(_kinds_of(counts, column), return_inverse=True)
            left = np.zeros(len(keys), dtype=np.int64)
            np.add.at(left, index, counts["operations"].to_numpy())
            self._left.append((column, pa.array(keys), left))

    def takes(self, rows: pa.RecordBatch) -> bool:
        """Whether all of these rows are counted, those of earlier calls apart."""
        for column, keys, left in self._left:
            index = pc.index_in(pa.array(_kinds_of(rows, column)), value_set=keys)
            if index.null_count:
                return False
            places = index.to_numpy()
            np.subtract.at(left, places, 1)
            if left[places].min(initial=0) < 0:
                return False
        return True


def _kinds_of(rows: pa.Table | pa.RecordBatch, column: str) -> np.ndarray:
    """int64 by row: its value of `column`, which is below 2^31, op, interface and origin as one number."""
    key = rows.column(column).to_numpy().astype(np.int64)
    for name in _ENUMERATED:
        key = key * len(VOCABULARY[name]) + codes(rows, name)
    return key


def _footer(file: Path) -> pq.FileMetaData | None:
    """Metadata of a usage file; None where it is damaged or of another release."""
    try:
        with open_parquet(file) as opened:
            return opened.metadata if opened.schema_arrow.names == USAGE_SCHEMA.names else None
    except CaptureError:
        return None


def _row_groups(file: Path, footer: pq.FileMetaData) -> Iterator[tuple[int, int, int]]:
    """(first rank, last rank, index) of the row groups of a usage file."""
    for index, (first, last) in enumerate(claimed_ranks(file, footer.num_row_groups) or ()):
        # A few bytes may claim rows that would fill the memory.
        if footer.row_group(index).num_rows <= max(file.stat().st_size, MOST_ROWS):
            yield first, last, index
