"""Events to columns, chunk by chunk: what is kept of each is numbers, and each name and thread is kept once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from profiler_merge.profiles.event_table import GPU_LAUNCH, GPU_WORK, ProfileLine
from profiler_merge.profiles.kineto.events import Event, correlation_of, label_of

PYTHON = "python_function"
NO_NUMBER = np.iinfo(np.int64).min

_ON_GPU = frozenset((*GPU_WORK, "gpu_user_annotation", "cuda_sync"))
_CORRELATED = frozenset((*GPU_WORK, *GPU_LAUNCH))
_SAVES = re.compile(r"torch/serialization\.py\(\d+\): (?:save|load)")
_NUMBER = re.compile(r"-?\d+")
_Key = TypeVar("_Key")


def exact_ns(microseconds: np.ndarray) -> np.ndarray:
    """int64 ns of float64 microseconds with three decimals: the whole part apart, so that no digit is lost."""
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
        spans = [event for event in events if event.ph == "X"]
        if len(spans) < len(events):
            self._note_names(events)
        kept = [event for event in spans if event.cat != PYTHON or _SAVES.search(event.name)]
        if not kept:
            return
        names, categories, threads = self.names, self.categories, self._threads
        part: dict[str, np.ndarray] = {
            "ts": np.array([event.ts for event in kept], np.float64),
            "dur": np.array([event.dur for event in kept], np.float64),
            "name": np.array([names[event.name] for event in kept], np.int32),
            "category": np.array([categories[event.cat] for event in kept], np.int16),
            "line": np.array([threads[event.cat in _ON_GPU, event.pid, event.tid] for event in kept], np.int32),
            "correlation": np.zeros(len(kept), np.int64),
        }
        correlated = np.array([category in _CORRELATED for category in categories], bool)[part["category"]]
        for row in np.flatnonzero(correlated).tolist():
            part["correlation"][row] = correlation_of(kept[row])
        self._parts.append(part)
        self._length += len(kept)

    def _note_names(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.ph == "M" and event.name == "thread_name":
                self._thread_names[event.pid, event.tid] = label_of(event)

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns of all events, in the order of the files; afterwards this holds none."""
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
    """Key -> row, in order of appearance: a key that is looked up first gets the next row."""

    def __missing__(self, key: _Key) -> int:
        row = self[key] = len(self)
        return row


def _number(name: int | str) -> int:
    """The number in the name of a thread or stream ("stream 7"), 0 where there is none."""
    if isinstance(name, int):
        return name if abs(name) < 1 << 63 else 0
    found = _NUMBER.search(name)
    value = int(found.group()) if found and len(found.group()) < 19 else 0
    return value
