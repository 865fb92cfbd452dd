"""No I/O at all: every operation succeeds in full at once. What remains is the replayer's own overhead."""

from __future__ import annotations


class NullBackend:
    """Opens nothing, moves nothing; the result of an operation is its length."""

    name = "null"
    moves_data = False

    def open(self, path: bytes, *, writable: bool, create: bool) -> None:
        """Succeeds for every path, without looking at it."""

    def size(self, handle: None) -> int:
        """-1: there is no end to run into."""
        return -1

    def read(self, handle: None, offset: int, length: int, buffer: memoryview) -> int:
        """`length`."""
        return length

    def write(self, handle: None, offset: int, length: int, data: memoryview) -> int:
        """`length`."""
        return length

    def close(self, handle: None) -> None:
        """Nothing to close."""

    def another(self, handle: None) -> None:
        """As good as the first."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        """Looks at nothing."""

    def sync(self, handle: None) -> None:
        """Nothing was written."""

    def seek(self, handle: None, offset: int) -> None:
        """There is no position."""

    def rename(self, path: bytes, new_path: bytes) -> None:
        """Renames nothing."""
