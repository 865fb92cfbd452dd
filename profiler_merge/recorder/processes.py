"""Runs a command in the foreground as the shell would, with its input, output, status and signals; then the processes
that outlive it: which they are, and how many bytes all of them read.

The kernel adds the bytes of a process to its parent's when the parent waits for it. While `adopted` lasts this process
is the parent of those whose own parent ended, so that the sum of all is in its own /proc/self/io: also of a process
that clears its environment, is linked statically, has another user or is killed. Standard library only, as `watch`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from dxt_replay.profiler_merge.recorder.watch import descendants, program_of
from dxt_replay.traces.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_S = 0.2
"""Seconds between looks at the command without a signal: another thread of this process may have taken the signal."""
_EARLY = 10
"""A look comes at the latest after this part of the time so far, so that short jobs are seen as well as long ones."""
_BY_KERNEL = 0x80
"""Code of a signal from the terminal (SI_KERNEL): the command, in the same process group, has received it too."""
PATIENCE_S = 10.0
"""Longest wait for processes that outlive the program: DataLoader workers look every 5 s whether their parent lives."""
_SET_SUBREAPER = 36
_MOVED = ("rchar", "wchar")


class Ended(NamedTuple):
    """How a command ended.

    status: its exit status, 128 + N for one that signal N ended, as a shell reports it.
    signals: numbers of the signals that came meanwhile.
    """

    status: int
    signals: tuple[int, ...]


@contextmanager
def signals_held() -> Iterator[set[int]]:
    """Hold signals back for `run_in_foreground`; yields the previous mask.

    Enter it before threads start: a thread that does not hold a signal back takes it, and its sender is lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_foreground(
    words: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int],
    *,
    output: int | None = None,
    look: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command to its end. Passes signals to the command, and outlives them.

    `mask`: from `signals_held`; the command starts with it. `output`: the descriptor that takes the command's standard
    output, None for this process's own. `look`: called about every _LOOK_S while the command runs; it must be quick. A
    signal that came before the start ends this process as usual.
    Raises: UsageError when the command cannot be started.
    """
    if signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        pid = os.posix_spawnp(
            words[0],
            list(words),
            dict(environment),
            file_actions=[] if output is None else [(os.POSIX_SPAWN_DUP2, output, 1)],
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these
        )
    except OSError as error:
        why = "was not found" if error.errno == errno.ENOENT else f"cannot be started: {error.strerror}"
        raise UsageError(f"{words[0]} {why}: give the command as you would type it, after --") from error
    came: list[int] = []

    def pass_on(number: int, *, has_it: bool) -> None:
        came.append(number)
        if not has_it:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    begin_s = time.monotonic()
    with _other_threads_covered(pass_on):
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return Ended(status=128 - code if code < 0 else code, signals=tuple(came))
            look()
            pause_s = min(_LOOK_S, 0.005 + (time.monotonic() - begin_s) / _EARLY)
            info = signal.sigtimedwait((*FORWARDED, signal.SIGCHLD), pause_s)
            if info is not None and info.si_signo != signal.SIGCHLD:
                pass_on(info.si_signo, has_it=info.si_code == _BY_KERNEL)


@contextmanager
def _other_threads_covered(pass_on: Callable[..., None]) -> Iterator[None]:
    """Pass on a signal, too, that another thread takes, guessing whether the terminal sent it to both."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: FrameType | None) -> None:
        by_terminal = False
        if number in (signal.SIGINT, signal.SIGQUIT):
            with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
                by_terminal = os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
        pass_on(number, has_it=by_terminal)

    previous = {number: signal.signal(number, take) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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

        The caller holds the signals back. `look` is called with the ids about every _LOOK_S."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            for child in set(_children()) - self._elsewhere:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
            members = [*self.members()]
            if not members or time.monotonic() > until_s:
                break
            look(members)
            came = signal.sigtimedwait((*FORWARDED, signal.SIGCHLD), _LOOK_S)
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
