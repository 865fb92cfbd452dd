"""Reads TensorFlow's trace.json.gz into a `Profile`: the events of an XPlane file, cut at a million, without a date.

Names, threads and arguments are those of XPlane, numbers as texts. The last element of `traceEvents` is `{}`.
TensorFlow 2.2 writes nothing else; from 2.3 on the .xplane.pb beside it says more.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import NUMBER_STATS, TEXT_STATS, Profile, ProfileLine
from dxt_replay.profiler_merge.profiles.kineto.chunks import EventChunks
from dxt_replay.profiler_merge.profiles.kineto.columns import exact_ns
from dxt_replay.profiler_merge.profiles.kineto.events import Event, decode_events
from dxt_replay.traces.errors import ProfileError

_ROUND = 100_000
"""The viewer's limit (1,000,000, or TF_PROFILER_TRACE_VIEWER_MAX_EVENTS) is a round number."""
_SAGEMAKER = re.compile(r"\d+-(.+)_(\d{16})_\d{16}\.metadata")
"""Process, host, and the wall clock in us at the start and stop of the profile (smdebug writes an empty file)."""
_LEVELS_UP = 5


class _Columns:
    """The events of a trace as lists, with the names of its threads and processes."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.lines: dict[tuple[int, int], int] = {}
        self.planes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.rows: list[tuple[int, int, float, float]] = []
        self.stats: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.texts: dict[str, int] = {}

    def add(self, event: Event) -> None:
        """Keep an event with a duration; note a name. Raises: ValueError, RecursionError if it is not JSON."""
        place = (_number(event.pid), _number(event.tid))
        found = _arguments(event) if event.ph in ("M", "X") else {}
        if event.ph == "M":
            name = found.get("name")
            if event.name == "process_name":
                self.planes[place[0]] = str(name)
            elif event.name == "thread_name":
                self.threads[place] = str(name)
        elif event.ph == "X":
            row = len(self.rows)
            line = self.lines.setdefault(place, len(self.lines))
            self.rows.append((line, self.names.setdefault(event.name, len(self.names)), event.ts, event.dur))
            if found:
                self._add_stats(row, found)

    def _add_stats(self, row: int, found: dict[str, object]) -> None:
        if "step_num" not in found and "step_name" in found and "group_id" in found:
            # The root event of a step, before TensorFlow 2.3 had marks.
            found["step_num"] = found["group_id"]
        for key, value in found.items():
            if key in NUMBER_STATS and (number := _integer(value)) is not None:
                self.stats[key].append((row, number))
            elif key in TEXT_STATS:
                self.stats[key].append((row, self.texts.setdefault(str(value), len(self.texts))))


def read_profile(path: Path) -> Profile:
    """All events with a duration; a file that is cut off ends there, with a warning.

    If SageMaker's debugger wrote a file beside it, the profile has a date, to some milliseconds.
    Raises: ProfileError for a file that is missing, damaged or without events.
    """
    columns, dropped = _Columns(), 0
    chunks = EventChunks(path, first_members=(b'"ph"', b'"pid"'))
    for chunk in chunks:
        events, bad = decode_events(chunk, chunks.border)
        dropped += bad
        for event in events:
            try:
                columns.add(event)
            except (ValueError, RecursionError):
                dropped += 1
    if chunks.damage is not None and not columns.rows:
        raise ProfileError(f"{path} is damaged: {chunks.damage}. Copy it again")
    if not columns.rows:
        raise ProfileError(f"{path} holds no events with a duration: profile at least one training step")
    warnings = []
    if chunks.damage is not None:
        warnings.append(
            f"{path.name} is damaged after {len(columns.rows)} events: {chunks.damage}. The events before are used, "
            "and how many are missing is not known. Copy or record it again"
        )
    if dropped:
        warnings.append(f"{path.name}: {dropped} event{'s' * (dropped > 1)} left out: not valid JSON")
    if len(columns.rows) >= _ROUND and len(columns.rows) % _ROUND == 0:
        warnings.append(
            f"{path.name} holds {len(columns.rows)} events: its writer cuts there, and later steps are lost"
        )
    return _profile(path, columns, warnings)


def _profile(path: Path, columns: _Columns, warnings: Sequence[str]) -> Profile:
    line, name = (np.array([row[place] for row in columns.rows], dtype=np.int32) for place in (0, 1))
    start_ns, duration_ns = (exact_ns(np.array([row[place] for row in columns.rows])) for place in (2, 3))
    order = np.lexsort((-duration_ns, start_ns, line))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    pids = sorted({pid for pid, _ in columns.lines})
    zero_ns = _sagemaker_start(path)
    return Profile(
        path=path,
        hostnames=(),
        epoch_start_ns=zero_ns,
        epoch_source="" if zero_ns is None else "metadata",
        options={},
        planes=tuple(columns.planes.get(pid, str(pid)) for pid in pids),
        lines=tuple(
            ProfileLine(id=tid, name=columns.threads.get((pid, tid), f"python/{tid}"), plane=pids.index(pid))
            for pid, tid in columns.lines
        ),
        names=tuple(columns.names),
        display_names=tuple(columns.names),
        line=line[order],
        name=name[order],
        start_ns=start_ns[order] + (zero_ns or 0),
        duration_ns=np.maximum(duration_ns[order], 0),
        stats={key: _stat(place, found) for key, found in columns.stats.items()},
        texts=tuple(columns.texts),
        skipped_fields={},
        warnings=tuple(warnings),
    )


def _stat(place: np.ndarray, found: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    rows, values = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
    order = np.argsort(place[rows])
    return place[rows][order], values[order]


def _sagemaker_start(path: Path) -> int | None:
    """Start of the profile, from the only file of SageMaker's debugger in the folders above; None without one."""
    for folder in path.resolve().parents[:_LEVELS_UP]:
        found = [match for file in folder.glob("*.metadata") if (match := _SAGEMAKER.fullmatch(file.name))]
        if found:
            return int(found[0][2]) * 1000 if len(found) == 1 else None
    return None


def _arguments(event: Event) -> dict[str, object]:
    found = json.loads(bytes(event.args)) if event.args else {}
    return found if isinstance(found, dict) else {}


def _number(value: int | str) -> int:
    found = _integer(value)
    return 0 if found is None else found


def _integer(value: object) -> int | None:
    """The number as 64 bits: ids from 2**63 wrap, as they do in XPlane; None if it is no number."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
