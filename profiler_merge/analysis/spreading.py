"""Spreads quantities of operations over the time bins that they cover; totals stay exact integers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PIECES_AT_A_TIME = 1 << 20
"""Pieces in memory at a time: an operation that covers many bins has many pieces."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Parts of operations, each within one bin. Arrays (n,): `operation` is its row, `bin` the bin, `start_ns` and
    `end_ns` int64 relative to the operation's start."""

    operation: np.ndarray
    bin: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def pieces(starts: np.ndarray, ends: np.ndarray, bin_ns: int) -> Iterator[Pieces]:
    """Cut [starts[i], ends[i]) at the multiples of `bin_ns`; an empty one yields one empty piece.

    Bins are counted from time 0; no time may be negative.
    """
    first = starts // bin_ns
    last = np.maximum((ends - 1) // bin_ns, first)
    count = last - first + 1
    total = np.cumsum(count)
    begin = 0
    while begin < len(starts):
        before = int(total[begin] - count[begin])
        stop = max(int(np.searchsorted(total, before + PIECES_AT_A_TIME, side="right")), begin + 1)
        yield _cut(starts[begin:stop], ends[begin:stop], first[begin:stop], count[begin:stop], bin_ns, begin)
        begin = stop


def _cut(
    starts: np.ndarray, ends: np.ndarray, first: np.ndarray, count: np.ndarray, bin_ns: int, offset: int
) -> Pieces:
    operation = np.repeat(np.arange(len(starts)), count)
    number = np.arange(len(operation)) - np.repeat(np.cumsum(count) - count, count)
    bin_ = first[operation] + number
    edge = bin_ * bin_ns - starts[operation]
    return Pieces(
        operation=operation + offset,
        bin=bin_,
        start_ns=np.maximum(edge, 0),
        end_ns=np.minimum(edge + bin_ns, (ends - starts)[operation]),
    )


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
