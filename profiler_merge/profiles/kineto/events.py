"""Decodes the events of a chunk with msgspec: all at once, or one by one if an event is not valid JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dxt_replay.traces.errors import MissingDependencyError

try:
    import msgspec
except ImportError as error:  # pragma: no cover
    raise MissingDependencyError("msgspec", "reading a PyTorch profile", "pip install msgspec") from error


class Event(msgspec.Struct, gc=False):
    """The needed members of an event; `ts` and `dur` in microseconds, `args` not decoded."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")


class _Arguments(msgspec.Struct, gc=False):
    correlation: int = 0


class _Labels(msgspec.Struct, gc=False):
    name: str = ""
    labels: str = ""


_EVENTS = msgspec.json.Decoder(list[Event])
_ARGUMENTS = msgspec.json.Decoder(_Arguments)
_LABELS = msgspec.json.Decoder(_Labels)


def decode_events(chunk: bytes, border: re.Pattern[bytes]) -> tuple[list[Event], int]:
    """The events of a chunk, and the number of events that no parser can read.

    `border` matches between two events. An event with NaN, control characters or bytes that are not UTF-8 is repaired.
    """
    try:
        return _EVENTS.decode(b"".join((b"[", chunk, b"]"))), 0
    except (msgspec.DecodeError, UnicodeDecodeError):
        pieces = list(_pieces(chunk, border))
    events: list[Event] = []
    return events, _decode_pieces(pieces, events)


def _pieces(chunk: bytes, border: re.Pattern[bytes]) -> Iterator[bytes]:
    begin = 0
    for match in border.finditer(chunk):
        yield chunk[begin : match.start() + 1]
        begin = match.end()
    yield chunk[begin:]


def _decode_pieces(pieces: Sequence[bytes], events: list[Event]) -> int:
    """Append all readable events to `events`, by halves, so that a few bad ones cost little. Returns the number of
    unreadable ones."""
    try:
        events += _EVENTS.decode(b"[" + b",".join(pieces) + b"]")
        return 0
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    if len(pieces) > 1:
        middle = len(pieces) // 2
        return _decode_pieces(pieces[:middle], events) + _decode_pieces(pieces[middle:], events)
    try:
        event = _repaired(pieces[0])
    except (ValueError, RecursionError, TypeError):
        return 1
    events.append(event)
    return 0


def _repaired(piece: bytes) -> Event:
    """An event that the standard library's lenient parser can read. Raises: ValueError, TypeError."""
    members: Any = json.loads(piece.decode("utf-8", "replace"), strict=False)
    if not isinstance(members, dict):
        raise ValueError("not an event")
    args = members.pop("args", None)
    event = msgspec.convert(members, Event)
    if not (math.isfinite(event.ts) and math.isfinite(event.dur)):
        raise ValueError("an event without a time")
    if isinstance(args, dict) and isinstance(args.get("correlation"), int):
        event.args = msgspec.Raw(b'{"correlation":%d}' % args["correlation"])
    return event


def correlation_of(event: Event) -> int:
    """The number that a GPU event shares with the call that launched it; 0 if it has none that fits 64 bits."""
    try:
        found = _ARGUMENTS.decode(event.args).correlation
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    return found if -(1 << 63) <= found < 1 << 63 else 0


def label_of(event: Event) -> str:
    """The text of a metadata event: the name of a process or thread, or a label of a process."""
    try:
        found = _LABELS.decode(event.args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return found.name or found.labels
