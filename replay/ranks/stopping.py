"""Ends a run before its time: by a signal, of which all processes learn, or at its time limit.

A process that is still running at the limit looks at `expired` and raises an error in order. If it hangs in a call that
does not return, or waits in MPI for a process that never comes, a thread prints the call and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.ranks.mpi import Communicator
from dxt_replay.traces.errors import DxtReplayError
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S

HEED_PERIOD_NS = 100 * NS_PER_MS  # ns between two looks of a process for a notice that another one was stopped
MEET_PERIOD_S = 0.004  # Seconds between two looks of a process that waits for the others to arrive
ONE_SIGNAL_NS = NS_PER_S
"""A second signal within this time (ns) counts as the first: the terminal and the launcher may both send it."""

EXIT_SIGNALLED = 128  # Added to the number of the signal that ended a program, as a shell reports it
PATIENCE_S = 2.0  # Seconds after the limit in which the process may end in order
TURN_S, MOST_TURNS_S = 0.3, 10.0  # between the ends of two processes, and of the first and the last: the launcher ends
# all others after the first, so that one message is printed.
LAST_RESORT_S = 5.0  # then `faulthandler`, whose thread needs no interpreter lock, ends a process whose hanging call
# keeps that lock, and prints its stack.


class StopRelay:
    """Passes a stop between this process and the others. The feeder thread calls it, and never waits for a process."""

    def __init__(self, stop: StopFlag, comm: Communicator) -> None:
        self._stop = stop
        self._comm = comm
        self._known_to_all = False
        self._next_ns = 0

    def heed(self) -> None:
        """Stop when another process was stopped, and notify the others when this one was. Looks every 100 ms."""
        now = time.monotonic_ns()
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
            time.sleep(MEET_PERIOD_S)
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
def stop_on_signals(stop: StopFlag) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in order. Another signal more than a second later ends the process at once."""
    with _heeded((signal.SIGINT, signal.SIGTERM), lambda number: stop.set()):
        yield


@contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise an exception, so that temporary files are removed.

    A signal that this process ignores stays ignored. Another signal more than a second later ends the process at once.

    Raises: KeyboardInterrupt; Terminated.
    """

    def unwind(number: int) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _heeded((number for number in ending if signal.getsignal(number) != signal.SIG_IGN), unwind):
        yield


@contextmanager
def _heeded(numbers: Iterable[int], heed: Callable[[int], None]) -> Iterator[None]:
    """Let the first of these signals call `heed`. A signal more than a second later calls the handler of before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {}
    first_ns: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        first_ns.append(time.monotonic_ns())
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


class TimeLimit:
    """Ends this process if the work of the context lasts longer than `seconds`; None for no limit.

    `where`: called in its own thread at the limit; returns the current work of the process.
    `clean_up`: called before the process is ended, for a second at most.
    """

    def __init__(self, seconds: float | None, comm: Communicator | None = None, doing: str = "at work") -> None:
        self.seconds = seconds
        self.where: Callable[[], str | None] = lambda: None
        self.clean_up: Callable[[], None] = lambda: None
        self._doing = doing
        self._work = "staging" if doing == "staging" else "the run"
        self._comm = comm or Communicator()
        self._over = threading.Event()
        self._expired = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="time limit", daemon=True)

    def __enter__(self) -> TimeLimit:
        if self.seconds is not None:
            self._thread.start()
            with suppress(ValueError, OSError, AttributeError):  # standard error is not a file
                turns = min(TURN_S * 2 * self._comm.size, MOST_TURNS_S)
                faulthandler.dump_traceback_later(self.seconds + PATIENCE_S + turns + LAST_RESORT_S, exit=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self.seconds is not None:
            faulthandler.cancel_dump_traceback_later()

    @property
    def expired(self) -> bool:
        return self._expired.is_set()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Name what the process does meanwhile, such as "dropping the page cache"."""
        before, self._doing = self._doing, what
        yield
        self._doing = before  # not after an error: that is where it was

    def message(self, standing: str | None = None) -> str:
        """The message at the end. `standing`: the call that hangs; without one, the work of the process."""
        where = standing or f"it was {self._doing}"
        return f"{self._work} is not over after {self.seconds or 0:g} s (--timeout): {where}"

    def _watch(self) -> None:
        if self._over.wait(self.seconds):
            return
        self._expired.set()
        self._comm.unwatch()
        if self._over.wait(PATIENCE_S):
            return
        standing = self._standing()
        turns = self._comm.rank if standing is not None else self._comm.size + self._comm.rank
        if self._over.wait(min(TURN_S * turns, MOST_TURNS_S)):
            return
        if standing is None and (absent := self._comm.absent()):
            standing = f"it was {self._doing}; {', '.join(absent)}"
        process = f"process {self._comm.rank}: " if self._comm.size > 1 else ""
        words = f"dxt-replay: error: {process}{self.message(standing)}\n"
        with suppress(OSError):
            os.write(2, words.encode(errors="backslashreplace"))
        cleaning = threading.Thread(target=self.clean_up, daemon=True)
        cleaning.start()
        cleaning.join(1.0)  # the storage of the output itself may hang
        os._exit(DxtReplayError.exit_status)

    def _standing(self) -> str | None:
        try:
            return self.where()
        except Exception as error:  # the state of a thread that is not stopped may change while it is read
            return f"it was {self._doing} ({error})" if sys.flags.dev_mode else None
