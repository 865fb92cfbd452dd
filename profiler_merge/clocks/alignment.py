"""Chooses the evidence that relates a rank's log to its profile: anchors, nesting, the wall clock, or a given
offset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from dxt_replay.profiler_merge.clocks.anchors import AnchorMarks, anchor_numbers, anchor_pid, profile_anchors
from dxt_replay.profiler_merge.clocks.nesting import WINDOW_NS, NestingEvents, align_nesting, nesting_events
from dxt_replay.profiler_merge.clocks.offsets import (
    Alignment,
    align_anchors,
    align_seconds,
    align_wall,
    line_ids_of_threads,
)
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.traces.errors import AlignmentError, UsageError

AUTO, ANCHORS, NESTING, WALL = "auto", "anchors", "nesting", "wall"
_LONGEST_S = 1e9


class _StartTime(Protocol):
    @property
    def start_ns(self) -> int: ...

    @property
    def has_nsec(self) -> bool: ...


class RecordingClock(Protocol):
    """What alignment needs of a log or another trace: the zero of its times, and the path of each record id."""

    @property
    def job(self) -> _StartTime: ...

    @property
    def names(self) -> Mapping[int, bytes]: ...


def parse_method(text: str) -> str | float:
    """`--align`: the name of a method, or the seconds to add to the log's times.

    Raises: UsageError for anything else.
    """
    if text in (AUTO, ANCHORS, NESTING, WALL):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not abs(seconds) <= _LONGEST_S:
        raise UsageError(f"--align {text!r}: give auto, anchors, nesting, wall, or a number of seconds")
    return seconds


def align_rank(
    segments: RankSegments, log: RecordingClock, profile: Profile | None, method: str | float
) -> tuple[Alignment, list[str]]:
    """The offset of one rank's log, and warnings about it.

    `auto` tries anchors, then nesting, and takes the wall clock if both fail. A rank without a profile has only its
    wall clock.
    Raises: AlignmentError when a method requested by name finds no offset.
    """
    if isinstance(method, float):
        return align_seconds(method), []
    start_ns, has_nsec = log.job.start_ns, log.job.has_nsec
    if profile is None:
        if method in (ANCHORS, NESTING):
            raise AlignmentError(
                f"rank {segments.rank} has no profile, which --align {method} needs: use --align auto or wall"
            )
        return align_wall(start_ns, has_nsec), []
    if method == WALL:
        return align_wall(start_ns, has_nsec), []
    reasons = []
    for name, attempt in ((ANCHORS, _by_anchors), (NESTING, _by_nesting)):
        if method not in (AUTO, name):
            continue
        try:
            return attempt(segments, log, profile), []
        except AlignmentError as error:
            if method == name:
                raise AlignmentError(f"rank {segments.rank}: {error}") from error
            reasons.append(str(error))
    if profile.epoch_start_ns is None:
        raise AlignmentError(f"rank {segments.rank}: the profile has no date for --align wall, and {reasons[-1]}")
    return align_wall(start_ns, has_nsec), [f"clocks are related by the wall clock alone: {'; '.join(reasons)}"]


def anchor_segments(segments: RankSegments, log: RecordingClock) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the segments that are writes of an anchor, and the numbers of the anchors."""
    rows, numbers = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for record in np.unique(segments.record_id).tolist():
        path = log.names.get(record, b"")
        if anchor_pid(path) is not None:
            mine = np.flatnonzero((segments.record_id == np.uint64(record)) & segments.is_write)
            number = anchor_numbers(path, segments.offset[mine], segments.length[mine])
            rows.append(mine[number >= 0])
            numbers.append(number[number >= 0])
    return np.concatenate(rows), np.concatenate(numbers)


def _by_anchors(segments: RankSegments, log: RecordingClock, profile: Profile) -> Alignment:
    return align_to_marks(segments, log, profile_anchors(profile))


def align_to_marks(segments: RankSegments, log: RecordingClock, anchors: AnchorMarks) -> Alignment:
    """The offset of the log of one process from its anchors. Raises: AlignmentError without common ones."""
    rows, numbers = anchor_segments(segments, log)
    return align_anchors(
        numbers,
        segments.start_ns[rows] + log.job.start_ns,
        segments.end_ns[rows] + log.job.start_ns,
        anchors.i,
        anchors.start_ns,
        anchors.end_ns,
    )


def _by_nesting(segments: RankSegments, log: RecordingClock, profile: Profile) -> Alignment:
    """The offset from the class of events with the narrowest interval; uses reads only."""
    if profile.marks is not None:
        raise AlignmentError("marks have no events of reads")
    answers, reasons = [], []
    for events in nesting_events(profile):
        try:
            answers.append(nest(segments, log, profile, events))
        except AlignmentError as error:
            reasons.append(str(error))
    if not answers:
        raise AlignmentError(reasons[0] if reasons else "no event of the profile reads files: use --align wall")
    return min(answers, key=lambda answer: answer.residual_ns)


def nest(segments: RankSegments, log: RecordingClock, profile: Profile, events: NestingEvents) -> Alignment:
    """The offset at which the reads of one rank lie inside the events of one class. Raises: AlignmentError when the
    evidence is weak."""
    reads = ~segments.is_write
    threads = None
    if segments.thread is not None and profile.torch is None:  # PyTorch's thread ids are the operating system's
        threads = line_ids_of_threads(segments.thread[reads], profile.line_ids)
    return align_nesting(
        segments.start_ns[reads] + log.job.start_ns,
        segments.end_ns[reads] + log.job.start_ns,
        events.start_ns,
        events.end_ns,
        segment_thread=threads,
        event_thread=events.line_id,
        window_ns=None if profile.epoch_start_ns is None else _window(log),
        least=events.least,
    )


def _window(log: RecordingClock) -> tuple[int, int]:
    """Range of offsets to search: a log with whole seconds may have started up to a second later than it states."""
    low, high = WINDOW_NS
    return (low, high) if log.job.has_nsec else (low, high + 1_000_000_000)
