"""The causal model behind the pace `steps`: which reads feed which step, and what each operation waits for. Pure.

The rules (c, need and take as in a bounded buffer between a producer and a consumer):

* An operation that ran ahead of the loop begins when its lane is free, its think time has passed, and as many takes
  have happened as had happened when it began in the capture: a full buffer holds a reader back as it did. A read that
  no take can have held back waits only until it is no further ahead of the loop than reads were in the capture.
* A step has its batch when every read that feeds it has ended. Read i feeds take floor(bytes read before i / step
  bytes); step bytes is the largest number for which every take had its bytes, in the capture, when it ended. Where the
  profile begins in the midst of the run, takes are counted from the run's first step, as the steps' numbers tell.
* Where the lanes are true threads and it contradicts nothing, reader threads take turns: the j-th batch of thread t of
  n feeds take j n + t. Without that the first takes of parallel readers are thought to have their batches too early.
* Between the end of its reads and the take a batch is made ready (decoded, collated): as long as in the capture it
  took at least, where takes had to wait for their batch; where none had to, what the pipeline's own spans or the gaps
  between a reader's batches show. Batches become ready one after the other, beside the training thread.
* Reads that lie within the input waits are the training thread's own (depth 0): they begin when it begins to wait.
* What was read before the first step, from files that the loop does not read, is loaded before it.
* Operations inside of a checkpoint of the training thread block it, and so do those of an evaluation: a long pause
  between two steps until whose second half files are read that the loop does not read.

So the recorded times, with the recorded latencies, follow from the model; with other latencies, other times do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from replay.causal.feed import (
    NO_POINT,
    Batches,
    Feed,
    OperationBatch,
    containing,
    feed_of,
    look,
    turns_of,
    with_evaluations,
)
from replay.causal.ready import ready_at, ready_times
from replay.causal.training_loop import OPENING, TAKE, TrainingLoop
from traces.measures.distribution import Distribution, DistributionCollector
from traces.schema import OPS, READ

SYNCHRONOUS_SHARE = 0.99
"""Of the loop's reads that lie within one input wait: from here on they are taken for the training thread's own."""

NO_GATE, OPENINGS, TAKES = range(3)
"""What an operation waits for: nothing, an opening of the training thread, or a take."""

_PREPARES_READ = tuple(OPS.index(name) for name in ("open", "stat", "seek"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dependencies:
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
    `step_bytes`: bytes that one take consumes, 0.0 where reads are tied by time. `takes_before`: how many there were
    before the profile's first; negative: batches that were there before the first read. `outside_bytes` of
    `loop_bytes` were consumed before the profiled steps or read after them. `turns`: the reader lanes, where each
    reads whole batches in turn; else empty. `residual_ns` (p,): how long a point went on after its operations had ended
    and its batch was ready; `ready_ns` (p,): what making it ready took. `needed`: lane -> bool (p,), the points that
    wait for operations of it. `think_ns`: median think time of a lane where no take hides it, within a batch and before
    the first operation of the next one; `long_think_ns`: what is still usual. `depth`: takes between a read and
    the one that it fed, of the reads that ran ahead. `reads` of the loop, `inside_share` of them within input waits.
    """

    loop: TrainingLoop
    loop_files: np.ndarray
    synchronous: bool
    step_bytes: float
    takes_before: float
    turns: tuple[int, ...]
    loop_bytes: int
    outside_bytes: int
    residual_ns: np.ndarray
    ready_ns: np.ndarray
    needed: dict[int, np.ndarray]
    think_ns: tuple[int, int]
    long_think_ns: tuple[int, int]
    depth: Distribution
    reads: int
    inside_share: float

    @property
    def lead(self) -> int:
        """How many takes a read was ahead of the one that it fed at most."""
        return int(self.depth.quantile(1.0)) if self.depth.count else 0

    def dependencies(self) -> DependencyReader:
        """A reader of the rank's operations from the beginning."""
        return DependencyReader(self)


class DependencyReader:
    """Dependencies a rank's operations, batch after batch from the first one."""

    def __init__(self, model: LoopModel) -> None:
        self._model = model
        self._bytes_before: dict[int, int] = {}
        loop = model.loop
        self._openings, self._take_ends, self._takes = loop.openings_ns, loop.take_ends_ns, loop.takes
        self._blocking = loop.blocking
        self._openings_until = 1 + np.cumsum(np.isin(loop.kind, OPENING))
        self._takes_until = np.cumsum(loop.kind == TAKE) - (loop.kind == TAKE)

    def dependencies(self, batch: OperationBatch) -> Dependencies:
        """What these operations are tied to; they continue the earlier batches."""
        model, loop = self._model, self._model.loop
        start, end = batch.start_ns, batch.end_ns
        of_loop = model.loop_files[batch.file_id]
        reads = of_loop & (batch.op == READ)
        feeds = reads | (of_loop & np.isin(batch.op, _PREPARES_READ))
        checkpoint = np.where(feeds, NO_POINT, containing(loop, self._blocking, start))
        before = start < loop.entry_ns
        need = np.full(len(start), NO_POINT, dtype=np.int64)
        need[before & (end <= loop.entry_ns) & (~of_loop | model.synchronous)] = 0
        fed, consumed = self._fed(batch, reads)
        mine = feeds & (need == NO_POINT) & (start < loop.exit_ns)
        need[mine] = fed[mine]
        need[mine & before & (end <= loop.entry_ns) & consumed] = 0
        blocking = checkpoint != NO_POINT
        blocking[blocking] &= end[blocking] <= loop.end_ns[checkpoint[blocking]]
        need[blocking] = checkpoint[blocking]
        own = (checkpoint != NO_POINT) | (start >= loop.exit_ns) | model.synchronous
        return self._gated(need, start, own & ~before, before)

    def _fed(self, batch: OperationBatch, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The take (as a point) that each operation would feed, NO_POINT beyond the last; and what fed earlier ones."""
        # An operation never feeds a take that had its batch before the operation ended.
        earliest = np.searchsorted(self._take_ends, batch.end_ns, side="left")
        consumed = np.zeros(len(earliest), dtype=bool)
        if self._model.step_bytes:
            moved = np.where(reads, batch.length, 0)
            if self._model.turns:
                fed = self._in_turn(batch.lane, moved)
            else:
                fed = _take_fed(self._before(0, moved), self._model.step_bytes, self._model.takes_before)
            consumed = fed < 0
            earliest = np.maximum(earliest, fed)
        return _nth(self._takes, earliest), consumed

    def _in_turn(self, lane: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """The take that each operation feeds where the lanes read batches in turn."""
        turns, fed = self._model.turns, np.zeros(len(lane), dtype=np.int64)
        for turn, reader in enumerate(turns):
            mine = lane == reader
            batches = np.floor(self._before(reader, moved[mine]) / self._model.step_bytes).astype(np.int64)
            fed[mine] = batches * len(turns) + turn - round(self._model.takes_before)
        return fed

    def _before(self, account: int, moved: np.ndarray) -> np.ndarray:
        """Bytes moved before each operation, on an account that goes on from batch to batch."""
        before = self._bytes_before.get(account, 0) + np.cumsum(moved) - moved
        self._bytes_before[account] = self._bytes_before.get(account, 0) + int(moved.sum())
        return before

    def _gated(self, need: np.ndarray, start: np.ndarray, own: np.ndarray, before: np.ndarray) -> Dependencies:
        opened = np.searchsorted(self._openings, start, side="right")
        taken = np.searchsorted(self._take_ends, start, side="right")
        # What begins in the very moment in which the point that needs it ends does not wait for that point.
        opened, taken = (
            np.where(need == NO_POINT, count, np.minimum(count, allowed[need]))
            for count, allowed in ((opened, self._openings_until), (taken, self._takes_until))
        )
        by_opening = own | (taken == 0)
        gate = np.where(by_opening, OPENINGS, TAKES).astype(np.int8)
        count = np.where(by_opening, np.where(own, opened, np.minimum(opened, 1)), taken)
        gate[before | (count == 0)] = NO_GATE
        count[gate == NO_GATE] = 0
        gate_ns = np.full(len(start), np.iinfo(np.int64).min)
        for code, times in ((OPENINGS, self._openings), (TAKES, self._take_ends)):
            chosen = gate == code
            gate_ns[chosen] = times[count[chosen] - 1]
        # What begins when a point has ended cannot have been waited for by it.
        floor = np.where(need == NO_POINT, np.searchsorted(self._model.loop.end_ns, start, side="right"), need)
        return Dependencies(need=need, floor=floor, gate=gate, gate_count=count, gate_ns=gate_ns)


def _nth(points: np.ndarray, index: np.ndarray) -> np.ndarray:
    """points[index], NO_POINT beyond the end."""
    if not len(points):
        return np.full(len(index), NO_POINT, dtype=np.int64)
    return np.where(index < len(points), points[np.minimum(index, len(points) - 1)], NO_POINT)


def _take_fed(bytes_before: np.ndarray, step_bytes: float, takes_before: float) -> np.ndarray:
    """int64: the take that each read feeds, by the bytes that were read before it; negative before the first."""
    fed: np.ndarray = np.floor(bytes_before / step_bytes - takes_before).astype(np.int64)
    return fed


def derive_model(loop: TrainingLoop, batches: Batches, files: int, *, threads_known: bool) -> LoopModel:
    """The model of one rank from its loop and operations, which are read five times at most.

    `files`: how many there are. `threads_known`: whether lanes are true threads, not inferred from overlaps. Memory:
    some numbers per point and lane.
    """
    loop, evaluated = with_evaluations(loop, batches, files)
    loop_reads = look(loop, batches, evaluated)
    reads, inside = loop_reads.reads, loop_reads.inside
    synchronous = reads > 0 and inside >= SYNCHRONOUS_SHARE * reads
    fed = Feed(loop_bytes=loop_reads.bytes) if synchronous else feed_of(loop, batches, loop_reads.loop_files)
    draft = LoopModel(
        loop=loop,
        loop_files=loop_reads.loop_files,
        synchronous=synchronous,
        step_bytes=fed.step_bytes,
        takes_before=fed.takes_before,
        turns=turns_of(loop, batches, loop_reads, fed) if threads_known and fed.step_bytes else (),
        loop_bytes=fed.loop_bytes,
        outside_bytes=fed.outside_bytes,
        residual_ns=loop.end_ns - loop.begin_ns,
        ready_ns=np.zeros(len(loop.kind), dtype=np.int64),
        needed={},
        think_ns=(0, 0),
        long_think_ns=(0, 0),
        depth=Distribution.of(np.empty(0, dtype=np.int64)),
        reads=reads,
        inside_share=inside / reads if reads else 0.0,
    )
    return _measured(draft, batches)


def _measured(draft: LoopModel, batches: Batches) -> LoopModel:
    """The model with what its dependencies show: residuals, which lanes a point waits for, think time and depth."""
    loop, reader = draft.loop, draft.dependencies()
    last_end = np.zeros(len(loop.kind), dtype=np.int64)
    needed: dict[int, np.ndarray] = {}
    think, depth = ThinkTimes(), DistributionCollector()
    take_number = np.cumsum(loop.kind == TAKE) - 1
    for batch in batches():
        dependencies = reader.dependencies(batch)
        tied = dependencies.need != NO_POINT
        feeds = tied & (loop.kind[dependencies.need] == TAKE)
        np.maximum.at(last_end, dependencies.need[tied], batch.end_ns[tied])
        ahead = tied & (dependencies.gate == TAKES)
        depth.add(take_number[dependencies.need[ahead]] - dependencies.gate_count[ahead])
        for lane in np.unique(batch.lane).tolist():
            mine = np.flatnonzero(batch.lane == lane)
            points = needed.setdefault(lane, np.zeros(len(loop.kind), dtype=bool))
            points[dependencies.need[mine][tied[mine]]] = True
            think.add(lane, batch, dependencies, mine, feeds[mine])
    think_ns, long_think_ns = think.typical()
    ready_ns = draft.ready_ns if draft.synchronous else ready_times(loop, last_end, think_ns[1])
    from_ns = np.clip(last_end, loop.begin_ns, loop.end_ns)
    takes = loop.takes
    was_ready = ready_at(last_end[takes], ready_ns[takes])
    from_ns[takes] = np.clip(was_ready, loop.begin_ns[takes], loop.end_ns[takes])
    return dataclasses.replace(
        draft,
        residual_ns=loop.end_ns - from_ns,
        ready_ns=ready_ns,
        needed=needed,
        think_ns=think_ns if think.between else (think_ns[0], int(ready_ns.max(initial=0))),
        long_think_ns=long_think_ns,
        depth=depth.distribution(),
    )


class ThinkTimes:
    """Think times of reader lanes where nothing hides them: within a batch, and between two batches."""

    def __init__(self) -> None:
        self._samples = (DistributionCollector(), DistributionCollector())
        self._previous: dict[int, tuple[int, int]] = {}
        self.between = 0

    def add(
        self, lane: int, batch: OperationBatch, dependencies: Dependencies, mine: np.ndarray, feeds: np.ndarray
    ) -> None:
        """The operations `mine` of a batch, all of them of one lane; `feeds`: those that a take needs."""
        known = lane in self._previous
        end, need = self._previous.get(lane, (int(batch.start_ns[mine[0]]), NO_POINT))
        before = np.concatenate(([end], batch.end_ns[mine][:-1]))
        first = starts_batch(need, dependencies.need[mine])
        # What waits for nothing may have been held back by takes that the profile does not show.
        plain = feeds & (dependencies.gate[mine] != NO_GATE) & (dependencies.gate_ns[mine] <= before)
        plain[0] &= known  # the first operation of a lane shows no think time
        for sample, chosen in zip(self._samples, (plain & ~first, plain & first), strict=True):
            sample.add(np.maximum(batch.start_ns[mine] - before, 0)[chosen])
        self.between += int((plain & first).sum())
        self._previous[lane] = int(batch.end_ns[mine[-1]]), int(dependencies.need[mine[-1]])

    def typical(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Within a batch and between two: the medians, and what nine of ten stay below, at most twice the median; 0
        where all are hidden."""
        found = [sample.distribution() for sample in self._samples]
        half, nine = (tuple(int(each.quantile(share)) if each.count else 0 for each in found) for share in (0.5, 0.9))
        # Of a few samples nine tenths may be a pause: what is long by far is no thinking.
        return (half[0], half[1]), (min(nine[0], 2 * half[0]), min(nine[1], 2 * half[1]))


def starts_batch(previous_need: int, need: np.ndarray) -> np.ndarray:
    """Which operations of a lane are needed by another point than the one before them."""
    return need != np.concatenate(([previous_need], need[:-1]))
