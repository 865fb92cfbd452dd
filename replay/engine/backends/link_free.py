"""Paths of files that a replay writes: no name on the way may be a symbolic link, at whatever moment it came there.

openat2(2) with RESOLVE_NO_SYMLINKS does that in one call (Linux 5.6). Under LD_PRELOAD, where a tracer may count the
calls of libc, and on older systems, only the last name is looked at. The compiled loop has its own code
(`_issue_paths.h`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from contextlib import suppress
from functools import cache

_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS = 0x04
_AT_FDCWD = -100
"""Numbers of linux/openat2.h and fcntl.h, the same on all architectures."""


def open_link_free(path: bytes, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a plain file that has no other name, to be written. Raises: OSError.

    ELOOP for a link anywhere in the path, EPERM for what is not a plain file, EMLINK for one with several names.
    """
    fd = _open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        refuse_shared(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def refuse_shared(fd: int, path: bytes) -> None:
    """Raises: OSError where an open file is not a plain file with one name."""
    _refuse_shared(os.fstat(fd), path)


def _refuse_shared(found: os.stat_result, path: bytes) -> None:
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return
    number = errno.ELOOP if stat.S_ISLNK(found.st_mode) else errno.EMLINK
    number = number if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) else errno.EPERM
    raise OSError(number, os.strerror(number), path)


def refuse_links(path: bytes) -> None:
    """For libraries that open a path themselves, to be called just before. Raises: OSError as `open_link_free`; an
    absent file is accepted."""
    if looks_at_whole_paths():
        os.close(_open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0))
    with suppress(FileNotFoundError):
        _refuse_shared(os.lstat(path), path)


def rename_link_free(path: bytes, new_path: bytes) -> None:
    """rename(2), between directories that are reached through no link. Raises: OSError."""
    if not looks_at_whole_paths():
        os.rename(path, new_path)
        return
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    (directory, name), (new_directory, new_name) = os.path.split(path), os.path.split(new_path)
    source = _open(directory, flags, 0)
    try:
        target = _open(new_directory, flags, 0)
        try:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(target)
    finally:
        os.close(source)


def unlink_link_free(path: bytes) -> None:
    """unlink(2), in a directory that is reached through no link. Raises: OSError."""
    directory, name = os.path.split(path)
    place = _open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0)
    try:
        os.unlink(name, dir_fd=place)
    finally:
        os.close(place)


@cache
def looks_at_whole_paths() -> bool:
    """Whether this process opens files by openat2."""
    if os.environ.get("LD_PRELOAD"):
        return False
    try:
        os.close(_openat2(b"/", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:
        return False
    return True


def _open(path: bytes, flags: int, mode: int) -> int:
    return _openat2(path, flags, mode) if looks_at_whole_paths() else os.open(path, flags, mode)


def _openat2(path: bytes, flags: int, mode: int) -> int:
    how = struct.pack("=QQQ", flags, mode if flags & os.O_CREAT else 0, _RESOLVE_NO_SYMLINKS)
    while True:
        fd = ctypes.CDLL(None, use_errno=True).syscall(_OPENAT2, _AT_FDCWD, ctypes.c_char_p(path), how, len(how))
        number = ctypes.get_errno()
        if fd >= 0:
            return int(fd)
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)
