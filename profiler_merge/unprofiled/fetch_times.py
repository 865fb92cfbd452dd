"""The batch fetches of steps that no profile shows, from the reads and the pace of profiled steps. Pure.

A step had its batch at the earliest when its reads ended, and at the latest when the later reads reached the step's
place on their clock. Within these limits, the steps after it leave it the usual time of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.unprofiled.batch_begins import batch_begins, in_order
from dxt_replay.profiler_merge.unprofiled.profiled_steps import ProfiledSteps
from dxt_replay.profiler_merge.unprofiled.read_clock import NEVER, ReadClock, units_before

_PARTIAL = 0.1
"""Least size of a last batch that counts as a step, as a share of a whole one."""
_WAITED = 0.3
"""Share of a step from which its input wait counts as a wait for a batch that was not ready."""
_SPREAD = 0.85
"""Least distance of steps that the reads do not show individually, as a share of their length."""
_SPEED_STEPS = 8
_LEAST_SPEED = 0.5
_MOST_STEPS = 1 << 22
_EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchTimes:
    """Batch fetch of each step of the job; columns (n,) by step.

    number: the steps, ascending by one.
    wait_ns, fetch_ns: when the step began to wait, and when it had its batch.
    like: row of the profiled step whose phases it has: its own, or a typical one.
    profiled: bool.
    """

    number: np.ndarray
    wait_ns: np.ndarray
    fetch_ns: np.ndarray
    like: np.ndarray
    profiled: np.ndarray


def fetch_times(clock: ReadClock, steps: ProfiledSteps, limits: tuple[int, int] | None) -> FetchTimes | None:
    """The fetches of all steps; None if the reads show only the profiled steps.

    `limits`: first and last step, if another rank has shown them.
    """
    marks = batch_begins(clock.reads, clock.amount, steps) if clock.synchronous else None
    first, last = limits or (_limits(clock, steps) if marks is None else marks.limits)
    first, last = min(first, int(steps.number[0])), max(last, int(steps.number[-1]))
    if last - first + 1 == len(steps) or last - first >= _MOST_STEPS:
        return None
    number = np.arange(first, last + 1)
    known = np.isin(number, steps.number)
    like = _drawn(number, steps)
    like[known] = np.arange(len(steps))
    busy = steps.busy_ns[like]
    if marks is None:
        wait, fetch = _ahead_reads(clock, steps, number, known, busy)
    else:
        wait, fetch = marks.times(steps, number, busy)
    wait[known], fetch[known] = steps.wait_ns, steps.fetch_ns
    return FetchTimes(number=number, wait_ns=wait, fetch_ns=fetch, like=like, profiled=known)


def _limits(clock: ReadClock, steps: ProfiledSteps) -> tuple[int, int]:
    """The first and the last step that reads ahead of the loop show."""
    per_step, units, readers = clock.amount.per_step, clock.amount.units, clock.reads.readers
    first, last = int(steps.number[0]), int(steps.number[-1])
    if first > 1:
        before = units_before(clock.reads, units, steps.wait_ns[:1])[0] / per_step
        # A profile may count from the first step of an earlier run.
        first = 0 if first <= before + 0.5 else max(first - round(before), 0)
    beyond = float(units.sum()) - units_before(clock.reads, units, steps.end_ns[-1:])[0]
    if beyond > (readers + 0.5) * per_step:
        last = int(np.ceil(float(units.sum()) / per_step - _PARTIAL)) - 1
    return first, last


def _drawn(number: np.ndarray, steps: ProfiledSteps) -> np.ndarray:
    """A typical profiled step for each step.

    The fractions of multiples of the golden ratio choose it: they are spread evenly, without a rhythm that the job
    could share."""
    fraction = np.mod(number * 0.6180339887498949, 1.0)
    drawn: np.ndarray = steps.typical[
        np.minimum((fraction * len(steps.typical)).astype(np.int64), len(steps.typical) - 1)
    ]
    return drawn


def _made_ready(steps: ProfiledSteps, had_ns: np.ndarray) -> int:
    """Time from the last read of a batch to its step, from profiled steps that waited for it; else 0."""
    waited = steps.fetch_ns - steps.wait_ns > _WAITED * np.median(steps.end_ns - steps.begin_ns)
    took = (steps.fetch_ns - had_ns)[waited & (had_ns != NEVER)]
    return int(max(took.min(), 0)) if len(took) else 0


def _speed(latest: np.ndarray, busy: np.ndarray) -> float:
    """Duration of steps without the profiler relative to profiled ones, at most 1: profiling slows them."""
    shown = latest[latest != NEVER]
    if len(shown) <= 2 * _SPEED_STEPS:
        return 1.0
    lasts = np.median(shown[_SPEED_STEPS:] - shown[:-_SPEED_STEPS]) / _SPEED_STEPS
    return float(np.clip(lasts / max(float(np.median(busy)), 1.0), _LEAST_SPEED, 1.0))


def _ahead_reads(
    clock: ReadClock,
    steps: ProfiledSteps,
    number: np.ndarray,
    known: np.ndarray,
    busy: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Fetches if others read ahead: as late as the reads and the following steps allow, but not before the batch
    existed."""
    had_ns = clock.ended_ns(clock.amount.per_step * (number + 1) + min(clock.ahead, 0.0))
    latest = clock.begun_ns(clock.amount.per_step * number + clock.ahead)
    latest[known] = steps.fetch_ns
    busy = np.where(known, busy, (busy * _speed(latest, busy)).astype(np.int64))
    had = np.where(had_ns == NEVER, _EARLIEST, had_ns + _made_ready(steps, had_ns[known]))
    had[known] = _EARLIEST
    fetch = _as_late_as_possible(latest, had, busy, int(steps.fetch_ns[0]))
    shortest = int(np.median(steps.fetch_ns - steps.wait_ns))
    free = np.concatenate((fetch[:1] - shortest, fetch[:-1] + busy[:-1]))
    late = had > free  # the batch was not ready when the previous step ended
    return in_order(np.where(late, np.minimum(free, fetch), fetch - shortest), fetch)


def _as_late_as_possible(latest: np.ndarray, had: np.ndarray, busy: np.ndarray, begin_ns: int) -> np.ndarray:
    """The fetches: at the latest times that the reads show, else one step after the other; never before the batch `had`
    been read.

    `begin_ns`: begin if no step shows a time."""
    done = np.concatenate(([0], np.cumsum(busy)[:-1]))  # busy time of the previous steps
    least = (done * _SPREAD).astype(np.int64)
    slack = np.where(latest != NEVER, latest - least, NEVER)
    slack = np.minimum.accumulate(slack[::-1])[::-1]
    tail = slack == NEVER  # after the last read only its batch and the previous steps delay a step
    fetch = np.maximum(np.where(tail, _EARLIEST, np.where(tail, 0, slack) + least), had)
    if tail.any():
        first = int(np.argmax(tail))
        previous, before = (int(fetch[first - 1]), int(done[first - 1])) if first else (begin_ns, 0)
        reached = np.maximum(np.maximum(fetch[first:], previous) - done[first:], previous - before)
        fetch[first:] = np.maximum.accumulate(reached) + done[first:]
    ascending: np.ndarray = np.maximum.accumulate(fetch)
    return ascending
