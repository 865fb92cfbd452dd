"""The worker processes of a DataLoader over time: how many read at once, and whether they are restarted. Pure.

A worker is a process with its own log, and so its own clock. Its life lasts from its first read to its last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures.span_times import evaluations_by_rank, whole_steps
from dxt_replay.traces.schema import READ, TRACED, codes
from dxt_replay.traces.store.reader import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarts:
    """`at_once`: most workers of a rank that read at the same time.
    `starts`: how often workers began after all earlier ones had done their last read: 1 if they serve all epochs.
    Workers of evaluations are left out."""

    at_once: int
    starts: int


def worker_starts(capture: Capture) -> WorkerStarts | None:
    """The workers of the rank with most of them; None without workers that read in its training loop.

    Raises: CaptureError when a part cannot be read.
    """
    most = max(capture.info.clock, key=lambda clock: clock.worker, default=None)
    if most is None or not most.worker or most.rank not in capture.ranks:
        return None
    reads: dict[int, tuple[int, int]] = {}  # by lane, the start of its first traced read and the end of its last
    for batch in capture.operations(most.rank, columns=["lane", "op", "origin", "start_ns", "end_ns"]):
        mine = (codes(batch, "op") == READ) & (codes(batch, "origin") == TRACED)
        lane, start, end = (batch.column(name).to_numpy()[mine] for name in ("lane", "start_ns", "end_ns"))
        for each in np.unique(lane).tolist():
            first, last = int(start[lane == each].min()), int(end[lane == each].max())
            before = reads.get(each, (first, last))
            reads[each] = min(before[0], first), max(before[1], last)
    # The last lanes are those of the workers, behind those of their rank.
    lives = np.array(sorted(reads[lane] for lane in sorted(reads)[-most.worker :]), dtype=np.int64).reshape(-1, 2)
    first_ns, last_ns = lives.T
    steps = whole_steps(capture.spans)
    ends_ns = steps["end_ns"].to_numpy()[steps["rank"].to_numpy() == most.rank]
    training = first_ns < ends_ns.max(initial=0)
    if (evaluated := evaluations_by_rank(capture.spans).get(most.rank)) is not None:
        training &= evaluated.covered_within(first_ns, first_ns + 1) == 0
    first_ns, last_ns = first_ns[training], last_ns[training]
    if not len(first_ns):
        return None
    ended = np.searchsorted(np.sort(last_ns), first_ns)
    begun = np.arange(len(first_ns))
    return WorkerStarts(at_once=int((begun - ended).max()) + 1, starts=int((begun == ended).sum()))
