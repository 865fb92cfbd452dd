"""The requests to an object store, one function each. Every function raises OSError (`place.request_error`)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dxt_replay.replay.objects.place import request_error

_Answer = TypeVar("_Answer")

PARTS_AT_ONCE = 10
"""Parts of one object that are sent at a time: the default of boto3."""


def size_of(client: Any, key: str) -> int:
    """One HEAD. Returns the bytes of the object."""
    import obstore

    return int(_asked(key, lambda: obstore.head(client, key)["size"]))


def size_if_there(client: Any, key: str) -> int | None:
    """As `size_of`, None if there is no such object."""
    try:
        return size_of(client, key)
    except FileNotFoundError:
        return None


def read_range(client: Any, key: str, offset: int, into: memoryview) -> int:
    """One GET of exactly this range. Returns the bytes that are there, 0 beyond the end of the object.

    An empty range sends no request, because HTTP has no such range.
    """
    import obstore

    if not len(into):
        return 0
    try:
        # Not get_ranges: it makes one request of several near ranges.
        found = memoryview(_asked(key, lambda: obstore.get_range(client, key, start=offset, length=len(into))))
    except OSError as error:
        if error.errno == errno.ERANGE:
            return 0
        raise
    into[: len(found)] = found
    return len(found)


def read_range_timed(client: Any, key: str, offset: int, into: memoryview) -> tuple[int, int]:
    """As `read_range`, within the object. Returns the bytes, and the time until the head of the answer was here, ns."""
    import obstore

    begun = time.monotonic_ns()
    answer = _asked(key, lambda: obstore.get(client, key, options={"range": (offset, offset + len(into))}))
    first_ns = time.monotonic_ns() - begun
    found = memoryview(_asked(key, answer.bytes))
    into[: len(found)] = found
    return len(found), first_ns


def put_whole(client: Any, key: str, data: bytes | memoryview) -> None:
    """One PUT."""
    import obstore

    _asked(key, lambda: obstore.put(client, key, data, use_multipart=False))


def put_parts(client: Any, key: str, blocks: Iterable[bytes | memoryview], part_bytes: int) -> None:
    """A multipart upload, which is aborted if `blocks` raises; its error is then raised."""
    import obstore

    failures: list[BaseException] = []

    def watched() -> Iterator[bytes | memoryview]:
        try:
            yield from blocks
        except BaseException as error:
            failures.append(error)
            raise

    try:
        _asked(
            key,
            lambda: obstore.put(
                client, key, watched(), use_multipart=True, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE
            ),
        )
    except BaseException:
        if failures:  # obstore may raise the server's answer to the abort in its place
            raise failures[0] from None
        raise


def create(client: Any, key: str) -> bool:
    """Put an empty object if there is none. Returns False if there is one.

    Servers without conditional writes replace it: look before.
    """
    import obstore

    try:
        _asked(key, lambda: obstore.put(client, key, b"", mode="create", use_multipart=False))
    except FileExistsError:
        return False
    return True


def copy_object(client: Any, key: str, new_key: str) -> None:
    """One CopyObject, which replaces an object at `new_key`."""
    import obstore

    _asked(key, lambda: obstore.copy(client, key, new_key))


def delete_object(client: Any, key: str) -> None:
    """One DELETE; S3 has no error for an object that is not there."""
    import obstore

    _asked(key, lambda: obstore.delete(client, key))


def keys_below(client: Any, prefix: str) -> Iterator[str]:
    """The keys that begin with `prefix`, which is empty or ends in `/`, a LIST of up to 1000 at a time."""
    import obstore

    found = iter(obstore.list(client, prefix=prefix or None))
    while (batch := _asked(prefix, lambda: next(found, None))) is not None:
        yield from (each["path"] for each in batch)


def _asked(key: str, ask: Callable[[], _Answer]) -> _Answer:
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        return ask()
    except AlreadyExistsError as error:
        raise OSError(errno.EEXIST, "the object exists", key) from error
    except (BaseError, FileNotFoundError, ValueError) as error:
        raise request_error(error, key) from None
