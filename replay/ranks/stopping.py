"""Stopping a run early: a signal sets the stop flag of its process, and all processes learn of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dxt_replay.replay.engine.clock import Clock, MonotonicClock, StopFlag
from dxt_replay.replay.ranks.comm import Communicator
from dxt_replay.traces.errors import DxtReplayError
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S

HEED_PERIOD_NS = 100 * NS_PER_MS
"""ns between two looks of a process for a notice that another one was stopped."""

MEET_PERIOD_NS = 4 * NS_PER_MS
"""ns between two looks of a process that waits for the others to arrive."""

ONE_SIGNAL_NS = NS_PER_S
"""A second signal within this time (ns) counts as the first: the terminal and the launcher may both send it."""

EXIT_SIGNALLED = 128
"""Added to the number of the signal that ended a program, as a shell reports it."""


class StopRelay:
    """Passes a stop between this process and the others. The feeder thread calls it, and never waits for a process."""

    def __init__(self, stop: StopFlag, comm: Communicator, clock: Clock | None = None) -> None:
        self._stop = stop
        self._comm = comm
        self._clock = clock or MonotonicClock()
        self._known_to_all = False
        self._next_ns = 0

    def heed(self) -> None:
        """Stop when another process was stopped, and notify the others when this one was. Looks every 100 ms."""
        now = self._clock.now()
        if self._known_to_all or now < self._next_ns:
            return
        self._next_ns = now + HEED_PERIOD_NS
        if self._stop.is_set():
            self._comm.tell_stop()
            self._known_to_all = True
        elif self._comm.told_to_stop():
            self._stop.set()
            self._known_to_all = True

    def meet(self) -> None:
        """Wait for the other processes to come here, and `heed` meanwhile. Collective.

        The wait is not one of MPI, in which this process would not notice signals. Afterwards all flags are the same.
        """
        all_there = self._comm.arrive()
        while not all_there():
            self.heed()
            self._clock.sleep_until(self._clock.now() + MEET_PERIOD_NS)
        if self._comm.end_of_notices():
            self._stop.set()

    def then_meet(self, work: Callable[[], None]) -> None:
        """Do `work`, then `meet`; also when the work raised an error, which `together` passes on to the others."""
        try:
            work()
        except DxtReplayError:
            self.meet()
            raise
        self.meet()


class Terminated(SystemExit):
    """A signal other than Ctrl-C's ended the process; `code` is the exit status that a shell reports for it."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_SIGNALLED + number)


@contextmanager
def stop_on_signals(stop: StopFlag, clock: Clock | None = None) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in order. Another signal more than a second later ends the process at once."""
    with _heeded((signal.SIGINT, signal.SIGTERM), lambda number: stop.set(), clock or MonotonicClock()):
        yield


@contextmanager
def unwind_on_signals(clock: Clock | None = None) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise an exception, so that temporary files are removed.

    A signal that this process ignores stays ignored. Another signal more than a second later ends the process at once.

    Raises: KeyboardInterrupt; Terminated.
    """

    def unwind(number: int) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _heeded(
        (number for number in ending if signal.getsignal(number) != signal.SIG_IGN), unwind, clock or MonotonicClock()
    ):
        yield


@contextmanager
def _heeded(numbers: Iterable[int], heed: Callable[[int], None], clock: Clock) -> Iterator[None]:
    """Let the first of these signals call `heed`. A signal more than a second later calls the handler of before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {}
    first_ns: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        first_ns.append(clock.now())
        if len(first_ns) == 1:
            heed(number)
        elif first_ns[-1] - first_ns[0] > ONE_SIGNAL_NS:
            signal.signal(number, previous[number])
            signal.raise_signal(number)

    for number in map(int, numbers):
        previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
