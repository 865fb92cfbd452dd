"""A target in memory: what staging needs of a target, and nothing of a file system."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.placement import is_twin_root
from dxt_replay.replay.target.protocol import Found, Reader, Room, foreign
from dxt_replay.traces.errors import TargetError


@dataclass(frozen=True)
class MemoryReader:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_into(self, into: memoryview, offset: int) -> int:
        found = self.data[offset : offset + len(into)]
        into[: len(found)] = found
        return len(found)

    def data_from(self, offset: int) -> int:
        return next((at for at in range(offset, self.size) if self.data[at]), self.size)


@dataclass(eq=False)
class MemoryTarget:
    """Objects by their paths."""

    where: str
    exists: bool = False
    is_locked: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def base(self) -> bytes:
        return self.where.encode() + b"/"

    def shown(self, path: str) -> str:
        return f"{self.where}/{path}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        if self.is_locked:
            raise TargetError(f"another process is staging into {self.where}")
        self.is_locked = True
        try:
            yield
        finally:
            self.is_locked = False

    def room(self) -> Room:
        return Room(free_bytes=None, free_files=None, block_bytes=1, store=self.where)

    def stat(self, paths: pa.LargeStringArray) -> Found:
        mode, size, links = np.zeros((3, len(paths)), dtype=np.int64)
        for row, path in enumerate(paths.to_pylist()):
            if path in self.objects:
                mode[row], size[row], links[row] = stat.S_IFREG, len(self.objects[path]), 1
        return Found(mode=mode, size=size, links=links)

    def list(self) -> Iterator[tuple[str, bool]]:
        return ((path, False) for path in list(self.objects) if is_twin_root(path.partition("/")[0]))

    @contextmanager
    def open(self, path: str) -> Iterator[Reader | None]:
        yield MemoryReader(self.objects[path]) if path in self.objects else None

    def put(self, path: str, blocks: Iterable[bytes | memoryview], *, replace: bool, sync: bool) -> None:
        data = b"".join(map(bytes, blocks))
        if path in self.objects and not replace:
            raise foreign(self.shown(path))
        self.objects[path] = data

    def put_hole(self, path: str, size: int, *, replace: bool) -> None:
        self.put(path, [bytes(size)], replace=replace, sync=False)

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        for row, path in enumerate(paths.to_pylist()):
            content = Content(record_id=int(record_ids[row]), size=int(sizes[row]))
            self.put(path, content.blocks(), replace=False, sync=False)
            placed[row] = True

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        """Objects need none."""

    def remove(self, paths: pa.LargeStringArray) -> int:
        return sum(self.objects.pop(path, None) is not None for path in paths.to_pylist())

    def prune(self, paths: pa.LargeStringArray) -> None:
        """There are no directories."""

    def sync(self) -> None:
        """What was put is there."""


class MemoryTargets:
    """What opens them: for `replay.target.targets.TARGETS`."""

    def __init__(self) -> None:
        self.by_name: dict[str, MemoryTarget] = {}

    @contextmanager
    def __call__(self, where: str | Path, make: bool = False) -> Iterator[MemoryTarget]:
        target = self.by_name.setdefault(str(where), MemoryTarget(str(where)))
        target.exists |= make
        yield target
