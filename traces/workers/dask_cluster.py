"""A cluster of Dask as the workers of a command."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

from dxt_replay.traces.errors import MissingDependencyError, WorkerError
from dxt_replay.traces.workers.workers import GivenExecutor, Workers

ANSWER_S = 30
"""Seconds in which a scheduler must answer, and must have a worker."""


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """The workers of the scheduler at `address`, such as "tcp://10.0.0.1:8786"; they stay when the context ends.

    Dask restarts the pieces of a dead worker, on at most three others.
    Raises: MissingDependencyError without `distributed`; WorkerError if no scheduler or no worker answers.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise MissingDependencyError("distributed", "--dask", "pip install 'dxt-replay[dask]'") from error
    try:
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise WorkerError(f"--dask {address}: no scheduler of Dask answers there ({error})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError as error:
            raise WorkerError(f"--dask {address}: the cluster has no worker; start some, then try again") from error
        executor = client.get_executor(pure=False)
        yield Workers.on(GivenExecutor(executor, sum(client.ncores().values()), (KilledWorker, CancelledError)))
