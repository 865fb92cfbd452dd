"""The DXT segments of a log, gathered rank by rank: many small ranks at once, a large one by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from profiler_merge.darshan.dxt import DXT_MODULES, DxtBlock, read_dxt
from profiler_merge.darshan.job import text
from profiler_merge.darshan.log import DarshanLog
from traces.errors import LogError
from traces.schema import APIS
from traces.units import seconds_to_ns

_COLUMNS = ("record_id", "api", "is_write", "offset", "length", "start_ns", "end_ns")
_API_OF_MODULE = {"DXT_POSIX": APIS.index("POSIX"), "DXT_MPIIO": APIS.index("MPIIO")}

_GATHERED_SEGMENTS = 1 << 18
"""Segments of a batch, or a few more, where those of all ranks are in memory anyway."""


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
        """int64 (n,): the place of each segment's rank in `ranks`."""
        return np.repeat(np.arange(len(self.ranks)), self.counts)

    @property
    def knows_threads(self) -> bool:
        """Whether the thread of every segment is known."""
        return bool(self.threaded[self.counts > 0].all())

    def of_ranks(self, first: int, last: int) -> SegmentBatch:
        """The ranks at the places first to last - 1, without a copy."""
        rows = slice(int(self.counts[:first].sum()), int(self.counts[:last].sum()))
        of_ranks = {name: getattr(self, name)[first:last] for name in _OF_RANKS}
        return SegmentBatch(**of_ranks, **{name: getattr(self, name)[rows] for name in _OF_SEGMENTS})

    def select(self, mask: np.ndarray) -> SegmentBatch:
        """The segments where `mask` (bool, one per segment) holds; all ranks."""
        counts = np.bincount(self.place[mask], minlength=len(self.ranks))
        return replace(self, counts=counts, **{name: getattr(self, name)[mask] for name in _OF_SEGMENTS})

    def reordered(self, order: np.ndarray) -> SegmentBatch:
        """The segments in another order within each rank."""
        return replace(self, **{name: getattr(self, name)[order] for name in _OF_SEGMENTS})

    def among(self, ranks: np.ndarray) -> SegmentBatch:
        """The same segments, among `ranks` (ascending) that include all those with segments."""
        mine = self.counts > 0
        places = np.searchsorted(ranks, self.ranks[mine])
        none = no_segments(ranks)
        for name in ("counts", "threaded", "hosts"):
            getattr(none, name)[places] = getattr(self, name)[mine]
        return replace(self, ranks=ranks, counts=none.counts, threaded=none.threaded, hosts=none.hosts)

    def of_rank(self, place: int) -> RankSegments:
        """The segments of the rank at one place of `ranks`."""
        own = self.of_ranks(place, place + 1)
        return RankSegments(
            rank=int(own.ranks[0]),
            hostname=text(own.hosts[0].partition(b"\0")[0]),
            thread=own.thread if own.threaded[0] and len(own) else None,
            **{name: getattr(own, name) for name in _COLUMNS},
        )


_OF_RANKS = ("ranks", "counts", "threaded", "hosts")
_OF_SEGMENTS = (*_COLUMNS, "thread")


class RanksInterleavedError(LogError):
    """The log's records are not in the order of the ranks: no rank is complete before all records are read."""


def no_segments(ranks: np.ndarray) -> SegmentBatch:
    """Ranks (int64, ascending) without traced operations."""
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


def read_rank_segments(log: DarshanLog, *, gather: bool = False) -> Iterator[RankSegments]:
    """Segments of both DXT modules, one rank after the other, ascending; ranks without segments are left out.

    Memory and errors: as `read_segment_batches`.
    """
    for batch in read_segment_batches(log, gather=gather):
        for place in range(len(batch.ranks)):
            yield batch.of_rank(place)


def read_segment_batches(log: DarshanLog, *, gather: bool = False) -> Iterator[SegmentBatch]:
    """Segments of both DXT modules, some 8 MiB of ranks at a time, ascending; ranks without segments are left out.

    Memory: some 8 MiB of segments, or those of one rank where it has more, because each rank appends its own stream to
    the log; with `gather` those of all ranks.
    Raises: LogError when the log is damaged; RanksInterleavedError, which `gather` avoids.
    """
    read = _gathered if gather else _whole_ranks
    streams = [read(log, module) for module in DXT_MODULES if module in log.modules]
    heads = [next(stream, None) for stream in streams]
    while waiting := [head for head in heads if head is not None]:
        # A rank is whole in each stream when another one follows it there, and all streams have come so far.
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
        yield _by_rank(parts)


def _whole_ranks(log: DarshanLog, module: str) -> Iterator[SegmentBatch]:
    """One module's segments as batches of whole ranks, ascending. Raises: RanksInterleavedError."""
    waiting: list[SegmentBatch] = []
    for batch in _batches(log, module):
        if (np.diff(batch.ranks) < 0).any() or (waiting and batch.ranks[0] < waiting[0].ranks[0]):
            raise RanksInterleavedError(f"{log.path}: {module} records are not in the order of the ranks")
        # The last rank may go on in the next block.
        whole = len(batch.ranks) - 1
        if whole or (waiting and waiting[0].ranks[0] < batch.ranks[0]):
            yield _by_rank([*waiting, batch.of_ranks(0, whole)])
            waiting = []
        waiting.append(batch.of_ranks(whole, whole + 1))
    if waiting:
        yield _by_rank(waiting)


def _gathered(log: DarshanLog, module: str) -> Iterator[SegmentBatch]:
    """One module's segments as batches of whole ranks, ascending, whatever their order in the log."""
    parts = list(_batches(log, module))
    if not parts:
        return
    batch = _by_rank(parts)
    number = np.cumsum(batch.counts) // _GATHERED_SEGMENTS
    cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]
    for first, last in pairwise(cuts):
        yield batch.of_ranks(first, last)


def _batches(log: DarshanLog, module: str) -> Iterator[SegmentBatch]:
    """The segments of each block of a module, a row of `ranks` for each run of segments of one rank."""
    for block in read_dxt(log, module):
        if len(block.record):
            yield _batch(block, _API_OF_MODULE[module])


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
    """The segments of all parts by rank, in the order of the parts where these share a rank."""
    parts = [part for part in parts if len(part.ranks)]
    if len(parts) == 1 and (np.diff(parts[0].ranks) > 0).all():
        return parts[0]
    runs = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_RANKS}
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_SEGMENTS}
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
