"""A cluster of Dask as the workers of a command."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dxt_replay.traces.errors import MissingDependencyError, WorkerError
from dxt_replay.traces.workers.workers import GivenExecutor, Workers

if TYPE_CHECKING:
    from distributed import Client

ANSWER_S = 5
"""Seconds in which a scheduler must answer."""

WORKER_S = 60
"""Seconds in which a cluster must have a worker; the batch system may still be starting it."""


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """The workers of the scheduler at `address`, such as "tcp://10.0.0.1:8786"; they stay when the context ends.

    Workers that join later get pieces, too. Dask runs the piece of a dead worker again, on at most three others.
    Raises: MissingDependencyError without `distributed`; WorkerError if no scheduler or no worker answers.
    """
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port, parse_address
    except ImportError as error:
        raise MissingDependencyError("distributed", "--dask", "pip install 'dxt-replay[dask]'") from error
    # Its log prints a traceback for a scheduler that has gone; the command says it in a sentence.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)

    class Closed(Client):
        def __del__(self) -> None:
            """Nothing: a client without a scheduler would wait for its answer once more, for 20 s."""

    try:
        if parse_address(address)[0] == "tcp":
            # A client waits without end for a server that waits for its words; a scheduler speaks first.
            with socket.create_connection(get_address_host_port(address), ANSWER_S) as connection:
                connection.recv(1)
        client = Closed(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError, TypeError, MemoryError) as error:  # MemoryError: another server's words as a length
        raise WorkerError(
            f"--dask {address}: no scheduler of Dask answers there ({error}): check the address, or start one"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKER_S)
        except TimeoutError as error:
            raise WorkerError(f"--dask {address}: the cluster has no worker; start some, then try again") from error
        workers = Workers.on(DaskCluster(client, address))
        client.subscribe_topic("all", partial(_say_death, workers))
        yield workers


def _say_death(workers: Workers, event: tuple[float, dict[str, Any]]) -> None:
    """Says, as a sentence, an event of the scheduler in which a worker at work was lost."""
    said = event[1]
    if said.get("action") == "remove-worker" and said.get("processing-tasks") and not said.get("expected"):
        workers.on_death(f"a worker of Dask died ({said['worker']}); another one does its work once more")


class DaskCluster(GivenExecutor):
    """The workers of a scheduler, as of `traces.workers.workers.Pool`: as many as it has at each moment."""

    def __init__(self, client: Client, address: str) -> None:
        from distributed import KilledWorker

        super().__init__(client.get_executor(pure=False), self._threads, (KilledWorker, CancelledError))
        self._client = client
        self._address = address

    def restart(self) -> bool:
        """As of `Pool`: False, since Dask has tried other workers. Raises: WorkerError if the scheduler is gone."""
        if self._client.status != "running":
            raise self._gone()
        return False

    def _threads(self) -> int:
        try:
            return max(sum(self._client.nthreads().values()), 1)
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> WorkerError:
        return WorkerError(
            f"--dask {self._address}: the scheduler has gone, and the work of its workers with it; "
            "start a cluster and run the command again"
        )
