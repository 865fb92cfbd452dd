"""Maps a function over pieces and folds the results in order, on the executors that sites have; every pass over a
capture uses it.

How a pass uses it:

    def sums_of(piece: Piece) -> Sums: ...                          # at the top of a module, or a frozen dataclass
                                                                    # with __call__: it is pickled
    with workers.results(sums_of, pieces, operations=n) as results: # in the order of the pieces
        total = functools.reduce(Sums.plus, results)

- The pieces follow from the input alone, never from the number of workers, and are folded in their order. So sums of
  floating-point numbers are equal, bit for bit, with any workers.
- A piece is small and picklable: ranks, a path, a range. A worker reads its input from the path (a `Capture` is pickled
  as its path, and opened once in each process), and only its result travels.
- Work may be done twice, after a worker died: it must overwrite, never append. Once `results` has ended, even by an
  error, no piece is in work any more, so temporary files can be removed.
"""

from __future__ import annotations

import os
import pickle
import platform
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from dxt_replay.traces.errors import UsageError, WorkerError
from dxt_replay.traces.version import VERSION

P = TypeVar("P")
R = TypeVar("R")

OPERATIONS_PER_WORKER = 1 << 22
"""Operations of a capture per worker process, unless the user gave a number: at least 0.5 s of work, since the start of
a process takes 0.4 s of its processor."""

PIECE_OPERATIONS = 1 << 21
"""Operations of a piece: half a second of work, with sums that are small enough to be sent quickly."""

COMPRESSED_BYTES = 1 << 14
"""Bytes from which a result is compressed before it is sent."""

DEATHS: tuple[type[BaseException], ...] = (BrokenExecutor, CancelledError)
"""Errors of a future whose piece was lost."""

AHEAD = 2
"""Pieces per process that are in work, or done and not yet folded: the limit of results in memory."""


class Pool(Protocol):
    """Executor of the pieces."""

    @property
    def count(self) -> int:
        """Number of pieces in work together, at this moment."""

    @property
    def includes_caller(self) -> bool:
        """Whether one of the `count` is the process that asks for the results."""

    @property
    def deaths(self) -> tuple[type[BaseException], ...]:
        """Errors of a future whose worker died."""

    def submit(self, work: Callable[[P], R], piece: P) -> Future[R]:
        """Begin a piece, or queue it."""

    def restart(self) -> bool:
        """Start replacements for dead workers; False if that is impossible.

        Raises: WorkerError that says more than that a worker died.
        """

    def abandon(self, futures: Sequence[Future[Any]]) -> None:
        """Cancel the futures and wait for the running ones."""

    def close(self) -> None:
        """End the workers."""


class GivenExecutor:
    """An executor that the caller made and will end."""

    includes_caller = False

    def __init__(
        self, executor: Executor, count: Callable[[], int], deaths: tuple[type[BaseException], ...] = DEATHS
    ) -> None:
        self._executor = executor
        self._count = count
        self.deaths = deaths

    @property
    def count(self) -> int:
        """As of `Pool`."""
        return self._count()

    def submit(self, work: Callable[[P], R], piece: P) -> Future[R]:
        """As of `Pool`."""
        return self._executor.submit(work, piece)

    def restart(self) -> bool:
        """As of `Pool`: False, since only the caller can make another executor."""
        return False

    def abandon(self, futures: Sequence[Future[Any]]) -> None:
        """As of `Pool`."""
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """As of `Pool`: does nothing to the caller's executor."""


def _silent(*shown: object) -> None:
    """A callback that shows nothing."""


class Workers:
    """Processes that share the work of passes; a context manager that ends them.

    count: processes of this machine, this one included; the others are started when the first pass needs them. None: as
    many as the operations of the capture justify, at most the processors; a small capture starts none.
    executor: an executor of the caller instead; `count` is then the number of pieces that it does together.
    on_progress: a callback for progress, called with (pieces done, all pieces) in each pass.
    on_death: a callback for a sentence that names the piece whose worker died and was replaced.
    on_choice: a callback for a sentence that says who does a pass and why.
    piece_operations: approximate operations of a piece. Another size can change the last digits of means, and the
    rounding of distributions with more than a million values.
    Raises: UsageError for a count below 1.
    """

    def __init__(
        self,
        count: int | None = None,
        *,
        executor: Executor | None = None,
        piece_operations: int = PIECE_OPERATIONS,
    ) -> None:
        if count is not None and count < 1:
            raise UsageError(f"--workers {count}: give at least 1")
        self.piece_operations = piece_operations
        self.on_progress: Callable[[int, int], None] = _silent
        self.on_death: Callable[[str], None] = _silent
        self.on_choice: Callable[[str], None] = _silent
        self._given = count
        self._pool: Pool | None = None
        if executor is not None:
            given = count or worker_count(executor)
            self._pool = GivenExecutor(executor, lambda: given)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that were started."""
        if self._pool is not None:
            self._pool.close()

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
        Raises: any error of `work`, at its piece; WorkerError if a worker died twice at a piece.
        """
        pool = self._pool_for(len(pieces), operations)
        if pool is None:
            yield self._counted(map(work, pieces), len(pieces))
            return
        with closing(_in_order(pool, work, pieces, named, self.on_death)) as results:
            yield self._counted(results, len(pieces))

    def _counted(self, results: Iterator[R], pieces: int) -> Iterator[R]:
        for done, result in enumerate(results, 1):
            self.on_progress(done, pieces)
            yield result

    @classmethod
    def on(cls, pool: Pool) -> Workers:
        """Workers of another kind, which end with these."""
        made = cls()
        made._pool = pool
        return made

    def _pool_for(self, pieces: int, operations: int | None) -> Pool | None:
        """The executor of the work; None for this process alone."""
        if pieces < 2:
            self._alone("there is one piece of work")
            return None
        if self._pool is None:
            count = self._given or _worthwhile(operations)
            if count == 1:
                self._alone(
                    "--workers 1 was given"
                    if self._given
                    else f"a second one pays from {2 * OPERATIONS_PER_WORKER:,} operations on two processors"
                )
                return None
            from dxt_replay.traces.workers.local_processes import (
                LocalProcesses,  # 10 ms, which small captures avoid
            )

            self._pool = LocalProcesses(count)
        self.on_choice(f"{pieces} pieces of work, {self._pool.count} at a time")
        return self._pool

    def _alone(self, why: str) -> None:
        self.on_choice(f"one process does all the work: {why}")


ALONE = Workers(1)
"""Workers that do all pieces in this process."""


Work = Executor | Workers | None
"""Type of the `executor` argument of the interface: who shares the work; None is this process alone."""


def workers_of(executor: Work) -> Workers:
    """Workers from the `executor` argument of a function of the interface; this process alone for None."""
    if executor is None:
        return ALONE
    return executor if isinstance(executor, Workers) else Workers(executor=executor)


def worker_count(executor: Executor) -> int:
    """Number of pieces that an executor does together: its own number if it has one, else the processors here."""
    found = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)
    return int(found) if found else processors()


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _worthwhile(operations: int | None) -> int:
    return processors() if operations is None else max(min(processors(), operations // OPERATIONS_PER_WORKER), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[P, R]):
    """The work on one piece, which is sent as `_Sent`."""

    work: Callable[[P], R]
    piece: P

    def __reduce__(self) -> tuple[Any, ...]:
        return _Sent, (VERSION, pickle.dumps((self.work, self.piece)))

    def result(self) -> R:
        return self.work(self.piece)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A task as received.

    It is unpickled when it is run, so that a capture that cannot be opened is an error of the piece and does not end
    the worker.
    A worker with another version of the program refuses it, because its sums may differ."""

    version: str
    content: bytes

    def result(self) -> _Returned:
        if self.version != VERSION:
            raise WorkerError(
                f"a worker on {platform.node()} has dxt-replay {VERSION}, this is {self.version}: install the same "
                "version for the workers"
            )
        work, piece = pickle.loads(self.content)
        return _Returned.of(work(piece))


@dataclass(frozen=True, slots=True)
class _Returned:
    """A result as sent: pickled, and compressed if it is large. `size`: bytes of the pickle; 0 if not compressed."""

    content: bytes
    size: int

    @classmethod
    def of(cls, result: Any) -> _Returned:
        content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        if len(content) < COMPRESSED_BYTES:
            return cls(content, 0)
        from pyarrow import Codec  # only after a piece that has surely loaded it

        return cls(Codec("zstd", compression_level=1).compress(content, asbytes=True), len(content))

    def result(self) -> Any:
        if not self.size:
            return pickle.loads(self.content)
        from pyarrow import Codec

        return pickle.loads(Codec("zstd").decompress(self.content, self.size))


def _result(task: _Task[P, R]) -> R | _Returned:
    """The function that an executor calls; in another process `task` has become `_Sent`."""
    return task.result()


def _received(returned: R | _Returned) -> R:
    """The result that `_result` returned, here or in another process."""
    return returned.result() if isinstance(returned, _Returned) else returned


@dataclass(slots=True, kw_only=True, eq=False)
class _Begun(Generic[P, R]):
    """A piece in work; `future` is None if it must be begun again."""

    piece: P
    future: Future[R | _Returned] | None


def _in_order(
    pool: Pool,
    work: Callable[[P], R],
    pieces: Sequence[P],
    named: Callable[[P], str],
    on_death: Callable[[str], None],
) -> Generator[R]:
    begun: deque[_Begun[P, R]] = deque()
    coming = deque(pieces)
    done = 0
    try:
        while done < len(pieces):
            if all(each.future is not None for each in begun):
                _fill(pool, work, coming, begun)
                if pool.includes_caller and coming and _may_begin(pool, begun) and not _is_done(begun[0]):
                    piece = coming.popleft()
                    begun.append(_Begun(piece=piece, future=_done_here(work, piece)))
                    continue
            result = _first(pool, work, begun, named, on_death)
            begun.popleft()
            done += 1
            yield result
    finally:
        if done < len(pieces):
            pool.abandon([each.future for each in begun if each.future is not None])


def _fill(pool: Pool, work: Callable[[P], R], coming: deque[P], begun: deque[_Begun[P, R]]) -> None:
    """Give every worker its share of pieces. The last piece is the caller's if it works too: it is free now."""
    others = pool.count - pool.includes_caller
    waiting = sum(not _is_done(each) for each in begun)
    while len(coming) > (pool.includes_caller and waiting > 0) and waiting < AHEAD * others and _may_begin(pool, begun):
        piece = coming.popleft()
        begun.append(_Begun(piece=piece, future=_submitted(pool, work, piece)))
        waiting += 1


def _may_begin(pool: Pool, begun: deque[_Begun[P, R]]) -> bool:
    return len(begun) < AHEAD * pool.count


def _is_done(piece: _Begun[P, R]) -> bool:
    return piece.future is not None and piece.future.done()


def _done_here(work: Callable[[P], R], piece: P) -> Future[R | _Returned]:
    """The piece, done by this process. Its error is raised at its place, as if a worker had done it."""
    done: Future[R | _Returned] = Future()
    try:
        done.set_result(work(piece))
    except Exception as error:
        done.set_exception(error)
    return done


def _submitted(pool: Pool, work: Callable[[P], R], piece: P) -> Future[R | _Returned]:
    try:
        return pool.submit(_result, _Task(work=work, piece=piece))
    except pool.deaths as error:
        failed: Future[R | _Returned] = Future()
        failed.set_exception(error)
        return failed


def _first(
    pool: Pool,
    work: Callable[[P], R],
    begun: deque[_Begun[P, R]],
    named: Callable[[P], str],
    on_death: Callable[[str], None],
) -> R:
    """The result of the oldest piece.

    If a worker died, the lost pieces are run again one after the other: that shows the piece at which a worker dies
    again, and leaves each piece more memory."""
    oldest = begun[0]
    if oldest.future is not None:
        try:
            return _received(oldest.future.result())
        except pool.deaths as error:
            for each in begun:
                if each.future is not None and _is_lost(each.future, pool.deaths):
                    each.future = None
            if not pool.restart():
                raise WorkerError(_death(named(oldest.piece), "died")) from error
            lost = [named(each.piece) for each in begun if each.future is None]
            on_death(f"{_death(', '.join(lost), 'died')}; it was replaced, and the lost work is done once more")
    oldest.future = _submitted(pool, work, oldest.piece)
    try:
        return _received(oldest.future.result())
    except pool.deaths as error:
        raise WorkerError(_death(named(oldest.piece), "died twice")) from error


def _is_lost(future: Future[Any], deaths: tuple[type[BaseException], ...]) -> bool:
    return not future.done() or future.cancelled() or isinstance(future.exception(), deaths)


def _death(piece: str, died: str) -> str:
    return (
        f"a worker {died} at {piece}: a signal ended it, or the machine ran out of memory (`dmesg` shows that); "
        "give fewer --workers"
    )
