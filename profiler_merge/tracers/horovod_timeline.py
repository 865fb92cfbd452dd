"""Horovod's timeline (HOROVOD_TIMELINE): when each rank was ready for each collective, and when that ended.

The coordinator writes one event per line, with each tensor as a process: `NEGOTIATE_<OP>` with an instant for each rank
that became ready, then the operation with its parts inside. An `E` ends the latest event of its tensor.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.profiles.more_spans import MoreSpans, ProcessIds
from dxt_replay.profiler_merge.profiles.span_parts import COLLECTIVE, NOT_FETCHED, SpanColumns
from dxt_replay.profiler_merge.tracers.text_lines import Damage, text_lines
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import NO_STEP, UNION_THREAD

_START = "start_time_since_epoch_in_micros"
_OPERATION = re.compile(r"(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER|ADASUM|JOIN|BARRIER)\w*", re.IGNORECASE)
_MOST_US = 1 << 52
"""Microseconds since 1970 until the year 2112."""
_MOST_RANKS = 1 << 20
_NEGOTIATION = "NEGOTIATE_"


@dataclass(slots=True)
class _Tensor:
    """State of one tensor. `open`: names and starts of unfinished events; `ready`: rank -> us."""

    open: list[tuple[str, int]] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    begin_us: int | None = None


@dataclass(slots=True)
class _Timeline:
    """Finished collectives: first instant, end, and rank and time of each rank that became ready."""

    start_us: int | None = None
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    arrivals: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tensors: dict[int, _Tensor] = field(default_factory=lambda: defaultdict(_Tensor))

    def take(self, event: dict[str, Any]) -> None:
        """Note one event."""
        kind, tensor = event.get("ph"), self.tensors[int(event.get("pid", 0))]
        if kind == "M":
            arguments = event.get("args")
            if isinstance(arguments, dict) and 0 < int(arguments.get(_START, 0)) < _MOST_US:
                self.start_us = int(arguments[_START])
            return
        name, time_us = str(event.get("name", "")), int(event.get("ts", 0))
        if not 0 <= time_us < _MOST_US:
            raise ValueError(time_us)
        if kind == "B":
            tensor.open.append((name, time_us))
            if tensor.begin_us is None:
                tensor.begin_us = time_us
        elif kind == "X" and name.isdecimal() and int(name) < _MOST_RANKS:
            tensor.ready[int(name)] = time_us
        elif kind == "E" and tensor.open:
            ended, _ = tensor.open.pop()
            if not tensor.open and not ended.startswith(_NEGOTIATION):
                self._finish(tensor, ended, time_us)

    def _finish(self, tensor: _Tensor, name: str, end_us: int) -> None:
        if _OPERATION.match(name) and tensor.begin_us is not None and tensor.begin_us < end_us:
            self.begins.append(tensor.begin_us)
            self.ends.append(end_us)
            self.names.add(name.lower())
            for rank, time_us in tensor.ready.items():
                self.arrivals[rank].append((time_us, len(self.ends) - 1))
        tensor.begin_us, tensor.ready = None, {}


def read_horovod(files: Sequence[Path], pids: ProcessIds) -> MoreSpans:
    """The meetings of each rank of a job with these `pids`, from the timeline of its run.

    Collectives that overlap are one meeting, as the gradients of a step are: a rank is in it from when its last tensor
    was ready until the last collective is done.
    Raises: ProfileError for a timeline without a date or a collective, of more ranks than the job has, or a second one.
    """
    path, *others = files
    found = _read(path)
    if max(found.meetings) >= len(pids):
        raise ProfileError(
            f"{path} is a Horovod timeline of {max(found.meetings) + 1} ranks, and the job has {len(pids)}: give the "
            "timeline of this run, or leave it out"
        )
    if others:
        raise ProfileError(f"{others[0]} is a second Horovod timeline: a run has one, which its rank 0 writes")
    return found


def _read(path: Path) -> MoreSpans:
    damage, timeline = Damage(), _Timeline()
    for line in text_lines(path, damage):
        text = line.strip(b" \t\r,[]")
        if not text:
            continue
        try:
            event = json.loads(text)
            timeline.take(event)
        except (ValueError, TypeError, AttributeError, OverflowError):
            damage.lines += 1
    if timeline.start_us is None:
        raise ProfileError(
            f"{path} is a Horovod timeline without a date: before Horovod 0.20.1 its times count from the boot of the "
            "host or from hvd.init, and nothing places them. Leave it out, or record with a later Horovod"
        )
    if not timeline.ends:
        raise ProfileError(f"{path} is a Horovod timeline without a finished collective: leave it out")
    unfinished = sum(bool(tensor.open) for tensor in timeline.tensors.values())
    warnings = [f"{path.name}: {text}" for text in damage.warnings()]
    if unfinished:
        warnings.append(f"{path.name}: {unfinished} collectives had not ended when it was cut off: they are left out")
    return MoreSpans(meetings=_spans(timeline, timeline.start_us), warnings=warnings)


def _spans(timeline: _Timeline, start_us: int) -> dict[int, SpanColumns]:
    """`collective` spans of each rank."""
    begins, ends = (np.array(column, dtype=np.int64) for column in (timeline.begins, timeline.ends))
    meetings = Intervals.union_of(begins, ends)
    meeting_of = np.searchsorted(meetings.starts, begins, side="right") - 1
    name = timeline.names.pop() if len(timeline.names) == 1 else "collective"
    spans = {}
    for rank in sorted(timeline.arrivals) or [0]:
        arrived = meetings.starts.copy()
        for time_us, operation in timeline.arrivals[rank]:
            place = meeting_of[operation]
            arrived[place] = max(arrived[place], min(time_us, int(meetings.ends[place])))
        count = len(arrived)
        spans[rank] = SpanColumns(
            thread=np.full(count, UNION_THREAD, dtype=np.int64),
            kind=np.full(count, COLLECTIVE, dtype=np.int8),
            name=np.zeros(count, dtype=np.int32),
            vocabulary=(name,),
            step=np.full(count, NO_STEP, dtype=np.int32),
            start_ns=(arrived + start_us) * 1000,
            end_ns=(meetings.ends + start_us) * 1000,
            fetched_ns=np.full(count, NOT_FETCHED),
        )
    return spans
