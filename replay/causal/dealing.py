"""Finds how a PyTorch DataLoader dealt batches to its workers: the batch that each operation of a worker makes. Pure.

A *pass* is one iterator over a loader, from its first batch until it is exhausted. A loader starts new workers for each
pass, or keeps the same ones (`persistent_workers`). The pass of a validation loader may lie within a pass of the
training loader. The fetch that ends a pass gets no batch.

Worker w of n makes the batches w, w + n, w + 2 n ... of a pass, one after the other. A worker whose shard is exhausted
drops out. The loop takes the batches in the order of their index. When it takes a batch, the same worker may begin
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

from dxt_replay.replay.causal.loop import FETCH, NO_TIMES, WORKERS, Batches, TrainingLoop
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import OperationBatch
from dxt_replay.traces.schema import OPS, READ

MAX_OPERATIONS = 20_000_000
"""Operations of a rank's workers up to which they are dealt: they are held in memory, 25 bytes each."""

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

MAX_PREFETCH = 32
"""Largest `prefetch_factor` that is looked for."""

Worker = tuple[tuple[int, ...], int]
"""The lanes of a worker process, and the possible lateness of its clock, ns."""

DEAL = np.dtype(
    [(name, "<i8") for name in ("first", "event", "after_event", "ready_ns", "behind", "behind_ns")]
    + [("is_early", "?")]
)
"""A batch for which one lane of a worker read.

first: number of the lane's operation that begins it. event: the event of the loop that fetches it, NO_EVENT for none.
after_event: the batch fetch after which it may begin; the first fetch of the pass if it `is_early`, and may begin with
the pass. ready_ns: time from its last operation until it was ready. behind: the event that fetches the batch before,
which the worker's other lanes must have read, NO_EVENT for none; behind_ns: when that was ready.
"""

_READS = np.dtype([(name, "<i8") for name in ("lane", "next", "start_ns", "end_ns", "length")])
"""A read of a worker, by start. next: number of the first operation of its lane after the read and a close right behind
that. end_ns: when it and those before it had ended."""

_CLOSE, _NEVER = OPS.index("close"), np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dealing:
    """How the batches of a rank were dealt.

    lanes: lane of a worker -> its batches in order (DEAL). late_ns, others: by lane, lateness of the clock of the
    worker's log, and the worker's other lanes.
    workers, prefetch: number of workers and `prefetch_factor` of the pass with the most batches.
    consistent: share of the batches that were read before they were fetched.
    """

    lanes: Mapping[int, np.ndarray]
    late_ns: Mapping[int, int]
    others: Mapping[int, tuple[int, ...]]
    passes: int
    workers: int
    prefetch: int
    persistent: bool
    consistent: float

    def placed(self, batch: OperationBatch) -> OperationBatch:
        """The operations; those of workers moved to the clock of the loop."""
        late = np.zeros(len(batch.lane), dtype=np.int64)
        for lane, late_ns in self.late_ns.items():
            late[batch.lane == lane] = late_ns
        return dataclasses.replace(batch, start_ns=batch.start_ns - late, end_ns=batch.end_ns - late)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What one worker did in one pass: all its reads, of which this pass has those from number `begin` on, `reads`; the
    event of each of its batches and the end of its fetch; and the number of reads before the end of each (`cuts`)."""

    worker: int
    all_reads: np.ndarray
    begin: int
    reads: np.ndarray
    events: np.ndarray
    fetched_ns: np.ndarray
    cuts: np.ndarray

    @property
    def begins(self) -> np.ndarray:
        return np.concatenate(([0], self.cuts[:-1]))

    @property
    def starts_ns(self) -> np.ndarray:
        """When the first read of each batch began; the largest number for a batch without reads."""
        starts = np.append(self.reads["start_ns"], _NEVER)[self.begins]
        return np.where(self.cuts > self.begins, starts, _NEVER)

    @property
    def ends_ns(self) -> np.ndarray:
        """When the last read of each batch ended; the smallest number for a batch without reads."""
        ends = np.append(self.reads["end_ns"], 0)[np.maximum(self.cuts, 1) - 1]
        return np.where(self.cuts > self.begins, ends, np.iinfo(np.int64).min)

    @property
    def pauses_ns(self) -> np.ndarray:
        """From the last read of each batch to the next read of its worker, 0 for a batch without reads."""
        starts, ends = np.append(self.reads["start_ns"], _NEVER)[self.cuts], self.ends_ns
        return np.where(ends > 0, np.maximum(starts - np.maximum(ends, 0), 0), 0)

    @property
    def waited_ns(self) -> np.ndarray:
        """From the last read of each batch to the end of its fetch, 0 for a batch without reads."""
        return np.where(self.ends_ns > 0, self.fetched_ns - np.maximum(self.ends_ns, 0), 0)

    def first(self, lane: int, before: np.ndarray) -> np.ndarray:
        """The lane's first operation after so many reads of the pass, and a close right behind them."""
        mine = np.flatnonzero(self.all_reads["lane"] == lane)
        found: np.ndarray = np.append(0, self.all_reads["next"][mine])[np.searchsorted(mine, before + self.begin)]
        return found


def dealing(loop: TrainingLoop, batches: Batches, workers: Sequence[Worker]) -> Dealing | None:
    """Find how the batches were dealt; None if the loop has no DataLoader with workers, or the reads contradict it.

    `workers`: in the order in which they were started.
    """
    events = np.flatnonzero((loop.kind == FETCH) & (loop.loader == WORKERS))
    if not workers or not len(events):
        return None
    reads = _worker_reads(batches, workers)
    passes = _loader_passes(loop, events, {worker: int(each["start_ns"][0]) for worker, each in reads.items()}, workers)
    late = _late_ns(passes, reads, workers)
    for worker, each in reads.items():
        each["start_ns"] -= late[worker]
        each["end_ns"] -= late[worker]
    found = [_dealt_pass(each, reads) for each in passes]
    parts = [part for each, _ in found for part in each]
    if not parts:
        return None
    too_late = np.concatenate([part.ends_ns > part.fetched_ns + CLOCK_SLACK_NS for part in parts])
    missing = [(part.cuts == part.begins) & (part.cuts < len(part.reads)) for part in parts]
    # Number of batches that were read but never fetched.
    beyond = any(
        (len(part.reads) - int(part.cuts[-1])) * len(part.cuts) / max(int(part.cuts[-1]), 1) > prefetch + 2
        for each, prefetch in found
        for part in each
    )
    consistent = 1.0 - float(too_late.mean())
    if consistent < MIN_CONSISTENT or float(np.concatenate(missing).mean()) > MAX_MISSING or beyond:
        return None
    largest = max(range(len(passes)), key=lambda number: len(passes[number].events))
    lanes, of_lane = _lane_deals(found, workers)
    return Dealing(
        lanes=lanes,
        late_ns={lane: late[worker] for lane, worker in of_lane.items()},
        others={
            lane: tuple(other for other in workers[worker][0] if other != lane) for lane, worker in of_lane.items()
        },
        passes=len(passes),
        workers=len(passes[largest].workers),
        prefetch=found[largest][1],
        persistent=len({one for each in passes for one in each.workers}) < sum(len(each.workers) for each in passes),
        consistent=consistent,
    )


def _worker_reads(batches: Batches, workers: Sequence[Worker]) -> dict[int, np.ndarray]:
    """The reads of each worker (_READS); empty where there are too many operations to be held."""
    parts: dict[int, list[tuple[np.ndarray, ...]]] = {lane: [] for lanes, _ in workers for lane in lanes}
    held = 0
    for batch in batches():
        for lane in np.unique(batch.lane).tolist():
            if lane in parts:
                mine = np.flatnonzero(batch.lane == lane)
                parts[lane].append((batch.op[mine], batch.start_ns[mine], batch.end_ns[mine], batch.length[mine]))
                held += len(mine)
        if held > MAX_OPERATIONS:
            return {}
    found = {}
    for number, (lanes, _) in enumerate(workers):
        made = [np.empty(0, dtype=_READS)]
        for lane in lanes:
            if parts[lane]:
                op, start, end, length = (np.concatenate(columns) for columns in zip(*parts[lane], strict=True))
                place = np.flatnonzero(op == READ)
                own = np.empty(len(place), dtype=_READS)
                own["lane"], own["next"] = lane, place + 1 + (np.append(op, READ)[place + 1] == _CLOSE)
                own["start_ns"], own["end_ns"], own["length"] = start[place], end[place], length[place]
                made.append(own)
        reads = np.concatenate(made)
        if len(reads):
            reads = reads[np.argsort(reads["start_ns"], kind="stable")]
            reads["end_ns"] = np.maximum.accumulate(reads["end_ns"])
            found[number] = reads
    return found


def _late_ns(passes: Sequence[_Pass], reads: Mapping[int, np.ndarray], workers: Sequence[Worker]) -> dict[int, int]:
    """The least lateness of each worker's clock, ns: a batch cannot be fetched before it was read and made ready.

    It is 0 unless all batches have the same number of reads.
    """
    late = dict.fromkeys(reads, 0)
    for each in passes:
        mine = each.reads_of(reads)
        fetched = {worker: each.fetched_ns[numbers] for worker, numbers in _turns(each, mine).items()}
        best = max(_equal_cuts(mine, fetched), key=lambda cuts: _paused_ns(mine, cuts), default={})
        for worker, cuts in best.items():
            inside = cuts[cuts < len(mine[worker])]
            if len(inside):
                own = mine[worker]
                pause = int((own["start_ns"][inside] - own["end_ns"][inside - 1]).min())
                over = int(np.quantile(own["end_ns"][cuts - 1] + pause - fetched[worker], LATEST_SHARE))
                late[worker] = min(max(over, late[worker]), workers[worker][1])
    return late


def _dealt_pass(each: _Pass, reads: Mapping[int, np.ndarray]) -> tuple[list[_Part], int]:
    """The parts of the workers in one pass, and `prefetch_factor`."""
    mine = each.reads_of(reads)
    turns = _turns(each, mine)
    fetched = {worker: each.fetched_ns[events] for worker, events in turns.items()}
    cuts = {worker: _paused_cuts(mine[worker], ends) for worker, ends in fetched.items()}
    for equal in _equal_cuts(mine, fetched):
        in_time = [
            mine[worker]["end_ns"][equal[worker] - 1] <= ends + CLOCK_SLACK_NS for worker, ends in fetched.items()
        ]
        paused_ns = _paused_ns(mine, equal)
        if np.concatenate(in_time).mean() >= MIN_CONSISTENT and paused_ns >= PAUSES_KEPT * _paused_ns(mine, cuts):
            cuts = equal
            break
    parts = [
        _Part(
            worker=worker,
            all_reads=reads[worker],
            begin=int(np.searchsorted(reads[worker]["start_ns"], each.begin_ns)),
            reads=mine[worker],
            events=each.events[events],
            fetched_ns=fetched[worker],
            cuts=cuts[worker],
        )
        for worker, events in turns.items()
    ]
    # The most batches that a worker began before the loop fetched the first of them; half of the time in which a worker
    # makes a batch is no lateness.
    ahead = [NO_TIMES]
    for part in parts:
        slack = int(min(CLOCK_SLACK_NS, np.ptp(part.fetched_ns) // (2 * len(part.fetched_ns))))
        ahead.append(
            np.arange(len(part.events)) - np.searchsorted(part.fetched_ns - slack, part.starts_ns, side="right")
        )
    found = np.sort(np.concatenate(ahead)) if parts else np.zeros(1)
    # The maximum itself may come from a clock error.
    return parts, int(min(max(found[-1 - len(found) // 20], 0), MAX_PREFETCH)) + 1


def _turns(each: _Pass, reads: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The fetch numbers of each worker's batches: workers take turns until they drop out."""
    count, workers = len(each.events), len(each.workers)
    number, turn = np.divmod(np.arange(count), workers)
    last_ns = np.array([int(reads[worker]["end_ns"].max(initial=0)) for worker in each.workers])
    if last_ns.all() and np.ptp(last_ns) > MIN_DROPPED_ROUNDS * workers * np.ptp(each.fetched_ns) / count:
        moved = np.array([int(reads[worker]["length"].sum()) for worker in each.workers])
        made = np.diff(np.rint(np.cumsum(moved) * count / moved.sum()).astype(np.int64), prepend=0)
        turn = np.repeat(np.arange(workers), made)
        number = np.arange(count) - np.repeat(np.cumsum(made) - made, made)
        turn = turn[np.lexsort((turn, number))]
    return {worker: np.flatnonzero(turn == place) for place, worker in enumerate(each.workers) if (turn == place).any()}


def _equal_cuts(
    reads: Mapping[int, np.ndarray], fetched_ns: Mapping[int, np.ndarray]
) -> Iterator[dict[int, np.ndarray]]:
    """Candidates for batches with equally many reads: the number of reads before the end of each batch.

    Workers may have made batches that were never fetched, and the last batch of a pass may have fewer reads.
    """
    totals = {worker: len(reads[worker]) for worker in fetched_ns}
    counts = {worker: len(ends) for worker, ends in fetched_ns.items()}
    most = max(totals, key=lambda worker: totals[worker])
    for made in range(max(1, counts[most] - 1), counts[most] + MAX_PREFETCH + 1):
        size, rest = divmod(totals[most], made)
        uneven = [worker for worker, total in totals.items() if size and total % size]
        ahead = [totals[worker] - (counts[worker] - 1) * size for worker in totals]
        if not rest and size and len(uneven) <= 1 and min(ahead) > 0:
            yield {
                worker: np.minimum((np.arange(count) + 1) * size, totals[worker]) for worker, count in counts.items()
            }


def _paused_cuts(reads: np.ndarray, fetched_ns: np.ndarray) -> np.ndarray:
    """The number of reads before the end of each batch. A batch ends before its fetch, at the longest pause that gives
    it about as many bytes as the others."""
    if not len(reads):
        return np.zeros(len(fetched_ns), dtype=np.int64)
    ended = np.searchsorted(np.maximum.accumulate(reads["end_ns"]), fetched_ns + CLOCK_SLACK_NS, side="right")
    read = np.concatenate(([0], np.cumsum(reads["length"])))
    pause = np.concatenate(([0], reads["start_ns"][1:] - reads["end_ns"][:-1], [0]))
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


def _paused_ns(reads: Mapping[int, np.ndarray], cuts: Mapping[int, np.ndarray]) -> int:
    """Total pause of the workers between batches."""
    total = 0
    for worker, ends in cuts.items():
        own, between = reads[worker], ends[ends < len(reads[worker])]
        total += int((own["start_ns"][between] - own["end_ns"][between - 1]).sum())
    return total


def _lane_deals(
    found: Sequence[tuple[list[_Part], int]], workers: Sequence[Worker]
) -> tuple[dict[int, np.ndarray], dict[int, int]]:
    """The batches of each lane in all its passes, in the order of time, and the worker of each lane. Reads after the
    last fetched batch of a pass form one unfetched batch."""
    usual_ns = _usual_ready_ns(found)
    deals: dict[int, list[np.ndarray]] = {}
    of_lane: dict[int, int] = {}
    for parts, prefetch in found:
        begin = min((int(part.events[0]) for part in parts if len(part.events)), default=NO_EVENT)
        for part in parts:
            lanes, begins = workers[part.worker][0], np.append(part.begins, part.cuts[-1:])
            # A batch is ready no later than its fetch or the next read.
            ready = np.clip(np.minimum(usual_ns, part.waited_ns), 0, part.pauses_ns)
            made = np.zeros(len(begins), dtype=DEAL)
            made["event"] = event = np.append(part.events, NO_EVENT)
            made["after_event"] = np.concatenate((np.full(prefetch, begin), part.events))[: len(event)]
            made["is_early"] = np.arange(len(event)) < prefetch
            made["ready_ns"] = np.append(ready, 0)
            made["behind"] = np.where(
                (event != NO_EVENT) & (len(lanes) > 1), np.append(NO_EVENT, part.events), NO_EVENT
            )
            made["behind_ns"] = np.append(0, part.ends_ns + ready)
            for lane in lanes:
                made["first"] = first = part.first(lane, begins)
                # Without batches that have no operations of the lane.
                deals.setdefault(lane, []).append(made[np.diff(first, append=first[-1] + 1) > 0])
                of_lane[lane] = part.worker
    return {lane: np.concatenate(each) for lane, each in deals.items()}, of_lane


def _usual_ready_ns(found: Sequence[tuple[list[_Part], int]]) -> int:
    """How long a worker usually is busy with a batch after its reads: its pause where nothing holds it back.

    It is at most the shortest of these pauses, and the shortest time from a batch's reads to the end of its fetch.
    """
    pauses, left = [NO_TIMES], [NO_TIMES]
    for parts, prefetch in found:
        for part in parts:
            ends = part.ends_ns
            room_ns = np.concatenate((np.zeros(prefetch, dtype=np.int64), part.fetched_ns))[1 : len(ends) + 1]
            pauses.append(part.pauses_ns[(ends > room_ns) & (part.cuts < len(part.reads))])
            left.append(part.waited_ns[ends > 0])
    free_ns, left_ns = np.concatenate(pauses), np.concatenate(left)
    least = max(int(left_ns.min(initial=_NEVER)), int(free_ns.min()) if len(free_ns) else 0)
    return min(int(np.median(free_ns)), least) if len(free_ns) else least if len(left_ns) else 0


# -------------------------------------------------------------------------------------------- passes over the loaders
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pass:
    """One pass over a loader with workers: its batch fetches as events of the loop, in order, without the fetch that
    ended it; the ends of these fetches; the numbers of its workers, in the order of their turns. Reads of its workers
    that start in [begin_ns, end_ns) belong to it."""

    events: np.ndarray
    fetched_ns: np.ndarray
    workers: tuple[int, ...]
    begin_ns: int
    end_ns: int

    def reads_of(self, reads: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The reads of each of its workers."""
        found = {}
        for worker in self.workers:
            first, last = np.searchsorted(reads[worker]["start_ns"], (self.begin_ns, self.end_ns)).tolist()
            found[worker] = reads[worker][first:last]
        return found


@dataclass(slots=True)
class _Open:
    """A pass that is still being gathered: numbers of its fetches; fetch `ended` ended it."""

    workers: tuple[int, ...]
    fetches: list[int]
    ended: int | None = None


def _loader_passes(
    loop: TrainingLoop, events: np.ndarray, first_read_ns: Mapping[int, int], workers: Sequence[Worker]
) -> list[_Pass]:
    """The passes in the order of their first fetches. first_read_ns: by worker, which are started in this order."""
    if not first_read_ns:
        return []
    begins = loop.begin_ns[events]
    # After the last step there is another one.
    step = np.searchsorted(loop.step_begin_ns, begins, side="right") + (begins >= loop.step_end_ns[-1])
    born = _births(begins, loop.end_ns[events], step, first_read_ns, workers)
    borders = (np.flatnonzero(np.diff(step)) + 1).tolist()
    found: list[_Open] = []
    outer: _Open | None = None
    for first, last in zip([0, *borders], [*borders, len(events)], strict=True):
        births = [fetch for fetch in born if first <= fetch < last]
        segments = [(fetch, end) for fetch, end in zip(births, [*births, last][1:], strict=True)]
        before = list(range(first, births[0] if births else last))
        starts = [begin for begin, end in segments if end - begin == 1 or outer is None]
        if not starts and not before:  # the evaluation ran before the step fetched its batch
            segments[-1] = (segments[-1][0], last - 1)
            before = [last - 1]
        for begin, end in segments:
            if begin not in starts[-1:]:
                found.append(_Open(workers=born[begin], fetches=list(range(begin, end - 1)), ended=end - 1))
        beyond = begins[first] >= loop.step_end_ns[-1]
        for fetch in before if starts or beyond else before[:-1]:
            if outer is not None:
                outer.ended = fetch
                outer = _Open(workers=outer.workers, fetches=[])
                found.append(outer)
        if starts:
            outer = _Open(workers=born[starts[-1]], fetches=list(range(starts[-1], dict(segments)[starts[-1]])))
            found.append(outer)
        elif before and outer is not None and not beyond:
            outer.fetches.append(before[-1])
    made = sorted((each for each in found if each.fetches), key=lambda each: each.fetches[0])
    passes = []
    # A worker's reads begin after the end of its previous pass.
    from_ns = {worker: -_NEVER - 1 for each in made for worker in each.workers}
    for number, each in enumerate(made):
        again = any(set(later.workers) & set(each.workers) for later in made[number + 1 :])
        end_ns = int(begins[each.ended]) if again and each.ended is not None else _NEVER
        mine = events[np.array(each.fetches)]
        begin_ns = max(from_ns[worker] for worker in each.workers)
        ends_ns, own = loop.end_ns[mine], each.workers
        passes.append(_Pass(events=mine, fetched_ns=ends_ns, workers=own, begin_ns=begin_ns, end_ns=end_ns))
        from_ns.update(dict.fromkeys(each.workers, end_ns))
    return passes


def _births(
    begins: np.ndarray, ends: np.ndarray, step: np.ndarray, first_read_ns: Mapping[int, int], workers: Sequence[Worker]
) -> dict[int, tuple[int, ...]]:
    """By number of the fetch, the workers that were started for it.

    The first batch of the j-th worker is the j-th of its pass, so its first read begins before that batch is fetched,
    while the loop waits for the first batch. Clock error may make it appear shortly after the wait. A first batch is
    the first of all, or is fetched in a step that has fetched one before (`again`).
    """
    again = np.append(np.diff(step, prepend=step[0]) == 0, False)
    born: dict[int, list[int]] = {}
    last: int | None = None
    for worker, read_ns in sorted(first_read_ns.items(), key=lambda each: each[1]):
        first, until = np.searchsorted(ends, (read_ns - workers[worker][1], read_ns), side="right").tolist()
        if last is not None and first <= last + len(born[last]):
            born[last].append(worker)
        elif first < len(ends):
            waiting = until < len(ends) and bool(begins[until] <= read_ns)
            likely = first + np.flatnonzero(again[first : until + waiting])
            if len(likely) and not (waiting and again[until]):
                # Of several in a row, in one step, the first.
                last = int(likely[np.flatnonzero(np.diff(likely, prepend=-2) > 1)[-1]])
            else:
                last = until if waiting or first == until else until - 1
            born.setdefault(last, []).append(worker)
    return {fetch: tuple(sorted(each)) for fetch, each in born.items()}
