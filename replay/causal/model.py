"""The causal model behind the pace `steps`: which reads feed which step, and what each operation waits for. Pure.

The rules (c, need and take as in a bounded buffer between a producer and a consumer):

* An operation that ran ahead of the loop begins when its lane is free, its think time has passed, and as many takes
  have happened as had happened when it began in the capture: a full buffer holds a reader back as it did.
* A step has its batch when every read that feeds it has ended. Read i feeds take floor(bytes read before i / step
  bytes); step bytes is the largest number for which every take had its bytes, in the capture, when it ended.
* Where the lanes are true threads and it contradicts nothing, reader threads take turns: the j-th batch of thread t of
  n feeds take j n + t. Without that the first takes of parallel readers are thought to have their batches too early.
* Between the end of its reads and the take a batch is made ready (decoded, collated): as long as in the capture it
  took at least, where takes had to wait for their reads. Batches become ready one after the other, beside the
  training thread.
* Reads that lie within the input waits are the training thread's own (depth 0): they begin when it begins to wait.
* What was read before the first step, from files that the loop does not read, is loaded before it.
* Operations inside of a checkpoint of the training thread block it.

So the recorded times, with the recorded latencies, follow from the model; with other latencies, other times do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from replay.causal.training_loop import TAKE, TrainingLoop
from traces.distribution import Distribution, DistributionCollector
from traces.ops import OPS, READ

SYNCHRONOUS_SHARE = 0.99
"""Of the loop's reads that lie within one input wait: from here on they are taken for the training thread's own."""

MIN_STARVED_TAKES = 3
"""From so many takes that waited for their reads it is told what making a batch ready takes; one or two may have paid
for the pipeline's own start."""

NO_POINT = -1
NO_GATE, OPENINGS, TAKES = range(3)
"""What an operation waits for: nothing, an opening of the training thread, or a take."""

_PREPARES_READ = tuple(OPS.index(name) for name in ("open", "stat", "seek"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationBatch:
    """Operations of one rank in start order: `lane`, `op`, `file_id`, `length`, `start_ns`, `end_ns`, each (n,)."""

    lane: np.ndarray
    op: np.ndarray
    file_id: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


Batches = Callable[[], Iterable[OperationBatch]]
"""A rank's operations from the first to the last; each call reads them again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ties:
    """What the operations of a batch are tied to, each (n,).

    `need`: the point that waits for it, NO_POINT for none; `floor`: no operation from this one on is needed by an
    earlier point. `gate`: what it waits for, `gate_count` how many of them, `gate_ns` when the last of these happened
    in the capture.
    """

    need: np.ndarray
    floor: np.ndarray
    gate: np.ndarray
    gate_count: np.ndarray
    gate_ns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopModel:
    """The model of one rank.

    `loop_files`: bool by file id, the files that the loop reads, `loop_bytes` from them. `synchronous`: depth 0.
    `step_bytes`: bytes that one take consumes, 0.0 where reads are tied by time. `turns`: the reader lanes, where each
    reads whole batches in turn; else empty. `residual_ns` (p,): how long a point went on after its operations had ended
    and its batch was ready; `ready_ns` (p,): what making it ready took. `needed`: lane -> bool (p,), the points that
    wait for operations of it. `think_ns`: median think time of a lane where no take hides it, within a batch and before
    the first operation of the next one. `depth`: takes between a read and the one that it fed, of the reads that ran
    ahead. `reads` of the loop, `inside_share` of them within input waits.
    """

    loop: TrainingLoop
    loop_files: np.ndarray
    synchronous: bool
    step_bytes: float
    turns: tuple[int, ...]
    loop_bytes: int
    residual_ns: np.ndarray
    ready_ns: np.ndarray
    needed: dict[int, np.ndarray]
    think_ns: tuple[int, int]
    depth: Distribution
    reads: int
    inside_share: float

    def ties(self) -> TieReader:
        """A reader of the rank's operations from the beginning."""
        return TieReader(self)


class TieReader:
    """Ties a rank's operations, batch after batch from the first one."""

    def __init__(self, model: LoopModel) -> None:
        self._model = model
        self._bytes_before: dict[int, int] = {}
        loop = model.loop
        self._openings, self._take_ends, self._takes = loop.openings_ns, loop.take_ends_ns, loop.takes
        self._checkpoints = loop.checkpoints

    def ties(self, batch: OperationBatch) -> Ties:
        """What these operations are tied to; they continue the earlier batches."""
        model, loop = self._model, self._model.loop
        start, end = batch.start_ns, batch.end_ns
        of_loop = model.loop_files[batch.file_id]
        reads = of_loop & (batch.op == READ)
        feeds = reads | (of_loop & np.isin(batch.op, _PREPARES_READ))
        checkpoint = np.where(feeds, NO_POINT, _containing(loop, self._checkpoints, start))
        before = start < loop.entry_ns
        need = np.full(len(start), NO_POINT, dtype=np.int64)
        need[before & (end <= loop.entry_ns) & (~of_loop | model.synchronous)] = 0
        fed = self._fed(batch, reads)
        mine = feeds & (need == NO_POINT) & (start < loop.exit_ns)
        need[mine] = fed[mine]
        blocking = checkpoint != NO_POINT
        blocking[blocking] &= end[blocking] <= loop.end_ns[checkpoint[blocking]]
        need[blocking] = checkpoint[blocking]
        own = (checkpoint != NO_POINT) | (start >= loop.exit_ns) | model.synchronous
        return self._gated(need, start, own & ~before, before)

    def _fed(self, batch: OperationBatch, reads: np.ndarray) -> np.ndarray:
        """The take (as a point) that each operation would feed, NO_POINT beyond the last."""
        # An operation never feeds a take that had its batch before the operation ended.
        earliest = np.searchsorted(self._take_ends, batch.end_ns, side="left")
        if self._model.step_bytes:
            moved = np.where(reads, batch.length, 0)
            if self._model.turns:
                fed = self._in_turn(batch.lane, moved)
            else:
                fed = np.floor(self._before(0, moved) / self._model.step_bytes).astype(np.int64)
            earliest = np.maximum(earliest, fed)
        return _nth(self._takes, earliest)

    def _in_turn(self, lane: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """The take that each operation feeds where the lanes read batches in turn."""
        turns, fed = self._model.turns, np.zeros(len(lane), dtype=np.int64)
        for turn, reader in enumerate(turns):
            mine = lane == reader
            batches = np.floor(self._before(reader, moved[mine]) / self._model.step_bytes).astype(np.int64)
            fed[mine] = batches * len(turns) + turn
        return fed

    def _before(self, account: int, moved: np.ndarray) -> np.ndarray:
        """Bytes moved before each operation, on an account that goes on from batch to batch."""
        before = self._bytes_before.get(account, 0) + np.cumsum(moved) - moved
        self._bytes_before[account] = self._bytes_before.get(account, 0) + int(moved.sum())
        return before

    def _gated(self, need: np.ndarray, start: np.ndarray, own: np.ndarray, before: np.ndarray) -> Ties:
        opened = np.searchsorted(self._openings, start, side="right")
        taken = np.searchsorted(self._take_ends, start, side="right")
        by_opening = own | (taken == 0)
        gate = np.where(by_opening, OPENINGS, TAKES).astype(np.int8)
        count = np.where(by_opening, np.where(own, opened, np.minimum(opened, 1)), taken)
        gate[before | (count == 0)] = NO_GATE
        count[gate == NO_GATE] = 0
        gate_ns = np.full(len(start), np.iinfo(np.int64).min)
        for code, times in ((OPENINGS, self._openings), (TAKES, self._take_ends)):
            chosen = gate == code
            gate_ns[chosen] = times[count[chosen] - 1]
        # What begins while a point lasts or later cannot have been waited for by an earlier one.
        floor = np.where(need == NO_POINT, np.searchsorted(self._model.loop.end_ns, start, side="left"), need)
        return Ties(need=need, floor=floor, gate=gate, gate_count=count, gate_ns=gate_ns)


def _containing(loop: TrainingLoop, points: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The one of `points` within which each time lies (its end counts), NO_POINT for none."""
    if not len(points):
        return np.full(len(times), NO_POINT, dtype=np.int64)
    found = np.searchsorted(loop.begin_ns[points], times, side="right") - 1
    inside = (found >= 0) & (times <= loop.end_ns[points[found]])
    return np.where(inside, points[found], NO_POINT)


def _nth(points: np.ndarray, index: np.ndarray) -> np.ndarray:
    """points[index], NO_POINT beyond the end."""
    if not len(points):
        return np.full(len(index), NO_POINT, dtype=np.int64)
    return np.where(index < len(points), points[np.minimum(index, len(points) - 1)], NO_POINT)


def derive_model(loop: TrainingLoop, batches: Batches, files: int, *, threads_known: bool) -> LoopModel:
    """The model of one rank from its loop and operations, which are read four times at most.

    `files`: how many there are. `threads_known`: whether lanes are true threads, not inferred from overlaps. Memory:
    some numbers per point and lane.
    """
    sight = _look(loop, batches, files)
    reads, inside = sight.reads, sight.inside
    synchronous = reads > 0 and inside >= SYNCHRONOUS_SHARE * reads
    step_bytes, loop_bytes = (0.0, sight.bytes) if synchronous else _step_bytes(loop, batches, sight.loop_files)
    draft = LoopModel(
        loop=loop,
        loop_files=sight.loop_files,
        synchronous=synchronous,
        step_bytes=step_bytes,
        turns=_turns(loop, batches, sight, step_bytes) if threads_known and step_bytes else (),
        loop_bytes=loop_bytes,
        residual_ns=loop.end_ns - loop.begin_ns,
        ready_ns=np.zeros(len(loop.kind), dtype=np.int64),
        needed={},
        think_ns=(0, 0),
        depth=Distribution.of(np.empty(0, dtype=np.int64)),
        reads=reads,
        inside_share=inside / reads if reads else 0.0,
    )
    return _measured(draft, batches)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sight:
    loop_files: np.ndarray
    reads: int
    inside: int
    bytes: int
    lanes: tuple[int, ...]


def _look(loop: TrainingLoop, batches: Batches, files: int) -> _Sight:
    """Which files the loop reads, in which lanes (by their first read), how many reads lie inside of an input wait."""
    loop_files = np.zeros(files, dtype=bool)
    lanes: dict[int, None] = {}
    reads = inside = moved = 0
    for batch in batches():
        chosen = (batch.op == READ) & (batch.start_ns >= loop.entry_ns) & (batch.start_ns < loop.exit_ns)
        chosen &= _containing(loop, loop.checkpoints, batch.start_ns) == NO_POINT
        loop_files[batch.file_id[chosen]] = True
        lanes.update(dict.fromkeys(batch.lane[chosen].tolist()))
        point = _containing(loop, loop.takes, batch.start_ns[chosen])
        within = point != NO_POINT
        within[within] &= batch.end_ns[chosen][within] <= loop.end_ns[point[within]]
        reads += int(chosen.sum())
        inside += int(within.sum())
        moved += int(batch.length[chosen].sum())
    return _Sight(loop_files=loop_files, reads=reads, inside=inside, bytes=moved, lanes=tuple(lanes))


def _turns(loop: TrainingLoop, batches: Batches, sight: _Sight, step_bytes: float) -> tuple[int, ...]:
    """The reader lanes in the order of their turns, if no read then ended after the take that it would have fed."""
    if len(sight.lanes) < 2:
        return ()
    takes, before = loop.take_ends_ns, dict.fromkeys(sight.lanes, 0)
    for batch in batches():
        reads = (batch.op == READ) & sight.loop_files[batch.file_id]
        for turn, lane in enumerate(sight.lanes):
            mine = reads & (batch.lane == lane)
            moved = batch.length[mine]
            fed = np.floor((before[lane] + np.cumsum(moved) - moved) / step_bytes).astype(np.int64)
            fed = fed * len(sight.lanes) + turn
            before[lane] += int(moved.sum())
            in_loop = fed < len(takes)
            if (batch.end_ns[mine][in_loop] > takes[fed[in_loop]]).any():
                return ()
    return sight.lanes


def _step_bytes(loop: TrainingLoop, batches: Batches, loop_files: np.ndarray) -> tuple[float, int]:
    """Bytes that one take consumes: the largest for which every take had its bytes; and all bytes of the loop's files.

    Where that leaves more than half of the bytes unused (a first batch that did not wait for its bytes, a pipeline that
    ends far ahead of the loop), the mean over the takes.
    """
    takes = loop.take_ends_ns
    ended = np.zeros(len(takes) + 1, dtype=np.int64)
    for batch in batches():
        chosen = (batch.op == READ) & loop_files[batch.file_id]
        by_take = np.searchsorted(takes, batch.end_ns[chosen], side="left")
        ended += np.bincount(by_take, weights=batch.length[chosen], minlength=len(ended)).astype(np.int64)
    total = int(ended.sum())
    if not total or not len(takes):
        return 0.0, total
    largest = float((np.cumsum(ended)[:-1] / np.arange(1, len(takes) + 1)).min())
    mean = total / len(takes)
    return (largest if largest >= 0.5 * mean else mean), total


def _measured(draft: LoopModel, batches: Batches) -> LoopModel:
    """The model with what its ties show: residuals, which lanes a point waits for, think time and depth."""
    loop, reader = draft.loop, draft.ties()
    last_end = np.zeros(len(loop.kind), dtype=np.int64)
    needed: dict[int, np.ndarray] = {}
    think, depth = ThinkTimes(), DistributionCollector()
    take_number = np.cumsum(loop.kind == TAKE) - 1
    for batch in batches():
        ties = reader.ties(batch)
        tied = ties.need != NO_POINT
        np.maximum.at(last_end, ties.need[tied], batch.end_ns[tied])
        ahead = tied & (ties.gate == TAKES)
        depth.add(take_number[ties.need[ahead]] - ties.gate_count[ahead])
        for lane in np.unique(batch.lane).tolist():
            mine = np.flatnonzero(batch.lane == lane)
            points = needed.setdefault(lane, np.zeros(len(loop.kind), dtype=bool))
            points[ties.need[mine][tied[mine]]] = True
            think.add(lane, batch, ties, mine)
    ready_ns, typical_ns = _ready(loop, last_end) if not draft.synchronous else (draft.ready_ns, 0)
    from_ns = np.clip(last_end, loop.begin_ns, loop.end_ns)
    takes = loop.takes
    was_ready = _ready_at(last_end[takes], ready_ns[takes])
    from_ns[takes] = np.clip(was_ready, loop.begin_ns[takes], loop.end_ns[takes])
    return dataclasses.replace(
        draft,
        residual_ns=loop.end_ns - from_ns,
        ready_ns=ready_ns,
        needed=needed,
        think_ns=think.medians(typical_ns),
        depth=depth.distribution(),
    )


class ThinkTimes:
    """Think times of reader lanes where no take hides them: within a batch, and between two batches."""

    def __init__(self) -> None:
        self._samples = (DistributionCollector(), DistributionCollector())
        self._previous: dict[int, tuple[int, int]] = {}

    def add(self, lane: int, batch: OperationBatch, ties: Ties, mine: np.ndarray) -> None:
        """The operations `mine` of a batch, all of them of one lane."""
        # The first operation of a lane shows no think time: no take is before the beginning of all times.
        end, need = self._previous.get(lane, (np.iinfo(np.int64).min, NO_POINT))
        before = np.concatenate(([end], batch.end_ns[mine][:-1]))
        first = starts_batch(need, ties.need[mine])
        plain = (ties.gate[mine] == TAKES) & (ties.gate_ns[mine] <= before)
        for sample, chosen in zip(self._samples, (plain & ~first, plain & first), strict=True):
            sample.add(np.maximum(batch.start_ns[mine] - before, 0)[chosen])
        self._previous[lane] = int(batch.end_ns[mine[-1]]), int(ties.need[mine[-1]])

    def medians(self, ready_ns: int) -> tuple[int, int]:
        """Within a batch (0 where all are hidden), between two (`ready_ns` where all are hidden)."""
        within, between = (sample.distribution() for sample in self._samples)
        return (
            int(within.quantile(0.5)) if within.count else 0,
            int(between.quantile(0.5)) if between.count else ready_ns,
        )


def starts_batch(previous_need: int, need: np.ndarray) -> np.ndarray:
    """Which operations of a lane are needed by another point than the one before them."""
    return need != np.concatenate(([previous_need], need[:-1]))


def _ready(loop: TrainingLoop, last_end: np.ndarray) -> tuple[np.ndarray, int]:
    """How long each take's batch took to become ready after its reads (p,), and how long that takes in general.

    In general: the shortest time between a batch's reads and its take, where MIN_STARVED_TAKES were waiting when their
    last read ended (else nobody knows: 0). What a take lasted beyond is its residual. No batch takes longer than the
    capture left it after its reads and after the batch before it.
    """
    takes = loop.takes
    ready_ns = np.zeros(len(loop.kind), dtype=np.int64)
    starved = takes[(last_end[takes] > loop.begin_ns[takes]) & (last_end[takes] <= loop.end_ns[takes])]
    if len(starved) < MIN_STARVED_TAKES:
        return ready_ns, 0
    fed = takes[last_end[takes] > 0]
    typical = max(0, int((loop.end_ns[fed] - last_end[fed]).min()))
    finished = 0
    for take, read, taken in zip(takes.tolist(), last_end[takes].tolist(), loop.end_ns[takes].tolist(), strict=True):
        begins = max(finished, read)
        ready_ns[take] = max(0, min(typical, taken - begins))
        finished = begins + int(ready_ns[take])
    return ready_ns, typical


def _ready_at(last_end: np.ndarray, ready_ns: np.ndarray) -> np.ndarray:
    """When each batch was ready in the capture: one after the other."""
    finished, found = 0, []
    for read, ready in zip(last_end.tolist(), ready_ns.tolist(), strict=True):
        finished = max(finished, read) + ready
        found.append(finished)
    return np.array(found, dtype=np.int64)
