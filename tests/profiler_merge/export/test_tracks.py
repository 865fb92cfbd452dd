from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export.tracks import LANE_THREADS, RankTracks


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=60))
def test_on_each_line_intervals_are_apart_or_nested(drawn: list[tuple[int, int]]) -> None:
    intervals = sorted(((start, start + length) for start, length in drawn), key=lambda i: (i[0], -i[1]))
    tracks = RankTracks()
    placed: dict[int, list[tuple[int, int]]] = {}
    for start, end in intervals:
        placed.setdefault(tracks.thread((0, 0, "x"), start, end), []).append((start, end))
    for line in placed.values():
        for place, (start, end) in enumerate(line):
            assert all(
                before_end <= start or (before <= start and end <= before_end) for before, before_end in line[:place]
            )
    assert {thread for thread, _ in tracks.lines()} == placed.keys()


def test_lines_are_named_and_ordered() -> None:
    tracks = RankTracks()
    assert tracks.thread((7, 6, "lane 3"), 0, 10, preferred=3) == 3
    assert tracks.thread((7, 6, "lane 3"), 2, 8, preferred=3) == 3
    assert tracks.thread((7, 6, "lane 3"), 5, 12, preferred=3) == LANE_THREADS
    assert tracks.thread((0, -1, "step"), 0, 5) == LANE_THREADS + 1
    assert tracks.thread((7, 0, "lane -2"), 0, 5, preferred=-2) == LANE_THREADS + 2
    assert tracks.lines() == [
        (LANE_THREADS + 1, "step"),
        (LANE_THREADS + 2, "lane -2"),
        (3, "lane 3"),
        (LANE_THREADS, "lane 3 (overlap 1)"),
    ]
