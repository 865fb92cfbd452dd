"""Number of operations in flight together: the exact maximum in each time bin, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dxt_replay.traces.measures._passes import in_flight
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.stable_order import runs

_NO_TIMES = np.empty(0, dtype=np.int64)


class PeakCounter:
    """Largest number of intervals that share an instant, per bin. Its state is the ends of those in flight.

    Intervals are half-open: one that starts as another ends does not meet it, and empty ones are never in flight.
    """

    def __init__(self) -> None:
        self._open = _NO_TIMES
        self.peak = 0

    def add(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Add intervals that are not empty, by their start.

        Returns: the number in flight at each start, the new interval included.
        """
        if not len(starts):
            return _NO_TIMES
        counts, self._open = in_flight(self._open, starts, ends)
        self.peak = max(self.peak, int(counts.max()))
        return counts


class PeaksPerBin:
    """Largest number in flight in each bin of `bin_ns`, counted from time 0; no time may be negative.

    It is the largest number at a start within the bin, or the number in flight at the begin of the bin: intervals
    started before it minus intervals ended before it.
    """

    def __init__(self, bin_ns: int) -> None:
        self._bin_ns = bin_ns
        self._counter = PeakCounter()
        self._at_starts = _NO_TIMES
        self._change = _NO_TIMES

    def add(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Add intervals that are not empty, by their start."""
        if not len(starts):
            return
        counts = self._counter.add(starts, ends)
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
        carried = np.cumsum(self._change)
        result: np.ndarray = np.maximum(self._at_starts, carried)[:bins]
        return result


def in_time_order(streams: list[Iterator[OperationRows]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(starts, ends) of the rows of several streams, each in start order, merged into one in start order.

    Rows without duration are left out.
    Memory: a batch of each stream.
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
