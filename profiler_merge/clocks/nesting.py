"""The clock offset without anchors: every traced read must lie inside a profile event that can hold it. Pure.

Each (segment, event) pair allows a range of offsets. The result is the offset that most segments allow. A segment
counts once at each offset, however many events could hold it; else a crowd of overlapping events would win.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dxt_replay.profiler_merge.clocks.offsets import QUANTUM_NS, Alignment
from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, Profile
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
    readers = [_class_events(profile, name, pattern) for name, pattern in _READERS.items()]
    found = [events for events in readers if len(events)]
    if not found:
        main = profile.line_ids[main_line(profile)]
        loop = [_class_events(profile, name, pattern, only_line_id=int(main)) for name, pattern in _LOOP.items()]
        found = [events for events in loop if len(events)]
    return tuple(found)


def _torch_events(profile: Profile) -> tuple[NestingEvents, ...]:
    main = main_line(profile)
    mine = profile.line == main
    assert profile.torch is not None
    asked = np.flatnonzero(mine & profile.names_matching(_TORCH_LOADER)[profile.name])
    if len(asked):
        name, free = "loader", Intervals.union_of(profile.start_ns[asked], profile.end_ns[asked])
    else:
        work = np.flatnonzero(mine & profile.torch.in_categories("cpu_op", *GPU_LAUNCH))
        busy = Intervals.union_of(profile.start_ns[work], profile.end_ns[work])
        name, free = "between operators", Intervals(starts=busy.ends[:-1], ends=busy.starts[1:])
    if not len(free):
        return ()
    line_id = np.full(len(free), profile.line_ids[main])
    return (NestingEvents(event_class=name, exclusive=True, line_id=line_id, start_ns=free.starts, end_ns=free.ends),)


def _class_events(profile: Profile, name: str, pattern: str, only_line_id: int | None = None) -> NestingEvents:
    rows = np.flatnonzero(profile.names_matching(pattern)[profile.name])
    line_id, start, end = profile.line_ids[profile.line[rows]], profile.start_ns[rows], profile.end_ns[rows]
    order = np.lexsort((start, line_id))
    if only_line_id is not None:
        order = order[line_id[order] == only_line_id]
    return NestingEvents(event_class=name, line_id=line_id[order], start_ns=start[order], end_ns=end[order])


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
        segment_thread, event_thread = (
            np.zeros(len(segment_start_ns), np.int64),
            np.zeros(len(event_start_ns), np.int64),
        )
    search = _Search.prepare(
        (segment_start_ns, segment_end_ns), (event_start_ns, event_end_ns), segment_thread, event_thread
    )
    coarse = search.allowed(window_ns, search.stride(window_ns))
    peak_start, peak_end, peak = _deepest(*coarse)
    second = _deepest(*_elsewhere(coarse, (peak_start + peak_end) // 2))[2]
    near = (max(window_ns[0], peak_start - _REFINE_NS), min(window_ns[1], peak_end + _REFINE_NS))
    low, stop, nested = _deepest(*search.allowed(near))
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
    _refuse_weak(evidence, high - low, *least)
    return Alignment(
        method="nesting",
        offset_ns=offset,
        residual_ns=(high - low + 1) // 2,
        interval_ns=(low, high),
        evidence=evidence,
    )


def _refuse_weak(evidence: dict[str, float | int], width_ns: int, least_ratio: float, least_share: float) -> None:
    reason = None
    if evidence["nested"] < MIN_SEGMENTS:
        reason = f"only {evidence['nested']} of {evidence['segments']} reads lie in an event at any one offset"
    elif evidence["ratio"] < least_ratio:
        reason = f"the best offset fits only {evidence['ratio']:.2f} times as many reads as the second best"
    elif evidence["share"] < least_share:
        reason = f"only {evidence['share']:.0%} of the reads during the profile lie in an event"
    elif width_ns > MAX_WIDTH_NS:
        reason = f"the reads fix the offset only to within {format_duration(width_ns)}"
    if reason:
        raise AlignmentError(f"nesting cannot relate the clocks: {reason}; use anchors, or --align wall")


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


def _elsewhere(allowed: Allowed, offset: int) -> Allowed:
    """The intervals of the pairs that do not allow `offset`, for the height of the second peak.

    A segment that moves within its own event would otherwise make the flanks of the first peak look like a second one.
    """
    start, end = allowed
    other = (offset < start) | (offset >= end)
    return start[other], end[other]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Thread:
    """One thread: rows of its segments, and its events in order of start. `reach`: running maximum of end."""

    segments: np.ndarray
    event_start: np.ndarray
    event_end: np.ndarray
    reach: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Search:
    """Segments against the events of their thread, or against all events if the threads are not known."""

    start: np.ndarray
    end: np.ndarray
    threads: tuple[_Thread, ...]

    @classmethod
    def prepare(
        cls,
        segments: tuple[np.ndarray, np.ndarray],
        events: tuple[np.ndarray, np.ndarray],
        segment_thread: np.ndarray,
        event_thread: np.ndarray,
    ) -> _Search:
        order = np.lexsort((events[0], event_thread))
        event_start, event_end, event_thread = events[0][order], events[1][order], event_thread[order]
        by_thread = np.argsort(segment_thread, kind="stable")
        found, first = np.unique(segment_thread[by_thread], return_index=True)
        threads = []
        for thread, rows in zip(found, np.split(by_thread, first[1:]), strict=True):
            own = slice(*(int(np.searchsorted(event_thread, thread, side=side)) for side in ("left", "right")))
            if own.start < own.stop:
                reach = np.maximum.accumulate(event_end[own])
                threads.append(
                    _Thread(segments=rows, event_start=event_start[own], event_end=event_end[own], reach=reach)
                )
        # A log time may be off by half a quantum, so the part surely inside is shorter by that much.
        return cls(start=segments[0] + _SLACK_NS, end=segments[1] - _SLACK_NS, threads=tuple(threads))

    def _candidates(self, thread: _Thread, window: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Per segment of the thread: the range of events that can hold it at an offset in the window."""
        first = np.searchsorted(thread.reach, self.end[thread.segments] + window[0], side="left")
        stop = np.searchsorted(thread.event_start, self.start[thread.segments] + window[1], side="right")
        return first, np.maximum(first, stop)

    def stride(self, window: tuple[int, int]) -> int:
        """Take every n-th segment, so that there are _MAX_PAIRS pairs in total."""
        pairs = 0
        for thread in self.threads:
            first, stop = self._candidates(thread, window)
            pairs += int((stop - first).sum())
        return max(1, -(-pairs // _MAX_PAIRS))

    def allowed(self, window: tuple[int, int], stride: int = 1) -> Allowed:
        """Half-open offsets, within the window, at which each segment nests: disjoint per segment, in any order."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for thread in self.threads:
            first, stop = self._candidates(thread, window)
            first, stop, rows = first[::stride], stop[::stride], thread.segments[::stride]
            parts += [
                self._allowed(thread, rows[chunk], first[chunk], stop[chunk], window)
                for chunk in _chunks(stop - first, window)
            ]
        return np.concatenate([start for start, _ in parts]), np.concatenate([end for _, end in parts])

    def _allowed(
        self, thread: _Thread, rows: np.ndarray, first: np.ndarray, stop: np.ndarray, window: tuple[int, int]
    ) -> Allowed:
        count = stop - first
        segment = np.repeat(np.arange(len(rows)), count)
        event = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        low = np.maximum(thread.event_start[event] - self.start[rows][segment], window[0])
        high = np.minimum(thread.event_end[event] - self.end[rows][segment], window[1]) + 1
        fits = np.flatnonzero(high > low)
        # Each segment gets a stretch of its own, so that one union serves all.
        shift = segment[fits] * (window[1] - window[0] + 2) - window[0]
        merged = Intervals.union_of(low[fits] + shift, high[fits] + shift)
        back = merged.starts // (window[1] - window[0] + 2) * (window[1] - window[0] + 2) - window[0]
        return merged.starts - back, merged.ends - back


def _chunks(pairs: np.ndarray, window: tuple[int, int]) -> list[slice]:
    """Ranges of segments with about _MAX_PAIRS pairs each, few enough that `_allowed` can number them in 64 bits."""
    most = max(1, (1 << 61) // (window[1] - window[0] + 2))
    bounds, total = [0], np.cumsum(pairs)
    while bounds[-1] < len(pairs):
        done = int(total[bounds[-1] - 1]) if bounds[-1] else 0
        stop = int(np.searchsorted(total, done + _MAX_PAIRS, side="right"))
        bounds.append(min(max(stop, bounds[-1] + 1), bounds[-1] + most, len(pairs)))
    return [slice(begin, end) for begin, end in pairwise(bounds)]
