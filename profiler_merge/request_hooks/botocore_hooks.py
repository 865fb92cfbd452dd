"""Each request that botocore sends, thus also boto3 and s3transfer; a request that is sent again is another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from .api_calls import answered, begun, body_bytes, call, end, received
from .log import Request, name_of, new_connection, now_ns

_local = threading.local()
"""`connection` and `first_ns` of the last answer that this thread got."""


def of_client(module: Any) -> None:
    """Know the API's call that a thread makes."""
    make: Callable = module.BaseClient._make_api_call

    def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        if self.meta.service_model.service_name != "s3" or not isinstance(api_params, dict):
            return make(self, operation_name, api_params)
        token = call.set({**api_params, "": operation_name})
        try:
            return make(self, operation_name, api_params)
        finally:
            call.reset(token)

    module.BaseClient._make_api_call = _make_api_call


def of_connections(module: Any) -> None:
    """Know the connection of an answer, and when the answer began."""
    base = module.AWSConnection

    def connect(self: Any) -> None:
        super(base, self).connect()
        self._dxt_replay_number = new_connection(_peer(self.sock))

    def getresponse(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = super(base, self).getresponse(*args, **kwargs)
        _local.connection, _local.first_ns = getattr(self, "_dxt_replay_number", None), now_ns()
        return answer

    base.connect, base.getresponse = connect, getresponse


def of_session(module: Any) -> None:
    """Write each request down."""
    send_it: Callable = module.URLLib3Session.send

    def send(self: Any, request: Any) -> Any:
        ours = begun(request.headers)
        if ours is None:
            return send_it(self, request)
        _local.connection = _local.first_ns = None
        try:
            answer = send_it(self, request)
        except BaseException:
            ours.end()
            raise
        ours.connection, ours.first_ns = _local.connection, _local.first_ns
        answered(ours, answer.status_code, answer.headers)
        length = body_bytes(answer.headers)
        if not request.stream_output:
            received(ours, len(answer.content or b""))
            end(ours)
        elif length == 0 or ours.name.startswith("Head"):
            ours.end()
        else:
            answer.raw = _Body(answer.raw, ours, length)
        return answer

    module.URLLib3Session.send = send


def _peer(sock: Any) -> str:
    try:
        return name_of(sock.getpeername())
    except (OSError, TypeError, LookupError, AttributeError):
        return ""


class _Body:
    """The body of an answer, as the urllib3.HTTPResponse that it stands for. The request ends with its last byte, or
    when it is given up."""

    def __init__(self, raw: Any, request: Request, length: int | None) -> None:
        self._raw, self._request, self._length = raw, request, length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def _count(self, number: int, last: bool) -> None:
        received(self._request, number)
        if last or self._request.received == self._length:
            self._request.end()

    def read(self, amt: int | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            data = self._raw.read(amt, *args, **kwargs)
        except BaseException:
            self._request.end()
            raise
        self._count(len(data), amt is None or (not data and amt != 0))
        return data

    def readinto(self, buffer: Any) -> int:
        number: int = self._raw.readinto(buffer)
        self._count(number, not number and len(buffer) > 0)
        return number

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for data in self._raw.stream(*args, **kwargs):
            self._count(len(data), False)
            yield data
        self._request.end()

    def __iter__(self) -> Iterator[Any]:
        for data in self._raw:
            self._count(len(data), False)
            yield data
        self._request.end()

    def close(self) -> None:
        self._raw.close()
        self._request.end()

    def __del__(self) -> None:
        self._request.end()
