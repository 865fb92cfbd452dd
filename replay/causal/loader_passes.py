"""The worker processes of a rank, what each of them read, and the passes over a PyTorch DataLoader to which they and
batch fetches belong. Pure.

A pass is one iterator over a loader, from its first batch until it is exhausted. A loader starts new workers for each
pass, or keeps the same ones (`persistent_workers`). The pass of a validation loader may lie within a pass of the
training loader. The fetch that ends a pass gets no batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.feed import Batches
from dxt_replay.replay.causal.training_loop import TrainingLoop
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderPass:
    """One pass over a loader with workers.

    events: int64 (n,), its batch fetches as events of the loop, in order, without the fetch that ended it.
    fetched_ns: (n,), the ends of these fetches.
    workers: the numbers of its workers, in the order of their turns.
    begin_ns, end_ns: reads of its workers that start in [begin_ns, end_ns) belong to this pass.
    """

    events: np.ndarray
    fetched_ns: np.ndarray
    workers: tuple[int, ...]
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class _Open:
    """A pass that is still being gathered: numbers of its fetches; fetch `ended` ended it."""

    workers: tuple[int, ...]
    fetches: list[int]
    ended: int | None = None


def loader_passes(
    loop: TrainingLoop, first_read_ns: Mapping[int, int], late_ns: Mapping[int, int]
) -> tuple[LoaderPass, ...]:
    """The passes in the order of their first fetches.

    first_read_ns: number of a worker, which are started in this order -> begin of its first read. late_ns: possible
    lateness of that time.
    """
    events = loop.by_workers
    if not len(events) or not first_read_ns:
        return ()
    born = _births(loop, events, first_read_ns, late_ns)
    found: list[_Open] = []
    outer: _Open | None = None
    for first, last in _fetches_of_steps(loop, events):
        births = [fetch for fetch in born if first <= fetch < last]
        segments = [(fetch, end) for fetch, end in zip(births, [*births, last][1:], strict=True)]
        before = list(range(first, births[0] if births else last))
        starts = [begin for begin, end in segments if end - begin == 1 or outer is None]
        if not starts and not before:  # the evaluation ran before the step fetched its batch
            segments[-1] = (segments[-1][0], last - 1)
            before = [last - 1]
        for begin, end in segments:
            if begin in starts[-1:]:
                continue
            found.append(_Open(workers=born[begin], fetches=list(range(begin, end - 1)), ended=end - 1))
        beyond = loop.begin_ns[events[first]] >= loop.step_end_ns[-1]
        ending = before if starts or beyond else before[:-1]
        for fetch in ending:
            if outer is not None:
                outer.ended = fetch
                outer = _Open(workers=outer.workers, fetches=[])
                found.append(outer)
        if starts:
            outer = _Open(workers=born[starts[-1]], fetches=list(range(starts[-1], dict(segments)[starts[-1]])))
            found.append(outer)
        elif before and outer is not None and not beyond:
            outer.fetches.append(before[-1])
    made = [each for each in found if each.fetches]
    made.sort(key=lambda each: each.fetches[0])
    return tuple(_closed(made, loop, events))


def _fetches_of_steps(loop: TrainingLoop, events: np.ndarray) -> Iterator[tuple[int, int]]:
    """Numbers of the fetches of each step, as first and one beyond the last."""
    step = _step_of(loop, events)
    borders = np.flatnonzero(np.diff(step)) + 1
    return zip([0, *borders.tolist()], [*borders.tolist(), len(events)], strict=True)


def _step_of(loop: TrainingLoop, events: np.ndarray) -> np.ndarray:
    """In which of the steps each event begins, int64; after the last step there is another one."""
    begins = loop.begin_ns[events]
    step: np.ndarray = np.searchsorted(loop.step_begin_ns, begins, side="right") + (begins >= loop.step_end_ns[-1])
    return step


def _births(
    loop: TrainingLoop, events: np.ndarray, first_read_ns: Mapping[int, int], late_ns: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """By number of the fetch, the workers that were started for it.

    The first batch of the j-th worker is the j-th of its pass, so its first read begins before that batch is fetched,
    while the loop waits for the first batch. Clock error may make it appear shortly after the wait. A first batch is
    the first of all, or is fetched in a step that has fetched one before.
    """
    begins, ends = loop.begin_ns[events], loop.end_ns[events]
    step = _step_of(loop, events)
    again = np.append(np.diff(step, prepend=step[0]) == 0, False)
    born: dict[int, list[int]] = {}
    last: int | None = None
    for worker, read_ns in sorted(first_read_ns.items(), key=lambda each: each[1]):
        first, until = np.searchsorted(ends, (read_ns - late_ns[worker], read_ns), side="right").tolist()
        if last is not None and first <= last + len(born[last]):
            born[last].append(worker)
        elif first < len(ends):
            last = _first_fetch(again, first, until, until < len(ends) and bool(begins[until] <= read_ns))
            born.setdefault(last, []).append(worker)
    return {fetch: tuple(sorted(workers)) for fetch, workers in born.items()}


def _first_fetch(again: np.ndarray, first: int, until: int, waiting: bool) -> int:
    """The fetch of [first, until] that a worker was started for: `until` where the loop was `waiting` in it.

    again: whether a fetch follows another fetch of its step, or is the first of all.
    """
    likely = first + np.flatnonzero(again[first : until + waiting])
    if len(likely) and not (waiting and again[until]):
        # Of several in a row, in one step, the first.
        rows = np.flatnonzero(np.diff(likely, prepend=-2) > 1)
        return int(likely[rows[-1]])
    return until if waiting or first == until else until - 1


def _closed(made: list[_Open], loop: TrainingLoop, events: np.ndarray) -> Iterator[LoaderPass]:
    """Set the begin and end of each pass: its workers' reads begin after the end of their previous pass."""
    begins = {worker: int(np.iinfo(np.int64).min) for each in made for worker in each.workers}
    for number, each in enumerate(made):
        again = any(set(later.workers) & set(each.workers) for later in made[number + 1 :])
        end = int(loop.begin_ns[events[each.ended]]) if again and each.ended is not None else np.iinfo(np.int64).max
        mine = events[np.array(each.fetches)]
        yield LoaderPass(
            events=mine,
            fetched_ns=loop.end_ns[mine],
            workers=each.workers,
            begin_ns=max(begins[worker] for worker in each.workers),
            end_ns=int(end),
        )
        begins.update(dict.fromkeys(each.workers, int(end)))
