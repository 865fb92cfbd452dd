"""Rows in slots stay in them, in order, and never overlap."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.untraced.timeline_slots import (
    AT_BEGIN,
    AT_END,
    CLOSE_EVENT,
    OPEN_EVENT,
    OPERATION,
    Events,
    lay,
    numbered,
)


def events(operations, pins=()):
    def columns(rows, width):
        return tuple(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)) if rows else (
            (np.empty(0, dtype=np.int64),) * width
        )  # fmt: skip

    return Events.of(columns(operations, 3), columns(pins, 4))


def test_events_are_in_order_and_found_again():
    found = events([(1, 50, 60), (0, 10, 20)], [(0, 10, 12, OPEN_EVENT), (0, 10, 30, CLOSE_EVENT)])
    assert found.kind.tolist() == [OPEN_EVENT, OPERATION, CLOSE_EVENT, OPERATION]
    assert found.of_operation.tolist() == [3, 1]
    assert found.of_pin.tolist() == [0, 2]
    assert found.slot_after(np.array([0, 2, 3])).tolist() == [1, 4 + 0, 4 + 1]


def test_the_first_and_the_last_slot_have_room_for_all():
    found = events([(0, 100, 200)])
    start, end = lay(
        found, np.array([0, 0, 1, 1]), np.array([AT_END, AT_END, AT_BEGIN, AT_BEGIN]), np.array([1, 0, 0, 0]),
        np.array([30, 20, 5, 6]),
    )  # fmt: skip
    assert start.tolist() == [70, 50, 200, 205]
    assert end.tolist() == [100, 70, 205, 211]


def test_overlapping_events_leave_no_room():
    found = events([(0, 100, 300), (0, 200, 400)])
    start, end = lay(found, np.array([1]), np.array([AT_BEGIN]), np.array([0]), np.array([50]))
    assert (start.tolist(), end.tolist()) == ([200], [200])


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([AT_BEGIN, AT_END]), st.integers(0, 3), st.integers(0, 90))
)


@given(ROWS, st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_rows_stay_in_their_slot_and_apart(rows, gaps):
    times, at = [], 1000
    for gap in gaps:
        at += gap
        times.append((0, at, at + 10))
        at += 10
    found = events(times)
    slot, side, rank, duration = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)) if rows else (
        (np.empty(0, dtype=np.int64),) * 4
    )  # fmt: skip
    start, end = lay(found, slot, side, rank, duration)
    assert np.all(end >= start)
    assert np.all(end - start <= duration)
    for each in range(len(rows)):
        if 0 < slot[each] < 3:
            assert times[slot[each] - 1][2] <= start[each]
            assert end[each] <= times[slot[each]][1]
    for number in range(4):
        mine = sorted(np.flatnonzero(slot == number).tolist(), key=lambda row: (side[row], rank[row], row))
        assert all(end[a] <= start[b] for a, b in pairwise(mine))


def test_items_are_numbered():
    owner, number = numbered(np.array([2, 0, 3]))
    assert (owner.tolist(), number.tolist()) == ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
