"""Operations of a rank for the tests of the transformations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.loop import ENTRY, NO_MOMENT, TrainingLoop
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.transform.requests import RequestCost
from dxt_replay.traces.schema import APIS, READ, TRACED

COST = RequestCost(latency_ns=1_000.0, ns_per_byte=1.0, requests=10)
"""A microsecond, and a gigabyte in a second."""

Read = tuple[int, int, int, int]
"""Lane, file, offset and length."""


def work(reads, *, need=()):
    """Reads that last as `COST` says, with think times of 100 ns."""
    lane, file_id, offset, length = (np.array(column, dtype=np.int64) for column in zip(*reads, strict=True))
    n = len(lane)
    return {
        "lane": lane.astype(np.int32),
        "op": np.full(n, READ, dtype=np.int8),
        "api": np.full(n, APIS.index("POSIX"), dtype=np.int8),
        "file_id": file_id.astype(np.int32),
        "offset": offset,
        "length": length,
        "origin": np.full(n, TRACED, dtype=np.int8),
        "start_ns": np.arange(n) * 10_000,
        "duration_ns": 1_000 + length,
        "other_file_id": np.full(n, -1),
        "open_flags": np.full(n, -1, dtype=np.int16),
        "think_ns": np.full(n, 100),
        "need": np.array(need, dtype=np.int64) if len(need) else np.full(n, NO_EVENT),
        "follows": np.full(n, NO_MOMENT),
        "busy_ns": np.zeros(n, dtype=np.int64),
        "held": np.zeros(n, dtype=bool),
    }


def stream(size, request):
    """A file of `size` bytes, read from its begin to its end in requests of one size, and a read that meets the end."""
    reads = [(0, 0, begin, min(request, size - begin)) for begin in range(0, size, request)]
    return [*reads, (0, 0, size, 0)]


def requests(found):
    """The operations as `work` takes them."""
    columns = [found[name] for name in ("lane", "file_id", "offset", "length")]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def loop_of(*kinds):
    """A loop of these events, each of which lasts half a microsecond, without steps."""
    begin_ns = 1_000 * np.arange(1 + len(kinds))
    none = np.empty(0, dtype=np.int64)
    return TrainingLoop(
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


def broken_rules(capture):
    """The rules for `feeds` and `follows` in docs/capture-format.md that a capture with known dependencies breaks."""
    found = []
    for rank in capture.ranks:
        table = pa.Table.from_batches(list(capture.operations(rank)))
        lane, feeds = table["lane"].to_numpy(), table["feeds"].fill_null(-1).to_numpy()
        after_end = table["follows_end"].fill_null(False).to_numpy()
        moment = 2 * table["follows"].fill_null(-1).to_numpy() + after_end
        for each in np.unique(lane).tolist():
            fed = (lane == each) & (feeds >= 0)
            if (np.diff(feeds[fed]) < 0).any():
                found.append(f"rank {rank}: feeds falls in lane {each}")
        if ((feeds >= 0) & (moment > 2 * feeds)).any():
            found.append(f"rank {rank}: an operation follows the end of the fetch that it feeds, or a later one")
    return found
