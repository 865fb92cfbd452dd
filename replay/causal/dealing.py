"""Finds how a PyTorch DataLoader dealt batches to its workers: the batch that each operation of a worker makes. Pure.

Worker w of n makes the batches w, w + n, w + 2 n ... of a pass, one after the other. A worker whose shard is exhausted
drops out. A pass that was resumed (torchdata's StatefulDataLoader) goes on with the worker whose turn it was. The loop
takes the batches in the order of their index. When it takes a batch, the same worker may begin
another: the worker's batch k waits until its batch k - p was fetched, where p is the `prefetch_factor`.

A worker may read with several threads, which have a lane each: the reads of all of them make its batches, and none of
them begins a batch before all have ended the one before.

A log shows none of this, so it is inferred from the reads. Either a worker reads the same amount for each batch
(map-style data sets), or the longest pauses separate its batches. A batch is read after its turn and before its fetch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.feed import Batches
from dxt_replay.replay.causal.loader_passes import LoaderPass, Worker, WorkerReads, loader_passes, worker_reads
from dxt_replay.replay.causal.training_loop import RESUMABLE_WORKERS, TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch

CLOCK_SLACK_NS = 10_000_000
"""By how much the clock of a worker's log may differ from that of the profile, ns; less for short steps."""

LATEST_SHARE = 0.98
"""Share of the batches that a worker's clock must allow to have been made before they were fetched."""

MIN_DROPPED_ROUNDS = 6
"""A worker that ends as many rounds of batches before another one has dropped out: its shard was exhausted."""

PAUSES_KEPT = 0.8
"""Batches of equally many reads are right only if the pauses between them are about as long as pauses can be."""

MIN_CONSISTENT = 0.95
"""Share of the batches that must have been read before they were fetched for the model to be used."""

MAX_MISSING = 0.25
"""Largest share of the batches for which nothing was read although their worker went on to read."""

RESUMED = 0.5
"""Another worker than the first has the first turn if the begins of the batches are then explained this much better."""

LEAST_TURNS = 2
"""Batches of each worker, beyond its first ones, without which the begins of batches say nothing of the turns."""

MAX_PREFETCH = 32
"""Largest `prefetch_factor` that is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneDeal:
    """The batches for which one lane of a worker read, in order; arrays (batches,).

    first: number of the lane's operation that begins the batch.
    event: the event of the loop that fetches it, NO_EVENT for none.
    after_event: the batch fetch after which the batch may begin; the first fetch of the pass if `is_early`.
    is_early: bool, whether the batch may begin with its pass.
    ready_ns: time from its last operation until the batch was ready.
    behind: the event that fetches the batch before, which the worker's other lanes must have read; NO_EVENT for none.
    behind_ns: when that batch was ready.
    late_ns: lateness of the clock of the worker's log, one number.
    others: the worker's other lanes.
    """

    first: np.ndarray
    event: np.ndarray
    after_event: np.ndarray
    is_early: np.ndarray
    ready_ns: np.ndarray
    behind: np.ndarray
    behind_ns: np.ndarray
    late_ns: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dealing:
    """How the batches of a rank were dealt.

    lanes: lane of a worker -> its batches.
    passes: number of passes over loaders with workers.
    workers, prefetch: number of workers and `prefetch_factor` of the pass with the most batches.
    persistent: whether workers served more than one pass.
    consistent: share of the batches that were read before they were fetched.
    """

    lanes: Mapping[int, LaneDeal]
    passes: int
    workers: int
    prefetch: int
    persistent: bool
    consistent: float

    def placed(self, batch: OperationBatch) -> OperationBatch:
        """The operations; those of workers moved to the clock of the loop."""
        late = np.zeros(len(batch.lane), dtype=np.int64)
        for lane, deal in self.lanes.items():
            late[batch.lane == lane] = deal.late_ns
        return dataclasses.replace(batch, start_ns=batch.start_ns - late, end_ns=batch.end_ns - late)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What one worker did in one pass: its reads, and of each of its batches the event and the end of its fetch.

    cuts: int64 (batches,), the number of reads before the end of each batch.
    """

    worker: int
    reads: WorkerReads
    events: np.ndarray
    fetched_ns: np.ndarray
    cuts: np.ndarray

    @property
    def ends_ns(self) -> np.ndarray:
        """When the last read of each batch ended; the smallest number for a batch without reads."""
        begins = np.concatenate(([0], self.cuts[:-1]))
        ends = np.concatenate((self.reads.end_ns, [0]))[np.maximum(self.cuts, 1) - 1]
        return np.where(self.cuts > begins, ends, np.iinfo(np.int64).min)

    @property
    def late(self) -> np.ndarray:
        """Which batches were fetched before they had been read."""
        return self.ends_ns > self.fetched_ns + CLOCK_SLACK_NS

    @property
    def missing(self) -> np.ndarray:
        """Which batches have no reads although later batches have some."""
        return (np.diff(self.cuts, prepend=0) == 0) & (self.cuts < len(self.reads.start_ns))

    @property
    def beyond(self) -> float:
        """Number of batches that were read but never fetched."""
        read = int(self.cuts[-1])
        return (len(self.reads.start_ns) - read) * len(self.cuts) / max(read, 1)

    @property
    def starts_ns(self) -> np.ndarray:
        """When the first read of each batch began; the largest number for a batch without reads."""
        begins = np.concatenate(([0], self.cuts[:-1]))
        starts = np.concatenate((self.reads.start_ns, [np.iinfo(np.int64).max]))[begins]
        return np.where(self.cuts > begins, starts, np.iinfo(np.int64).max)


def dealing(loop: TrainingLoop, batches: Batches, workers: Sequence[Worker]) -> Dealing | None:
    """Find how the batches were dealt; None if the loop has no DataLoader with workers, or the reads contradict it.

    `workers`: in the order in which they were started.
    """
    if not len(loop.fetches) or not workers or not len(loop.by_workers):
        return None
    reads = worker_reads(batches, workers)
    may_be_late = {number: worker.late_ns for number, worker in enumerate(workers)}
    passes = loader_passes(loop, {worker: int(each.start_ns[0]) for worker, each in reads.items()}, may_be_late)
    late = _late_ns(passes, reads, may_be_late)
    reads = {worker: each.earlier(late.get(worker, 0)) for worker, each in reads.items()}
    if passes and loop.loader[passes[0].events[0]] == RESUMABLE_WORKERS:  # only the first pass can be a resumed one
        passes = (_resumed(passes[0], reads), *passes[1:])
    found = [_dealt_pass(each, reads) for each in passes]
    parts = [part for each, _ in found for part in each]
    if not parts:
        return None
    consistent = 1.0 - float(np.concatenate([part.late for part in parts]).mean())
    missing = float(np.concatenate([part.missing for part in parts]).mean())
    beyond = any(part.beyond > prefetch + 2 for each, prefetch in found for part in each)
    if consistent < MIN_CONSISTENT or missing > MAX_MISSING or beyond:
        return None
    largest = max(range(len(passes)), key=lambda number: len(passes[number].events))
    return Dealing(
        lanes=_lane_deals(found, workers, late),
        passes=len(passes),
        workers=len(passes[largest].workers),
        prefetch=found[largest][1],
        persistent=len({one for each in passes for one in each.workers}) < sum(len(each.workers) for each in passes),
        consistent=consistent,
    )


def _late_ns(
    passes: Sequence[LoaderPass], reads: Mapping[int, WorkerReads], may_be_late: Mapping[int, int]
) -> dict[int, int]:
    """The least lateness of each worker's clock, ns: a batch cannot be fetched before it was read and made ready.

    It is 0 unless all batches have the same number of reads.
    """
    late: dict[int, int] = {}
    for each in passes:
        mine = {worker: reads[worker].between(each.begin_ns, each.end_ns) for worker in each.workers}
        fetched = {worker: each.fetched_ns[numbers] for worker, numbers in _turns(each, mine).items()}
        best = max(_equal_cuts(mine, fetched), key=lambda cuts: _paused_ns(mine, cuts), default={})
        for worker, cuts in best.items():
            inside = cuts[cuts < len(mine[worker].start_ns)]
            if len(inside):
                pauses = mine[worker].start_ns[inside] - mine[worker].end_ns[inside - 1]
                over = mine[worker].end_ns[cuts - 1] + int(pauses.min()) - fetched[worker]
                found = int(np.quantile(over, LATEST_SHARE))
                late[worker] = min(max(found, late.get(worker, 0), 0), may_be_late[worker])
    return {worker: late.get(worker, 0) for worker in reads}


def _resumed(each: LoaderPass, reads: Mapping[int, WorkerReads]) -> LoaderPass:
    """The pass with its workers in the order of their turns, if another one than the first began it."""
    turns = [dataclasses.replace(each, workers=each.workers[k:] + each.workers[:k]) for k in range(len(each.workers))]
    dealt = [_dealt_pass(turn, reads) for turn in turns]
    compared = [sum(max(len(part.events) - prefetch, 0) for part in parts) for parts, prefetch in dealt]
    least = max(compared[0], LEAST_TURNS * len(turns))
    unexplained = [
        _unexplained_ns(*found) if batches >= least else np.inf for found, batches in zip(dealt, compared, strict=True)
    ]
    best = int(np.argmin(unexplained))
    return turns[best] if unexplained[best] < RESUMED * _unexplained_ns(*dealt[0]) else each


def _unexplained_ns(parts: Sequence[_Part], prefetch: int) -> float:
    """Mean time between the begin of a batch and the moment that lets it begin: a fetch, or the end of the one before.

    Without workers that were held back it does not depend on their turns.
    """
    found = [np.zeros(1, dtype=np.int64)]
    for part in parts:
        starts, before = part.starts_ns[prefetch:], part.ends_ns[prefetch - 1 : -1]
        let = np.maximum(part.fetched_ns[: len(starts)], before)
        found.append(np.abs(starts - let)[starts < np.iinfo(np.int64).max])
    return float(np.concatenate(found).mean())


def _dealt_pass(each: LoaderPass, reads: Mapping[int, WorkerReads]) -> tuple[list[_Part], int]:
    """The parts of the workers in one pass, and `prefetch_factor`."""
    mine = {worker: reads[worker].between(each.begin_ns, each.end_ns) for worker in each.workers}
    turns = _turns(each, mine)
    fetched = {worker: each.fetched_ns[events] for worker, events in turns.items()}
    cuts = {worker: _paused_cuts(mine[worker], ends) for worker, ends in fetched.items()}
    for equal in _equal_cuts(mine, fetched):
        in_time = [_in_time(mine[worker], equal[worker], ends) for worker, ends in fetched.items()]
        paused_ns = _paused_ns(mine, equal)
        if np.concatenate(in_time).mean() >= MIN_CONSISTENT and paused_ns >= PAUSES_KEPT * _paused_ns(mine, cuts):
            cuts = equal
            break
    parts = [
        _Part(
            worker=worker, reads=mine[worker], events=each.events[events], fetched_ns=fetched[worker], cuts=cuts[worker]
        )
        for worker, events in turns.items()
    ]
    return parts, _prefetch(parts)


def _turns(each: LoaderPass, reads: Mapping[int, WorkerReads]) -> dict[int, np.ndarray]:
    """The fetch numbers of each worker's batches: workers take turns until they drop out."""
    count, workers = len(each.events), len(each.workers)
    number, turn = np.divmod(np.arange(count), workers)
    last_ns = np.array([int(reads[worker].end_ns.max(initial=0)) for worker in each.workers])
    if last_ns.all() and np.ptp(last_ns) > MIN_DROPPED_ROUNDS * workers * np.ptp(each.fetched_ns) / count:
        moved = np.array([int(reads[worker].length.sum()) for worker in each.workers])
        made = np.rint(np.cumsum(moved) * count / moved.sum()).astype(np.int64)
        made = np.diff(made, prepend=0)
        turn = np.repeat(np.arange(workers), made)
        number = np.arange(count) - np.repeat(np.cumsum(made) - made, made)
        turn = turn[np.lexsort((turn, number))]
    return {worker: np.flatnonzero(turn == place) for place, worker in enumerate(each.workers) if (turn == place).any()}


def _equal_cuts(
    reads: Mapping[int, WorkerReads], fetched_ns: Mapping[int, np.ndarray]
) -> Iterator[dict[int, np.ndarray]]:
    """Candidates for batches with equally many reads: the number of reads before the end of each batch.

    Workers may have made batches that were never fetched, and the last batch of a pass may have fewer reads.
    """
    totals = {worker: len(reads[worker].start_ns) for worker in fetched_ns}
    most = max(totals, key=lambda worker: totals[worker])
    counts = {worker: len(ends) for worker, ends in fetched_ns.items()}
    for made in range(max(1, counts[most] - 1), counts[most] + MAX_PREFETCH + 1):
        size, rest = divmod(totals[most], made)
        uneven = [worker for worker, total in totals.items() if size and total % size]
        ahead = [totals[worker] - (counts[worker] - 1) * size for worker in totals]
        if not rest and size and len(uneven) <= 1 and min(ahead) > 0:
            yield {
                worker: np.minimum((np.arange(count) + 1) * size, totals[worker]) for worker, count in counts.items()
            }


def _in_time(reads: WorkerReads, cuts: np.ndarray, fetched_ns: np.ndarray) -> np.ndarray:
    """Which batches had been read when they were fetched."""
    return reads.end_ns[cuts - 1] <= fetched_ns + CLOCK_SLACK_NS


def _paused_cuts(reads: WorkerReads, fetched_ns: np.ndarray) -> np.ndarray:
    """The number of reads before the end of each batch. A batch ends before its fetch, at the longest pause that gives
    it about as many bytes as the others."""
    if not len(reads.start_ns):
        return np.zeros(len(fetched_ns), dtype=np.int64)
    ended = np.searchsorted(np.maximum.accumulate(reads.end_ns), fetched_ns + CLOCK_SLACK_NS, side="right")
    read = np.concatenate(([0], np.cumsum(reads.length)))
    pause = np.concatenate(([0], reads.start_ns[1:] - reads.end_ns[:-1], [0]))
    usual = max(float(read[ended[-1]]) / len(fetched_ns), 1.0)
    cuts, begin = [], 0
    for until in ended.tolist():
        first, last = np.searchsorted(read, (read[begin] + usual / 2, read[begin] + 1.5 * usual)).tolist()
        first, last = min(first, until), min(last, until)
        if last > first:
            nearness = 1.0 - np.abs(read[first : last + 1] - read[begin] - usual) / usual
            begin = first + int(np.argmax(pause[first : last + 1] * nearness))
        else:
            begin = max(begin, last)
        cuts.append(begin)
    return np.array(cuts, dtype=np.int64)


def _paused_ns(reads: Mapping[int, WorkerReads], cuts: Mapping[int, np.ndarray]) -> int:
    """Total pause of the workers between batches."""
    between = {worker: ends[ends < len(reads[worker].start_ns)] for worker, ends in cuts.items()}
    return sum(
        int((reads[worker].start_ns[ends] - reads[worker].end_ns[ends - 1]).sum()) for worker, ends in between.items()
    )


def _prefetch(parts: Sequence[_Part]) -> int:
    """`prefetch_factor`: the most batches that a worker began before the loop fetched the first of them."""
    ahead = [
        np.arange(len(part.events)) - np.searchsorted(part.fetched_ns - _slack_ns(part), part.starts_ns, side="right")
        for part in parts
    ]
    found = np.sort(np.concatenate(ahead)) if ahead else np.zeros(1)
    # The maximum itself may come from a clock error.
    return int(min(max(found[-1 - len(found) // 20], 0), MAX_PREFETCH)) + 1


def _slack_ns(part: _Part) -> int:
    """Allowed apparent lateness of a read: half of the time in which its worker makes a batch."""
    return int(min(CLOCK_SLACK_NS, np.ptp(part.fetched_ns) // (2 * len(part.fetched_ns))))


def _lane_deals(
    found: Sequence[tuple[list[_Part], int]], workers: Sequence[Worker], late: Mapping[int, int]
) -> dict[int, LaneDeal]:
    """The batches of each lane in all its passes, in the order of time."""
    usual = _usual_ready_ns(found)
    deals: dict[int, list[tuple[np.ndarray, ...]]] = {}
    of_lane: dict[int, int] = {}
    for parts, prefetch in found:
        begin = min((int(part.events[0]) for part in parts if len(part.events)), default=NO_EVENT)
        for part in parts:
            for lane, columns in _columns(part, begin, prefetch, usual):
                deals.setdefault(lane, []).append(columns)
                of_lane[lane] = part.worker
    made = {}
    for lane, each in deals.items():
        first, event, after, early, ready, behind, behind_ns = (np.concatenate(one) for one in zip(*each, strict=True))
        worker = of_lane[lane]
        made[lane] = LaneDeal(
            first=first, event=event, after_event=after, is_early=early, ready_ns=ready, behind=behind,
            behind_ns=behind_ns, late_ns=late[worker],
            others=tuple(other for other in workers[worker].lanes if other != lane),
        )  # fmt: skip
    return made


def _columns(part: _Part, begin: int, prefetch: int, usual_ns: int) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
    """Columns of `LaneDeal` for one worker's pass, by lane. Reads after the last fetched batch form one unfetched
    batch."""
    begins = np.concatenate(([0], part.cuts))
    event = np.append(part.events, NO_EVENT)
    after = np.concatenate((np.full(prefetch, begin), part.events))[: len(event)]
    early = np.arange(len(event)) < prefetch
    ready = np.append(_ready_ns(part, usual_ns), 0)
    lanes = part.reads.begin
    behind = np.where((event != NO_EVENT) & (len(lanes) > 1), np.append(NO_EVENT, part.events), NO_EVENT)
    behind_ns = np.append(0, part.ends_ns + ready[:-1])
    for lane in lanes:
        first = part.reads.first(lane, begins)
        kept = np.diff(first, append=first[-1] + 1) > 0  # drop batches without operations of the lane
        columns = (first, event, after, early, ready, behind, behind_ns)
        yield lane, tuple(column[kept] for column in columns)


def _pauses_ns(part: _Part) -> np.ndarray:
    """The time from the last read of each batch to the next read of its worker, 0 for a batch without reads."""
    starts = np.append(part.reads.start_ns, np.iinfo(np.int64).max)[part.cuts]
    ends = part.ends_ns
    return np.where(ends > 0, np.maximum(starts - np.maximum(ends, 0), 0), 0)


def _usual_ready_ns(found: Sequence[tuple[list[_Part], int]]) -> int:
    """How long a worker usually is busy with a batch after its reads: its pause where nothing holds it back.

    It is at most the shortest of these pauses, and the shortest time from a batch's reads to the end of its fetch.
    """
    pauses, left = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for parts, prefetch in found:
        for part in parts:
            ends = part.ends_ns
            room_ns = np.concatenate((np.zeros(prefetch, dtype=np.int64), part.fetched_ns))[1 : len(ends) + 1]
            free = (ends > room_ns) & (part.cuts < len(part.reads.start_ns))
            pauses.append(_pauses_ns(part)[free])
            left.append((part.fetched_ns - np.maximum(ends, 0))[ends > 0])
    free_ns, left_ns = np.concatenate(pauses), np.concatenate(left)
    least = max(int(left_ns.min(initial=np.iinfo(np.int64).max)), int(free_ns.min()) if len(free_ns) else 0)
    return min(int(np.median(free_ns)), least) if len(free_ns) else least if len(left_ns) else 0


def _ready_ns(part: _Part, usual_ns: int) -> np.ndarray:
    """How long after its reads each batch of a part was ready: no longer than until its fetch, or the next read."""
    until_fetched = np.where(part.ends_ns > 0, part.fetched_ns - np.maximum(part.ends_ns, 0), 0)
    ready: np.ndarray = np.clip(np.minimum(usual_ns, until_fetched), 0, _pauses_ns(part))
    return ready
