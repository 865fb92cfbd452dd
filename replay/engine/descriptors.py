"""Checks that a process may open as many files as its lanes hold at a time."""

from __future__ import annotations

import math
import os
import resource

from dxt_replay.traces.errors import ReplayError

SPARE = 16
"""Descriptors for files that are open for a moment: the next part of the capture, an import."""


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
            "(--ranks)"
        )
