"""The processes of one replay: a single process, or the processes of an MPI job. A single process needs no MPI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dxt_replay.traces.errors import DxtReplayError

if TYPE_CHECKING:
    from dxt_replay.replay.engine.wait_counters import Counters

T = TypeVar("T")

WAIT_PERIOD_S = 0.01
"""Seconds between two looks of a process that waits for process 0 to finish."""


class Communicator(Protocol):
    """The interface between the processes of a replay. Every process must make the calls named collective.

    `rank`: the number of this process, from 0.
    `size`: the number of processes.
    """

    rank: int
    size: int

    def barrier(self) -> None:
        """Wait until all processes have called this. Collective."""

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all processes by rank on process 0, None on the others. Collective."""

    def broadcast(self, value: Any) -> Any:
        """The value of process 0, on all processes. Collective."""

    def agree(self, error: DxtReplayError | None) -> None:
        """Raise on every process when any of them met an error, so that no process waits for one that has given up."""

    def common_start_ns(self, margin_ns: int) -> int:
        """One instant for all, `margin_ns` from now, in ns of this process's CLOCK_MONOTONIC. Collective."""

    def first_on_node(self) -> bool:
        """Whether this process has the lowest rank on its node. Collective."""

    def processes_on_node(self) -> int:
        """Number of processes of the job on this node. Collective."""

    def counters(self, own: int, common: int) -> SharedCounters:
        """Counters at zero: `common` counters that all processes of the node use, then `own` counters of this process.

        Collective, as is `SharedCounters.free`. Raises: ReplayError where processes cannot share counters.
        """

    def tell_stop(self) -> None:
        """Notify the other processes that the run is to stop, without waiting for them. At most once a run."""

    def told_to_stop(self) -> bool:
        """Whether such a notice has come from another process; does not wait."""

    def arrive(self) -> Callable[[], bool]:
        """Arrive at a barrier without waiting there; the function returned says whether all have arrived. Collective.

        A process that waits in this way still notices a signal, and a notice of another process.
        """

    def end_of_notices(self) -> bool:
        """Whether any process sent a notice to stop. Receives all notices, so that a run can follow. Collective."""

    def watched(self) -> AbstractContextManager[None]:
        """While the context lasts, the death of a process is reported with its name. Collective."""

    def unwatch(self) -> None:
        """No longer report the death of processes: they are about to be ended. Any thread may call it."""

    def absent(self) -> list[str]:
        """The other processes of this node that do not run (stopped, or held in the kernel), while `watched`."""

    def abort(self) -> None:
        """End all processes at once."""

    def leave(self) -> None:
        """End the communication, which takes nothing more. Collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaders:
    """The first process of each of several nodes.

    `channel`: the mpi4py communicator of these processes, one a node.
    `any_thread`: whether several threads may call MPI at once (MPI_THREAD_MULTIPLE).
    """

    channel: Any
    any_thread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCounters:
    """The counters that the processes of a node share.

    `counters`: all of them.
    `base`: the index of the first counter that belongs to this process alone.
    `leaders`: set on the first process of each node where there are several nodes, else None.
    `free`: releases the memory and the communicator after the last use; collective.
    """

    counters: Counters
    base: int
    leaders: NodeLeaders | None = None
    free: Callable[[], None] = lambda: None


class Solo:
    """A single process; see `Communicator`."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        return None

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def agree(self, error: DxtReplayError | None) -> None:
        if error is not None:
            raise known_to_all(error)

    def common_start_ns(self, margin_ns: int) -> int:
        return time.monotonic_ns() + margin_ns

    def first_on_node(self) -> bool:
        return True

    def processes_on_node(self) -> int:
        return 1

    def counters(self, own: int, common: int) -> SharedCounters:
        from dxt_replay.replay.engine.wait_counters import Counters  # loads the compiled core, which only a run needs

        return SharedCounters(counters=Counters.of(common + own), base=common)

    def tell_stop(self) -> None:
        return None

    def told_to_stop(self) -> bool:
        return False

    def arrive(self) -> Callable[[], bool]:
        return lambda: True

    def end_of_notices(self) -> bool:
        return False

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def unwatch(self) -> None:
        return None

    def absent(self) -> list[str]:
        return []

    def abort(self) -> None:
        raise SystemExit(1)

    def leave(self) -> None:
        return None


def is_known_to_all(error: DxtReplayError) -> bool:
    """Whether `agree` raised this error: all processes then know of it, and none waits for this process."""
    return getattr(error, "known_to_all", False)


def known_to_all(error: DxtReplayError) -> DxtReplayError:
    """The error, marked as one that `agree` raised in all processes."""
    error.known_to_all = True
    return error


def together(comm: Communicator, work: Callable[[], T]) -> T:
    """Do `work` on every process, and return this process's result once all have succeeded. Collective.

    Raises: DxtReplayError on all processes when the work failed on any.
    """
    error: DxtReplayError | None = None
    made: list[T] = []
    try:
        made.append(work())
    except DxtReplayError as met:
        error = met
    comm.agree(error)
    return made[0]


def first_does(comm: Communicator, work: Callable[[], T]) -> T:
    """Do `work` on process 0, and return its result on all processes. Collective.

    The other processes sleep meanwhile. If they were blocked in MPI, they would keep a processor busy and would not
    notice signals. Raises: DxtReplayError on all processes when the work failed.
    """
    error: DxtReplayError | None = None
    made: T | None = None
    try:
        made = work() if comm.rank == 0 else None
    except DxtReplayError as met:
        error = met
    all_there = comm.arrive()
    while not all_there():
        time.sleep(WAIT_PERIOD_S)
    comm.agree(error)
    found: T = comm.broadcast(made)
    return found


def share_of(ranks: Sequence[int], process: int, processes: int) -> tuple[int, ...]:
    """The recorded ranks that `process` replays. The shares are contiguous, and their sizes differ by at most one."""
    quotient, rest = divmod(len(ranks), processes)
    begin = process * quotient + min(process, rest)
    return tuple(ranks[begin : begin + quotient + (process < rest)])
