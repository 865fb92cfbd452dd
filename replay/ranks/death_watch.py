"""Reports which process of a replay died. A launcher then ends the other processes without naming any.

On each node a child process waits for the processes there to end (pidfd_open(2)), and outlives them by a moment.
Several may have ended before the child runs again. epoll(7) returns events in the order in which they came, so the
first event belongs to the process that died by itself. The child runs this file alone, so it may import nothing but the
standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

LAUNCHER_PREFIXES = ("PMI", "PMIX", "OMPI", "HYDRA", "MPI", "SLURM")
"""Environment variables that are kept from the child, or MPI would take it for a process of the job."""

_PATIENCE_S = 2.0  # for which the child still watches after its parent has ended, which may not be the first


class DeathWatch:
    """Watches the processes of this node (process id -> name) from a child process, from now until `dismiss`.

    Does nothing where the system cannot watch processes.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):
            return
        environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
        command = [sys.executable, "-I", "-S", __file__, *(f"{pid}={name}" for pid, name in names.items())]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
        )
        assert self._child.stdout is not None
        with self._child.stdout as ready:
            ready.read(1)

    def dismiss(self) -> None:
        """Stop watching: the processes may end from now on."""
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        try:
            child.stdin.write(b"x")
            child.stdin.close()
        except BrokenPipeError:  # it has reported already
            pass
        child.wait()


def watch(names: Mapping[int, str]) -> str | None:
    """Wait until a process dies, and return its name; None once the watch is dismissed (a byte on standard input).

    Writes a byte to standard output when the watch has begun.
    """
    watched: dict[int, str] = {}
    with select.epoll() as ends:
        for pid, name in names.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return name
            except OSError:  # the kernel has no such call, or refuses it
                return None
            watched[descriptor] = name
            ends.register(descriptor, select.EPOLLIN)
        ends.register(0, select.EPOLLIN)
        with suppress(BrokenPipeError):  # the watching process has died already
            os.write(1, b"r")
        for descriptor, _ in ends.poll():
            if descriptor != 0:
                return watched[descriptor]
            if os.read(0, 1):
                return None
        ends.unregister(0)
        return next((watched[descriptor] for descriptor, _ in ends.poll(_PATIENCE_S)), None)


def main(arguments: list[str]) -> None:
    """Print the name of the process that died. `arguments`: PID=NAME for each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the replay; this watcher must report a death
    names = {int(pid): name for pid, _, name in (argument.partition("=") for argument in arguments)}
    died = watch(names)
    if died is not None:
        os.write(2, f"dxt-replay: error: {died} died, which ends the replay\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
