"""Drops the pages of files from the kernel's page cache, and counts pages in it.

Only the page cache of this machine counts: not the cache of a disk, a server or a burst buffer, and not the private
caches of ZFS and GPFS.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from dxt_replay.replay.target import _small_files
from dxt_replay.replay.target.posix import close_unwritten

WINDOW_BYTES = 1 << 30  # What `resident` maps at a time: address space, and a byte of memory per page

_KEEPS_PAGES: Mapping[int, str] = {
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x958458F6: "hugetlbfs",
    0x2FC12FC1: "zfs",
    0x47504653: "gpfs",
}
"""File systems that live in memory, or whose own cache the advice does not reach. Numbers: linux/magic.h, statfs(2),
OpenZFS and GPFS headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropResult:
    """Files whose pages were not dropped: their number by the file system that cannot drop pages (`kept`), and by the
    reason why they could not be opened (`skipped`)."""

    kept: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each group of files that was not dropped."""
        kept = (
            f"{count} files are on {name}, which does not drop pages on request: their reads will not be cold"
            for name, count in sorted(self.kept.items())
        )
        failed = sorted(self.skipped.items())
        return (*kept, *(f"the pages of {count} files could not be dropped: {reason}" for reason, count in failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Bytes of `total_bytes` in the page cache; both leave out files for which the kernel does not tell."""

    resident_bytes: int = 0
    total_bytes: int = 0

    def __add__(self, other: Residency) -> Residency:
        resident, total = self.resident_bytes + other.resident_bytes, self.total_bytes + other.total_bytes
        return Residency(resident_bytes=resident, total_bytes=total)

    @property
    def percent(self) -> float | None:
        """Share in percent; None if unknown."""
        return 100.0 * self.resident_bytes / self.total_bytes if self.total_bytes else None


def drop(paths: Iterable[bytes]) -> DropResult:
    """Write out and give up the cached pages of each file (fsync, then POSIX_FADV_DONTNEED).

    Advice only: pages that another process has mapped stay. `resident` measures the result. Never raises for a
    single file; `skipped` counts the failures."""
    result = DropResult()
    for path in paths:
        try:
            with _opened(path) as fd:
                os.fsync(fd)  # a page that is not on the disk yet cannot be dropped
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                if (name := _KEEPS_PAGES.get(_file_system_magic(fd))) is not None:
                    result.kept[name] += 1
        except (OSError, ValueError) as error:
            result.skipped[getattr(error, "strerror", None) or str(error)] += 1
    return result


def resident(paths: Iterable[bytes]) -> Residency:
    """The part of these files in the page cache, from mincore(2) on mappings that are never read.

    Files that this user neither owns nor may write do not count, because the kernel reports them as all resident
    (since Linux 5.2, commit 134fca9063ad). Files that cannot be opened do not count. Never raises for a single file."""
    found = Residency()
    for path in paths:
        with suppress(OSError, ValueError), _opened(path) as fd:
            found += resident_of(fd, path)
    return found


def resident_of(fd: int, path: bytes) -> Residency:
    """As `resident`, of a file that is open: some file systems drop the pages of a file at each open. Never raises."""
    with suppress(OSError, ValueError):  # no mapping on this file system, or the file shrank meanwhile
        status = os.fstat(fd)
        # The kernel's rule for mincore: owner (or root), or may write.
        if os.geteuid() in (0, status.st_uid) or os.access(path, os.W_OK, effective_ids=True):
            found = _small_files.resident(fd, status.st_size, WINDOW_BYTES)
            return Residency(resident_bytes=found, total_bytes=status.st_size)
    return Residency()


@contextmanager
def _opened(path: bytes) -> Iterator[int]:
    """Read-only descriptor of a plain file. Raises: OSError, also for anything else; ValueError for a NUL."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # O_NONBLOCK: a FIFO must not wait for its writer
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        yield fd
    finally:
        close_unwritten(fd)


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library, opened once, because opening it takes longer than the look at a small file."""
    return ctypes.CDLL(None, use_errno=True)


def _file_system_magic(fd: int) -> int:
    """`f_type` of fstatfs(2), the first word of the structure on every Linux but s390, where it is 32 bits."""
    buffer = (ctypes.c_long * 64)()
    if _libc().fstatfs(fd, buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer[0] & 0xFFFFFFFF
