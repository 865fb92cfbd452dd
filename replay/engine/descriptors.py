"""Whether a process may have as many files open as its lanes hold at a time."""

from __future__ import annotations

import os
import resource

from traces.errors import ReplayError

SPARE = 16
"""For what opens a file for a moment: the next part of the op stream, an import."""


def require_descriptors(holders: int) -> None:
    """Check that `holders` more files can be open at once: one for each lane, which is closed for no other.

    Raises: ReplayError when the limit (RLIMIT_NOFILE) is lower, so that operations would fail.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + holders + SPARE
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raise ReplayError(
            f"{wanted} files are open at a time in this process, and it may have {soft}: raise the limit (ulimit -n), "
            "start more processes or choose fewer ranks (--ranks)"
        )
