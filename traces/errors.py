"""The errors that a user may see. Any other exception that escapes is a bug and keeps its traceback.

A message says what is wrong, where, and what to do. `replay.commands.main` prints it and exits with `exit_status`.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any


class DxtReplayError(Exception):
    """Base of every error that the input, the machine or the command line causes."""

    exit_status = 2
    known_to_all = False
    """True once all processes of a replay know of the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error by its message, so that a worker can send an error that takes other arguments."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[DxtReplayError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> DxtReplayError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class UsageError(DxtReplayError):
    """Options or arguments that do not fit together."""


class LogError(DxtReplayError):
    """A file that is not a Darshan log, or a Darshan log that is damaged or of an unsupported version."""


class ProfileError(DxtReplayError):
    """A profiler file that cannot be read or holds no events."""


class AlignmentError(DxtReplayError):
    """The clocks of a log and its profile cannot be related by the method asked for."""


class CaptureError(DxtReplayError):
    """A capture that is missing a part, truncated, inconsistent, or written by a newer release."""


class DamagedCaptureError(CaptureError):
    """A capture whose files contradict the contract. The message ends with what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; copy or make the capture again")


class UnreadableError(CaptureError):
    """A part of a capture that the system did not let be read; the part may be whole."""


class TargetError(DxtReplayError):
    """A target directory without space or permission, or a path that would leave it."""

    kept: Path | None = None
    """Path of a result that could not take its place."""


class ReplayError(DxtReplayError):
    """A replay that could not be carried through."""


class ContradictionError(ReplayError):
    """A prediction that a replay on the real storage contradicts: a comparison failed."""

    exit_status = 1


class RecordingError(DxtReplayError):
    """A job that cannot be recorded: no tracer works here, or the tracer left no log of it."""


class WorkerError(DxtReplayError):
    """A process that did a part of the work died, or cannot do it."""


class MissingDependencyError(DxtReplayError):
    """A package that this feature needs is not installed."""

    def __init__(self, package: str, feature: str, install: str) -> None:
        super().__init__(f"{feature} needs {package}, which is not installed: {install}")


def exhausted(error: BaseException) -> str | None:
    """Remedy for an error of the system: of this process's or machine's limits (threads, memory, open files), or of a
    file system that fails or refuses. None for any other error, such as damage."""
    if any(words in str(error) for words in _NO_THREAD):
        return "raise the limit of this user's threads (ulimit -u), or of memory (ulimit -v)"
    if isinstance(error, MemoryError):  # Arrow's "malloc of size 32768 failed" is one
        return "out of memory: raise the limit of memory (ulimit -v), or look at a part"
    return _REMEDIES.get(getattr(error, "errno", None) or 0)


def unreadable(error: Exception, place: object) -> CaptureError:
    """The error for a part of a capture that an exception kept from being read: `UnreadableError`, or damage."""
    if (remedy := exhausted(error)) is not None:
        return UnreadableError(f"cannot read {place}: {getattr(error, 'strerror', None) or error}: {remedy}")
    return DamagedCaptureError(f"{place} is damaged: {error}")


_NO_THREAD = ("Failed to launch worker thread", "can't start new thread")
"""Messages by which Arrow and Python report a missing thread: neither has an exception class for it."""

_FAILS = (
    *(errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNABORTED),
)
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "this machine can open no more files (fs.file-max): end other programs, or raise it",
    errno.EACCES: "get permission there, or choose another place",
    errno.EPERM: "get permission there, or choose another place",
    **dict.fromkeys(_FAILS, "the file system failed: look at it and try again, or choose another place"),
}
