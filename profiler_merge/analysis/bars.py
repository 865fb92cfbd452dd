"""Joins operations and spans to as few bars as a picture can hold. It states the resolution and keeps exact totals.

At a resolution T, two neighbours of one lane and kind become one bar if both and the gap between them are shorter than
T, and if they begin in the same stretch of about 400 T. At resolution 0 each is a bar of its own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

KEYS = 256
"""Keys of pairs of neighbours: 0 if both are at one instant, then four keys per power of two."""

_STRETCH_POWER = 9
"""A stretch is 256 to 512 times as long as the resolution, so that a busy lane still shows its variation."""

_POWER_OF_ONE = 1023
"""Exponent bits of 1.0."""

COLUMNS = ("start_ns", "end_ns", "operations", "bytes", "busy_ns", "file_id", "offset")
_SEVERAL = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bars:
    """int64 columns (n,), in start order. `busy_ns`: sum of the durations; `file_id`: -1 for several files; `offset`:
    of a single operation (of a step its number), else -1."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray
    bytes: np.ndarray
    busy_ns: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def single(cls, columns: Mapping[str, np.ndarray]) -> Bars:
        """One bar for each operation; columns that are missing are 0, or -1 for file and offset."""
        start, end = columns["start_ns"], columns["end_ns"]
        unknown = np.full(len(start), _SEVERAL, dtype=np.int64)
        return cls(
            start_ns=start,
            end_ns=end,
            operations=np.ones(len(start), dtype=np.int64),
            bytes=columns.get("bytes", np.zeros(len(start), dtype=np.int64)),
            busy_ns=end - start,
            file_id=columns.get("file_id", unknown),
            offset=columns.get("offset", unknown),
        )

    def joined(self, apart: np.ndarray) -> Bars:
        """The same bars, joined with their neighbours where `apart`, bool (n - 1,), is False."""
        if apart.all() or not len(self):
            return self
        first = np.concatenate(([0], np.flatnonzero(apart) + 1))
        files = np.minimum.reduceat(self.file_id, first)
        same = files == np.maximum.reduceat(self.file_id, first)
        single = np.diff(np.append(first, len(self))) == 1
        return Bars(
            start_ns=self.start_ns[first],
            end_ns=np.maximum.reduceat(self.end_ns, first),
            operations=np.add.reduceat(self.operations, first),
            bytes=np.add.reduceat(self.bytes, first),
            busy_ns=np.add.reduceat(self.busy_ns, first),
            file_id=np.where(same, files, _SEVERAL),
            offset=np.where(single, self.offset[first], _SEVERAL),
        )

    @staticmethod
    def chain(parts: list[Bars]) -> Bars:
        """Concatenate parts."""
        none = np.zeros(0, dtype=np.int64)
        return Bars(**{name: np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in COLUMNS})

    def rows(self, begin: int, stop: int | None = None) -> Bars:
        """Bars `begin` to `stop`."""
        return Bars(**{name: getattr(self, name)[begin:stop] for name in COLUMNS})


def pair_keys(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """int64 (n - 1,), 0 to KEYS - 1: the coarseness from which neighbours i and i + 1, in start order, are drawn as one
    bar.

    Times are exact up to 2**53 ns, which is 104 days."""
    duration = end_ns - start_ns
    gap = start_ns[1:] - end_ns[:-1]
    longest = np.maximum(np.maximum(gap, 0), np.maximum(duration[1:], duration[:-1]))
    # The upper bits of a float are its power of two and then its quarter; 0 becomes negative.
    quarter = (longest.astype(np.float64).view(np.int64) >> 50) - (4 * _POWER_OF_ONE - 1)
    power = (np.abs(start_ns[1:] ^ start_ns[:-1]).astype(np.float64).view(np.int64) >> 52) - (_POWER_OF_ONE - 1)
    keys: np.ndarray = np.clip(np.maximum(quarter, 1 + 4 * (power - _STRETCH_POWER)), 0, KEYS - 1)
    return keys


def resolution_ns(key: int | None) -> int:
    """The resolution of a key: shorter operations and gaps are joined at it; 0 if every operation is a bar."""
    if key is None:
        return 0
    if key == 0:
        return 1
    power, quarter = divmod(key - 1, 4)
    return -(-((5 + quarter) << power) // 4)


def resolution_key(counts: np.ndarray, tracks: int, most_bars: int) -> int | None:
    """Key of the finest resolution that makes at most `most_bars`; None if every operation can be a bar of its own.

    `counts` (KEYS,): how often each key of neighbours occurs. `tracks`: number of tracks."""
    if int(counts.sum()) + tracks <= most_bars:
        return None
    bars = tracks + int(counts.sum()) - np.cumsum(counts)
    enough = np.flatnonzero(bars <= most_bars)
    return int(enough[0]) if len(enough) else KEYS - 1


def apart_at(start_ns: np.ndarray, end_ns: np.ndarray, key: int | None) -> np.ndarray:
    """bool (n - 1,): the neighbours that stay apart at the resolution of `key`; all if it is None."""
    if key is None:
        return np.ones(max(len(start_ns) - 1, 0), dtype=bool)
    apart: np.ndarray = pair_keys(start_ns, end_ns) > key
    return apart
