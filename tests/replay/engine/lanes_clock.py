"""A clock on which several lanes run in virtual time, so that every run of them gives the same times."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest

from dxt_replay.replay.engine import clock, issue


class LanesClock:
    """Virtual time for lanes in threads of their own, of which one runs at a time.

    Time stands still while a lane runs. When all lanes sleep, time goes to the earliest deadline. A lane that asks to
    sleep to a time that is not later looks for news of another lane: it goes on when `news()` has another value, and
    within the same instant. When every lane that is left looks, `stuck` is called, and each lane looks once more.
    """

    def __init__(self, time_ns: int, news: Callable[[], object], stuck: Callable[[], None]) -> None:
        self._time_ns = time_ns
        self._news = news
        self._stuck = stuck
        self._order = count()
        self._asleep: list[tuple[int, int, threading.Semaphore]] = []
        self._looking: list[tuple[object, threading.Semaphore]] = []
        self._all_done = threading.Semaphore(0)

    def now(self) -> int:
        return self._time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        turn = threading.Semaphore(0)
        if deadline_ns > self._time_ns:
            self._sleep(deadline_ns, turn)
        else:
            self._looking.append((self._news(), turn))
        self._next().release()
        turn.acquire()

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run each body in a thread; returns when all have returned."""
        turns = [threading.Semaphore(0) for _ in bodies]
        threads = [threading.Thread(target=self._body, args=pair) for pair in zip(bodies, turns, strict=True)]
        for thread, turn in zip(threads, turns, strict=True):
            self._sleep(self._time_ns, turn)
            thread.start()
        self._next().release()
        self._all_done.acquire()
        for thread in threads:
            thread.join()

    def _body(self, body: Callable[[], None], turn: threading.Semaphore) -> None:
        turn.acquire()
        try:
            body()
        finally:
            self._next().release()

    def _sleep(self, deadline_ns: int, turn: threading.Semaphore) -> None:
        heapq.heappush(self._asleep, (deadline_ns, next(self._order), turn))

    def _next(self) -> threading.Semaphore:
        """The lane whose turn it is."""
        news = self._news()
        for place, (seen, turn) in enumerate(self._looking):
            if seen != news:
                del self._looking[place]
                return turn
        if self._asleep:
            self._time_ns, _, turn = heapq.heappop(self._asleep)
            return turn
        if not self._looking:
            return self._all_done
        self._stuck()
        return self._looking.pop(0)[1]


@contextmanager
def without_spinning() -> Iterator[None]:
    """Python lanes sleep to the very end of a wait: on a clock that stands still while they run they would spin for
    ever. They look at a counter whenever it has changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "WINDOW_NS", 0)
        patch.setattr(issue, "WINDOW_NS", 0)
        patch.setattr(issue, "COUNTER_POLL_NS", 0)
        yield
