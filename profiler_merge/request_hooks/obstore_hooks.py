"""The calls of obstore on S3 stores, and the requests that they must have made: its Rust code shows none.

A call of `get`, `get_range`, `head`, `put` of up to a chunk, `copy` or a `delete` of one object is one request.
`get_ranges` joins ranges that are less than JOINED_BYTES apart, as `object_store` does (`coalesce_ranges` in its
util.rs). A list has a request for each PAGE_KEYS keys, and a larger `put` is a multipart upload. Requests that the Rust
code sends again are not seen, nor those of `open_reader` and `open_writer`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from .log import Request, note_endpoint, now_ns

JOINED_BYTES = 1024 * 1024
PAGE_KEYS = 1000
CHUNK_BYTES = 5 * 1024 * 1024
_STATUS = re.compile(r"status code: (\d{3})|response status[^0-9]{0,20}(\d{3})")
_uploads = iter(range(1, 1 << 62))
_lock = threading.Lock()


def of_module(module: Any) -> None:
    """Replace the functions of the module, which the methods of its stores call."""
    for name, calls in _CALLS.items():
        for real, wrapped in ((name, _synchronous), (name + "_async", _asynchronous)):
            if hasattr(module, real):
                setattr(module, real, wrapped(getattr(module, real), calls))
    real_list = module.list

    @wraps(real_list)
    def list_keys(store: Any, prefix: str | None = None, **options: Any) -> Any:
        begin = _started(store, "ListObjectsV2", _folder(prefix))
        found = real_list(store, prefix, **options)
        return found if begin is None else _Keys(found, begin)

    module.list = list_keys


class _Call:
    """A call that began: its requests, all with the times of the call. `done`: gives them what the result tells."""

    def __init__(self, requests: list[Request], done: Callable[[list[Request], Any], Any]) -> None:
        self.requests, self.done = requests, done

    def failed(self, error: BaseException) -> None:
        """Write down one request with the status in the error's text, 0 if none is there."""
        found = _STATUS.search(str(error))
        first = self.requests[0]
        first.length = None if first.length is None else 0
        first.status = int(found[1] or found[2]) if found else 404 if isinstance(error, FileNotFoundError) else 0
        first.end()

    def answered(self, result: Any) -> Any:
        """Write all down, unless the result is a body that is still to come. Returns what the caller gets."""
        return self.done(self.requests, result)


def _synchronous(real: Any, calls: Callable[..., _Call | None]) -> Any:
    @wraps(real)
    def function(store: Any, *args: Any, **kwargs: Any) -> Any:
        call = _prepared(calls, store, args, kwargs)
        if call is None:
            return real(store, *args, **kwargs)
        try:
            result = real(store, *args, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        return call.answered(result)

    return function


def _asynchronous(real: Any, calls: Callable[..., _Call | None]) -> Any:
    @wraps(real)
    async def function(store: Any, *args: Any, **kwargs: Any) -> Any:
        call = _prepared(calls, store, args, kwargs)
        if call is None:
            return await real(store, *args, **kwargs)
        try:
            result = await real(store, *args, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        return call.answered(result)

    return function


def _prepared(calls: Callable[..., _Call | None], store: Any, args: Any, kwargs: Any) -> _Call | None:
    """The requests of a call; None for another store, and for arguments that obstore is to refuse itself."""
    try:
        return calls(store, *args, **kwargs) if type(store).__name__ == "S3Store" else None
    except (TypeError, ValueError, KeyError, AttributeError, OSError):
        return None


def _started(store: Any, name: str, path: str) -> Request | None:
    if type(store).__name__ != "S3Store":
        return None
    config, prefix = store.config, store.prefix
    request = Request(name, "/".join(filter(None, (config.get("bucket"), prefix and str(prefix).strip("/"), path))))
    if not path:
        request.path += "/"
    request.inferred = "obstore"
    endpoint = urlsplit(config.get("endpoint") or "https://s3.%s.amazonaws.com" % config.get("region", "us-east-1"))
    note_endpoint("%s:%d" % (endpoint.hostname, endpoint.port or (443 if endpoint.scheme == "https" else 80)))
    return request


def _one(store: Any, name: str, path: str) -> Request:
    request = _started(store, name, path)
    assert request is not None
    return request


def _with_status(status: int) -> Callable[[list[Request], Any], Any]:
    def done(requests: list[Request], result: Any) -> Any:
        end_ns = now_ns()
        for request in requests:
            request.status = status
            request.end(end_ns)
        return result

    return done


def _received(requests: list[Request], result: Any) -> Any:
    """The bytes of `get_range`, or those of each range of `get_ranges`."""
    end_ns = now_ns()
    if len(requests) == 1 and not isinstance(result, list):
        requests[0].length = len(result)
    for request in requests:
        request.status, request.received = 206, request.length or 0
        request.end(end_ns)
    return result


def _range(store: Any, path: str, *, start: int, end: int | None = None, length: int | None = None) -> _Call:
    request = _one(store, "GetObject", path)
    request.offset, request.length = start, 0
    return _Call([request], _received)


def _ranges(store: Any, path: str, *, starts: Any, ends: Any | None = None, lengths: Any | None = None) -> _Call | None:
    found = []
    last = ends if ends is not None else [start + length for start, length in zip(starts, lengths or ())]
    for start, end in joined(zip(starts, last)):
        request = _one(store, "GetObject", path)
        request.offset, request.length = start, end - start
        found.append(request)
    return _Call(found, _received) if found else None


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges (begin, end) that `get_ranges` asks for in their place.

    joined([(0, 10), (1_048_586, 1_048_590), (5_000_000, 5_000_001)])  # [(0, 1_048_590), (5_000_000, 5_000_001)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= JOINED_BYTES:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _get(store: Any, path: str, *, options: Any | None = None) -> _Call:
    request = _one(store, "GetObject", path)
    request.offset, request.length = 0, 0

    def done(requests: list[Request], result: Any) -> Any:
        request.first_ns, request.status = now_ns(), 206 if options and options.get("range") else 200
        request.offset, request.size = result.range[0], result.meta["size"]
        return _Object(result, request)

    return _Call([request], done)


def _head(store: Any, path: str) -> _Call:
    def done(requests: list[Request], result: Any) -> Any:
        requests[0].size = result["size"]
        return _with_status(200)(requests, result)

    return _Call([_one(store, "HeadObject", path)], done)


def _delete(store: Any, paths: Any) -> _Call:
    names = [paths] if isinstance(paths, str) else list(paths)
    return _Call([_one(store, "DeleteObject", path) for path in names], _with_status(204))


def _copy(store: Any, from_: str, to: str, *, overwrite: bool = True) -> _Call:
    request = _one(store, "CopyObject", to)
    request.source = _one(store, "", from_).path
    return _Call([request], _with_status(200))


def _rename(store: Any, from_: str, to: str, *, overwrite: bool = True) -> _Call:
    copied = _copy(store, from_, to).requests
    return _Call([*copied, _one(store, "DeleteObject", from_)], _with_status(200))


def _list_with_delimiter(store: Any, prefix: str | None = None, **options: Any) -> _Call:
    return _Call([_one(store, "ListObjectsV2", _folder(prefix))], _with_status(200))


def _put(
    store: Any, path: str, file: Any, *, use_multipart: bool | None = None, chunk_size: int = CHUNK_BYTES, **more: Any
) -> _Call:
    size = _bytes_of(file)
    parts = use_multipart if use_multipart is not None else size is None or size > chunk_size
    if not parts or size is None:
        request = _one(store, "PutObject", path)
        request.offset, request.length = 0, size
        return _Call([request], _with_status(200))
    with _lock:
        upload = next(_uploads)
    requests = [_one(store, "CreateMultipartUpload", path)]
    for part, offset in enumerate(range(0, max(size, 1), chunk_size)):
        request = _one(store, "UploadPart", path)
        request.offset, request.length, request.part = offset, min(chunk_size, size - offset), part + 1
        requests.append(request)
    requests.append(_one(store, "CompleteMultipartUpload", path))
    for request in requests:
        request.upload = upload

    def done(requests: list[Request], result: Any) -> Any:
        end_ns = now_ns()
        for request in requests:
            request.status = 200
            if request.name == "CompleteMultipartUpload":
                request.start_ns = end_ns
            request.end(requests[0].start_ns if request.name == "CreateMultipartUpload" else end_ns)
        return result

    return _Call(requests, done)


def _bytes_of(file: Any) -> int | None:
    """Bytes that a `put` sends, None if nobody knows before."""
    if isinstance(file, os.PathLike):
        return os.stat(file).st_size
    if hasattr(file, "seek") and hasattr(file, "tell"):
        place = file.tell()
        size: int = file.seek(0, 2) - place
        file.seek(place)
        return size
    try:
        return memoryview(file).nbytes
    except TypeError:
        return None


def _folder(prefix: str | None) -> str:
    """The folder that obstore lists for a prefix, which ends at a whole name."""
    return prefix.strip("/") + "/" if prefix and prefix.strip("/") else ""


_CALLS: dict[str, Callable[..., _Call | None]] = {
    "get": _get, "get_range": _range, "get_ranges": _ranges, "head": _head, "put": _put, "delete": _delete,
    "copy": _copy, "rename": _rename, "list_with_delimiter": _list_with_delimiter,
}  # fmt: skip


class _Passing:
    """Stands for an object of obstore."""

    def __init__(self, real: Any, request: Request) -> None:
        self._real, self._request = real, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __del__(self) -> None:
        self._request.end()


class _Object(_Passing):
    """A `GetResult`; its request ends when its bytes are there."""

    def _whole(self, data: Any) -> Any:
        self._request.length = self._request.received = len(data)
        self._request.end()
        return data

    def bytes(self) -> Any:
        return self._whole(self._real.bytes())

    def buffer(self) -> Any:
        return self._whole(self._real.buffer())

    async def bytes_async(self) -> Any:
        return self._whole(await self._real.bytes_async())

    async def buffer_async(self) -> Any:
        return self._whole(await self._real.buffer_async())

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return _Pieces(self._real.stream(*args, **kwargs), self._request)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream())

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter_of(self.stream())


class _Pieces(_Passing):
    """A `BytesStream`."""

    def _count(self, data: Any) -> Any:
        self._request.received += len(data)
        self._request.length = self._request.received
        return data

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._count(next(self._real))
        except BaseException:
            self._request.end()
            raise

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._count(await self._real.__anext__())
        except BaseException:
            self._request.end()
            raise


def aiter_of(stream: Any) -> AsyncIterator[Any]:
    """`aiter`, which Python 3.9 lacks."""
    found: AsyncIterator[Any] = stream.__aiter__()
    return found


class _Keys(_Passing):
    """A `ListStream`. When it ends, its requests are written down one after the other."""

    def __init__(self, real: Any, request: Request) -> None:
        super().__init__(real, request)
        self._keys = 0
        request.status = 200

    def _count(self, batch: Any) -> Any:
        self._keys += batch.num_rows if hasattr(batch, "num_rows") else len(batch)
        return batch

    def _end(self, error: BaseException | None = None) -> None:
        first = self._request
        pages = max(1, -(-self._keys // PAGE_KEYS))
        if error is not None:
            _Call([first], _with_status(0)).failed(error)
        if first._ended:
            return
        begin_ns, end_ns = first.start_ns, now_ns()
        first.end(begin_ns + (end_ns - begin_ns) // pages)
        for page in range(1, pages):
            more = Request(first.name, first.path)
            more.status, more.inferred = 200, first.inferred
            more.start_ns = begin_ns + (end_ns - begin_ns) * page // pages
            more.end(begin_ns + (end_ns - begin_ns) * (page + 1) // pages)

    def __del__(self) -> None:
        self._end()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._stepped(lambda: next(self._real))

    def collect(self) -> Any:
        """All keys."""
        found = self._stepped(self._real.collect)
        self._end()
        return found

    def _stepped(self, step: Callable[[], Any]) -> Any:
        try:
            return self._count(step())
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(error)
            raise

    async def __anext__(self) -> Any:
        try:
            return self._count(await self._real.__anext__())
        except StopAsyncIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(error)
            raise

    async def collect_async(self) -> Any:
        """All keys."""
        found = self._count(await self._real.collect_async())
        self._end()
        return found
