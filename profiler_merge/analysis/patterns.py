"""What ranks do to files: order of the accesses, repeated reads, small requests, time in metadata; by rank and file.

Each access is compared with the previous one of the same rank, file and direction. In Darshan's sense it is
*sequential* if it begins beyond that one's last byte, and *consecutive* if it begins directly behind it. It has at most
one further class:
- *strided*: not consecutive, and at the same distance from the previous access as that one from its own predecessor;
- *restart*: at offset 0 again, as a new pass over the file begins;
- *random*: none of consecutive, strided and restart.
A jump ahead of any size is sequential for Darshan and random here, because its place cannot be predicted. Reads of 0
bytes, at the end of a file, have no class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.tables import COUNTS, SUMMED, TABLES, USUAL_STRIPE_BYTES
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures._passes import ORDER_STATE, add_at, count_accesses
from dxt_replay.traces.measures.intervals import BoundedUnion, Intervals
from dxt_replay.traces.measures.operation_rows import OperationRows, operation_rows
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.store.reader import Capture

_BETWEEN_FILES = 1 << 30
"""Free space between two files on the line of bytes: gaps between files are closed after those within a file."""

_COLUMN = {name: place for place, name in enumerate(SUMMED)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """Access patterns of a capture: the tables "files" and "ranks".

    In files, `unique_bytes_read` is over all ranks, and `read_by_several_bytes` the first reads of the ranks beyond it.
    """

    files: pa.Table
    ranks: pa.Table


def patterns(capture: Capture) -> Patterns:
    """Access patterns of the operations that count."""
    found: Patterns = collect(capture, [PatternCollector])[0].patterns()
    return found


class _RankAccesses:
    """Counts what one rank does to each file, one rank after another.

    Memory: 35 int64 per file of the capture, and the pieces of a union of byte ranges. All files lie on one line of
    bytes, one after the other, so that one union serves all of them."""

    def __init__(self, files: pa.Table) -> None:
        sizes = files["size"].to_numpy()
        stripes = files["stripe_size"].fill_null(0).to_numpy()
        self._small = np.minimum(np.where(stripes > 0, stripes, USUAL_STRIPE_BYTES), sizes)
        room = np.maximum(sizes, 0) + _BETWEEN_FILES
        self._begin = np.cumsum(room) - room
        self._end = self._begin + np.maximum(sizes, 0)
        self._clear()

    def _clear(self) -> None:
        files = len(self._small)
        self._counts = np.zeros((files, len(COUNTS)), dtype=np.int64)
        self._order = np.zeros((2 * files, ORDER_STATE), dtype=np.int64)
        self._read = BoundedUnion()

    def add(self, rows: OperationRows) -> None:
        """Add rows that count, in start order."""
        traced, data = rows.origin != RECONSTRUCTED, rows.data
        if not (traced & data).all():
            self._add("reconstructed_operations", rows.where(~traced))
            metadata = rows.where(~traced & ~data)
            self._add("reconstructed_metadata_ns", metadata, metadata.duration_ns)
            rebuilt = rows.where(~traced & data)
            self._add("reconstructed_bytes", rebuilt, rebuilt.length)
            other = rows.where(traced & ~data)
            self._add("other_operations", other)
            self._add("metadata_ns", other, other.duration_ns)
            rows = rows.where(traced & data)
        written = rows.op == WRITE
        count_accesses(
            self._counts, self._order, written, rows.file_id, rows.offset, rows.length, rows.duration_ns, self._small
        )
        read = rows.where(~written & (rows.offset >= 0) & (rows.length > 0))
        begin, limit = self._begin[read.file_id] + read.offset, self._end[read.file_id]
        self._read.add(np.minimum(begin, limit), np.minimum(begin + read.length, limit))

    def _add(self, name: str, rows: OperationRows, amounts: np.ndarray | None = None) -> None:
        ones = np.ones(len(rows), dtype=np.int64)
        add_at(self._counts[:, _COLUMN[name]], rows.file_id, ones if amounts is None else amounts)

    def finish(self) -> tuple[np.ndarray, np.ndarray, Intervals]:
        """The files that the rank used, their counts int64 (files used, SUMMED), and the bytes of the line that it
        read. The next row belongs to another rank."""
        used = np.flatnonzero(self._counts.any(axis=1))
        read, counts = self._read.intervals(), self._counts[used]
        unique = self.bytes_of_files(read)[used]
        again = np.maximum(counts[:, _COLUMN["bytes_read"]] - unique, 0)
        self._clear()
        return used, np.column_stack((counts, unique, again)), read

    def bytes_of_files(self, read: Intervals) -> np.ndarray:
        """int64 (files,): how much of each file a union on the line covers."""
        return read.covered_within(self._begin, self._end)


class PatternCollector(Collector):
    """Collects `Patterns` from rows of one rank after another.

    A rank is added to the totals of its files, and to its own, as soon as the next one begins. Memory: about 50 int64
    per file of the capture, 21 per rank, and the pieces of two unions; none per operation or pair of rank and file.
    """

    STAY = ("_capture", "_layers", "_accesses")

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        files = capture.files.num_rows
        self._capture = capture
        self._layers = layers
        self._accesses = _RankAccesses(capture.files)
        self._rank: int | None = None
        self._of_file = np.zeros((files, len(SUMMED)), dtype=np.int64)
        # Ranks that read or wrote each file: how many, and the sum of their numbers.
        self._ranks_of_file, self._numbers = np.zeros((2, files), dtype=np.int64)
        self._of_rank: dict[int, np.ndarray] = {}  # number of files, then as SUMMED
        self._read_by_any = BoundedUnion()

    def add(self, rows: OperationRows) -> None:
        for own in at_one_layer(rows, self._layers).each_rank():
            if own.rank != self._rank:
                self.end()
                self._rank = own.rank
            self._accesses.add(own)

    def end(self) -> None:
        if self._rank is None:
            return
        used, counts, read = self._accesses.finish()
        moved = counts[:, [_COLUMN["reads"], _COLUMN["writes"], _COLUMN["reconstructed_bytes"]]].any(axis=1)
        self._of_file[used] += counts
        self._ranks_of_file[used[moved]] += 1
        self._numbers[used[moved]] += self._rank
        self._of_rank[self._rank] = np.concatenate(([moved.sum()], counts.sum(axis=0)))
        self._read_by_any.add_union(read)
        self._rank = None

    def patterns(self) -> Patterns:
        """Patterns of all that was added."""
        used = np.flatnonzero(self._of_file.any(axis=1))
        columns = _columns(self._capture, used, self._of_file[used])
        different = self._accesses.bytes_of_files(self._read_by_any.intervals())[used]
        columns |= {
            "size_bytes": self._capture.files["size"].to_numpy()[used],
            "ranks": self._ranks_of_file[used],
            "read_by_several_bytes": np.maximum(columns["unique_bytes_read"] - different, 0),
            "unique_bytes_read": different,
        }
        ranks = np.array(self._capture.ranks, dtype=np.int64)
        none = np.zeros(1 + len(SUMMED), dtype=np.int64)
        sums = np.array([self._of_rank.get(rank, none) for rank in self._capture.ranks]).reshape(-1, len(none))
        own = np.bincount(np.searchsorted(ranks, self._numbers[self._ranks_of_file == 1]), minlength=len(ranks))
        by_rank = {"rank": ranks, "files": sums[:, 0], "shared_files": sums[:, 0] - own}
        by_rank |= {name: sums[:, 1 + place] for name, place in _COLUMN.items()}
        found = {
            name: pa.table(each).select(TABLES[name].columns).cast(TABLES[name].schema)
            for name, each in (("files", columns), ("ranks", by_rank))
        }
        return Patterns(**found)


def rank_files(capture: Capture) -> pa.Table:
    """The table "rank-files", whose rows take some 500 bytes each. Raises: CaptureError when a part is damaged."""
    layers, accesses = file_layers(capture), _RankAccesses(capture.files)
    found: list[tuple[np.ndarray, ...]] = []
    for rank, batches in groupby(operation_rows(capture, without=("lane", "step")), key=lambda rows: rows.rank):
        for rows in batches:
            accesses.add(at_one_layer(rows, layers))
        file_id, counts, _ = accesses.finish()
        found.append((np.full(len(file_id), rank), file_id, counts))
    none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty((0, len(SUMMED)), dtype=np.int64)
    rank_of, file_id, counts = (np.concatenate(each) for each in zip(none, *found, strict=True))
    table = TABLES["rank-files"]
    columns = {"rank": rank_of, **_columns(capture, file_id, counts)}
    return pa.table(columns).select(table.columns).cast(table.schema)


def _columns(capture: Capture, file_id: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """`file_id`, `path`, `format`, SUMMED and `pattern` of some files: the kind of most accesses of each; the first
    access of a file has no kind."""
    named = {name: counts[:, place] for name, place in _COLUMN.items()}
    forward = named["sequential"] - named["consecutive"] - named["strided"]
    kinds = ("consecutive", "strided", "random", "sequential")
    amounts = np.stack([*(named[kind] for kind in kinds[:3]), np.maximum(forward, 0)])
    most = np.where(amounts.any(axis=0), amounts.argmax(axis=0) + 1, 0)
    texts = capture.files.select(["path", "format"]).take(pa.array(file_id))
    return {
        "file_id": file_id,
        "path": texts["path"],
        "format": texts["format"].cast(pa.string()),
        **named,
        "pattern": pa.array(np.array([None, *kinds], dtype=object)[most], pa.string()),
    }
