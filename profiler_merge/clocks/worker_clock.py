"""The clock of a DataLoader's worker. No profile shows it, so the batch requests of the training thread of its rank do.

A worker that is far enough ahead sleeps until the training thread takes a batch and sends it the number of another. The
thread does that inside the loader's `__next__`. So each long pause between two reads of a worker ends inside a
`__next__`, or a moment later. The offset of the worker is the one at which most pauses do.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from dxt_replay.profiler_merge.clocks.alignment import align_to_marks
from dxt_replay.profiler_merge.clocks.anchors import anchor_pid, anchors_of
from dxt_replay.profiler_merge.clocks.nesting import align_nesting
from dxt_replay.profiler_merge.clocks.offsets import WALL_NS, Alignment
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.rank_segments import RankSegments
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import RankMarks
from dxt_replay.profiler_merge.profiles.spans import main_line
from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.units import NS_PER_MS

_NEXT = r"enumerate\(DataLoader\)#.*MultiProcessing.*__next__"
_WAKES_NS = NS_PER_MS
"""Longest time from the request to the begin of a worker's read."""
_SLOWEST_NS = 2 * NS_PER_MS
"""Time by which a worker may have begun later without being counted; it widens the interval."""
_LEAST_PAUSE_NS = 4 * NS_PER_MS
_LEAST_PAUSES = 8
_LEAST = (1.35, 0.8)
"""Least ratio of pauses that end in requests to those at any other offset, and least share of all pauses."""


def align_worker(segments: RankSegments, log: DarshanLog, profile: Profile | None) -> Alignment | None:
    """The offset of a worker's log; None if its rank's profile, or its reads, do not show it.

    `profile`: of the rank's own process.
    """
    if profile is not None and profile.marks is not None:
        return _by_marks(segments, log, profile.marks)
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


def _by_marks(segments: RankSegments, log: DarshanLog, marks: RankMarks) -> Alignment | None:
    """The offset from the anchors in the worker's own file of marks."""
    pids = {pid for pid in map(anchor_pid, log.names.values()) if pid is not None}
    for pid in pids & marks.processes.keys():
        with suppress(AlignmentError):
            return align_to_marks(segments, log, anchors_of(marks.processes[pid]))
    return None


def worker_offset(
    start_ns: np.ndarray, end_ns: np.ndarray, asked_ns: np.ndarray, answered_ns: np.ndarray
) -> Alignment | None:
    """The offset from a worker's reads (log clock) and the batch requests (CLOCK_REALTIME), all int64, in any order.

    None if too few pauses of the worker end in requests."""
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
