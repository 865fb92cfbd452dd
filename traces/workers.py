"""The work of one command on several processors or machines: a function mapped over pieces, on an `Executor`.

    with workers.results(sums_of, pieces, operations=n) as results:  # in the order of the pieces
        total = functools.reduce(Sums.plus, results)

- The function stands at the top of a module, or is a frozen dataclass with __call__: it is pickled. A piece is small: a
  worker reads its input from a path (a `Capture` is pickled as its path), and only its result travels.
- The pieces follow from the input alone, never from the number of workers, and are folded in their order. So sums of
  floating-point numbers are equal, bit for bit, with any executor.
- Once `results` has ended, even by an error, no piece is in work, so temporary files can be removed.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dxt_replay.traces.errors import MissingDependencyError, UsageError, WorkerError
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.without_pandas import keep_pandas_out

P = TypeVar("P")
R = TypeVar("R")

OPERATIONS_PER_WORKER = 1 << 22
"""Operations of a capture per worker process, unless the user gave a number: at least 0.5 s of work, since the start of
a process takes 0.4 s of its processor."""

PIECE_OPERATIONS = 1 << 21
"""Operations of a piece: half a second of work, with sums that are small enough to be sent quickly."""

AHEAD = 2
"""Pieces per worker that are in work, or done and not yet folded: the limit of results in memory."""

ANSWER_S = 5
"""Seconds in which a scheduler of Dask must answer."""

WORKER_S = 60
"""Seconds in which a cluster must have a worker; the batch system may still be starting it."""


def _silent(*shown: object) -> None:
    """A callback that shows nothing."""


class Workers:
    """Processes that share the work of passes; a context manager that ends those that it started.

    count: processes of this machine, started when the first pass needs them. None: as many as the operations of the
    capture justify, at most the processors; a small capture starts none.
    executor: an executor of the caller instead; `count` is then the number of pieces that it does together, if need be
    as a function, since a cluster grows.
    on_progress: a callback for progress, called with (pieces done, all pieces) in each pass.
    on_choice: a callback for a sentence that says who does a pass and why.
    piece_operations: approximate operations of a piece. Another size can change the last digits of means, and the
    rounding of distributions with more than a million values.
    Raises: UsageError for a count below 1.
    """

    def __init__(
        self,
        count: int | Callable[[], int] | None = None,
        *,
        executor: Executor | None = None,
        piece_operations: int = PIECE_OPERATIONS,
    ) -> None:
        if isinstance(count, int) and count < 1:
            raise UsageError(f"--workers {count}: give at least 1")
        self.piece_operations = piece_operations
        self.on_progress: Callable[[int, int], None] = _silent
        self.on_choice: Callable[[str], None] = _silent
        self._count = count
        self._executor = executor
        self._started = False

    @property
    def elsewhere(self) -> bool:
        """Whether the executor is the caller's, so that its processes may have other working directories."""
        return self._executor is not None and not self._started

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        """End the processes that were started, at once even while they work."""
        if not self._started:
            return
        executor, self._executor, self._started = self._executor, None, False
        for process in list((getattr(executor, "_processes", None) or {}).values()):
            process.kill()
        executor.shutdown()  # type: ignore[union-attr]

    @contextmanager
    def results(
        self,
        work: Callable[[P], R],
        pieces: Sequence[P],
        *,
        operations: int | None = None,
        named: Callable[[P], str] = str,
    ) -> Iterator[Iterator[R]]:
        """The results of `work` for each of `pieces`, in their order; at most AHEAD for each worker are in memory.

        operations: approximate work, in operations of a capture read; None if workers are surely worth it.
        named: what an error calls a piece.
        Raises: any error of `work`, at its piece; WorkerError if a worker died.
        """
        alone = self._why_alone(len(pieces), operations)
        if alone:
            self.on_choice(f"one process does all the work: {alone}")
            yield self._counted(map(work, pieces), len(pieces))
            return
        begun: deque[tuple[P, Future[R]]] = deque()
        try:
            yield self._counted(self._in_order(work, pieces, named, begun), len(pieces))
        finally:
            if begun and self._started:
                self._end()
            else:
                wait([future for _, future in begun if not future.cancel()])

    def _why_alone(self, pieces: int, operations: int | None) -> str:
        """Why this process does all the pieces; "" if `_executor` does them, which is started if need be."""
        if pieces < 2:
            return "there is one piece of work"
        if self._executor is None:
            if self._count == 1:
                return "--workers 1 was given"
            justified = processors() if operations is None else operations // OPERATIONS_PER_WORKER
            count = self._count or min(processors(), justified)
            if isinstance(count, int) and count < 2:
                return f"a second one pays from {2 * OPERATIONS_PER_WORKER:,} operations on two processors"
            self._count, self._executor, self._started = count, local_processes(self._together(count)), True
        self.on_choice(f"{pieces} pieces of work, {self._together(self._count)} at a time")
        return ""

    def _together(self, count: int | Callable[[], int] | None) -> int:
        if callable(count):
            return count()
        known = getattr(self._executor, "num_workers", None) or getattr(self._executor, "_max_workers", None)
        return int(count or known or processors())

    def _in_order(
        self, work: Callable[[P], R], pieces: Sequence[P], named: Callable[[P], str], begun: deque[tuple[P, Future[R]]]
    ) -> Iterator[R]:
        coming = deque(pieces)
        while coming or begun:
            piece = begun[0][0] if begun else coming[0]
            try:
                while coming and len(begun) < AHEAD * self._together(self._count):
                    sent = pickle.dumps((work, coming[0]))
                    with _starting_process():
                        future = self._executor.submit(_done, (VERSION, sent))  # type: ignore[union-attr]
                    begun.append((coming.popleft(), future))
                result = begun[0][1].result()
            except (BrokenExecutor, CancelledError) as error:
                raise WorkerError(
                    f"a worker died at {named(piece)}: a signal ended it, or the machine ran out of memory (`dmesg` "
                    "shows that); give fewer --workers"
                ) from error
            begun.popleft()
            yield result

    def _counted(self, results: Iterator[R], pieces: int) -> Iterator[R]:
        for done, result in enumerate(results, 1):
            self.on_progress(done, pieces)
            yield result


ALONE = Workers(1)
"""Workers that do all pieces in this process."""


Work = Executor | Workers | None
"""Type of the `executor` argument of the interface: who shares the work; None is this process alone."""


def workers_of(executor: Work) -> Workers:
    """Workers from the `executor` argument of a function of the interface; this process alone for None."""
    if executor is None:
        return ALONE
    return executor if isinstance(executor, Workers) else Workers(executor=executor)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _done(sent: tuple[str, bytes]) -> Any:
    """The result of a piece, in a worker. It is unpickled only here: a capture that cannot be opened is an error of the
    piece, and does not end the worker."""
    version, content = sent
    if version != VERSION:
        raise WorkerError(
            f"a worker on {platform.node()} has dxt-replay {VERSION}, this is {version}: install the same version for "
            "the workers"
        )
    work, piece = pickle.loads(content)
    return work(piece)


def local_processes(count: int) -> Executor:
    """Processes of this machine, which end with this one, even if it is killed.

    They are spawned: a fork would share the locks of Arrow's and MPI's threads.
    """
    import multiprocessing  # 10 ms, which small captures avoid
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start would unblock the signal that `_starting_process` blocks
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait as wait_for

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the first process ends the others
    keep_pandas_out()
    with suppress(OSError):  # if memory runs out, the kernel ends a worker, not the command; the value may be higher
        Path("/proc/self/oom_score_adj").write_text("500")
    parent = parent_process()

    def end_with_parent() -> None:
        wait_for([parent.sentinel])  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True, name="life").start()


@contextmanager
def _starting_process() -> Iterator[None]:
    """A context in which a process may be started. Ctrl-C does not reach it before it is set up, and it does not run
    the caller's script as `__main__`, which needs no guard: all work is in modules of this program."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """The workers of the scheduler at `address`, such as "tcp://10.0.0.1:8786"; they stay when the context ends.

    Workers that join later get pieces, too. Dask runs the piece of a dead worker again, on at most three others.
    Raises: MissingDependencyError without `distributed`; WorkerError if no scheduler or no worker answers.
    """
    try:
        from distributed import Client, KilledWorker
        from distributed.comm.addressing import get_address_host_port, parse_address
    except ImportError as error:
        raise MissingDependencyError("distributed", "--dask", "pip install 'dxt-replay[dask]'") from error
    # Its log prints a traceback for a scheduler that has gone; the command says it in a sentence.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        if parse_address(address)[0] == "tcp":
            # A client waits without end for a server that waits for its words; a scheduler speaks first.
            with socket.create_connection(get_address_host_port(address), ANSWER_S) as connection:
                connection.recv(1)
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError, TypeError, MemoryError) as error:  # MemoryError: another server's words as a length
        raise WorkerError(
            f"--dask {address}: no scheduler of Dask answers there ({error}): check the address, or start one"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKER_S)
        except TimeoutError as error:
            raise WorkerError(f"--dask {address}: the cluster has no worker; start some, then try again") from error

        def threads() -> int:
            return max(sum(client.nthreads().values()), 1)

        try:
            yield Workers(threads, executor=client.get_executor(pure=False))
        except (OSError, CancelledError, KilledWorker, WorkerError) as error:
            if client.status == "running" and not isinstance(error, KilledWorker):
                raise
            gone = "three workers died at one piece" if isinstance(error, KilledWorker) else "the scheduler has gone"
            raise WorkerError(
                f"--dask {address}: {gone}, and the work with it; start a cluster and run the command again"
            ) from error


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that a process can use without swapping, as Linux counts it; None where it does not tell."""
    try:
        for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None
