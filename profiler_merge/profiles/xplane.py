"""Reads XPlane files into a `Profile`, without TensorFlow and protobuf: the compiled core `_xplane` reads the bytes.

Source of the format: tsl/profiler/protobuf/xplane.proto, unchanged in its field numbers from TensorFlow 2.3 to 2.21.
"""

from __future__ import annotations

import errno
import mmap
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dxt_replay.profiler_merge.profiles import _xplane
from dxt_replay.profiler_merge.profiles.event_table import (
    ACCELERATOR,
    STATS,
    TEXT_STATS,
    DamageError,
    Profile,
    ProfileLine,
)
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
MAX_BYTES = (1 << 31) - 1
"""Protobuf's limit for one message, so also for an unpacked profile."""

_MESSAGES = {
    "XSpace": "1 planes XPlane*, 2 errors bytes*, 3 warnings bytes*, 4 hostnames bytes*",
    "XPlane": "1 id int64, 2 name bytes, 3 lines XLine*, 4 event_metadata XEventEntry*, 5 stat_metadata XStatEntry*, "
    "6 stats XStat*",
    "XLine": "1 id int64, 2 name bytes, 3 timestamp_ns int64, 4 events XEvent*, 9 duration_ps int64, "
    "10 display_id int64, 11 display_name bytes",
    "XEvent": "1 metadata_id int64, 2 offset_ps int64, 3 duration_ps int64, 4 stats XStat*, 5 num_occurrences int64",
    "XStat": "1 metadata_id int64, 2 double_value double, 3 uint64_value uint64, 4 int64_value int64, "
    "5 str_value bytes, 6 bytes_value bytes, 7 ref_value uint64",
    "XEventEntry": "1 key int64, 2 value XEventMetadata",
    "XStatEntry": "1 key int64, 2 value XStatMetadata",
    "XEventMetadata": "1 id int64, 2 name bytes, 3 metadata bytes, 4 display_name bytes, 5 stats XStat*, "
    "6 child_id int64*",
    "XStatMetadata": "1 id int64, 2 name bytes, 3 description bytes",
}
FIELDS: Mapping[str, Mapping[int, tuple[str, str, bool]]] = {
    message: {
        int(number): (name, kind.rstrip("*"), kind.endswith("*"))
        for number, name, kind in (field.split() for field in fields.split(", "))
    }
    for message, fields in _MESSAGES.items()
}
"""Message -> field number -> (name, type, repeated). Maps are stored as their entry messages. Strings are `bytes`: one
file name that is not UTF-8 would otherwise make the whole profile unreadable."""

DOUBLE, UINT64, INT64, STR, BYTES, REF = 2, 3, 4, 5, 6, 7
"""Kinds of a stat's value: its field number in XStat. REF: the text is the name of another stat of the plane."""

UNTIMED = -(1 << 63)
"""`offset_ps` of an event with a number of occurrences instead of a time."""

MAX_STAT_ID = 1 << 20
"""Largest stat id: ids count up from 1, so a larger one is damage, and would need a large table."""

_WANTED = [key.encode() for key in STATS]
_COLUMNS = ("metadata_id", "offset_ps", "duration_ps", "stat_event", "stat_key", "stat_kind", "stat_value")
_ENVIRONMENT = b"Task Environment"
_EPOCH_RANGE = (1_000_000_000_000_000_000, 4_000_000_000_000_000_000)
"""2001 to 2096 in ns since 1970: separates an epoch from a counter (TF 2.4 numbers its elements from 0)."""
_MAX_RELATIVE_NS = 1 << 61
_OUTSIDE_NS = 60_000_000_000
"""Largest distance of an event from the profiler's window, for a stepped clock; beyond it the bytes are damaged."""


def _wires(message: str) -> np.ndarray:
    """uint8 per field number: bit w is set when the field may have wire type w."""
    wire = {"int64": 0, "uint64": 0, "double": 1}
    wires = np.zeros(max(FIELDS[message]) + 1, np.uint8)
    for number, (_, kind, repeated) in FIELDS[message].items():
        wires[number] = 1 << wire.get(kind, 2)
        if repeated and kind in wire:
            wires[number] |= 1 << 2  # packed
    return wires


_WIRES = {message: _wires(message) for message in FIELDS}


_Spans = tuple[np.ndarray, np.ndarray]
"""Begins and ends of messages."""


class _Plane(NamedTuple):
    """One XPlane. `lines`: (id, name, timestamp_ns). `event_names`: by id. `numbers`: its stats that are integers.

    `events`: columns of its events in file order, `line`, `metadata_id`, `offset_ps`, `duration_ps`, and of their kept
    stats, `stat_event`, `stat_key`, `stat_kind`, `stat_value`, as `_xplane.pyi` has them; None where nobody wants them.
    """

    name: bytes
    lines: list[tuple[int, bytes, int]]
    event_names: dict[int, bytes]
    numbers: dict[bytes, int]
    events: dict[str, np.ndarray] | None


# Files.


def read_profile(path: Path) -> Profile:
    """All events of one .xplane.pb or .xplane.pb.gz file. A plain file is memory mapped.

    Damage that turns one valid number into another (a flipped bit of a duration) leaves no trace in the format and
    cannot be seen; damage that looks like a field of a later version is counted in `skipped_fields`.

    Raises: ProfileError for a file that is missing, damaged, cut off or without events.
    """
    with _opened(path) as buffer:
        try:
            return _assembled(path, *_decoded(buffer))
        except DamageError as error:
            raise ProfileError(
                f"{path} is damaged, cut off or not an XPlane profile: {error}. Copy or record it again"
            ) from error


@contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    """The bytes of the profile, unpacked. Raises: ProfileError."""
    too_large = f"{path} unpacks to more than 2 GiB, which no XPlane profile can be"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError(f"{path} is not a file: give the .xplane.pb file itself")
        if status.st_size == 0:
            raise ProfileError(f"{path} is empty: the profiler did not finish writing it; record again")
        if status.st_size > MAX_BYTES:
            raise ProfileError(too_large)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                unpacked = bytearray()
                for block in unpacked_blocks(file, 1 << 20):
                    unpacked += block
                    if len(unpacked) > MAX_BYTES:
                        raise ProfileError(too_large)
                yield memoryview(unpacked)
                return
            try:
                # Left to the garbage collector: an error's traceback may still hold parts of the view.
                data: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                if error.errno != errno.ENODEV:  # FUSE without a page cache maps no file
                    raise
                data = path.read_bytes()
            yield memoryview(data)
    except ExpansionError as error:
        raise ProfileError(f"{path} is not a profile: {error}") from error
    except EOFError as error:
        raise ProfileError(f"{path} is a damaged gzip file ({error}): copy it again") from error
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


# The outer messages of a file, which are too few to be read by compiled code.


def _decoded(buffer: memoryview) -> tuple[list[_Plane], list[bytes], dict[str, int]]:
    """The planes, the host names, and message -> number of skipped fields: those whose number is beyond the message's,
    which a later version may have added; any other unknown field is damage. Raises: DamageError."""
    skipped: Counter[str] = Counter()

    def split(begin: int, end: int, message: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        *found, newer = _xplane.split(buffer, begin, end, _WIRES[message])
        skipped[message] += newer
        return found[0], found[1], found[2]

    def pick(spans: _Spans, message: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        values, starts, stops, counts, newer = _xplane.pick(buffer, *spans, _WIRES[message])
        skipped[message] += newer
        if len(values) and message != "XStat":  # a stat's value may be given anew
            check_single(message, counts.max(axis=0))
        return values, starts, stops, counts

    def named(spans: _Spans, entry: str, message: str) -> dict[int, bytes]:
        """id -> name, of a map's entries."""
        values, starts, stops, _ = pick(spans, entry)
        keys = values[:, 1].view(np.int64).tolist()
        _, starts, stops, _ = pick((starts[:, 2].copy(), stops[:, 2].copy()), message)
        return {key: bytes(buffer[a:b]) for key, a, b in zip(keys, starts[:, 2], stops[:, 2], strict=True)}

    planes, hostnames = [], []
    for number, begin, end in zip(*(column.tolist() for column in split(0, len(buffer), "XSpace")), strict=True):
        if number == 4:
            hostnames.append(bytes(buffer[begin:end]))
        if number != 1:
            continue
        numbers, begins, ends = split(begin, end, "XPlane")
        check_single("XPlane", np.bincount(numbers, minlength=len(_WIRES["XPlane"])))
        parts = {field: (begins[numbers == field], ends[numbers == field]) for field in FIELDS["XPlane"]}
        name = bytes(buffer[parts[2][0][-1] : parts[2][1][-1]]) if len(parts[2][0]) else b""
        values, starts, stops, counts = pick(parts[3], "XLine")
        ids, stamps = (values[:, field].view(np.int64).tolist() for field in (1, 3))
        texts = [bytes(buffer[a:b]) for a, b in zip(starts[:, 2], stops[:, 2], strict=True)]
        event_names = named(parts[4], "XEventEntry", "XEventMetadata")
        stat_names = named(parts[5], "XStatEntry", "XStatMetadata")
        classes = _stat_classes(stat_names)
        events = None
        if name.startswith(b"/host:") or ACCELERATOR.fullmatch(_text(name)) is not None:
            per_line = counts[:, 4]
            *columns, in_events, in_stats = _xplane.events(buffer, *parts[3], int(per_line.sum()), classes)
            skipped.update({"XEvent": in_events, "XStat": in_stats})
            events = dict(zip(_COLUMNS, columns, strict=True))
            events["line"] = np.repeat(np.arange(len(per_line), dtype=np.int32), per_line)
        stats: dict[bytes, int] = {}
        values, _, _, counts = pick(parts[6], "XStat")
        for value, present in zip(values, counts[:, 2:] > 0, strict=True):
            kind = 2 + int(np.flatnonzero(present)[-1]) if present.any() else 0
            key = int(value[1].astype(np.int64))
            if kind in (UINT64, INT64) and key in stat_names:
                stats[stat_names[key]] = int(value[kind])
        planes.append(_Plane(name, list(zip(ids, texts, stamps, strict=True)), event_names, stats, events))
    return planes, hostnames, dict(+skipped)


def check_single(message: str, counts: Sequence[int] | np.ndarray) -> None:
    """Raises: DamageError when a field that occurs once occurs more often; `counts` is by field number.

    Protobuf would use the last one. No profiler writes a field twice, but a length that a flipped bit enlarged swallows
    events and then meets the fields of later ones.
    """
    for number, (name, _, repeated) in FIELDS[message].items():
        if not repeated and counts[number] > 1:
            raise DamageError(f"{message} with more than one {name}")


def _stat_classes(stat_names: Mapping[int, bytes]) -> np.ndarray:
    """uint8 per stat id: 0 unknown, 1 known, 2 + row in `STATS`. Raises: DamageError for an id beyond MAX_STAT_ID."""
    largest = max(stat_names, default=0)
    if min(stat_names, default=0) < 0 or largest > MAX_STAT_ID:
        raise DamageError("a stat name has an id out of range")
    classes = np.zeros(largest + 1, np.uint8)
    for key, name in stat_names.items():
        classes[key] = _WANTED.index(name) + 2 if name in _WANTED else 1
    return classes


# Planes into one table: ids become rows, picoseconds epoch nanoseconds; checks detect damage.


def _assembled(path: Path, planes: list[_Plane], hostnames: list[bytes], skipped_fields: Mapping[str, int]) -> Profile:
    """The profile of the planes with decoded events; takes over (changes) their arrays.

    Raises: DamageError for bytes that no profiler writes; ProfileError for a profile without events.
    """
    for plane in planes:  # a length that a flipped bit enlarged takes in what follows as a name
        for text in (plane.name, *(text for _, text, _ in plane.lines)):
            if any(byte < 0x20 for byte in text):
                raise DamageError(f"a plane or thread with control characters in its name, {text[:40]!r}")
    warnings = _warnings(path, planes, hostnames)
    wanted = [(plane, plane.events) for plane in planes if plane.events is not None]
    names, lines, parts = list[str](), list[ProfileLine](), list[dict[str, np.ndarray]]()
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    first_event = 0
    for index, (plane, events) in enumerate(wanted):
        line, ids, start_ns, duration_ns = (events[key] for key in ("line", "metadata_id", "offset_ps", "duration_ps"))
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
        name = _rows_of(ids, name_ids, plane) + np.int32(len(names))
        names += [_text(plane.event_names[key]) for key in name_ids.tolist()]
        line = line + np.int32(len(lines))
        parts.append({"line": line, "name": name, "start_ns": start_ns, "duration_ns": duration_ns})
        for key, rows_and_values in _plane_stats(events, row_of_event):
            found.setdefault(key, []).append(rows_and_values)
        lines += [ProfileLine(id=key, name=_text(text), plane=index) for key, text, _ in plane.lines]
        first_event += len(line)
    if first_event == 0:
        raise ProfileError(f"{path} holds no host events: profile at least one training step, with host_tracer_level 2")
    columns: dict[str, Any] = {key: _joined([part.pop(key) for part in parts]) for key in list(parts[0])}
    stats = {key: (_joined([a for a, _ in each]), _joined([b for _, b in each])) for key, each in found.items()}
    _sort(columns, stats)
    # None before TF 2.17.
    environment = {
        key: number for plane in planes if plane.name == _ENVIRONMENT for key, number in plane.numbers.items()
    }
    start, stop = environment.get(b"profile_start_time", 0), environment.get(b"profile_stop_time", 0)
    base = _epoch(start, columns, stats, names)
    # An event far outside of the profiler's run is damage; decades outside if that is unknown.
    last = min(stop - start + _OUTSIDE_NS, _MAX_RELATIVE_NS) if 0 < start <= stop else _MAX_RELATIVE_NS
    first = -_OUTSIDE_NS if last < _MAX_RELATIVE_NS else -_MAX_RELATIVE_NS
    begins, durations = columns["start_ns"], columns["duration_ns"]
    if int(begins.min()) < first or int(begins.max()) > last or int(durations.max()) > last - first:
        raise DamageError("an event lies far outside the time that the profiler ran")
    if int((begins + durations).max()) > last:
        raise DamageError("an event ends long after the profiler")
    if base is not None:
        columns["start_ns"] += base
    return Profile(
        path=path,
        hostnames=tuple(map(_text, hostnames)),
        epoch_start_ns=base,
        planes=tuple(_text(plane.name) for plane, _ in wanted),
        lines=tuple(lines),
        names=tuple(names),
        stats=stats,
        skipped_fields=skipped_fields,
        warnings=warnings,
        **columns,
    )


def _warnings(path: Path, planes: list[_Plane], hostnames: list[bytes]) -> tuple[str, ...]:
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
    worked = sum(plane.events is not None and len(plane.events["line"]) > 0 for _, plane in found)
    if len(found) > 1:
        said.append(f"{path} is of one process with {len(found)} {found[0][0]}s, {worked} of which worked")
    return tuple(said)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _rows_of(ids: np.ndarray, known: np.ndarray, plane: _Plane) -> np.ndarray:
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


def _plane_stats(
    events: Mapping[str, np.ndarray], row_of_event: np.ndarray | None
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """(key, (event rows, values)) of one plane's stats. Whole doubles are numbers: TraceMe stores 1e5 so."""
    order = np.argsort(events["stat_key"], kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(events["stat_key"], minlength=len(STATS))))
    for index, key in enumerate(STATS):
        chosen = order[bounds[index] : bounds[index + 1]]
        kinds, values = events["stat_kind"][chosen], events["stat_value"][chosen].view(np.int64)
        rows = events["stat_event"][chosen].astype(np.int64)
        if key in TEXT_STATS:
            keep, values = (kinds == REF) | (kinds == STR) | (kinds == BYTES), np.zeros(len(rows), np.int64)
        else:
            keep = (kinds == INT64) | (kinds == UINT64)
            doubles = np.flatnonzero(kinds == DOUBLE)
            reals = values[doubles].view(np.float64)
            keep[doubles] = (np.abs(reals) < 2.0**53) & (reals == np.rint(reals))
            values[doubles] = np.where(keep[doubles], reals, 0).astype(np.int64)
        if row_of_event is not None:
            rows = row_of_event[rows]
            keep &= rows >= 0
        keep[:-1] &= rows[1:] != rows[:-1]  # if an event has a stat twice, the last one counts
        if keep.any():
            yield key, (rows, values) if keep.all() else (rows[keep], values[keep])


def _sort(columns: dict[str, np.ndarray], stats: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
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


def _epoch(
    start: int,
    columns: Mapping[str, np.ndarray],
    stats: Mapping[str, tuple[np.ndarray, np.ndarray]],
    names: Sequence[str],
) -> int | None:
    """CLOCK_REALTIME ns at the profile's start; None where nothing tells it.

    Before TF 2.17 the `element_id` of PrefetchProduce is the epoch 0.5 to 3 us before the event starts.
    """
    if start:
        if not _EPOCH_RANGE[0] <= start <= _EPOCH_RANGE[1]:
            raise DamageError(f"profile_start_time is {start}, which is not a time since 1970 in ns")
        return start
    rows, values = stats.get("element_id", (np.empty(0, np.int64),) * 2)
    produces = np.array([name == "PrefetchProduce" for name in names], bool)[columns["name"][rows]]
    epochs = produces & (values >= _EPOCH_RANGE[0]) & (values <= _EPOCH_RANGE[1])
    return int((values[epochs] - columns["start_ns"][rows[epochs]]).max()) if epochs.any() else None
