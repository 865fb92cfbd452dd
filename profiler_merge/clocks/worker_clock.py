"""The clock of a DataLoader's worker, which no profile shows, from when its rank's training thread asks for batches.

A worker that is far enough ahead sleeps until the training thread has taken a batch and sends it the number of another,
inside the loader's `__next__`. So each long pause between the reads of a worker ends inside a `__next__`, or a moment
after it: the offset at which most pauses do is that of the worker's clock.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.clocks.nesting import align_nesting
from dxt_replay.profiler_merge.clocks.offsets import WALL_NS, Alignment
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.spans import main_line
from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.units import NS_PER_MS

_NEXT = r"enumerate\(DataLoader\)#.*MultiProcessing.*__next__"
_WAKES_NS = NS_PER_MS
"""How long after the request a worker may begin to read and still count."""
_SLOWEST_NS = 2 * NS_PER_MS
"""How much later it may have begun without being counted: what the interval is wider for."""
_LEAST_PAUSE_NS = 4 * NS_PER_MS
_LEAST_PAUSES = 8
_LEAST = (1.35, 0.8)
"""How many times as many pauses as at any other offset must end in requests, and which part of all."""


def align_worker(segments: RankSegments, log: DarshanLog, profile: Profile | None) -> Alignment | None:
    """The offset of a worker's log; None where its rank's profile, or its reads, do not show it.

    `profile`: of the rank's own process.
    """
    if profile is None or profile.torch is None or profile.epoch_start_ns is None or not log.job.has_nsec:
        return None
    asked = profile.names_matching(_NEXT)[profile.name] & (profile.line == main_line(profile))
    reads = ~segments.is_write & (segments.length > 0)
    return worker_offset(
        segments.start_ns[reads] + log.job.start_ns,
        segments.end_ns[reads] + log.job.start_ns,
        profile.start_ns[asked],
        profile.end_ns[asked],
    )


def worker_offset(
    start_ns: np.ndarray, end_ns: np.ndarray, asked_ns: np.ndarray, answered_ns: np.ndarray
) -> Alignment | None:
    """The offset from a worker's reads (log clock) and the requests for a batch (CLOCK_REALTIME), all int64, in any
    order; None where too few pauses of the worker end in requests."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    woke = start_ns[1:][start_ns[1:] - reach[:-1] > _LEAST_PAUSE_NS]
    if len(woke) < _LEAST_PAUSES or not len(asked_ns):
        return None
    try:
        found = align_nesting(woke, woke, asked_ns, answered_ns + _WAKES_NS, window_ns=WALL_NS, least=_LEAST)
    except AlignmentError:
        return None
    low, high = found.interval_ns[0], min(found.interval_ns[1] + _SLOWEST_NS, WALL_NS[1])
    return Alignment(
        method="nesting",
        offset_ns=found.offset_ns,
        residual_ns=max(high - found.offset_ns, found.offset_ns - low),
        interval_ns=(low, high),
        evidence=found.evidence,
    )
