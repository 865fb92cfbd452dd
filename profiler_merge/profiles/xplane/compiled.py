"""The outer layers of the compiled XPlane core, which run too rarely to be compiled. Needs the extension `_xplane`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from dxt_replay.profiler_merge.profiles.xplane import _xplane
from dxt_replay.profiler_merge.profiles.xplane.wire_format import (
    BYTES,
    FIELDS,
    STR,
    RawEvents,
    RawPlane,
    check_single,
    stat_classes,
)


def _wires(message: str) -> np.ndarray:
    """uint8 per field number: bit w is set when the field may have wire type w."""
    wire = {"int64": 0, "uint64": 0, "double": 1}
    wires = np.zeros(max(FIELDS[message]) + 1, np.uint8)
    for number, (_, kind, repeated) in FIELDS[message].items():
        wires[number] = 1 << wire.get(kind, 2)
        if repeated and kind in wire:
            wires[number] |= 1 << 2  # packed
    return wires


def _pick(
    buffer: memoryview, begins: np.ndarray, ends: np.ndarray, message: str, skipped: Counter[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`_xplane.pick` for a kind of message whose single fields occur once."""
    *columns, newer = _xplane.pick(buffer, begins, ends, _wires(message))
    skipped[message] += newer
    values, starts, stops, counts = columns
    if len(begins):
        check_single(message, counts.max(axis=0))
    return values, starts, stops, counts


def decode(
    buffer: memoryview, keep: Callable[[bytes], bool], wanted: tuple[bytes, ...]
) -> tuple[list[RawPlane], list[bytes], dict[str, int]]:
    """See `format.Decoder`."""
    skipped: Counter[str] = Counter()
    numbers, begins, ends, skipped["XSpace"] = _xplane.split(buffer, 0, len(buffer), _wires("XSpace"))
    rows = list(zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True))
    planes = [_plane(buffer, begin, end, keep, wanted, skipped) for number, begin, end in rows if number == 1]
    hostnames = [bytes(buffer[begin:end]) for number, begin, end in rows if number == 4]
    return planes, hostnames, dict(+skipped)


def _plane(
    buffer: memoryview,
    begin: int,
    end: int,
    keep: Callable[[bytes], bool],
    wanted: tuple[bytes, ...],
    skipped: Counter[str],
) -> RawPlane:
    numbers, begins, ends, newer = _xplane.split(buffer, begin, end, _wires("XPlane"))
    skipped["XPlane"] += newer
    check_single("XPlane", np.bincount(numbers, minlength=len(_wires("XPlane"))))

    def parts(number: int) -> tuple[np.ndarray, np.ndarray]:
        return begins[numbers == number], ends[numbers == number]

    def text(start: int, stop: int) -> bytes:
        return bytes(buffer[start:stop])

    names = parts(2)
    name = text(names[0][-1], names[1][-1]) if len(names[0]) else b""
    values, starts, stops, counts = _pick(buffer, *parts(3), "XLine", skipped)
    line_ids, stamps = values[:, 1].view(np.int64).tolist(), values[:, 3].view(np.int64).tolist()
    line_names = [text(*span) for span in zip(starts[:, 2], stops[:, 2], strict=True)]
    keys, values_at = _entries(buffer, *parts(4), "XEventEntry", skipped)
    _, starts, stops, _ = _pick(buffer, *values_at, "XEventMetadata", skipped)
    spans = zip(keys, starts[:, 2], stops[:, 2], starts[:, 4], stops[:, 4], strict=True)
    event_names = {key: (text(a, b), text(c, d)) for key, a, b, c, d in spans}
    keys, values_at = _entries(buffer, *parts(5), "XStatEntry", skipped)
    _, starts, stops, _ = _pick(buffer, *values_at, "XStatMetadata", skipped)
    stat_names = {key: text(*span) for key, *span in zip(keys, starts[:, 2], stops[:, 2], strict=True)}
    classes = stat_classes(stat_names, wanted)
    events = None
    if keep(name):
        per_line = counts[:, 4]
        decoded = _xplane.events(buffer, *parts(3), int(per_line.sum()), classes)
        metadata_id, offset_ps, duration_ps, stat_event, stat_key, stat_kind, stat_value, *newer_inside = decoded
        skipped.update(dict(zip(("XEvent", "XStat"), newer_inside, strict=True)))
        inline = np.flatnonzero((stat_kind == STR) | (stat_kind == BYTES))
        places = [divmod(place, 1 << 32) for place in stat_value[inline].tolist()]
        stat_value[inline] = np.arange(len(inline))
        events = RawEvents(
            line=np.repeat(np.arange(len(per_line), dtype=np.int32), per_line),
            metadata_id=metadata_id,
            offset_ps=offset_ps,
            duration_ps=duration_ps,
            stat_event=stat_event,
            stat_key=stat_key,
            stat_kind=stat_kind,
            stat_value=stat_value,
            texts=[text(start, start + length) for start, length in places],
        )
    return RawPlane(
        name=name,
        lines=list(zip(line_ids, line_names, stamps, strict=True)),
        event_names=event_names,
        stat_names=stat_names,
        stats=_plane_stats(buffer, *parts(6), skipped),
        events=events,
    )


def _entries(
    buffer: memoryview, begins: np.ndarray, ends: np.ndarray, message: str, skipped: Counter[str]
) -> tuple[list[int], tuple[np.ndarray, np.ndarray]]:
    """Keys of map entries, and begins and ends of their values."""
    values, starts, stops, _ = _pick(buffer, begins, ends, message, skipped)
    return values[:, 1].view(np.int64).tolist(), (starts[:, 2].copy(), stops[:, 2].copy())


def _plane_stats(
    buffer: memoryview, begins: np.ndarray, ends: np.ndarray, skipped: Counter[str]
) -> dict[int, tuple[int, int | bytes]]:
    values, starts, stops, counts, newer = _xplane.pick(buffer, begins, ends, _wires("XStat"))
    skipped["XStat"] += newer
    stats: dict[int, tuple[int, int | bytes]] = {}
    for row in range(len(begins)):
        present = np.flatnonzero(counts[row, 2:])
        if len(present):
            kind = int(present[-1]) + 2
            value = (
                bytes(buffer[starts[row, kind] : stops[row, kind]]) if kind in (STR, BYTES) else int(values[row, kind])
            )
            stats[int(values[row, 1].astype(np.int64))] = (kind, value)
    return stats
