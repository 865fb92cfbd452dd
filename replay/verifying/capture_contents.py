"""The tables of a capture, all rows of them, held against the schema, the index and each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.verifying.checked import CheckedPart, Difference, in_threads
from dxt_replay.traces.errors import CaptureError, UnreadableError
from dxt_replay.traces.few_together import few_together
from dxt_replay.traces.row_order import distinct
from dxt_replay.traces.schema import READ, USAGE_SCHEMA, WRITE, codes
from dxt_replay.traces.stable_order import stable_order
from dxt_replay.traces.store.index import INDEX_NAME, StoredUsage, UsageCounter
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable

_ADDED_UP = {"operations": "sum", "least_length": "min", "reach": "max"}
_REPLAYED = ("operations", "read", "written")
_ROWS_TOGETHER = 1 << 18
"""Operations of the ranks that one thread looks at."""
_NEVER = int(np.iinfo(np.int64).min)


@dataclass(slots=True, kw_only=True)
class _RankRows:
    """Sums over the rows of some ranks. `replayed`: operations, bytes read and bytes written by a replay. `lanes`: rank
    and lane, each once."""

    rows: int = 0
    replayed: np.ndarray = field(default_factory=lambda: np.zeros(len(_REPLAYED), dtype=np.int64))
    differences: list[Difference] = field(default_factory=list)
    counted_rows: int = 0
    miscounted: tuple[int, ...] = ()
    lanes: pa.Table = field(default_factory=lambda: USAGE_SCHEMA.empty_table().select(["rank", "lane"]))


class _Counts(threading.local):
    """A reader of the stored counts for each thread: an open Parquet file and what was read last belong to one."""

    def __init__(self, capture: Capture) -> None:
        self.stored = StoredUsage(capture.path / INDEX_NAME, capture.files.num_rows)


def content_parts(capture: Capture) -> list[CheckedPart]:
    """The rows of an opened capture: files, operations, index, spans and datasets. Memory: some row groups a thread."""
    files = CheckedPart(part="files", unit="row", checked=capture.files.num_rows)
    operations = CheckedPart(part="operations", unit="row")
    index = CheckedPart(part="index", unit="row")
    indexed = (capture.path / INDEX_NAME).exists()
    counts = _Counts(capture)
    replayed = np.zeros(len(_REPLAYED), dtype=np.int64)
    lanes: list[pa.Table] = []
    ranks = capture.index.ranks_together(_ROWS_TOGETHER)
    for found in in_threads(lambda some: _rank_rows(capture, counts if indexed else None, some), ranks):
        operations.checked += found.rows
        operations.count(found.differences)
        replayed += found.replayed
        lanes.append(found.lanes)
        index.checked += found.counted_rows
        for rank in found.miscounted:
            index.differs(INDEX_NAME, f"counts of rank {rank}", "those of its operations", "others")
    if not indexed:
        index.note = "none is stored: it is made from the operations"
    _check_replayed(capture, replayed, operations)
    return [files, operations, index, *(_table(capture, name) for name in ("spans", "hdf5")), _lanes(capture, lanes)]


def _table(capture: Capture, name: str) -> CheckedPart:
    """A table that is read as a whole, which checks it."""
    part = CheckedPart(part=name, unit="row")
    try:
        part.checked = getattr(capture, name).num_rows
    except UnreadableError:
        raise
    except CaptureError as error:
        part.differs(f"{name}.parquet", "contents", "rows as the schema describes them", printable(str(error)))
    return part


def _lanes(capture: Capture, used: list[pa.Table]) -> CheckedPart:
    """The table of lanes, held against the lanes of the operations: `rank` and `lane`, each once."""
    part = _table(capture, "lanes")
    if part.different or not part.checked:
        return part
    keys = ["rank", "lane"]
    operations = pa.concat_tables(used) if used else capture.lanes.select(keys).slice(0, 0)
    for one, other, said, found in (
        (operations, capture.lanes, "a row for each lane of the operations", "none"),
        (capture.lanes, operations, "lanes with operations alone", "a lane without any"),
    ):
        for row in one.select(keys).join(other.select(keys), keys, join_type="left anti").sort_by("rank").to_pylist():
            part.differs("lanes.parquet", f"lane {row['lane']} of rank {row['rank']}", said, found)
    return part


def _rank_rows(capture: Capture, counts: _Counts | None, ranks: Sequence[int]) -> _RankRows:
    """Read the rows of `ranks`, which also compares each row group with the index, sum them, and look for overlap."""
    found = _RankRows()
    counter, lanes = UsageCounter(), LaneOrder()
    try:
        for rows in _tables(capture, ranks):
            found.rows += rows.num_rows
            counter.add(rows)
            found.replayed += _replayed(rows)
            found.differences += lanes.add(rows)
    except UnreadableError:
        raise
    except CaptureError as error:
        what = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        found.differences.append(
            Difference(file="ops", what=what, expected="rows as the schema describes them", found=printable(str(error)))
        )
        return found
    counted = counter.table()
    found.lanes = counted.group_by(["rank", "lane"], use_threads=False).aggregate([])
    if counts is not None:
        stored = counts.stored.of(ranks) or USAGE_SCHEMA.empty_table()
        found.counted_rows = stored.num_rows
        found.miscounted = _miscounted(_sorted(stored), _sorted(counted), ranks)
    return found


def _tables(capture: Capture, ranks: Sequence[int]) -> Iterator[pa.Table]:
    """The operations of `ranks`, of many small ranks together."""
    batches = (batch for _, batch in capture.rank_operations(ranks))
    for some in few_together(batches, len, _ROWS_TOGETHER):
        yield pa.Table.from_batches(some)


def _miscounted(stored: pa.Table, counted: pa.Table, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks whose counts are not those of their operations."""
    if stored.equals(counted):
        return ()
    of_rank = [
        [table.filter(pa.array(table["rank"].to_numpy() == rank)) for table in (stored, counted)] for rank in ranks
    ]
    return tuple(rank for rank, (one, other) in zip(ranks, of_rank, strict=True) if not one.equals(other))


def _replayed(rows: pa.Table) -> np.ndarray:
    """int64 (3,): operations with a result, bytes read, bytes written."""
    result = np.maximum(rows["result"].fill_null(0).to_numpy(), 0)
    op = codes(rows, "op")
    known = rows.num_rows - rows["result"].null_count
    return np.array([known, result[op == READ].sum(), result[op == WRITE].sum()], dtype=np.int64)


def _check_replayed(capture: Capture, replayed: np.ndarray, part: CheckedPart) -> None:
    """Hold the rows of a replay against the totals that the replay printed."""
    result = capture.info.made_by.get("result")
    if not isinstance(result, dict) or not result:
        return
    totals = result.get("bytes")
    moved = totals if isinstance(totals, dict) else {}
    said = {"operations": result.get("operations"), **{name: moved.get(name) for name in ("read", "written")}}
    for name, found in zip(_REPLAYED, replayed.tolist(), strict=True):
        if isinstance(said[name], int) and said[name] != found:
            what = name if name == "operations" else f"bytes {name}"
            part.differs("ops", f"{what} of the replay", said[name], found)


def _sorted(counts: pa.Table) -> pa.Table:
    """Counts as plain columns in one order; those of one key, which several parts may hold, are added up."""
    plain = pa.table(
        {
            name: counts[name].cast(pa.string()) if pa.types.is_dictionary(counts[name].type) else counts[name]
            for name in USAGE_SCHEMA.names
        }
    )
    keys = [name for name in USAGE_SCHEMA.names if name not in _ADDED_UP]
    found = plain.group_by(keys, use_threads=False).aggregate(list(_ADDED_UP.items()))
    return found.select(sorted(found.column_names)).sort_by([(name, "ascending") for name in keys]).combine_chunks()


class LaneOrder:
    """Looks for operations of a lane that begin before the one before them has ended.

    Ranks come one after the other, their operations in the order of their rows.
    Memory: a few numbers for each lane of one rank.
    """

    def __init__(self) -> None:
        self._rank, self._row = -1, 0
        self._ends: dict[int, int] = {}
        self._named: set[int] = set()

    def add(self, rows: pa.Table) -> list[Difference]:
        """Look at the next rows. Returns the first overlap of each lane, unless an earlier call returned one."""
        if not rows.num_rows:
            return []
        rank, lane, start, end = (rows[name].to_numpy() for name in ("rank", "lane", "start_ns", "end_ns"))
        self._begin(int(rank[0]))
        # Both numbers have 31 bits.
        lanes, first, of_row = distinct(rank.astype(np.int64) << 32 | lane)
        order = stable_order(of_row)
        before = np.empty(len(order), dtype=np.int64)
        before[order[1:]] = end[order[:-1]]
        before[first] = [self._ends.get(each, _NEVER) for each in lanes.tolist()]
        late = np.flatnonzero(start < before)
        late = late[np.sort(distinct(of_row[late]).first)]
        begin_of_rank = np.searchsorted(rank, rank[late])
        found = []
        for row, begin in zip(late.tolist(), begin_of_rank.tolist(), strict=True):
            key = int(lanes[of_row[row]])
            if key not in self._named:
                self._named.add(key)
                number = row - begin + (self._row if rank[row] == self._rank else 0)
                found.append(
                    Difference(
                        file="ops",
                        what=f"lane {lane[row]} of rank {rank[row]}: start_ns of row {number} of the rank",
                        expected=f"at least {before[row]}, the end of the operation before it on the lane",
                        found=str(start[row]),
                    )
                )
        last = order[np.cumsum(np.bincount(of_row)) - 1]
        self._row += int(np.searchsorted(rank, self._rank, side="right"))
        if rank[-1] != self._rank:
            self._begin(int(rank[-1]))
            self._row = int((rank == rank[-1]).sum())
        mine = rank[last] == rank[-1]
        self._ends.update(zip(lanes[mine].tolist(), end[last[mine]].tolist(), strict=True))
        return found

    def _begin(self, rank: int) -> None:
        if rank != self._rank:
            self._rank, self._row, self._ends, self._named = rank, 0, {}, set()
