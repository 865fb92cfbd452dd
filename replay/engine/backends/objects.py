"""Objects: each read is one ranged GET, and a file that is written becomes one object at its close. docs/objects.md.

The lanes' threads call the client (obstore), which gives up the interpreter lock while a request is under way. A
request is sent once: one that fails is the result of its operation.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dxt_replay.replay.engine.files import Backend
from dxt_replay.replay.target.object_store import (
    REPLAY_AGENT,
    copy_object,
    delete_object,
    keys_below,
    parse_object_url,
    put_parts,
    put_whole,
    read_range,
    size_if_there,
    size_of,
)

_UNKNOWN_BYTES = 1 << 62
"""Size of a file that nobody asked the store for."""


@dataclass(slots=True)
class _Written:
    """An object that handles of this process write.

    `reach`: the end of the last byte that was written.
    `size`: its bytes before that; None if nobody asked the store.
    `changed`: whether it was written to since it was put.
    """

    size: int | None
    reach: int = 0
    changed: bool = False
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ObjectFile(NamedTuple):
    """An open file. `written`: None for a file that is only read."""

    key: str
    written: _Written | None = None


class ObjectBackend(Backend):
    """The back end for `s3://` targets. Handles are `ObjectFile`.

    What is put is made up, as the rest of a twin is: the bytes are the same for all objects, and do not compress.
    `url`: of the target (`replay.target.object_store`). Raises: UsageError, MissingDependencyError.
    """

    name = "s3"

    def __init__(self, url: str) -> None:
        place = parse_object_url(url)
        self._client = place.client(REPLAY_AGENT)
        self._bucket = len(f"s3://{place.bucket}/")
        self._opens_ask = place.opens_ask
        self._lock = threading.Lock()
        self._writes: dict[str, _Written] = {}
        self._part_bytes = place.part_bytes
        self._noise = memoryview(os.urandom(self._part_bytes))

    def open(self, path: bytes, *, writable: bool, create: bool) -> ObjectFile:
        """A HEAD, unless the URL says `opens=none` and the file is only read."""
        size = None
        if writable or self._opens_ask:
            size = size_if_there(self._client, self._key(path))
            if size is None and not create:
                raise OSError(errno.ENOENT, "no such object", self._key(path))
        return self.hold(path, writable=writable, create=create, size=size or 0)

    def hold(self, path: bytes, *, writable: bool, create: bool, size: int | None = None) -> ObjectFile:
        """No request: the close asks for the size of an object that was written."""
        if not writable:
            return ObjectFile(self._key(path))
        with self._lock:
            written = self._writes.setdefault(self._key(path), _Written(size))
            written.users += 1
        return ObjectFile(self._key(path), written)

    def size(self, handle: ObjectFile) -> int:
        """A size that no read reaches: a recorded read that returned nothing sends no request."""
        return _UNKNOWN_BYTES

    def read(self, handle: ObjectFile, offset: int, length: int, buffer: memoryview) -> int:
        return read_range(self._client, handle.key, offset, buffer[:length])

    def write(self, handle: ObjectFile, offset: int, length: int, data: memoryview) -> int:
        """No request: the close puts the object."""
        if handle.written is None:
            raise OSError(errno.EBADF, "open for reading", handle.key)
        with handle.written.lock:
            handle.written.reach = max(handle.written.reach, offset + length)
            handle.written.changed = True
        return length

    def close(self, handle: ObjectFile) -> None:
        """Put the object if it was written to: one PUT, or a multipart upload above the size of a part.

        Raises: OSError. It keeps at least its size before, for which a HEAD asks if no open was recorded.
        """
        written = handle.written
        if written is None:
            return
        with self._lock:
            written.users -= 1
            if not written.users:
                self._writes.pop(handle.key, None)
        with written.lock:
            if not written.changed:
                return
            written.changed = False
            if written.size is None:
                written.size = size_if_there(self._client, handle.key) or 0
            written.size = max(written.size, written.reach)
            size = written.size
            if size <= self._part_bytes:
                put_whole(self._client, handle.key, self._noise[:size])
            else:
                parts = (self._noise[: size - begin] for begin in range(0, size, self._part_bytes))
                put_parts(self._client, handle.key, parts, self._part_bytes)

    def another(self, handle: ObjectFile) -> ObjectFile:
        """The same file for one more close."""
        if handle.written is not None:
            with self._lock:
                handle.written.users += 1
                self._writes[handle.key] = handle.written
        return handle

    def sync(self, handle: ObjectFile) -> None:
        """No request: an object cannot be stored in part."""

    def seek(self, handle: ObjectFile, offset: int) -> None:
        """No request."""

    def stat(self, path: bytes, *, follow: bool) -> None:
        size_of(self._client, self._key(path))

    def rename(self, path: bytes, new_path: bytes) -> None:
        key = self._key(path)
        copy_object(self._client, key, self._key(new_path))
        delete_object(self._client, key)

    def list(self, path: bytes) -> None:
        next(keys_below(self._client, self._key(path).rstrip("/") + "/"), None)

    def delete(self, path: bytes) -> None:
        delete_object(self._client, self._key(path))

    def _key(self, path: bytes) -> str:
        return path[self._bucket :].decode()


def back_end(name: str, options: Any) -> ObjectBackend:
    return ObjectBackend(str(options.target))
