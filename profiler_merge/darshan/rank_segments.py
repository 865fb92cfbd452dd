"""The DXT segments of a log, gathered rank by rank: the unit that is aligned, laned, sorted and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profiler_merge.darshan.dxt import DXT_MODULES, DxtBlock, read_dxt
from profiler_merge.darshan.log import DarshanLog
from traces.errors import LogError
from traces.schema import APIS
from traces.units import seconds_to_ns

_COLUMNS = ("record_id", "api", "is_write", "offset", "length", "start_ns", "end_ns")
_API_OF_MODULE = {"DXT_POSIX": APIS.index("POSIX"), "DXT_MPIIO": APIS.index("MPIIO")}


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

    def select(self, mask: np.ndarray) -> RankSegments:
        """The segments where `mask` (bool, one per segment) holds."""
        chosen = {name: getattr(self, name)[mask] for name in _COLUMNS}
        return replace(self, thread=None if self.thread is None else self.thread[mask], **chosen)


class RanksInterleavedError(LogError):
    """The log's records are not in the order of the ranks: no rank is complete before all records are read."""


def read_rank_segments(log: DarshanLog, *, gather: bool = False) -> Iterator[RankSegments]:
    """Segments of both DXT modules, one rank after the other, ascending; ranks without segments are left out.

    Memory: one rank's segments, because each rank appends its own stream to the log; with `gather` those of all ranks.

    Raises: LogError when the log is damaged; RanksInterleavedError, which `gather` avoids.
    """
    streams = [_by_rank(log, module, gather=gather) for module in DXT_MODULES if module in log.modules]
    heads = [next(stream, None) for stream in streams]
    while waiting := [head.rank for head in heads if head is not None]:
        rank = min(waiting)
        parts = []
        for index, head in enumerate(heads):
            if head is not None and head.rank == rank:
                parts.append(head)
                heads[index] = next(streams[index], None)
        yield _concatenate(parts)


def _by_rank(log: DarshanLog, module: str, *, gather: bool) -> Iterator[RankSegments]:
    """One module's segments by rank, ascending."""
    api = _API_OF_MODULE[module]
    pending: dict[int, list[RankSegments]] = {}
    done = -1
    for block in read_dxt(log, module):
        for piece in _split(block, api):
            if piece.rank <= done:
                raise RanksInterleavedError(f"{log.path}: {module} records of rank {piece.rank} come in two places")
            if not gather and pending and piece.rank not in pending:
                done = next(iter(pending))
                yield _concatenate(pending.pop(done))
                if piece.rank < done:
                    raise RanksInterleavedError(f"{log.path}: {module} records are not in the order of the ranks")
            pending.setdefault(piece.rank, []).append(piece)
    for rank in sorted(pending):
        yield _concatenate(pending[rank])


def _split(block: DxtBlock, api: int) -> Iterator[RankSegments]:
    """The runs of one rank in a block. Segments are in the order of their records, so a run is a slice."""
    ranks, hostnames = block.ranks[block.record], block.hostnames
    cuts = np.flatnonzero(np.diff(ranks)) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(ranks)], strict=True):
        if begin == end:
            continue
        run = slice(begin, end)
        record = block.record[run]
        yield RankSegments(
            rank=int(ranks[begin]),
            hostname=hostnames[int(record[0])],
            record_id=block.record_ids[record],
            api=np.full(end - begin, api, dtype=np.int8),
            is_write=block.is_write[run],
            offset=block.offset[run].astype(np.int64),
            length=block.length[run].astype(np.int64),
            start_ns=seconds_to_ns(block.start_s[run].astype(np.float64)),
            end_ns=seconds_to_ns(block.end_s[run].astype(np.float64)),
            thread=None if block.pthread_id is None else block.pthread_id[run].astype(np.uint64),
        )


def _concatenate(parts: list[RankSegments]) -> RankSegments:
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    threads = [part.thread for part in parts if part.thread is not None]
    return replace(parts[0], thread=np.concatenate(threads) if len(threads) == len(parts) else None, **columns)
