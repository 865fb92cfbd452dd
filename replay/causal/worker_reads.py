"""The worker processes of a rank, and what each of them read. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.feed import Batches
from dxt_replay.traces.schema import OPS, READ

MAX_OPERATIONS = 20_000_000
"""Operations of a rank's workers up to which they are dealt: they are held in memory, 25 bytes each."""

_CLOSE = OPS.index("close")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The lanes of a worker process, and the possible lateness of its clock, ns."""

    lanes: tuple[int, ...]
    late_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcesses:
    """What a capture says of the worker processes of a rank.

    pids: lane -> process, of the lanes in workers. late_ns: possible lateness of the clock of each worker, ns, in the
    order of their lanes; empty if all processes have one clock.
    """

    pids: Mapping[int, int]
    late_ns: tuple[int, ...] = ()

    def reading(self, lanes: Collection[int]) -> tuple[Worker, ...]:
        """The workers, by start, that have some of these `lanes`, which read for the loop.

        Processes have ascending ids as they start, unless a clock of its own gives each a number. Operations rebuilt
        from counters may have lanes beside the one in which a worker reads.
        """
        groups: dict[int, list[int]] = {}
        for lane in sorted(lanes):
            if lane in self.pids:
                groups.setdefault(self.pids[lane], []).append(lane)
        if not self.late_ns:
            return tuple(Worker(lanes=tuple(groups[pid]), late_ns=0) for pid in sorted(groups))
        made = list(groups.values()) if groups else [[lane] for lane in sorted(lanes)]
        pairs = zip(reversed(made), reversed(self.late_ns), strict=False)
        return tuple(Worker(lanes=tuple(own), late_ns=late_ns) for own, late_ns in pairs)[::-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerReads:
    """The reads of one worker, or of one pass of it, by start; arrays (reads,).

    end_ns: when it and those before it had ended.
    next: number of the first operation of its lane after the read and a close right behind that.
    begin: lane -> number of its first operation.
    """

    lane: np.ndarray
    next: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray
    begin: Mapping[int, int]

    def earlier(self, late_ns: int) -> WorkerReads:
        """The same reads, `late_ns` earlier."""
        return dataclasses.replace(self, start_ns=self.start_ns - late_ns, end_ns=self.end_ns - late_ns)

    def between(self, begin_ns: int, end_ns: int) -> WorkerReads:
        """Those that start in [begin_ns, end_ns)."""
        first, last = np.searchsorted(self.start_ns, (begin_ns, end_ns)).tolist()
        names = ("lane", "next", "start_ns", "end_ns", "length")
        columns = {name: getattr(self, name)[first:last] for name in names}
        return WorkerReads(**columns, begin={lane: int(self.first(lane, np.array([first]))[0]) for lane in self.begin})

    def first(self, lane: int, before: np.ndarray) -> np.ndarray:
        """(n,), the lane's first operation after so many reads of the worker, and a close right behind them."""
        mine = np.flatnonzero(self.lane == lane)
        found: np.ndarray = np.append(self.begin[lane], self.next[mine])[np.searchsorted(mine, before)]
        return found


def worker_reads(batches: Batches, workers: Sequence[Worker]) -> dict[int, WorkerReads]:
    """The reads of each worker; empty where there are too many operations to be held."""
    parts: dict[int, list[tuple[np.ndarray, ...]]] = {lane: [] for worker in workers for lane in worker.lanes}
    held = 0
    for batch in batches():
        for lane in np.unique(batch.lane).tolist():
            if lane in parts:
                mine = np.flatnonzero(batch.lane == lane)
                columns = (batch.op[mine], batch.start_ns[mine], batch.end_ns[mine], batch.length[mine])
                parts[lane].append(columns)
                held += len(mine)
        if held > MAX_OPERATIONS:
            return {}
    found = {}
    for number, worker in enumerate(workers):
        lanes = [_lane_reads(lane, parts[lane]) for lane in worker.lanes if parts[lane]]
        if sum(len(each[0]) for each in lanes):
            lane, following, start, end, length = (np.concatenate(columns) for columns in zip(*lanes, strict=True))
            order = np.argsort(start, kind="stable")
            found[number] = WorkerReads(
                lane=lane[order],
                next=following[order],
                start_ns=start[order],
                end_ns=np.maximum.accumulate(end[order]),
                length=length[order],
                begin=dict.fromkeys(worker.lanes, 0),
            )
    return found


def _lane_reads(lane: int, made: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The reads of a lane as columns of `WorkerReads`, whose `end_ns` is that of each read alone."""
    op, start, end, length = (np.concatenate(columns) for columns in zip(*made, strict=True))
    place = np.flatnonzero(op == READ)
    following = place + 1 + (np.append(op, READ)[place + 1] == _CLOSE)
    return np.full(len(place), lane), following, start[place], end[place], length[place]
