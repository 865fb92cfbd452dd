"""The directory in which a calibration works, made below the target and removed however the calibration ends."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np

from dxt_replay.replay.engine.link_free import open_link_free
from dxt_replay.replay.target.content import BLOCK_BYTES, make_noise
from dxt_replay.replay.target.posix import resolve_target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import MIB, format_bytes

NAME = ".dxt-replay-calibration-"  # Beginning of the directory's name, before a random number
_LOCK = "lock"  # File in the directory that its process keeps locked
LEAST_FREE_BYTES = 64 * MIB  # Free space that a calibration needs at least
FREE_SHARE = 0.25  # Largest share of the free space that a calibration takes
LEAST_DATA_BYTES = PIECE_BYTES = 8 * MIB
"""Data are written in pieces of this size, each synced, until the time for it is over."""


@contextmanager
def scratch_below(target: Path, name: str = NAME, purpose: str = "a calibration") -> Iterator[tuple[Path, int]]:
    """A new directory below the target, which is removed with all in it, and how many bytes may be written into it.
    `name`: how its own name begins.

    Raises: TargetError when the target is not a directory, cannot be written, or has too little free space."""
    resolved = resolve_target(target)
    if not resolved.is_dir():
        raise TargetError(
            f"the target {printable(target)} does not exist: give a directory on the file system to measure"
        )
    path = resolved / f"{name}{secrets.token_hex(6)}"
    try:
        _remove_abandoned(resolved, name)
        space = os.statvfs(resolved)
        room = space.f_bavail * space.f_frsize
        path.mkdir(mode=0o700)
        lock = _locked(path / _LOCK, os.O_CREAT)
    except OSError as error:
        raise refused(error, f"write below the target {printable(target)}") from error
    try:
        if room < LEAST_FREE_BYTES:
            raise TargetError(
                f"{printable(target)} has {format_bytes(room)} free, and {purpose} needs "
                f"{format_bytes(LEAST_FREE_BYTES)}: free space there or choose another --target"
            )
        yield path, int(FREE_SHARE * room)
    except OSError as error:
        raise refused(error, f"measure {printable(target)}") from error
    finally:
        os.close(lock)  # before the removal: NFS and FUSE keep the name of a file that is open
        shutil.rmtree(path, ignore_errors=True)


def _locked(path: Path, flags: int = 0) -> int:
    """Descriptor of a file that this process holds until it ends. Raises: OSError, also where another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError) or not flags:  # a file system without locks: nobody removes it
            os.close(fd)
            raise
    return fd


def _remove_abandoned(target: Path, name: str) -> None:
    """Remove what a process left behind that was killed. Where it is not known that it ended, all stays."""
    for entry in os.scandir(target):
        own = entry.name.startswith(name) and entry.is_dir(follow_symlinks=False)
        if own and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
            with suppress(OSError):
                if (lock := Path(entry) / _LOCK).exists():  # else a removal was cut short
                    os.close(_locked(lock))
                shutil.rmtree(entry, ignore_errors=True)


def refused(error: OSError, doing: str) -> TargetError:
    """The error for something that the file system refused. `doing`: such as "measure /scratch"."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free space there or choose another --target" if full else "choose another --target"
    return TargetError(f"cannot {doing}: {os.strerror(error.errno) if error.errno else error}; {remedy}")


def new_file(path: bytes) -> IO[bytes]:
    """Open a new file. A link that somebody put in place of the directory is not followed. Raises: OSError."""
    return open(open_link_free(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0)


def write_data(path: bytes, most: int, seconds: float) -> int:
    """Write data that do not compress, synced, for about `seconds` and up to `most` bytes; returns how many.

    Raises: OSError."""
    until, written = time.monotonic() + seconds, 0
    words = np.empty(BLOCK_BYTES // 8, dtype=np.uint64)
    with new_file(path) as file:
        while written < most and (time.monotonic() < until or written < LEAST_DATA_BYTES):
            for _ in range(min(PIECE_BYTES, most - written) // BLOCK_BYTES):
                make_noise(1, written // BLOCK_BYTES, words)
                written += file.write(words.data)
            os.fsync(file.fileno())
    return written
