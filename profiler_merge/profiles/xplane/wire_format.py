"""The XPlane format as a table, and the output of a decoder: shared by the compiled core and the tests' oracle.

Source: tsl/profiler/protobuf/xplane.proto, unchanged in its field numbers from TensorFlow 2.3 to 2.21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

FIELDS: Mapping[str, Mapping[int, tuple[str, str, bool]]] = {
    "XSpace": {
        1: ("planes", "XPlane", True),
        2: ("errors", "bytes", True),
        3: ("warnings", "bytes", True),
        4: ("hostnames", "bytes", True),
    },
    "XPlane": {
        1: ("id", "int64", False),
        2: ("name", "bytes", False),
        3: ("lines", "XLine", True),
        4: ("event_metadata", "XEventEntry", True),
        5: ("stat_metadata", "XStatEntry", True),
        6: ("stats", "XStat", True),
    },
    "XLine": {
        1: ("id", "int64", False),
        2: ("name", "bytes", False),
        3: ("timestamp_ns", "int64", False),
        4: ("events", "XEvent", True),
        9: ("duration_ps", "int64", False),
        10: ("display_id", "int64", False),
        11: ("display_name", "bytes", False),
    },
    "XEvent": {
        1: ("metadata_id", "int64", False),
        2: ("offset_ps", "int64", False),
        3: ("duration_ps", "int64", False),
        4: ("stats", "XStat", True),
        5: ("num_occurrences", "int64", False),
    },
    "XStat": {
        1: ("metadata_id", "int64", False),
        2: ("double_value", "double", False),
        3: ("uint64_value", "uint64", False),
        4: ("int64_value", "int64", False),
        5: ("str_value", "bytes", False),
        6: ("bytes_value", "bytes", False),
        7: ("ref_value", "uint64", False),
    },
    "XEventEntry": {1: ("key", "int64", False), 2: ("value", "XEventMetadata", False)},
    "XStatEntry": {1: ("key", "int64", False), 2: ("value", "XStatMetadata", False)},
    "XEventMetadata": {
        1: ("id", "int64", False),
        2: ("name", "bytes", False),
        3: ("metadata", "bytes", False),
        4: ("display_name", "bytes", False),
        5: ("stats", "XStat", True),
        6: ("child_id", "int64", True),
    },
    "XStatMetadata": {1: ("id", "int64", False), 2: ("name", "bytes", False), 3: ("description", "bytes", False)},
}
"""Message -> field number -> (name, type, repeated). Maps are stored as their entry messages. Strings are `bytes`: one
file name that is not UTF-8 would otherwise make the whole profile unreadable."""

DOUBLE, UINT64, INT64, STR, BYTES, REF = 2, 3, 4, 5, 6, 7
"""Kinds of a stat's value: its field number in XStat. REF: the text is the name of another stat of the plane."""

UNTIMED = -(1 << 63)
"""`offset_ps` of an event with a number of occurrences instead of a time."""

MAX_STAT_ID = 1 << 20
"""Largest stat id: ids count up from 1, so a larger one is damage, and would need a large table."""


class DamageError(ValueError):
    """Bytes that no profiler writes. The message says where; `xplane.read_profile` adds the file and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawEvents:
    """Events of a plane in file order (int64 columns), and their kept stats; `_xplane.pyi` has the columns."""

    line: np.ndarray
    metadata_id: np.ndarray
    offset_ps: np.ndarray
    duration_ps: np.ndarray
    stat_event: np.ndarray
    stat_key: np.ndarray
    stat_kind: np.ndarray
    stat_value: np.ndarray
    texts: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawPlane:
    """One XPlane. `events` is None for a plane whose events were not requested.

    `lines`: (id, name, timestamp_ns). `event_names`: id -> (name, display name). `stats`: id -> (kind, value).
    """

    name: bytes
    lines: list[tuple[int, bytes, int]]
    event_names: dict[int, tuple[bytes, bytes]]
    stat_names: dict[int, bytes]
    stats: dict[int, tuple[int, int | bytes]]
    events: RawEvents | None


class Decoder(Protocol):
    """A core: XSpace bytes -> planes, host names, and message -> number of skipped fields, if there were any.

    `keep`: whether the events of the plane of this name are wanted. `wanted`: names of the stats to keep; a stat's key
    is its row there. A field whose number is beyond those of its message is skipped, as a later version may add it.
    Raises: DamageError, which says where, on damaged bytes; any other unknown field counts as damage.
    """

    def __call__(
        self, buffer: memoryview, keep: Callable[[bytes], bool], wanted: tuple[bytes, ...]
    ) -> tuple[list[RawPlane], list[bytes], dict[str, int]]: ...


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(value, position after it) of a base-128 number. Raises: DamageError when it is cut off."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DamageError("a number is cut off")


def check_single(message: str, counts: Sequence[int] | np.ndarray) -> None:
    """Raises: DamageError when a field that occurs once occurs more often; `counts` is by field number.

    Protobuf would use the last one. No profiler writes a field twice, but a length that a flipped bit enlarged swallows
    events and then meets the fields of later ones.
    """
    for number, (name, _, repeated) in FIELDS[message].items():
        if not repeated and counts[number] > 1:
            raise DamageError(f"{message} with more than one {name}")


def stat_classes(stat_names: Mapping[int, bytes], wanted: tuple[bytes, ...]) -> np.ndarray:
    """uint8 per stat id: 0 unknown, 1 known, 2 + row in `wanted`. Raises: DamageError for an id beyond MAX_STAT_ID."""
    largest = max(stat_names, default=0)
    if min(stat_names, default=0) < 0 or largest > MAX_STAT_ID:
        raise DamageError("a stat name has an id out of range")
    classes = np.zeros(largest + 1, np.uint8)
    for key, name in stat_names.items():
        classes[key] = wanted.index(name) + 2 if name in wanted else 1
    return classes
