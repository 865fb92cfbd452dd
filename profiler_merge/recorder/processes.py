"""The processes of a job, how many bytes all of them read, and the wait for those that outlive its program.

The kernel adds the bytes of a process to its parent's when the parent waits for it. While `adopted` lasts this process
is the parent of those whose own parent ended, so that the sum of all is in its own /proc/self/io: also of a process
that clears its environment, is linked statically, has another user or is killed. Standard library only, as `watch`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dxt_replay.profiler_merge.recorder.foreground import FORWARDED, LOOK_S
from dxt_replay.profiler_merge.recorder.watch import descendants

PATIENCE_S = 10.0
"""Longest wait for processes that outlive the program: DataLoader workers look every 5 s whether their parent lives."""

_SET_SUBREAPER = 36
_MOVED = ("rchar", "wchar")


class Family:
    """The processes that this one starts from now on."""

    def __init__(self) -> None:
        self._elsewhere = set(_children())
        self._before = _of_children()

    def members(self) -> Iterator[int]:
        """The ids of those that live."""
        for child in set(_children()) - self._elsewhere:
            yield from descendants(child)

    def wait(self, look: Callable[[list[int]], None]) -> dict[int, str]:
        """Wait for them, at most PATIENCE_S or until a signal comes. Returns the ids and programs of those that live.

        The caller holds the signals back. `look` is called with the ids about every LOOK_S."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            for child in set(_children()) - self._elsewhere:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
            members = [*self.members()]
            if not members or time.monotonic() > until_s:
                break
            look(members)
            came = signal.sigtimedwait((*FORWARDED, signal.SIGCHLD), LOOK_S)
            if came is not None and came.si_signo != signal.SIGCHLD:
                break
        return {pid: program_of(pid) for pid in members}

    def moved(self) -> dict[str, int] | None:
        """The bytes that all of them read and wrote, through pipes too; None where the kernel does not count them."""
        before, now = self._before, _of_children()
        if before is None or now is None:
            return None
        alive = [found for pid in self.members() if (found := _io(f"/proc/{pid}/io")) is not None]
        return {name: now[name] - before[name] + sum(each[name] for each in alive) for name in _MOVED}


@contextmanager
def adopted() -> Iterator[Family]:
    """The processes that this one starts in the context, and those whose parents end, become its children."""
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)
    prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield Family()
    finally:
        prctl(_SET_SUBREAPER, 0, 0, 0, 0)


def program_of(pid: int) -> str:
    """The name of a process's program, up to 15 bytes; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _children() -> list[int]:
    return [pid for pid in descendants(os.getpid(), deep=False) if pid != os.getpid()]


def _of_children() -> dict[str, int] | None:
    """What the children moved that this process has waited for: its whole less that of its threads."""
    whole = _io("/proc/self/io")
    threads = [_io(f"/proc/self/task/{task}/io") for task in os.listdir("/proc/self/task")] if whole else []
    if whole is None or None in threads:
        return None
    return {name: whole[name] - sum(each[name] for each in threads if each) for name in _MOVED}


def _io(path: str) -> dict[str, int] | None:
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
        counts = {name: int(number) for name, _, number in (line.partition(":") for line in lines)}
    except (OSError, ValueError):
        return None
    return counts if counts.keys() >= set(_MOVED) else None
