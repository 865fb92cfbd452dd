from __future__ import annotations

import pickle
from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.measures.lane_times import LaneStarts, LaneTimeCollector, least_stride, matched_starts
from dxt_replay.traces.measures.operation_rows import OperationRows

EVENT = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 1000))


def collected(events: list[tuple[int, int, int]], batch: int = 100, max_samples: int = 1000) -> LaneTimeCollector:
    """From (rank, lane, start), in any order. `batch`: rows of a rank at a time; 0 for all ranks at once."""
    collector = LaneTimeCollector(max_samples=max_samples)
    if not batch and events:
        rank, start, lane = np.array(sorted((r, start, lane) for r, lane, start in events), dtype=np.int64).T
        collector.add(rows_of(0, lane, start, rank))
    for rank in (0, 1) if batch else ():
        mine = sorted((start, lane) for found, lane, start in events if found == rank)
        for begin in range(0, len(mine), batch):
            start, lane = np.array(mine[begin : begin + batch], dtype=np.int64).T
            collector.add(rows_of(rank, lane, start))
    return collector


def rows_of(rank: int, lane: np.ndarray, start: np.ndarray, ranks: np.ndarray | None = None) -> OperationRows:
    zeros = np.zeros(len(start), dtype=np.int64)
    columns = dict.fromkeys(("op", "api", "file_id", "offset", "length", "end_ns", "origin"), zeros)
    columns |= {"lane": lane, "start_ns": start} | ({} if ranks is None else {"ranks": ranks})
    return OperationRows(rank=rank, **columns)


def samples_of(starts: LaneStarts) -> dict[tuple[int, int], list[int]]:
    parts = np.split(starts.start_ns, np.cumsum(starts.samples)[:-1]) if len(starts) else []
    keys = zip((starts.key >> 32).tolist(), (starts.key & 0xFFFF_FFFF).tolist(), strict=True)
    return {key: part.tolist() for key, part in zip(keys, parts, strict=True)}


def by_lane(events: list[tuple[int, int, int]]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, lane, start in sorted(events, key=lambda event: event[2]):
        found[rank, lane].append(start)
    return found


@given(st.lists(EVENT, max_size=50), st.integers(0, 9))
def test_gaps_are_between_starts_of_one_lane(events: list[tuple[int, int, int]], batch: int) -> None:
    expected = sorted(gap for starts in by_lane(events).values() for gap in np.diff(starts).tolist())
    found = collected(events, batch).gaps_ns()
    assert np.repeat(found.values, found.counts).tolist() == expected


@given(st.lists(EVENT, max_size=50), st.integers(0, 9))
def test_all_starts_are_kept_while_they_fit(events: list[tuple[int, int, int]], batch: int) -> None:
    assert samples_of(collected(events, batch).starts()) == by_lane(events)


@given(st.lists(EVENT, min_size=1, max_size=80), st.integers(0, 9), st.integers(1, 20))
def test_samples_are_every_strideth_start(events: list[tuple[int, int, int]], batch: int, room: int) -> None:
    found = collected(events, batch, max_samples=room).starts()
    assert len(found.start_ns) <= max(room, len(found))
    assert samples_of(found) == {key: starts[:: found.stride] for key, starts in by_lane(events).items()}
    counts = dict(zip(samples_of(found), found.operations, strict=True))
    assert counts == {key: len(starts) for key, starts in by_lane(events).items()}


@given(st.lists(EVENT, min_size=1, max_size=60), st.integers(1, 10), st.integers(1, 10))
def test_matched_starts_are_of_the_same_operations(events: list[tuple[int, int, int]], room: int, other: int) -> None:
    shifted = [(rank, lane, start + 5000) for rank, lane, start in events]
    source, replay = collected(events, max_samples=room).starts(), collected(shifted, max_samples=other).starts()
    recorded, replayed = matched_starts(source, replay)
    assert len(recorded) >= len(by_lane(events))
    assert (replayed - recorded == 5000).all()


def test_a_lane_with_another_number_of_operations_does_not_match() -> None:
    source = collected([(0, 0, 1), (0, 0, 2), (0, 1, 3)]).starts()
    replay = collected([(0, 0, 1), (0, 1, 4)]).starts()
    recorded, replayed = matched_starts(source, replay)
    assert (recorded.tolist(), replayed.tolist()) == ([3], [4])
    assert all(len(side) == 0 for side in matched_starts(source, collected([]).starts()))


@given(st.lists(EVENT, min_size=1, max_size=60), st.integers(1, 20))
def test_ranks_that_are_joined_are_as_one_after_the_other(events: list[tuple[int, int, int]], room: int) -> None:
    parts = [collected([event for event in events if event[0] == rank], 0, room) for rank in (0, 1)]
    parts[0].merge(pickle.loads(pickle.dumps(parts[1])))
    whole = collected(events, 3, room)
    assert samples_of(parts[0].starts()) == samples_of(whole.starts())
    assert parts[0].gaps_ns().total == whole.gaps_ns().total


@given(st.lists(EVENT, min_size=1, max_size=80), st.integers(1, 20), st.integers(0, 6))
def test_a_stride_that_is_needed_can_be_given_before(events: list[tuple[int, int, int]], room: int, more: int) -> None:
    needed = collected(events, 3, room).starts().stride
    assert least_stride(len(events), len(by_lane(events)) + more, room) <= needed
