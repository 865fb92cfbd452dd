"""Names the process of a replay that died: launchers end the others at once, and name none of our processes.

A child process on each node waits for the end of the processes there (pidfd_open(2)) and outlives them by a moment.
The others may have ended before it gets a processor again: epoll(7) hands events over in the order in which they came,
so the first is the one that died by itself. The child runs this file alone: nothing but the standard library may be
imported here.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

LAUNCHER_PREFIXES = ("PMI", "PMIX", "OMPI", "HYDRA", "MPI", "SLURM")
"""Variables of these must not make a process of the job of the child."""

_PATIENCE_S = 2.0
"""How long after the end of the watching process the others are looked at: it may have been one that died."""


class DeathWatch:
    """Watches the processes of this node from a child, until `dismiss`. `names`: what each process id is called.

    Once it is made, the child watches. Does nothing where the system cannot watch processes.
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
        """The processes may end from now on."""
        if self._child is None or self._child.stdin is None:
            return
        try:
            self._child.stdin.write(b"x")
            self._child.stdin.close()
        except BrokenPipeError:  # it has told already
            pass
        self._child.wait()
        self._child = None


def watch(names: Mapping[int, str]) -> str | None:
    """Wait until one of the processes has died or all are dismissed (a byte on standard input); its name.

    Writes a byte to standard output when it has begun to watch.
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
    """Tell the name of the process that died, of `PID=NAME` each."""
    names = {int(pid): name for pid, _, name in (argument.partition("=") for argument in arguments)}
    died = watch(names)
    if died is not None:
        os.write(2, f"dxt-replay: error: {died} died, which ends the replay\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
