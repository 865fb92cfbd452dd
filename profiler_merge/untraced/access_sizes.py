"""Sizes of reads and writes known only from counters: the counted number in each bin, with the counted bytes. Pure.

The four most common sizes are used as often as counted. The other accesses of a bin share the remaining bytes; they get
many different sizes if one more common than the four would contradict them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from dxt_replay.profiler_merge.untraced.timeline_slots import numbered
from dxt_replay.profiler_merge.untraced.transfers import BINS, BOUNDS, LOWEST, TOP, Transfers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizedAccesses:
    """Accesses (n,), by stream (see `transfers`) and falling size; int64."""

    stream: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        """Number of accesses."""
        return len(self.size)

    def moved(self, streams: int) -> np.ndarray:
        """Bytes by stream, int64 (streams,)."""
        return _sums(self.stream, self.size, streams)


def access_sizes(transfers: Transfers) -> SizedAccesses:
    """The sizes of all accesses of all streams."""
    rest = _fitted(transfers)
    used = _common(transfers, rest)
    rest = rest - _by_bin(transfers, used)
    stream, place = np.nonzero(used)
    common = np.repeat(transfers.access[stream // 2, place], used[stream, place])
    of_common = np.repeat(stream, used[stream, place])
    left = transfers.moved - _sums(of_common, common, len(rest))
    least = np.where((transfers.access_count > 0).all(axis=1), transfers.access_count.min(axis=1), 0)
    of_rest, others = _others(rest, left, np.repeat(least, 2), np.repeat(transfers.access, 2, axis=0))
    streams, sizes = np.concatenate((of_common, of_rest)), np.concatenate((common, others))
    order = np.lexsort((-sizes, streams))
    return SizedAccesses(stream=streams[order], size=sizes[order])


def _fitted(transfers: Transfers) -> np.ndarray:
    """The histograms (streams, BINS), adjusted to add up to the counts, since an old version may lack them."""
    sizes = transfers.sizes.copy()
    missing = transfers.count - sizes.sum(axis=1)
    mean = transfers.moved // np.maximum(transfers.count, 1)
    short = np.flatnonzero(missing > 0)
    sizes[short, np.searchsorted(BOUNDS, mean[short])] += missing[short]
    for stream in np.flatnonzero(missing < 0).tolist():
        kept = np.minimum(np.cumsum(sizes[stream]), transfers.count[stream])
        sizes[stream] = np.diff(kept, prepend=0)
    return sizes


def _common(transfers: Transfers, rest: np.ndarray) -> np.ndarray:
    """Number of each common size of its file in each stream (2 n, TOP), as far as the bins of both directions allow.

    Of a file that was read and written, the split that comes closest to the bytes of both.
    """
    used = _split(transfers, rest, (None,) * TOP)
    both = np.flatnonzero((transfers.count.reshape(-1, 2) > 0).all(axis=1))
    if not len(both):
        return used
    mixed = transfers.select(both)
    streams = np.stack((2 * both, 2 * both + 1), axis=1).ravel()
    best, least = used[streams], _misfit(mixed, rest[streams], used[streams])
    # The direction of a size that no file has changes nothing.
    ways = [(0, 1) if mixed.access_count[:, place].any() else (0,) for place in range(TOP)]
    for way in product(*ways):
        tried = _split(mixed, rest[streams], way)
        misfit = _misfit(mixed, rest[streams], tried)
        better = np.repeat(misfit < least, 2)
        best[better], least = tried[better], np.minimum(misfit, least)
    used[streams] = best
    return used


def _misfit(transfers: Transfers, rest: np.ndarray, used: np.ndarray) -> np.ndarray:
    """By file: bytes that the other accesses cannot have, or lack; plus a small penalty for sizes in both
    directions."""
    left = rest - _by_bin(transfers, used)
    moved = transfers.moved - (np.repeat(transfers.access, 2, axis=0) * used).sum(axis=1)
    low = (left * LOWEST).sum(axis=1)
    high = (left[:, :-1] * BOUNDS).sum(axis=1) + np.where(left[:, -1] > 0, np.maximum(moved, 0), 0)
    misfit = np.maximum(low - moved, 0) + np.maximum(moved - high, 0)
    mixed = (used.reshape(-1, 2, TOP) > 0).all(axis=1).sum(axis=1)
    return np.asarray((misfit * 1048576.0 + left.sum(axis=1)).reshape(-1, 2).sum(axis=1) + 4.0 * mixed)


def _split(transfers: Transfers, rest: np.ndarray, first: tuple[int | None, ...]) -> np.ndarray:
    """The common sizes (2 n, TOP), each assigned to the direction in `first` as far as that has room."""
    used = np.zeros((len(rest), TOP), dtype=np.int64)
    free, bytes_free = rest.copy(), transfers.moved.copy()
    files = np.arange(len(transfers))
    for place in range(TOP):
        size, count = transfers.access[:, place], transfers.access_count[:, place]
        bins = np.searchsorted(BOUNDS, size)
        affordable = bytes_free.reshape(-1, 2) // np.maximum(size, 1)[:, np.newaxis]
        room = np.minimum(np.stack([free[2 * files + way, bins] for way in (0, 1)], axis=1), affordable)
        room = np.where((count > 0)[:, np.newaxis] & (size > 0)[:, np.newaxis], room, 0)
        total = np.maximum(room.sum(axis=1), 1)
        count = np.minimum(count, room.sum(axis=1))
        way = first[place]
        wished = np.rint(count * (room[:, 0] / total)).astype(np.int64) if way is None else count * (1 - way)
        reads = np.clip(wished, count - room[:, 1], room[:, 0])
        for way, given in enumerate((reads, count - reads)):
            used[2 * files + way, place] = given
            free[2 * files + way, bins] -= given
            bytes_free[2 * files + way] -= given * size
    return _exchanged(transfers, used)


def _exchanged(transfers: Transfers, used: np.ndarray) -> np.ndarray:
    """Common sizes of one bin exchanged between reads and writes if that improves the bytes of both."""
    bins = np.searchsorted(BOUNDS, transfers.access)
    known = used.sum(axis=1) == transfers.count
    both = np.flatnonzero(known[0::2] & known[1::2] & (transfers.count[0::2] > 0) & (transfers.count[1::2] > 0))
    reads, writes, size = used[0::2], used[1::2], transfers.access[both]
    for first, second in permutations(range(TOP), 2):
        larger = size[:, first] - size[:, second]
        possible = (larger > 0) & (bins[both, first] == bins[both, second])
        if not possible.any():
            continue
        surplus = (reads[both] * size).sum(axis=1) - transfers.moved[0::2][both]
        swaps = np.where(possible, surplus, 0) // np.maximum(larger, 1)
        swaps = np.clip(swaps, 0, np.minimum(reads[both, first], writes[both, second]))
        reads[both, first] -= swaps
        writes[both, first] += swaps
        reads[both, second] += swaps
        writes[both, second] -= swaps
    return used


def _by_bin(transfers: Transfers, used: np.ndarray) -> np.ndarray:
    """The common sizes as a histogram (streams, BINS)."""
    counts = np.zeros((len(used), BINS), dtype=np.int64)
    bins = np.repeat(np.searchsorted(BOUNDS, transfers.access), 2, axis=0)
    np.add.at(counts, (np.arange(len(used))[:, np.newaxis], bins), used)
    return counts


def _others(
    counts: np.ndarray, moved: np.ndarray, most_alike: np.ndarray, common: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Streams and sizes of `counts` (streams, BINS) accesses that move `moved` bytes, as far as their bins allow.

    Where a stream has more than `most_alike` of a bin they differ, and avoid the sizes `common` (streams, TOP).
    """
    low = counts * LOWEST
    over = np.maximum(moved - low.sum(axis=1), 0)
    highest = np.append(BOUNDS, 0)
    room = np.where(counts > 0, counts * (highest - LOWEST), 0)
    room[:, -1] = np.where(counts[:, -1] > 0, np.maximum(over - room[:, :-1].sum(axis=1), 0), 0)
    total = room.sum(axis=1)
    share = np.minimum(over, total) / np.maximum(total, 1)
    until = np.rint(np.cumsum(room, axis=1) * share[:, np.newaxis]).astype(np.int64)
    until[:, -1] = np.minimum(over, total)
    extra = np.clip(np.diff(until, axis=1, prepend=0), 0, room)
    # The rounding error of large numbers goes to the bins that still have room.
    for place in range(BINS):
        lost = np.minimum(over, total) - extra.sum(axis=1)
        extra[:, place] += np.clip(lost, -extra[:, place], room[:, place] - extra[:, place])
    stream, bins = np.nonzero(counts)
    count, bytes_of = counts[stream, bins], low[stream, bins] + extra[stream, bins]
    cell, number = numbered(count)
    mean, larger = bytes_of // np.maximum(count, 1), bytes_of % np.maximum(count, 1)
    size = mean[cell] + (number < larger[cell])
    largest = np.where(bins == BINS - 1, mean * 2, highest[bins])
    width = np.maximum(np.minimum(mean - LOWEST[bins], largest - mean - 1), 0)
    width = np.where((most_alike[stream] > 0) & (count > most_alike[stream]), width, 0)
    pairs = count // 2
    pair = np.minimum(number, count[cell] - 1 - number)
    apart = ((pairs[cell] - pair) * width[cell].astype(np.float64) / np.maximum(pairs[cell], 1)).astype(np.int64)
    middle = (count[cell] % 2 == 1) & (pair == pairs[cell])
    apart = np.where(middle, 0, np.where(number < pairs[cell], -apart, apart))
    size = size + apart
    # One step towards the mean keeps bin and sum, because the other one of the pair steps too.
    hits = np.flatnonzero((size[:, np.newaxis] == common[stream[cell]]).any(axis=1) & (apart != 0))
    step = np.sign(apart[hits])
    size[hits] -= step
    size[hits + count[cell[hits]] - 1 - 2 * number[hits]] += step
    return stream[cell], size


def _sums(stream: np.ndarray, size: np.ndarray, streams: int) -> np.ndarray:
    moved = np.zeros(streams, dtype=np.int64)
    np.add.at(moved, stream, size)
    return moved
