"""The offset between a log's clock and the profile's, from given evidence: anchors, or reads nested in events. Pure.

A Darshan log counts its times from an instant that is 1 to 60 ms earlier than the `start_time` it states, and differs
on every rank. An `Alignment` holds the offset to add to (job start + log time) to get CLOCK_REALTIME.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_duration, seconds_to_ns

ANCHOR = np.dtype([(name, "i8") for name in ("i", "rank", "pid", "start_ns", "end_ns")])
"""A numbered instant: the write of a log, or the event or mark of the process around it."""

QUANTUM_NS = 239
"""Resolution of a Darshan time: an epoch in a double has steps of 2**-22 s."""
MAX_DRIFT_PPM = 1_000.0
"""Largest drift in ppm: faster clocks are a wrong pairing, or one of them was stepped."""
WALL_NS = (-60 * NS_PER_MS, 0)
"""Offsets observed over versions and settings of Darshan, from the zero of a log to its stated start."""

WINDOW_NS = (-2 * NS_PER_S, 50 * NS_PER_MS)
"""Offsets to search when the profile has an epoch: the delta of a log is above 0, and 61 ms was the largest seen."""
RELIABLE = (3.0, 0.8)
"""Least ratio of the reads that nest at the best offset to those at the second best, and least share of all reads."""
MIN_SEGMENTS = 5
MAX_WIDTH_NS = 10 * NS_PER_MS
"""Widest useful interval: a wider one constrains the offset less than the wall clocks do."""
_MAX_PAIRS = 1 << 20
_REFINE_NS = 2 * NS_PER_MS
_SLACK_NS = (QUANTUM_NS + 1) // 2  # half a quantum is the largest error of a log time


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """CLOCK_REALTIME = job start + log time + offset_ns. The offset is usually negative.

    method: anchors, nesting, wall or seconds.
    residual_ns: half the width of the interval.
    interval_ns: the offsets that the evidence allows, both ends included.
    evidence: with a drift, the offset holds at `reference_ns`, on the log's clock, and changes by `drift_ppm`.
    """

    method: str
    offset_ns: int
    residual_ns: int
    interval_ns: tuple[int, int]
    evidence: Mapping[str, float | int] = field(default_factory=dict)

    def realtime_ns(self, log_ns: np.ndarray) -> np.ndarray:
        """CLOCK_REALTIME (int64) of instants on the log's clock, job start + log time, drift included."""
        shifted = log_ns + self.offset_ns
        if "drift_ppm" not in self.evidence:
            return shifted
        elapsed = log_ns - int(self.evidence["reference_ns"])
        return shifted + np.rint(elapsed * (self.evidence["drift_ppm"] * 1e-6)).astype(np.int64)


def within(method: str, low: int, high: int, **evidence: float | int) -> Alignment:
    """The middle of these offsets, all of which the evidence allows."""
    return Alignment(
        method=method,
        offset_ns=(low + high) // 2,
        residual_ns=(high - low + 1) // 2,
        interval_ns=(low, high),
        evidence=evidence,
    )


def align_wall(job_start_ns: int, has_nsec: bool) -> Alignment:
    """Trust both clocks: offset 0, within 60 ms, or 1 s more if the log has only whole seconds.

    Raises: AlignmentError when the log does not say when the job started.
    """
    if job_start_ns <= 0:
        raise AlignmentError("the log does not say when the job started: give the offset as --align SECONDS")
    low, high = WALL_NS[0], WALL_NS[1] + (0 if has_nsec else NS_PER_S)
    return Alignment(method="wall", offset_ns=0, residual_ns=max(-low, high), interval_ns=(low, high))


def align_seconds(seconds: float) -> Alignment:
    """The offset that the user gives. Raises: AlignmentError for a value that is not a number of seconds."""
    if not math.isfinite(seconds) or abs(seconds) > 1e9:
        raise AlignmentError(f"--align {seconds} is not a number of seconds between -1e9 and 1e9")
    offset = seconds_to_ns(seconds)
    return Alignment(method="seconds", offset_ns=offset, residual_ns=0, interval_ns=(offset, offset))


def align_anchors(log: np.ndarray, marks: np.ndarray) -> Alignment:
    """From anchors (ANCHOR): write i of the log lies inside the mark i, whose times are CLOCK_REALTIME.

    A number that occurs twice on one side is left out. Constraints that fail to overlap by up to two quanta of the log,
    since both of its times may be off by one, are widened by one. Others may be a drift of one of the clocks.

    Raises: AlignmentError without a common number, or naming the marks that contradict each other.
    """
    log, marks = (each[np.isin(each["i"], _once(each["i"]))] for each in (log, marks))
    _, left, right = np.intersect1d(log["i"], marks["i"], assume_unique=True, return_indices=True)
    if not len(left):
        raise AlignmentError(
            f"no anchor is in both the log ({len(log)}) and the profile ({len(marks)}): use --align nesting or wall"
        )
    wrote, mark = log[left], marks[right]
    low, high = mark["start_ns"] - wrote["start_ns"], mark["end_ns"] - wrote["end_ns"]
    gap = int(low.max() - high.min())
    if gap > 2 * QUANTUM_NS:
        return _with_drift(wrote["i"], (wrote["start_ns"] + wrote["end_ns"]) // 2, low, high)
    widened = QUANTUM_NS if gap > 0 else 0
    return within("anchors", int(low.max()) - widened, int(high.min()) + widened)


def _once(numbers: np.ndarray) -> np.ndarray:
    values, counts = np.unique(numbers, return_counts=True)
    found: np.ndarray = values[counts == 1]
    return found


def _with_drift(numbers: np.ndarray, at_ns: np.ndarray, low: np.ndarray, high: np.ndarray) -> Alignment:
    """The straight line through constraints that no constant satisfies. Raises: AlignmentError when there is none.

    The room that a slope leaves, min(high - slope t) - max(low - slope t), is concave in the slope: ternary search
    finds the best.
    """
    reference = int(at_ns[np.argmin(at_ns)]) + int(np.ptp(at_ns)) // 2
    elapsed = (at_ns - reference).astype(np.float64)
    base = int(low.min())
    floor, ceiling = (low - base).astype(np.float64), (high - base).astype(np.float64)

    def bounds(slope: float) -> tuple[float, float]:
        return float((floor - slope * elapsed).max()), float((ceiling - slope * elapsed).min())

    left, right = -MAX_DRIFT_PPM * 1e-6, MAX_DRIFT_PPM * 1e-6
    for _ in range(200):
        one, two = left + (right - left) / 3, right - (right - left) / 3
        width_one, width_two = (b - a for a, b in (bounds(one), bounds(two)))
        left, right = (one, right) if width_one < width_two else (left, two)
    slope = (left + right) / 2
    lowest, highest = bounds(slope)
    if len(numbers) < 4 or lowest - highest > 2 * QUANTUM_NS:
        late, early = int(numbers[np.argmax(low)]), int(numbers[np.argmin(high)])
        raise AlignmentError(
            f"anchors {late} and {early} contradict each other by {format_duration(int(low.max() - high.min()))}: "
            "the profile belongs to another process or run, or a clock was set meanwhile; use --align nesting or wall"
        )
    widened = QUANTUM_NS if lowest > highest else 0
    least, most = base + math.floor(lowest - widened), base + math.ceil(highest + widened)
    return within("anchors", least, most, drift_ppm=slope * 1e6, reference_ns=reference)


# Without anchors every traced read must lie inside a profile event that can hold it. Each (segment, event) pair allows
# a range of offsets, and the result is the offset that most segments allow. A segment counts once at each offset,
# however many events could hold it; else a crowd of overlapping events would win.


def align_nesting(
    reads: Sequence[np.ndarray],
    events: Sequence[np.ndarray],
    *,
    window_ns: tuple[int, int] | None = WINDOW_NS,
    least: tuple[float, float] = RELIABLE,
) -> Alignment:
    """The offset that nests most reads (log clock) in events (CLOCK_REALTIME): starts, ends and threads, int64, in any
    order. Threads must agree; they are 0 where they are not known.

    `window_ns` bounds the offset; None, for a profile without an epoch, tries all. `least`: as RELIABLE, from which an
    answer counts. Raises: AlignmentError when the answer is weak, with the reason.
    """
    if len(reads[0]) == 0 or len(events[0]) == 0:
        raise AlignmentError(
            f"nesting needs reads in the log ({len(reads[0])} found) and events around them in the profile "
            f"({len(events[0])} found): use --align wall"
        )
    first_ns, last_ns = int(events[0].min()), int(events[1].max())
    if window_ns is None:
        window_ns = first_ns - int(reads[1].max()) - _SLACK_NS, last_ns - int(reads[0].min()) + _SLACK_NS
    order = np.lexsort((events[0], events[2]))
    events = [column[order] for column in events]
    coarse = _allowed(reads, events, window_ns, sampled=True)
    peak_start, peak_end, peak = _deepest(*coarse)
    # The second peak is that of the pairs that do not allow the first: a segment that moves within its own event would
    # otherwise make the flanks of the first peak look like a second one.
    middle = (peak_start + peak_end) // 2
    elsewhere = (middle < coarse[0]) | (middle >= coarse[1])
    ratio = peak / max(_deepest(coarse[0][elsewhere], coarse[1][elsewhere])[2], 1)
    near = (max(window_ns[0], peak_start - _REFINE_NS), min(window_ns[1], peak_end + _REFINE_NS))
    low, stop, nested = _deepest(*_allowed(reads, events, near, sampled=False))
    found = within("nesting", low, stop - 1)
    inside = (reads[0] + found.offset_ns >= first_ns) & (reads[1] + found.offset_ns <= last_ns)
    share = nested / max(int(inside.sum()), 1)
    reason = None
    if nested < MIN_SEGMENTS:
        reason = f"only {nested} of {len(reads[0])} reads lie in an event at any one offset"
    elif ratio < least[0]:
        reason = f"the best offset fits only {ratio:.2f} times as many reads as the second best"
    elif share < least[1]:
        reason = f"only {share:.0%} of the reads during the profile lie in an event"
    elif stop - 1 - low > MAX_WIDTH_NS:
        reason = f"the reads fix the offset only to within {format_duration(stop - 1 - low)}"
    if reason:
        raise AlignmentError(f"nesting cannot relate the clocks: {reason}; use anchors, or --align wall")
    return found


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
) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the half-open offsets, within the window, at which each segment nests: disjoint per segment.
    `events`: by thread and start. `sampled`: of every n-th segment alone, for _MAX_PAIRS pairs in total."""
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


# Threads.

_SEED = np.uint64(0xC70F6907)
_MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)


def thread_hash(pthread_id: np.ndarray) -> np.ndarray:
    """int64 line id of each uint64 pthread id: std::hash of libstdc++ (MurmurHash64A of its 8 bytes).

    TF 2.19 and later store all 64 bits as a signed number; older ones the low 32 bits, see `line_ids_of_threads`.
    """

    def mixed(value: np.ndarray) -> np.ndarray:
        return value ^ (value >> np.uint64(47))

    key = mixed(np.asarray(pthread_id, np.uint64) * _MULTIPLIER) * _MULTIPLIER
    length = np.array([8], np.uint64) * _MULTIPLIER
    state = ((_SEED ^ length) ^ key) * _MULTIPLIER
    return mixed(mixed(state) * _MULTIPLIER).view(np.int64)


def line_ids_of_threads(pthread_id: np.ndarray, line_ids: np.ndarray) -> np.ndarray:
    """`thread_hash` in the form that the profile with these line ids uses: 64 bits, or the low 32 bits."""
    hashes = thread_hash(pthread_id)
    if len(line_ids) and bool(((line_ids >= 0) & (line_ids < 1 << 32)).all()):
        return hashes & np.int64(0xFFFFFFFF)
    return hashes
