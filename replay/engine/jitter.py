"""The jitter probe: how late this machine wakes a thread that does nothing but wait.

During the run a thread beside the lanes waits again and again for the next multiple of a period, in the same way as
the issue loop waits. Lag that the probe shows too is caused by the machine. Lag beyond it is caused by the replayer or
by the storage.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.issue import record_lateness
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.units import NS_PER_S

DEFAULT_RATE_PER_S = 500  # Waits a second
STALL_RATE_PER_S = 50  # Waits a second of a probe that looks for stalls alone, in each further process of a node
MOST_STALLS = 1000  # Stalls that a probe remembers, the first ones
SUB_BUCKET_BITS = 6
EXACT_BUCKETS = 2 << SUB_BUCKET_BITS
"""Each time below 128 ns has a bucket, each power of two above has 64 buckets: percentiles are right to 1.6 %. The
buckets of `replay.engine.issue.bucket_of`."""

BUCKETS = ((62 - SUB_BUCKET_BITS) << SUB_BUCKET_BITS) + EXACT_BUCKETS
"""Enough buckets for every int64: 30 KB, however long the probe runs."""


class JitterProbe:
    """Measures how late waits end, between `start` and `stop`, in a thread of its own.

    `rate_per_s`: waits a second. `processors`: how many this process may use, its share where others use them too.
    While the machine stands still, each missed instant counts with its lateness, as an operation would.
    """

    def __init__(self, *, rate_per_s: float = DEFAULT_RATE_PER_S, processors: float = 1.0) -> None:
        self._period_ns = round(NS_PER_S / rate_per_s)
        self._stop = StopFlag()
        self._counts = np.zeros(BUCKETS, dtype=np.int64)
        self._stalls = np.zeros((MOST_STALLS, 2), dtype=np.int64)
        self._processors = processors
        self._max_ns = 0
        self._thread = threading.Thread(target=self._run, name="jitter probe", daemon=True)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def start(self) -> None:
        """Begin to measure. Raises: RuntimeError the second time."""
        self._thread.start()

    def stop(self) -> None:
        """End within a period, after at least one wait. Does nothing the second time."""
        self._stop.set()
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def lateness_ns(self) -> Distribution:
        """Lateness of the ends of waits, ns. Call it after `stop`; the distributions of several nodes can be added."""
        found = np.flatnonzero(self._counts)
        middles = bucket_middle_ns(found)
        middles[-1:] = self._max_ns  # known exactly
        counts = self._counts[found]
        return Distribution(
            values=middles,
            counts=counts,
            total=float(middles @ counts),
            minimum=float(middles[0]) if len(found) else 0.0,
            maximum=float(self._max_ns),
            exact=False,
        )

    def stalls(self, start_ns: int) -> Intervals:
        """When this process stood still, ns from `start_ns` of CLOCK_MONOTONIC on. Call it after `stop`."""
        begins, ends = np.maximum(self._stalls - start_ns, 0).T
        return Intervals.union_of(begins, ends)

    def _run(self) -> None:
        self._max_ns = record_lateness(self._counts, self._stalls, self._stop, self._period_ns, self._processors)


def bucket_middle_ns(buckets: np.ndarray) -> np.ndarray:
    """float64 (n,), the middle time of each bucket in ns. `buckets` int64 (n,): their indices."""
    shift = np.maximum(0, (buckets >> SUB_BUCKET_BITS) - 1)
    lowest = (buckets - (shift << SUB_BUCKET_BITS)) << shift
    middle: np.ndarray = lowest + ((1 << shift) - 1) / 2
    return middle
