"""Counters that the lanes of a run share, with which a lane waits for the work of other lanes.

A counter only grows. A lane adds to it with an ADD item and waits for it with a WAIT item (`replay.engine.items`). The
lanes may belong to different processes where `cells` lies in shared memory.

A counter remembers when it reached the latest sums that lanes wait for. A lane that wakes up late counts from then on,
as if it had been woken in time. Otherwise each wait would make the replay longer by a wake-up (50 us). No wait ends
before the addition that it waited for; `Counters.reached_ns` says when it ends later.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.engine.issue import add_to_counter, counter_reached_ns

COUNTER_WORDS = 8
"""Words (int64) of a counter, which fill a cache line: the sum, then COUNTER_STAMPS times."""

COUNTER_STAMPS = 7
"""How many times a counter keeps: the time at which the sum reached its u-th multiple is at u modulo this."""

ARRIVALS = 0
"""Index of the counter of arrivals at collectives, of all ranks together."""

OWN_ARRIVALS = 1
"""Index of the counter of arrivals that the ranks of this node made."""

FIRST_RANK_COUNTER = 2
"""Index of the first counter that belongs to a single rank."""


class Counters:
    """The counters of a run. Times are in ns of CLOCK_MONOTONIC.

    `cells`: int64 (n, COUNTER_WORDS), all zero at first; row i is counter i.
    """

    __slots__ = ("cells",)

    def __init__(self, cells: np.ndarray) -> None:
        if (
            cells.ndim != 2
            or cells.shape[1] != COUNTER_WORDS
            or cells.dtype != np.int64
            or not cells.flags.c_contiguous
        ):
            raise ValueError(f"counters are contiguous int64[n, {COUNTER_WORDS}]")
        self.cells = cells

    @classmethod
    def of(cls, count: int) -> Counters:
        """`count` counters of this process alone."""
        return cls(np.zeros((count, COUNTER_WORDS), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.cells)

    def value(self, index: int) -> int:
        """The sum of counter `index`."""
        return int(self.cells[index, 0])

    def add(self, index: int, amount: int, multiple: int, now_ns: int) -> None:
        """Add `amount` to a counter at `now_ns`. Lanes that wait wake up when it reaches a `multiple`."""
        add_to_counter(self.cells, index, amount, multiple, now_ns)

    def reached_ns(self, index: int, least: int, multiple: int) -> int:
        """When counter `index` reached `least`, a multiple of `multiple` that it has reached. 0 for a `least` of 0.

        Exact while at most COUNTER_STAMPS - 2 further multiples have been reached. After that it is when the oldest of
        these was reached, which is later, but the same time where one addition jumped over all of them. While a lane is
        adding, the answer may be the time of that addition. The answer is never too early; a lane that saw the sum
        before the answer takes the time of its look.
        """
        return counter_reached_ns(self.cells, index, least, multiple)
