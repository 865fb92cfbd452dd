"""Operations over bins of time: amounts spread over the bins that they cover, and how many were in flight at once.

Bins are counted from time 0; no time may be negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.analysis.collect import counted
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import in_flight
from dxt_replay.traces.measures.operation_rows import TIME_COLUMNS, OperationRows, rows_of_batch
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.store.reader import Capture

PIECES_AT_A_TIME = 1 << 20
"""Pieces in memory at a time: an operation that covers many bins has many pieces."""

_NO_TIMES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Parts of operations, each within one bin. Arrays (n,): `operation` is its row, `bin` the bin, `start_ns` and
    `end_ns` int64 relative to the operation's start."""

    operation: np.ndarray
    bin: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def pieces(starts: np.ndarray, ends: np.ndarray, bin_ns: int) -> Iterator[Pieces]:
    """Cut [starts[i], ends[i]) at the multiples of `bin_ns`; an empty one yields one empty piece."""
    first = starts // bin_ns
    count = np.maximum((ends - 1) // bin_ns, first) - first + 1
    total = np.cumsum(count)
    begin = 0
    while begin < len(starts):
        before = int(total[begin] - count[begin])
        stop = max(int(np.searchsorted(total, before + PIECES_AT_A_TIME, side="right")), begin + 1)
        operation = np.repeat(np.arange(begin, stop), count[begin:stop])
        bin_ = first[operation] + np.arange(before, before + len(operation)) - (total - count)[operation]
        edge = bin_ * bin_ns - starts[operation]
        yield Pieces(
            operation=operation,
            bin=bin_,
            start_ns=np.maximum(edge, 0),
            end_ns=np.minimum(edge + bin_ns, (ends - starts)[operation]),
        )
        begin = stop


def shares(amount: np.ndarray, duration_ns: np.ndarray, part: Pieces) -> np.ndarray:
    """int64 (n,): share of each piece in its operation's `amount`, in proportion to time.

    The amount up to each instant is rounded down, so the pieces of an operation add up to its amount exactly. If the
    duration is 0, the first piece gets all of it.
    """
    whole, length = amount[part.operation], duration_ns[part.operation]
    per_ns = whole / np.maximum(length, 1)
    until = np.where(part.end_ns >= length, whole, (per_ns * part.end_ns).astype(np.int64))
    before = np.where(part.start_ns > 0, (per_ns * part.start_ns).astype(np.int64), 0)
    result: np.ndarray = np.minimum(until, whole) - np.minimum(before, whole)
    return result


class PeaksPerBin:
    """Largest number of intervals that share an instant, in each bin of `bin_ns`.

    It is the largest number at a start within the bin, or the number in flight at the begin of the bin: intervals
    started before it minus intervals ended before it. Intervals are half-open: one that starts as another ends does not
    meet it, and empty ones are never in flight.
    """

    def __init__(self, bin_ns: int) -> None:
        self._bin_ns = bin_ns
        self._open = _NO_TIMES  # ends of those in flight
        self._at_starts = _NO_TIMES
        self._change = _NO_TIMES

    def add(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Add intervals that are not empty, by their start."""
        if not len(starts):
            return
        counts, self._open = in_flight(self._open, starts, ends)
        last_bin = (ends - 1) // self._bin_ns
        self._reach(int(last_bin.max()) + 2)
        place = starts // self._bin_ns
        first = runs(place)
        bins = place[first]
        self._at_starts[bins] = np.maximum(self._at_starts[bins], np.maximum.reduceat(counts, first))
        size = len(self._change)
        self._change += np.bincount(place + 1, minlength=size) - np.bincount(last_bin + 1, minlength=size)

    def _reach(self, bins: int) -> None:
        if bins > len(self._change):
            size = max(bins, 2 * len(self._change))
            self._at_starts = np.pad(self._at_starts, (0, size - len(self._at_starts)))
            self._change = np.pad(self._change, (0, size - len(self._change)))

    def peaks(self, bins: int) -> np.ndarray:
        """int64 (bins,): the peaks of bins 0 to bins - 1."""
        self._reach(bins)
        result: np.ndarray = np.maximum(self._at_starts, np.cumsum(self._change))[:bins]
        return result


def peaks_over_ranks(capture: Capture, layers: FileLayers, *, start_ns: int, bin_ns: int, bins: int) -> np.ndarray:
    """int64 (bins,): the peaks of the transfers of all ranks together, in bins from `start_ns` on.

    Memory: a batch of each rank. Raises: CaptureError when a part is damaged.
    """
    peaks = PeaksPerBin(bin_ns)

    def of_rank(rank: int) -> Iterator[OperationRows]:
        for batch in capture.operations(rank, columns=TIME_COLUMNS):
            yield counted(rows_of_batch(batch, rank, TIME_COLUMNS), layers)

    for starts, ends in in_time_order([of_rank(rank) for rank in capture.ranks]):
        peaks.add(starts - start_ns, ends - start_ns)
    return peaks.peaks(bins)


def in_time_order(streams: list[Iterator[OperationRows]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(starts, ends) of the rows of several streams, each in start order, merged into one in start order.

    Rows without duration are left out. Memory: a batch of each stream.
    """
    waiting: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    running = dict(enumerate(streams))
    while running or waiting:
        for number in [number for number in running if number not in waiting]:
            rows = next(running[number], None)
            if rows is None:
                del running[number]
                continue
            real = rows.where(rows.end_ns > rows.start_ns)
            if len(real):
                waiting[number] = (real.start_ns, real.end_ns)
        if any(number not in waiting for number in running) or not waiting:
            continue
        known_until = min((int(waiting[number][0][-1]) for number in running), default=np.iinfo(np.int64).max)
        parts = []
        for number, (starts, ends) in list(waiting.items()):
            stop = int(np.searchsorted(starts, known_until, side="right"))
            parts.append((starts[:stop], ends[:stop]))
            waiting[number] = (starts[stop:], ends[stop:])
            if stop == len(starts):
                del waiting[number]
        starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(starts, kind="stable")  # merges ascending parts in linear time
        yield starts[order], ends[order]
