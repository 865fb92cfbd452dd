"""`dxt-replay` with other workers: `python -m benchmarks.scale_table.executors dask|pickled N COMMAND ...`.

dask: N workers of a cluster that ends with the command, so that all of its processes are children of this one.
pickled: this process does all pieces, but pickles them and their results, as a transport would. The last line on
standard error is a JSON object: the pieces, the CPU seconds of their work and the bytes of their results. The other CPU
seconds are those of a first process that leaves all pieces to others.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from dxt_replay.__main__ import main
from dxt_replay.traces import workers

COUNTED = ("pieces", "pieces_s", "returned_bytes")


class Pickled(Executor):
    """Does a piece when it is submitted, and counts what that took."""

    pieces, pieces_s, returned_bytes = 0, 0.0, 0

    def __init__(self, count: int) -> None:
        self._max_workers = count

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Do the piece."""
        done: Future[Any] = Future()
        began = time.process_time()
        try:
            result = pickle.dumps(work(*given, **named))
        except Exception as error:
            done.set_exception(error)
            return done
        Pickled.pieces_s += time.process_time() - began
        Pickled.pieces += 1
        Pickled.returned_bytes += len(result)
        done.set_result(pickle.loads(result))
        return done


def _command(words: list[str]) -> int:
    sys.argv[1:] = words
    return main()


def run(kind: str, count: int, words: list[str]) -> int:
    """The exit status of a command with such workers."""
    if kind == "dask":
        from distributed import LocalCluster

        with LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster:
            return _command([*words, "--dask", cluster.scheduler_address])
    workers.local_processes = Pickled
    status = _command([*words, "--workers", str(count)])
    print(json.dumps({name: getattr(Pickled, name) for name in COUNTED}), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
