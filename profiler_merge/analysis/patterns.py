"""The access of each rank to each file: order of the requests, repeated reads, and time in metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.rank_files import (
    FileCounts,
    FileTexts,
    RankAccesses,
    RankFiles,
    pattern_names,
)
from dxt_replay.profiler_merge.analysis.reread import UniqueBytes
from dxt_replay.profiler_merge.analysis.tables import SUMMED, TABLES
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums

FILES_SCHEMA = TABLES["files"].schema
"""`read_by_several_bytes`: first reads of the ranks minus `unique_bytes_read`, which is over all ranks."""

RANKS_SCHEMA = TABLES["ranks"].schema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """Access patterns of a capture.

    rank_files: the rows of each rank and file. They are read again from the capture instead of kept in memory. files,
    ranks: tables of FILES_SCHEMA and RANKS_SCHEMA.
    reread_error_bytes: largest total error of `unique_bytes_read`, which may be too large: 0 while a rank's reads form
    fewer than two million separate pieces.
    """

    rank_files: RankFiles
    files: pa.Table
    ranks: pa.Table
    reread_error_bytes: int


def patterns(capture: Capture) -> Patterns:
    """Access patterns of the counted reads and writes. Raises: CaptureError when a part is damaged."""
    return collect(capture, PatternCollector, without=("lane", "step")).patterns()


class PatternCollector(Collector):
    """Collects `Patterns` from rows of one rank after another.

    A rank is added to the totals of its files, and to its own, as soon as the next one begins. Memory: about 50 int64
    per file of the capture, 21 per rank, and the pieces of two `UniqueBytes`; none per operation or pair of rank and
    file.
    """

    STAY = ("_capture", "_layers")

    def __init__(self, capture: Capture, layers: FileLayers) -> None:
        self._capture = capture
        self._layers = layers
        self._accesses = RankAccesses(capture.files)
        self._rank: int | None = None
        self._is_stretch = False
        self._by_file = _FileTotals(capture.files.num_rows)
        self._by_rank = _RankTotals(capture.ranks, capture.files.num_rows)
        self._unique_over_ranks = UniqueBytes(self._accesses.line)
        self._pairs = 0
        self._error = 0

    def begin_stretch(self, before: OperationRows) -> None:
        """As `Collector.begin_stretch`."""
        self._rank, self._is_stretch = before.rank, True

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        self._begin_rank(rows.rank)
        self._accesses.add(at_one_layer(rows, self._layers))

    def _begin_rank(self, rank: int | None) -> None:
        if self._rank is not None and self._rank != rank:
            self._unique_over_ranks.add(self._accesses.unique.ranges())
            found = self._accesses.finish()
            self._pairs += len(found.file_id)
            self._error += found.error_bytes
            self._by_file.add(found)
            self._by_rank.add(self._rank, found)
        self._rank = rank

    def merge(self, later: PatternCollector) -> None:
        """As `Sums.merge`."""
        if later._is_stretch:
            self._begin_rank(later._rank)
            self._accesses.merge(later._accesses)
            return
        self._begin_rank(None)
        later._begin_rank(None)
        self._by_file.merge(later._by_file)
        self._by_rank.merge(later._by_rank)
        self._unique_over_ranks.merge(later._unique_over_ranks)
        self._pairs += later._pairs
        self._error += later._error

    def __getstate__(self) -> dict[str, Any]:
        """A stretch sends what it found of its rank, others only the sums over their ranks."""
        if not self._is_stretch:
            self._begin_rank(None)
        state = super().__getstate__()
        return state if self._is_stretch else {**state, "_accesses": None}

    def patterns(self) -> Patterns:
        """Patterns of all that was added."""
        self._begin_rank(None)
        return Patterns(
            rank_files=RankFiles(self._capture, self._layers, self._pairs),
            files=self._by_file.table(self._capture.files, self._unique_over_ranks),
            ranks=self._by_rank.table(),
            reread_error_bytes=self._error,
        )


class _FileTotals(Sums):
    """Sums over the ranks, per file."""

    def __init__(self, files: int) -> None:
        self._used = np.zeros(files, dtype=bool)
        self._ranks = np.zeros(files, dtype=np.int64)
        self._sums = {name: np.zeros(files, dtype=np.int64) for name in SUMMED}

    def add(self, found: FileCounts) -> None:
        """Add the counts of one rank."""
        self._used[found.file_id] = True
        self._ranks[found.file_id] += found.accessed
        for name, column in found.counts.items():
            self._sums[name][found.file_id] += column

    def merge(self, later: _FileTotals) -> None:
        """As `Sums.merge`."""
        self._used |= later._used
        self._ranks += later._ranks
        for name, column in later._sums.items():
            self._sums[name] += column

    def table(self, files: pa.Table, unique: UniqueBytes) -> pa.Table:
        """`FILES_SCHEMA`; `unique`: bytes that the ranks together read at least once."""
        used = np.flatnonzero(self._used)
        sums = {name: column[used] for name, column in self._sums.items()}
        different = unique.per_file()[used]
        return pa.table(
            {
                "file_id": used.astype(np.int32),
                **FileTexts(files).columns(used),
                "size_bytes": files["size"].to_numpy()[used],
                "ranks": self._ranks[used],
                **sums,
                "unique_bytes_read": different,
                "read_by_several_bytes": np.maximum(sums["unique_bytes_read"] - different, 0),
                "pattern": pattern_names(sums),
            },
            schema=FILES_SCHEMA,
        )


class _RankTotals(Sums):
    """Sums over the files, per rank.

    `_first`: by file, the index of the only rank so far that accessed it, which must count the file as shared when a
    second rank does; _NOBODY, or _SEVERAL."""

    def __init__(self, ranks: tuple[int, ...], files: int) -> None:
        self._place = {rank: place for place, rank in enumerate(ranks)}
        self._first = np.full(files, _NOBODY, dtype=np.int32)
        self._sums = {name: np.zeros(len(ranks), dtype=np.int64) for name in ("files", "shared_files", *SUMMED)}

    def add(self, rank: int, found: FileCounts) -> None:
        """Add the counts of one rank; called once per rank."""
        place = self._place[rank]
        accessed = found.file_id[found.accessed]
        first = self._first[accessed]
        met = first[first >= 0]
        self._sums["files"][place] = len(accessed)
        self._sums["shared_files"] += np.bincount(met, minlength=len(self._place))
        self._sums["shared_files"][place] += np.count_nonzero(first != _NOBODY)
        self._first[accessed] = np.where(first == _NOBODY, place, _SEVERAL)
        for name, column in found.counts.items():
            self._sums[name][place] = column.sum()

    def merge(self, later: _RankTotals) -> None:
        """As `Sums.merge`. A file that both sides accessed is shared, also for the only rank of either side."""
        place = np.array([self._place[rank] for rank in later._place], dtype=np.int32)
        for name, column in later._sums.items():
            self._sums[name][place] += column
        theirs = np.where(later._first >= 0, place[later._first], later._first)
        both = (self._first != _NOBODY) & (theirs != _NOBODY)
        only = np.concatenate((self._first[both], theirs[both]))
        self._sums["shared_files"] += np.bincount(only[only >= 0], minlength=len(self._place))
        self._first = np.where(both, _SEVERAL, np.where(theirs == _NOBODY, self._first, theirs)).astype(np.int32)

    def table(self) -> pa.Table:
        """`RANKS_SCHEMA`."""
        return pa.table({"rank": np.array(list(self._place), dtype=np.int32), **self._sums}, schema=RANKS_SCHEMA)


_NOBODY, _SEVERAL = -1, -2
