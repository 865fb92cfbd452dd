"""Reads Kineto files into a `Profile`: the cycles of one process, chunk by chunk, joined on one clock."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import Profile, TorchFacts
from dxt_replay.profiler_merge.profiles.kineto.chunks import ARRAY, CHUNK_BYTES, EventChunks
from dxt_replay.profiler_merge.profiles.kineto.columns import NO_NUMBER, EventColumns, exact_ns
from dxt_replay.profiler_merge.profiles.kineto.events import decode_events
from dxt_replay.profiler_merge.profiles.kineto.names import host_and_pid
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.units import NS_PER_S

_LEAST_EPOCH_US = 1e14
"""Least dated time: microseconds since 1970 exceed it since 1973. Smaller times without a base have no date (April
2024)."""

_OUTSIDE_NS = 60 * NS_PER_S
"""Largest distance of an event from the profiler's window; events at time 0 exist (kineto issue 109)."""

_ANCHOR = re.compile(r"dxt_anchor#(.*)#", re.DOTALL)
_NUMBER_OF = re.compile(r"(\w+)=(-?\d{1,18})(?=,|$)")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_STEP_CATEGORIES = ("user_annotation", "Operator")
_MOST_BASE_NS = 1 << 62
"""Largest valid base, in the year 2116; with a larger one the file counts as undated."""
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK, _RANKS = (
    re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"' + name + rb'"\s*:\s*(\d{1,9})')
    for name in (b"rank", b"world_size")
)
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]*)"')
_NAME = re.compile(rb'"traceName"\s*:\s*("(?:[^"\\]|\\.)*")')


def read_profile(paths: Sequence[Path], *, chunk_bytes: int = CHUNK_BYTES) -> Profile:
    """The events of one process: of its only file, or of one file a cycle of the profiler's schedule.

    Keeps events with a duration; of Python functions only those that save or load a checkpoint. Events that are not
    valid JSON and cannot be repaired are left out, and a file that is cut off ends there, with a warning.
    Raises: ProfileError for a file that is missing, no profile or without events; MissingDependencyError.
    """
    columns = EventColumns()
    bases, warnings, around = [], [], []
    for path in paths:
        before = len(columns)
        chunks, dropped = EventChunks(path, chunk_bytes), 0
        for chunk in chunks:
            events, bad = decode_events(chunk, chunks.border)
            dropped += bad
            if bad and ARRAY.search(chunk):
                raise ProfileError(
                    f"{path} holds several profiles one after the other, each with a clock of its own: give each as a "
                    "file of its own"
                )
            columns.add(events)
        if chunks.damage is not None:
            if not chunks.head:
                raise ProfileError(
                    f"{path} is damaged or not a PyTorch profile: {chunks.damage}. Copy or record it again"
                )
            warnings.append(
                f"{path} is damaged after {len(columns) - before} events: {chunks.damage}. The events before are used, "
                "and how many are missing is not known. Copy or record it again"
            )
        if dropped:
            warnings.append(f"{path}: {dropped} event{'s' * (dropped > 1)} left out: not valid JSON")
        around.append(chunks.head + b" " + chunks.tail)
        bases.append((before, _base_ns(around[-1])))
    if not len(columns):
        raise ProfileError(f"{paths[0]} holds no events with a duration: profile at least one training step")
    return _profile(paths, columns, bases, around, warnings)


def _base_ns(text: bytes) -> int:
    found = _BASE.search(text)
    base_ns = int(found.group(1)) if found else 0
    return base_ns if base_ns < _MOST_BASE_NS else 0


def _profile(
    paths: Sequence[Path],
    columns: EventColumns,
    bases: Sequence[tuple[int, int]],
    around: Sequence[bytes],
    warnings: list[str],
) -> Profile:
    data = columns.arrays()
    ts = data.pop("ts")
    start_ns = exact_ns(ts)
    dated = True
    stops = [first for first, _ in bases[1:]] + [len(ts)]
    for (first, base_ns), stop in zip(bases, stops, strict=True):
        start_ns[first:stop] += base_ns
        # The median, because events at time 0 are dropped only below.
        dated &= first == stop or base_ns > 0 or float(np.median(ts[first:stop])) >= _LEAST_EPOCH_US
    if not dated and len(paths) > 1:
        raise ProfileError(f"{paths[0]} and the files beside it have no common clock: give one of them alone")
    data["start_ns"] = start_ns
    data["duration_ns"] = np.maximum(exact_ns(data.pop("dur")), 0)
    data = _inside_the_window(data, columns, warnings)
    if not len(data["line"]):
        raise ProfileError(f"{paths[0]} holds no events of the time that the profiler ran: profile a training step")
    order = np.lexsort((-data["duration_ns"], data["start_ns"], data["line"]))
    data = {name: values[order] for name, values in data.items()}
    names = tuple(_without_numbers(text) for text in columns.names)
    gpus = {line.pid for line in columns.profile_lines() if line.plane}
    if len(gpus) > 1:
        warnings.append(f"{paths[0]} is of one process, in which {len(gpus)} GPUs worked")
    return Profile(
        path=paths[0],
        hostnames=_hosts(paths, around, columns.process_ids()),
        epoch_start_ns=int(data["start_ns"].min()) if dated else None,
        epoch_source="ts" if dated else "",
        options={},
        planes=("CPU", "GPU"),
        lines=columns.profile_lines(),
        names=names,
        display_names=names,
        line=data["line"],
        name=data["name"],
        start_ns=data["start_ns"],
        duration_ns=data["duration_ns"],
        stats=_stats(data, columns),
        texts=(),
        skipped_fields={},
        torch=TorchFacts(
            category=data["category"],
            categories=tuple(columns.categories),
            correlation=data["correlation"],
            rank=_only(_RANK, around),
            ranks=_only(_RANKS, around),
            pids=columns.process_ids(),
            exports=tuple(sorted({name for text in around for name in _exports(text)})),
        ),
        warnings=tuple(warnings),
    )


def _inside_the_window(
    data: dict[str, np.ndarray], columns: EventColumns, warnings: list[str]
) -> dict[str, np.ndarray]:
    """Drop events far outside of the time that the profiler ran, if the file states that time."""
    start, end = data["start_ns"], data["start_ns"] + data["duration_ns"]
    traced = data["category"] == columns.categories.get("Trace", -1)
    if traced.any():
        keep = (start >= start[traced].min() - _OUTSIDE_NS) & (end <= end[traced].max() + _OUTSIDE_NS)
    else:
        keep = start > 0
    keep &= ~traced
    outside = int((~keep & ~traced).sum())
    if outside:
        warnings.append(f"{outside} events left out: they lie outside of the time that the profiler ran")
    return {name: values[keep] for name, values in data.items()}


def _stats(data: dict[str, np.ndarray], columns: EventColumns) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`step_num` of the marks of steps, and what the names of anchors say: i, rank, pid."""
    found: dict[str, dict[int, int]] = {"step_num": {}}
    for text, row in columns.names.items():
        if (step := _STEP.fullmatch(text)) is not None:
            found["step_num"][row] = int(step.group(1))
        elif (anchor := _ANCHOR.fullmatch(text)) is not None:
            for key, value in _NUMBER_OF.findall(anchor.group(1)):
                if key in ("i", "rank", "pid"):
                    found.setdefault(key, {})[row] = int(value)
    on_cpu = np.array([category in _STEP_CATEGORIES for category in columns.categories], bool)[data["category"]]
    stats = {}
    for key, value_of in found.items():
        table = np.full(len(columns.names), NO_NUMBER, np.int64)
        table[list(value_of)] = list(value_of.values())
        values = table[data["name"]]
        rows = np.flatnonzero((values != NO_NUMBER) & on_cpu)
        if len(rows):
            stats[key] = (rows, values[rows])
    return stats


def _without_numbers(name: str) -> str:
    """The name of an anchor or a step mark without the numbers that `_stats` took from it."""
    return name.partition("#")[0] if _ANCHOR.fullmatch(name) or _STEP.fullmatch(name) else name


def _only(number: re.Pattern[bytes], around: Sequence[bytes]) -> int | None:
    numbers = {int(found.group(1)) for text in around if (found := number.search(text)) is not None}
    return numbers.pop() if len(numbers) == 1 else None


def _hosts(paths: Sequence[Path], around: Sequence[bytes], pids: Collection[int]) -> tuple[str, ...]:
    """Hosts from the file, else from its name. worker_3 and rank_3 are names of workers, whose number is no process."""
    hosts = {found.group(1).decode("utf-8", "replace") for text in around if (found := _HOST.search(text))}
    if not hosts:
        hosts = {named[0] for path in paths if (named := host_and_pid(path)) is not None and named[1] in pids}
    return tuple(sorted(hosts))


def _exports(text: bytes) -> list[str]:
    """The file that the profiler wrote first, before it was compressed and moved."""
    found = _NAME.search(text)
    try:
        name: Any = json.loads(found.group(1)) if found else None
    except ValueError:
        return []
    return [name, f"{name}.tmp"] if isinstance(name, str) and name.startswith("/") else []
