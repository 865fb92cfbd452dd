"""No I/O at all: every operation succeeds in full at once, so that a run measures the replayer's own overhead."""

from __future__ import annotations


class NullBackend:
    """Opens nothing, moves nothing; the result of an operation is its length."""

    name = "null"
    moves_data = False

    def open(self, path: bytes, *, writable: bool, create: bool) -> None:
        """Succeeds for every path, without looking at it."""

    def size(self, handle: None) -> int:
        """-1: the file has no end."""
        return -1

    def read(self, handle: None, offset: int, length: int, buffer: memoryview) -> int:
        """All `length` bytes, none of them moved."""
        return length

    def write(self, handle: None, offset: int, length: int, data: memoryview) -> int:
        """All `length` bytes, none of them moved."""
        return length

    def close(self, handle: None) -> None:
        """Do nothing: no file is open."""

    def another(self, handle: None) -> None:
        """None, like every handle."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        """Do nothing."""

    def sync(self, handle: None) -> None:
        """Do nothing: no data were written."""

    def seek(self, handle: None, offset: int) -> None:
        """Do nothing: there is no position."""

    def rename(self, path: bytes, new_path: bytes) -> None:
        """Renames nothing."""
