"""The clock of a run: its start, the flag that stops it, and how many lanes may spin.

All times are in ns of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

import numpy as np

LEAST_SPINNING_LANES = 2
"""How many lanes of a process may spin at once, even where it has a single processor."""

MOST_LANES_PER_PROCESSOR = 16
"""With more lanes than this for each of its processors, no lane of a process spins: the others need the processors."""


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
        """Whether `set` was called."""
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
        from dxt_replay.replay.engine.issue import wake_waiting  # the compiled core, which only a run needs

        if self.cell[0] or t0_ns <= 0:
            raise RuntimeError("a start gate opens once, at a positive time")
        self.cell[0] = t0_ns
        wake_waiting(self.cell)

    @property
    def t0_ns(self) -> int:
        """The start, 0 while it is not known."""
        return int(self.cell[0])


class Clock(Protocol):
    """A clock in ns that never goes back."""

    def now(self) -> int:
        """The time in ns."""

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep to about `deadline_ns`; may come back early or late."""


class MonotonicClock:
    """CLOCK_MONOTONIC."""

    now = staticmethod(time.monotonic_ns)

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep; returns at once when the deadline has passed."""
        time.sleep(max(0, deadline_ns - time.monotonic_ns()) / 1e9)


def share_processors(processes: int, lanes: int) -> None:
    """Let as many lanes of this process spin at once as it has processors, or none if it has too many lanes.

    `processes`: how many share this machine.
    `lanes`: of this process. Call it before they run.
    """
    from dxt_replay.replay.engine.issue import let_lanes_spin

    processors = max(len(os.sched_getaffinity(0)) // processes, 1)
    crowded = lanes > MOST_LANES_PER_PROCESSOR * processors
    let_lanes_spin(0 if crowded else max(processors, LEAST_SPINNING_LANES))
