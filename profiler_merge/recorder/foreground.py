"""Runs a command in the foreground as the shell would: with its input, output, status and signals."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from dxt_replay.traces.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LOOK_S = 0.2
"""Seconds between looks at the command without a signal: another thread of this process may have taken the signal."""

_EARLY = 10
"""A look comes at the latest after this part of the time so far, so that short jobs are seen as well as long ones."""

_BY_KERNEL = 0x80
"""Code of a signal from the terminal (SI_KERNEL): the command, in the same process group, has received it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
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
    output, None for this process's own. `look`: called about every LOOK_S while the command runs; it must be quick. A
    signal that came before the start ends this process as usual.
    Raises: UsageError when the command cannot be started.
    """
    if signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _Command(_start(words, environment, mask, output), look).wait()


def _start(words: Sequence[str], environment: Mapping[str, str], mask: set[int], output: int | None) -> int:
    actions = [] if output is None else [(os.POSIX_SPAWN_DUP2, output, 1)]
    ignored_by_python = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        return os.posix_spawnp(
            words[0],
            list(words),
            dict(environment),
            file_actions=actions,
            setsigmask=mask,
            setsigdef=ignored_by_python,
        )
    except OSError as error:
        why = "was not found" if error.errno == errno.ENOENT else f"cannot be started: {error.strerror}"
        raise UsageError(f"{words[0]} {why}: give the command as you would type it, after --") from error


class _Command:
    """The running command."""

    def __init__(self, pid: int, look: Callable[[], None]) -> None:
        self._pid, self._look = pid, look
        self._came: list[int] = []

    def wait(self) -> Ended:
        began_s = time.monotonic()
        with self._other_threads_covered():
            while True:
                ended, status = os.waitpid(self._pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return Ended(status=128 - code if code < 0 else code, signals=tuple(self._came))
                self._look()
                pause_s = min(LOOK_S, 0.005 + (time.monotonic() - began_s) / _EARLY)
                info = signal.sigtimedwait((*FORWARDED, signal.SIGCHLD), pause_s)
                if info is not None and info.si_signo != signal.SIGCHLD:
                    self._pass_on(info.si_signo, has_it=info.si_code == _BY_KERNEL)

    def _pass_on(self, number: int, *, has_it: bool) -> None:
        self._came.append(number)
        if not has_it:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    @contextmanager
    def _other_threads_covered(self) -> Iterator[None]:
        """Handle a signal that another thread takes: pass it on too, guessing whether the terminal sent it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def take(number: int, frame: FrameType | None) -> None:
            self._pass_on(number, has_it=number in (signal.SIGINT, signal.SIGQUIT) and _is_foreground())

        previous = {number: signal.signal(number, take) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _is_foreground() -> bool:
    """Whether the terminal sends its signals to this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
