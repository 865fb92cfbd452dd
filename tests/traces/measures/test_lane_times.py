from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traces.measures.lane_times import LaneTimeCollector, matched_starts
from traces.measures.operation_rows import OperationRows

EVENT = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 1000))


def collected(events: list[tuple[int, int, int]], batch: int = 100, max_samples: int = 1000) -> LaneTimeCollector:
    """From (rank, lane, start), in any order."""
    collector = LaneTimeCollector(max_samples=max_samples)
    for rank in (0, 1):
        mine = sorted((start, lane) for found, lane, start in events if found == rank)
        for begin in range(0, len(mine), batch):
            start, lane = np.array(mine[begin : begin + batch], dtype=np.int64).T
            zeros = np.zeros(len(start), dtype=np.int64)
            names = ("op", "api", "file_id", "offset", "length", "end_ns", "origin")
            rows = OperationRows(rank=rank, lane=lane, start_ns=start, **dict.fromkeys(names, zeros))
            collector.add(rows)
    return collector


def by_lane(events: list[tuple[int, int, int]]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, lane, start in sorted(events, key=lambda event: event[2]):
        found[rank, lane].append(start)
    return found


@given(st.lists(EVENT, max_size=50), st.integers(1, 9))
def test_gaps_are_between_starts_of_one_lane(events: list[tuple[int, int, int]], batch: int) -> None:
    expected = sorted(gap for starts in by_lane(events).values() for gap in np.diff(starts).tolist())
    found = collected(events, batch).gaps_ns()
    assert np.repeat(found.values, found.counts).tolist() == expected


@given(st.lists(EVENT, max_size=50), st.integers(1, 9))
def test_all_starts_are_kept_while_they_fit(events: list[tuple[int, int, int]], batch: int) -> None:
    found = collected(events, batch).starts()
    assert {key: lane.start_ns.tolist() for key, lane in found.items()} == by_lane(events)


@given(st.lists(EVENT, min_size=1, max_size=80), st.integers(1, 9), st.integers(1, 20))
def test_samples_are_every_strideth_start(events: list[tuple[int, int, int]], batch: int, room: int) -> None:
    found = collected(events, batch, max_samples=room).starts()
    assert sum(len(lane.start_ns) for lane in found.values()) <= max(room, len(found))
    for key, starts in by_lane(events).items():
        assert found[key].operations == len(starts)
        assert found[key].start_ns.tolist() == starts[:: found[key].stride]


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
    assert all(len(side) == 0 for side in matched_starts(source, {}))
