"""Stand-ins that tests hand in: a clock that only moves when told, and a back end that takes time on it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np

from dxt_replay.replay.engine.items import Batch


class FakeClock:
    """A clock that moves by `read_ns` with each read and by sleeps, which end `oversleep_ns` late.

    `on_sleep`, where set, is called with the deadline before each sleep. `sleeps` holds all deadlines.
    """

    def __init__(self, time_ns: int = 1_000_000_000, *, read_ns: int = 1, oversleep_ns: int = 0) -> None:
        self.time_ns = time_ns
        self.read_ns = read_ns
        self.oversleep_ns = oversleep_ns
        self.on_sleep: Callable[[int], None] | None = None
        self.sleeps: list[int] = []

    def now(self) -> int:
        self.time_ns += self.read_ns
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        if self.on_sleep is not None:
            self.on_sleep(deadline_ns)
        self.sleeps.append(deadline_ns)
        self.time_ns = max(self.time_ns, deadline_ns + self.oversleep_ns)


class FakeBackend:
    """Calls cost `open_ns` and `transfer_ns` of a FakeClock; paths in `missing` cannot be opened.

    `calls` holds every call: ("open", path), ("read", path, offset, length), ("close", path) ...
    """

    name = "fake"
    moves_data = False

    def __init__(
        self, clock: FakeClock, *, open_ns: int = 0, transfer_ns: int = 0, missing: frozenset[bytes] = frozenset()
    ) -> None:
        self.clock = clock
        self.open_ns = open_ns
        self.transfer_ns = transfer_ns
        self.missing = missing
        self.calls: list[tuple[object, ...]] = []

    def open(self, path: bytes, *, writable: bool, create: bool) -> bytes:
        self.clock.time_ns += self.open_ns
        self.calls.append(("open", path))
        if path in self.missing:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return path

    def size(self, handle: bytes) -> int:
        return -1

    def read(self, handle: bytes, offset: int, length: int, buffer: memoryview) -> int:
        return self._transfer("read", handle, offset, length)

    def write(self, handle: bytes, offset: int, length: int, data: memoryview) -> int:
        return self._transfer("write", handle, offset, length)

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
        self.clock.time_ns += self.transfer_ns

    def _transfer(self, call: str, handle: bytes, offset: int, length: int) -> int:
        self.calls.append((call, handle, offset, length))
        self.clock.time_ns += self.transfer_ns
        return length


def make_batch(*items: tuple[int, int, int, int, int]) -> Batch:
    """A batch of (kind, slot, offset, length, due_ns) items."""
    kind, slot, offset, length, due_ns = zip(*items, strict=True)
    return Batch(
        kind=np.array(kind, dtype=np.uint8),
        slot=np.array(slot, dtype=np.int32),
        offset=np.array(offset, dtype=np.int64),
        length=np.array(length, dtype=np.int64),
        due_ns=np.array(due_ns, dtype=np.int64),
    )
