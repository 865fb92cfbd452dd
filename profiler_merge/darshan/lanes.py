"""Which thread of its rank issued each operation: from thread ids where logged, from overlap otherwise. Pure."""

from __future__ import annotations

import heapq

import numpy as np


def lanes_from_threads(thread_ids: np.ndarray) -> np.ndarray:
    """int32 lane of each operation of one rank, given in start order: lanes are numbered by first appearance.

    `thread_ids`: any integers, equal for operations of one thread. An id that a later thread uses again stays one lane,
    because the log does not distinguish the two threads.
    """
    _, first, inverse = np.unique(thread_ids, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int32)
    order[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return order[inverse.reshape(-1)]


def lanes_from_overlap(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """int32 lane of each operation of one rank, given in start order: the fewest lanes on which none overlap.

    Each operation takes the lane that became free most recently (a reader that goes on reading is likely to be the
    same thread), so a serial stream stays on lane 0. Operations that touch (end == start) may share a lane.
    """
    count = len(start_ns)
    lanes = np.zeros(count, dtype=np.int32)
    if count < 2:
        return lanes
    latest_end = np.maximum.accumulate(end_ns)
    # Stretches without any overlap need no search: an operation that begins after all before it have ended.
    alone = np.empty(count, dtype=bool)
    alone[0] = True
    alone[1:] = start_ns[1:] >= latest_end[:-1]
    begins = np.flatnonzero(alone)
    ends = np.append(begins[1:], count)
    for begin, end in zip(begins[ends - begins > 1].tolist(), ends[ends - begins > 1].tolist(), strict=True):
        _colour_cluster(start_ns[begin:end].tolist(), end_ns[begin:end].tolist(), lanes[begin:end])
    return lanes


def _colour_cluster(starts: list[int], ends: list[int], lanes: np.ndarray) -> None:
    """Greedy interval colouring of one cluster of overlapping operations, into `lanes`."""
    busy: list[tuple[int, int]] = []
    free: list[tuple[int, int]] = []
    used = 0
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while busy and busy[0][0] <= start:
            ended, lane = heapq.heappop(busy)
            heapq.heappush(free, (-ended, lane))
        if free:
            lane = heapq.heappop(free)[1]
        else:
            lane, used = used, used + 1
        lanes[index] = lane
        heapq.heappush(busy, (end, lane))


def lanes_beside(
    wanted: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    lane: np.ndarray,
    lane_start_ns: np.ndarray,
    lane_end_ns: np.ndarray,
) -> np.ndarray:
    """int32 lane of each row that is put beside operations with lanes; rows (n,) and operations (m,) in start order.

    A row gets the lane that it `wanted` (-1 for none) where it overlaps neither with an operation of that lane nor with
    an earlier row that wanted it. The other rows share new lanes, numbered after those of the operations.
    """
    lanes = np.full(len(wanted), -1, dtype=np.int32)
    for each in np.unique(wanted[wanted >= 0]).tolist():
        rows, operations = np.flatnonzero(wanted == each), np.flatnonzero(lane == each)
        starts, latest = lane_start_ns[operations], np.maximum.accumulate(lane_end_ns[operations])
        # Operations that start before the row ends, and among them the one that ends last.
        before = np.searchsorted(starts, end_ns[rows], side="left")
        free = (before == 0) | (latest[np.maximum(before - 1, 0)] <= start_ns[rows])
        rows = rows[free]
        earlier = np.maximum.accumulate(end_ns[rows])
        alone = np.ones(len(rows), dtype=bool)
        alone[1:] = start_ns[rows[1:]] >= earlier[:-1]
        lanes[rows[alone]] = each
    rest = np.flatnonzero(lanes < 0)
    first = int(lane.max()) + 1 if len(lane) else 0
    lanes[rest] = lanes_from_overlap(start_ns[rest], end_ns[rest]) + np.int32(first)
    return lanes
