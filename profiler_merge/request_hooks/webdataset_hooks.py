"""The shards that webdataset reads over HTTP: it has curl write them to a pipe, so that only the pipe is seen here.

A URL `http://host/bucket/key` is taken as a path-style address of an object. Seen are its bytes as the program takes
them out of the pipe, and the end; not what curl sends again, nor the status of a refused request.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from .log import Request, note_endpoint, now_ns


def of_gopen(module: Any) -> None:
    """Replace the openers of http and https."""
    for scheme in ("http", "https"):
        module.gopen_schemes[scheme] = _opener(module.gopen_schemes[scheme])


def _opener(real: Any) -> Any:
    def gopen(url: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if mode[0] != "r":
            return real(url, mode, *args, **kwargs)
        place = urlsplit(url)
        note_endpoint("%s:%d" % (place.hostname, place.port or (443 if place.scheme == "https" else 80)))
        request = Request("GetObject", unquote(place.path).lstrip("/"))
        request.inferred, request.offset, request.length = "webdataset's curl", 0, 0
        return _Stream(real(url, mode, *args, **kwargs), request)

    return gopen


class _Stream:
    """A pipe of webdataset that counts what is read. The request ends with the last byte, or when it is closed."""

    def __init__(self, real: Any, request: Request) -> None:
        self._real, self._request = real, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def read(self, *args: Any, **kwargs: Any) -> Any:
        request = self._request
        try:
            data = self._real.read(*args, **kwargs)
        except BaseException:
            request.end()
            raise
        if data and request.first_ns is None:
            request.first_ns, request.status = now_ns(), 200
        request.received += len(data)
        request.length, request.end_ns = request.received, now_ns()
        if not data:
            request.end()
        return data

    def _end(self) -> None:
        # A reader of tar files does not take the last bytes: the request ended with the last that it took.
        self._request.end(self._request.end_ns or None)

    def close(self) -> None:
        self._end()
        self._real.close()

    def __del__(self) -> None:
        self._end()
