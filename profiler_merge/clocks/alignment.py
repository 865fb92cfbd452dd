"""The offset of a log's clock, by the evidence of a profile, of marks, or of the reads of a DataLoader's worker.

Anchors are instants that a tracer shows as writes, and a profile or marks as events. `recording` writes them into its
files of marks; releases up to 0.2 wrote them into files of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.clocks.offsets import (
    ANCHOR,
    RELIABLE,
    WALL_NS,
    WINDOW_NS,
    Alignment,
    align_anchors,
    align_nesting,
    align_seconds,
    align_wall,
    line_ids_of_threads,
)
from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, Profile
from dxt_replay.profiler_merge.profiles.marks import MARKS_FILE, ProcessMarks
from dxt_replay.profiler_merge.profiles.span_parts import times_of
from dxt_replay.profiler_merge.profiles.spans import main_line
from dxt_replay.profiler_merge.recording import ANNOTATION, HEADER_BYTES, RECORD
from dxt_replay.traces.errors import AlignmentError, UsageError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S

AUTO, ANCHORS, NESTING, WALL = "auto", "anchors", "nesting", "wall"
_LONGEST_S = 1e9

_OLD_FILE = re.compile(r"(?:.*/)?dxt-anchor\.(?P<host>.+)\.(?P<pid>\d+)\.bin", re.DOTALL)
_OLD_RECORD_BYTES = 64

EXCLUSIVE = (1.25, 0.98)
"""As RELIABLE, if only the profiled thread reads, so that every read must nest.

The steps of a loop resemble each other: an offset that is wrong by one step fits many reads, but not all."""
_READERS = {
    "dataset": r"Iterator::(?:.*::)?(?:TFRecord|TextLine|FixedLengthRecord|CSV|ExperimentalCSV)(?:V\d)?(?:\[\d+\])?",
    "read_file": r"(?:.*:|EagerLocalExecute: )ReadFile",
    "py_func": r".*:(?:Eager)?PyFunc(?:Stateless)?",
}
"""Operations that read files in the input pipeline: class -> regular expression over event names."""
_LOOP = {"batch": r"next_batch", "checkpoint": r"(?:.*:|EagerLocalExecute: )(?:MergeV2Checkpoints|RestoreV2)"}
"""The same for the main thread, which reads only if no pipeline does.

In `next_batch` it waits while others read, and most of their reads nest in it by chance."""
_TORCH_LOADER = r"enumerate\(DataLoader\)#.*SingleProcess.*__next__|next_batch"

_NEXT = r"enumerate\(DataLoader\)#.*MultiProcessing.*__next__"
_WAKES_NS = NS_PER_MS
"""Longest time from the request to the begin of a worker's read."""
_SLOWEST_NS = 2 * NS_PER_MS
"""Time by which a worker may have begun later without being counted; it widens the interval."""
_LEAST_PAUSE_NS = 4 * NS_PER_MS
_LEAST_PAUSES = 8
_LEAST = (1.35, 0.8)
"""Least ratio of pauses that end in requests to those at any other offset, and least share of all pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClock:
    """The zero of the times of a log or another trace (CLOCK_REALTIME), and the path of each file by number."""

    start_ns: int
    has_nsec: bool = True
    names: Mapping[int, bytes]


def parse_method(text: str) -> str | float:
    """`--align`: the name of a method, or the seconds to add to the log's times. Raises: UsageError for all else."""
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
    rows: np.ndarray, clock: LogClock, profile: Profile | None, method: str | float, rank: int
) -> tuple[Alignment, list[str]]:
    """The offset of one rank's log, and warnings about it.

    `auto` tries anchors, then nesting, and takes the wall clock if both fail. A rank without a profile has only its
    wall clock.
    Raises: AlignmentError when a method requested by name finds no offset.
    """
    if isinstance(method, float):
        return align_seconds(method), []
    if profile is None and method in (ANCHORS, NESTING):
        raise AlignmentError(f"rank {rank} has no profile, which --align {method} needs: use --align auto or wall")
    if profile is None or method == WALL:
        return align_wall(clock.start_ns, clock.has_nsec), []
    reasons = []
    for name in (ANCHORS, NESTING):
        if method not in (AUTO, name):
            continue
        try:
            if name == ANCHORS:
                return align_to_anchors(rows, clock, profile_anchors(profile)), []
            return _by_nesting(rows, clock, profile), []
        except AlignmentError as error:
            if method == name:
                raise AlignmentError(f"rank {rank}: {error}") from error
            reasons.append(str(error))
    if profile.epoch_start_ns is None:
        raise AlignmentError(f"rank {rank}: the profile has no date for --align wall, and {reasons[-1]}")
    notes = [f"clocks are related by the wall clock alone: {'; '.join(reasons)}"]
    return align_wall(clock.start_ns, clock.has_nsec), notes


def _by_nesting(rows: np.ndarray, clock: LogClock, profile: Profile) -> Alignment:
    """From the class of events with the narrowest interval. Raises: AlignmentError when the evidence is weak."""
    if profile.marks is not None:
        raise AlignmentError("marks have no events of reads")
    reads, window = rows[rows["op"] == READ], None
    threaded = bool(rows["thread"].all()) and profile.torch is None  # PyTorch's ids are the operating system's
    threads = line_ids_of_threads(reads["thread"], profile.line_ids) if threaded else np.zeros(len(reads), np.int64)
    if profile.epoch_start_ns is not None:
        # A log with whole seconds may have started up to a second later than it states.
        window = WINDOW_NS[0], WINDOW_NS[1] + (0 if clock.has_nsec else NS_PER_S)
    answers, reasons = [], []
    for line_id, start_ns, end_ns in nesting_events(profile):
        own = line_id if threaded else np.zeros(len(line_id), np.int64)
        try:
            answers.append(
                align_nesting(
                    (reads["start_ns"] + clock.start_ns, reads["end_ns"] + clock.start_ns, threads),
                    (start_ns, end_ns, own),
                    window_ns=window,
                    least=RELIABLE if profile.torch is None else EXCLUSIVE,
                )
            )
        except AlignmentError as error:
            reasons.append(str(error))
    if not answers:
        raise AlignmentError(reasons[0] if reasons else "no event of the profile reads files: use --align wall")
    return min(answers, key=lambda answer: answer.residual_ns)


def nesting_events(profile: Profile) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The classes of events in which this profile's process can have read files, the strongest evidence first, as int64
    line ids, starts and ends.

    They are operations of the input pipeline or, in a profile without any, those of the training loop on the main
    thread. In PyTorch's profiles they are the times at which the training thread asks for a batch that it makes itself
    or, without any, in which it runs no operator.
    """
    main = profile.line == main_line(profile)
    if profile.torch is not None:
        asked = np.flatnonzero(main & profile.names_matching(_TORCH_LOADER)[profile.name])
        free = times_of(profile, asked)
        if not len(asked):
            busy = times_of(profile, np.flatnonzero(main & profile.torch.in_categories("cpu_op", *GPU_LAUNCH)))
            free = Intervals(starts=busy.ends[:-1], ends=busy.starts[1:])
        own = np.full(len(free), profile.line_ids[main_line(profile)])
        return [(own, free.starts, free.ends)] if len(free) else []
    found = []
    for patterns, lines in ((_READERS, np.ones(len(profile), bool)), (_LOOP, main)):
        for pattern in patterns.values():
            rows = np.flatnonzero(profile.names_matching(pattern)[profile.name] & lines)
            if len(rows):
                found.append((profile.line_ids[profile.line[rows]], profile.start_ns[rows], profile.end_ns[rows]))
        if found:
            break
    return found


# Anchors.


def anchor_pid(path: bytes) -> int | None:
    """The process whose anchors are in a file of this recorded path; None for another file."""
    text = path.decode("utf-8", "replace")
    found = _OLD_FILE.fullmatch(text) or MARKS_FILE.fullmatch(text)
    return None if found is None else int(found["pid"])


def anchor_numbers(path: bytes, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64: the number of the anchor that each write to such a file is, -1 for another write."""
    begin, size = (0, _OLD_RECORD_BYTES) if path.endswith(b".bin") else (HEADER_BYTES, RECORD.size)
    number, rest = np.divmod(offset - begin, size)
    found: np.ndarray = np.where((length == size) & (rest == 0) & (number >= 0), number, -1)
    return found


def profile_anchors(profile: Profile) -> np.ndarray:
    """ANCHOR (a,): the anchors of a profile or its marks, in order of time; rank and pid are -1 if not given."""
    if profile.marks is not None:
        return _anchors_of(profile.marks.own)
    rows, numbers = profile.stat("i")
    is_anchor = profile.names_matching(ANNOTATION)[profile.name[rows]]
    rows, numbers = rows[is_anchor], numbers[is_anchor]
    order = np.argsort(profile.start_ns[rows], kind="stable")
    found = np.empty(len(rows), ANCHOR)
    found["i"], rows = numbers[order], rows[order]
    for name in ("rank", "pid"):
        found[name] = profile.stat_column(name, missing=-1)[rows]
    found["start_ns"], found["end_ns"] = profile.start_ns[rows], profile.end_ns[rows]
    return found


def _anchors_of(process: ProcessMarks) -> np.ndarray:
    found = np.empty(len(process.anchors), ANCHOR)
    found["i"], found["start_ns"], found["end_ns"], _ = process.anchors.T
    found["rank"], found["pid"] = process.rank, process.pid
    return found


def anchor_rank(profile: Profile) -> tuple[int, int]:
    """(rank, pid) that the profile's anchors name; -1 if not given, or if they contradict each other (two processes in
    one profile)."""
    anchors = profile_anchors(profile)
    pairs = set(zip(anchors["rank"].tolist(), anchors["pid"].tolist(), strict=True))
    return pairs.pop() if len(pairs) == 1 else (-1, -1)


def align_to_anchors(rows: np.ndarray, clock: LogClock, anchors: np.ndarray) -> Alignment:
    """The offset of the log of one process from its anchors (ANCHOR). Raises: AlignmentError without common ones."""
    writes = rows[rows["op"] == WRITE]
    found = [np.empty(0, ANCHOR)]
    for file in np.unique(writes["file"]).tolist():
        path = clock.names.get(file, b"")
        if anchor_pid(path) is not None:
            mine = writes[writes["file"] == file]
            wrote = np.zeros(len(mine), ANCHOR)
            wrote["i"] = anchor_numbers(path, mine["offset"], mine["length"])
            wrote["start_ns"], wrote["end_ns"] = mine["start_ns"] + clock.start_ns, mine["end_ns"] + clock.start_ns
            found.append(wrote[wrote["i"] >= 0])
    return align_anchors(np.concatenate(found), anchors)


# The clock of a DataLoader's worker. No profile shows it, so the batch requests of the training thread of its rank do.
# A worker that is far enough ahead sleeps until the training thread takes a batch and sends it the number of another.
# The thread does that inside the loader's `__next__`, so each long pause between two reads of a worker ends inside a
# `__next__`, or a moment later. The worker's offset is the one at which most pauses do.


def align_worker(rows: np.ndarray, clock: LogClock, profile: Profile | None) -> Alignment | None:
    """The offset of a worker's log; None if its rank's profile, or its reads, do not show it.

    `profile`: of the rank's own process.
    """
    if profile is not None and profile.marks is not None:
        processes = profile.marks.processes
        for pid in processes.keys() & set(map(anchor_pid, clock.names.values())):
            with suppress(AlignmentError):
                return align_to_anchors(rows, clock, _anchors_of(processes[pid]))
        return None
    if profile is None or profile.torch is None or profile.epoch_start_ns is None or not clock.has_nsec:
        return None
    asked = profile.names_matching(_NEXT)[profile.name] & (profile.line == main_line(profile))
    reads = rows[(rows["op"] == READ) & (rows["length"] > 0)]
    start_ns, end_ns = reads["start_ns"] + clock.start_ns, reads["end_ns"] + clock.start_ns
    return worker_offset(start_ns, end_ns, profile.start_ns[asked], profile.end_ns[asked])


def worker_offset(
    start_ns: np.ndarray, end_ns: np.ndarray, asked_ns: np.ndarray, answered_ns: np.ndarray
) -> Alignment | None:
    """The offset from a worker's reads (log clock) and the batch requests (CLOCK_REALTIME), all int64, in any order.

    None if too few pauses of the worker end in requests."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    woke = start_ns[1:][start_ns[1:] - reach[:-1] > _LEAST_PAUSE_NS]
    if len(woke) < _LEAST_PAUSES or not len(asked_ns):
        return None
    requests = asked_ns, answered_ns + _WAKES_NS, np.zeros(len(asked_ns), np.int64)
    try:
        found = align_nesting((woke, woke, np.zeros(len(woke), np.int64)), requests, window_ns=WALL_NS, least=_LEAST)
    except AlignmentError:
        return None
    low, high = found.interval_ns[0], min(found.interval_ns[1] + _SLOWEST_NS, WALL_NS[1])
    residual_ns = max(high - found.offset_ns, found.offset_ns - low)
    return Alignment(method=NESTING, offset_ns=found.offset_ns, residual_ns=residual_ns, interval_ns=(low, high))
