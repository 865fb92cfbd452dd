"""Assigns accesses to passes over a file, if passes are equal: a data set read epoch by epoch. Pure.

A *whole pass* moves every byte up to the highest offset. If whole passes of equal accesses explain a stream, they come
first. The rest belongs to passes that were cut short, as the last one is when training stops.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses

_MOST_SIZES = 64
"""Most distinct sizes of a stream among which equal passes are searched."""


def whole_passes(accesses: SizedAccesses, runs: np.ndarray, extent: np.ndarray) -> np.ndarray:
    """Number within its stream of the run of each access, int64 (n,); accesses are by stream and falling size.

    `runs` int64 (streams,): number of runs of a stream. `extent` int64 (streams,): bytes of a whole pass, 0 if runs are
    not such passes.
    Without equal whole passes, each run gets as many accesses of every size.
    """
    streams = len(runs)
    count = np.bincount(accesses.stream, minlength=streams)
    first = np.cumsum(count) - count
    evenly = (np.arange(len(accesses)) - first[accesses.stream]) % np.maximum(runs, 1)[accesses.stream]
    new = np.ones(len(accesses), dtype=bool)
    new[1:] = (accesses.stream[1:] != accesses.stream[:-1]) | (accesses.size[1:] != accesses.size[:-1])
    cell = np.cumsum(new) - 1
    begin = np.flatnonzero(new)
    cells = np.bincount(accesses.stream[begin], minlength=streams)
    whole = np.where(extent > 0, accesses.moved(streams) // np.maximum(extent, 1), 0)
    cut_short = accesses.moved(streams) > whole * extent
    able = (whole > 0) & (whole + cut_short <= runs) & (cells <= _MOST_SIZES)
    each, explained = _equal_passes(accesses, begin, whole, np.where(able, extent, 0))
    in_pass = np.zeros(streams, dtype=np.int64)
    np.add.at(in_pass, accesses.stream[begin], each)
    # Each run needs an access.
    explained &= count - whole * in_pass >= runs - whole
    number = np.arange(len(accesses)) - begin[cell]
    whole, runs = whole[accesses.stream], runs[accesses.stream]
    left = number >= whole * each[cell]
    # The rest is dealt in turn, whatever its sizes.
    turn = np.cumsum(left) - 1
    turn -= turn[first[accesses.stream]] + 1 - left[first[accesses.stream]]
    rest = np.where(runs > whole, whole + turn % np.maximum(runs - whole, 1), turn % np.maximum(runs, 1))
    in_passes = np.where(left, rest, number % np.maximum(whole, 1))
    result: np.ndarray = np.where((able & explained)[accesses.stream], in_passes, evenly)
    return result


def _equal_passes(
    accesses: SizedAccesses, begin: np.ndarray, whole: np.ndarray, extent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Number of accesses of each cell's size in each of the `whole` passes, the largest first, and whether that adds
    up.

    `begin`: first access of each cell, which is a (stream, size).
    """
    stream, size = accesses.stream[begin], accesses.size[begin]
    count = np.diff(np.append(begin, len(accesses)))
    left = extent.copy()
    each = np.zeros(len(begin), dtype=np.int64)
    cells = np.bincount(stream, minlength=len(extent))
    place = np.arange(len(begin)) - (np.cumsum(cells) - cells)[stream]
    for number in range(min(int(place.max(initial=-1)) + 1, _MOST_SIZES)):
        mine = np.flatnonzero((place == number) & (extent[stream] > 0))
        of = stream[mine]
        fits = np.where(size[mine] > 0, left[of] // np.maximum(size[mine], 1), count[mine])
        each[mine] = np.minimum(count[mine] // np.maximum(whole[of], 1), fits)
        left[of] -= each[mine] * size[mine]
    return each, left == 0
