"""The processes of an MPI job as the workers of one command: the first runs it, the others work for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from dxt_replay.replay.ranks.launcher import is_launched
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.workers import Workers


@contextmanager
def rank_workers(count: int | None) -> Iterator[Workers | None]:
    """Workers for the first process of the job; None for the others, once they have worked.

    count: what the user asked for; where no job was launched, so many processes of this machine.
    Raises: UsageError for a `count` in a job, whose size is its own; as `replay.ranks.mpi_world.connect`.
    """
    size = 1
    if is_launched():
        from dxt_replay.replay.ranks.mpi_world import connect  # loads the compiled core

        size = connect().size
    if size == 1:
        with Workers(count) as workers:
            yield workers
        return
    if count is not None:
        raise UsageError(f"--workers {count}: the {size} processes of mpiexec are the workers: leave the option out")
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    if MPI.COMM_WORLD.Get_rank():
        # If one died of Ctrl-C, the launcher would kill the first process before that has removed what it wrote.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        yield Workers(size - 1, executor=executor) if isinstance(executor, Executor) else None
