"""Runs of two accesses with a counted gap so wide that nothing else fits into the file. Pure.

A reader of archives begins so: it reads the start of the file, and then its directory at the end. The two sizes are
those that end at the highest offset if there are such, else the smallest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses

_MOST_SIZES = 64
"""Most distinct sizes of a stream among which two are searched."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapRuns:
    """`number` int64 (n,): the run of each access among the gap runs of its stream, -1 for none. By stream: `runs`, how
    many there are, and `left` (streams, TOP), how many gaps of each width remain. `gap` int64 (n,): the gap before an
    access, 0 for none."""

    number: np.ndarray
    gap: np.ndarray
    runs: np.ndarray
    left: np.ndarray


def gap_runs(
    accesses: SizedAccesses, runs: np.ndarray, room: np.ndarray, gaps: tuple[np.ndarray, np.ndarray]
) -> GapRuns:
    """The gap runs of accesses, which are sorted by stream and falling size."""
    width, left = gaps[0], gaps[1].copy()
    number = np.full(len(accesses), -1, dtype=np.int64)
    gap, made = np.zeros(len(accesses), dtype=np.int64), np.zeros(len(runs), dtype=np.int64)
    mean = accesses.moved(len(runs)) // np.maximum(runs, 1)
    tight = (left > 0) & (width + mean[:, np.newaxis] > room[:, np.newaxis]) & (width < room[:, np.newaxis])
    for stream in np.flatnonzero(tight.any(axis=1)).tolist():
        first, last = np.searchsorted(accesses.stream, [stream, stream + 1])
        for place in np.flatnonzero(tight[stream]).tolist():
            free = first + np.flatnonzero(number[first:last] < 0)
            count = int(left[stream, place])
            others, rest = runs[stream] - made[stream] - count, len(free) - 2 * count
            # The other runs need an access each, and the other accesses a run.
            if others < 0 or rest < others or (rest and not others):
                continue
            pairs = _pairs(accesses.size[free], count, int(room[stream] - width[stream, place]))
            if pairs is None:
                continue
            before, after = (free[each] for each in pairs)
            number[before] = number[after] = made[stream] + np.arange(count)
            gap[after] = width[stream, place]
            made[stream] += count
            left[stream, place] = 0
    return GapRuns(number=number, gap=gap, runs=made, left=left)


def _pairs(size: np.ndarray, count: int, room: int) -> tuple[np.ndarray, np.ndarray] | None:
    """`count` pairs of accesses, as indices into `size` (falling), that fit into `room`; the larger ones first.

    Two sizes that fill the room if there are such, else the smallest accesses; None where these do not fit either.
    """
    values, counts = np.unique(size[size > 0], return_counts=True)
    if len(values) <= _MOST_SIZES:
        for one, frequency in zip(values.tolist(), counts.tolist(), strict=True):
            other = room - one
            needed = 2 * count if one == other else count
            if other > one or frequency < needed or np.count_nonzero(size == other) < needed:
                continue
            return np.flatnonzero(size == one)[:count], np.flatnonzero(size == other)[-count:]
    smallest = np.flatnonzero(size > 0)[-2 * count :]
    before, after = smallest[:count], smallest[::-1][:count]
    if len(smallest) < 2 * count or (size[before] + size[after] > room).any():
        return None
    return before, after
