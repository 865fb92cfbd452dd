"""Worker processes of this machine, which end with the process that started them, even if it is killed.

That process works, too: it has loaded the program already, and would otherwise only wait.

They are spawned. A fork would share the locks of Arrow's and MPI's threads. A fork server would save 0.03 s, the start
of the interpreter. It would save the imports, 0.4 s, only if it did them beforehand, and then from the current
directory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dxt_replay.traces.without_pandas import keep_pandas_out

P = TypeVar("P")
R = TypeVar("R")

SENDING_S = 2.0
"""Seconds to wait for the executor's own thread: it ends in milliseconds after its processes, unless it is still
sending a piece."""


LIKELY_KILLED = 500
"""`oom_score_adj` of a worker (proc(5)): if memory runs out, the kernel ends a worker, and its piece is done again."""


class LocalProcesses:
    """This process and `count` - 1 others, started when they are needed; see `traces.workers.workers.Pool`."""

    includes_caller = True

    def __init__(self, count: int) -> None:
        self.count = count
        self.deaths: tuple[type[BaseException], ...] = (BrokenExecutor, CancelledError)
        self._executor: ProcessPoolExecutor | None = None
        self._life: tuple[Connection, Connection] | None = None

    def submit(self, work: Callable[[P], R], piece: P) -> Future[R]:
        """Begin a piece, or queue it. Raises: BrokenExecutor if a worker died."""
        if self._executor is None:
            self._executor = self._started()
        with _starting():
            return self._executor.submit(work, piece)

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        self._life = context.Pipe(duplex=False)
        return ProcessPoolExecutor(
            self.count - 1, mp_context=context, initializer=_begin_worker, initargs=(self._life[0],)
        )

    def restart(self) -> bool:
        """Start new processes after one has died."""
        self._end()
        return True

    def abandon(self, futures: Sequence[Future[Any]]) -> None:
        """End the processes at once, even while they work."""
        self._end()

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _end(self) -> None:
        executor, life = self._executor, self._life
        self._executor, self._life = None, None
        if executor is None or life is None:
            return
        life[1].close()
        inside: Any = executor
        manager, unread = inside._executor_manager_thread, inside._call_queue._reader
        executor.shutdown(wait=False, cancel_futures=True)
        if manager is not None:
            manager.join(SENDING_S)
            if manager.is_alive():  # on Python 3.11.2 and older a piece that is half sent waits for ever (gh-94777)
                unread.close()
            manager.join()
        life[0].close()


def _begin_worker(life: Connection) -> None:
    """Set up a worker. `life`: a pipe whose other end closes when the worker must end, or when that process dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the first process ends the others
    keep_pandas_out()
    with suppress(OSError):  # the value may be higher already
        Path("/proc/self/oom_score_adj").write_text(str(LIKELY_KILLED))
    threading.Thread(target=_end_with, args=(life,), daemon=True, name="life").start()


def _end_with(life: Connection) -> None:
    wait([life])
    os._exit(1)


@contextmanager
def _starting() -> Iterator[None]:
    """A context in which a process may be started.

    The new process never gets a Ctrl-C. It does not run the caller's script as `__main__`, which therefore needs no
    guard: all work is in modules of this program."""
    main = sys.modules["__main__"]
    on_main_thread = threading.current_thread() is threading.main_thread()
    if on_main_thread:
        resource_tracker.ensure_running()  # its start would unblock the signal
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if on_main_thread:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
