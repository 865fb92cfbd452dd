"""Operations of a rank for the tests of the transformations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dxt_replay.replay.transform.rank_work import NOTHING, RankWork
from dxt_replay.replay.transform.read_data import RequestCost
from dxt_replay.traces.schema import APIS, OPS, READ, TRACED

COST = RequestCost(latency_ns=1_000.0, ns_per_byte=1.0, requests=10)
"""A microsecond, and a gigabyte in a second."""


def work(reads: Sequence[tuple[int, int, int, int]], *, feeds: Sequence[int] = (), op: int = READ) -> RankWork:
    """Reads as (lane, file, offset, length) that last as `COST` says, with think times of 100 ns."""
    lane, file_id, offset, length = (np.array(column, dtype=np.int64) for column in zip(*reads, strict=True))
    n = len(lane)
    codes = np.full(n, op, dtype=np.int8)
    return RankWork(
        lane=lane.astype(np.int32),
        op=codes,
        api=np.full(n, APIS.index("POSIX"), dtype=np.int8),
        file_id=file_id.astype(np.int32),
        offset=offset,
        length=length,
        origin=np.full(n, TRACED, dtype=np.int8),
        start_ns=np.arange(n) * 10_000,
        duration_ns=1_000 + length,
        think_ns=np.full(n, 100),
        feeds=np.array(feeds, dtype=np.int64) if len(feeds) else np.full(n, NOTHING),
        follows=np.full(n, NOTHING),
        made=np.full(n, NOTHING),
        blocks=np.full(n, NOTHING),
        busy_ns=np.zeros(n, dtype=np.int64),
        held=np.zeros(n, dtype=bool),
    )


def stream(size: int, request: int, *, lane: int = 0, file_id: int = 0) -> list[tuple[int, int, int, int]]:
    """A file of `size` bytes, read from its begin to its end in requests of one size, and a read that meets the end."""
    reads = [(lane, file_id, begin, min(request, size - begin)) for begin in range(0, size, request)]
    return [*reads, (lane, file_id, size, 0)]


def requests(found: RankWork) -> list[tuple[int, int, int, int]]:
    """The operations as `work` takes them."""
    columns = (found.lane, found.file_id, found.offset, found.length)
    return list(zip(*(column.tolist() for column in columns), strict=True))


OPEN = OPS.index("open")
