"""What everybody measures with: intervals, distributions, access patterns and rows, held against plain loops."""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures import _passes
from dxt_replay.traces.measures import operation_rows as operation_rows_home
from dxt_replay.traces.measures._passes import add_at, in_flight, rates
from dxt_replay.traces.measures.access_pattern import AccessCounts, AccessPattern
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.intervals import BoundedUnion, Intervals, StreamingUnion, group_unions
from dxt_replay.traces.measures.operation_rows import (
    ROW_COLUMNS,
    OperationRows,
    operation_rows,
    read_ahead,
    rows_together,
)
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.store.checks import read_info
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import OpsWriter, write_capture_info
from tests.capture_builder import build_capture, ops_table, read

TIMES = st.integers(-40, 40)
PAIRS = st.lists(st.tuples(TIMES, TIMES), max_size=25)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    """The unit intervals [t, t + 1) that the pairs cover: the definition, by counting."""
    return {t for start, end in pairs for t in range(start, end)}


def covered(intervals: Intervals) -> set[int]:
    return instants(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


def assert_canonical(intervals: Intervals) -> None:
    assert (intervals.ends > intervals.starts).all()
    assert (intervals.starts[1:] > intervals.ends[:-1]).all()


@given(PAIRS, PAIRS)
def test_set_operations_are_those_of_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = Intervals.union_of(*columns(one)), Intervals.union_of(*columns(other))
    for result, expected in (
        (a.union(b), instants(one) | instants(other)),
        (a.minus(b), instants(one) - instants(other)),
    ):
        assert_canonical(result)
        assert covered(result) == expected


@given(PAIRS, PAIRS)
def test_covered_within_is_the_length_of_each_intersection(
    pairs: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    windows = [(min(window), max(window)) for window in windows]
    found = Intervals.union_of(*columns(pairs)).covered_within(*columns(windows))
    assert found.tolist() == [len(instants(pairs) & instants([window])) for window in windows]


@given(st.lists(st.tuples(TIMES, st.integers(0, 30)), max_size=40), st.integers(1, 7))
def test_streaming_union_does_not_depend_on_batches(pairs: list[tuple[int, int]], batch: int) -> None:
    ordered = sorted((start, start + length) for start, length in pairs)
    union = StreamingUnion()
    pieces: list[tuple[int, int]] = []
    for begin in range(0, len(ordered), batch):
        starts, ends = union.add(*columns(ordered[begin : begin + batch]))
        pieces += zip(starts.tolist(), ends.tolist(), strict=True)
    assert union.length_ns == len(instants(ordered))
    assert instants(pieces) == instants(ordered)
    assert sum(end - start for start, end in pieces) == union.length_ns, "pieces overlap"
    assert pieces == sorted(pieces)


@given(st.lists(PAIRS, max_size=8), st.integers(2, 5) | st.just(1000))
def test_bounded_union_closes_short_gaps_and_says_how_much(parts: list[list[tuple[int, int]]], limit: int) -> None:
    union = BoundedUnion(limit=limit)
    for part in parts:
        union.add(*columns(part))
    everything = instants([pair for part in parts for pair in part])
    found = union.intervals()
    assert_canonical(found)
    assert len(found) <= limit
    assert covered(found) >= everything
    assert found.length_ns - len(everything) <= union.closed_ns * (limit < 1000)


@pytest.mark.parametrize(("limit", "kept", "closed_ns"), [(6, [0, 11, 26, 37, 54, 65], 0), (4, [0, 26, 54], 3)])
def test_a_bounded_union_keeps_its_longest_gaps(limit: int, kept: list[int], closed_ns: int) -> None:
    union, starts = BoundedUnion(limit=limit), np.array([0, 11, 26, 37, 54, 65])  # gaps of 1, 5, 1, 7 and 1
    union.add(starts, starts + 10)
    assert (union.intervals().starts.tolist(), union.closed_ns) == (kept, closed_ns)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 9)), max_size=30), st.booleans())
def test_unions_of_groups_are_those_of_each_group(events: list[tuple[int, int, int]], far: bool) -> None:
    """`far`: times so far apart that those of two groups do not fit into 64 bits one after the other."""
    rows = sorted({(group, start, start + length) for group, start, length in events})
    rows += [(4, 1 << 61, (1 << 61) + 1)] if far else []
    group, starts, ends = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    union, found = group_unions(starts, ends, group)
    for number in set(group.tolist()):
        expected = Intervals.union_of(starts[group == number], ends[group == number])
        assert union.starts[found == number].tolist() == expected.starts.tolist()
        assert union.ends[found == number].tolist() == expected.ends.tolist()
    assert len(found) == len(union)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=30), st.integers(0, 29))
def test_in_flight_counts_the_intervals_that_hold_a_start(pairs: list[tuple[int, int]], earlier: int) -> None:
    pairs = sorted(pairs)
    earlier = min(earlier, len(pairs) - 1)
    starts = np.array([start for start, _ in pairs], dtype=np.int64)[earlier:]
    ends = np.array([start + length for start, length in pairs], dtype=np.int64)
    _, before = in_flight(np.zeros(0, dtype=np.int64), np.array([s for s, _ in pairs[:earlier]]), ends[:earlier])
    counts, open_ends = in_flight(before, starts, ends[earlier:])
    for place, start in enumerate(starts.tolist()):
        begun = pairs[: earlier + place + 1]
        assert counts[place] == sum(begin + length > start for begin, length in begun)
    assert sorted(open_ends.tolist()) == sorted(end for end in ends.tolist() if end > starts[-1])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1 << 56)), max_size=50), st.integers(61, 100_000))
def test_add_at_is_exact(pairs: list[tuple[int, int]], size: int) -> None:
    totals = np.zeros(size, dtype=np.int64)
    places = np.array([place for place, _ in pairs], dtype=np.int64)
    add_at(totals, places, np.array([amount for _, amount in pairs], dtype=np.int64))
    expected = [0] * 61
    for place, amount in pairs:
        expected[place] += amount
    assert totals[:61].tolist() == expected


ONE, TWO = (np.zeros(count, dtype=np.int64) for count in (1, 2))
COUNTS, ORDER, LAST = (np.zeros(shape, dtype=np.int64) for shape in ((2, 12), (4, _passes.ORDER_STATE), (4, 3)))
COUNTED = (COUNTS, ORDER, ONE, ONE, ONE, ONE, ONE, TWO)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        *(("add_at", (TWO, ONE + place, ONE), IndexError) for place in (-1, 2)),
        *(("count_accesses", (COUNTS, ORDER, ONE, ONE + file, ONE, ONE, ONE, TWO), IndexError) for file in (-1, 2)),
        *(("follow_last_bytes", (LAST, ONE, ONE, ONE + file, ONE, ONE), IndexError) for file in (-1, 2)),
        ("joined", (TWO, ONE), ValueError), ("covered_before", (TWO, ONE, ONE), ValueError),
        ("newly_covered", (TWO, ONE, 0), ValueError), ("add_at", (TWO, TWO, ONE), ValueError),
        *(("count_accesses", (*COUNTED[:place], value, *COUNTED[place + 1 :]), ValueError) for place, value in (
            (3, TWO), (5, TWO), (6, TWO), (7, ONE), (1, ORDER[:2]), (0, COUNTS[:, :11].copy()))),
    ],
)  # fmt: skip
def test_no_place_outside_is_written_and_columns_of_unequal_length_are_refused(
    name: str, arguments: tuple[np.ndarray, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="equal length" if error is ValueError else None):
        getattr(_passes, name)(*arguments)
    assert not COUNTS.any()


def test_rates_are_of_rows_with_a_length_and_a_duration() -> None:
    found, unmeasured = rates(np.array([6, 0, 5, 7]), np.array([3, 1, 0, 2]), 10.0)
    assert (found.tolist(), unmeasured) == ([20.0, 35.0], 1)


WHOLE = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=60)
FINITE = st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=60)
RELATIVE_PRECISION = 1.001 * 2.0**-13


@given(WHOLE | FINITE, st.floats(0, 1))
def test_exact_distribution_agrees_with_numpy(sample: list[float], share: float) -> None:
    values = np.array(sample)
    found = Distribution.of(values)
    assert found.exact
    assert (found.count, found.minimum, found.maximum) == (len(sample), values.min(), values.max())
    assert found.median == np.median(values.astype(float))
    assert found.mean == pytest.approx(values.astype(float).mean(), rel=1e-12, abs=1e-6)
    assert found.quantile(share) == pytest.approx(np.quantile(values.astype(float), share), rel=1e-9, abs=1e-6)


@given(FINITE, FINITE)
def test_distances_equal_those_of_scipy(one: list[float], other: list[float]) -> None:
    a, b = np.array(one), np.array(other)
    here, there = Distribution.of(a), Distribution.of(b)
    assert here.ks(there) == pytest.approx(stats.ks_2samp(a, b, method="asymp").statistic, abs=1e-12)
    assert here.wasserstein(there) == pytest.approx(stats.wasserstein_distance(a, b), rel=1e-9, abs=1e-6)


def test_an_empty_distribution_has_no_numbers() -> None:
    empty, one = Distribution.of(np.empty(0)), Distribution.of(np.array([1]))
    assert empty.count == 0
    assert math.isnan(empty.mean)
    assert math.isnan(empty.median)
    assert math.isnan(empty.quantile(0.5))
    assert (empty.ks(empty), empty.ks(one), one.ks(empty)) == (0, 1, 1)
    assert empty.wasserstein(empty) == 0
    assert math.isnan(empty.wasserstein(one))
    assert (empty + one).count == (one + empty).count == 1
    assert Distribution.of(np.array([-3.25, 0.0, 7.5])).plus(empty, limit=1).values.tolist() == [-3.25, 0.0, 7.5]


@given(st.lists(st.floats(1e-6, 1e12), min_size=30, max_size=80), st.integers(1, 20))
def test_beyond_the_limit_values_are_rounded_to_the_documented_precision(sample: list[float], limit: int) -> None:
    collector = DistributionCollector(limit=limit)
    for part in np.array_split(np.array(sample), 3):
        collector.add(part)
        collector.distribution()
    found = collector.distribution()
    if len(set(sample)) <= limit:
        assert found.exact
        return
    assert not found.exact
    assert (found.minimum, found.maximum) == (min(sample), max(sample))
    assert found.count == len(sample)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert found.quantile(share) == pytest.approx(np.quantile(sample, share), rel=RELATIVE_PRECISION)
    assert found.median == pytest.approx(np.median(sample), rel=RELATIVE_PRECISION)


@given(
    st.lists(st.lists(st.integers(-5, 300) | st.integers(-(1 << 60), 1 << 60), max_size=40), min_size=1, max_size=6),
    st.integers(1, 100),
    st.booleans(),
)
def test_parts_that_travel_add_up_to_the_whole(parts: list[list[int]], limit: int, travel: bool) -> None:
    whole, joined = (DistributionCollector(limit=limit, pending=16) for _ in range(2))
    for part in parts:
        values = np.array(part, dtype=np.int64)
        whole.add(values)
        later = DistributionCollector(limit=limit)
        later.add(values)
        joined.merge(pickle.loads(pickle.dumps(later)) if travel else later)
    expected, found = whole.distribution(), joined.distribution()
    assert (found.exact, found.total) == (expected.exact, sum(sum(part) for part in parts))
    assert (found.values.tolist(), found.counts.tolist()) == (expected.values.tolist(), expected.counts.tolist())
    if found.exact:
        values, counts = np.unique(np.concatenate(parts).astype(np.float64), return_counts=True)
        assert (found.values.tolist(), found.counts.tolist()) == (values.tolist(), counts.tolist())


OPERATION = st.tuples(
    st.sampled_from(OPS), st.integers(0, 3), st.integers(-1, 12), st.integers(0, 4), st.sampled_from([0, 0, 0, 1])
)


def rows_of(operations: list[tuple[str, int, int, int]], rank: int = 0) -> OperationRows:
    column = list(zip(*operations, strict=True)) if operations else [(), (), (), ()]
    zeros = np.zeros(len(operations), dtype=np.int64)
    return OperationRows(
        rank=rank,
        op=np.array([OPS.index(op) for op in column[0]], dtype=np.int8),
        file_id=np.array(column[1], dtype=np.int32), offset=np.array(column[2], dtype=np.int64),
        length=np.array(column[3], dtype=np.int64), api=zeros.astype(np.int8), start_ns=zeros, end_ns=zeros,
        origin=zeros.astype(np.int8),
    )  # fmt: skip


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


def test_rows_of_several_ranks_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [
        read(number % 2, rank=number % 6, start_ns=number, length=number, api="POSIX" if number % 5 else "STDIO")
        for number in range(100)
    ]
    ops += [read(0, rank=6, start_ns=number) for number in range(30)]
    path = build_capture(tmp_path, files=["/a", "/b"], ranks=range(7)).path
    with OpsWriter(path, row_group_rows=20) as writer:
        for rank in range(7):
            writer.write(ops_table([op for op in ops if op.rank == rank]))
    write_capture_info(path, read_info(path))
    capture = open_capture(path)
    assert len(capture.index.of(6)) == 2
    monkeypatch.setattr(operation_rows_home, "FEW_ROWS", 40)
    found = list(rows_together(capture, without=("step",)))
    assert [sorted(set(rows.ranks.tolist())) for rows in found] == [[0, 1], [2, 3], [4, 5], [], []]
    each = [one for rows in found for one in rows.each_rank()]
    expected = list(operation_rows(capture, without=("step",)))
    assert [rows.rank for rows in each] == [rows.rank for rows in expected] == [0, 1, 2, 3, 4, 5, 6, 6]
    for one, other in zip(each, expected, strict=True):
        for name in ROW_COLUMNS:
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_read_ahead_gives_the_same_items_and_its_errors_in_their_place() -> None:
    def items() -> Iterator[str]:
        yield "first"
        yield "second"
        raise CaptureError("the third is damaged")

    ahead = read_ahead(items())
    assert [next(ahead), next(ahead)] == ["first", "second"]
    with pytest.raises(CaptureError, match="the third is damaged"):
        next(ahead)
