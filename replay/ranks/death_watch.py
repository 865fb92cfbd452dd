"""Reports which process of a replay died. A launcher then ends the other processes without naming any.

On each node a child process waits for the processes there to end (pidfd_open(2)), and outlives them by a moment.
Several may have ended before the child runs again. epoll(7) returns events in the order in which they came, so the
first event belongs to the process that died by itself. The child runs this file alone, so it may import nothing but the
standard library. It also removes MPI's shared memory, which dead processes leave behind.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

LAUNCHER_PREFIXES = ("PMI", "PMIX", "OMPI", "HYDRA", "MPI", "SLURM")
"""Environment variables with these prefixes are kept from the child, or MPI would take it for a process of the job."""

_SHARED_MEMORY = "/dev/shm"

_BEFORE_S, _SETTLE_S = 60.0, 0.3
"""How long before the watch MPI may have started, and seconds between two looks at its memory."""

_PATIENCE_S = 2.0
"""How long the child still watches after the process that started it has ended, since that one may not be the first."""


class DeathWatch:
    """Watches the processes of this node from a child process, until `dismiss`.

    `names`: process id -> name of the process in the report; empty for no report.
    The child watches from the moment this is made. Does nothing where the system cannot watch processes.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if not names or not hasattr(os, "pidfd_open"):
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

    `names`: process id -> name. Writes a byte to standard output when the watch has begun.
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
    began = time.time()
    died = watch(names)
    if died:
        os.write(2, f"dxt-replay: error: {died} died, which ends the replay\n".encode())
    if died is not None:
        left = _unmapped(began - _BEFORE_S)
        time.sleep(_SETTLE_S)  # processes that die with it; and a segment that is new is mapped by then
        for path in left & _unmapped(began - _BEFORE_S):
            with suppress(OSError):
                os.unlink(path)


def _unmapped(since: float) -> set[str]:
    """MPICH's segments of shared memory, made by this user from `since` on, that no process has mapped."""
    found = {}
    with suppress(OSError):
        for entry in os.scandir(_SHARED_MEMORY):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith("mpich_") and status.st_uid == os.geteuid() and status.st_mtime >= since:
                    found[os.fsencode(entry.path)] = entry.path
    for pid in os.listdir("/proc") if found else ():
        with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            mapped = maps.read()
            found = {name: path for name, path in found.items() if name not in mapped}
    return set(found.values())


if __name__ == "__main__":
    main(sys.argv[1:])
