from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.fidelity.sequences import LANE_BITS, RankSequences, SequenceCollector
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import READ, WRITE

# op, file, offset, length, lane
OPERATION = st.tuples(
    st.sampled_from([READ, WRITE]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)
)


def rows_of(operations: list[tuple[int, int, int, int, int]]) -> OperationRows:
    op, file, offset, length, lane = np.array(operations, dtype=np.int64).reshape(-1, 5).T
    zeros = np.zeros(len(op), dtype=np.int64)
    return OperationRows(
        rank=0,
        op=op.astype(np.int8),
        file_id=file.astype(np.int32),
        offset=offset,
        length=length,
        lane=lane.astype(np.int32),
        api=zeros.astype(np.int8),
        start_ns=zeros,
        end_ns=zeros,
        origin=zeros.astype(np.int8),
    )


def sequences(operations: list[tuple[int, int, int, int, int]], batch: int = 1000) -> RankSequences:
    collector = SequenceCollector()
    for begin in range(0, len(operations), batch):
        rows = rows_of(operations[begin : begin + batch])
        collector.add(rows, rows.file_id.astype(np.int64))
    return collector.sequences()


def contents(found: RankSequences) -> dict:
    return {
        "lanes": dict(zip(found.lane_key.tolist(), found.lane_print.tolist(), strict=True)),
        "files": dict(zip(found.file_key.tolist(), found.file_print.tolist(), strict=True)),
        "moves": dict(zip(found.file_key.tolist(), found.moves.tolist(), strict=True)),
    }


@given(st.lists(OPERATION, max_size=40), st.integers(1, 7))
def test_sequences_do_not_depend_on_batches(operations: list, batch: int) -> None:
    assert contents(sequences(operations, batch)) == contents(sequences(operations))


@given(st.lists(OPERATION, max_size=40))
def test_moves_are_counts_and_bytes(operations: list) -> None:
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for op, file, _, length, _ in operations:
        expected[file][op == WRITE] += 1
        expected[file][2 + (op == WRITE)] += length
    assert contents(sequences(operations))["moves"] == expected


@given(st.lists(OPERATION, max_size=12), st.lists(OPERATION, max_size=12))
def test_fingerprints_are_equal_exactly_where_sequences_are(one: list, other: list) -> None:
    def by(operations: list, key: int) -> dict[int, list]:
        found = defaultdict(list)
        for op, file, offset, length, lane in operations:
            found[file << LANE_BITS | lane if key else file].append((op, offset, length))
        return found

    for key, name in ((0, "files"), (1, "lanes")):
        here, there = contents(sequences(one))[name], contents(sequences(other))[name]
        mine, theirs = by(one, key), by(other, key)
        assert here.keys() == mine.keys()
        for common in mine.keys() & theirs.keys():
            assert (here[common] == there[common]) == (mine[common] == theirs[common])


def test_every_field_of_an_operation_shows() -> None:
    base = (READ, 0, 4096, 100, 0)
    variants = [
        base,
        (WRITE, 0, 4096, 100, 0),
        (READ, 0, 4097, 100, 0),
        (READ, 0, 4096, 101, 0),
        (READ, 0, 100, 4096, 0),
    ]
    assert len({str(contents(sequences([each]))["lanes"]) for each in variants}) == len(variants)


def test_nothing_has_no_sequences() -> None:
    assert contents(sequences([])) == {"lanes": {}, "files": {}, "moves": {}}
