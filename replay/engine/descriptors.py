"""Raises the limit of open files of a process, and checks that it is enough."""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress

from dxt_replay.traces.errors import ReplayError

SPARE = 16
"""Descriptors for files that are open for a moment: the next part of the capture, an import."""


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard limit, so that `count` more files can be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256  # what the program itself has open
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(OSError, ValueError):  # the kernel's own limit (fs.nr_open) is lower: files are closed earlier
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def require_descriptors(holders: int) -> None:
    """Check that `holders` more files can be open at once: each lane holds one, which is never closed for another.

    Raises: ReplayError when the limit (RLIMIT_NOFILE) is lower, so that operations would fail.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + holders + SPARE
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raise ReplayError(
            f"this process needs {wanted} open files, and the limit is {soft}: raise the limit (ulimit -n), start "
            f"{math.ceil(holders / max(soft - wanted + holders, 1))} times as many processes, or choose fewer ranks "
            "(--ranks); `dxt-replay doctor` lists the limits"
        )
