"""What one pass over both captures measures, against models in plain Python, whatever the batches and the processes."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.exactness import LANE_BITS, Sequences, Work, inversions
from dxt_replay.replay.compare.measures import (
    BIN_NS,
    NOT_GIVEN,
    Curves,
    LaneStarts,
    first_start_ns,
    matched_starts,
    replayed_rows,
)
from dxt_replay.replay.compare.timing import drift, relative_difference_pct, step_error
from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import Op, Span, build_capture, read, spans_table, write
from tests.examples import examples
from tests.workers_equality import OPERATIONS, SPANS, plain

S = 1_000_000_000
FILES = ["/a", "/b.h5", "/c", "/d"]


def rows_of(rank: int = 0, **columns: Any) -> OperationRows:
    """Rows with these columns, and 0 in the others."""
    zeros = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
    names = ("op", "api", "file_id", "offset", "length", "lane", "start_ns", "end_ns", "origin")
    return OperationRows(rank=rank, **{**dict.fromkeys(names, zeros), **columns})


def test_reads_and_writes_with_what_they_returned(tmp_path: Path) -> None:
    ops = [
        Op("open", 0, start_ns=0),
        read(0, length=8, start_ns=1, due_ns=1, result=8),
        read(0, length=8, start_ns=2, due_ns=1, result=5),
        write(0, length=8, start_ns=3, due_ns=2, result=-28),
        write(0, length=8, start_ns=4),
    ]
    capture = build_capture(tmp_path, files=["/a"], ops=ops)
    (part,) = replayed_rows(capture, choose_layers(capture), [0])
    assert part.rows.length.tolist() == [8, 5, 0, 8]
    assert part.failed.tolist() == [False, False, True, False]
    assert part.due_ns.tolist() == [1, 1, 2, NOT_GIVEN]
    assert (len(part.others), part.others_failed.tolist()) == (1, [False])


def test_first_start_is_that_of_a_read_or_write_of_any_rank(tmp_path: Path) -> None:
    ops = [Op("open", 0, start_ns=-50), read(0, start_ns=7), write(0, rank=2, start_ns=-3), Op("close", 0, start_ns=99)]
    assert first_start_ns(build_capture(tmp_path, files=["/a"], ops=ops)) == -3
    assert first_start_ns(build_capture(tmp_path, name="empty")) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5 * BIN_NS), st.integers(0, 3 * BIN_NS), st.integers(0, 10_000)), max_size=15),
    st.integers(1, 6),
    st.integers(-BIN_NS, BIN_NS),
)
def test_curves_are_the_overlap_of_each_operation_with_each_bin(
    operations: list[tuple[int, int, int]], batch: int, origin: int
) -> None:
    found, later = Curves(origin), Curves(origin)
    for place in range(0, len(operations), batch):
        start, duration, length = np.array(operations[place : place + batch], dtype=np.int64).T
        (later if place % 2 else found).add(
            rows_of(start_ns=start + origin, end_ns=start + duration + origin, length=length)
        )
    found.merge(later)
    bins = len(found.in_flight())
    in_flight, moved = np.zeros(bins), np.zeros(bins)
    for start_ns, duration_ns, size in operations:
        for place in range(bins):
            inside = max(0, min(start_ns + duration_ns, (place + 1) * BIN_NS) - max(start_ns, place * BIN_NS))
            in_flight[place] += inside / BIN_NS
            moved[place] += size * inside / max(duration_ns, 1)
        if not duration_ns:
            moved[start_ns // BIN_NS] += size
    np.testing.assert_allclose(found.in_flight(), in_flight, atol=1e-6)
    np.testing.assert_allclose(found.bytes_per_bin(), moved, atol=1e-3)


def test_difference_of_curves_in_per_cent_of_the_source() -> None:
    for source, replay, expected in (([2, 2], [2, 2], 0), ([4], [3, 2], 75), ([0], [3], None), ([], [], None)):
        assert relative_difference_pct(np.array(source, dtype=float), np.array(replay, dtype=float)) == expected


EVENTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 1000)), min_size=1, max_size=60)


def starts_of(events: list[tuple[int, int, int]], batch: int = 100, stride: int = 1) -> LaneStarts:
    """From (rank, lane, start), in any order. `batch`: rows of a rank at a time; 0 for all ranks at once."""
    found = LaneStarts(stride)
    ordered = sorted((rank, start, lane) for rank, lane, start in events)
    for rank, mine in groupby(ordered, key=lambda event: event[0] if batch else 0):
        rows = list(mine)
        for begin in range(0, len(rows), batch or len(rows)):
            ranks, start, lane = np.array(rows[begin : begin + (batch or len(rows))], dtype=np.int64).T
            found.add(rows_of(rank, lane=lane, start_ns=start, **({} if batch else {"ranks": ranks})))
    return found


def by_lane(events: list[tuple[int, int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for rank, lane, start in sorted(events, key=lambda event: event[2]):
        found[rank << 32 | lane].append(start)
    return found


@given(EVENTS, st.integers(0, 9), st.integers(1, 5))
def test_gaps_and_samples_are_those_of_each_lane(events: list[tuple[int, int, int]], batch: int, stride: int) -> None:
    expected = by_lane(events)
    gaps = starts_of(events, batch).gaps.distribution()
    assert np.repeat(gaps.values, gaps.counts).tolist() == sorted(
        gap for starts in expected.values() for gap in np.diff(starts).tolist()
    )
    parts = [starts_of([event for event in events if event[0] == rank], 0, stride) for rank in (0, 1)]
    parts[0].merge(pickle.loads(pickle.dumps(parts[1])))
    for found in (starts_of(events, batch, stride), parts[0]):
        assert dict(found.operations().T.tolist()) == {lane: len(starts) for lane, starts in expected.items()}
        samples = [(lane, start) for lane, starts in sorted(expected.items()) for start in starts[::stride]]
        assert found.samples().T.tolist() == list(map(list, samples))


@given(EVENTS, st.integers(1, 5))
def test_matched_starts_are_of_the_same_operations(events: list[tuple[int, int, int]], stride: int) -> None:
    shifted = [(rank, lane, start + 5000) for rank, lane, start in events]
    recorded, replayed = matched_starts(starts_of(events, stride=stride), starts_of(shifted, stride=stride))
    assert len(recorded) >= len(by_lane(events))
    assert (replayed - recorded == 5000).all()
    found = matched_starts(starts_of([(0, 0, 1), (0, 0, 2), (0, 1, 3)]), starts_of([(0, 0, 1), (0, 1, 4)]))
    assert [side.tolist() for side in found] == [[3], [4]], "lanes with other numbers of operations are left out"


# op, file, offset, length, lane
OPERATION = st.tuples(
    st.sampled_from([READ, WRITE]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)
)


def sequences(operations: list[tuple[int, int, int, int, int]], batch: int = 1000) -> Sequences:
    work = Work()
    for begin in range(0, len(operations), batch):
        columns = np.array(operations[begin : begin + batch], dtype=np.int64).T
        rows = rows_of(**dict(zip(("op", "file_id", "offset", "length", "lane"), columns, strict=True)))
        work.add(rows, rows.file_id)
    return work.sequences()


@given(st.lists(OPERATION, max_size=40), st.integers(1, 50))
def test_moves_are_counts_and_bytes_whatever_the_batches(operations: list, batch: int) -> None:
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for op, file, _, length, _ in operations:
        expected[file][op == WRITE] += 1
        expected[file][2 + (op == WRITE)] += length
    found, whole = sequences(operations, batch), sequences(operations)
    assert dict(zip(found.file_key.tolist(), found.moves.tolist(), strict=True)) == expected
    assert all((one == other).all() for one, other in zip(found, whole, strict=True))


@given(st.lists(OPERATION, max_size=12), st.lists(OPERATION, max_size=12))
def test_fingerprints_are_equal_exactly_where_sequences_are(one: list, other: list) -> None:
    def by(operations: list, lanes: bool) -> dict[int, list]:
        found = defaultdict(list)
        for op, file, offset, length, lane in operations:
            found[file << LANE_BITS | lane if lanes else file].append((op, offset, length))
        return found

    for lanes, keys, prints in ((False, "file_key", "file_print"), (True, "lane_key", "lane_print")):
        here, there = (
            dict(zip(getattr(found, keys).tolist(), getattr(found, prints).tolist(), strict=True))
            for found in (sequences(one), sequences(other))
        )
        mine, theirs = by(one, lanes), by(other, lanes)
        assert here.keys() == mine.keys()
        for common in mine.keys() & theirs.keys():
            assert (here[common] == there[common]) == (mine[common] == theirs[common])


def side(*operations: tuple[int, int, int]) -> np.ndarray:
    """Rows of (file, lane, start), sorted by start."""
    return np.array(sorted(operations, key=lambda operation: operation[2]), dtype=np.int64).reshape(-1, 3).T


def test_neighbours_of_different_lanes_that_change_places_are_counted() -> None:
    source = side((0, 0, 10), (0, 1, 20), (0, 0, 30), (0, 1, 40), (7, 0, 5), (7, 1, 50))
    replay = side((0, 0, 10), (0, 1, 35), (0, 0, 30), (0, 1, 40), (7, 0, 5), (7, 1, 50))
    assert inversions(source, replay) == (1, 4)
    few = side((0, 0, 20), (0, 1, 10))
    assert inversions(side((0, 0, 10), (0, 1, 20), (0, 2, 30)), few) == (1, 1), "of what both have"


def pair(folder: Path, ops: list[Op], changes: list[int]) -> tuple[Capture, Capture]:
    """A capture and a replay of it, in which some operations are another kind, or missing."""
    source = build_capture(folder, files=FILES, ops=ops, spans=SPANS, ranks=range(5), name="source")
    replayed = [
        replace(op, op="read" if change == 1 else op.op, due_ns=op.start_ns, start_ns=op.start_ns + 4096 * change)
        for op, change in zip(ops, changes, strict=False)
        if change != 2
    ]
    return source, build_capture(folder, files=FILES, ops=replayed, ranks=range(5), name="replay", replay_of=source)


@settings(max_examples=examples(8), phases=[Phase.generate])
@given(ops=OPERATIONS, changes=st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], changes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        source, replay = pair(Path(folder), ops, changes)
        done: list[int] = []
        found = compare(source, replay, on_rows=done.append, workers=Workers(1, piece_operations=1)).as_json()
        whole = compare(source, replay, workers=ALONE).as_json()
        # the curves are sums of fractions, whose last digits follow the order
        for name, value in whole.pop("curves").items():
            assert found["curves"][name] == (None if value is None else pytest.approx(value))
        del found["curves"]
        assert plain(found) == plain(whole)
        assert sum(done) == source.operation_count() + replay.operation_count()


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path: Path) -> None:
    ops = [
        Op("read", number % 4, offset=4096 * number, length=4000 + number, start_ns=977 * number, rank=number % 5)
        for number in range(500)
    ]
    source, replay = pair(tmp_path, ops, [0, 3, 0, 1, 0] * 100)
    found = plain(compare(source, replay, workers=Workers(1, piece_operations=1)))
    with Workers(2, piece_operations=1) as workers:
        assert plain(compare(source, replay, workers=workers)) == found


START = np.sort(np.random.default_rng(0).integers(0, 100 * S, 5000))


@given(st.floats(-5000, 5000), st.integers(-(10**9), 10**9), st.sampled_from([1, 4]))
def test_a_clock_that_runs_wrong_is_measured(ppm: float, offset: int, speed: int) -> None:
    found = drift(START, np.rint(START / speed * (1 + ppm * 1e-6)).astype(np.int64) + offset, speed)
    assert found is not None
    slope, low, high = found
    assert slope == pytest.approx(ppm, abs=0.1)
    assert low <= slope <= high


def test_drift_is_told_from_operations_that_were_late() -> None:
    rng = np.random.default_rng(1)
    late = rng.exponential(20_000, len(START)) + np.where(rng.random(len(START)) < 0.1, 50_000_000, 0)
    found = drift(START, START + late.astype(np.int64))
    assert found is not None
    assert found[1] < 0 < found[2]
    assert abs(found[0]) < 1
    drifting = drift(START, np.rint(START * (1 + 30e-6) + rng.exponential(50_000, len(START))).astype(np.int64))
    assert drifting is not None
    assert drifting[0] == pytest.approx(30, abs=2)
    assert drifting[1] > 20
    for few in ([], [5], [7, 7, 7], [0, 1, 10**9]):
        assert drift(np.array(few, dtype=np.int64), np.array(few, dtype=np.int64)) is None


def steps(durations: list[int], *, numbered: bool = True, first: int = 0) -> Any:
    starts = np.cumsum([0, *durations]).tolist()
    names = (first + place if numbered else 7 for place in range(len(durations)))
    spans = zip(starts, durations, names, strict=False)
    return spans_table(
        [Span("step", start_ns=start, end_ns=start + length, step=name) for start, length, name in spans]
    )


def test_steps_are_matched_by_number_or_place() -> None:
    for numbered in (True, False):
        recorded, replayed = (steps(times, numbered=numbered) for times in ([100, 200, 400], [110, 200, 300]))
        found = step_error(recorded, replayed)
        assert found is not None
        assert (found.p50, found.max, found.steps) == (pytest.approx(10), pytest.approx(25), 3)
    one = step_error(steps([100, 200]), steps([200, 100], first=1))
    fast = step_error(steps([100, 200]), steps([50, 100]), speed=2)
    assert one is not None
    assert fast is not None
    assert (one.max, one.steps, fast.max) == (0, 1, 0)
    assert step_error(steps([100]), spans_table([])) is None
