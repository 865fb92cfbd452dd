"""Things that somebody plants where a command writes, and a watch over a directory that no command may change."""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_EXCHANGE, _AT_FDCWD = 2, -100
_EVENTS = {0x2: "modified", 0x8: "closed after writing", 0x40: "moved away", 0x80: "moved here", 0x100: "created",
           0x200: "removed"}  # fmt: skip
"""Events of inotify(7): a file that was opened for writing is closed after writing, also where nothing was written."""

_numbers = count()


def make_outside(place: Path) -> Path:
    """A directory with a file, a directory with files of common names, a FIFO and a socket."""
    outside = place / "outside"
    (outside / "dir" / "sub").mkdir(parents=True)
    for name in ("kept", "dir/a", "dir/made", "dir/seen", "dir/sub/b"):
        (outside / name).write_bytes(f"kept {name}".encode() * 1000)
    os.mkfifo(outside / "pipe")
    _bind(outside / "socket")
    return outside


def _bind(path: Path) -> None:
    """A socket at a path that may be longer than an address may be."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _directory(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "mine").write_bytes(b"mine")


THINGS: dict[str, Callable[[Path, Path], object]] = {
    "link to a file": lambda path, outside: path.symlink_to(outside / "kept"),
    "link to a directory": lambda path, outside: path.symlink_to(outside / "dir"),
    "link to a FIFO": lambda path, outside: path.symlink_to(outside / "pipe"),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "new"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "link into /proc": lambda path, outside: path.symlink_to("/proc/self/cwd"),
    "hard link": lambda path, outside: os.link(outside / "kept", path),
    "FIFO": lambda path, outside: os.mkfifo(path),
    "socket": lambda path, outside: _bind(path),
    "directory": _directory,
    "file": lambda path, outside: path.write_bytes(b"mine"),
}
"""Name -> plants it at a path; the links lead to a directory that `make_outside` made."""

if os.geteuid() == 0:
    THINGS["character device"] = lambda path, outside: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    THINGS["block device"] = lambda path, outside: os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(7, 250))


def plant(thing: str, path: Path, outside: Path, aside: Path) -> None:
    """Put a thing at `path`; what is there is moved to a new name in `aside`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        aside.mkdir(exist_ok=True)
        path.rename(aside / str(next(_numbers)))
    THINGS[thing](path, outside)


def exchange(path: Path, other: Path) -> None:
    """Let two names change what they stand for, in one step. Raises: OSError."""
    if _libc.renameat2(_AT_FDCWD, bytes(path), _AT_FDCWD, bytes(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


@contextmanager
def nothing_changes(outside: Path) -> Iterator[None]:
    """Nothing in a directory is created, opened for writing, changed, moved or removed meanwhile."""
    before = _state(outside)
    watch = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for directory in (outside, *(path for path in outside.rglob("*") if path.is_dir())):
            assert _libc.inotify_add_watch(watch, bytes(directory), sum(_EVENTS)) >= 0
        yield
        assert _happened(watch) == []
    finally:
        os.close(watch)
    assert _state(outside) == before


def _happened(watch: int) -> list[tuple[str, str]]:
    try:
        data = os.read(watch, 1 << 16)
    except BlockingIOError:
        return []
    found, at = [], 0
    while at < len(data):
        _, mask, _, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
        found += [(name, what) for bit, what in _EVENTS.items() if mask & bit]
        at += 16 + length
    return found


def _state(directory: Path) -> list[tuple[object, ...]]:
    found = []
    for path in sorted((directory, *directory.rglob("*"))):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        found.append((str(path), status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, content))
    return found
