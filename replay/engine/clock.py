"""What the lanes of a run share: its start, the flag that stops it, counters, and how many lanes may spin.

All times are in ns of CLOCK_MONOTONIC. The compiled core, which only a run needs, is imported where it is called.
"""

from __future__ import annotations

import os

import numpy as np

LEAST_SPINNING_LANES = 2  # How many lanes of a process may spin at once, even where it has a single processor
MOST_LANES_PER_PROCESSOR = 16
"""With more lanes than this for each of its processors, no lane of a process spins: the others need the processors."""

COUNTER_WORDS = 8  # Words (int64) of a counter, which fill a cache line: the sum, then COUNTER_STAMPS times
COUNTER_STAMPS = 7
"""How many times a counter keeps: the time at which the sum reached its u-th multiple is at u modulo this."""

ARRIVALS = 0  # Index of the counter of arrivals at collectives, of all ranks together
OWN_ARRIVALS = 1  # Index of the counter of arrivals that the ranks of this node made
FIRST_RANK_COUNTER = 2  # Index of the first counter that belongs to a single rank


class StopFlag:
    """The flag that stops all lanes for good.

    `cell`: int64 (1,), 1 once it is set; the lanes read it atomically.

    The flag is one aligned word and carries no other data, so its store needs no memory ordering.
    """

    __slots__ = ("cell",)

    def __init__(self) -> None:
        self.cell = np.zeros(1, dtype=np.int64)

    def set(self) -> None:
        """Stop the lanes. Operations in flight are completed and recorded; waits and compute are given up."""
        self.cell[0] = 1

    def is_set(self) -> bool:
        return bool(self.cell[0])


class StartGate:
    """The start of a run, t0, for which all lanes wait.

    `cell`: int64 (1,), t0 in ns; 0 while it is not known.

    Lanes are woken and open their first files: choose t0 some ms ahead.
    """

    __slots__ = ("cell",)

    def __init__(self) -> None:
        self.cell = np.zeros(1, dtype=np.int64)

    def open(self, t0_ns: int) -> None:
        """Set the start, in ns of CLOCK_MONOTONIC (`time.monotonic_ns`). Raises: RuntimeError the second time."""
        from dxt_replay.replay.engine.issue import wake_waiting

        if self.cell[0] or t0_ns <= 0:
            raise RuntimeError("a start gate opens once, at a positive time")
        self.cell[0] = t0_ns
        wake_waiting(self.cell)

    @property
    def t0_ns(self) -> int:
        """The start, 0 while it is not known."""
        return int(self.cell[0])


class Counters:
    """The counters of a run, with which a lane waits for the work of other lanes.

    A counter only grows. A lane adds to it with an ADD item and waits for it with a WAIT item. The lanes may belong to
    different processes where `cells` lies in shared memory.
    A counter remembers when it reached the latest sums that lanes wait for. A lane that wakes up late counts from then
    on, as if it had been woken in time: else each wait would make the replay longer by a wake-up (50 us). No wait ends
    before the addition that it waited for; `reached_ns` says when it ends later.

    `cells`: contiguous int64 (n, COUNTER_WORDS), all zero at first; row i is counter i.
    """

    __slots__ = ("cells",)

    def __init__(self, cells: np.ndarray) -> None:
        self.cells = cells

    @classmethod
    def of(cls, count: int) -> Counters:
        return cls(np.zeros((count, COUNTER_WORDS), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.cells)

    def value(self, index: int) -> int:
        return int(self.cells[index, 0])

    def add(self, index: int, amount: int, multiple: int, now_ns: int) -> None:
        """Add `amount` to a counter at `now_ns`. Lanes that wait wake up when it reaches a `multiple`."""
        from dxt_replay.replay.engine.issue import add_to_counter

        add_to_counter(self.cells, index, amount, multiple, now_ns)

    def reached_ns(self, index: int, least: int, multiple: int) -> int:
        """When counter `index` reached `least`, a multiple of `multiple` that it has reached. 0 for a `least` of 0.

        Exact while at most COUNTER_STAMPS - 2 further multiples have been reached. After that it is when the oldest of
        these was reached, which is later, but the same time where one addition jumped over all of them. While a lane is
        adding, the answer may be the time of that addition. The answer is never too early; a lane that saw the sum
        before the answer takes the time of its look.
        """
        from dxt_replay.replay.engine.issue import counter_reached_ns

        return counter_reached_ns(self.cells, index, least, multiple)


def share_processors(processes: int, lanes: int) -> None:
    """Let as many lanes of this process spin at once as it has processors, or none if it has too many lanes.

    `processes`: how many share this machine.
    `lanes`: of this process. Call it before they run.
    """
    from dxt_replay.replay.engine.issue import let_lanes_spin

    processors = max(len(os.sched_getaffinity(0)) // processes, 1)
    crowded = lanes > MOST_LANES_PER_PROCESSOR * processors
    let_lanes_spin(0 if crowded else max(processors, LEAST_SPINNING_LANES))
