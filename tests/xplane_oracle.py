"""The oracle of the XPlane decoder: protobuf parses, over a descriptor made at run time, and Python makes the columns.

The compiled core must answer as this does, damage included. TensorFlow's own module would cost 565 MB and refuses
names that are not UTF-8; this descriptor needs the `protobuf` package alone.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from dxt_replay.profiler_merge.profiles.event_table import DamageError
from dxt_replay.profiler_merge.profiles.xplane import (
    BYTES,
    DOUBLE,
    FIELDS,
    REF,
    STR,
    UNTIMED,
    RawPlane,
    check_single,
    stat_classes,
)

ONEOFS: dict[str, dict[str, tuple[int, ...]]] = {"XEvent": {"data": (2, 5)}, "XStat": {"value": (2, 3, 4, 5, 6, 7)}}
"""Message -> name of a oneof -> its field numbers."""

_U64 = (1 << 64) - 1
_GROUPS = (3, 4)
"""Wire types that proto3 lacks."""


@functools.cache
def space_class() -> Any:
    """The message class of XSpace, from FIELDS and ONEOFS."""
    types = descriptor_pb2.FieldDescriptorProto
    scalar = {
        "int64": types.TYPE_INT64,
        "uint64": types.TYPE_UINT64,
        "double": types.TYPE_DOUBLE,
        "bytes": types.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name="dxt_replay_xplane.proto", package="dxt_replay", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for number, (name, kind, repeated) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            field.type = scalar.get(kind, types.TYPE_MESSAGE)
            if kind not in scalar:
                field.type_name = f".dxt_replay.{kind}"
        for index, (name, members) in enumerate(ONEOFS.get(message, {}).items()):
            described.oneof_decl.add(name=name)
            for field in described.field:
                if field.number in members:
                    field.oneof_index = index
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dxt_replay.XSpace"))


def decode(
    buffer: memoryview, keep: Callable[[bytes], bool], wanted: tuple[bytes, ...]
) -> tuple[list[RawPlane], list[bytes], dict[str, int]]:
    """See `profiler_merge.profiles.xplane.Decoder`."""
    cls = space_class()
    space = cls()
    try:
        space.ParseFromString(bytes(buffer))
    except DecodeError as error:
        raise DamageError(f"not a protobuf message ({error})") from error
    skipped: Counter[str] = Counter()
    size = space.ByteSize()
    space.DiscardUnknownFields()
    if space.ByteSize() != size:
        space.ParseFromString(bytes(buffer))
        _count_unknown(space, "XSpace", keep, skipped, events=True)
    _check_layer(buffer, "XSpace")
    return [_plane(plane, keep, wanted) for plane in space.planes], list(space.hostnames), dict(skipped)


def _count_unknown(
    message: Any, name: str, keep: Callable[[bytes], bool], skipped: Counter[str], *, events: bool
) -> None:
    """Counts the unknown fields in a message and its parts, save the parts that nobody reads; `events`: they are read.

    Raises: DamageError for one whose number is not beyond those of its message.
    """
    fields = FIELDS[name]
    for field in UnknownFieldSet(message):
        if field.field_number <= max(fields) or field.wire_type in _GROUPS:
            raise DamageError(
                f"{name} with a field that the format lacks (number {field.field_number}, wire type {field.wire_type})"
            )
        skipped[name] += 1
    if name == "XPlane":
        events = keep(message.name)
    for member, kind, repeated in fields.values():
        if kind in FIELDS and name != "XEventMetadata" and (events or kind != "XEvent"):
            value = getattr(message, member)
            for part in value if repeated else [value]:
                _count_unknown(part, kind, keep, skipped, events=events)


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


def _check_layer(data: memoryview, message: str) -> None:
    """`check_single` for a message that parsed, and for the parts above the events, which are too many."""
    counts = [0] * (max(FIELDS[message]) + 1)
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        newer = tag >> 3 >= len(counts)
        if not newer:
            counts[tag >> 3] += 1
        if tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
            continue
        length, at = read_varint(data, at)
        if tag & 7 == 2:
            kind = "" if newer else FIELDS[message][tag >> 3][1]
            if kind in FIELDS and kind not in ("XEvent", "XStat"):
                _check_layer(data[at : at + length], kind)
            at += length
    check_single(message, counts)


def _plane(plane: Any, keep: Callable[[bytes], bool], wanted: tuple[bytes, ...]) -> RawPlane:
    stat_names = {entry.key: entry.value.name for entry in plane.stat_metadata}
    stats: dict[int, tuple[int, int | bytes]] = {}
    for stat in plane.stats:
        kind, value = _value(stat)
        if kind:
            stats[stat.metadata_id] = (kind, value)
    classes = stat_classes(stat_names, wanted)
    return RawPlane(
        name=plane.name,
        lines=[(line.id, line.name, line.timestamp_ns) for line in plane.lines],
        event_names={entry.key: entry.value.name for entry in plane.event_metadata},
        stat_names=stat_names,
        stats=stats,
        events=_events(plane, classes) if keep(plane.name) else None,
    )


def _value(stat: Any) -> tuple[int, int | bytes]:
    """(kind, 64 value bits or bytes) of a stat; kind 0 when it has no value."""
    member = stat.WhichOneof("value")
    if member is None:
        return 0, 0
    kind = _KINDS[member]
    value = getattr(stat, member)
    if kind == DOUBLE:
        return kind, struct.unpack("<Q", struct.pack("<d", value))[0]
    return kind, value if kind in (STR, BYTES) else value & _U64


_KINDS = {name: number for number, (name, _, _) in FIELDS["XStat"].items() if number > 1}


def _events(plane: Any, classes: np.ndarray) -> dict[str, np.ndarray]:
    rows: list[tuple[int, int, int, int]] = []
    stats: list[tuple[int, int, int, int]] = []
    for index, line in enumerate(plane.lines):
        for event in line.events:
            for stat in event.stats:
                key, (kind, value) = stat.metadata_id, _value(stat)
                if not 0 <= key < len(classes) or classes[key] == 0:
                    raise DamageError(f"stat {key}, whose name is not in its plane")
                if kind == REF and not (isinstance(value, int) and value < len(classes) and classes[value]):
                    raise DamageError(f"text {value!r}, which is not in its plane")
                if classes[key] < 2 or kind == 0:
                    continue
                if isinstance(value, bytes):
                    value = 0
                stats.append((len(rows), int(classes[key]) - 2, kind, value))
            offset = UNTIMED if event.WhichOneof("data") == "num_occurrences" else event.offset_ps
            rows.append((index, event.metadata_id, offset, event.duration_ps))
    line_column, metadata_id, offset_ps, duration_ps = _columns(rows, (np.int32, np.int64, np.int64, np.int64))
    stat_event, stat_key, stat_kind, stat_value = _columns(stats, (np.int32, np.uint8, np.uint8, np.uint64))
    return {
        "line": line_column,
        "metadata_id": metadata_id,
        "offset_ps": offset_ps,
        "duration_ps": duration_ps,
        "stat_event": stat_event,
        "stat_key": stat_key,
        "stat_kind": stat_kind,
        "stat_value": stat_value,
    }


def _columns(rows: list[tuple[int, int, int, int]], dtypes: tuple[Any, ...]) -> list[np.ndarray]:
    return [np.fromiter((row[i] for row in rows), dtype, len(rows)) for i, dtype in enumerate(dtypes)]
