"""The calls of s3torchconnector, and the requests that they must have made: its Rust code shows none.

A stream of an object is a GET for each `part_size` from its start on. The first comes alone, and all others are sent
when it ended. A new object is a multipart upload in parts of `part_size`. A list has a request for each page. So
1.5.0 does it. Requests that the Rust code sends again are not seen, nor the HEAD before a copy, nor parts under way
when a stream was given up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from .log import Request, note_endpoint, now_ns

_STATUS = ((re.compile("does not exist|not found", re.I), 404), (re.compile("forbidden|denied", re.I), 403))
_uploads = iter(range(1, 1 << 62))


def of_client(module: Any) -> None:
    """Replace the methods of `S3Client`, through which readers, writers, data sets and checkpoints go."""
    client = module.S3Client
    for name, request_name, status in (
        ("head_object", "HeadObject", 200),
        ("delete_object", "DeleteObject", 204),
    ):
        setattr(client, name, _called(getattr(client, name), request_name, status))
    real_get, real_put, real_list = client._get_object_stream, client.put_object, client.list_objects
    real_copy = client.copy_object

    def _get_object_stream(self: Any, bucket: str, key: str, start: int | None = None, end: int | None = None) -> Any:
        request = _started(self, "GetObject", bucket, key)
        request.offset, request.length = start or 0, 0
        stream = _watched(request, lambda: real_get(self, bucket, key, start, end))
        return _Parts(stream, request, self._s3client_config.part_size)

    def put_object(self: Any, bucket: str, key: str, *args: Any, **kwargs: Any) -> Any:
        writer = real_put(self, bucket, key, *args, **kwargs)
        writer.stream = _Upload(writer.stream, lambda name: _started(self, name, bucket, key), self)
        return writer

    def list_objects(self: Any, bucket: str, prefix: str = "", *args: Any, **kwargs: Any) -> Any:
        folder = prefix.rpartition("/")[0]
        pages = real_list(self, bucket, prefix, *args, **kwargs)
        return _Pages(pages, lambda: _started(self, "ListObjectsV2", bucket, folder + "/" if folder else ""))

    def copy_object(self: Any, src_bucket: str, src_key: str, dst_bucket: str, dst_key: str) -> None:
        request = _started(self, "CopyObject", dst_bucket, dst_key)
        request.source = "%s/%s" % (src_bucket, src_key)
        _watched(request, lambda: real_copy(self, src_bucket, src_key, dst_bucket, dst_key))
        request.status = 200
        request.end()

    client._get_object_stream, client.put_object = _get_object_stream, put_object
    client.list_objects, client.copy_object = list_objects, copy_object


def _started(client: Any, name: str, bucket: str, key: str) -> Request:
    request = Request(name, "%s/%s" % (bucket, key))
    request.inferred, request.status = "s3torchconnector", 0
    place = urlsplit(client._endpoint or "https://s3.%s.amazonaws.com" % client._region)
    note_endpoint("%s:%d" % (place.hostname, place.port or (443 if place.scheme == "https" else 80)))
    return request


def _watched(request: Request, call: Callable[[], Any]) -> Any:
    """What the call returns. A request that it fails with is written down with the status that the error tells."""
    try:
        return call()
    except StopIteration:
        raise
    except BaseException as error:
        request.status = next((status for text, status in _STATUS if text.search(str(error))), 0)
        request.end()
        raise


def _called(real: Any, request_name: str, status: int) -> Any:
    def method(self: Any, bucket: str, key: str) -> Any:
        request = _started(self, request_name, bucket, key)
        result = _watched(request, lambda: real(self, bucket, key))
        request.status, request.size = status, getattr(result, "size", None)
        request.end()
        return result

    return method


class _Parts:
    """A stream of an object. Each part ends when its last byte was handed over, the last one with the stream."""

    def __init__(self, real: Any, request: Request, part_bytes: int) -> None:
        self._real, self._request, self._part_bytes = real, request, part_bytes
        self._others_start_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            data: bytes = _watched(self._request, self._real.__next__)
        except StopIteration:
            self._finish()
            raise
        at_ns, left = now_ns(), len(data)
        while left:
            request = self._request
            if request.received == self._part_bytes:
                request = self._next()
            taken = min(left, self._part_bytes - request.received)
            request.received += taken
            request.length, request.status, left = request.received, 206, left - taken
            if request.received == self._part_bytes:
                self._others_start_ns = self._others_start_ns or at_ns
                request.end(at_ns)
        return data

    def _next(self) -> Request:
        before = self._request
        self._request = request = Request(before.name, before.path)
        request.offset = (before.offset or 0) + self._part_bytes
        request.start_ns, request.inferred = self._others_start_ns, before.inferred
        return request

    def _finish(self) -> None:
        request = self._request
        if request.length == 0:
            request.status = 206
        request.end()

    def __del__(self) -> None:
        if self._request.received:
            self._request.end()


class _Upload:
    """A new object: its upload begins with the first write, and each part ends with the write that filled it."""

    def __init__(self, real: Any, started: Callable[[str], Request], client: Any) -> None:
        self._real, self._started, self._part_bytes = real, started, client._s3client_config.part_size
        self._waiting, self._part, self._number = 0, 0, next(_uploads)
        self._create = started("CreateMultipartUpload")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _send(self, length: int, begin_ns: int) -> None:
        if not self._part:
            self._end(self._create)
        self._part += 1
        request = self._started("UploadPart")
        request.start_ns, request.offset, request.length = begin_ns, 0, length
        request.part = self._part
        self._end(request)

    def _end(self, request: Request) -> None:
        request.upload, request.status = self._number, 200
        request.end()

    def write(self, data: Any) -> Any:
        begin_ns = now_ns()
        result = _watched(self._create, lambda: self._real.write(data))
        self._waiting += len(data)
        while self._waiting >= self._part_bytes:
            self._send(self._part_bytes, begin_ns)
            self._waiting -= self._part_bytes
        return result

    def close(self) -> Any:
        begin_ns = now_ns()
        complete = self._started("CompleteMultipartUpload")
        result = _watched(complete, self._real.close)
        if self._waiting or not self._part:
            self._send(self._waiting, begin_ns)
        complete.start_ns = now_ns()
        self._end(complete)
        return result


class _Pages:
    """The pages of a list: a request for each."""

    def __init__(self, real: Any, started: Callable[[], Request]) -> None:
        self._real, self._started = real, started

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._real.complete:
            return next(self._real)
        request = self._started()
        page = _watched(request, self._real.__next__)
        request.status = 200
        request.end()
        return page
