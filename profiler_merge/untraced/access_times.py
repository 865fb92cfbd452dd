"""Times of accesses that only counters date: between the first and the last of their stream. Pure.

They share the counted time, and none overlaps another of its stream. They are spread evenly or, in a stream that lasts
longer than a few bins, by the rank's HEATMAP; within a bin the stream's window is the better evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEAST_BINS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Bytes that a rank moved over time, by direction.

    `edges` int64 ns (bins + 1,), `read`, `write` int64 (bins,).
    """

    edges: np.ndarray
    read: np.ndarray
    write: np.ndarray


def access_times(
    segment: np.ndarray,
    size: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    spent_ns: np.ndarray,
    longest_ns: np.ndarray,
    is_write: np.ndarray,
    activity: Activity | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end ns of accesses (n,), sorted by `segment`; the other arrays but `size` are by segment.

    The first starts at `begin`, the last ends at `end`, together they last `spent_ns`, or the window if it is shorter.
    The first lasts `longest_ns` (0: unknown), because caches are cold then, if that leaves the others a nanosecond
    each.
    """
    count = np.bincount(segment, minlength=len(begin))
    first = np.cumsum(count) - count
    number = np.arange(len(segment)) - first[segment]
    window = np.maximum(end - begin, 0)
    spent = np.where(count > 1, np.minimum(spent_ns, window), window)
    rest = np.maximum(count - 1, 0)
    first_longest = (count > 1) & (longest_ns * count > spent) & (longest_ns + rest <= spent)
    shared, among = np.where(first_longest, spent - longest_ns, spent), np.where(first_longest, rest, count)
    each = shared // np.maximum(among, 1)
    lasts = each[segment] + (number - first_longest[segment] < (shared - each * among)[segment])
    lasts = np.where((number == 0) & first_longest[segment], longest_ns[segment], lasts)
    done = np.cumsum(lasts) - lasts
    done -= done[first[segment]]
    free = (window - spent).astype(np.float64)
    idle = free[segment] * (number / np.maximum(count - 1, 1)[segment])
    start = begin[segment] + done + idle.astype(np.int64)
    if activity is not None:
        start = _along(activity, segment, size, begin, end, is_write, start)
        # None begins before the previous has ended, and all are done by the end.
        slack = np.clip(start - begin[segment] - done, 0, (window - spent)[segment])
        slack = _rising(slack, segment, free)
        ends = np.append(segment[1:] != segment[:-1], True)
        slack = np.where(number == 0, 0, np.where(ends, (window - spent)[segment], slack))
        start = begin[segment] + done + slack
    return start, start + lasts


def _along(
    activity: Activity,
    segment: np.ndarray,
    size: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    is_write: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """The starts, moved to where the rank moved an equal share of its bytes, in segments that last long enough."""
    moved = start.copy()
    bin_ns = int(np.diff(activity.edges).max(initial=0))
    long_enough = end - begin > _LEAST_BINS * bin_ns
    weight = np.maximum(size, 1).astype(np.float64)
    total = np.bincount(segment, weights=weight, minlength=len(begin))
    reached = np.cumsum(weight)
    count = np.bincount(segment, minlength=len(begin))
    first = (np.cumsum(count) - count)[segment]
    part = (reached - weight - (reached - weight)[first]) / np.maximum(total, 1)[segment]
    for way, of_bins in ((False, activity.read), (True, activity.write)):
        # Idle bins get a tiny value, so that every byte has one time.
        bytes_until = np.append(0.0, np.cumsum(of_bins + of_bins.sum() * 1e-9))
        low, high = (np.interp(times, activity.edges, bytes_until) for times in (begin, end))
        mine = (long_enough & (is_write == way) & (high > low))[segment]
        wanted = low[segment[mine]] + part[mine] * (high - low)[segment[mine]]
        moved[mine] = np.interp(wanted, bytes_until, activity.edges).astype(np.int64)
    return moved


def _rising(values: np.ndarray, segment: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The running maximum of the values (n,) in each segment."""
    if not len(values):
        return values
    step = np.cumsum(np.append(0.0, most[:-1] + 1.0))
    if step[-1] + most[-1] < 2**53:
        lifted = np.maximum.accumulate(values + step.astype(np.int64)[segment])
        return lifted - step.astype(np.int64)[segment]
    rising = values.copy()
    for each in np.unique(segment).tolist():
        mine = segment == each
        rising[mine] = np.maximum.accumulate(values[mine])
    return rising
