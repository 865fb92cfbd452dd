"""Whether a target takes direct I/O."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from dxt_replay.traces.errors import TargetError


def check_direct(target: Path, paths: Iterable[bytes]) -> None:
    """Try direct I/O on one file of each file system.

    `paths`: the files of the twin. Where none of them exists, an unnamed file in `target` is tried.
    Raises: TargetError where a file system does not support direct I/O.
    """
    tried: set[int] = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev
        except OSError:
            continue  # a file that the run makes
        if device not in tried:
            tried.add(device)
            _try_direct(path, os.O_RDONLY)
    if not tried:
        _try_direct(os.fsencode(target), os.O_RDWR | os.O_TMPFILE)


def _try_direct(path: bytes, flags: int) -> None:
    try:
        os.close(os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno != errno.EINVAL:
            return  # no unnamed files here, or no permission: the run itself reports it
        raise TargetError(
            f"the file system of {os.fsdecode(path)} has no direct I/O (O_DIRECT): leave --direct out, or choose a "
            "target on another one (`dxt-replay doctor DIR` tries it)"
        ) from error
