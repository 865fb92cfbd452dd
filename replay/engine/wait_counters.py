"""Counters that the lanes of a run share: how one lane waits for what others have done.

A counter only grows. A lane adds to it with an ADD item and waits with a WAIT item (`replay.engine.items`), in either
core; both sides may live in different processes when `cells` lies in memory that they share.

A counter remembers when it reached the latest sums that lanes wait for. A lane that woke up late goes on as if it had
woken in time, as far as it can: else each hand-over would add a wake-up (50 us) to the replay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from traces.errors import ReplayError

COUNTER_WORDS = 8
"""int64 of a counter, which fill a cache line: the sum, then COUNTER_STAMPS times."""

COUNTER_STAMPS = 7
"""The time at which the sum reached the u-th multiple is kept at u modulo this, so the latest ones are known."""

ARRIVALS = 0
"""The counter at which ranks meet: how many arrivals at collectives there were, of all ranks together."""

OWN_ARRIVALS = 1
"""Those of them that the ranks of this node made."""

FIRST_RANK_COUNTER = 2
"""The first counter that belongs to a single rank."""


class Counters:
    """`cells`: int64[n, COUNTER_WORDS], all zero at first; counter i is row i. Times are CLOCK_MONOTONIC in ns.

    `shared`: whether other processes add to them too, which only the compiled core can do without losing any.
    Raises: ReplayError when they are shared and that core is not installed.
    """

    __slots__ = ("_add", "_lock", "cells")

    def __init__(self, cells: np.ndarray, *, shared: bool = False) -> None:
        if (
            cells.ndim != 2
            or cells.shape[1] != COUNTER_WORDS
            or cells.dtype != np.int64
            or not cells.flags.c_contiguous
        ):
            raise ValueError(f"counters are contiguous int64[n, {COUNTER_WORDS}]")
        self.cells = cells
        self._lock = threading.Lock()
        self._add = _compiled_add()
        if shared and self._add is None:
            raise ReplayError(
                "ranks of several processes that meet at collectives need the compiled issue loop, which is not "
                "installed: install again with a C compiler present, or replay in one process"
            )

    @classmethod
    def of(cls, count: int) -> Counters:
        """`count` counters of this process alone."""
        return cls(np.zeros((count, COUNTER_WORDS), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.cells)

    def value(self, index: int) -> int:
        """What counter `index` stands at."""
        return int(self.cells[index, 0])

    def add(self, index: int, amount: int, multiple: int, now_ns: int) -> None:
        """Add to a counter at `now_ns`, and wake the compiled lanes that wait for it when a multiple is reached."""
        if self._add is not None:
            self._add(self.cells, index, amount, multiple, now_ns)
            return
        with self._lock:
            cells = self.cells[index]
            before = int(cells[0])
            last = (before + amount - 1) // multiple + 1
            for unit in range(max(before // multiple + 1, last - COUNTER_STAMPS + 1), last + 1):
                place = 1 + unit % COUNTER_STAMPS
                cells[place] = max(int(cells[place]), now_ns)
            cells[0] += amount

    def reached_ns(self, index: int, least: int, multiple: int) -> int:
        """When counter `index`, which is at least `least` (a multiple), became so; 0 when that is too long ago."""
        unit = least // multiple
        if unit <= 0:
            return 0
        stamp = int(self.cells[index, 1 + unit % COUNTER_STAMPS])
        return stamp if self.value(index) // multiple - unit < COUNTER_STAMPS - 1 else 0


def _compiled_add() -> Callable[[np.ndarray, int, int, int, int], None] | None:
    """The atomic addition with its wake-up, None without the compiled core."""
    try:
        from replay.engine._issue import add_to_counter
    except ImportError:
        return None
    return add_to_counter
