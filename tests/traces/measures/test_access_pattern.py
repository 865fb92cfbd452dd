from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.measures.access_pattern import AccessCounts, AccessPattern
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS

OPERATION = st.tuples(
    st.sampled_from(OPS), st.integers(0, 3), st.integers(-1, 12), st.integers(0, 4), st.sampled_from([0, 0, 0, 1])
)


def rows_of(operations: list[tuple[str, int, int, int]], rank: int = 0) -> OperationRows:
    column = list(zip(*operations, strict=True)) if operations else [(), (), (), ()]
    zeros = np.zeros(len(operations), dtype=np.int64)
    return OperationRows(
        rank=rank,
        op=np.array([OPS.index(op) for op in column[0]], dtype=np.int8),
        file_id=np.array(column[1], dtype=np.int32),
        offset=np.array(column[2], dtype=np.int64),
        length=np.array(column[3], dtype=np.int64),
        api=zeros.astype(np.int8),
        start_ns=zeros,
        end_ns=zeros,
        origin=zeros.astype(np.int8),
    )


def counted_one_by_one(operations: list[tuple[str, int, int, int, int]]) -> AccessCounts:
    """Darshan's macros, one operation after another."""
    last: dict[tuple[int, int, str], int] = defaultdict(int)
    accesses = sequential = consecutive = 0
    for op, file, offset, length, rank in operations:
        if op in ("open", "close"):
            last[rank, file, "read"] = last[rank, file, "write"] = 0
        elif op in ("read", "write") and offset >= 0:
            before = last[rank, file, op]
            accesses += 1
            sequential += offset > before
            consecutive += offset == before + 1
            last[rank, file, op] = offset + length - 1
    return AccessCounts(accesses=accesses, sequential=sequential, consecutive=consecutive)


@given(st.lists(OPERATION, max_size=60), st.integers(1, 9))
def test_counts_are_darshans_whatever_the_batches(operations: list[tuple[str, int, int, int, int]], size: int) -> None:
    ordered = sorted(operations, key=lambda operation: operation[4])
    pattern = AccessPattern(files=4)
    for rank in (0, 1):
        mine = [operation[:4] for operation in ordered if operation[4] == rank]
        for begin in range(0, len(mine), size):
            pattern.add(rows_of(mine[begin : begin + size], rank))
    assert pattern.counts == counted_one_by_one(ordered)
