"""Ends a command that several processes run together when one of them fails."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dxt_replay.traces.errors import DxtReplayError

if TYPE_CHECKING:
    from dxt_replay.replay.ranks.mpi import Communicator

LAST_WORDS_S = 0.2
"""How long a process that ends all others waits for its message to reach the launcher."""


@contextmanager
def ending_together(comm: Communicator) -> Iterator[None]:
    """A known error reaches all processes, and the first one prints it; any other error in one process ends all.

    MPI has ended before the result is printed: where its reader has gone, as in `| head`, the launcher dies at once and
    MPI's memory in /dev/shm would stay.
    """
    from dxt_replay.replay.ranks.stopping import Terminated

    try:
        with _interruptible(comm):
            yield
    except DxtReplayError as error:
        from dxt_replay.replay.ranks.mpi import is_known_to_all

        if comm.rank and is_known_to_all(error):
            raise SystemExit(error.exit_status) from error
        if comm.size > 1 and not is_known_to_all(error):
            _end_all(comm, f"dxt-replay: error: process {comm.rank}: {error}")
        raise
    except (KeyboardInterrupt, Terminated):
        if comm.size > 1:
            _end_all(comm, f"dxt-replay: process {comm.rank} received a signal to stop and ends the replay")
        raise
    except Exception as error:
        if comm.size == 1:
            raise
        _end_all(comm, f"{traceback.format_exc()}dxt-replay: process {comm.rank} failed and ends the replay")
        raise SystemExit(DxtReplayError.exit_status) from error
    comm.leave()


@contextmanager
def _interruptible(comm: Communicator) -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt again: `dxt_replay.__main__` lets it end the process."""
    ends_process = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends_process and comm.size > 1:  # at the end of MPI each process waits for all others
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_all(comm: Communicator, last_words: str) -> None:
    """End all processes. Print the message in one write, and give the launcher time to read it before it ends."""
    click.echo(last_words, err=True)
    time.sleep(LAST_WORDS_S)
    comm.abort()
