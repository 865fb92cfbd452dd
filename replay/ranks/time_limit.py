"""The longest time that a run may take.

If this process is still running, it looks at `expired` and raises an error in order. If it hangs in a call that does
not return, or waits in MPI for a process that never comes, a thread prints the call and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from dxt_replay.replay.ranks.comm import Communicator, Solo
from dxt_replay.traces.errors import DxtReplayError

PATIENCE_S = 2.0
"""Seconds after the limit in which the process may end in order."""

TURN_S, MOST_TURNS_S = 0.3, 10.0
"""Seconds between the ends of two processes, and between the first and the last: the launcher ends all others after the
first, so that one message is printed."""

LAST_RESORT_S = 5.0
"""Seconds after which a process is ended whose Python threads cannot run, because the call that hangs keeps the
interpreter lock. Its stack is then printed by `faulthandler`, whose thread needs no lock."""


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
        self._comm = comm or Solo()
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
        """Whether the time is over, so that the caller must raise its error now."""
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
        standing = standing or self._absent()
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

    def _absent(self) -> str | None:
        """The processes of this node that do not run, if this one waits for others."""
        absent = self._comm.absent()
        return f"it was {self._doing}; {', '.join(absent)}" if absent else None
