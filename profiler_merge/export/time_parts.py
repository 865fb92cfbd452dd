"""Finds cuts in time between which a stream holds a limited number of entries, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

BINS = 1 << 12
"""Intervals of the first pass; one with too many entries is divided into `FINER` for the next."""
FINER = 1 << 8

_COARSE = 16
"""A part is filled up to a whole bin: bins hold at most a sixteenth of a part, so parts are nearly full."""

Weighted = tuple[np.ndarray, np.ndarray]
"""int64 times (n,) and the number of entries (n,) of each."""


def time_cuts(stream: Callable[[], Iterable[Weighted]], first_ns: int, last_ns: int, limit: int) -> list[int]:
    """Ascending times; an entry belongs to the part `bisect_right(cuts, time)`, which holds at most `limit` entries.

    `stream` yields all entries again at each call, with times in [first_ns, last_ns]. More than `limit` entries at one
    nanosecond stay together.
    """
    edges = _divided(first_ns, last_ns + 1, BINS)
    while True:
        starts = np.array(edges[:-1], dtype=np.int64)
        counts = np.zeros(len(starts), dtype=np.int64)
        for times, entries in stream():
            bins = np.searchsorted(starts, times, side="right") - 1
            counts += np.bincount(bins, weights=entries, minlength=len(starts)).astype(np.int64)
        heavy = {i for i in np.flatnonzero(counts > limit // _COARSE).tolist() if edges[i + 1] - edges[i] > 1}
        if not heavy:
            return _filled(edges, counts.tolist(), limit)
        edges = [
            *(
                edge
                for i in range(len(starts))
                for edge in (_divided(edges[i], edges[i + 1], FINER)[:-1] if i in heavy else edges[i : i + 1])
            ),
            edges[-1],
        ]


def _divided(begin: int, end: int, bins: int) -> list[int]:
    """Edges from `begin` to `end`, at most `bins` intervals of whole nanoseconds; Python's integers never overflow."""
    return sorted({begin + (end - begin) * i // bins for i in range(bins + 1)})


def _filled(edges: list[int], counts: list[int], limit: int) -> list[int]:
    cuts, held = [], 0
    for edge, count in zip(edges, counts, strict=False):
        if held and held + count > limit:
            cuts.append(edge)
            held = 0
        held += count
    return cuts
