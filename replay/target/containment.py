"""A directory that staging cannot leave: every path below it is opened one component at a time, never through a link.

The directory itself may be given through links; it is resolved once. Each directory below is opened relative to the
descriptor of its parent with O_NOFOLLOW, so a link is refused even if somebody makes it during the staging. A mount
point in a twin is refused too, because mounted files belong to somebody else. Paths below the target are text with `/`
between names, as `replay.target.placement` makes them.

A run opens the files by their whole paths. It looks for links when it starts (`replay.target.stage.check_staged`), and
the kernel refuses them at each open for writing and each rename (`replay.engine.link_free`). The libraries of MPI-IO
and HDF5 open paths themselves, so the path is checked just before. A link that somebody makes between that check and
the open, or under a preloaded tracer, is not noticed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.protocol import refusal
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MOUNTS = Path("/proc/self/mountinfo")
"""A line a mount; its fifth word is where (proc_pid_mountinfo(5)), with space, tab, newline and \\ in octal."""

_ESCAPED = re.compile(rb"\\([0-7]{3})")


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


def refuse_mounts(target: Path) -> None:
    """Raises: TargetError if a directory or file of a twin is a mount point: writing or removing would change mounted
    files."""
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


def close_unwritten(fd: int) -> None:
    """Close a descriptor through which nothing was written. Never raises: an error (EINTR, or EIO on NFS) then loses no
    data, and Linux has closed the descriptor all the same (close(2))."""
    with suppress(OSError):
        os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDirectory:
    """A directory: its resolved path, and its descriptor while it is open, None if it does not exist."""

    path: Path
    fd: int | None

    def shown(self, relative: str) -> str:
        """The full path of `relative`, for a message."""
        return printable(self.path / relative)

    @contextmanager
    def directory(self, relative: str) -> Iterator[int | None]:
        """Descriptor of a directory below this one ("" is this one), None where there is none.

        Raises: TargetError when a link or a file is on the way.
        """
        fd = self._reached(relative, self._open)
        try:
            yield fd
        finally:
            if fd is not None:
                close_unwritten(fd)

    @contextmanager
    def made_directory(self, relative: str) -> Iterator[int]:
        """Like `directory`, making what is absent below this one, which exists."""
        fd = self._reached(relative, self._made)
        if fd is None:
            raise TargetError(f"{self.shown(relative)} vanished while it was used: try again")
        try:
            yield fd
        finally:
            close_unwritten(fd)

    def _reached(self, relative: str, enter: Callable[[int, bytes, str], int | None]) -> int | None:
        """Descriptor of a directory that is reached one name at a time by `enter`; None if a call of `enter` returns
        None."""
        fd = None if self.fd is None else os.dup(self.fd)
        for depth, name in enumerate(_names(relative)):
            if fd is None:
                break
            above = fd
            try:
                fd = enter(above, name, _start(relative, depth))
            finally:
                close_unwritten(above)
        return fd

    def _open(self, above: int, name: bytes, relative: str) -> int | None:
        """A directory in another; None where there is none. `relative`: its path. Raises: TargetError."""
        try:
            return os.open(name, DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return None
        except OSError as error:
            shown = self.shown(relative)
            try:
                found = lstat(above, name)
            except OSError:
                found = None
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise TargetError(f"{shown} is a symbolic link, which a target must not hold: remove it") from error
            if found is not None and not stat.S_ISDIR(found.st_mode):
                raise TargetError(f"{shown} is a file where a directory is needed: move it away") from error
            raise refusal(error, f"open {shown}") from error

    def _made(self, above: int, name: bytes, relative: str) -> int | None:
        """Like `_open`, made where it is absent."""
        fd = self._open(above, name, relative)
        if fd is None:
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
            except OSError as error:
                raise refusal(error, f"make the directory {self.shown(relative)}") from error
            fd = self._open(above, name, relative)
        return fd

    def remove_empty_directories(self, directories: Iterable[str]) -> None:
        """Remove these and the directories above them, as far as they are empty; never this one."""
        every = {_start(relative, depth) for relative in directories for depth in range(len(_names(relative)))}
        for relative in sorted(every, key=lambda path: path.count("/"), reverse=True):
            above, name = split(relative)
            with self.directory(above) as fd:
                if fd is not None:
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=fd)


def lstat(directory_fd: int, name: bytes) -> os.stat_result | None:
    """The status of `name` itself, without following a link; None if absent."""
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
    """The directory of a path, as text, and its last name, as bytes."""
    directory, _, name = relative.rpartition("/")
    return directory, name.encode("utf-8")


def _names(relative: str) -> list[bytes]:
    return relative.encode("utf-8").split(b"/") if relative else []


def _start(relative: str, depth: int) -> str:
    return "/".join(relative.split("/")[: depth + 1])
