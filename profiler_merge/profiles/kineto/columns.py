"""Turns events into columns, chunk by chunk: numbers per event; each name and thread is kept once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, GPU_WORK, ProfileLine
from dxt_replay.profiler_merge.profiles.kineto.events import Event, correlation_of, label_of

PYTHON = "python_function"
NO_NUMBER = np.iinfo(np.int64).min

_ON_GPU = frozenset((*GPU_WORK, "gpu_user_annotation", "cuda_sync"))
_CORRELATED = frozenset((*GPU_WORK, *GPU_LAUNCH))
_SAVES = re.compile(r"torch/serialization\.py\(\d+\): (?:save|load)")
_NUMBER = re.compile(r"-?\d+")
_Key = TypeVar("_Key")
_TS, _DUR, _PID, _TID = (attrgetter(name) for name in ("ts", "dur", "pid", "tid"))


def exact_ns(microseconds: np.ndarray) -> np.ndarray:
    """int64 ns of float64 microseconds with three decimals; converts the whole part separately, so that no digit is
    lost."""
    whole = np.floor(microseconds)
    result: np.ndarray = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return result


class EventColumns:
    """The events so far. `names` and `categories`: text -> row, in order of appearance."""

    def __init__(self) -> None:
        self.names: _Rows[str] = _Rows()
        self.categories: _Rows[str] = _Rows()
        self._threads: _Rows[tuple[bool, int | str, int | str]] = _Rows()
        self._thread_names: dict[tuple[int | str, int | str], str] = {}
        self._parts: list[dict[str, np.ndarray]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, events: Sequence[Event]) -> None:
        """Keep the events that have a duration; note the names of threads."""
        kept = [event for event in events if event.ph == "X" and (event.cat != PYTHON or _SAVES.search(event.name))]
        if len(kept) < len(events):
            self._note_names(events)
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
            part["correlation"][row] = correlation_of(kept[row])
        self._parts.append(part)
        self._length += len(kept)

    def _lines(self, events: Sequence[Event], category: np.ndarray) -> np.ndarray:
        """int32 row of each event's thread or stream."""
        on_gpu = np.array([name in _ON_GPU for name in self.categories], bool)[category]
        try:
            pid, tid = (np.fromiter(map(get, events), np.int64, len(events)) for get in (_PID, _TID))
        except (ValueError, TypeError, OverflowError):
            # Files of 2021, and lines that are neither a thread nor a stream, have names instead of numbers.
            threads = [
                self._threads[gpu, _plain(event.pid), _plain(event.tid)]
                for gpu, event in zip(on_gpu.tolist(), events, strict=True)
            ]
            return np.array(threads, np.int32)
        # Consecutive events mostly share a thread, so the row is looked up once per run of them.
        changes = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1]) | (on_gpu[1:] != on_gpu[:-1])
        first = np.append(0, np.flatnonzero(changes) + 1)
        keys = zip(on_gpu[first].tolist(), pid[first].tolist(), tid[first].tolist(), strict=True)
        rows = np.array([self._threads[key] for key in keys], np.int32)
        return np.repeat(rows, np.diff(np.append(first, len(pid))))

    def _note_names(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.ph == "M" and event.name == "thread_name":
                self._thread_names[_plain(event.pid), _plain(event.tid)] = label_of(event)

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns of all events, in file order; this object is empty afterwards."""
        joined = {name: np.concatenate([part.pop(name) for part in self._parts]) for name in list(self._parts[0])}
        self._parts.clear()
        return joined

    def profile_lines(self) -> tuple[ProfileLine, ...]:
        """A line per thread of a process and per stream of a GPU."""
        return tuple(
            ProfileLine(
                id=_number(tid),
                name=self._thread_names.get((pid, tid)) or ("Stream" if on_gpu else "thread") + f"/{_number(tid)}",
                plane=int(on_gpu),
                pid=_number(pid),
            )
            for on_gpu, pid, tid in self._threads
        )

    def process_ids(self) -> frozenset[int]:
        """The processes whose threads have events."""
        return frozenset(_number(pid) for on_gpu, pid, _ in self._threads if not on_gpu and _number(pid) > 0)


class _Rows(dict[_Key, int]):
    """Key -> row, in order of appearance: a new key gets the next row."""

    def __missing__(self, key: _Key) -> int:
        row = self[key] = len(self)
        return row


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
    value = int(found.group()) if found and len(found.group()) < 19 else 0
    return value
