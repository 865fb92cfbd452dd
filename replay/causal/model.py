"""The causal model behind the pace `steps`: which reads feed which step, and what each operation waits for. Pure.

The training thread fetches a batch for each step, and readers fill a bounded buffer of batches ahead of it. The rules:

* An operation that ran ahead of the loop begins when its lane is free, its think time has passed, and as many batches
  have been fetched as when it began in the capture: a full buffer holds a reader back as it did. A read that no batch
  fetch can have held back waits only until it is no further ahead of the loop than reads were in the capture.
* A step has its batch when every read that feeds it has ended. Read i feeds fetch number floor(bytes read before i /
  step bytes); step bytes is the largest number with which every fetch of the capture had its bytes when it ended.
  Where the profile begins in the middle of the run, the numbers of its steps say how many fetches came before.
* Where the lanes are true threads and no read contradicts it, reader threads take turns: the j-th batch of thread t of
  n feeds fetch j n + t. Without this rule the first batches of parallel readers would seem to be there too early.
* Between the end of its reads and its fetch a batch is made ready (decoded, collated). Where fetches had to wait for
  their batch, this lasts as long as it lasted at least in the capture; else as long as the spans of the pipeline or the
  gaps between the batches of a reader show. Batches become ready one after the other, beside the training thread.
* The workers of a PyTorch DataLoader make whole batches in turn, and a fetch lets its worker begin another one
  (`replay.causal.dealing`): their reads follow this rule, and those of the training thread itself the next one.
* Where the profile of TensorFlow says which batch used what its threads made, no bytes are counted
  (`replay.causal.production`).
* Reads inside input waits are issued by the training thread itself (depth 0): they begin when it begins to wait.
* What was read before the first step, from files that the loop does not read, is loaded before the first step.
* The training thread waits for the operations inside its checkpoints and evaluations. An evaluation is a long pause
  between two steps, in whose second half, too, files are read that the loop does not read.

With the recorded latencies the recorded times follow from the model; with other latencies, other times. What speaks
against the rules is the model's doubt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.replay.causal.dealing import Dealing, dealing
from dxt_replay.replay.causal.dealt_reader import DealtReader
from dxt_replay.replay.causal.dependencies import FETCHES, NO_GATE, OPENINGS, Dependencies, DependencyReader, nth_event
from dxt_replay.replay.causal.feed import (
    NO_EVENT,
    Batches,
    Feed,
    LoopReads,
    OperationBatch,
    containing,
    feed_of,
    look,
    turns_of,
    with_evaluations,
    with_own_reads,
)
from dxt_replay.replay.causal.known import KnownFeeds, KnownReader, known_feeds
from dxt_replay.replay.causal.produced_reader import ProducedReader
from dxt_replay.replay.causal.production import PREPARES_READ, PipelineSpans, Production, production
from dxt_replay.replay.causal.ready import ready_at, ready_times
from dxt_replay.replay.causal.training_loop import FETCH, OPENING, TrainingLoop
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import READ

DOUBTED_SHARE = 0.1
"""Share of the loop by which storage may be involved in waits that an inferred model does not explain by reads."""

SYNCHRONOUS_SHARE = 0.99
"""Share of the loop's reads inside input waits from which on the training thread itself issues them (depth 0)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopModel:
    """The model of one rank, which has e events.

    loop_files: the files that the loop reads, bool by file id.
    synchronous: whether the training thread itself reads (depth 0).
    step_bytes: bytes that one batch fetch consumes, 0.0 where only the times say which read feeds which fetch.
    fetches_before: fetches before the profile's first; negative: batches in the buffer before the first read.
    turns: the reader lanes in order, where each reads whole batches in turn; else empty.
    dealing: how batches were dealt to the workers of a DataLoader; None where the loop has none.
    loop_bytes, outside_bytes: read from the loop's files; and those of them that steps outside of the profile consumed.
    residual_ns, ready_ns: (e,), how long an event lasted after its operations and its batch; how long making that took.
    needed: bool (e,) by lane, the events that wait for operations of the lane.
    think_ns, long_think_ns: median and longest usual think time, within a batch and before the next batch.
    depth: fetches between a read that ran ahead and the fetch that it fed.
    reads, inside_share: reads of the loop, and the share of them inside input waits.
    known: what the capture says of its dependencies; None where they are inferred.
    production: the making of the batches where the profile shows it; None elsewhere.
    doubt: why the model must not be believed, a clause for a sentence after a colon; empty where nothing speaks so.
    """

    loop: TrainingLoop
    loop_files: np.ndarray
    synchronous: bool
    step_bytes: float
    fetches_before: float
    turns: tuple[int, ...]
    dealing: Dealing | None
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
    known: KnownFeeds | None = None
    production: Production | None = None
    doubt: str = ""

    @property
    def lead(self) -> int:
        """How many fetches a read was at most ahead of the one that it fed."""
        return int(self.depth.quantile(1.0)) if self.depth.count else 0

    def placed(self, batch: OperationBatch) -> OperationBatch:
        """The operations at times of one clock: those of a DataLoader's workers are corrected."""
        return batch if self.dealing is None else self.dealing.placed(batch)

    def is_worker(self, lane: int) -> bool:
        """Whether a lane makes whole batches one after the other: it makes a batch ready before it goes on."""
        return self.known is not None or (self.dealing is not None and lane in self.dealing.lanes)

    def dependencies(self) -> DependencyReader:
        """A reader of the rank's operations from the beginning."""
        if self.known is not None:
            return KnownReader(self.loop)
        inferring = InferringReader(self)
        return (
            inferring
            if self.production is None
            else ProducedReader(self.loop, self.production, self.loop_files, inferring)
        )


class InferringReader:
    """Dependencies of a rank's operations, batch after batch from the first one."""

    def __init__(self, model: LoopModel) -> None:
        self._model = model
        self._bytes_before: dict[int, int] = {}
        loop = model.loop
        self._openings, self._fetch_ends, self._fetches = loop.openings_ns, loop.fetch_ends_ns, loop.fetches
        self._blocking = loop.blocking
        self._openings_until = 1 + np.cumsum(np.isin(loop.kind, OPENING))
        self._fetches_until = np.cumsum(loop.kind == FETCH) - (loop.kind == FETCH)
        self._dealt = DealtReader(loop, model.dealing) if model.dealing is not None else None

    def dependencies(self, batch: OperationBatch) -> Dependencies:
        """Dependencies of these operations, which continue the earlier batches."""
        model, loop = self._model, self._model.loop
        start, end = batch.start_ns, batch.end_ns
        of_loop = model.loop_files[batch.file_id]
        reads = of_loop & (batch.op == READ)
        feeds = reads | (of_loop & np.isin(batch.op, PREPARES_READ) & _same_file_next(batch))
        checkpoint = np.where(feeds, NO_EVENT, containing(loop, self._blocking, start))
        before = start < loop.entry_ns
        need = np.full(len(start), NO_EVENT, dtype=np.int64)
        need[before & (end <= loop.entry_ns) & (~of_loop | model.synchronous)] = 0
        fed, consumed = self._fed(batch, reads)
        mine = feeds & (need == NO_EVENT) & (start < loop.exit_ns)
        need[mine] = fed[mine]
        need[mine & before & (end <= loop.entry_ns) & consumed] = 0
        blocking = checkpoint != NO_EVENT
        blocking[blocking] &= end[blocking] <= loop.end_ns[checkpoint[blocking]]
        need[blocking] = checkpoint[blocking]
        # What ended after the event that it began in (a rebuilt close, at a time that is made up) did not hold it up.
        over = np.where((checkpoint != NO_EVENT) & (need == NO_EVENT), checkpoint + 1, 0)
        own = (checkpoint != NO_EVENT) | (start >= loop.exit_ns) | model.synchronous
        found = self._gated(need, start, own & ~before, before)
        found = dataclasses.replace(found, floor=np.maximum(found.floor, over))
        return found if self._dealt is None else self._dealt.dependencies(batch, found)

    def _fed(self, batch: OperationBatch, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch fetch (as an event) that each operation feeds, NO_EVENT beyond the last; and, as bool, which
        operations fed fetches before the profile's first."""
        # An operation never feeds a fetch that had its batch before the operation ended.
        earliest = np.searchsorted(self._fetch_ends, batch.end_ns, side="left")
        consumed = np.zeros(len(earliest), dtype=bool)
        if self._model.step_bytes:
            moved = np.where(reads, batch.length, 0)
            if self._model.turns:
                fed = self._in_turn(batch.lane, moved)
            else:
                fed = _fetch_fed(self._before(0, moved), self._model.step_bytes, self._model.fetches_before)
            consumed = fed < 0
            earliest = np.maximum(earliest, fed)
        return nth_event(self._fetches, earliest), consumed

    def _in_turn(self, lane: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Number of the batch fetch that each operation feeds where the lanes read batches in turn."""
        turns, fed = self._model.turns, np.zeros(len(lane), dtype=np.int64)
        for turn, reader in enumerate(turns):
            mine = lane == reader
            batches = np.floor(self._before(reader, moved[mine]) / self._model.step_bytes).astype(np.int64)
            fed[mine] = batches * len(turns) + turn - round(self._model.fetches_before)
        return fed

    def _before(self, account: int, moved: np.ndarray) -> np.ndarray:
        """Bytes moved before each operation; each `account` continues from batch to batch."""
        before = self._bytes_before.get(account, 0) + np.cumsum(moved) - moved
        self._bytes_before[account] = self._bytes_before.get(account, 0) + int(moved.sum())
        return before

    def _gated(self, need: np.ndarray, start: np.ndarray, own: np.ndarray, before: np.ndarray) -> Dependencies:
        opened = np.searchsorted(self._openings, start, side="right")
        fetched = np.searchsorted(self._fetch_ends, start, side="right")
        # An operation that begins exactly when the event that needs it ends does not wait for that event.
        opened, fetched = (
            np.where(need == NO_EVENT, count, np.minimum(count, allowed[need]))
            for count, allowed in ((opened, self._openings_until), (fetched, self._fetches_until))
        )
        by_opening = own | (fetched == 0)
        gate = np.where(by_opening, OPENINGS, FETCHES).astype(np.int8)
        count = np.where(by_opening, np.where(own, opened, np.minimum(opened, 1)), fetched)
        gate[before | (count == 0)] = NO_GATE
        count[gate == NO_GATE] = 0
        gate_ns = np.full(len(start), np.iinfo(np.int64).min)
        for code, times in ((OPENINGS, self._openings), (FETCHES, self._fetch_ends)):
            chosen = gate == code
            gate_ns[chosen] = times[count[chosen] - 1]
        # An event that has ended cannot have waited for an operation that begins later.
        floor = np.where(need == NO_EVENT, np.searchsorted(self._model.loop.end_ns, start, side="right"), need)
        return Dependencies(
            need=need, floor=floor, gate=gate, gate_count=count, gate_ns=gate_ns, ready_ns=np.zeros_like(gate_ns)
        )


def _same_file_next(batch: OperationBatch) -> np.ndarray:
    """bool (n,): the next operation of the lane is of the same file, or is not in this batch.

    An open that was rebuilt from counters may overlap its thread's other operations by microseconds, and then has a
    lane of its own: it prepares no read there, and the time since the lane's previous one is no think time.
    """
    order = np.argsort(batch.lane, kind="stable")
    lane, file_id = batch.lane[order], batch.file_id[order]
    found = np.ones(len(order), dtype=bool)
    found[order[:-1]] = (lane[:-1] != lane[1:]) | (file_id[:-1] == file_id[1:])
    return found


def _fetch_fed(bytes_before: np.ndarray, step_bytes: float, fetches_before: float) -> np.ndarray:
    """int64: number of the batch fetch that each read feeds, by the bytes read before it; negative before the first."""
    fed: np.ndarray = np.floor(bytes_before / step_bytes - fetches_before).astype(np.int64)
    return fed


def derive_model(
    loop: TrainingLoop,
    batches: Batches,
    files: int,
    *,
    threads_known: bool,
    workers_late_ns: Sequence[int] = (),
    pipeline: PipelineSpans | None = None,
) -> LoopModel:
    """The model of one rank from its loop and operations, which are read eight times at most.

    files: how many there are. threads_known: whether lanes are true threads, not inferred from overlaps.
    workers_late_ns: by worker process, in the order of their lanes, how late its clock may be, ns.
    pipeline: what the threads of tf.data made for which fetch, where the profile says it.
    Memory: some numbers per event, lane and read of a worker.
    """
    if pipeline is not None:
        loop_reads = look(loop, batches, np.zeros(files, dtype=bool))
        made = production(loop, batches, pipeline, loop_reads.loop_files)
        if made is not None:
            return _measured(_draft(loop, loop_reads, Feed(loop_bytes=loop_reads.bytes), production=made), batches)
    loop, evaluated = with_evaluations(loop, batches, files)
    loop_reads = look(loop, batches, evaluated)
    own = with_own_reads(loop, batches, loop_reads)
    if own is not loop:
        loop, loop_reads = own, look(own, batches, evaluated)
    reads, inside = loop_reads.reads, loop_reads.inside
    dealt = dealing(loop, batches, _worker_lanes(loop_reads, workers_late_ns))
    # What workers do not read, the training thread reads by itself.
    synchronous = dealt is not None or (reads > 0 and inside >= SYNCHRONOUS_SHARE * reads)
    fed = Feed(loop_bytes=loop_reads.bytes) if synchronous else feed_of(loop, batches, loop_reads.loop_files)
    turns = turns_of(loop, batches, loop_reads, fed) if threads_known and fed.step_bytes else ()
    return _measured(_draft(loop, loop_reads, fed, synchronous=synchronous, turns=turns, dealing=dealt), batches)


def _draft(loop: TrainingLoop, loop_reads: LoopReads, fed: Feed, **choices: Any) -> LoopModel:
    """A model before its times are measured; `choices`: fields of `LoopModel`."""
    return dataclasses.replace(
        LoopModel(
            loop=loop,
            loop_files=loop_reads.loop_files,
            synchronous=False,
            step_bytes=fed.step_bytes,
            fetches_before=fed.fetches_before,
            turns=(),
            dealing=None,
            loop_bytes=fed.loop_bytes,
            outside_bytes=fed.outside_bytes,
            residual_ns=loop.end_ns - loop.begin_ns,
            ready_ns=np.zeros(len(loop.kind), dtype=np.int64),
            needed={},
            think_ns=(0, 0),
            long_think_ns=(0, 0),
            depth=Distribution.of(np.empty(0, dtype=np.int64)),
            reads=loop_reads.reads,
            inside_share=loop_reads.inside / loop_reads.reads if loop_reads.reads else 0.0,
        ),
        **choices,
    )


def known_model(loop: TrainingLoop, batches: Batches, files: int) -> LoopModel:
    """The model of one rank whose capture says what each operation waits for. The operations are read twice.

    loop: from `replay.causal.training_loop.known_loop`. files: how many there are.
    Raises: CaptureError where what an operation waits for comes only after what waits for the operation.
    """
    known = known_feeds(loop, batches, files)
    loop_reads = LoopReads(
        loop_files=known.loop_files, reads=known.reads, inside=known.inside, bytes=known.bytes, lanes=()
    )
    synchronous = known.reads > 0 and known.inside >= SYNCHRONOUS_SHARE * known.reads
    draft = _draft(loop, loop_reads, Feed(loop_bytes=known.bytes), synchronous=synchronous, known=known)
    return _measured(draft, batches)


def _worker_lanes(loop_reads: LoopReads, workers_late_ns: Sequence[int]) -> dict[int, int]:
    """The lanes of worker processes, each with how late its clock may be: the last of the lanes that read for the loop.

    What is rebuilt from counters may have lanes of its own beside the one in which a worker reads.
    """
    return dict(zip(sorted(loop_reads.lanes, reverse=True), reversed(workers_late_ns), strict=False))


def _measured(draft: LoopModel, batches: Batches) -> LoopModel:
    """The model with what its dependencies show: residuals, the lanes that an event waits for, think time and depth."""
    loop, reader = draft.loop, draft.dependencies()
    last_end = np.zeros(len(loop.kind), dtype=np.int64)
    needed: dict[int, np.ndarray] = {}
    think, depth = ThinkTimes(), DistributionCollector()
    fetch_number = np.cumsum(loop.kind == FETCH) - 1
    for batch in map(draft.placed, batches()):
        dependencies = reader.dependencies(batch)
        is_needed = dependencies.need != NO_EVENT
        feeds = is_needed & (loop.kind[dependencies.need] == FETCH)
        was_ready_ns = batch.end_ns + dependencies.ready_ns
        np.maximum.at(last_end, dependencies.need[is_needed], was_ready_ns[is_needed])
        ahead = is_needed & (dependencies.gate == FETCHES)
        depth.add(fetch_number[dependencies.need[ahead]] - dependencies.gate_count[ahead])
        for lane in np.unique(batch.lane).tolist():
            mine = np.flatnonzero(batch.lane == lane)
            events = needed.setdefault(lane, np.zeros(len(loop.kind), dtype=bool))
            events[dependencies.need[mine][is_needed[mine]]] = True
            think.add(lane, batch, dependencies, mine, feeds[mine])
    think_ns, long_think_ns = think.typical()
    lanes_make_ready = draft.synchronous or draft.known is not None or draft.production is not None
    ready_ns = draft.ready_ns if lanes_make_ready else ready_times(loop, last_end, think_ns[1])
    from_ns = np.clip(last_end, loop.begin_ns, loop.end_ns)
    fetches = loop.fetches
    made = draft.production
    was_ready = ready_at(last_end[fetches], ready_ns[fetches]) if made is None else made.end_ns
    from_ns[fetches] = np.clip(was_ready, loop.begin_ns[fetches], loop.end_ns[fetches])
    return dataclasses.replace(
        draft,
        doubt=doubt(draft, batches, last_end),
        residual_ns=loop.end_ns - from_ns,
        ready_ns=ready_ns,
        needed=needed,
        think_ns=think_ns if think.between else (think_ns[0], int(ready_ns.max(initial=0))),
        long_think_ns=long_think_ns,
        depth=depth.distribution(),
    )


def doubt(model: LoopModel, batches: Batches, last_end_ns: np.ndarray) -> str:
    """What the recording shows against a model whose feed rule is inferred from byte counts; empty for nothing.

    last_end_ns: (e,), when the last operation that each event needs had ended, by the model.
    """
    loop = model.loop
    if model.known is not None or model.production is not None or model.dealing is not None or not model.reads:
        return ""
    starts, ends = [], []
    for batch in batches():
        chosen = model.loop_files[batch.file_id] & ((batch.op == READ) | np.isin(batch.op, PREPARES_READ))
        starts.append(batch.start_ns[chosen])
        ends.append(batch.end_ns[chosen])
    busy = Intervals.union_of(np.concatenate(starts), np.concatenate(ends))
    loop_ns = max(loop.exit_ns - loop.entry_ns, 1)
    if not loop.input_waits:
        reading_ns = int(busy.covered_within(np.array([loop.entry_ns]), np.array([loop.exit_ns]))[0])
        if reading_ns <= DOUBTED_SHARE * loop_ns:
            return ""
        return (
            f"reads last {100 * reading_ns / loop_ns:.0f} % of the training loop, and the profile does not show when "
            "the loop waits for them; record with recording() and r.step(), which mark it"
        )
    begin, end = loop.begin_ns[loop.fetches], loop.end_ns[loop.fetches]
    waited_ns = int(busy.covered_within(begin, end).sum())
    given_ns = int((np.clip(last_end_ns[loop.fetches], begin, end) - begin).sum())
    if model.synchronous or waited_ns - given_ns <= DOUBTED_SHARE * loop_ns:
        return ""
    return (
        f"the loop waits for input during {100 * waited_ns / loop_ns:.0f} % of its time while its files are read, and "
        f"the model explains {100 * given_ns / loop_ns:.0f} % by reads: which reads a batch waits for is not known"
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
        """Count the operations `mine` of a batch, all of one lane. `feeds`: which of them a batch fetch needs."""
        known = lane in self._previous
        end, need = self._previous.get(lane, (int(batch.start_ns[mine[0]]), NO_EVENT))
        before = np.concatenate(([end], batch.end_ns[mine][:-1]))
        first = starts_batch(need, dependencies.need[mine])
        # An operation that waits for nothing may have been held back by fetches that the profile does not show.
        plain = feeds & (dependencies.gate[mine] != NO_GATE) & (dependencies.gate_ns[mine] <= before)
        plain[0] &= known  # the first operation of a lane shows no think time
        for sample, chosen in zip(self._samples, (plain & ~first, plain & first), strict=True):
            sample.add(np.maximum(batch.start_ns[mine] - before, 0)[chosen])
        self.between += int((plain & first).sum())
        self._previous[lane] = int(batch.end_ns[mine[-1]]), int(dependencies.need[mine[-1]])

    def typical(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Within a batch and between two batches: the medians, and the 90th percentiles, at most twice the median; 0
        where no think time shows."""
        found = [sample.distribution() for sample in self._samples]
        half, nine = (tuple(int(each.quantile(share)) if each.count else 0 for each in found) for share in (0.5, 0.9))
        # With few samples the 90th percentile may be a pause, which is not a think time.
        return (half[0], half[1]), (min(nine[0], 2 * half[0]), min(nine[1], 2 * half[1]))


def starts_batch(previous_need: int, need: np.ndarray) -> np.ndarray:
    """Which operations of a lane are needed by another event than the one before them."""
    return need != np.concatenate(([previous_need], need[:-1]))
