"""The DXT segments of a log, gathered by rank: many small ranks at once, a large one alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, DxtBlock, count_segments, read_dxt
from dxt_replay.profiler_merge.darshan.job import text
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.spilled import ColumnFile, chunks, release
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import APIS
from dxt_replay.traces.units import seconds_to_ns

_COLUMNS = ("record_id", "api", "is_write", "offset", "length", "start_ns", "end_ns")
_API_OF_MODULE = {"DXT_POSIX": APIS.index("POSIX"), "DXT_MPIIO": APIS.index("MPIIO")}

_GATHERED_SEGMENTS = 1 << 18
"""Approximate number of segments of a batch when those of all ranks are in memory anyway."""

SPILLED_SEGMENTS = 1 << 20
"""Segments of one rank above which they are kept in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSegments:
    """All DXT segments of one rank, in log order; arrays (n,).

    hostname: as recorded.
    record_id: uint64.
    api: int8 code of `traces.schema.APIS`.
    is_write: bool.
    offset, length: int64 bytes.
    start_ns, end_ns: int64 ns since the log's start_ns.
    thread: uint64 pthread ids; None where a module of the log does not carry them.
    """

    rank: int
    hostname: str
    record_id: np.ndarray
    api: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    thread: np.ndarray | None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentBatch:
    """All DXT segments of some ranks, one rank after the other and each in log order.

    ranks: int64 (r,), ascending; a rank may be without segments.
    counts: int64 (r,), segments of each.
    threaded: bool (r,), whether the thread ids of all its segments are known.
    hosts: S64 (r,), as recorded, of its first segment.
    The other columns (n,): as in `RankSegments`, but `thread` is 0 where it is not known.
    """

    ranks: np.ndarray
    counts: np.ndarray
    threaded: np.ndarray
    hosts: np.ndarray
    record_id: np.ndarray
    api: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    thread: np.ndarray

    def __len__(self) -> int:
        """Number of segments."""
        return len(self.start_ns)

    @property
    def place(self) -> np.ndarray:
        """int64 (n,): index of each segment's rank in `ranks`."""
        return np.repeat(np.arange(len(self.ranks)), self.counts)

    @property
    def knows_threads(self) -> bool:
        """Whether the thread of every segment is known."""
        return bool(self.threaded[self.counts > 0].all())

    def of_ranks(self, first: int, last: int) -> SegmentBatch:
        """The ranks at the places [first, last), without a copy."""
        rows = slice(int(self.counts[:first].sum()), int(self.counts[:last].sum()))
        of_ranks = {name: getattr(self, name)[first:last] for name in _OF_RANKS}
        return SegmentBatch(**of_ranks, **{name: getattr(self, name)[rows] for name in SEGMENT_COLUMNS})

    def select(self, mask: np.ndarray) -> SegmentBatch:
        """The segments where `mask` (bool, one per segment) holds; all ranks."""
        counts = np.bincount(self.place[mask], minlength=len(self.ranks))
        return replace(self, counts=counts, **{name: getattr(self, name)[mask] for name in SEGMENT_COLUMNS})

    def reordered(self, order: np.ndarray) -> SegmentBatch:
        """The segments in another order within each rank."""
        return replace(self, **{name: getattr(self, name)[order] for name in SEGMENT_COLUMNS})

    def among(self, ranks: np.ndarray) -> SegmentBatch:
        """Reindex to a superset of the ranks (ascending), which adds empty ranks."""
        mine = self.counts > 0
        places = np.searchsorted(ranks, self.ranks[mine])
        none = no_segments(ranks)
        for name in ("counts", "threaded", "hosts"):
            getattr(none, name)[places] = getattr(self, name)[mine]
        return replace(self, ranks=ranks, counts=none.counts, threaded=none.threaded, hosts=none.hosts)

    def hostname(self, place: int) -> str:
        """The host of the rank at one place of `ranks`; "" if none of its operations was traced."""
        return text(self.hosts[place].partition(b"\0")[0])

    def of_rank(self, place: int) -> RankSegments:
        """The segments of the rank at one place of `ranks`."""
        own = self.of_ranks(place, place + 1)
        return RankSegments(
            rank=int(own.ranks[0]),
            hostname=own.hostname(0),
            thread=own.thread if own.threaded[0] and len(own) else None,
            **{name: getattr(own, name) for name in _COLUMNS},
        )


_OF_RANKS = ("ranks", "counts", "threaded", "hosts")
SEGMENT_COLUMNS = (*_COLUMNS, "thread")
"""The columns of a `SegmentBatch` with a row for each segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """Storage for ranks with more than `segments` segments: files without a name in `folder`."""

    folder: Path
    segments: int = SPILLED_SEGMENTS


class RanksInterleavedError(LogError):
    """The log's records are not in rank order: no rank is complete before all records are read."""


def no_segments(ranks: np.ndarray) -> SegmentBatch:
    """Empty segments for ranks (int64, ascending) without traced operations."""
    none = np.empty(0, dtype=np.int64)
    return SegmentBatch(
        ranks=ranks,
        counts=np.zeros(len(ranks), dtype=np.int64),
        threaded=np.zeros(len(ranks), dtype=bool),
        hosts=np.zeros(len(ranks), dtype="S64"),
        record_id=none.astype(np.uint64),
        api=none.astype(np.int8),
        is_write=none.astype(bool),
        offset=none,
        length=none,
        start_ns=none,
        end_ns=none,
        thread=none.astype(np.uint64),
    )


def ranks_in_order(log: DarshanLog) -> bool:
    """Whether the records of each DXT module are in rank order.

    Reads only headers, in a tenth of the time of a merge. Raises: LogError as `count_segments`.
    """
    for module in DXT_MODULES:
        last = 0
        for part in count_segments(log, module) if module in log.modules else ():
            ranks = np.append(last, part.ranks)
            if (np.diff(ranks) < 0).any():
                return False
            last = int(ranks[-1])
    return True


def read_rank_segments(log: DarshanLog, *, gather: bool = False) -> Iterator[RankSegments]:
    """Segments of both DXT modules, one rank after the other, ascending; leaves out ranks without segments.

    Memory and errors: as `read_segment_batches`.
    """
    for batch in read_segment_batches(log, gather=gather):
        for place in range(len(batch.ranks)):
            yield batch.of_rank(place)


def read_segment_batches(
    log: DarshanLog, *, gather: bool = False, without: Collection[int] = (), spill: Spill | None = None
) -> Iterator[SegmentBatch]:
    """Segments of both DXT modules, some 8 MiB of ranks at a time, ascending; leaves out ranks without segments.

    `without`: record ids to leave out; a rank may then be without segments.
    Memory: some 8 MiB of segments, or those of one rank where it has more, because each rank appends its own stream to
    the log; with `gather` those of all ranks. With `spill`, a large rank is a batch by itself, whose columns are files.
    Raises: LogError when the log is damaged; RanksInterleavedError, which `gather` avoids; TargetError for `spill`.
    """
    streams = [
        _gathered(log, module, without) if gather else _whole_ranks(log, module, without, spill)
        for module in DXT_MODULES
        if module in log.modules
    ]
    heads = [next(stream, None) for stream in streams]
    while waiting := [head for head in heads if head is not None]:
        # A rank is complete in a stream when another one follows it there; all streams must have come so far.
        last = min(int(head.ranks[-1]) for head in waiting)
        parts = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            done = int(np.searchsorted(head.ranks, last, side="right"))
            if done:
                parts.append(head.of_ranks(0, done))
                heads[index] = head.of_ranks(done, len(head.ranks)) if done < len(head.ranks) else None
            if heads[index] is None:
                heads[index] = next(streams[index], None)
        yield from _apart(parts, spill)


def _whole_ranks(log: DarshanLog, module: str, without: Collection[int], spill: Spill | None) -> Iterator[SegmentBatch]:
    """One module's segments as batches of whole ranks, ascending. Raises: RanksInterleavedError."""
    waiting = _OneRank(spill)
    for batch in _batches(log, module, without):
        if (np.diff(batch.ranks) < 0).any() or (waiting.rank is not None and batch.ranks[0] < waiting.rank):
            raise RanksInterleavedError(f"{log.path}: {module} records are not in the order of the ranks")
        # The last rank may continue in the next block.
        whole = len(batch.ranks) - 1
        if waiting.spilled and batch.ranks[0] == waiting.rank and whole:
            waiting.add(batch.of_ranks(0, 1))
            batch, whole = batch.of_ranks(1, len(batch.ranks)), whole - 1
        if whole or (waiting.rank is not None and waiting.rank < batch.ranks[0]):
            yield from _apart([*waiting.taken(), batch.of_ranks(0, whole)], spill)
        waiting.add(batch.of_ranks(whole, whole + 1))
    if waiting.rank is not None:
        yield _by_rank(waiting.taken())


class _OneRank:
    """The parts of one rank so far, in files if they are large."""

    def __init__(self, spill: Spill | None) -> None:
        self._spill = spill
        self.rank: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.rank = None
        self._parts: list[SegmentBatch] = []
        self._segments = 0
        self._files: _SegmentFiles | None = None

    @property
    def spilled(self) -> bool:
        """Whether the parts are in files."""
        return self._files is not None

    def add(self, part: SegmentBatch) -> None:
        """The next part, of the same rank as those before."""
        self.rank = int(part.ranks[0])
        self._segments += len(part)
        if self._files is None and self._spill is not None and self._segments > self._spill.segments:
            self._files = _SegmentFiles(self._spill.folder)
            for each in self._parts:
                self._files.append(each)
            self._parts = []
        if self._files is not None:
            self._files.append(part)
        else:
            self._parts.append(part)

    def taken(self) -> list[SegmentBatch]:
        """All parts, which this object then forgets."""
        parts = self._parts if self._files is None else [self._files.batch()]
        self._begin()
        return parts


class _SegmentFiles:
    """The segments of one rank, a file for each column. Raises: TargetError when the disk refuses."""

    def __init__(self, folder: Path) -> None:
        empty = no_segments(np.empty(0, dtype=np.int64))
        self._files = {name: ColumnFile(folder, getattr(empty, name).dtype) for name in SEGMENT_COLUMNS}
        self._heads: list[SegmentBatch] = []

    def append(self, part: SegmentBatch) -> None:
        """Segments that follow those before."""
        for piece in chunks(len(part)):
            for name, file in self._files.items():
                file.append(getattr(part, name)[piece])
            release(*(getattr(part, name) for name in SEGMENT_COLUMNS))
        none = {name: getattr(part, name)[:0].copy() for name in SEGMENT_COLUMNS}
        self._heads.append(replace(part, **none))

    def batch(self) -> SegmentBatch:
        """The segments, at least one, with columns in files."""
        head = _by_rank(self._heads)
        return replace(head, **{name: file.column() for name, file in self._files.items()})


def _apart(parts: Sequence[SegmentBatch], spill: Spill | None) -> Iterator[SegmentBatch]:
    """The parts by rank; a rank with many segments is separate."""
    parts = [part for part in parts if len(part.ranks)]
    large = np.unique(
        np.concatenate([np.empty(0, dtype=np.int64), *(part.ranks[part.counts > spill.segments] for part in parts)])
        if spill is not None
        else np.empty(0, dtype=np.int64)
    )
    if spill is None or not len(large):
        yield from [_by_rank(parts)] if parts else []
        return
    for rank in large.tolist():
        before, own, rest = [], [], []
        for part in parts:
            first, last = (int(np.searchsorted(part.ranks, rank, side=side)) for side in ("left", "right"))
            before.append(part.of_ranks(0, first))
            own.append(part.of_ranks(first, last))
            rest.append(part.of_ranks(last, len(part.ranks)))
        yield from _apart(before, None)
        own = [part for part in own if len(part.ranks)]
        if len(own) == 1:
            yield own[0]
        else:
            files = _SegmentFiles(spill.folder)
            for part in own:
                files.append(part)
            yield files.batch()
        parts = rest
    yield from _apart(parts, None)


def _gathered(log: DarshanLog, module: str, without: Collection[int]) -> Iterator[SegmentBatch]:
    """One module's segments as batches of whole ranks, ascending, for any order in the log."""
    parts = list(_batches(log, module, without))
    if not parts:
        return
    batch = _by_rank(parts)
    number = np.cumsum(batch.counts) // _GATHERED_SEGMENTS
    cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]
    for first, last in pairwise(cuts):
        yield batch.of_ranks(first, last)


def _batches(log: DarshanLog, module: str, without: Collection[int]) -> Iterator[SegmentBatch]:
    """The segments of each block of a module; `ranks` has one row per run of segments of one rank."""
    dropped = np.fromiter(without, dtype=np.uint64, count=len(without))
    for block in read_dxt(log, module):
        if len(block.record):
            batch = _batch(block, _API_OF_MODULE[module])
            yield batch.select(~np.isin(batch.record_id, dropped)) if len(dropped) else batch


def _batch(block: DxtBlock, api: int) -> SegmentBatch:
    ranks = block.ranks[block.record]
    begin = np.append(0, np.flatnonzero(np.diff(ranks)) + 1)
    count, thread = len(ranks), block.pthread_id
    return SegmentBatch(
        ranks=ranks[begin],
        counts=np.diff(np.append(begin, count)),
        threaded=np.full(len(begin), thread is not None),
        hosts=block.host_fields[block.record[begin]],
        record_id=block.record_ids[block.record],
        api=np.full(count, api, dtype=np.int8),
        is_write=block.is_write,
        offset=block.offset.astype(np.int64, copy=False),
        length=block.length.astype(np.int64, copy=False),
        start_ns=seconds_to_ns(block.start_s.astype(np.float64, copy=False)),
        end_ns=seconds_to_ns(block.end_s.astype(np.float64, copy=False)),
        thread=np.zeros(count, dtype=np.uint64) if thread is None else thread.astype(np.uint64, copy=False),
    )


def _by_rank(parts: Sequence[SegmentBatch]) -> SegmentBatch:
    """The segments of all parts by rank; within a rank in the order of the parts."""
    parts = [part for part in parts if len(part.ranks)]
    if len(parts) == 1 and (np.diff(parts[0].ranks) > 0).all():
        return parts[0]
    runs = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_RANKS}
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in SEGMENT_COLUMNS
    }
    if (np.diff(runs["ranks"]) < 0).any():
        order = np.argsort(np.repeat(runs["ranks"], runs["counts"]), kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        order = np.argsort(runs["ranks"], kind="stable")
        runs = {name: values[order] for name, values in runs.items()}
    first = np.flatnonzero(np.append(True, np.diff(runs["ranks"]) > 0))
    return SegmentBatch(
        ranks=runs["ranks"][first],
        counts=np.add.reduceat(runs["counts"], first),
        threaded=np.logical_and.reduceat(runs["threaded"], first),
        hosts=runs["hosts"][first],
        **columns,
    )
