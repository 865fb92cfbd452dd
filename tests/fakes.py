"""Stand-ins that tests hand in: a clock that only moves when told, and a back end that notes its calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import numpy as np

from dxt_replay.replay.engine.files import Backend
from dxt_replay.replay.engine.items import PLAN_ROW
from dxt_replay.replay.engine.link_free import open_link_free


class FakeClock:
    """In the place of the module `time`: a clock that moves by `read_ns` with each read, and by sleeps."""

    def __init__(self, time_ns: int = 1_000_000_000, *, read_ns: int = 1) -> None:
        self.time_ns = time_ns
        self.read_ns = read_ns

    def monotonic_ns(self) -> int:
        self.time_ns += self.read_ns
        return self.time_ns

    def sleep(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)


class FakeBackend(Backend):
    """Transfers everything; paths in `missing` cannot be opened. `take` is called with the kind of each call: open or
    transfer, and may take time.

    `calls` holds every call: ("open", path), ("read", path, offset, length), ("close", path) ...
    """

    name = "fake"

    def __init__(
        self, *, missing: frozenset[bytes] = frozenset(), take: Callable[[str], None] = lambda kind: None
    ) -> None:
        self.missing = missing
        self.take = take
        self.calls: list[tuple[object, ...]] = []

    def open(self, path: bytes, *, writable: bool, create: bool) -> bytes:
        self.take("open")
        self.calls.append(("open", path))
        if path in self.missing:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return path

    def size(self, handle: bytes) -> int:
        return 1 << 40

    def read(self, handle: bytes, offset: int, length: int, buffer: memoryview) -> int:
        self._call("read", handle, offset, length)
        return length

    def write(self, handle: bytes, offset: int, length: int, data: memoryview) -> int:
        self._call("write", handle, offset, length)
        return length

    def close(self, handle: bytes) -> None:
        self.calls.append(("close", handle))

    def another(self, handle: bytes) -> bytes:
        self.calls.append(("another", handle))
        return handle

    def stat(self, path: bytes, *, follow: bool) -> None:
        self._call("stat", path)

    def sync(self, handle: bytes) -> None:
        self._call("sync", handle)

    def seek(self, handle: bytes, offset: int) -> None:
        self._call("seek", handle, offset)

    def rename(self, path: bytes, new_path: bytes) -> None:
        self._call("rename", path, new_path)

    def _call(self, *call: object) -> None:
        self.calls.append(call)
        self.take("transfer")


def make_batch(*items: tuple[int, ...]) -> np.ndarray:
    """`PLAN_ROW`s of (kind, slot, place, amount, due_ns) items; what is left out at the end of one is 0."""
    rows = np.zeros(len(items), dtype=PLAN_ROW)
    for number, name in enumerate(("kind", "_slot", "_place", "_amount", "due_ns")):
        rows[name] = [item[number] if number < len(item) else 0 for item in items]
    return rows


class PythonPosix(Backend):
    """POSIX in Python, to see the loop's calls of a back end in Python at work on files."""

    name = "python_posix"

    def open(self, path: bytes, *, writable: bool, create: bool) -> int:
        flags = os.O_RDWR | (os.O_CREAT if create else 0) if writable else os.O_RDONLY | os.O_CLOEXEC
        return open_link_free(path, flags) if writable else os.open(path, flags)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, offset: int, length: int, buffer: memoryview) -> int:
        return os.preadv(handle, [buffer], offset)

    def write(self, handle: int, offset: int, length: int, data: memoryview) -> int:
        return os.pwrite(handle, data, offset)

    def close(self, handle: int) -> None:
        os.close(handle)

    def another(self, handle: int) -> int:
        return os.dup(handle)

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def seek(self, handle: int, offset: int) -> None:
        os.lseek(handle, offset, os.SEEK_SET)
