"""The reads of a training loop as a clock that counts its steps. Pure.

A loader reads a further batch ahead only after one was fetched, so reads and fetches advance together. The units read
by each profiled fetch give the line `per_step * number + ahead`, on which the other fetches lie, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.unprofiled.batch_amount import Amount, measures, period
from dxt_replay.profiler_merge.unprofiled.loop_reads import LoopReads
from dxt_replay.profiler_merge.unprofiled.profiled_steps import ProfiledSteps

NEVER = np.iinfo(np.int64).max
_OWN_SHARE = 0.9
"""Share of reads inside the steps' own waits from which the training thread itself is the reader."""
_MOST_AHEAD = 32.0
"""Steps that an input pipeline of threads with unknown buffers may have read ahead."""
_MOST_UNSURE = 1.3
"""Largest ratio of a step's largest and smallest possible amount with which steps are placed."""
_LEAST_LAG = 4
"""Shortest rhythm of batches, unless each profiled step has it: a shorter one may be that of a file's reads."""
_LOADED = 3.0
"""Batches of reads that a thread may do before its first step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadClock:
    """The clock.

    reads: those of the loop.
    amount: what one step consumes.
    ahead: units that have been read at a fetch beyond those of the steps before.
    synchronous: whether the training thread itself reads.
    """

    reads: LoopReads
    amount: Amount
    ahead: float
    synchronous: bool

    def begun_ns(self, units: np.ndarray) -> np.ndarray:
        """Begin of the read that exceeds each number of units; NEVER beyond the last."""
        total = np.cumsum(self.amount.units)
        return _at(self.reads.start_ns, np.searchsorted(total, units + 1e-6 * self.amount.per_step, side="right"))

    def ended_ns(self, units: np.ndarray) -> np.ndarray:
        """Time at which each number of units had been read; NEVER beyond the last."""
        order = np.argsort(self.reads.end_ns, kind="stable")
        total = np.cumsum(self.amount.units[order])
        return _at(self.reads.end_ns[order], np.searchsorted(total, units - 1e-6 * self.amount.per_step, side="left"))


def _at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    if not len(times):
        return np.full(len(index), NEVER)
    return np.where(index < len(times), times[np.minimum(index, len(times) - 1)], NEVER)


def read_clock(reads: LoopReads, steps: ProfiledSteps) -> ReadClock | str:
    """The clock that fits the profiled steps; a text with the reason if there is none."""
    if not len(reads):
        return "no reads were traced that feed the profiled steps"
    synchronous = _synchronous(reads, steps)
    for measure, units in measures(reads, files_first=not synchronous):
        found = _by_bytes(reads, units, steps) if measure == "bytes" else _by_rhythm(reads, units, steps, synchronous)
        if found is not None:
            return found
    return "the profiled steps are too few, or too early in the job, to show how much one step reads"


def _by_rhythm(reads: LoopReads, units: np.ndarray, steps: ProfiledSteps, synchronous: bool) -> ReadClock | None:
    """The clock from the gaps between batches; None if they do not show."""
    if not synchronous and not (reads.process != 0).any():
        return None  # threads of one process that read ahead do not follow the loop's rhythm
    at_fetch = units_before(reads, units, steps.wait_ns if synchronous else steps.fetch_ns)
    found = _per_step(steps.number, at_fetch, reads.readers, None if synchronous else 4.0 * reads.readers + 2)
    lag = period(reads, units > 0, found.low, found.high)
    if lag is None:
        return None
    each_has_it = synchronous and len(at_fetch) > _LEAST_LAG and bool((np.diff(at_fetch) == lag).all())
    if lag < _LEAST_LAG and not each_has_it:
        return None
    if synchronous and at_fetch[0] > lag * (_LOADED + 1.05 * steps.number[0]):
        return None  # far more was read than the earlier steps consumed: threads read ahead
    ahead = at_fetch - lag * steps.number
    return ReadClock(
        reads=reads,
        amount=Amount(per_step=lag, units=units, unsure=0.0),
        # Where the data end, less is read ahead.
        ahead=float(np.median(ahead) if synchronous else ahead.max()),
        synchronous=synchronous,
    )


def _by_bytes(reads: LoopReads, units: np.ndarray, steps: ProfiledSteps) -> ReadClock | None:
    """The clock from bytes, if the reads before the profile determine the bytes of a step well enough; else None."""
    by_workers = bool((reads.process != 0).any())
    at_fetch = units_before(reads, units, steps.fetch_ns)
    most_ahead = 2.0 * reads.readers + 1.5 if by_workers else _MOST_AHEAD
    found = _per_step(steps.number, at_fetch, reads.readers, most_ahead, _unsteady(steps.number, at_fetch))
    if not 0 < found.low <= found.high <= _MOST_UNSURE * found.low:
        return None
    return ReadClock(
        reads=reads,
        amount=Amount(per_step=found.likely, units=units, unsure=found.high / found.low - 1),
        ahead=float(np.median(at_fetch - found.likely * steps.number)),
        synchronous=False,
    )


def _synchronous(reads: LoopReads, steps: ProfiledSteps) -> bool:
    """Whether the training thread itself reads: in its input waits or, if the profile shows none, in its steps."""
    ends = steps.fetch_ns if steps.waits else steps.end_ns
    place = np.searchsorted(steps.begin_ns, reads.start_ns, side="right") - 1
    inside = (place >= 0) & (reads.start_ns < steps.end_ns[place])
    own = inside & (reads.process == 0)
    in_wait = own & (reads.start_ns >= steps.wait_ns[place]) & (reads.end_ns <= ends[place])
    return bool(inside.any() and in_wait.sum() >= _OWN_SHARE * inside.sum())


def units_before(reads: LoopReads, units: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Number of units whose reads had begun before each time."""
    total = np.concatenate(([0.0], np.cumsum(units)))
    before: np.ndarray = total[np.searchsorted(reads.start_ns, times, side="left")]
    return before


@dataclass(frozen=True, slots=True, kw_only=True)
class _PerStep:
    """Units of one step: the least, the likely, and the most."""

    low: float = 0.0
    likely: float = 0.0
    high: float = 0.0


def _unsteady(number: np.ndarray, at_fetch: np.ndarray) -> float:
    """Relative uncertainty of the reads between profiled steps: twice the standard error of their mean, over
    the mean."""
    each = np.diff(at_fetch) / np.diff(number)
    if len(each) < 2 or not each.mean():
        return 1.0
    return max(float(2 * each.std() / (each.mean() * len(each) ** 0.5)), 0.01)


def _per_step(
    number: np.ndarray, at_fetch: np.ndarray, readers: int, most_ahead: float | None, unsteady: float = 0.0
) -> _PerStep:
    """The units of one step, from the reads between the profiled steps and before them.

    `most_ahead`: most steps by which reads may be ahead; None if the training thread itself reads.
    `unsteady`: as `_unsteady`; 0 for units whose rhythm decides.
    """
    slack = 0.25 if most_ahead is None else min(2.0 * readers, most_ahead)
    apart, read = float(number[-1] - number[0]), float(at_fetch[-1] - at_fetch[0])
    between = None
    if apart and read:
        noise = 1 + unsteady
        between = _PerStep(
            low=read / (apart + slack) / noise,
            likely=read / apart,
            high=read / max(apart - slack, apart / 2) * noise,
        )
    first = float(number[0])
    # Before its first step a thread may read other data than batches.
    if first <= 1 or not at_fetch[0] or (between is not None and most_ahead is None):
        return between or _PerStep()
    before = _PerStep(
        low=at_fetch[0] / (first + (0.5 if most_ahead is None else most_ahead)),
        likely=at_fetch[0] / (first + (0.0 if most_ahead is None else min(1.5 * readers, most_ahead))),
        high=at_fetch[0] / max(first - 0.5, 0.5),
    )
    if between is None:
        return before
    low, high = max(between.low, before.low), min(between.high, before.high)
    if low > high:  # a rhythm of the profiled steps holds for any reads before them
        return _PerStep() if unsteady else between
    closer = min(between, before, key=lambda one: one.high - one.low)
    return _PerStep(low=low, likely=min(max(closer.likely, low), high), high=high)
