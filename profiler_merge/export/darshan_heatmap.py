"""Bytes moved over time by one rank, in the form of Darshan's HEATMAP."""

from __future__ import annotations

import struct

import numpy as np

from dxt_replay.traces.units import NS_PER_S

FIRST_WIDTH_NS = 100_000_000
MAX_BINS = 200
"""darshan-heatmap.c: bins of 0.1 s, doubled until the run fits in 200 of them."""

VERSION = 1


def heatmap_bins(end_ns: int) -> tuple[int, int]:
    """(width in ns, number) of the bins for a run that ends at `end_ns`; every rank has the same."""
    width = FIRST_WIDTH_NS
    while end_ns > width * MAX_BINS:
        width *= 2
    return width, max(1, -(-end_ns // width))


class Heatmap:
    """The bins of one rank at one interface: `read` and `write`, int64 bytes."""

    def __init__(self, width_ns: int, bins: int) -> None:
        self._width_ns = width_ns
        self.read = np.zeros(bins, dtype=np.int64)
        self.write = np.zeros(bins, dtype=np.int64)

    def add(self, length: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, is_write: np.ndarray) -> None:
        """Spread the bytes of operations evenly over their time; each byte counts once in total.

        Bytes outside of the bins (a start before the job's) go to the nearest bin.
        """
        moved = length > 0
        length, start_ns, end_ns, is_write = length[moved], start_ns[moved], end_ns[moved], is_write[moved]
        last = len(self.read) - 1
        first_bin = np.clip(start_ns // self._width_ns, 0, last)
        # an operation that ends at a border has no time behind it
        last_bin = np.clip(-(-end_ns // self._width_ns) - 1, first_bin, last)
        within = first_bin == last_bin
        for bins, mine in ((self.read, ~is_write), (self.write, is_write)):
            np.add.at(bins, first_bin[mine & within], length[mine & within])
            for row in np.flatnonzero(mine & ~within).tolist():
                self._spread(
                    bins, int(length[row]), int(start_ns[row]), int(end_ns[row]), first_bin[row], last_bin[row]
                )

    def _spread(self, bins: np.ndarray, length: int, start_ns: int, end_ns: int, first: int, last: int) -> None:
        borders = (np.arange(first + 1, last + 1) * self._width_ns - start_ns) / (end_ns - start_ns)
        edges = np.rint(borders * length).astype(np.int64)
        bins[first : last + 1] += np.diff(edges, prepend=0, append=length)

    def encode(self, record_id: int, rank: int) -> bytes:
        """The decompressed bytes of the record; empty if no byte was moved, since Darshan leaves it out."""
        if not (self.read.any() or self.write.any()):
            return b""
        head = struct.pack("<Qqdq16x", record_id, rank, self._width_ns / NS_PER_S, len(self.read))
        return head + self.write.astype("<i8").tobytes() + self.read.astype("<i8").tobytes()
