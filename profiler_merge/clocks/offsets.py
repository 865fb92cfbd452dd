"""The offset between a log's clock and the profile's, from given evidence. Pure.

A Darshan log counts its times from an instant that is 1 to 60 ms earlier than the `start_time` it states, and differs
on every rank. An `Alignment` holds the offset to add to (job start + log time) to get CLOCK_REALTIME.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_duration, seconds_to_ns

QUANTUM_NS = 239
"""Resolution of a Darshan time: an epoch in a double has steps of 2**-22 s."""
MAX_DRIFT_PPM = 1_000.0
"""Largest drift in ppm: faster clocks are a wrong pairing, or one of them was stepped."""
WALL_NS = (-60 * NS_PER_MS, 0)
"""Offsets observed over versions and settings of Darshan, from the zero of a log to its stated start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """CLOCK_REALTIME = job start + log time + offset_ns. The offset is usually negative.

    method: anchors, nesting, wall or seconds.
    residual_ns: half the width of the interval.
    interval_ns: the offsets that the evidence allows, both ends included.
    evidence: figures of the method. With drift the offset holds at `evidence["reference_ns"]`, on the log's clock, and
        changes by `evidence["drift_ppm"]`: use `realtime_ns`.
    """

    method: str
    offset_ns: int
    residual_ns: int
    interval_ns: tuple[int, int]
    evidence: Mapping[str, float | int] = field(default_factory=dict)

    def realtime_ns(self, log_ns: np.ndarray) -> np.ndarray:
        """CLOCK_REALTIME (int64) of instants on the log's clock, job start + log time, drift included."""
        shifted = log_ns + self.offset_ns
        drift_ppm = float(self.evidence.get("drift_ppm", 0.0))
        if drift_ppm == 0.0:
            return shifted
        elapsed = log_ns - int(self.evidence["reference_ns"])
        return shifted + np.rint(elapsed * (drift_ppm * 1e-6)).astype(np.int64)


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


def align_anchors(
    dxt_i: np.ndarray,
    dxt_start_ns: np.ndarray,
    dxt_end_ns: np.ndarray,
    mark_i: np.ndarray,
    mark_start_ns: np.ndarray,
    mark_end_ns: np.ndarray,
) -> Alignment:
    """From anchors: the write of record i, on the log's clock, lies inside the annotation i, in CLOCK_REALTIME.

    All arrays int64; a number that occurs twice on one side is left out. Constraints that fail to overlap by up to a
    quantum of the log are widened by it; `evidence["widened_ns"]` holds the amount.

    Raises: AlignmentError without a common number, or naming the marks that contradict each other.
    """
    rows = []
    for numbers in (dxt_i, mark_i):
        values, first, counts = np.unique(numbers, return_index=True, return_counts=True)
        rows.append((values[counts == 1], first[counts == 1]))
    _, left, right = np.intersect1d(rows[0][0], rows[1][0], assume_unique=True, return_indices=True)
    dxt, mark = rows[0][1][left], rows[1][1][right]
    if len(dxt) == 0:
        raise AlignmentError(
            f"no anchor is in both the log ({len(dxt_i)}) and the profile ({len(mark_i)}): use --align nesting or wall"
        )
    low, high = mark_start_ns[mark] - dxt_start_ns[dxt], mark_end_ns[mark] - dxt_end_ns[dxt]
    middle = (dxt_start_ns[dxt] + dxt_end_ns[dxt]) // 2
    evidence: dict[str, float | int] = {"pairs": len(dxt), "drift_ppm": 0.0, "span_ns": int(np.ptp(middle))}
    gap = int(low.max() - high.min())
    if gap > 2 * QUANTUM_NS:
        return _with_drift(dxt_i[dxt], middle, low, high, evidence)
    if gap > 0:
        low, high = low - QUANTUM_NS, high + QUANTUM_NS
        evidence["widened_ns"] = QUANTUM_NS
    return _by_anchors(int(low.max()), int(high.min()), evidence)


def _by_anchors(low: int, high: int, evidence: Mapping[str, float | int]) -> Alignment:
    return Alignment(
        method="anchors",
        offset_ns=(low + high) // 2,
        residual_ns=(high - low + 1) // 2,
        interval_ns=(low, high),
        evidence=evidence,
    )


def _with_drift(
    numbers: np.ndarray, at_ns: np.ndarray, low: np.ndarray, high: np.ndarray, evidence: dict[str, float | int]
) -> Alignment:
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
    if lowest > highest:
        lowest, highest = lowest - QUANTUM_NS, highest + QUANTUM_NS
        evidence["widened_ns"] = QUANTUM_NS
    evidence.update(drift_ppm=slope * 1e6, reference_ns=reference)
    return _by_anchors(base + math.floor(lowest), base + math.ceil(highest), evidence)


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
