"""Each request that aiobotocore sends, thus also s3fs: as `botocore_hooks`, with coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from .api_calls import answered, begun, body_bytes, call, end, received
from .log import Request, note_endpoint, now_ns


def of_client(module: Any) -> None:
    """Know the API's call that a task makes."""
    make: Callable = module.AioBaseClient._make_api_call

    async def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        if self.meta.service_model.service_name != "s3" or not isinstance(api_params, dict):
            return await make(self, operation_name, api_params)
        token = call.set({**api_params, "": operation_name})
        try:
            return await make(self, operation_name, api_params)
        finally:
            call.reset(token)

    module.AioBaseClient._make_api_call = _make_api_call


def of_session(module: Any) -> None:
    """Write each request down."""
    send_it: Callable = module.AIOHTTPSession.send

    async def send(self: Any, request: Any) -> Any:
        ours = begun(request.headers)
        if ours is None:
            return await send_it(self, request)
        parts = urlsplit(request.url)
        note_endpoint("%s:%d" % (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)))
        try:
            answer = await send_it(self, request)
        except BaseException:
            ours.end()
            raise
        answered(ours, answer.status_code, answer.headers)
        length = body_bytes(answer.headers)
        if not request.stream_output:
            received(ours, len(await answer.content or b""))
            end(ours)
        elif length == 0 or ours.name.startswith("Head"):
            ours.end()
        else:
            ours.first_ns = now_ns()
            answer.raw = _Answer(answer.raw, ours, length)
        return answer

    module.AIOHTTPSession.send = send


class _Answer:
    """An answer, as the aiohttp.ClientResponse that it stands for."""

    def __init__(self, raw: Any, request: Request, length: int | None) -> None:
        self._raw, self._request = raw, request
        self.content = _Content(raw.content, request, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def read(self) -> Any:
        try:
            data = await self._raw.read()
            received(self._request, len(data))
        finally:
            self._request.end()
        return data

    def close(self) -> None:
        self._raw.close()
        self._request.end()

    def __del__(self) -> None:
        self._request.end()


class _Content:
    """The body, as the aiohttp.StreamReader that it stands for."""

    def __init__(self, raw: Any, request: Request, length: int | None) -> None:
        self._raw, self._request, self._length = raw, request, length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def read(self, n: int = -1) -> Any:
        try:
            data = await self._raw.read(n)
        except BaseException:
            self._request.end()
            raise
        received(self._request, len(data))
        if n < 0 or (not data and n) or self._request.received == self._length:
            self._request.end()
        return data
