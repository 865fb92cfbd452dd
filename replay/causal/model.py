"""The causal model behind the pace `steps`: the step that each read feeds, and the moment that it waits for. Pure.

The training thread fetches a batch for each step, and readers fill a bounded buffer of batches ahead of it. The rules:

* An operation that ran ahead of the loop begins when its lane is free, its think time has passed, and as many batches
  have been fetched as when it began in the capture. So a full buffer holds a reader back as it did. A read that no
  fetch can have held back waits only until it is no further ahead of the loop than reads were in the capture.
* A step has its batch when every read that feeds it has ended. Read i feeds fetch number floor(bytes read before i /
  step bytes). Step bytes is the largest number with which every fetch of the capture had its bytes when it ended.
  If the profile begins in the middle of the run, the number of its first step gives the number of earlier fetches.
* If the lanes are true threads and no read contradicts it, reader threads take turns: the j-th batch of thread t of
  n feeds fetch j n + t. Without this rule the first batches of parallel readers would seem to be ready too early.
* After its reads a batch is made ready (decoded, collated) before its fetch. If fetches had to wait for their batches,
  this lasts the shortest such time of the capture. Else it lasts as long as the spans of the pipeline, or the gaps
  between the batches of a reader, show. Batches become ready one after the other, beside the training thread.
* The workers of a PyTorch DataLoader make whole batches in turn, and a fetch lets its worker begin another one
  (`replay.causal.dealing`).
* If TensorFlow's profile says which batch used the output of which thread, no bytes are counted
  (`replay.causal.production`).
* The training thread itself issues the reads inside input waits (depth 0). They begin when it begins to wait.
* Reads before the first step, from files that the loop does not read, are loaded before the first step.
* The training thread waits for the operations inside its checkpoints and evaluations. An evaluation is a long pause
  between two steps with reads, also in its second half, of files that the loop does not read.

With the recorded latencies the model yields the recorded times; with other latencies it predicts other times. Evidence
against the rules is the model's doubt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.columns import InferredRules, KnownRules, starts_batch
from dxt_replay.replay.causal.dealing import Dealing, Worker, dealing
from dxt_replay.replay.causal.feed import Feed, LoopReads, feed_of, look, turns_of, with_evaluations, with_own_reads
from dxt_replay.replay.causal.loop import FETCH, FETCHES, NO_MOMENT, NO_TIMES, Batches, Moments, TrainingLoop
from dxt_replay.replay.causal.production import PREPARES_READ, Production, known_production, production
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import OperationBatch, rows_by_lane
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import READ

DOUBTED_SHARE = 0.1
"""Share of the loop by which storage may be involved in waits that an inferred model does not explain by reads."""

SYNCHRONOUS_SHARE = 0.99
"""Share of the loop's reads inside input waits from which on the training thread itself issues them (depth 0)."""

MIN_STARVED_FETCHES = 3
"""How many fetches must have waited for their batch to show how long making one ready takes: the start of the pipeline
itself may have delayed one or two."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopModel:
    """The model of one rank, which has e events.

    loop_files: the files that the loop reads, bool by file id. reads, inside_share: its reads, and the share of them
    inside input waits. synchronous: whether the training thread itself reads (depth 0).
    feed, turns: how bytes feed fetches, and the lanes of readers that take turns.
    residual_ns, ready_ns: (e,), how long an event lasted after its operations and batch; time to make the batch ready.
    needed: bool (e,) by lane, the events that wait for operations of the lane.
    think_ns, long_think_ns: median and longest usual think time, within a batch and before the next batch.
    depth: fetches between a read that ran ahead and the fetch that it fed; `lead`: the most.
    known: for a capture with dependency columns, the times to make ready of the batches that were not ready at once;
    None for inferred dependencies. production: the making of the batches if that is known, else None.
    found: where `known_model` kept them, the `DEPENDENCY` of each batch of operations.
    doubt: the reason why the model must not be believed, a clause for use after a colon; empty without one.
    """

    loop: TrainingLoop
    loop_files: np.ndarray
    reads: int
    inside_share: float
    synchronous: bool
    feed: Feed
    residual_ns: np.ndarray
    ready_ns: np.ndarray
    turns: tuple[int, ...] = ()
    dealing: Dealing | None = None
    production: Production | None = None
    known: Distribution | None = None
    needed: Mapping[int, np.ndarray] = field(default_factory=dict)
    think_ns: tuple[int, int] = (0, 0)
    long_think_ns: tuple[int, int] = (0, 0)
    depth: Distribution = field(default_factory=lambda: Distribution.of(NO_TIMES))
    found: tuple[np.ndarray, ...] = ()
    doubt: str = ""

    @property
    def lead(self) -> int:
        return int(self.depth.quantile(1.0)) if self.depth.count else 0

    @property
    def unshown(self) -> int:
        """For how many reads the loop may wait where the recording does not show it."""
        hidden = self.known is None and not self.loop.shows_waits
        return round(self.reads * (1 - self.inside_share)) if hidden else 0

    def placed(self, batch: OperationBatch) -> OperationBatch:
        """The operations at times of one clock: those of a DataLoader's workers are corrected."""
        return batch if self.dealing is None else self.dealing.placed(batch)

    def is_worker(self, lane: int) -> bool:
        """Whether a lane makes whole batches one after the other, and so makes a batch ready before it goes on."""
        return self.known is not None or (self.dealing is not None and lane in self.dealing.lanes)

    @property
    def moments(self) -> Moments:
        """The moments for which operations can wait."""
        return _moments_of(self.loop, self.production)

    def dependencies(self) -> Callable[[OperationBatch], np.ndarray]:
        """Gives the `DEPENDENCY` of the rank's operations, batch after batch from the beginning."""
        if self.found:
            kept = iter(self.found)
            return lambda _: next(kept)
        return (InferredRules(self) if self.known is None else KnownRules(self.loop, self.production)).dependencies


@lru_cache(maxsize=1)
def _moments_of(loop: TrainingLoop, production: Production | None) -> Moments:
    return Moments.of(loop, NO_TIMES if production is None else production.moments_ns)


def derive_model(
    loop: TrainingLoop,
    batches: Batches,
    files: int,
    *,
    threads_known: bool,
    workers: Callable[[Sequence[int]], Sequence[Worker]] = lambda lanes: (),
    pipeline: np.ndarray | None = None,
) -> LoopModel:
    """Derive the model of one rank from its loop and operations, which are read eight times at most.

    files: number of files. threads_known: whether lanes are true threads, not inferred from overlaps.
    workers: the worker processes that have some of these lanes. pipeline: the spans of tf.data's threads with the
    fetches that used them (`pipeline_spans`), if the profile has them.
    Memory: some numbers per event, lane and read of a worker.
    """
    if pipeline is not None:
        loop_reads = look(loop, batches, np.zeros(files, dtype=bool))
        made = production(loop, batches, pipeline, loop_reads.loop_files)
        if made is not None:
            return _measured(_draft(loop, loop_reads, synchronous=False, production=made), batches)
    loop, evaluated = with_evaluations(loop, batches, files)
    loop_reads = look(loop, batches, evaluated)
    own = with_own_reads(loop, batches, loop_reads)
    if own is not loop:
        loop, loop_reads = own, look(own, batches, evaluated)
    dealt = dealing(loop, batches, workers(loop_reads.lanes))
    # The training thread itself makes all reads that workers do not.
    synchronous = dealt is not None or _reads_itself(loop_reads)
    feed = Feed(loop_bytes=loop_reads.bytes) if synchronous else feed_of(loop, batches, loop_reads.loop_files)
    turns = turns_of(loop, batches, loop_reads, feed) if threads_known else ()
    draft = _draft(loop, loop_reads, synchronous=synchronous, feed=feed, turns=turns, dealing=dealt)
    return _measured(draft, batches)


def known_model(
    loop: TrainingLoop, batches: Batches, files: int, spans: pa.Table, *, for_items: bool = False
) -> LoopModel:
    """The model of one rank whose capture says what each operation waits for. The operations are read once, and once
    more for a production.

    loop: from `replay.causal.loop.known_loop`. files: how many there are. spans: rows of `SPANS_SCHEMA`.
    for_items: keep the dependencies, and leave out the think times and the depth, which only tables show.
    Raises: CaptureError where what an operation waits for comes only after what waits for the operation.
    """
    found, ready = LoopReads(loop_files=np.zeros(files, dtype=bool)), DistributionCollector()

    def read() -> Iterator[OperationBatch]:
        for batch in batches():
            known = batch.known
            ready.add(known["ready_ns"][known["ready_ns"] > 0])
            found.add(loop, batch, (known["feeds"] >= 0) & (batch.op == READ))
            yield batch

    made = known_production(loop, batches, spans)
    draft = _draft(loop, found, synchronous=False, known=Distribution.of(NO_TIMES), production=made)
    model = _measured(draft, read, for_items=for_items)
    return dataclasses.replace(
        model,
        reads=found.reads,
        inside_share=found.inside / max(found.reads, 1),
        synchronous=_reads_itself(found),
        feed=Feed(loop_bytes=found.bytes),
        known=ready.distribution(),
    )


def _reads_itself(found: LoopReads) -> bool:
    return found.reads > 0 and found.inside >= SYNCHRONOUS_SHARE * found.reads


def _draft(loop: TrainingLoop, found: LoopReads, feed: Feed | None = None, **choices: Any) -> LoopModel:
    """A model before its times are measured; `choices`: fields of `LoopModel`."""
    return LoopModel(
        loop=loop,
        loop_files=found.loop_files,
        reads=found.reads,
        inside_share=found.inside / found.reads if found.reads else 0.0,
        feed=Feed(loop_bytes=found.bytes) if feed is None else feed,
        residual_ns=loop.end_ns - loop.begin_ns,
        ready_ns=np.zeros(len(loop.kind), dtype=np.int64),
        **choices,
    )


def _measured(draft: LoopModel, batches: Batches, *, for_items: bool = False) -> LoopModel:
    """Add measures of the dependencies to a model: residuals, lanes that an event waits for, think time, depth."""
    loop, dependencies, moments = draft.loop, draft.dependencies(), draft.moments
    kept: list[np.ndarray] = []
    last_end = np.zeros(len(loop.kind), dtype=np.int64)
    needed: dict[int, np.ndarray] = {}
    think, depth = _ThinkTimes(), DistributionCollector()
    number = np.maximum.accumulate(moments.fetch_number)  # of the last fetch up to each event
    for batch in map(draft.placed, batches()):
        found = dependencies(batch)
        need, follows = found["need"].copy(), found["follows"].copy()  # without the other columns between
        is_needed = need != NO_EVENT
        np.maximum.at(last_end, need[is_needed], (batch.end_ns + found["ready_ns"])[is_needed])
        by_lane = list(rows_by_lane(batch.lane))
        for lane, mine in by_lane:
            events = needed.setdefault(lane, np.zeros(len(loop.kind), dtype=bool))
            events[need[mine][is_needed[mine]]] = True
        if for_items:
            kept.append(found)
            continue
        feeds = is_needed & (loop.kind[need] == FETCH)
        ahead = is_needed & (moments.gate[follows] == FETCHES)
        depth.add(number[need[ahead]] - moments.count[follows[ahead]])
        # Fetches outside the profile may have held back an operation that waits for nothing.
        let_ns = np.where(feeds & (follows != NO_MOMENT), moments.time_ns[follows], _NEVER)
        for lane, mine in by_lane:
            think.add(lane, batch.start_ns[mine], batch.end_ns[mine], need[mine], let_ns[mine])
    think_ns, long_think_ns = think.typical()
    lanes_make_ready = draft.synchronous or draft.known is not None or draft.production is not None
    ready_ns = draft.ready_ns if lanes_make_ready else _ready_times(loop, last_end, think_ns[1])
    from_ns = np.clip(last_end, loop.begin_ns, loop.end_ns)
    fetches, made = loop.fetches, draft.production
    if made is None:
        was_ready, finished = np.zeros(len(fetches), dtype=np.int64), 0  # one batch after the other
        for place, (read, ready) in enumerate(zip(last_end[fetches].tolist(), ready_ns[fetches].tolist(), strict=True)):
            was_ready[place] = finished = max(finished, read) + ready
    else:
        was_ready = made.end_ns
    from_ns[fetches] = np.clip(was_ready, loop.begin_ns[fetches], loop.end_ns[fetches])
    return dataclasses.replace(
        draft,
        doubt=_doubt(draft, batches, last_end),
        residual_ns=loop.end_ns - from_ns,
        ready_ns=ready_ns,
        needed=needed,
        found=tuple(kept),
        think_ns=think_ns if think.between else (think_ns[0], int(ready_ns.max(initial=0))),
        long_think_ns=long_think_ns,
        depth=depth.distribution(),
    )


def _doubt(model: LoopModel, batches: Batches, last_end_ns: np.ndarray) -> str:
    """Evidence of the recording against an inferred model; empty for none.

    last_end_ns: (e,), end of the last operation that each event needs by the model.
    """
    loop = model.loop
    if model.known is not None or not model.reads:
        return ""
    starts, ends = [], []
    for batch in map(model.placed, batches()):
        chosen = model.loop_files[batch.file_id] & ((batch.op == READ) | np.isin(batch.op, PREPARES_READ))
        starts.append(batch.start_ns[chosen])
        ends.append(batch.end_ns[chosen])
    busy = Intervals.union_of(np.concatenate(starts), np.concatenate(ends))
    loop_ns = max(loop.exit_ns - loop.entry_ns, 1)
    begin, end = loop.begin_ns[loop.fetches], loop.fetch_ends_ns
    if not loop.shows_waits:
        beside = busy.minus(Intervals.union_of(begin, end))
        hidden = int(beside.covered_within(np.array([loop.entry_ns]), np.array([loop.exit_ns]))[0])
        if not loop.input_waits or hidden > DOUBTED_SHARE * loop_ns:
            return unshown(hidden, loop_ns)
    waited_ns = int(busy.covered_within(begin, end).sum())
    given_ns = int((np.clip(last_end_ns[loop.fetches], begin, end) - begin).sum())
    alone = model.synchronous and model.dealing is None
    if alone or waited_ns - given_ns <= DOUBTED_SHARE * loop_ns:
        return ""
    return (
        f"the loop waits for input during {100 * waited_ns / loop_ns:.0f} % of its time while its files are read, and "
        f"the model explains {100 * given_ns / loop_ns:.0f} % by reads: which reads a batch waits for is not known"
    )


def unshown(reading_ns: float, loop_ns: float, last: str = "last") -> str:
    """The doubt of a loop that does not show when it waits, on storage where its reads last so long; empty for none.
    last: the words before the share, where `reading_ns` is predicted, or a sum over threads."""
    if reading_ns <= DOUBTED_SHARE * max(loop_ns, 1):
        return ""
    return (
        f"reads {last} {min(100 * reading_ns / loop_ns, 100):.0f} % of the training loop, and the profile does "
        "not show when the loop waits for them; record with recording() and r.step(), which mark it"
    )


def _ready_times(loop: TrainingLoop, last_end: np.ndarray, between_ns: int) -> np.ndarray:
    """Time of each fetch's batch to become ready after its reads (e,).

    If fetches waited for it, this is the shortest time between a batch's reads and its fetch. Otherwise it is the time
    that the last thread of the pipeline spent on a batch after its reads, or that readers spend between two batches
    (`between_ns`), at most that shortest time. The rest of a fetch is its residual. No batch takes longer than from
    its reads, or from the batch before it, to its fetch in the capture.

    A fetch that waited ends a constant time after its reads, whenever it began. One that did not wait lasts a constant
    time, whenever its reads ended.
    """
    fetches = loop.fetches
    ready_ns = np.zeros(len(loop.kind), dtype=np.int64)
    fed = fetches[last_end[fetches] > 0]
    if not len(fed):
        return ready_ns
    passed, lasted = loop.end_ns[fed] - last_end[fed], loop.end_ns[fed] - loop.begin_ns[fed]
    least = max(0, int(passed.min()))
    starved = (last_end[fed] > loop.begin_ns[fed]) & (last_end[fed] <= loop.end_ns[fed])
    shortest = passed <= 1.1 * passed.min()
    if starved.sum() >= MIN_STARVED_FETCHES or (
        shortest.sum() >= MIN_STARVED_FETCHES and np.ptp(lasted[shortest]) > np.ptp(passed[shortest])
    ):
        typical = least
    elif len(loop.made_end_ns):
        made = loop.made_end_ns - np.maximum(loop.made_begin_ns, last_end[fetches])
        typical = min(max(0, int(np.median(made))), least)
    else:
        typical = min(between_ns, least)
    finished = 0
    for fetch, read, fetched in zip(
        fetches.tolist(), last_end[fetches].tolist(), loop.end_ns[fetches].tolist(), strict=True
    ):
        begins = max(finished, read)
        ready_ns[fetch] = max(0, min(typical, fetched - begins))
        finished = begins + int(ready_ns[fetch])
    return ready_ns


class _ThinkTimes:
    """Visible think times of reader lanes: within a batch, and between two batches."""

    def __init__(self) -> None:
        self._samples = (DistributionCollector(), DistributionCollector())
        self._previous: dict[int, tuple[int, int]] = {}
        self.between = 0

    def add(self, lane: int, start_ns: np.ndarray, end_ns: np.ndarray, need: np.ndarray, let_ns: np.ndarray) -> None:
        """Count operations of one lane. `let_ns`: when they could begin; _NEVER for those that show nothing."""
        known = lane in self._previous
        end, previous_need = self._previous.get(lane, (int(start_ns[0]), NO_EVENT))
        before = np.concatenate(([end], end_ns[:-1]))
        first = starts_batch(previous_need, need)
        plain = let_ns <= before
        plain[0] &= known  # the first operation of a lane shows no think time
        for sample, chosen in zip(self._samples, (plain & ~first, plain & first), strict=True):
            sample.add(np.maximum(start_ns - before, 0)[chosen])
        self.between += int((plain & first).sum())
        self._previous[lane] = int(end_ns[-1]), int(need[-1])

    def typical(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Within a batch and between two batches: the medians, and the 90th percentiles, at most twice the median; 0
        without samples."""
        found = [sample.distribution() for sample in self._samples]
        half, nine = (tuple(int(each.quantile(share)) if each.count else 0 for each in found) for share in (0.5, 0.9))
        # With few samples the 90th percentile may be a pause, which is not a think time.
        return (half[0], half[1]), (min(nine[0], 2 * half[0]), min(nine[1], 2 * half[1]))
