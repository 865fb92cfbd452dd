"""Finds where a series of samples changed by more than a margin, with a bound on false alarms. Pure.

Runs of one session resemble each other more than runs of two, so that a test of the runs for *any* difference would
find one nearly every night. What is tested here is whether the change exceeds the margin: at each possible place, by
Mann and Whitney's statistic of values that were moved together by the margin (a test of a minimum effect). As long as
all sessions lie within the margin of each other, whatever they differ by there, a series of K samples shows a change
with probability alpha at most. Two looks share it, alpha / 2 / (K - 1) for each place of each:

    forward   each sample against all samples since the last change: finds a change when it comes, and a single bad day
    backward  all samples before a place against all after it, within a stretch without changes: finds a small change
              that lasts; the place with the smallest p-value divides the stretch, and both parts are looked at again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dxt_replay.replay.regression.rank_sum import exceeding

_NEVER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """`at`: index of the first sample after the change. `p_value`: for all looks of the series together."""

    at: int
    p_value: float


def change_points(samples: Sequence[np.ndarray], margin: float, alpha: float) -> list[ChangePoint]:
    """The changes, in order, of samples that each hold values (float64, any number of them, logarithms for ratios).

    Time: as the square of the number of samples. Memory: 16 bytes a pair of samples.
    """
    if len(samples) < 2:
        return []
    looks = 2 * (len(samples) - 1)
    table = _Comparisons(samples, margin)
    return [
        ChangePoint(at=at, p_value=min(looks * p_value, 1.0))
        for at, p_value in sorted(_divided(table, len(samples), alpha / looks))
    ]


def _divided(table: _Comparisons, count: int, alpha: float) -> Iterator[tuple[int, float]]:
    """(place, p-value) of the changes among `count` samples, in any order."""
    stretches = [(0, count)]
    while stretches:
        begin, end = stretches.pop()
        forward = list(_forward(table, begin, end, alpha))
        yield from forward
        ends = [begin, *(at for at, _ in forward), end]
        for first, last in pairwise(ends):
            looks = (table.test(first, at, last) for at in range(first + 1, last))
            p_value, _, at = min(looks, default=(_NEVER, 0.0, 0))
            if p_value <= alpha:
                yield at, p_value
                stretches += [(first, at), (at, last)]


def _forward(table: _Comparisons, begin: int, end: int, alpha: float) -> Iterator[tuple[int, float]]:
    since = begin
    for at in range(begin + 1, end):
        p_value, _, _ = table.test(since, at, at + 1)
        if p_value <= alpha:
            yield at, p_value
            since = at


class _Comparisons:
    """How many values of later samples exceed those of earlier ones by more than the margin, and the other way round.

    Sums over rectangles of the matrix sample x sample, so that each test takes the same short time.
    """

    def __init__(self, samples: Sequence[np.ndarray], margin: float) -> None:
        sizes = [len(sample) for sample in samples]
        self._sizes = np.concatenate([[0], np.cumsum(sizes)])
        values = np.concatenate([np.asarray(sample, dtype=np.float64) for sample in samples])
        shape = (len(samples) + 1, len(samples) + 1)
        self._above, self._below = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for row, sample in enumerate(samples, start=1):
            ordered = np.sort(sample)
            exceeded = np.searchsorted(ordered, values - margin, side="left")
            undercut = len(ordered) - np.searchsorted(ordered, values + margin, side="right")
            self._above[row, 1:] = np.diff(np.concatenate([[0], np.cumsum(exceeded)])[self._sizes])
            self._below[row, 1:] = np.diff(np.concatenate([[0], np.cumsum(undercut)])[self._sizes])
        for matrix in (self._above, self._below):
            np.cumsum(matrix, axis=0, out=matrix)
            np.cumsum(matrix, axis=1, out=matrix)

    def test(self, begin: int, at: int, end: int) -> tuple[float, float, int]:
        """Two-sided p-value of a change at `at`, a figure that is smaller for a greater change, and the place."""
        first, second = int(self._sizes[at] - self._sizes[begin]), int(self._sizes[end] - self._sizes[at])
        if not first or not second:
            return _NEVER, 0.0, at
        most = max(_rectangle(matrix, begin, at, end) for matrix in (self._above, self._below))
        return min(2 * exceeding(most, first, second), 1.0), -most / (first * second), at


def _rectangle(sums: np.ndarray, begin: int, at: int, end: int) -> int:
    """Rows `begin` to `at`, columns `at` to `end`."""
    return int(sums[at, end] - sums[begin, end] - sums[at, at] + sums[begin, at])
