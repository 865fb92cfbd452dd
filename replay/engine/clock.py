"""The clock of a run: its start, the flag that stops it, and how a lane waits for an instant.

All times are in ns of CLOCK_MONOTONIC. A wait sleeps until shortly before its deadline and spins the rest, unless as
many compiled lanes of the process are spinning already as it has processors.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol

import numpy as np

WINDOW_NS = 60_000
"""A lane spins for this long before an item is due. Most sleeps with 1 ns timer slack overshoot by less."""

PIECE_NS = 50_000_000
"""The longest sleep of a lane, after which it looks for a stop."""

LONG_PIECE_NS = 250_000_000
"""The longest sleep of a lane that has nothing to do yet."""

LEAST_SPINNING_LANES = 2
"""How many lanes of a process may spin at once, even where it has a single processor."""

CROWDED_WAITS = 16
"""How many waits a compiled lane sleeps to the end after one at which too many lanes were spinning already. Such a wait
ends late by a wake-up (50 us), but lanes that spin for each other's processors are late by much more."""


class StopFlag:
    """The flag that stops all lanes for good.

    `cell`: int64 (1,), 1 once it is set; the compiled lanes read it atomically.

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

    Compiled lanes are woken, Python lanes look every 5 ms; then they open their first files: choose t0 some tens of ms
    ahead.
    """

    __slots__ = ("cell",)

    def __init__(self) -> None:
        self.cell = np.zeros(1, dtype=np.int64)

    def open(self, t0_ns: int) -> None:
        """Set the start, in ns of CLOCK_MONOTONIC (`time.monotonic_ns`). Raises: RuntimeError the second time."""
        if self.cell[0] or t0_ns <= 0:
            raise RuntimeError("a start gate opens once, at a positive time")
        self.cell[0] = t0_ns
        if (compiled := _compiled()) is not None:
            compiled.wake_waiting(self.cell)

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


def share_processors(processes: int) -> None:
    """Let as many lanes of this process spin at once as it has processors, shared with `processes` on this machine."""
    if (compiled := _compiled()) is not None:
        processors = len(os.sched_getaffinity(0))
        compiled.let_lanes_spin(max(processors // processes, LEAST_SPINNING_LANES))


def _compiled() -> ModuleType | None:
    """The compiled core; None where it is not installed."""
    try:
        from dxt_replay.replay.engine import _issue
    except ImportError:
        return None
    return _issue


STOPPED = -1
"""What a wait returns in place of a time when it was given up for a stop."""


def sleep_near(clock: Clock, deadline_ns: int, now: int, stop: StopFlag) -> int:
    """Sleep until shortly before the deadline. Returns the clock's last time in ns, or STOPPED."""
    while deadline_ns - now > WINDOW_NS:
        clock.sleep_until(min(deadline_ns - WINDOW_NS, now + PIECE_NS))
        if stop.is_set():
            return STOPPED
        now = clock.now()
    return now


def wait_until(clock: Clock, deadline_ns: int, now: int, stop: StopFlag) -> int:
    """Sleep until shortly before the deadline, then spin. Returns the clock's last time (>= deadline), or STOPPED."""
    now = sleep_near(clock, deadline_ns, now, stop)
    while now != STOPPED and now < deadline_ns:
        now = clock.now()
    return now


@contextmanager
def fine_timer_slack() -> Iterator[None]:
    """Give this thread a timer slack of 1 ns instead of the default of 50 us (prctl(2)), and restore it afterwards."""
    set_slack, get_slack = 29, 30
    libc = ctypes.CDLL(None)
    before = libc.prctl(get_slack, 0, 0, 0, 0)
    libc.prctl(set_slack, 1, 0, 0, 0)
    try:
        yield
    finally:
        if before > 0:
            libc.prctl(set_slack, before, 0, 0, 0)
