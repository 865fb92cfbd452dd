"""Joining neighbours to bars: totals never change, what is joined is short and close, and the finest key is found."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.bars import (
    KEYS,
    Bars,
    apart_at,
    pair_keys,
    resolution_key,
    resolution_ns,
)

TIMES = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(0, 10**5), st.integers(0, 3)), min_size=1, max_size=60
)  # fmt: skip


def bars_of(rows: list[tuple[int, int, int]]) -> Bars:
    """Bars of (start, length, file) in start order; each moves as many bytes as it is long."""
    start, length, file_id = (np.array(column, dtype=np.int64) for column in zip(*sorted(rows), strict=True))
    return Bars.single(start, start + length, bytes=length, file_id=file_id, offset=start * 2)


@given(TIMES, st.one_of(st.none(), st.integers(0, KEYS - 1)))
def test_joining_keeps_totals_and_ends(rows: list[tuple[int, int, int]], key: int | None) -> None:
    single = bars_of(rows)
    joined = single.joined(apart_at(single.start_ns, single.end_ns, key))
    assert joined.operations.sum() == len(rows)
    assert joined.bytes.sum() == single.bytes.sum()
    assert joined.busy_ns.sum() == (single.end_ns - single.start_ns).sum()
    assert joined.start_ns[0] == single.start_ns[0]
    assert joined.end_ns.max() == single.end_ns.max()
    alone = joined.operations == 1
    assert set(joined.start_ns[alone]) <= set(single.start_ns)
    assert (joined.offset[alone] == 2 * joined.start_ns[alone]).all()
    assert (joined.offset[~alone] == -1).all()


@given(TIMES, st.integers(0, KEYS - 1))
def test_what_is_joined_is_shorter_than_the_resolution_and_as_close(rows: list[tuple[int, int, int]], key: int) -> None:
    single = bars_of(rows)
    limit = resolution_ns(key)
    apart = apart_at(single.start_ns, single.end_ns, key)
    length, gap = single.end_ns - single.start_ns, single.start_ns[1:] - single.end_ns[:-1]
    for place in np.flatnonzero(~apart):
        assert max(length[place], length[place + 1], gap[place]) < limit
    reach = np.add.accumulate(np.concatenate(([True], apart)))
    for group in np.unique(reach):
        starts = single.start_ns[reach == group]
        assert starts[-1] - starts[0] <= 512 * limit


@given(st.lists(st.integers(0, KEYS - 1), max_size=200), st.integers(1, 5), st.integers(1, 100))
def test_the_finest_key_within_the_budget(keys: list[int], tracks: int, most: int) -> None:
    counts = np.bincount(np.array(keys, dtype=np.int64), minlength=KEYS)

    def bars(key: int) -> int:
        return tracks + sum(found > key for found in keys)

    key = resolution_key(counts, tracks, most)
    if key is None:
        assert tracks + len(keys) <= most
    else:
        assert tracks + len(keys) > most
        assert bars(key) <= most or tracks > most
        assert key == 0 or bars(key - 1) > most


def test_resolutions_grow_with_their_keys() -> None:
    found = [resolution_ns(key) for key in range(KEYS)]
    assert found == sorted(found)
    assert resolution_ns(None) == 0
    lengths = np.array([0, 1, 2, 3, 5, 1_000, 123_456_789], dtype=np.int64)
    for length in lengths.tolist():
        starts = np.array([0, 0], dtype=np.int64)
        key = int(pair_keys(starts, np.array([length, 0]))[0])
        assert length < resolution_ns(key) <= max(1.3 * length, 1) + 1


def test_files_that_differ_are_several() -> None:
    rows = [(0, 5, 2), (10, 5, 2), (1_000_000, 5, 1), (1_000_010, 5, 3)]
    joined = bars_of(rows).joined(np.array([False, True, False]))
    assert joined.file_id.tolist() == [2, -1]
    assert joined.operations.tolist() == [2, 2]


def test_no_bars() -> None:
    none = Bars.chain([])
    assert len(none) == 0
    assert len(none.joined(apart_at(none.start_ns, none.end_ns, 3))) == 0
