from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export import time_parts
from dxt_replay.profiler_merge.export.time_parts import time_cuts
from tests.examples import examples


def sizes(times: list[int], cuts: list[int]) -> list[int]:
    found = Counter(bisect_right(cuts, time) for time in times)
    return [found[place] for place in range(len(cuts) + 1)]


def cuts_of(times: list[int], limit: int, batch: int = 7) -> list[int]:
    ordered = np.array(sorted(times), dtype=np.int64)
    pieces = [ordered[begin : begin + batch] for begin in range(0, len(ordered), batch)]
    return time_cuts(lambda: ((piece, np.ones(len(piece))) for piece in pieces), min(times), max(times), limit)


@settings(max_examples=examples(60))
@given(
    times=st.lists(st.integers(-(1 << 40), 1 << 62) | st.integers(0, 50), min_size=1, max_size=300),
    limit=st.integers(1, 80),
)
def test_no_part_exceeds_the_limit_but_for_one_nanosecond(times: list[int], limit: int) -> None:
    cuts = cuts_of(times, limit)
    assert cuts == sorted(set(cuts))
    for place, size in enumerate(sizes(times, cuts)):
        assert size > 0
        inside = {time for time in times if bisect_right(cuts, time) == place}
        assert size <= limit or len(inside) == 1


def test_parts_are_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_parts, "BINS", 4)
    burst = [5_000_000 + i for i in range(9_000)]
    times = [i * 1_000_000_000 for i in range(1_000)] + burst
    found = sizes(times, cuts_of(times, limit=1_600, batch=1_000))
    assert sum(found) == 10_000
    assert len(found) == 7
    assert all(1_500 <= size <= 1_600 for size in found[:-1])


def test_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.arange(100, dtype=np.int64)
    cuts = time_cuts(lambda: [(times, np.full(100, 2))], 0, 99, limit=20)
    assert cuts == [10, 20, 30, 40, 50, 60, 70, 80, 90]
