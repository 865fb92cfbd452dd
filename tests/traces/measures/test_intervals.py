from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.measures.intervals import BoundedUnion, Intervals, StreamingUnion, group_unions

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


@given(PAIRS)
def test_union_covers_what_any_interval_covers(pairs: list[tuple[int, int]]) -> None:
    union = Intervals.union_of(*columns(pairs))
    assert_canonical(union)
    assert covered(union) == instants(pairs)
    assert union.length_ns == len(instants(pairs))


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


@given(st.lists(PAIRS, max_size=6))
def test_bounded_union_is_exact_below_its_limit(parts: list[list[tuple[int, int]]]) -> None:
    union = BoundedUnion(limit=1000)
    for part in parts:
        union.add(*columns(part))
    everything = [pair for part in parts for pair in part]
    assert covered(union.intervals()) == instants(everything)
    assert union.closed_ns == 0


@given(st.lists(PAIRS, max_size=8), st.integers(2, 5))
def test_bounded_union_closes_short_gaps_and_says_how_much(parts: list[list[tuple[int, int]]], limit: int) -> None:
    union = BoundedUnion(limit=limit)
    for part in parts:
        union.add(*columns(part))
    everything = instants([pair for part in parts for pair in part])
    found = union.intervals()
    assert_canonical(found)
    assert len(found) <= limit
    assert covered(found) >= everything
    assert found.length_ns - len(everything) <= union.closed_ns


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
