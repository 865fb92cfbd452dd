"""Makes a `Profile` from decoded planes: ids become rows, picoseconds epoch nanoseconds; checks detect damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import ACCELERATOR, STATS, TEXT_STATS, Profile, ProfileLine
from dxt_replay.profiler_merge.profiles.xplane.wire_format import (
    BYTES,
    DOUBLE,
    INT64,
    REF,
    STR,
    UINT64,
    UNTIMED,
    DamageError,
    RawEvents,
    RawPlane,
    read_varint,
)
from dxt_replay.traces.errors import ProfileError

_ENVIRONMENT = b"Task Environment"
_EPOCH_RANGE = (1_000_000_000_000_000_000, 4_000_000_000_000_000_000)
"""2001 to 2096 in ns since 1970: separates an epoch from a counter (TF 2.4 numbers its elements from 0)."""
_MAX_RELATIVE_NS = 1 << 61
_OUTSIDE_NS = 60_000_000_000
"""Largest distance of an event from the profiler's window, for a stepped clock; beyond it the bytes are damaged."""
_OPTIONS = {2: "host_tracer_level", 3: "device_tracer_level", 4: "python_tracer_level", 10: "repository_path"}
"""Fields of ProfileOptions (tsl/profiler/protobuf/profiler_options.proto) that describe what was captured."""

Columns = dict[str, np.ndarray]
Stats = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(slots=True)
class _Tables:
    """The name and text tables of all planes, grown plane by plane."""

    names: list[str] = field(default_factory=list)
    display_names: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def assemble(path: Path, planes: list[RawPlane], hostnames: list[bytes], skipped_fields: Mapping[str, int]) -> Profile:
    """The profile of the planes with decoded events; takes over (changes) their arrays.

    Raises: DamageError for bytes that no profiler writes; ProfileError for a profile without events.
    """
    _check_names(planes)
    warnings = _warnings(path, planes, hostnames)
    wanted = [(plane, plane.events) for plane in planes if plane.events is not None]
    tables, parts, stat_parts = _Tables(), [], []
    lines: list[ProfileLine] = []
    first_event = 0
    for index, (plane, events) in enumerate(wanted):
        part, row_of_event = _plane_columns(plane, events, tables, first_line=len(lines), first_event=first_event)
        stat_parts.append(_plane_stats(plane, events, tables, row_of_event))
        parts.append(part)
        lines += [ProfileLine(id=key, name=_text(name), plane=index) for key, name, _ in plane.lines]
        first_event += len(part["line"])
    if first_event == 0:
        raise ProfileError(f"{path} holds no host events: profile at least one training step, with host_tracer_level 2")
    columns = {key: _joined([part.pop(key) for part in parts]) for key in list(parts[0])}
    stats: Stats = {}
    for key in STATS:
        found = [part[key] for part in stat_parts if key in part]
        if found:
            stats[key] = (_joined([rows for rows, _ in found]), _joined([values for _, values in found]))
    _sort(columns, stats)
    environment = _environment(planes)
    base, source = _epoch(environment, columns, stats, tables)
    _check_window(columns, environment)
    if base is not None:
        columns["start_ns"] += base
    return Profile(
        path=path,
        hostnames=tuple(_text(name) for name in hostnames),
        epoch_start_ns=base,
        epoch_source=source,
        options=_profile_options(environment.get("profile_options")),
        planes=tuple(_text(plane.name) for plane, _ in wanted),
        lines=tuple(lines),
        names=tuple(tables.names),
        display_names=tuple(tables.display_names),
        line=columns["line"],
        name=columns["name"],
        start_ns=columns["start_ns"],
        duration_ns=columns["duration_ns"],
        stats=stats,
        texts=tuple(tables.texts),
        skipped_fields=skipped_fields,
        warnings=warnings,
    )


def _warnings(path: Path, planes: list[RawPlane], hostnames: list[bytes]) -> tuple[str, ...]:
    """On accelerators, and on a missing host name, which should follow the last plane.

    Those of TPUs may lack it. TF 2.3 does not write it either, but then neither a Task Environment (2.17 and later) nor
    64-bit line ids (2.19 and later). Raises: DamageError for any other profile without it, which is cut off.
    """
    said = []
    found = [(kind[1], plane) for plane in planes if (kind := ACCELERATOR.fullmatch(_text(plane.name))) is not None]
    modern = any(plane.name == _ENVIRONMENT for plane in planes) or any(
        not 0 <= key < 1 << 32 for plane in planes for key, _, _ in plane.lines
    )
    if modern and not hostnames:
        if not found:
            raise DamageError("the file ends before the host name")
        said.append(f"{path} names no host: if it was cut off between two planes, the later ones are missing")
    worked = sum(plane.events is not None and len(plane.events.line) > 0 for _, plane in found)
    if len(found) > 1:
        said.append(f"{path} is of one process with {len(found)} {found[0][0]}s, {worked} of which worked")
    return tuple(said)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _check_names(planes: list[RawPlane]) -> None:
    """Check that no field swallowed its successors: a length that a flipped bit enlarged takes in what follows as a
    name."""
    for plane in planes:
        for name in (plane.name, *(name for _, name, _ in plane.lines)):
            if any(byte < 0x20 for byte in name):
                raise DamageError(f"a plane or thread with control characters in its name, {name[:40]!r}")


def _plane_columns(
    plane: RawPlane, events: RawEvents, tables: _Tables, first_line: int, first_event: int
) -> tuple[Columns, np.ndarray | None]:
    """Columns of one plane in file order, `start_ns` relative to the profile's start, without events that lack a time.

    Also the row of each event, -1 for those without a time; None if that is its own position."""
    line, ids, start_ns, duration_ns = events.line, events.metadata_id, events.offset_ps, events.duration_ps
    row_of_event = None
    timed = start_ns != UNTIMED
    if first_event or not timed.all():
        row_of_event = np.where(timed, np.cumsum(timed) - 1 + first_event, -1)
        line, ids, start_ns, duration_ns = line[timed], ids[timed], start_ns[timed], duration_ns[timed]
    if len(duration_ns) and int(duration_ns.min()) < 0:
        raise DamageError(f"event {int(np.argmin(duration_ns))} of plane {_text(plane.name)} ends before it starts")
    stamps = np.array([stamp for _, _, stamp in plane.lines], np.int64)
    if ((stamps < -_MAX_RELATIVE_NS) | (stamps > _MAX_RELATIVE_NS)).any():
        raise DamageError(f"a line of plane {_text(plane.name)} starts decades away")
    start_ns //= 1000
    duration_ns //= 1000
    start_ns += stamps[0] if len(set(stamps.tolist())) == 1 else stamps[line]
    name_ids = np.array(sorted(plane.event_names), np.int64)
    name = _rows_of(ids, name_ids, plane)
    name += np.int32(len(tables.names))
    for key in name_ids.tolist():
        text, display_text = plane.event_names[key]
        tables.names.append(_text(text))
        tables.display_names.append(_text(display_text))
    line = line + np.int32(first_line)
    return {"line": line, "name": name, "start_ns": start_ns, "duration_ns": duration_ns}, row_of_event


def _rows_of(ids: np.ndarray, known: np.ndarray, plane: RawPlane) -> np.ndarray:
    """int32 row in the sorted `known` per id. Raises: DamageError for an id that is not in it."""
    if len(ids) == 0:
        return np.empty(0, np.int32)
    if len(known) and known[0] >= 0 and known[-1] < 4 * len(known) + 1024:  # numbered consecutively, as TF does
        table = np.full(int(known[-1]) + 2, -1, np.int32)  # the last entry stands for every larger id
        table[known] = np.arange(len(known), dtype=np.int32)
        rows = table[np.clip(ids, -1, len(table) - 1)]
        bad = rows < 0
    else:
        rows = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0)).astype(np.int32)
        bad = known[rows] != ids if len(known) else np.ones(len(ids), bool)
    if bad.any():
        first = int(np.argmax(bad))
        raise DamageError(
            f"event {first} of plane {_text(plane.name)} has name {int(ids[first])}, which the plane lacks"
        )
    return rows


def _plane_stats(plane: RawPlane, events: RawEvents, tables: _Tables, row_of_event: np.ndarray | None) -> Stats:
    """Key -> (event rows, values) of one plane; the value of a text is its row in `tables.texts`."""
    text_of = np.zeros(max(plane.stat_names, default=0) + 1, np.int64)
    for row, key in enumerate(plane.stat_names, len(tables.texts)):
        text_of[key] = row
    first_inline = len(tables.texts) + len(plane.stat_names)
    tables.texts += [_text(name) for name in (*plane.stat_names.values(), *events.texts)]
    order = np.argsort(events.stat_key, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(events.stat_key, minlength=len(STATS))))
    stats: Stats = {}
    for index, stat in enumerate(STATS):
        chosen = order[bounds[index] : bounds[index + 1]]
        kinds, values = events.stat_kind[chosen], events.stat_value[chosen].view(np.int64)
        rows = events.stat_event[chosen].astype(np.int64)
        if stat in TEXT_STATS:
            keep, values = _text_rows(kinds, values, text_of, first_inline)
        else:
            keep, values = _whole_numbers(kinds, values)
        if row_of_event is not None:
            rows = row_of_event[rows]
            keep &= rows >= 0
        keep[:-1] &= rows[1:] != rows[:-1]  # if an event has a stat twice, the last one counts
        if keep.any():
            stats[stat] = (rows, values) if keep.all() else (rows[keep], values[keep])
    return stats


def _whole_numbers(kinds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bool keep, int64 values) of a numeric stat. Whole doubles are kept: TraceMe stores 1e5 so."""
    keep = (kinds == INT64) | (kinds == UINT64)
    if keep.all():
        return keep, values
    doubles = kinds == DOUBLE
    reals = values[doubles].view(np.float64)
    keep[doubles] = (np.abs(reals) < 2.0**53) & (reals == np.rint(reals))
    values[doubles] = np.where(keep[doubles], reals, 0).astype(np.int64)
    return keep, values


def _text_rows(
    kinds: np.ndarray, values: np.ndarray, text_of: np.ndarray, first_inline: int
) -> tuple[np.ndarray, np.ndarray]:
    """(bool keep, int64 rows in the text table) of a text stat, stored as a reference or inline."""
    references, inline = kinds == REF, (kinds == STR) | (kinds == BYTES)
    return references | inline, np.where(references, text_of[np.where(references, values, 0)], values + first_inline)


def _sort(columns: Columns, stats: Stats) -> None:
    """Sort the events in (line, start, outer first) order, in which TensorFlow nearly always wrote them."""
    line, start, duration = columns["line"], columns["start_ns"], columns["duration_ns"]
    wrong = start[1:] < start[:-1]
    wrong |= (start[1:] == start[:-1]) & (duration[1:] > duration[:-1])
    wrong &= line[1:] == line[:-1]
    if not wrong.any():
        return
    order = np.lexsort((-duration, start, line))
    for key in columns:
        columns[key] = columns[key][order]
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    for key, (rows, values) in stats.items():
        ascending = np.argsort(row[rows])
        stats[key] = (row[rows][ascending], values[ascending])


def _environment(planes: list[RawPlane]) -> dict[str, int | bytes]:
    """The stats of the plane `Task Environment` by name; empty before TF 2.17."""
    return {
        _text(plane.stat_names[key]): value
        for plane in planes
        if plane.name == _ENVIRONMENT
        for key, (kind, value) in plane.stats.items()
        if key in plane.stat_names and kind in (UINT64, INT64, STR, BYTES)
    }


def _epoch(
    environment: Mapping[str, int | bytes],
    columns: Columns,
    stats: Stats,
    tables: _Tables,
) -> tuple[int | None, str]:
    """CLOCK_REALTIME ns at the profile's start and the field it comes from; (None, "") without such a field.

    Before TF 2.17 the `element_id` of PrefetchProduce is the epoch 0.5 to 3 us before the event starts.
    """
    start = environment.get("profile_start_time")
    if isinstance(start, int) and start:
        if not _EPOCH_RANGE[0] <= start <= _EPOCH_RANGE[1]:
            raise DamageError(f"profile_start_time is {start}, which is not a time since 1970 in ns")
        return start, "profile_start_time"
    rows, values = stats.get("element_id", (np.empty(0, np.int64),) * 2)
    produces = np.array([name == "PrefetchProduce" for name in tables.names], bool)[columns["name"][rows]]
    epochs = produces & (values >= _EPOCH_RANGE[0]) & (values <= _EPOCH_RANGE[1])
    if not epochs.any():
        return None, ""
    return int((values[epochs] - columns["start_ns"][rows[epochs]]).max()), "element_id"


def _check_window(columns: Columns, environment: Mapping[str, int | bytes]) -> None:
    """Raises: DamageError for an event far outside of the profiler's run; decades outside if that is unknown."""
    start, stop = environment.get("profile_start_time"), environment.get("profile_stop_time")
    last = _MAX_RELATIVE_NS
    if isinstance(start, int) and isinstance(stop, int) and 0 < start <= stop:
        last = min(stop - start + _OUTSIDE_NS, last)
    first = -_OUTSIDE_NS if last < _MAX_RELATIVE_NS else -_MAX_RELATIVE_NS
    begins, durations = columns["start_ns"], columns["duration_ns"]
    if int(begins.min()) < first or int(begins.max()) > last or int(durations.max()) > last - first:
        raise DamageError("an event lies far outside the time that the profiler ran")
    if int((begins + durations).max()) > last:
        raise DamageError("an event ends long after the profiler")


def _profile_options(data: int | bytes | None) -> dict[str, int | str]:
    """The options in effect, from a serialized ProfileOptions; fields at their default (0) are absent."""
    if not isinstance(data, bytes):
        return {}
    options: dict[str, int | str] = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if tag & 7 == 2:
            if value > len(data) - at:
                raise DamageError("profile_options is cut off")
            if tag >> 3 in _OPTIONS:
                options[_OPTIONS[tag >> 3]] = _text(data[at : at + value])
            at += value
        elif tag & 7 != 0:
            break  # a field type that ProfileOptions did not have; the needed fields came before it
        elif tag >> 3 in _OPTIONS:
            options[_OPTIONS[tag >> 3]] = value
    return options
