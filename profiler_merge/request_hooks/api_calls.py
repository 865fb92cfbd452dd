"""What a call of the S3 API asks for, as botocore and aiobotocore make it; nothing of it is a secret."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from .log import Request

_NO_CALL: Mapping[str, Any] = {}
call: ContextVar[Mapping[str, Any]] = ContextVar("dxt_replay_call", default=_NO_CALL)
"""The call that this thread or task makes: its parameters, and `""` with its name. Empty outside of S3."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_READ, _WRITES, _LISTS = "GetObject", ("PutObject", "UploadPart"), ("ListObjects", "ListObjectsV2")


def begun(headers: Mapping[str, Any]) -> Request | None:
    """The request that this call now sends; None outside of S3. `headers`: of the request."""
    known = call.get()
    if not known:
        return None
    name, key = known[""], known.get("Key")
    if name in _LISTS:
        key = str(known.get("Prefix") or "").rpartition("/")[0]
        key += "/" if key else ""
    request = Request(name, "%s/%s" % (known.get("Bucket", ""), key or ""))
    request.status = 0
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


def end(request: Request) -> None:
    """Write a request down. One that deletes several objects is followed by the deletion of each."""
    request.end()
    if request.name == "DeleteObjects":
        known = call.get()
        for each in (known.get("Delete") or {}).get("Objects") or ():
            deletion = Request("DeleteObject", "%s/%s" % (known.get("Bucket", ""), each.get("Key", "")))
            deletion.start_ns, deletion.first_ns = request.start_ns, request.first_ns
            deletion.status, deletion.connection = request.status, request.connection
            deletion.end(request.end_ns)


def answered(request: Request, status: int, headers: Mapping[str, Any]) -> None:
    """Note the status and the headers of an answer."""
    request.status = status
    if request.name in _WRITES and status >= 300:
        request.length = 0
    if status >= 300 or request.name not in (_READ, "HeadObject"):
        return
    found = _CONTENT_RANGE.match(_text(headers.get("content-range", "")))
    size = found[3] if found else _text(headers.get("content-length", ""))
    request.size = int(size) if size.isdigit() else None
    if found and request.name == _READ:
        request.offset = int(found[1])


def body_bytes(headers: Mapping[str, Any]) -> int | None:
    """Length of an answer's body, if its headers tell."""
    told = _text(headers.get("content-length", ""))
    return int(told) if told.isdigit() else None


def received(request: Request, number: int) -> None:
    """Count bytes of the body."""
    request.received += number
    if request.name == _READ and request.status is not None and request.status < 300:
        request.length = request.received


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
