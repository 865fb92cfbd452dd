"""STDIO: the streams of libc through ctypes, so that tools that trace fopen and fread see them in a replay too.

libc decides what a stream does, as it did in the application. A request that is smaller than the stream's buffer may be
served from the buffer, or kept in it until a flush or the close, which then reports a full disk. Reads fill whole
buffers. The latency of an operation is that of the library call.

The compiled loop has its own code for the same calls (`_issue_streams.h`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dxt_replay.replay.engine.backends.link_free import (
    looks_at_whole_paths,
    open_link_free,
    refuse_links,
    refuse_shared,
    rename_link_free,
)


@dataclass(slots=True, kw_only=True)
class Stream:
    """An open stream, which lanes may share. `lock` guards all attributes after it.

    `file`: address of the FILE.
    `position`: offset of the next byte, -1 where it is not known.
    `wrote`: whether the last use was a write.
    """

    file: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    position: int = 0
    wrote: bool = False


class StdioBackend:
    """The back end for C streams. Handles are `Stream`.

    A request is one fread or fwrite. An fseeko comes before it where the stream is at another offset, or changes
    between writing and reading (C11 7.21.5.3). What is written is a plain file with one name, reached through no
    symbolic link.
    """

    name = "stdio"
    moves_data = True

    def open(self, path: bytes, *, writable: bool, create: bool) -> Stream:
        """One fopen with mode r to read; to write, one open and fdopen. Raises: OSError."""
        if not writable:
            return Stream(file=_fopen(path, b"re"))
        return Stream(file=_fopen_written(path, create=create))

    def size(self, handle: Stream) -> int:
        """Size of the file in bytes, without the data that the stream still keeps. Raises: OSError."""
        return os.fstat(_libc().fileno(handle.file)).st_size

    def read(self, handle: Stream, offset: int, length: int, buffer: memoryview) -> int:
        """One fread. Raises: OSError."""
        return _move(handle, offset, length, buffer, write=False)

    def write(self, handle: Stream, offset: int, length: int, data: memoryview) -> int:
        """One fwrite. The bytes that it counts may still be in the stream's buffer. Raises: OSError."""
        return _move(handle, offset, length, data, write=True)

    def close(self, handle: Stream) -> None:
        """One fclose, which writes the data that the stream still keeps. Raises: OSError."""
        if _libc().fclose(handle.file):
            raise _error()

    def another(self, handle: Stream) -> Stream:
        """A stream on a duplicate of the descriptor. Raises: OSError."""
        libc = _libc()
        fd = os.dup(libc.fileno(handle.file))
        file = libc.fdopen(fd, b"r")
        if not file:
            error = _error()
            os.close(fd)
            raise error
        return Stream(file=file)

    def stat(self, path: bytes, *, follow: bool) -> None:
        """One fstatat: stdio has no call of its own. Raises: OSError."""
        os.stat(path, follow_symlinks=follow)

    def sync(self, handle: Stream) -> None:
        """One fflush: the data that the stream keeps go to the kernel, and not further. Raises: OSError."""
        with handle.lock:
            if _libc().fflush(handle.file):
                raise _error()

    def seek(self, handle: Stream, offset: int) -> None:
        """One fseeko. Raises: OSError."""
        with handle.lock:
            _seek(handle, offset)

    def rename(self, path: bytes, new_path: bytes) -> None:
        """One rename. Raises: OSError."""
        rename_link_free(path, new_path)


def _move(handle: Stream, offset: int, length: int, memory: memoryview, *, write: bool) -> int:
    """One fread or fwrite of so many bytes; how many it moved. Raises: OSError."""
    libc = _libc()
    with handle.lock:
        if handle.position != offset or handle.wrote != write:
            _seek(handle, offset)
        handle.wrote = write
        place = (ctypes.c_char * len(memory)).from_buffer(memory) if length else None
        ctypes.set_errno(0)
        count = int((libc.fwrite if write else libc.fread)(place, 1, length, handle.file))
        handle.position += count
        if count < length:
            _check_stream(handle, count)
        return count


def _seek(handle: Stream, offset: int) -> None:
    if _libc().fseeko(handle.file, offset, os.SEEK_SET):
        handle.position = -1
        raise _error()
    handle.position = offset


def _check_stream(handle: Stream, count: int) -> None:
    """Look why a count is short: at the end of the file do nothing. Raises: OSError for an error without any bytes."""
    libc = _libc()
    failed, number = libc.ferror(handle.file), ctypes.get_errno()
    libc.clearerr(handle.file)
    if failed:
        handle.position = -1  # the position after an error is not known
        if not count:
            raise OSError(number or errno.EIO, os.strerror(number or errno.EIO))


def _fopen(path: bytes, mode: bytes) -> int:
    file = _libc().fopen(path, mode)
    if not file:
        raise _error(path)
    return int(file)


def _fopen_written(path: bytes, *, create: bool) -> int:
    """A stream on a plain file that has one name and is reached through no link, for reading and writing.

    Where a tracer is preloaded, fopen itself makes the call. It has no O_NOFOLLOW, so the opened file is compared with
    the file of that name itself.
    """
    if looks_at_whole_paths():
        fd = open_link_free(path, os.O_RDWR | (os.O_CREAT if create else 0))
        file = _libc().fdopen(fd, b"r+")
        if not file:
            error = _error(path)
            os.close(fd)
            raise error
        return int(file)
    refuse_links(path)
    there = os.path.lexists(path)
    try:
        file = _fopen(path, b"w+xe" if create and not there else b"r+e")
    except FileExistsError:  # another process has just made it
        return _fopen_written(path, create=create)
    try:
        opened, named = os.fstat(_libc().fileno(file)), os.lstat(path)
        if (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        refuse_shared(_libc().fileno(file), path)
    except OSError:
        _libc().fclose(file)
        raise
    return file


def _error(path: bytes | None = None) -> OSError:
    number = ctypes.get_errno() or errno.EIO
    return OSError(number, os.strerror(number), path)


@cache
def _libc() -> Any:
    """The C library of this process, with the types of the functions used. ctypes releases the interpreter lock."""
    libc = ctypes.CDLL(None, use_errno=True)
    stream, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in (
        ("fopen", stream, (text, text)),
        ("fdopen", stream, (ctypes.c_int, text)),
        ("fread", size, (ctypes.c_void_p, size, size, stream)),
        ("fwrite", size, (ctypes.c_void_p, size, size, stream)),
        ("fseeko", ctypes.c_int, (stream, ctypes.c_int64, ctypes.c_int)),
        ("fflush", ctypes.c_int, (stream,)),
        ("fclose", ctypes.c_int, (stream,)),
        ("ferror", ctypes.c_int, (stream,)),
        ("clearerr", None, (stream,)),
        ("fileno", ctypes.c_int, (stream,)),
    ):
        function = getattr(libc, name)
        function.restype, function.argtypes = result, arguments
    return libc
