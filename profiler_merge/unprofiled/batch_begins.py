"""The begins of batches among reads of the training thread itself: the long gaps between them. Pure.

From the profiled steps in both directions, the next batch begins about one batch's number of reads further; the longest
gap near there is the step's computation. So occasional reads, such as metadata, do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.unprofiled.batch_amount import Amount
from dxt_replay.profiler_merge.unprofiled.loop_reads import LoopReads
from dxt_replay.profiler_merge.unprofiled.profiled_steps import ProfiledSteps

_STRAY = 0.35
"""Largest distance of a batch's begin from its expected place, as a share of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchBegins:
    """Batches: indices of their first reads, and times at which each batch had been read.

    number: steps, ascending by one.
    begun_ns: begin of its first read.
    had_ns: end of its last read.
    """

    number: np.ndarray
    begun_ns: np.ndarray
    had_ns: np.ndarray

    @property
    def limits(self) -> tuple[int, int]:
        """First and last step."""
        return int(self.number[0]), int(self.number[-1])

    def times(self, steps: ProfiledSteps, number: np.ndarray, busy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When each of the steps `number` began to wait and had its batch: a moment before its first read and after its
        last, as in the profiled steps.

        Steps without reads directly follow the previous one."""
        begun, had = np.full(len(number), -1), np.full(len(number), -1)
        shown = np.isin(number, self.number)
        place = np.searchsorted(self.number, number[shown])
        begun[shown], had[shown] = self.begun_ns[place], self.had_ns[place]
        known = np.isin(number, steps.number) & shown
        mine = np.searchsorted(steps.number, number[known])
        before = max(int(np.median(begun[known] - steps.wait_ns[mine])), 0)
        after = max(int(np.median(steps.fetch_ns[mine] - had[known])), 0)
        wait = begun - before
        fetch = had + after if steps.waits else wait.copy()
        for row in np.flatnonzero(~shown).tolist():
            wait[row] = fetch[row] = fetch[row - 1] + busy[row - 1] if row else int(self.begun_ns[0]) - before
        return in_order(wait, fetch)


def in_order(wait: np.ndarray, fetch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times, corrected so that no step begins to wait before the previous one had its batch, or has its batch
    before it waits."""
    fetch = np.maximum.accumulate(np.maximum(wait, fetch))
    wait = np.minimum(np.maximum(wait, np.concatenate((wait[:1], fetch[:-1]))), fetch)
    return wait, fetch


def batch_begins(reads: LoopReads, amount: Amount, steps: ProfiledSteps) -> BatchBegins:
    """The batches of all steps that the reads show, including the profiled ones."""
    reach = np.maximum.accumulate(reads.end_ns)
    counted = np.flatnonzero(amount.units > 0)
    gap = np.concatenate(([np.iinfo(np.int64).max], reads.start_ns[1:] - reach[:-1]))[counted]
    known = np.searchsorted(reads.start_ns[counted], steps.wait_ns, side="left")
    begins: dict[int, int] = dict(zip(steps.number.tolist(), known.tolist(), strict=True))
    for number, row in list(begins.items()):
        if number + 1 not in begins:
            later = [other for other in steps.number.tolist() if other > number]
            _walk(gap, begins, number, row, amount.per_step, +1, until=min(later, default=None))
    first = int(steps.number[0])
    if first > 1:
        _walk(gap, begins, first, begins[first], amount.per_step, -1, until=-1)
    found = [(one, row) for one, row in sorted(begins.items()) if row < len(counted)]
    numbers, rows = np.array(found, dtype=np.int64).T
    first_read = counted[rows]
    last_of_all = counted[min(int(rows[-1] + np.ceil(amount.per_step)), len(counted) - 1)]
    lasts = np.append(first_read[1:], max(int(last_of_all), int(first_read[-1]) + 1)) - 1
    if rows[-1] + amount.per_step >= len(counted):
        lasts[-1] = len(reads) - 1
    return BatchBegins(number=numbers, begun_ns=reads.start_ns[first_read], had_ns=reach[np.maximum(lasts, first_read)])


def _walk(
    gap: np.ndarray, begins: dict[int, int], number: int, row: int, per_step: float, by: int, *, until: int | None
) -> None:
    """Note the begins of the batches of the following steps, until the reads or the steps end."""
    stray = max(1, int(per_step * _STRAY))
    while True:
        number += by
        expected = row + by * round(per_step)
        if number == until or expected + stray // 2 >= len(gap) or expected + stray < 0:
            return
        low, high = max(expected - stray, 0 if by < 0 else row + 1), min(expected + stray + 1, len(gap))
        if by < 0:
            high = min(high, row)
        if high <= low:
            return
        row = low + int(np.argmax(gap[low:high]))
        begins[number] = row
