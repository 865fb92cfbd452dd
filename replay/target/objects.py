"""A bucket of an object store as a target: a file is an object, whose key is the prefix and its path below the target.

An object gets its key when it is complete, so there are no temporary names. A multipart upload that was interrupted is
aborted; what a killed process leaves of it can be removed with the tools of the store alone. No key outside the prefix
is ever written or removed.
"""

from __future__ import annotations

import errno
import itertools
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target import object_store
from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.manifest import MANIFEST_NAME
from dxt_replay.replay.target.placement import is_twin_root
from dxt_replay.replay.target.protocol import LOCK_NAME, Reader, Room, foreign
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

REQUESTS_AT_ONCE = 32
"""Requests for small objects that one call sends at a time: each waits for the store, not for this machine."""

SUBMITTED = 4096  # Most requests that wait in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReader:
    """An object, which each read asks for again."""

    client: Any
    key: str
    size: int

    def read_into(self, into: memoryview, offset: int) -> int:
        return object_store.read_range(self.client, self.key, offset, into[: max(self.size - offset, 0)])

    def data_from(self, offset: int) -> int:
        return min(offset, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTarget:
    """The objects below a prefix. It exists when it has a manifest."""

    place: object_store.ObjectPlace
    client: Any
    exists: bool

    @property
    def where(self) -> str:
        return self.place.url

    @property
    def base(self) -> bytes:
        return self.place.base.encode()

    def shown(self, path: str) -> str:
        return printable(self.place.base + path)

    def room(self) -> Room:
        """Unknown: a bucket has no limit that a client could ask for."""
        store = (self.place.endpoint, self.place.bucket)
        return Room(free_bytes=None, free_files=None, block_bytes=1, store=store)

    def stat(self, paths: pa.LargeStringArray) -> np.ndarray:
        """One HEAD a path."""
        seen = np.zeros((len(paths), 3), dtype=np.int64)

        def look(row: int, path: str) -> None:
            if (size := object_store.size_if_there(self.client, self.place.key(path))) is not None:
                seen[row] = stat.S_IFREG, size, 1

        self._each(paths, look, "look at")
        return seen

    def list(self) -> Iterator[tuple[str, bool]]:
        with self._refused("list", ""):
            for key in object_store.keys_below(self.client, self.place.prefix):
                path = key[len(self.place.prefix) :]
                if is_twin_root(path.partition("/")[0]):
                    yield path, False

    @contextmanager
    def open(self, path: str) -> Iterator[Reader | None]:
        key = self.place.key(path)
        with self._refused("read", path):
            size = object_store.size_if_there(self.client, key)
            yield None if size is None else ObjectReader(client=self.client, key=key, size=size)

    def put(self, path: str, blocks: Iterable[bytes | memoryview], *, replace: bool, sync: bool) -> None:
        """One PUT, or a multipart upload from the size of a part on, after which the store is asked for the size."""
        key, begin, rest, size = self.place.key(path), bytearray(), iter(blocks), 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for block in itertools.chain([begin], rest):
                size += len(block)
                yield bytes(block)  # each block is valid until the next is asked for

        with self._refused("write", path):
            if not replace and object_store.size_if_there(self.client, key) is not None:
                raise foreign(self.shown(path))
            while len(begin) < self.place.part_bytes and (block := next(rest, None)) is not None:
                begin += block
            if len(begin) < self.place.part_bytes:
                object_store.put_whole(self.client, key, bytes(begin))
                return
            object_store.put_parts(self.client, key, counted(), self.place.part_bytes)
            found = object_store.size_if_there(self.client, key)
        if found != size:
            raise TargetError(f"{self.shown(path)} has {found} of {size} bytes after its upload: stage again")

    def put_hole(self, path: str, size: int, *, replace: bool) -> None:
        """Zeros, which an object store keeps like other bytes."""
        self.put(path, Content(record_id=0, size=size, is_hole=True).blocks(), replace=replace, sync=False)

    def put_many(
        self, paths: pa.LargeStringArray, sizes: np.ndarray, record_ids: np.ndarray, placed: np.ndarray
    ) -> None:
        there = np.flatnonzero(self.stat(paths)[:, 0])
        free = int(there[0]) if len(there) else len(paths)

        def put_one(row: int, path: str) -> None:
            content = Content(record_id=int(record_ids[row]), size=int(sizes[row]))
            object_store.put_whole(self.client, self.place.key(path), b"".join(map(bytes, content.blocks())))
            placed[row] = True

        self._each(paths[:free], put_one, "write")
        if len(there):
            raise foreign(self.shown(paths[free].as_py()))

    def make_parents(self, paths: pa.LargeStringArray) -> None:
        """Objects need none."""

    def remove(self, paths: pa.LargeStringArray) -> int:
        there = paths.filter(pa.array(self.stat(paths)[:, 0] != 0))
        self._each(there, lambda row, path: object_store.delete_object(self.client, self.place.key(path)), "remove")
        return len(there)

    def prune(self, paths: pa.LargeStringArray) -> None:
        """There are no directories."""

    def sync(self) -> None:
        """An answered PUT is durable."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out other processes by an object LOCK_NAME, made with `If-None-Match: *`.

        A server that ignores this condition lets two processes pass that begin in the same moment. Where this user may
        not write there is no protection. A killed process leaves the object. Raises: TargetError if it is there."""
        key, taken = self.place.key(LOCK_NAME), False
        try:
            taken = object_store.size_if_there(self.client, key) is None and object_store.create(self.client, key)
            may_write = True
        except OSError as error:
            may_write = error.errno not in (errno.EACCES, errno.EOPNOTSUPP)
            if may_write:
                raise self._refusal(error, "lock", LOCK_NAME) from error
        if may_write and not taken:
            raise TargetError(
                f"another process is staging into {self.shown('')} or replaying on it: wait until it ends, or choose "
                f"another --target; if it was killed, remove the object {self.shown(LOCK_NAME)}"
            )
        try:
            yield
        finally:
            if taken:
                with self._refused("remove", LOCK_NAME):
                    object_store.delete_object(self.client, key)

    def _each(self, paths: pa.LargeStringArray, ask: Callable[[int, str], None], doing: str) -> None:
        """Call `ask` with each row and path, several at a time. An error is raised when those under way have ended."""

        def ask_one(row: int, path: str) -> None:
            with self._refused(doing, path):
                ask(row, path)

        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "objects") as pool:
            for begin in range(0, len(paths), SUBMITTED):
                some = paths[begin : begin + SUBMITTED].to_pylist()
                for asked in [pool.submit(ask_one, begin + row, path) for row, path in enumerate(some)]:
                    asked.result()

    @contextmanager
    def _refused(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._refusal(error, doing, path) from error

    def _refusal(self, error: OSError, doing: str, path: str) -> TargetError:
        remedy = object_store.REMEDIES.get(error.errno or 0, "choose another --target")
        return TargetError(f"cannot {doing} {self.shown(path)}: {error.strerror or error}; {remedy}")


@contextmanager
def open_objects(where: str | Path, make: bool = False) -> Iterator[ObjectTarget]:
    """See `replay.target.targets.open_target`. The bucket must be there. Raises: TargetError if it is not."""
    place = object_store.parse_object_url(str(where))
    target = ObjectTarget(place=place, client=place.client(), exists=True)
    if not make and not target.stat(pa.array([MANIFEST_NAME], pa.large_string()))[0, 0]:
        target = ObjectTarget(place=place, client=target.client, exists=False)
        try:  # one LIST: a HEAD has the same answer for a missing bucket as for a missing object
            next(object_store.keys_below(target.client, place.prefix), None)
        except OSError as error:
            if error.errno == errno.ENOENT:  # other answers may come from a server that has no LIST
                what = f"the bucket {place.bucket} is missing or not readable: {error.strerror}"
                raise TargetError(f"{what}; {object_store.REMEDIES[errno.ENOENT]}") from error
    yield target
