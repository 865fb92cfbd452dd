"""The clock offset without anchors: every traced read must lie inside a profile event that can hold it. Pure.

Each (segment, event) pair allows a range of offsets. The result is the offset that most segments allow. A segment
counts once at each offset, however many events could hold it; else a crowd of overlapping events would win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.clocks.offsets import QUANTUM_NS, Alignment
from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, Profile
from dxt_replay.profiler_merge.profiles.span_parts import times_of
from dxt_replay.profiler_merge.profiles.spans import main_line
from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_duration

WINDOW_NS = (-2 * NS_PER_S, 50 * NS_PER_MS)
"""Offsets to search when the profile has an epoch: the delta of a log is above 0, and 61 ms was the largest seen."""
MIN_RATIO = 3.0
MIN_SHARE = 0.8
EXCLUSIVE_RATIO = 1.25
EXCLUSIVE_SHARE = 0.98
"""The same two limits if only the profiled thread reads, so that every read must nest.

The steps of a loop resemble each other: an offset that is wrong by one step fits many reads, but not all."""
MIN_SEGMENTS = 5
MAX_WIDTH_NS = 10 * NS_PER_MS
"""Widest useful interval: a wider one constrains the offset less than the wall clocks do."""

_MAX_PAIRS = 1 << 20
_REFINE_NS = 2 * NS_PER_MS
_SLACK_NS = (QUANTUM_NS + 1) // 2  # half a quantum is the largest error of a log time

Allowed = tuple[np.ndarray, np.ndarray]
"""Starts and ends (int64) of half-open intervals of offsets, several per segment, in any order."""

_READERS = {
    "dataset": r"Iterator::(?:.*::)?(?:TFRecord|TextLine|FixedLengthRecord|CSV|ExperimentalCSV)(?:V\d)?(?:\[\d+\])?",
    "read_file": r"(?:.*:|EagerLocalExecute: )ReadFile",
    "py_func": r".*:(?:Eager)?PyFunc(?:Stateless)?",
}
"""Operations that read files in the input pipeline: class -> regular expression over event names."""

_LOOP = {
    "batch": r"next_batch",
    "checkpoint": r"(?:.*:|EagerLocalExecute: )(?:MergeV2Checkpoints|RestoreV2)",
}
"""The same for the main thread, which reads only if no pipeline does.

In `next_batch` it waits while others read, and most of their reads nest in it by chance."""


_TORCH_LOADER = r"enumerate\(DataLoader\)#.*SingleProcess.*__next__|next_batch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NestingEvents:
    """Events of one class (int64 columns), sorted by (line_id, start): its thread, start and end.

    exclusive: whether every read of the process must lie in one of them.
    """

    event_class: str
    exclusive: bool = False
    line_id: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @property
    def least(self) -> tuple[float, float]:
        """Ratio and share from which an answer is reliable."""
        return (EXCLUSIVE_RATIO, EXCLUSIVE_SHARE) if self.exclusive else (MIN_RATIO, MIN_SHARE)

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)


def nesting_events(profile: Profile) -> tuple[NestingEvents, ...]:
    """The classes of events in which this profile's process can have read files, the strongest evidence first.

    They are operations of the input pipeline or, in a profile without any, those of the training loop on the main
    thread. In PyTorch's profiles only the main thread counts: the requests for a batch, else the time between its
    operators.
    """
    if profile.torch is not None:
        return _torch_events(profile)
    found = []
    main = profile.line == main_line(profile)
    for patterns, lines in ((_READERS, np.ones(len(profile), bool)), (_LOOP, main)):
        for name, pattern in patterns.items():
            rows = np.flatnonzero(profile.names_matching(pattern)[profile.name] & lines)
            line_id = profile.line_ids[profile.line[rows]]
            order = np.lexsort((profile.start_ns[rows], line_id))
            rows, line_id = rows[order], line_id[order]
            start, end = profile.start_ns[rows], profile.end_ns[rows]
            found.append(NestingEvents(event_class=name, line_id=line_id, start_ns=start, end_ns=end))
        found = [events for events in found if len(events)]
        if found:
            break
    return tuple(found)


def _torch_events(profile: Profile) -> tuple[NestingEvents, ...]:
    main = main_line(profile)
    mine = profile.line == main
    assert profile.torch is not None
    asked = np.flatnonzero(mine & profile.names_matching(_TORCH_LOADER)[profile.name])
    name, free = "loader", times_of(profile, asked)
    if not len(asked):
        busy = times_of(profile, np.flatnonzero(mine & profile.torch.in_categories("cpu_op", *GPU_LAUNCH)))
        name, free = "between operators", Intervals(starts=busy.ends[:-1], ends=busy.starts[1:])
    if not len(free):
        return ()
    line_id = np.full(len(free), profile.line_ids[main])
    return (NestingEvents(event_class=name, exclusive=True, line_id=line_id, start_ns=free.starts, end_ns=free.ends),)


def align_nesting(
    segment_start_ns: np.ndarray,
    segment_end_ns: np.ndarray,
    event_start_ns: np.ndarray,
    event_end_ns: np.ndarray,
    *,
    segment_thread: np.ndarray | None = None,
    event_thread: np.ndarray | None = None,
    window_ns: tuple[int, int] | None = WINDOW_NS,
    least: tuple[float, float] = (MIN_RATIO, MIN_SHARE),
) -> Alignment:
    """The offset that nests most segments (log clock) in events (CLOCK_REALTIME), all arrays int64, in any order.

    Threads, when both sides have them (`line_ids_of_threads`), must agree. `window_ns` bounds the offset; None, for a
    profile without an epoch, tries all. `least`: ratio and share from which an answer is reliable.
    `evidence`: segments, nested, share (of those inside the events' time), ratio (to the best offset elsewhere),
    second. Raises: AlignmentError when the answer is weak, with the reason.
    """
    if len(segment_start_ns) == 0 or len(event_start_ns) == 0:
        raise AlignmentError(
            f"nesting needs reads in the log ({len(segment_start_ns)} found) and events around them in the profile "
            f"({len(event_start_ns)} found): use --align wall"
        )
    if window_ns is None:
        window_ns = (
            int(event_start_ns.min() - segment_end_ns.max()) - _SLACK_NS,
            int(event_end_ns.max() - segment_start_ns.min()) + _SLACK_NS,
        )
    threaded = segment_thread is not None and event_thread is not None
    if segment_thread is None or event_thread is None:
        segment_thread, event_thread = np.zeros(len(segment_start_ns), int), np.zeros(len(event_start_ns), int)
    order = np.lexsort((event_start_ns, event_thread))
    events = event_start_ns[order], event_end_ns[order], event_thread[order]
    segments = segment_start_ns, segment_end_ns, segment_thread
    coarse = _allowed(segments, events, window_ns, sampled=True)
    peak_start, peak_end, peak = _deepest(*coarse)
    # The second peak is that of the pairs that do not allow the first: a segment that moves within its own event would
    # otherwise make the flanks of the first peak look like a second one.
    middle = (peak_start + peak_end) // 2
    elsewhere = (middle < coarse[0]) | (middle >= coarse[1])
    second = _deepest(coarse[0][elsewhere], coarse[1][elsewhere])[2]
    near = (max(window_ns[0], peak_start - _REFINE_NS), min(window_ns[1], peak_end + _REFINE_NS))
    low, stop, nested = _deepest(*_allowed(segments, events, near, sampled=False))
    high = stop - 1
    offset = (low + high) // 2
    inside = (segment_start_ns + offset >= event_start_ns.min()) & (segment_end_ns + offset <= event_end_ns.max())
    evidence: dict[str, float | int] = {
        "segments": len(segment_start_ns),
        "nested": nested,
        "share": nested / max(int(inside.sum()), 1),
        "second": second,
        "ratio": peak / max(second, 1),
        "threads": int(threaded),
    }
    reason = None
    if nested < MIN_SEGMENTS:
        reason = f"only {nested} of {len(segment_start_ns)} reads lie in an event at any one offset"
    elif evidence["ratio"] < least[0]:
        reason = f"the best offset fits only {evidence['ratio']:.2f} times as many reads as the second best"
    elif evidence["share"] < least[1]:
        reason = f"only {evidence['share']:.0%} of the reads during the profile lie in an event"
    elif high - low > MAX_WIDTH_NS:
        reason = f"the reads fix the offset only to within {format_duration(high - low)}"
    if reason:
        raise AlignmentError(f"nesting cannot relate the clocks: {reason}; use anchors, or --align wall")
    return Alignment(
        method="nesting",
        offset_ns=offset,
        residual_ns=(high - low + 1) // 2,
        interval_ns=(low, high),
        evidence=evidence,
    )


def _deepest(start: np.ndarray, end: np.ndarray) -> tuple[int, int, int]:
    """(first, end, depth) of the offsets in most of the half-open intervals; their hull if they are not contiguous."""
    points = np.concatenate([start, end])
    if len(points) == 0:
        return 0, 1, 0
    order = np.lexsort((np.repeat([1, -1], len(start)), points))  # at one offset, ends come first
    points = points[order]
    depth = np.cumsum(np.repeat([1, -1], len(start))[order])
    deepest = np.flatnonzero(depth == depth.max())
    return int(points[deepest[0]]), int(points[deepest[-1] + 1]), int(depth.max())


def _allowed(
    segments: Sequence[np.ndarray], events: Sequence[np.ndarray], window: tuple[int, int], *, sampled: bool
) -> Allowed:
    """Half-open offsets, within the window, at which each segment nests: disjoint per segment, in any order.

    `segments`: starts, ends, threads. `events`: the same, by thread and start. `sampled`: of every n-th segment alone,
    so that there are _MAX_PAIRS pairs in total."""
    # A log time may be off by half a quantum, so the part surely inside is shorter by that much.
    start, end = segments[0] + _SLACK_NS, segments[1] - _SLACK_NS
    found = [(np.empty(0, np.int64),) * 3]
    for thread in np.unique(segments[2]):
        rows = np.flatnonzero(segments[2] == thread)
        own = slice(*(int(np.searchsorted(events[2], thread, side=side)) for side in ("left", "right")))
        reach = np.maximum.accumulate(events[1][own])
        first = own.start + np.searchsorted(reach, end[rows] + window[0], side="left")
        stop = own.start + np.searchsorted(events[0][own], start[rows] + window[1], side="right")
        found.append((rows, first, np.maximum(first, stop)))
    pairs = sum(int((stop - first).sum()) for _, first, stop in found)
    stride = max(1, -(-pairs // _MAX_PAIRS)) if sampled else 1
    rows, first, stop = (np.concatenate([each[column][::stride] for each in found]) for column in range(3))
    # About _MAX_PAIRS pairs at a time, of few enough segments that they can be numbered in 64 bits.
    width = window[1] - window[0] + 2
    most = max(1, (1 << 61) // width)
    total, done = np.append(0, np.cumsum(stop - first)), 0
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    while done < len(rows):
        until = int(np.searchsorted(total, total[done] + _MAX_PAIRS, side="right")) - 1
        part = slice(done, min(max(until, done + 1), done + most))
        done = part.stop
        count = stop[part] - first[part]
        segment = np.repeat(np.arange(len(count)), count)
        event = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first[part], count)
        low = np.maximum(events[0][event] - start[rows[part]][segment], window[0])
        high = np.minimum(events[1][event] - end[rows[part]][segment], window[1]) + 1
        fits = np.flatnonzero(high > low)
        # Each segment gets a stretch of its own, so that one union serves all.
        shift = segment[fits] * width - window[0]
        merged = Intervals.union_of(low[fits] + shift, high[fits] + shift)
        back = merged.starts // width * width - window[0]
        starts.append(merged.starts - back)
        ends.append(merged.ends - back)
    return np.concatenate(starts), np.concatenate(ends)
