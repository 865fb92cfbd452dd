"""Finds how a PyTorch DataLoader dealt batches to its workers: the batch that each operation of a worker makes. Pure.

Worker w of n makes the batches w, w + n, w + 2 n ... of a pass, one after the other. A worker whose shard is exhausted
drops out. A pass that was resumed (torchdata's StatefulDataLoader) goes on with the worker whose turn it was. The loop
takes the batches in the order of their index. When it takes a batch, the same worker may begin
another: the worker's batch k waits until its batch k - p was fetched, where p is the `prefetch_factor`.

A log shows none of this, so it is inferred from the reads. Either a worker reads the same amount for each batch
(map-style data sets), or the longest pauses separate its batches. A batch is read after its turn and before its fetch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.feed import Batches
from dxt_replay.replay.causal.loader_passes import LoaderPass, loader_passes
from dxt_replay.replay.causal.training_loop import TrainingLoop
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch
from dxt_replay.traces.schema import OPS, READ

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

MAX_PREFETCH = 32
"""Largest `prefetch_factor` that is looked for."""

MAX_OPERATIONS = 20_000_000
"""Operations of a rank's workers up to which they are dealt: they are held in memory, 25 bytes each."""

_CLOSE = OPS.index("close")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneDeal:
    """The batches that one worker made, in order; arrays (batches,).

    first: number of the lane's operation that begins the batch.
    event: the event of the loop that fetches it, NO_EVENT for none.
    after_event: the batch fetch after which the batch may begin; the first fetch of the pass if `is_early`.
    is_early: bool, whether the batch may begin with its pass.
    ready_ns: time from its last operation until the batch was ready.
    late_ns: lateness of the clock of the worker's log, one number.
    """

    first: np.ndarray
    event: np.ndarray
    after_event: np.ndarray
    is_early: np.ndarray
    ready_ns: np.ndarray
    late_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dealing:
    """How the batches of a rank were dealt.

    lanes: worker lane -> its batches.
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
class _Reads:
    """The reads of one worker lane, or of one pass of it; arrays (reads,).

    first: (reads + 1,), number of the first operation of the lane after the read before and a close right behind that.
    """

    first: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray

    def earlier(self, late_ns: int) -> _Reads:
        """The same reads, `late_ns` earlier."""
        return dataclasses.replace(self, start_ns=self.start_ns - late_ns, end_ns=self.end_ns - late_ns)

    def between(self, begin_ns: int, end_ns: int) -> _Reads:
        """Those that start in [begin_ns, end_ns)."""
        first, last = np.searchsorted(self.start_ns, (begin_ns, end_ns)).tolist()
        start, end, length = (column[first:last] for column in (self.start_ns, self.end_ns, self.length))
        return _Reads(first=self.first[first : last + 1], start_ns=start, end_ns=end, length=length)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What one worker did in one pass: its reads, and of each of its batches the event and the end of its fetch.

    cuts: int64 (batches,), the number of reads before the end of each batch.
    """

    lane: int
    reads: _Reads
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


def dealing(loop: TrainingLoop, batches: Batches, worker_lanes: Mapping[int, int]) -> Dealing | None:
    """Find how the batches were dealt; None if the loop has no DataLoader with workers, or the reads contradict it.

    `worker_lanes`: lane of a worker process -> possible lateness of its clock, ns.
    """
    if not len(loop.fetches) or not worker_lanes or not len(loop.by_workers):
        return None
    reads = _worker_reads(batches, worker_lanes)
    passes = loader_passes(loop, {lane: int(each.start_ns[0]) for lane, each in reads.items()}, worker_lanes)
    # Only the first pass of a program can be a resumed one.
    passes = (*(_resumed(each, reads) for each in passes[:1]), *passes[1:])
    late = _late_ns(passes, reads, worker_lanes)
    reads = {lane: each.earlier(late.get(lane, 0)) for lane, each in reads.items()}
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
        lanes=_lane_deals(found, late),
        passes=len(passes),
        workers=len(passes[largest].lanes),
        prefetch=found[largest][1],
        persistent=len({lane for each in passes for lane in each.lanes}) < sum(len(each.lanes) for each in passes),
        consistent=consistent,
    )


def _worker_reads(batches: Batches, worker_lanes: Mapping[int, int]) -> dict[int, _Reads]:
    """The reads of each worker lane; empty where there are too many operations to be held."""
    parts: dict[int, list[tuple[np.ndarray, ...]]] = {lane: [] for lane in worker_lanes}
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
    for lane, made in parts.items():
        if made:
            op, start, end, length = (np.concatenate(columns) for columns in zip(*made, strict=True))
            place = np.flatnonzero(op == READ)
            first = np.concatenate(([0], place + 1 + (np.append(op, READ)[place + 1] == _CLOSE)))
            if len(place):
                found[lane] = _Reads(first=first, start_ns=start[place], end_ns=end[place], length=length[place])
    return found


def _late_ns(
    passes: Sequence[LoaderPass], reads: Mapping[int, _Reads], worker_lanes: Mapping[int, int]
) -> dict[int, int]:
    """The least lateness of each worker's clock, ns: a batch cannot be fetched before it was read and made ready.

    It is 0 unless all batches have the same number of reads.
    """
    late: dict[int, int] = {}
    for each in passes:
        mine = {lane: reads[lane].between(each.begin_ns, each.end_ns) for lane in each.lanes}
        fetched = {lane: each.fetched_ns[numbers] for lane, numbers in _turns(each, mine).items()}
        best = max(_equal_cuts(mine, fetched), key=lambda cuts: _paused_ns(mine, cuts), default={})
        for lane, cuts in best.items():
            inside = cuts[cuts < len(mine[lane].start_ns)]
            if len(inside):
                pauses = mine[lane].start_ns[inside] - mine[lane].end_ns[inside - 1]
                over = mine[lane].end_ns[cuts - 1] + int(pauses.min()) - fetched[lane]
                found = int(np.quantile(over, LATEST_SHARE))
                late[lane] = min(max(found, late.get(lane, 0), 0), worker_lanes[lane])
    return {lane: late.get(lane, 0) for lane in reads}


def _resumed(each: LoaderPass, reads: Mapping[int, _Reads]) -> LoaderPass:
    """The pass with its workers in the order of their turns, if another one than the first began it."""
    turns = [dataclasses.replace(each, lanes=each.lanes[k:] + each.lanes[:k]) for k in range(len(each.lanes))]
    unexplained = [_unexplained_ns(*_dealt_pass(turn, reads)) for turn in turns]
    best = int(np.argmin(unexplained)) if turns else 0
    return turns[best] if turns and unexplained[best] < RESUMED * unexplained[0] else each


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


def _dealt_pass(each: LoaderPass, reads: Mapping[int, _Reads]) -> tuple[list[_Part], int]:
    """The parts of the workers in one pass, and `prefetch_factor`."""
    mine = {lane: reads[lane].between(each.begin_ns, each.end_ns) for lane in each.lanes}
    turns = _turns(each, mine)
    fetched = {lane: each.fetched_ns[events] for lane, events in turns.items()}
    cuts = {lane: _paused_cuts(mine[lane], ends) for lane, ends in fetched.items()}
    for equal in _equal_cuts(mine, fetched):
        in_time = [_in_time(mine[lane], equal[lane], ends) for lane, ends in fetched.items()]
        paused_ns = _paused_ns(mine, equal)
        if np.concatenate(in_time).mean() >= MIN_CONSISTENT and paused_ns >= PAUSES_KEPT * _paused_ns(mine, cuts):
            cuts = equal
            break
    parts = [
        _Part(lane=lane, reads=mine[lane], events=each.events[events], fetched_ns=fetched[lane], cuts=cuts[lane])
        for lane, events in turns.items()
    ]
    return parts, _prefetch(parts)


def _turns(each: LoaderPass, reads: Mapping[int, _Reads]) -> dict[int, np.ndarray]:
    """The fetch numbers of each worker's batches: workers take turns until they drop out."""
    count, lanes = len(each.events), len(each.lanes)
    number, turn = np.divmod(np.arange(count), lanes)
    last_ns = np.array([int(reads[lane].end_ns.max(initial=0)) for lane in each.lanes])
    if last_ns.all() and np.ptp(last_ns) > MIN_DROPPED_ROUNDS * lanes * np.ptp(each.fetched_ns) / count:
        moved = np.array([int(reads[lane].length.sum()) for lane in each.lanes])
        made = np.rint(np.cumsum(moved) * count / moved.sum()).astype(np.int64)
        made = np.diff(made, prepend=0)
        turn = np.repeat(np.arange(lanes), made)
        number = np.arange(count) - np.repeat(np.cumsum(made) - made, made)
        turn = turn[np.lexsort((turn, number))]
    return {lane: np.flatnonzero(turn == place) for place, lane in enumerate(each.lanes) if (turn == place).any()}


def _equal_cuts(reads: Mapping[int, _Reads], fetched_ns: Mapping[int, np.ndarray]) -> Iterator[dict[int, np.ndarray]]:
    """Candidates for batches with equally many reads: the number of reads before the end of each batch.

    Workers may have made batches that were never fetched, and the last batch of a pass may have fewer reads.
    """
    totals = {lane: len(reads[lane].start_ns) for lane in fetched_ns}
    most = max(totals, key=lambda lane: totals[lane])
    counts = {lane: len(ends) for lane, ends in fetched_ns.items()}
    for made in range(max(1, counts[most] - 1), counts[most] + MAX_PREFETCH + 1):
        size, rest = divmod(totals[most], made)
        uneven = [lane for lane, total in totals.items() if size and total % size]
        ahead = [totals[lane] - (counts[lane] - 1) * size for lane in totals]
        if not rest and size and len(uneven) <= 1 and min(ahead) > 0:
            yield {lane: np.minimum((np.arange(count) + 1) * size, totals[lane]) for lane, count in counts.items()}


def _in_time(reads: _Reads, cuts: np.ndarray, fetched_ns: np.ndarray) -> np.ndarray:
    """Which batches had been read when they were fetched."""
    return reads.end_ns[cuts - 1] <= fetched_ns + CLOCK_SLACK_NS


def _paused_cuts(reads: _Reads, fetched_ns: np.ndarray) -> np.ndarray:
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


def _paused_ns(reads: Mapping[int, _Reads], cuts: Mapping[int, np.ndarray]) -> int:
    """Total pause of the workers between batches."""
    between = {lane: ends[ends < len(reads[lane].start_ns)] for lane, ends in cuts.items()}
    return sum(int((reads[lane].start_ns[ends] - reads[lane].end_ns[ends - 1]).sum()) for lane, ends in between.items())


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


def _lane_deals(found: Sequence[tuple[list[_Part], int]], late: Mapping[int, int]) -> dict[int, LaneDeal]:
    """The batches of each lane in all its passes, in the order of time."""
    usual = _usual_ready_ns(found)
    deals: dict[int, list[tuple[np.ndarray, ...]]] = {}
    for parts, prefetch in found:
        begin = min((int(part.events[0]) for part in parts if len(part.events)), default=NO_EVENT)
        for part in parts:
            deals.setdefault(part.lane, []).append(_columns(part, begin, prefetch, usual))
    made = {}
    for lane, columns in deals.items():
        first, event, after, early, ready = (np.concatenate(each) for each in zip(*columns, strict=True))
        made[lane] = LaneDeal(
            first=first, event=event, after_event=after, is_early=early, ready_ns=ready, late_ns=late[lane]
        )
    return made


def _columns(part: _Part, begin: int, prefetch: int, usual_ns: int) -> tuple[np.ndarray, ...]:
    """Columns of `LaneDeal` for one worker's pass. Reads after the last fetched batch form one unfetched batch."""
    begins = np.concatenate(([0], part.cuts))
    first = part.reads.first[begins]
    event = np.append(part.events, NO_EVENT)
    after = np.concatenate((np.full(prefetch, begin), part.events))[: len(event)]
    early = np.arange(len(event)) < prefetch
    ready = np.append(_ready_ns(part, usual_ns), 0)
    kept = np.diff(begins, append=begins[-1] + 1) > 0  # drop batches without reads
    return first[kept], event[kept], after[kept], early[kept], ready[kept]


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
