"""What a target is: the place of a twin data set, which staging and verifying know by these calls alone.

`replay.target.targets` opens one; a file system is `replay.target.posix`. Paths are text below the target, `/` between
names, as `replay.target.placement` makes them; many are a column, `pa.LargeStringArray`. A target that does not exist
holds nothing. Every call raises TargetError, which says what was refused and what to do.
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

SMALL_BYTES = 256 << 10
"""Largest file that `Target.put_many` makes."""

_KIND_BITS = 0o170000
"""What S_IFMT gives (inode(7))."""

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
    """How much more a target takes; for this user, None where it does not say.

    `free_bytes`, `free_files`: bytes and files. `block_bytes`: every file takes whole blocks of so many bytes.
    `store`: equal for targets that share their room.
    """

    free_bytes: int | None
    free_files: int | None
    block_bytes: int
    store: object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """What is at the places of files, int64[files] each.

    `mode`: as `st_mode`, 0 where there is nothing. `size`: in bytes. `links`: how many names it has.
    """

    mode: np.ndarray
    size: np.ndarray
    links: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """int64[files]: bytes of each file, -1 where there is nothing."""
        found: np.ndarray = np.where(self.mode != 0, self.size, -1)
        return found


class Reader(Protocol):
    """A file of a target that is open. Threads may share it."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` with what is at `offset`; how many bytes there were. Raises: OSError."""

    def data_from(self, offset: int) -> int:
        """Where from `offset` on the next byte is that is not known to be in a hole; `size` where there is none."""


class Target(Protocol):
    """A target that is open. Threads may call it at once."""

    @property
    def where(self) -> str | Path:
        """What opens it again."""

    @property
    def base(self) -> bytes:
        """What stands before a path below it."""

    @property
    def exists(self) -> bool:
        """Whether there was anything when it was opened."""

    def shown(self, path: str) -> str:
        """The whole name of `path`, for a message."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep out other processes that stage into this target, replay on it, or remove what is staged."""

    def room(self) -> Room:
        """How much more it takes."""

    def stat(self, paths: pa.LargeStringArray) -> Found:
        """What is at each path, through no link."""

    def list(self) -> Iterator[tuple[str, bool]]:
        """(path, whether it is a directory) of all below the roots of twins, also what nobody staged."""

    def open(self, path: str) -> AbstractContextManager[Reader | None]:
        """A file to read; None where there is none."""

    def put(self, path: str, blocks: Iterable[bytes | memoryview], *, replace: bool, sync: bool) -> None:
        """Make a file of these blocks. It has its name once it is whole, and nothing is left where that fails.

        `replace`: take the place of a file that is there, which is refused else. `sync`: be durable at once.
        """

    def put_hole(self, path: str, size: int, *, replace: bool) -> None:
        """As `put`, of `size` bytes that are 0 and take no room, as far as the target has such files."""

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        """Make new files of at most SMALL_BYTES, the noise of their record ids (`replay.target.content`).

        `sizes`, `record_ids`: int64 and uint64, one a path. `placed`: bool by path, set for each file that is whole,
        also where another is refused.
        """

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        """Have `paths` be names under which a run can make files."""

    def remove(self, paths: pa.LargeStringArray) -> int:
        """Remove files, and what a staging that was killed left of them; how many. Anything but files stays."""

    def prune(self, paths: pa.LargeStringArray) -> None:
        """Remove the directories above `paths` that are empty."""

    def sync(self) -> None:
        """Have all that was put be durable."""


def refusal(error: OSError, doing: str) -> TargetError:
    """The error for something that the operating system refused, with what to do next. `doing`: "write /a/b"."""
    remedy = exhausted(error) or _REMEDIES.get(error.errno or 0, "choose another --target")
    return TargetError(f"cannot {doing}: {os.strerror(error.errno) if error.errno else error}; {remedy}")


def foreign(shown: str) -> TargetError:
    """The error for a file at a placement that no manifest lists."""
    return TargetError(f"{shown} exists and was not made by dxt-replay: move it away or choose another --target")


def plain_files(target: Target, paths: pa.LargeStringArray) -> np.ndarray:
    """int64[paths]: bytes of the file at each path, -1 where there is nothing.

    Raises: TargetError for a link of either kind, a directory and anything else that is not a plain file.
    """
    found = target.stat(paths)
    plain = (found.mode == 0) | (((found.mode & _KIND_BITS) == stat_modes.S_IFREG) & (found.links <= 1))
    if plain.all():
        return found.sizes
    first = int(np.argmin(plain))
    shown, mode = target.shown(paths[first].as_py()), int(found.mode[first])
    if not stat_modes.S_ISREG(mode):
        what = "a symbolic link" if stat_modes.S_ISLNK(mode) else "not a plain file"
        raise TargetError(f"{shown} is {what}: remove it or choose another --target")
    raise TargetError(
        f"{shown} is one of {found.links[first]} names (hard links) of a file, which a "
        "replay could overwrite: remove this name and stage again, or choose another --target"
    )
