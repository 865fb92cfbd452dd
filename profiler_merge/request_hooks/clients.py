"""Each request that botocore and aiobotocore send, thus also boto3, s3transfer and s3fs; one sent again is another.

`install` has their modules changed as the job imports them, and imports none itself. It also counts the bytes that each
TCP connection of Python's sockets received, whichever client made it: `record` polls connections from outside and
misses those that end between two polls, such as one for each GET. Nothing that is written down is a secret.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from .log import FOLDER_VARIABLE, escaped, log, name_of, new_connection, now_ns

_NO_CALL: Mapping[str, Any] = {}
_call: ContextVar[Mapping[str, Any]] = ContextVar("dxt_replay_call", default=_NO_CALL)
"""The call that this thread or task makes: its parameters, and `""` with its name. Empty outside of S3."""
_local = threading.local()
"""`connection` and `first_ns` of the last answer that this thread got."""
_servers: set = set()

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_READ, _WRITES, _LISTS = "GetObject", ("PutObject", "UploadPart"), ("ListObjects", "ListObjectsV2")
_INFO_BYTES, _RECEIVED_AT = 192, 128
"""As much of `struct tcp_info` as is needed, and the offset of `tcpi_bytes_received` in it (Linux 4.1)."""


@contextmanager
def _calling(client: Any, name: str, parameters: Any) -> Iterator[None]:
    """This thread or task makes a call of a client meanwhile."""
    if client.meta.service_model.service_name != "s3" or not isinstance(parameters, dict):
        yield
        return
    token = _call.set({**parameters, "": name})
    try:
        yield
    finally:
        _call.reset(token)


class Request:
    """A request, from its start until `end`. Every value that is not known stays None.

    name: the API's name, such as GetObject. path: bucket/key. offset, length: bytes of the object that it moved.
    received: bytes of the answer's body, of `body` in all. size: of the whole object. first_ns: when the answer began.
    status: HTTP status, 0 if no answer came. connection: its number in this process. upload: number of the multipart
    upload, the same in all processes, and `part` in it. source: bucket/key that a copy reads.
    """

    offset: int | None = None
    length: int | None = None
    size: int | None = None
    first_ns: int | None = None
    connection: int | None = None
    upload: int | None = None
    part: int | None = None
    source: str | None = None
    body: int | None = None
    status = received = 0
    _ended = False

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.thread = threading.get_native_id()
        self.start_ns = now_ns()

    def answered(self, answer: Any) -> int | None:
        """Note the status and the headers of an answer. Returns the length of its body, if they tell."""
        self.status, told = answer.status_code, _text(answer.headers.get("content-length", ""))
        self.body = length = int(told) if told.isdigit() else None
        if self.name in _WRITES and self.status >= 300:
            self.length = 0
        if self.status < 300 and self.name in (_READ, "HeadObject"):
            found = _CONTENT_RANGE.match(_text(answer.headers.get("content-range", "")))
            self.size = length if not found else int(found[3]) if found[3].isdigit() else None
            if found and self.name == _READ:
                self.offset = int(found[1])
        return length

    def count(self, received: int, last: bool = False) -> None:
        """Count bytes of the body, and end with the last."""
        self.received += received
        if self.name == _READ and self.status < 300:
            self.length = self.received
        if last or self.received == self.body:
            self.end()

    @contextmanager
    def ending_in_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.end()
            raise

    def end(self, at_ns: int | None = None) -> None:
        """Write it down; once, whatever comes later. One that deletes several objects is followed by the deletion of
        each."""
        if self._ended:
            return
        self._ended, end_ns = True, now_ns() if at_ns is None else at_ns
        log.write(
            "R", self.name, escaped(self.path), self.offset, self.length, self.received, self.size, self.start_ns,
            self.first_ns, end_ns, self.status, self.connection, self.thread, self.upload, self.part,
            None if self.source is None else escaped(self.source),
        )  # fmt: skip
        if self.name == "DeleteObjects" and self.status:
            known = _call.get()
            for each in (known.get("Delete") or {}).get("Objects") or ():
                deletion = Request("DeleteObject", "%s/%s" % (known.get("Bucket", ""), each.get("Key", "")))
                deletion.start_ns, deletion.first_ns = self.start_ns, self.first_ns
                deletion.status, deletion.connection = self.status, self.connection
                deletion.end(end_ns)


def _begun(headers: Mapping[str, Any]) -> Request | None:
    """The request that this call now sends; None outside of S3. `headers`: of the request."""
    known = _call.get()
    if not known:
        return None
    name, key = known[""], known.get("Key")
    if name in _LISTS:
        key = str(known.get("Prefix") or "").rpartition("/")[0]
        key += "/" if key else ""
    request = Request(name, "%s/%s" % (known.get("Bucket", ""), key or ""))
    if name in _WRITES:
        told = headers.get("X-Amz-Decoded-Content-Length", headers.get("Content-Length", 0))
        request.offset, request.length = 0, int(_text(told) or 0)
    elif name == _READ:
        found = _RANGE.match(_text(headers.get("Range", "")))
        request.offset, request.length = int(found[1]) if found else 0, 0
    if "UploadId" in known:  # of the id only a checksum is kept
        request.upload = zlib.crc32(str(known["UploadId"]).encode())
        request.part = known.get("PartNumber")
    source = known.get("CopySource")
    if isinstance(source, dict):
        source = "%s/%s" % (source.get("Bucket"), source.get("Key"))
    request.source = None if source is None else str(source).lstrip("/").partition("?")[0]
    return request


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _of_client(module: Any) -> None:
    make = module.BaseClient._make_api_call

    def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        with _calling(self, operation_name, api_params):
            return make(self, operation_name, api_params)

    module.BaseClient._make_api_call = _make_api_call


def _of_aio_client(module: Any) -> None:
    make = module.AioBaseClient._make_api_call

    async def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        with _calling(self, operation_name, api_params):
            return await make(self, operation_name, api_params)

    module.AioBaseClient._make_api_call = _make_api_call


def _of_connections(module: Any) -> None:
    """Know the connection of an answer, and when the answer began."""
    base = module.AWSConnection

    def connect(self: Any) -> None:
        super(base, self).connect()
        peer = ""
        with suppress(OSError, TypeError, LookupError, AttributeError):
            peer = name_of(self.sock.getpeername())
        self._dxt_replay_number = new_connection(peer)

    def getresponse(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = super(base, self).getresponse(*args, **kwargs)
        _local.connection, _local.first_ns = getattr(self, "_dxt_replay_number", None), now_ns()
        return answer

    base.connect, base.getresponse = connect, getresponse


def _of_session(module: Any) -> None:
    send_it = module.URLLib3Session.send

    def send(self: Any, request: Any) -> Any:
        ours = _begun(request.headers)
        if ours is None:
            return send_it(self, request)
        _local.connection = _local.first_ns = None
        with ours.ending_in_errors():
            answer = send_it(self, request)
        ours.connection, ours.first_ns = _local.connection, _local.first_ns
        length = ours.answered(answer)
        if not request.stream_output:
            ours.count(len(answer.content or b""), last=True)
        elif length == 0 or ours.name.startswith("Head"):
            ours.end()
        else:
            answer.raw = _Body(answer.raw, ours)
        return answer

    module.URLLib3Session.send = send


def _of_aio_session(module: Any) -> None:
    send_it = module.AIOHTTPSession.send

    async def send(self: Any, request: Any) -> Any:
        ours = _begun(request.headers)
        if ours is None:
            return await send_it(self, request)
        parts = urlsplit(request.url)
        server = "%s:%d" % (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        if (os.getpid(), server) not in _servers:  # its connections are not shown
            _servers.add((os.getpid(), server))
            log.write("E", escaped(server))
        with ours.ending_in_errors():
            answer = await send_it(self, request)
        length = ours.answered(answer)
        if not request.stream_output:
            ours.count(len(await answer.content or b""), last=True)
        elif length == 0 or ours.name.startswith("Head"):
            ours.end()
        else:
            ours.first_ns = now_ns()
            answer.raw = _AioAnswer(answer.raw, ours)
            answer.raw.content = _AioContent(answer.raw.content, ours)
        return answer

    module.AIOHTTPSession.send = send


class _Wrapped:
    """Something of an answer, which stands for `raw`. The request ends with the last byte of its body, or when it is
    given up."""

    def __init__(self, raw: Any, request: Request) -> None:
        self._raw, self._request = raw, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def close(self) -> None:
        self._raw.close()
        self._request.end()


class _Body(_Wrapped):
    """The body, as the urllib3.HTTPResponse."""

    def read(self, amt: int | None = None, *args: Any, **kwargs: Any) -> Any:
        with self._request.ending_in_errors():
            data = self._raw.read(amt, *args, **kwargs)
        self._request.count(len(data), last=amt is None or (not data and amt != 0))
        return data

    def readinto(self, buffer: Any) -> int:
        number: int = self._raw.readinto(buffer)
        self._request.count(number, last=not number and len(buffer) > 0)
        return number

    def _counted(self, parts: Any) -> Iterator[Any]:
        for data in parts:
            self._request.count(len(data))
            yield data
        self._request.end()

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return self._counted(self._raw.stream(*args, **kwargs))

    def __iter__(self) -> Iterator[Any]:
        return self._counted(self._raw)

    def __del__(self) -> None:
        self._request.end()


class _AioContent(_Wrapped):
    """The body, as the aiohttp.StreamReader."""

    async def read(self, n: int = -1) -> Any:
        with self._request.ending_in_errors():
            data = await self._raw.read(n)
        self._request.count(len(data), last=n < 0 or (not data and n != 0))
        return data


class _AioAnswer(_Wrapped):
    """The answer, as the aiohttp.ClientResponse."""

    async def read(self) -> Any:
        with self._request.ending_in_errors():
            data = await self._raw.read()
        self._request.count(len(data), last=True)
        return data

    def __del__(self) -> None:
        self._request.end()


_HOOKS = {
    "botocore.client": _of_client,
    "botocore.awsrequest": _of_connections,
    "botocore.httpsession": _of_session,
    "aiobotocore.client": _of_aio_client,
    "aiobotocore.httpsession": _of_aio_session,
}
"""Module -> the function that changes it after it was imported."""


_busy: set = set()


def _find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
    """The spec of a module of _HOOKS as the other finders find it, to be changed when it is loaded; None for others."""
    if name not in _HOOKS or name in _busy:
        return None
    _busy.add(name)
    try:
        spec = importlib.util.find_spec(name)
    finally:
        _busy.discard(name)
    if spec is None or spec.loader is None:
        return None
    load = spec.loader.exec_module

    def exec_module(module: Any) -> None:
        load(module)
        log.write()
        try:
            _HOOKS[name](module)
        except Exception as error:  # a client of an unknown version: the job matters more than its recording
            sys.stderr.write("dxt-replay: requests through %s are not recorded: %r\n" % (name, error))

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _real_close(self: Any, *arguments: Any, **more: Any) -> None:
    with suppress(OSError, struct.error):  # never connected, reset by the peer, or an old kernel
        if self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM:
            information = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
            if received:
                own, peer = name_of(self.getsockname()), name_of(self.getpeername())
                log.write("S", escaped(own), escaped(peer), received)
    _close(self, *arguments, **more)


_close: Any = socket.socket._real_close  # type: ignore[attr-defined]


def install() -> None:
    """Record the requests of this process and the bytes of its connections, if there is a folder for them."""
    if os.environ.get(FOLDER_VARIABLE):
        socket.socket._real_close = _real_close  # type: ignore[attr-defined]
        sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_spec))
