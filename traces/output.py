"""Where a command's result goes: an existing output is never lost, and an incomplete one never has the result's name.

Every output of every command goes through here, files and directories alike. This module knows no file format.

- An output that exists is refused, unless the user gave --force. --force replaces a regular file, or a directory
  that is recognised as an earlier result of the same kind. Directories above the output are not made.
- The result is written beside its place as `.NAME.TOKEN.dxt-replay`, which no other writer shares and its writer
  locks (flock). What an ended process left under such a name holds no lock; the next writer of NAME on the same node
  removes it. TOKEN begins with the node: another node's lock may not be seen here (Lustre mounted with localflock).
- A whole result is synced (fsync), so that an error of a delayed write is seen. It takes its place in one step:
  renameat2(2) with RENAME_NOREPLACE, or with RENAME_EXCHANGE where it replaces another, which is removed afterwards.
  File systems without renameat2 get two renames.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dxt_replay.traces.errors import TargetError, exhausted

RECORDING_MARK = "recording.txt"
"""Marks a folder as written by `dxt-replay record`, and holds its command: the logs there belong to one job. Nothing
replaces a folder without it."""

PAGE_FAULTS = "page_faults.bin"
"""File beside it: the page faults of the job on mapped files, if the kernel allowed to collect them."""

UNSEEN = "unseen.json"
"""File beside it: what the job read through mapped files and sockets, which no trace holds."""

_WORKING_SUFFIX = ".dxt-replay"
_MAX_NAME_BYTES = 200
"""Bytes of the output's own name in the name of its working copy: the whole name stays below 255 bytes."""

_NOREPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
_NOT_HERE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of renameat2 and fsync when the kernel or the file system lacks them."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of missing room: a full disk, a used-up quota, a limit on the size of a file."""

_locks: dict[Path, int] = {}
"""Working copies of this process -> descriptor that holds the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryKind:
    """A kind of directory that a command writes, such as a capture.

    name: its name in messages, with the article ("a capture").
    objection: why a directory is not an earlier result of this kind; None if it is one.
    """

    name: str
    objection: Callable[[Path], str | None]


def check_output(path: Path, *, force: bool = False, kind: DirectoryKind | None = None) -> None:
    """Refuse an output before any work is done for it. `kind`: of a directory; None for a file.

    Raises: TargetError when the output would replace something that it may not, or when its parent directory does not
    exist.
    """
    found = _lstat(path)
    if found is None:
        _check_parent(path)
        return
    if kind is None and _is_stream(path):
        return
    objection = _objection(path, found, kind)
    if objection is not None:
        raise TargetError(f"{path} exists and {objection}: choose another name")
    if not force:
        raise TargetError(f"{path} exists: --force replaces it, or choose another name")


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` if the context ends without an error; else it is removed.

    A pipe or a device at `path`, such as /dev/stdout, is written to directly.
    Raises: TargetError as `check_output`, and when the disk refuses.
    """
    check_output(path, force=force)
    working: Path | None = None
    try:
        if _is_stream(path):
            with open(path, "wb") as stream:
                yield stream
            return
        working = _begin(path, None)
        with open(_locks[working], "wb", closefd=False) as file:
            yield file
        _place(working, path, force=force, kind=None)
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        if working is not None:
            discard_directory(working)


@contextmanager
def new_directory(path: Path, kind: DirectoryKind, *, force: bool = False) -> Iterator[Path]:
    """An empty directory that takes the name `path` if the context ends without an error; else it is removed.

    Raises: TargetError as `check_output`, and when the disk refuses.
    """
    working = begin_directory(path, kind, force=force)
    try:
        yield working
        place_directory(working, path, kind, force=force)
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        discard_directory(working)


def begin_directory(path: Path, kind: DirectoryKind, *, force: bool = False) -> Path:
    """`new_directory` for several processes: the working directory, for `place_directory` or `discard_directory`.

    Raises: TargetError as `check_output`, and when the directory cannot be made.
    """
    check_output(path, force=force, kind=kind)
    try:
        return _begin(path, kind)
    except OSError as error:
        raise refusal(error, path) from error


def place_directory(working: Path, path: Path, kind: DirectoryKind, *, force: bool = False) -> None:
    """Give a complete working directory the name `path`.

    Raises: TargetError when another writer took the name meanwhile.

    The error names the path at which the result is kept then.
    """
    try:
        _place(working, path, force=force, kind=kind)
    except TargetError as error:
        kept = path.absolute().parent / f"{path.stem}.{secrets.token_hex(2)}{path.suffix}"
        with suppress(OSError):
            os.rename(working, kept)
            refused = TargetError(f"{error}; the new result is at {kept}")
            refused.kept = kept
            raise refused from error
        raise
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        _unlock(working)


def remove_kept(error: BaseException) -> None:
    """Remove the result that `place_directory` kept under another name."""
    kept = getattr(error, "kept", None)
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)


def discard_directory(working: Path) -> None:
    """Remove a working directory that will not be placed; does nothing after `place_directory`."""
    _unlock(working)  # first: FUSE and NFS keep a name for a file that is open
    _remove(working)


def refusal(error: OSError, path: Path) -> TargetError:
    """The error to raise when the operating system refused to write `path`."""
    if (limit := exhausted(error)) is not None:
        remedy = limit
    elif error.errno in _FULL:
        remedy = "free space there, or choose another place for the output"
    elif error.errno == errno.ENOENT:  # its directory existed when the command began
        return TargetError(f"cannot write {path}: no new file can be made there; choose another place for the output")
    else:
        remedy = "choose another place for the output"
    return TargetError(f"cannot write {path}: {error.strerror or error}; {remedy}")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}; choose another place for the output") from error


def _check_parent(path: Path) -> None:
    if path.name in ("", ".."):
        raise TargetError(f"{path} has no name that an output could take: add one")
    try:
        found = os.stat(path.parent)
    except FileNotFoundError:
        raise TargetError(
            f"{path.parent} does not exist: make that directory first, or choose another place for {path.name}"
        ) from None
    except OSError as error:
        raise TargetError(f"cannot use {path.parent}: {error.strerror}; choose another place for the output") from error
    if not stat.S_ISDIR(found.st_mode):
        raise TargetError(f"{path.parent} is not a directory: choose another place for {path.name}")
    if not found.st_nlink:
        raise TargetError(f"the directory for {path.name} was removed: change into one that exists")


def _is_stream(path: Path) -> bool:
    """Whether `path` is a pipe, a terminal or another character device, also through a link such as /dev/stdout."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _objection(path: Path, found: os.stat_result, kind: DirectoryKind | None) -> str | None:
    """Why the existing `path` may not be replaced, as the rest of a sentence; None if --force may replace it."""
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if kind is None:
        return None if stat.S_ISREG(found.st_mode) else "is not a file"
    if not stat.S_ISDIR(found.st_mode):
        return f"is not {kind.name}"
    try:
        return kind.objection(path)
    except OSError as error:
        return f"cannot be looked into ({error.strerror})"


def _begin(path: Path, kind: DirectoryKind | None) -> Path:
    """Make a new working copy for `path`, locked by this process, and remove those of ended processes."""
    parent = path.absolute().parent
    start = b"." + os.fsencode(path.name)[:_MAX_NAME_BYTES] + b"."
    _remove_leftovers(parent, start)
    while True:
        working = parent / os.fsdecode(start + _node() + secrets.token_hex(4).encode() + _WORKING_SUFFIX.encode())
        if kind is not None:
            os.mkdir(working)
        flags = os.O_RDONLY | os.O_DIRECTORY if kind is not None else os.O_RDWR | os.O_CREAT | os.O_EXCL
        fd = os.open(working, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        # until it is locked, another writer may remove the new copy as a leftover
        if _lock(fd) is not False and os.fstat(fd).st_nlink and os.path.lexists(working):
            _locks[working] = fd
            return working
        os.close(fd)


def _lock(fd: int) -> bool | None:
    """Whether the lock was free, and is taken now; None if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def _unlock(working: Path) -> None:
    fd = _locks.pop(working, None)
    if fd is not None:
        with suppress(OSError):  # this file existed only to hold the lock
            os.close(fd)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _node() -> bytes:
    """Eight digits that differ between nodes."""
    return hashlib.sha256(os.fsencode(os.uname().nodename)).hexdigest()[:8].encode()


def _remove_leftovers(parent: Path, start: bytes) -> None:
    """Remove working copies of this node whose writer has ended; without file locks nothing is removed."""
    pattern = re.compile(re.escape(start) + _node() + rb"[0-9a-f]{8}" + re.escape(_WORKING_SUFFIX.encode()))
    for name in filter(pattern.fullmatch, os.listdir(os.fsencode(parent))):
        leftover = parent / os.fsdecode(name)
        with suppress(OSError):
            fd = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if _lock(fd):
                    _remove(leftover)
            finally:
                os.close(fd)


def _place(working: Path, path: Path, *, force: bool, kind: DirectoryKind | None) -> None:
    """Rename the working copy to `path`, and try again if another writer was faster.

    Raises: OSError, also where a write that was delayed fails; TargetError when `path` holds something that may not be
    replaced.
    """
    _sync(working)
    while True:
        try:
            found = _lstat(path)
            if found is None:
                _move(working, path)
                return
            check_output(path, force=force, kind=kind)
            if kind is None:
                os.replace(working, path)
            else:
                _exchange(working, path, kind)
            return
        except (FileNotFoundError, FileExistsError):
            if not working.exists():
                raise
            # another writer was faster: look again


def _move(working: Path, path: Path) -> None:
    """Rename without replacing.

    Raises: FileExistsError when something is at `path`.
    """
    if _renameat2(working, path, _NOREPLACE):
        return
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    os.rename(working, path)


def _exchange(working: Path, path: Path, kind: DirectoryKind) -> None:
    """Exchange the two directories, then remove the old one."""
    if _renameat2(working, path, _EXCHANGE):
        objection = _objection(working, os.lstat(working), kind)
        if objection is not None:  # it appeared after the check
            _renameat2(working, path, _EXCHANGE)
            raise TargetError(f"{path} exists and {objection}: choose another name")
        shutil.rmtree(working, ignore_errors=True)
        return
    aside = working.with_name(f"{working.name}.replaced")
    os.rename(path, aside)
    try:
        _move(working, path)
    except BaseException:
        os.rename(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _sync(working: Path) -> None:
    for place in (working, *working.rglob("*")):
        if not place.is_symlink():
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
            finally:
                os.close(fd)


def _renameat2(old: Path, new: Path, flags: int) -> bool:
    """Rename by renameat2(2); False where this system lacks it. Raises: OSError when it refuses."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(old), None, str(new))
