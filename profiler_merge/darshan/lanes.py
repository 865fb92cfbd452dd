"""The lane of each operation if the log does not name threads: from overlap. Pure.

All functions take the operations of one rank, or of several ranks one after the other. `rank` (n,) is the index of each
operation's rank among them, ascending from 0. Lanes are numbered from 0 in each rank.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dxt_replay.profiler_merge.darshan._overlap_lanes import OverlapLanes
from dxt_replay.traces.stable_order import stable_order

NEVER = int(np.iinfo(np.int64).min)
"""A time before all others."""


def lanes_from_overlap(start_ns: np.ndarray, end_ns: np.ndarray, rank: np.ndarray | None = None) -> np.ndarray:
    """int32 lane of each operation, given in start order: the fewest lanes on which none overlap, as `OverlapLanes`."""
    cuts = [] if rank is None else (np.flatnonzero(rank[1:] != rank[:-1]) + 1).tolist()
    if not cuts:
        return OverlapLanes().following(start_ns, end_ns)
    lanes = np.empty(len(start_ns), dtype=np.int32)
    for begin, end in pairwise((0, *cuts, len(lanes))):
        lanes[begin:end] = OverlapLanes().following(start_ns[begin:end], end_ns[begin:end])
    return lanes


def _after_all_before(start_ns: np.ndarray, end_ns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """bool: the rows that begin after all earlier rows of their group have ended; `group` is sorted."""
    alone = np.ones(len(start_ns), dtype=bool)
    alone[1:] = (start_ns[1:] >= _latest(end_ns, group)[:-1]) | (group[1:] != group[:-1])
    return alone


def latest_before(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The largest of the earlier values in each group, NEVER for the first; `group` (n,) is sorted."""
    before = np.full(len(values), NEVER, dtype=np.int64)
    if len(values):
        inside = group[1:] == group[:-1]
        before[1:][inside] = _latest(values, group)[:-1][inside]
    return before


def _latest(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The running maximum of the values in each group; `group` (n,) is sorted."""
    if not len(values) or group[0] == group[-1]:
        return np.maximum.accumulate(values)
    number = np.cumsum(np.append(False, group[1:] != group[:-1]))
    low, sorted_values = values.min(), None
    if (int(values.max()) - int(low) + 1) * (int(number[-1]) + 1) >= 1 << 62:
        sorted_values, values = np.unique(values, return_inverse=True)
        low = values.min()
    # Shifted so that every value of a group exceeds all values of the previous group.
    lift = number * (values.max() - low + 1) - low
    latest: np.ndarray = np.maximum.accumulate(values + lift) - lift
    return latest if sorted_values is None else sorted_values[latest]


def latest_on_lanes(
    rows: tuple[np.ndarray, np.ndarray],
    before_ns: np.ndarray,
    operations: tuple[np.ndarray, np.ndarray],
    start_ns: np.ndarray,
    end_ns: np.ndarray,
) -> np.ndarray:
    """int64: latest end of the operations on a row's lane that start before the row's `before_ns`; NEVER if there is
    none.

    `rows`, `operations`: rank and lane of each; operations in start order."""
    (rank, lane), (operation_rank, operation_lane) = rows, operations
    most = 1 + max(int(lane.max(initial=-1)), int(operation_lane.max(initial=-1)))
    of_row, of_operation = rank * most + lane, operation_rank * most + operation_lane
    by_lane = stable_order(of_operation)
    of_operation = of_operation[by_lane]
    begin, end = (np.searchsorted(of_operation, of_row, side=side) for side in ("left", "right"))
    before = first_not_below(start_ns[by_lane], begin, end, before_ns)
    latest = np.append(_latest(end_ns[by_lane], of_operation), 0)
    return np.where(before == begin, NEVER, latest[before - 1])


def lanes_where_clear(
    wanted: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    latest_ns: np.ndarray,
    used: np.ndarray,
    rank: np.ndarray,
) -> np.ndarray:
    """int32 lane of each row that is put beside operations with lanes; rows (n,) in start order.

    A row gets the lane that it `wanted` (-1 for none) where it overlaps neither with an operation of that lane nor with
    an earlier row that wanted it. The other rows share new lanes, numbered after those of the operations.
    `latest_ns`: of the rows that want a lane, as `latest_on_lanes`. `used`: number of lanes of each rank.
    """
    lanes = np.full(len(wanted), -1, dtype=np.int32)
    rows = np.flatnonzero(wanted >= 0)
    rows = rows[latest_ns <= start_ns[rows]]
    of_row = rank[rows] * (1 + int(wanted.max(initial=-1))) + wanted[rows]
    by_lane = np.argsort(of_row, kind="stable")
    rows, of_row = rows[by_lane], of_row[by_lane]
    rows = rows[_after_all_before(start_ns[rows], end_ns[rows], of_row)]
    lanes[rows] = wanted[rows]
    rest = np.flatnonzero(lanes < 0)
    lanes[rest] = lanes_from_overlap(start_ns[rest], end_ns[rest], rank[rest]) + used[rank[rest]]
    return lanes


def first_not_below(ascending: np.ndarray, begin: np.ndarray, end: np.ndarray, value: np.ndarray) -> np.ndarray:
    """For each row: the first index in ascending[begin:end] whose value is not below the row's, `end` if all are."""
    low, high = begin.copy(), end.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        below = open_ & (ascending[np.minimum(middle, len(ascending) - 1)] < value)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low
