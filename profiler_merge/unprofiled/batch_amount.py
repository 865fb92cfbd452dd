"""The amount that one step reads: from the profiled steps, and from the rhythm of the reads over the whole job. Pure.

A process that reads batches pauses between them, to hand the batch on or to wait for a free place. So long gaps before
its reads recur with the number of reads in a batch, and their autocorrelation has its peak there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.unprofiled.loop_reads import LoopReads

LEAST_RHYTHM = 0.4
"""Least autocorrelation of gaps that count as periodic."""
_NEARLY = 0.88
"""Share of the highest autocorrelation that the period reaches. The shortest such lag is taken, because its multiples
are as high."""
_FILES_SHARE = 0.02
"""Least share of the reads that are the first of their file, for counting files."""
_MOST_LAGS = 1 << 12
_MOST_GAPS = 1 << 16
"""Most gaps of one process that are examined: enough for any rhythm, and a bound on the time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Amount:
    """The amount that one step consumes.

    per_step: in units.
    units: float64 by read of `LoopReads`, how much each read counts.
    unsure: relative difference of the largest possible amount to the smallest, 0.1 for 10 %; 0 if the gaps between the
    reads show it exactly.
    """

    per_step: float
    units: np.ndarray
    unsure: float


def measures(reads: LoopReads, *, files_first: bool) -> list[tuple[str, np.ndarray]]:
    """The units by which reads can be counted, the most informative first; each float64 by read."""
    found = [("reads", np.ones(len(reads)))]
    if reads.opens.sum() >= _FILES_SHARE * len(reads):
        found.insert(0 if files_first else 1, ("files", reads.opens.astype(np.float64)))
    return [*found, ("bytes", reads.length.astype(np.float64))]


def period(reads: LoopReads, counted: np.ndarray, low: float, high: float) -> float | None:
    """Number of `counted` reads (bool) of a process from one long gap to the next; None without a rhythm.

    Searches only periods from `low` to `high`.
    """
    lags = np.arange(max(1, int(np.ceil(low))), int(min(np.floor(high), _MOST_GAPS)) + 1)
    sequences = _log_gaps(reads, counted)
    if not 0 < len(lags) <= _MOST_LAGS or not sequences:
        return None
    scores = np.array([_autocorrelation(sequences, int(lag)) for lag in lags])
    best = float(scores.max())
    if not best >= LEAST_RHYTHM:
        return None
    return float(lags[np.argmax(scores >= _NEARLY * best)])


def _log_gaps(reads: LoopReads, counted: np.ndarray) -> list[np.ndarray]:
    """Length of the gap before each counted read, on a scale for rhythms: one sequence per process."""
    sequences = []
    for process in np.unique(reads.process):
        mine = np.flatnonzero(reads.process == process)
        free = np.concatenate(([0], reads.start_ns[mine][1:] - np.maximum.accumulate(reads.end_ns[mine])[:-1]))
        sequences.append(np.log(np.maximum(free[counted[mine]][1:], 1000)))
    # Only gaps above the usual count, and longer ones count more: a large batch has many short ones.
    return [np.maximum(gaps - np.median(gaps), 0)[:_MOST_GAPS] ** 2 for gaps in sequences if len(gaps) > 3]


def _autocorrelation(sequences: list[np.ndarray], lag: int) -> float:
    pairs = [(gaps[:-lag], gaps[lag:]) for gaps in sequences if len(gaps) > lag + 2]
    if not pairs:
        return -1.0
    one, other = (np.concatenate(side) for side in zip(*pairs, strict=True))
    if len(one) < 2 * lag or one.std() == 0 or other.std() == 0:
        return -1.0
    return float(np.corrcoef(one, other)[0, 1])
