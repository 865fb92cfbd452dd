"""POSIX: one pread or pwrite per operation. The compiled loop does the same by itself; this is its Python twin."""

from __future__ import annotations

import os


class PosixBackend:
    """Handles are file descriptors. A write never follows a symbolic link at the last component (ELOOP)."""

    name = "posix"
    moves_data = True

    def open(self, path: bytes, *, writable: bool, create: bool) -> int:
        """Read-only unless `writable`. Raises: OSError."""
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0) if writable else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def size(self, handle: int) -> int:
        """Bytes now. Raises: OSError."""
        return os.fstat(handle).st_size

    def read(self, handle: int, offset: int, length: int, buffer: memoryview) -> int:
        """One pread; a short count is returned as it is. Raises: OSError."""
        return os.preadv(handle, [buffer[:length]], offset)

    def write(self, handle: int, offset: int, length: int, data: memoryview) -> int:
        """One pwrite; a short count is returned as it is. Raises: OSError."""
        return os.pwrite(handle, data[:length], offset)

    def close(self, handle: int) -> None:
        """Raises: OSError, for example when a network file system could not write its data back."""
        os.close(handle)
