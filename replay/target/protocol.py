"""The interface of a target, the place of a twin data set. Staging and verifying use only these calls.

`replay.target.targets` opens one. Paths are text below the target, `/` between names, as `replay.target.placement`
makes them; many are a column, `pa.LargeStringArray`. A target that does not exist is empty. Every call raises
TargetError, which names the refused call and the remedy.
"""

from __future__ import annotations

import errno
import os
import stat as stat_modes
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import TargetError, exhausted

SMALL_BYTES = 256 << 10  # Largest file that `Target.put_many` makes
LOCK_NAME = ".dxt-replay-lock"  # What is in a target, and locked, while a process stages into it or replays on it

_REMEDIES = {
    errno.ENOSPC: "free space or inodes there, choose another --target, or stage with --sparse",
    errno.EDQUOT: "your quota there is used up: free space, choose another --target, or stage with --sparse",
    errno.EACCES: "get write permission there or choose another --target",
    errno.EPERM: "get write permission there or choose another --target",
    errno.EROFS: "choose a --target on a file system that is mounted for writing",
    errno.ENAMETOOLONG: "this file system allows shorter names only: choose another or a less deep --target",
    errno.EFBIG: "this file system allows smaller files only: choose another --target",
    errno.ENOENT: "the directory was removed or is not there: choose another --target",
    errno.ENOTDIR: "a file is in the way: choose another --target",
    errno.ELOOP: "a symbolic link is in its place, which is not followed: remove the link or choose another --target",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free room of a target for this user; None if unknown.

    `free_bytes`, `free_files`: bytes and files. `block_bytes`: every file takes whole blocks of so many bytes.
    `store`: equal for targets that share their room."""

    free_bytes: int | None
    free_files: int | None
    block_bytes: int
    store: object


class Reader(Protocol):
    """An open file of a target. Threads may share it."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def read_into(self, into: memoryview, offset: int) -> int:
        """Read from `offset` into `into`. Returns the number of bytes. Raises: OSError."""

    def data_from(self, offset: int) -> int:
        """The next offset from `offset` on that may be outside a hole; `size` for none."""


class Target(Protocol):
    """An open target. Threads may call it at the same time."""

    @property
    def where(self) -> str | Path:
        """The text with which `open_target` opens it again."""

    @property
    def base(self) -> bytes:
        """The prefix that makes the path of a file below it a full path."""

    @property
    def exists(self) -> bool:
        """Whether it existed when `open_target` opened it."""

    def shown(self, path: str) -> str:
        """The full name of `path`, for a message."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep out other processes that stage into this target, replay on it, or unstage it."""

    def room(self) -> Room:
        """Free room."""

    def stat(self, paths: pa.LargeStringArray) -> np.ndarray:
        """int64[paths, 3]: `st_mode` (0 if absent), bytes and number of names of each, without following links."""

    def list(self) -> Iterator[tuple[str, bool]]:
        """(path, whether it is a directory) of everything below the roots of twins, foreign files included."""

    def open(self, path: str) -> AbstractContextManager[Reader | None]:
        """Open a file for reading; None if absent."""

    def put(self, path: str, blocks: Iterable[bytes | memoryview], *, replace: bool, sync: bool) -> None:
        """Make a file of these blocks. It gets its name when it is complete; a failure leaves no file.

        `replace`: replace an existing file, which is an error otherwise. `sync`: make it durable at once."""

    def put_hole(self, path: str, size: int, *, replace: bool) -> None:
        """As `put`, for `size` bytes of 0, which take no room if the target supports holes."""

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        """Make new files of at most SMALL_BYTES, the noise of their record ids (`replay.target.content`).

        `sizes`, `record_ids`: int64 and uint64, one a path. `placed`: bool by path, set for each complete file, also
        when another file fails."""

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        """Make the directories in which a run creates files at `paths`."""

    def remove(self, paths: pa.LargeStringArray) -> int:
        """Remove files, and leftovers of a killed staging. Returns their number. Anything but files stays."""

    def prune(self, paths: pa.LargeStringArray) -> None:
        """Remove the empty directories above `paths`."""

    def sync(self) -> None:
        """Make all written files durable."""


def refusal(error: OSError, doing: str) -> TargetError:
    """The error for a call that the operating system refused, with the remedy. `doing`: "write /a/b"."""
    remedy = _REMEDIES.get(error.errno or 0) or exhausted(error) or "choose another --target"
    return TargetError(f"cannot {doing}: {os.strerror(error.errno) if error.errno else error}; {remedy}")


def absent(target: Target) -> TargetError:
    """The error for a target that does not exist."""
    what = f"the target {target.shown('')} does not exist"
    if isinstance(target.where, Path):
        return TargetError(f"{what}: make it (or is it not mounted?), then run `dxt-replay stage`")
    return TargetError(f"{what}: run `dxt-replay stage` first")


def foreign(shown: str) -> TargetError:
    """The error for a file at a placement that no manifest lists."""
    return TargetError(f"{shown} exists and was not made by dxt-replay: move it away or choose another --target")


def plain_files(target: Target, paths: pa.LargeStringArray) -> np.ndarray:
    """int64[paths]: bytes of the file at each path, -1 if absent.

    Raises: TargetError for a link of either kind, a directory and anything else that is not a plain file."""
    modes, sizes, links = target.stat(paths).T
    plain = (modes == 0) | (((modes & 0o170000) == stat_modes.S_IFREG) & (links <= 1))  # S_IFMT
    if plain.all():
        return np.where(modes != 0, sizes, -1)
    first = int(np.argmin(plain))
    shown, mode = target.shown(paths[first].as_py()), int(modes[first])
    if not stat_modes.S_ISREG(mode):
        what = "a symbolic link" if stat_modes.S_ISLNK(mode) else "not a plain file"
        raise TargetError(f"{shown} is {what}: remove it or choose another --target")
    raise TargetError(
        f"{shown} is one of {links[first]} names (hard links) of a file, which a "
        "replay could overwrite: remove this name and stage again, or choose another --target"
    )
