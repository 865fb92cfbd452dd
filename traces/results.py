"""The results of replayed operations: the names of their errors, and which of them are failures. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import numpy as np

from dxt_replay.traces.schema import READ, RECONSTRUCTED, WRITE

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EBADF)
"""Errors of a path or descriptor that does not exist, or names another kind of file, when an operation uses it."""


def error_name(number: int) -> str:
    """Name of an errno, such as ENOENT; the number itself if it has no name."""
    return errno.errorcode.get(number, str(number))


def by_error_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by errno as counts by the name of the error, in the order of the numbers."""
    return {error_name(number): count for number, count in sorted(counts.items())}


def is_refused(op: np.ndarray, origin: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Mask of operations (n,) that are not failures although they returned an error (a negative errno).

    The moments of reconstructed opens, closes, stats, seeks, syncs and renames are inferred, so one of them may find
    nothing yet, or no longer, where the application's own call succeeded. Errors of the storage itself, such as EIO
    and ENOSPC, are failures of any operation.
    """
    refused: np.ndarray = (origin == RECONSTRUCTED) & (op != READ) & (op != WRITE) & np.isin(-result, _ABSENT)
    return refused
