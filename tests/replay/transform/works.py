"""Operations of a rank for the tests of the transformations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.training_loop import ENTRY, FETCH, TrainingLoop
from dxt_replay.replay.transform.rank_work import NOTHING, RankLoop, RankWork
from dxt_replay.replay.transform.read_data import RequestCost
from dxt_replay.traces.schema import APIS, OPS, READ, TRACED
from dxt_replay.traces.store.reader import Capture

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
        other_file_id=np.full(n, NOTHING),
        open_flags=np.full(n, -1, dtype=np.int16),
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


def loop_of(*kinds: int) -> RankLoop:
    """A loop of these events, each of which lasts half a microsecond, without steps."""
    begin_ns = 1_000 * np.arange(1 + len(kinds))
    none = np.empty(0, dtype=np.int64)
    loop = TrainingLoop(
        kind=np.array([ENTRY, *kinds], dtype=np.int8),
        begin_ns=begin_ns,
        end_ns=begin_ns + 500,
        loader=np.zeros(len(begin_ns), dtype=np.int8),
        step_number=none,
        step_begin_ns=none,
        step_end_ns=none,
        exit_ns=int(begin_ns[-1]) + 500,
        input_waits=True,
        made_begin_ns=none,
        made_end_ns=none,
    )
    return RankLoop(loop=loop, residual_ns=0 * begin_ns, ready_ns=np.zeros(kinds.count(FETCH), dtype=np.int64))


def broken_rules(capture: Capture) -> list[str]:
    """The rules for `feeds` and `follows` in docs/capture-format.md that a capture with known dependencies breaks."""
    found = []
    for rank in capture.ranks:
        table = pa.Table.from_batches(list(capture.operations(rank)))
        lane, feeds = table["lane"].to_numpy(), table["feeds"].fill_null(NOTHING).to_numpy()
        after_end = table["follows_end"].fill_null(False).to_numpy()
        moment = 2 * table["follows"].fill_null(NOTHING).to_numpy() + after_end
        for each in np.unique(lane).tolist():
            fed = (lane == each) & (feeds != NOTHING)
            if (np.diff(feeds[fed]) < 0).any():
                found.append(f"rank {rank}: feeds falls in lane {each}")
        if ((feeds != NOTHING) & (moment > 2 * feeds)).any():
            found.append(f"rank {rank}: an operation follows the end of the fetch that it feeds, or a later one")
    return found


OPEN = OPS.index("open")
