"""Changed protobuf messages: lengths stay right around what changes, so that the change is reached."""

from __future__ import annotations

import random

from tests.xplane_writer import varint

_VALUES = (0, 1, 2, 127, 1 << 20, (1 << 24) - 1, 1 << 24, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

Field = tuple[int, int, int, int]
"""Begin and end of a field, where its payload begins, and the type of the wire."""


def changed_message(rng: random.Random, data: bytes) -> bytes:
    """One field, at any depth, lost, doubled, moved, or with another number, value or type."""
    fields = _fields(data)
    if not fields:
        return data + rng.randbytes(rng.choice((1, 4)))
    begin, end, payload, kind = field = rng.choice(fields)
    if kind == 2 and rng.random() < 0.75:
        inner = changed_message(rng, data[payload:end]) if _fields(data[payload:end]) else rng.randbytes(end - payload)
        if rng.random() < 0.05:
            inner += bytes(rng.choice((1, 300)))
        return data[:begin] + _key(data, field) + varint(len(inner)) + inner + data[end:]
    choice = rng.randrange(5)
    if choice == 0:
        return data[:begin] + data[end:]
    if choice == 1:
        return data[:end] + data[begin:end] + data[end:]
    if choice == 2:
        other = rng.choice(fields)
        return data[: other[0]] + data[begin:end] + data[other[0] :]
    if choice == 3:
        key = varint(rng.choice((1, 2, 3, 4, 5, 7, 9, 60)) << 3 | rng.choice((kind, kind, 0, 1, 2, 5)))
        return data[:begin] + key + data[begin + len(_key(data, field)) :]
    if kind == 0:
        value = rng.choice((*_VALUES, rng.randrange(40)))
        return data[:begin] + _key(data, field) + varint(value) + data[end:]
    return data[:payload] + rng.randbytes(end - payload) + data[end:]


def _key(data: bytes, field: Field) -> bytes:
    at = field[0]
    while data[at] & 0x80:
        at += 1
    return data[field[0] : at + 1]


def _fields(data: bytes) -> list[Field]:
    """The fields of a message; none where the bytes are not one."""
    found, at = [], 0
    while at < len(data):
        begin = at
        key, at = _number(data, at)
        kind = key & 7
        if kind == 0:
            payload, (_, at) = at, _number(data, at)
        elif kind == 2:
            length, payload = _number(data, at)
            at = payload + length
        elif kind in (1, 5):
            payload, at = at, at + (8 if kind == 1 else 4)
        else:
            return []
        if at > len(data) or not key >> 3:
            return []
        found.append((begin, at, payload, kind))
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, len(data) + 1
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, len(data) + 1
