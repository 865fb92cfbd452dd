"""PyTorch's profiles (Kineto, Chrome's JSON format) as the event table: the cycles of one process, on one clock.

Files are read in chunks that end between two events, so that only one chunk is in memory at a time, and so that a
damaged event spoils no other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, GPU_WORK, Profile, ProfileLine, TorchFacts
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks
from dxt_replay.traces.units import NS_PER_S

CHUNK_BYTES = 512 << 10
"""Chunk size: the decoded events of a chunk fit into the processor's cache; larger chunks are a quarter slower."""
_PACKED_SHARE = 64
"""Block size for compressed files, as a part of a chunk: they unpack to 13 to 30 times their size."""
_MOST_HEAD_BYTES = 256 << 20
"""Most bytes before the events of a profile, which hold a log line per warning."""
_LEAST_TAIL_BYTES = 4 << 10

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[(?=\s*\{)')
"""Begin of the events; in 2020 they were the whole file."""
_FIRST_MEMBERS = (b'"ph"', b'"name"')
"""Members with which PyTorch begins an event."""
_FIRST_MEMBER = re.compile(rb'\s*(?:\{\s*\}\s*,\s*)*\{\s*("\w+")\s*:')
_END = re.compile(rb"\}\s*,?\s*\]\s*(?=[,}])")
_END_OF_ARRAY = re.compile(rb"\}\s*\]\s*\Z")
_NONE = re.compile(rb"\s*\]\s*[,}]")

_LEAST_EPOCH_US = 1e14
"""Least dated time: microseconds since 1970 exceed it since 1973. Smaller times without a base have no date (April
2024)."""
_OUTSIDE_NS = 60 * NS_PER_S
"""Largest distance of an event from the profiler's window; events at time 0 exist (kineto issue 109)."""
_MOST_BASE_NS = 1 << 62
"""Largest valid base, in the year 2116; with a larger one the file counts as undated."""

_MOST_US = 4e15
"""Largest time, about as large a base: both together are below 2**63 ns."""

_FILE = re.compile(r"(?P<host>.+)_(?P<pid>\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
_ANCHOR = re.compile(r"dxt_anchor#(.*)#", re.DOTALL)
_NUMBER_OF = re.compile(r"(i|rank|pid)=(-?\d{1,18})(?=,|$)")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_STEP_CATEGORIES = ("user_annotation", "Operator")
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK, _RANKS = (
    re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"' + name + rb'"\s*:\s*(\d{1,9})')
    for name in (b"rank", b"world_size")
)
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]*)"')
_NAME = re.compile(rb'"traceName"\s*:\s*("(?:[^"\\]|\\.)*")')

_PYTHON = "python_function"
_SAVES = re.compile(r"torch/serialization\.py\(\d+\): (?:save|load)")
_ON_GPU = frozenset((*GPU_WORK, "gpu_user_annotation", "cuda_sync"))
_CORRELATED = frozenset((*GPU_WORK, *GPU_LAUNCH))
_NUMBER = re.compile(r"-?\d+")
_NO_NUMBER = np.iinfo(np.int64).min
_TS, _DUR, _PID, _TID = (attrgetter(name) for name in ("ts", "dur", "pid", "tid"))
_Key = TypeVar("_Key")


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
    """`correlation`: the number that a GPU event shares with the call that launched it. `name`, `labels`: of a metadata
    event, the name of a process or thread."""

    correlation: Any = 0
    name: Any = ""
    labels: Any = ""


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_ARGUMENTS = msgspec.json.Decoder(_Arguments)


def read_profile(paths: Sequence[Path], *, chunk_bytes: int = CHUNK_BYTES) -> Profile:
    """The events of one process: of its only file, or of one file a cycle of the profiler's schedule.

    Keeps events with a duration; of Python functions only those that save or load a checkpoint. Events that are not
    valid JSON and cannot be repaired are left out, and a file that is cut off ends there, with a warning.
    Raises: ProfileError for a file that is missing, no profile or without events; MissingDependencyError.
    """
    events = _Columns()
    firsts, warnings, around = [], [], []
    for path in paths:
        firsts.append(len(events))
        chunks, dropped = EventChunks(path, chunk_bytes), 0
        for chunk in chunks:
            found, bad = _decoded(chunk, chunks.border)
            dropped += bad
            if bad and _ARRAY.search(chunk):
                raise ProfileError(
                    f"{path} holds several profiles one after the other, each with a clock of its own: give each as a "
                    "file of its own"
                )
            events.add(found)
        if chunks.damage is not None:
            if not chunks.head:
                raise ProfileError(
                    f"{path} is damaged or not a PyTorch profile: {chunks.damage}. Copy or record it again"
                )
            warnings.append(
                f"{path} is damaged after {len(events) - firsts[-1]} events: {chunks.damage}. The events before are "
                "used, and how many are missing is not known. Copy or record it again"
            )
        if dropped:
            warnings.append(f"{path}: {dropped} event{'s' * (dropped > 1)} left out: not valid JSON")
        around.append(chunks.head + b" " + chunks.tail)
    if not len(events):
        raise ProfileError(f"{paths[0]} holds no events with a duration: profile at least one training step")
    return _profile(paths, events, firsts, around, warnings)


def cycles_of(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each process, sorted by name, which contains the time of export."""
    groups: dict[object, list[Path]] = {}
    for path in paths:
        named = host_and_pid(path)
        groups.setdefault((path.parent, named) if named else path, []).append(path)
    return [tuple(sorted(group)) for group in groups.values()]


def host_and_pid(path: Path) -> tuple[str, int] | None:
    """Host and pid that `torch.profiler.tensorboard_trace_handler` put into the file name; None for any other name.

    A user's own `worker_name` may look the same, so only a process id of the file's events counts as a pid.
    """
    found = _FILE.fullmatch(path.name)
    return (found["host"], int(found["pid"])) if found else None


# The text of a file.


@dataclass
class EventChunks:
    """The events of a file, chunk by chunk; `head`, `tail` and `damage` are complete once all chunks were taken.

    `head`, `tail`: the file's text before and after its events. `border`: what lies between two of them.
    `damage`: what is wrong with the file's end, None for a whole file. A chunk holds whole events, with commas and
    white space between them but none at its ends.
    """

    path: Path
    chunk_bytes: int = CHUNK_BYTES
    head: bytes = b""
    tail: bytes = b""
    damage: str | None = None
    border: re.Pattern[bytes] = re.compile(rb"(?!)")

    def __iter__(self) -> Iterator[bytes]:
        buffer = bytearray()
        parts = self._unpacked()
        for part in parts:
            buffer += part
            if (array := _ARRAY.search(buffer)) and (first := _FIRST_MEMBER.match(buffer, array.end())):
                break
            if len(buffer) > _MOST_HEAD_BYTES:
                array = None
                break
        else:
            array = _ARRAY.search(buffer)
            if array and _NONE.match(buffer, array.end()):
                self.head, self.tail = bytes(buffer[: array.end()]), bytes(buffer[array.end() :])
                return
        if array is None or first is None:
            self.damage = self.damage or ("it ends before its first event" if array else "it has no traceEvents")
            return
        self.head = bytes(buffer[: array.end()])
        # A tool that rewrote the file may begin an event with another member.
        members = b"|".join({*_FIRST_MEMBERS, first.group(1)})
        self.border = re.compile(rb"\}\s*,\s*(?=\{\s*(?:" + members + rb")\s*:)")
        del buffer[: array.end()]
        for part in parts:
            buffer += part
            if len(buffer) >= self.chunk_bytes and (end := self._last_border(buffer)):
                yield bytes(memoryview(buffer)[:end])
                del buffer[: buffer.index(b",", end) + 1]
        rest = bytes(buffer)
        borders = [match.start() for match in self.border.finditer(rest)]
        end_of_events = _END_OF_ARRAY if self.head.lstrip().startswith(b"[") else _END
        found = end_of_events.search(rest, borders[-1] if borders else 0)
        if found is not None:
            self.tail = rest[found.end() :]
            yield rest[: found.start() + 1]
            return
        self.damage = self.damage or "it is cut off"
        if borders:
            yield rest[: borders[-1] + 1]

    def _unpacked(self) -> Iterator[bytes]:
        """The bytes of the file; the readable part of a cut gzip file, whose damage is noted."""
        try:
            with self.path.open("rb") as file:
                yield from unpacked_blocks(file, self.chunk_bytes, max(1, self.chunk_bytes // _PACKED_SHARE))
        except EOFError as error:
            self.damage = str(error)
        except ExpansionError as error:
            raise ProfileError(f"{self.path} is not a profile: {error}") from error
        except OSError as error:
            raise ProfileError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _last_border(self, buffer: bytearray) -> int:
        """End of the last event that another one follows; 0 if there is none."""
        tail = _LEAST_TAIL_BYTES
        while True:
            begin = max(len(buffer) - tail, 0)
            found = [match.start() for match in self.border.finditer(buffer, begin)]
            if found or not begin:
                return found[-1] + 1 if found else 0
            tail *= 8


def _decoded(chunk: bytes, border: re.Pattern[bytes]) -> tuple[list[Event], int]:
    """The events of a chunk, and the number of events that no parser can read.

    An event with NaN, control characters or bytes that are not UTF-8 is repaired.
    """
    try:
        return _EVENTS.decode(b"".join((b"[", chunk, b"]"))), 0
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    events, bad, begin = list[Event](), 0, 0
    for end, following in [*(match.span() for match in border.finditer(chunk)), (len(chunk), 0)]:
        piece = chunk[begin : end + 1]
        begin = following
        try:
            events.append(_EVENT.decode(piece))
            continue
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            members: Any = json.loads(piece.decode("utf-8", "replace"), strict=False)
            args = members.pop("args", None)
            event = msgspec.convert(members, Event)
        except (ValueError, RecursionError, TypeError, AttributeError, msgspec.MsgspecError):
            bad += 1
            continue
        if not (math.isfinite(event.ts) and math.isfinite(event.dur)):
            bad += 1
            continue
        if isinstance(args, dict) and isinstance(args.get("correlation"), int):
            event.args = msgspec.Raw(b'{"correlation":%d}' % args["correlation"])
        events.append(event)
    return events, bad


def _arguments(event: Event) -> _Arguments:
    try:
        return _ARGUMENTS.decode(event.args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Arguments()


# Events into columns.


class _Rows(dict[_Key, int]):
    """Key -> row, in order of appearance: a new key gets the next row."""

    def __missing__(self, key: _Key) -> int:
        row = self[key] = len(self)
        return row


class _Columns:
    """The events so far: numbers per event; each name, category and thread (on a GPU, process, thread) is kept once."""

    def __init__(self) -> None:
        self.names, self.categories = _Rows[str](), _Rows[str]()
        self.threads = _Rows[tuple[bool, int | str, int | str]]()
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self.parts: list[dict[str, np.ndarray]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, events: Sequence[Event]) -> None:
        """Keep the events that have a duration; note the names of threads."""
        kept = [event for event in events if event.ph == "X" and (event.cat != _PYTHON or _SAVES.search(event.name))]
        if len(kept) < len(events):
            for event in events:
                if event.ph == "M" and event.name == "thread_name":
                    said = _arguments(event)
                    label = said.name or said.labels
                    self.thread_names[_plain(event.pid), _plain(event.tid)] = label if isinstance(label, str) else ""
        if not kept:
            return
        names, categories, count = self.names, self.categories, len(kept)
        part: dict[str, np.ndarray] = {
            "ts": np.fromiter(map(_TS, kept), np.float64, count),
            "dur": np.fromiter(map(_DUR, kept), np.float64, count),
            "name": np.fromiter([names[event.name] for event in kept], np.int32, count),
            "category": np.fromiter([categories[event.cat] for event in kept], np.int16, count),
            "correlation": np.zeros(count, np.int64),
        }
        part["line"] = self._lines(kept, part["category"])
        correlated = np.array([category in _CORRELATED for category in categories], bool)[part["category"]]
        for row in np.flatnonzero(correlated).tolist():
            number = _arguments(kept[row]).correlation
            if type(number) is int and -(1 << 63) <= number < 1 << 63:
                part["correlation"][row] = number
        self.parts.append(part)
        self._length += len(kept)

    def _lines(self, events: Sequence[Event], category: np.ndarray) -> np.ndarray:
        """int32 row of each event's thread or stream."""
        on_gpu = np.array([name in _ON_GPU for name in self.categories], bool)[category]
        try:
            pid, tid = (np.fromiter(map(get, events), np.int64, len(events)) for get in (_PID, _TID))
        except (ValueError, TypeError, OverflowError):
            # Files of 2021, and lines that are neither a thread nor a stream, have names instead of numbers.
            threads = [
                self.threads[gpu, _plain(event.pid), _plain(event.tid)]
                for gpu, event in zip(on_gpu.tolist(), events, strict=True)
            ]
            return np.array(threads, np.int32)
        # Consecutive events mostly share a thread, so the row is looked up once per run of them.
        changes = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1]) | (on_gpu[1:] != on_gpu[:-1])
        first = np.append(0, np.flatnonzero(changes) + 1)
        keys = zip(on_gpu[first].tolist(), pid[first].tolist(), tid[first].tolist(), strict=True)
        rows = np.array([self.threads[key] for key in keys], np.int32)
        return np.repeat(rows, np.diff(np.append(first, len(pid))))


def _plain(name: int | str) -> int | str:
    """A number written as text becomes that number, as NumPy reads it: in files of 2021 both name one thread."""
    try:
        return int(name)
    except ValueError:
        return name


def _number(name: int | str) -> int:
    """The number in the name of a thread or stream ("stream 7"), 0 if there is none."""
    if isinstance(name, int):
        return name if abs(name) < 1 << 63 else 0
    found = _NUMBER.search(name)
    return int(found.group()) if found and len(found.group()) < 19 else 0


def exact_ns(microseconds: np.ndarray) -> np.ndarray:
    """int64 ns of float64 microseconds with three decimals; converts the whole part separately, so that no digit is
    lost."""
    microseconds = np.clip(microseconds, -_MOST_US, _MOST_US)
    whole = np.floor(microseconds)
    result: np.ndarray = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return result


def _profile(
    paths: Sequence[Path], events: _Columns, firsts: Sequence[int], around: Sequence[bytes], warnings: list[str]
) -> Profile:
    """`firsts`: the first event of each file. `around`: the text around its events."""
    data = {name: np.concatenate([part.pop(name) for part in events.parts]) for name in list(events.parts[0])}
    ts = data.pop("ts")
    start_ns, dated = exact_ns(ts), True
    for first, stop, text in zip(firsts, [*firsts[1:], len(ts)], around, strict=True):
        found = _BASE.search(text)
        base_ns = int(found.group(1)) if found else 0
        base_ns = base_ns if base_ns < _MOST_BASE_NS else 0
        start_ns[first:stop] += base_ns
        # The median, because events at time 0 are dropped only below.
        dated &= first == stop or base_ns > 0 or float(np.median(ts[first:stop])) >= _LEAST_EPOCH_US
    if not dated and len(paths) > 1:
        raise ProfileError(f"{paths[0]} and the files beside it have no common clock: give one of them alone")
    data |= {"start_ns": start_ns, "duration_ns": np.maximum(exact_ns(data.pop("dur")), 0)}
    # Events far outside of the time that the profiler ran are dropped, if the file states that time.
    end_ns, traced = start_ns + data["duration_ns"], data["category"] == events.categories.get("Trace", -1)
    keep = start_ns > 0
    if traced.any():
        keep = start_ns >= start_ns[traced].min() - _OUTSIDE_NS
        keep &= end_ns <= end_ns[traced].max() + _OUTSIDE_NS
    if outside := int((~keep & ~traced).sum()):
        warnings.append(f"{outside} events left out: they lie outside of the time that the profiler ran")
    kept = np.flatnonzero(keep & ~traced)
    if not len(kept):
        raise ProfileError(f"{paths[0]} holds no events of the time that the profiler ran: profile a training step")
    order = kept[np.lexsort((-data["duration_ns"][kept], start_ns[kept], data["line"][kept]))]
    data = {name: values[order] for name, values in data.items()}
    lines = tuple(
        ProfileLine(
            id=_number(tid),
            name=events.thread_names.get((pid, tid)) or ("Stream" if on_gpu else "thread") + f"/{_number(tid)}",
            plane=int(on_gpu),
            pid=_number(pid),
        )
        for on_gpu, pid, tid in events.threads
    )
    gpus = {line.pid for line in lines if line.plane}
    if len(gpus) > 1:
        warnings.append(f"{paths[0]} is of one process, in which {len(gpus)} GPUs worked")
    pids = frozenset(line.pid for line in lines if not line.plane and line.pid > 0)
    hosts = {found.group(1).decode("utf-8", "replace") for text in around if (found := _HOST.search(text))}
    if not hosts:  # worker_3 and rank_3 are names of workers, whose number is no process
        hosts = {named[0] for path in paths if (named := host_and_pid(path)) is not None and named[1] in pids}
    names, stats = _names_and_stats(data, events)
    return Profile(
        path=paths[0],
        hostnames=tuple(sorted(hosts)),
        epoch_start_ns=int(data["start_ns"].min()) if dated else None,
        planes=("CPU", "GPU"),
        lines=lines,
        names=names,
        line=data["line"],
        name=data["name"],
        start_ns=data["start_ns"],
        duration_ns=data["duration_ns"],
        stats=stats,
        torch=TorchFacts(
            category=data["category"],
            categories=tuple(events.categories),
            correlation=data["correlation"],
            rank=_only(_RANK, around),
            ranks=_only(_RANKS, around),
            pids=pids,
            exports=tuple(sorted({name for text in around for name in _exports(text)})),
        ),
        warnings=tuple(warnings),
    )


def _names_and_stats(
    data: dict[str, np.ndarray], events: _Columns
) -> tuple[tuple[str, ...], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The names without the numbers of steps and anchors, and these numbers: `step_num`, i, rank, pid."""
    names, found = list(events.names), dict[str, dict[int, int]]()
    for row, text in enumerate(names):
        numbers = []
        if (step := _STEP.fullmatch(text)) is not None:
            numbers = [("step_num", step.group(1))]
        elif (anchor := _ANCHOR.fullmatch(text)) is not None:
            numbers = _NUMBER_OF.findall(anchor.group(1))
        if step or anchor:
            names[row] = text.partition("#")[0]
        for key, value in numbers:
            found.setdefault(key, {})[row] = int(value)
    on_cpu = np.array([category in _STEP_CATEGORIES for category in events.categories], bool)[data["category"]]
    stats = {}
    for key, value_of in found.items():
        table = np.full(len(names), _NO_NUMBER, np.int64)
        table[list(value_of)] = list(value_of.values())
        values = table[data["name"]]
        rows = np.flatnonzero((values != _NO_NUMBER) & on_cpu)
        if len(rows):
            stats[key] = (rows, values[rows])
    return tuple(names), stats


def _only(number: re.Pattern[bytes], around: Sequence[bytes]) -> int | None:
    numbers = {int(found.group(1)) for text in around if (found := number.search(text)) is not None}
    return numbers.pop() if len(numbers) == 1 else None


def _exports(text: bytes) -> list[str]:
    """The file that the profiler wrote first, before it was compressed and moved."""
    found = _NAME.search(text)
    try:
        name: Any = json.loads(found.group(1)) if found else None
    except ValueError:
        return []
    return [name, f"{name}.tmp"] if isinstance(name, str) and name.startswith("/") else []
