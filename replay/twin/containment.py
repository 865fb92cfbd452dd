"""A target directory that staging cannot leave: everything below it is reached name by name, never through a link.

The target itself may be given through links; it is resolved once. Below it each directory is opened relative to the
descriptor of the one above with O_NOFOLLOW, so a link put there by anyone, at any moment, is refused instead of
followed. A mount point in a twin is refused too: what is mounted there is not ours. Paths below the target are text,
`/` between names, as `replay.twin.placement` makes them.

A run opens the files by their whole paths: links are looked for as it starts (`replay.twin.stage.check_staged`), and
the kernel refuses them at each open for writing and each rename (`replay.engine.link_free`). The libraries of
MPI-IO and HDF5 open paths themselves: there the path is looked at just before. A user who replaces a directory by a
link within that moment, or under a preloaded tracer, is trusted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.replay.twin.placement import TWIN_ROOT
from dxt_replay.traces.errors import TargetError, exhausted
from dxt_replay.traces.text import printable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

LOCK_NAME = ".dxt-replay-lock"
"""File in a target that is there, and locked, while a process stages into the target or replays on it."""

RELEASE_PATIENCE_S = 5.0
"""Seconds that removing this file may take. Then the process goes on; the kernel releases the lock when it ends."""

_MOUNTS = Path("/proc/self/mountinfo")
"""A line a mount; its fifth word is where (proc_pid_mountinfo(5)), with space, tab, newline and \\ in octal."""

_ESCAPED = re.compile(rb"\\([0-7]{3})")

_NO_NAMES = frozenset(("", ".", ".."))

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


def refusal(error: OSError, doing: str) -> TargetError:
    """The error for something that the operating system refused, with what to do next. `doing`: "write /a/b"."""
    remedy = exhausted(error) or _REMEDIES.get(error.errno or 0, "choose another --target")
    return TargetError(f"cannot {doing}: {os.strerror(error.errno) if error.errno else error}; {remedy}")


def resolve_target(target: Path) -> Path:
    """`target` absolute and without links. Raises: TargetError when it is not a directory."""
    try:
        resolved = Path(os.path.realpath(target))
        found = os.stat(resolved)
    except FileNotFoundError:
        return resolved
    except OSError as error:
        raise refusal(error, f"use the target {printable(target)}") from error
    except ValueError as error:
        raise TargetError(f"{printable(target)!r} is not a path ({error}): choose another --target") from error
    if not stat.S_ISDIR(found.st_mode):
        raise TargetError(f"the target {printable(target)} is not a directory: choose another --target")
    return resolved


def close_unwritten(fd: int) -> None:
    """Close a descriptor that nothing was written through: an error (EINTR, or EIO on NFS) then means nothing, and
    Linux has closed it all the same (close(2))."""
    with suppress(OSError):
        os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An open target: its resolved path, and its descriptor, valid inside the `with` that gave it."""

    path: Path
    fd: int

    def shown(self, relative: str) -> str:
        """The full path of `relative`, for a message."""
        return printable(self.path / relative)

    @contextmanager
    def directory(self, relative: str) -> Iterator[int | None]:
        """Descriptor of a directory below the target ("" is the target), None where there is none.

        Raises: TargetError when a link or a file is on the way.
        """
        fd = os.dup(self.fd)
        try:
            for depth, name in enumerate(_names(relative)):
                below = self._open(fd, name, relative, depth)
                if below is None:
                    yield None
                    return
                close_unwritten(fd)
                fd = below
            yield fd
        finally:
            close_unwritten(fd)

    @contextmanager
    def made_directory(self, relative: str) -> Iterator[int]:
        """Like `directory`, making what is absent."""
        fd = os.dup(self.fd)
        try:
            for depth, name in enumerate(_names(relative)):
                below = self._open(fd, name, relative, depth)
                if below is None:
                    self._make(fd, name, relative, depth)
                    below = self._open(fd, name, relative, depth)
                if below is None:
                    raise TargetError(f"{self.shown(_start(relative, depth))} vanished while it was used: try again")
                close_unwritten(fd)
                fd = below
            yield fd
        finally:
            close_unwritten(fd)

    def _open(self, above: int, name: bytes, relative: str, depth: int) -> int | None:
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return None
        except OSError as error:
            shown = self.shown(_start(relative, depth))
            try:
                found = lstat(above, name)
            except OSError:
                found = None
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise TargetError(f"{shown} is a symbolic link, which a target must not hold: remove it") from error
            if found is not None and not stat.S_ISDIR(found.st_mode):
                raise TargetError(f"{shown} is a file where a directory is needed: move it away") from error
            raise refusal(error, f"open {shown}") from error

    def _make(self, above: int, name: bytes, relative: str, depth: int) -> None:
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
        except OSError as error:
            raise refusal(error, f"make the directory {self.shown(_start(relative, depth))}") from error

    def remove_empty_directories(self, directories: Iterable[str]) -> None:
        """Remove these and the directories above them, as far as they are empty; never the target itself."""
        every = {_start(relative, depth) for relative in directories for depth in range(len(_names(relative)))}
        for relative in sorted(every, key=lambda path: path.count("/"), reverse=True):
            above, name = split(relative)
            with self.directory(above) as fd:
                if fd is not None:
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out other processes that stage into this target, replay on it, or remove what is staged.

        The lock is flock(2) on the file LOCK_NAME, which the kernel releases however the process ends. Linux makes it
        a lock of the server on NFS, and of the cluster on Lustre mounted with `-o flock`, so that it holds between
        nodes; where a node dies, the server releases it when the lease ends. Where the file system has no locks, or
        this user may not write, there is no protection. Raises: TargetError when another process holds it.
        """
        fd = self._take_lock()
        try:
            yield
        finally:
            if fd is not None:  # in a thread: on storage that hangs this would never return, nor the error be printed
                releasing = threading.Thread(target=self._release_lock, args=(fd,), daemon=True)
                releasing.start()
                releasing.join(RELEASE_PATIENCE_S)

    def _release_lock(self, fd: int) -> None:
        with suppress(OSError):
            os.unlink(LOCK_NAME, dir_fd=self.fd)
        close_unwritten(fd)

    def _take_lock(self) -> int | None:
        """Descriptor of the lock file, which is locked; None where this user cannot make it."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            try:
                fd = os.open(LOCK_NAME, flags, 0o666, dir_fd=self.fd)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    return None
                raise refusal(error, f"lock {self.shown(LOCK_NAME)}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                close_unwritten(fd)
                raise TargetError(
                    f"another process is staging into {printable(self.path)} or replaying on it: wait until it ends, "
                    "or choose another --target"
                ) from error
            except OSError:
                pass  # NFS without locks (ENOLCK), Lustre without -o flock (ENOSYS, EOPNOTSUPP)
            found = lstat(self.fd, LOCK_NAME.encode())
            if found is not None and os.path.samestat(found, os.fstat(fd)):
                return fd
            close_unwritten(fd)  # the process that held the lock has just removed the file


@contextmanager
def open_target(target: Path) -> Iterator[Target | None]:
    """The target held open, None when it does not exist.

    Raises: TargetError when it cannot be opened, or something is mounted in a twin there.
    """
    path = resolve_target(target)
    _refuse_mounts(path)
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise refusal(error, f"open the target {printable(path)}") from error
    try:
        yield Target(path=path, fd=fd)
    finally:
        close_unwritten(fd)


def _refuse_mounts(target: Path) -> None:
    """Raises: TargetError where a directory or file of a twin is a mount point: writing and removing would cross it."""
    twins = os.fsencode(target / TWIN_ROOT)
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return  # no /proc here
    for line in lines:
        place = _ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4])
        if place.startswith(twins):
            raise TargetError(
                f"{printable(os.fsdecode(place))} is a mount point inside a twin, which is neither written nor "
                "emptied: unmount it or choose another --target"
            )


@contextmanager
def make_target(target: Path) -> Iterator[Target]:
    """The target held open, made with all above it where it does not exist."""
    path = resolve_target(target)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(error, f"make the target {printable(path)}") from error
    with open_target(path) as opened:
        if opened is None:
            raise TargetError(f"{printable(path)} vanished while it was used: try again")
        yield opened


@contextmanager
def locked_target(target: Path) -> Iterator[None]:
    """Hold the lock of a target, as `Target.locked`; nothing is held where the target does not exist."""
    with open_target(target) as opened, nullcontext() if opened is None else opened.locked():
        yield


def lstat(directory_fd: int, name: bytes) -> os.stat_result | None:
    """What `name` itself is, without following it; None where there is nothing."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def unlink(directory_fd: int, name: bytes) -> bool:
    """Remove a regular file; anything else is left. True when it was there."""
    found = lstat(directory_fd, name)
    if found is None or not stat.S_ISREG(found.st_mode):
        return False
    os.unlink(name, dir_fd=directory_fd)
    return True


def split(relative: str) -> tuple[str, bytes]:
    """(directory, name): the text of the one and the bytes of the other."""
    directory, _, name = relative.rpartition("/")
    return directory, name.encode("utf-8")


def is_contained(relative: str) -> bool:
    """Whether `relative` is a plain path below a directory: no empty, `.` or `..` names, no NUL."""
    return "\0" not in relative and _NO_NAMES.isdisjoint(relative.split("/"))


def _names(relative: str) -> list[bytes]:
    return relative.encode("utf-8").split(b"/") if relative else []


def _start(relative: str, depth: int) -> str:
    return "/".join(relative.split("/")[: depth + 1])
