"""Writes XSpace bytes for tests: the inverse of `profiler_merge.profiles.xplane`, independent of its field tables."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = int | float | str | bytes
"""A stat's value: int -> int64 (uint64 from 2**63), float -> double, str -> reference, bytes -> inline string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; `start_ns` counts from the profile's start. `occurrences` takes the place of a time."""

    name: str
    start_ns: int = 0
    duration_ns: int = 0
    stats: Mapping[str, Value] = field(default_factory=dict)
    occurrences: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thread: `id` as int64."""

    id: int
    name: str
    events: tuple[Event, ...] = ()
    timestamp_ns: int = 0


def varint(value: int) -> bytes:
    """Base-128 encoding of value modulo 2**64."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field_number: int, value: int) -> bytes:
    """A varint field."""
    return varint(field_number << 3) + varint(value)


def part(field_number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(field_number << 3 | 2) + varint(len(payload)) + payload


def encoded(name: str) -> bytes:
    """UTF-8; a lone surrogate stands for the byte that it escapes."""
    return name.encode("utf-8", "surrogateescape")


class _Names:
    """Hands out ids from 1, as TensorFlow does."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)


def plane(name: str, lines: Iterable[Line] = (), stats: Mapping[str, Value] | None = None) -> bytes:
    """An XPlane in TensorFlow's order: lines first, then the tables that they refer to."""
    event_names, stat_names = _Names(), _Names()
    body = part(2, encoded(name))
    for each in lines:
        body += part(3, line(each, event_names, stat_names))
    plane_stats = b"".join(part(6, stat(stat_names, key, value)) for key, value in (stats or {}).items())
    for key, index in event_names.ids.items():
        body += part(4, number(1, index) + part(2, number(1, index) + part(2, encoded(key))))
    for key, index in stat_names.ids.items():
        body += part(5, number(1, index) + part(2, number(1, index) + part(2, encoded(key))))
    return body + plane_stats


def line(each: Line, event_names: _Names, stat_names: _Names) -> bytes:
    """An XLine with its events in the order given."""
    head = number(1, each.id) + part(2, encoded(each.name)) + number(3, each.timestamp_ns)
    return head + b"".join(part(4, event(row, event_names, stat_names)) for row in each.events)


def event(each: Event, event_names: _Names, stat_names: _Names) -> bytes:
    """An XEvent; times are stored in picoseconds."""
    time = number(2, each.start_ns * 1000) if each.occurrences is None else number(5, each.occurrences)
    body = number(1, event_names[each.name]) + time + number(3, each.duration_ns * 1000)
    return body + b"".join(part(4, stat(stat_names, key, value)) for key, value in each.stats.items())


def stat(stat_names: _Names, key: str, value: Value) -> bytes:
    """An XStat of the kind that the value's type asks for."""
    head = number(1, stat_names[key])
    if isinstance(value, bytes):
        return head + part(5, value)
    if isinstance(value, str):
        return head + number(7, stat_names[value])
    if isinstance(value, float):
        return head + varint(2 << 3 | 1) + struct.pack("<d", value)
    return head + number(3 if value >= 1 << 63 else 4, value)


def space(planes: Iterable[bytes], hostnames: Iterable[str] = ("node1",)) -> bytes:
    """An XSpace."""
    return b"".join(part(1, body) for body in planes) + b"".join(part(4, encoded(name)) for name in hostnames)


START_NS = 1_795_000_000_000_000_000


def profile(lines: Iterable[Line], start_ns: int | None = START_NS, stop_ns: int | None = None) -> bytes:
    """A CPU profile as TF 2.17 and later write it; without an epoch (TF 2.12) when `start_ns` is None."""
    planes = [plane("/host:CPU", lines)]
    if start_ns is not None:
        stats = {"profile_start_time": start_ns, "profile_stop_time": stop_ns or start_ns + 10_000_000_000}
        planes.append(plane("Task Environment", stats=stats))
    return space(planes)


def small_profile() -> bytes:
    """Two threads, six kinds of stat, a name that is not UTF-8."""
    stats: Mapping[str, Value] = {"name": "ds", "filename": b"/x\xff", "cost": 0.5}
    events = tuple(
        Event(
            name=f"op{i % 3}:MatMul",
            start_ns=1_000 * i,
            duration_ns=500,
            stats={"step_num": i, "id": (1 << 63) + i, **stats} if i % 2 else {},
        )
        for i in range(6)
    )
    return profile([Line(id=-5, name="python", events=events), Line(id=7 << 40, name="tf_Compute/7", events=events)])
