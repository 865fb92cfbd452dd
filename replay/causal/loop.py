"""Derives the events of a rank's training thread from its spans. Under pace `steps`, operations depend on them. Pure.

Events are the entry to the loop, the *batch fetches* (a step has its batch at the end of its input wait), checkpoints,
evaluations and collectives. Events do not overlap. Between two events the thread is busy.

An operation waits for a *moment*. Moment 2 e is the begin of event e, moment 2 e + 1 its end. After the last event is
the exit from the loop. If the production of the batches is known (`replay.causal.production`), its moments follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import OperationBatch
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import step_at
from dxt_replay.traces.schema import BACKGROUND_SAVE, BACKGROUND_WAIT, OWN_IO, SPAN_KINDS, codes

ENTRY, FETCH, CHECKPOINT, COLLECTIVE, EVALUATION = range(5)
"""Kinds of an event. ENTRY: from the capture's start to the first step, while the application loads. FETCH: a step
obtains its batch. EVALUATION: a pause between two steps in which files are read that the loop does not read."""

OTHER_LOADER, WORKERS, OWN_READS = range(3)
"""What makes the batch of a fetch: unknown, the workers of a DataLoader, or the training thread (`num_workers=0`)."""

_LOADERS = (
    (r"^enumerate\(DataLoader\)#_(Stateful)?MultiProcessingDataLoaderIter", WORKERS),
    (r"^enumerate\(DataLoader\)#_(Stateful)?SingleProcessDataLoaderIter", OWN_READS),
)
"""The names of batch fetches of PyTorch's DataLoader and torchdata's StatefulDataLoader, as regular expressions."""

PAUSE_STEPS = 2.0
"""Time between two steps is a pause when it is longer than this many median steps."""

IS_OPENING = np.isin(np.arange(EVALUATION + 1), (FETCH, CHECKPOINT, EVALUATION))
"""bool by kind: whether such an event lets operations of the training thread itself begin."""

Batches = Callable[[], Iterable[OperationBatch]]
"""A rank's operations from the first to the last; each call reads them again."""

NO_TIMES = np.empty(0, dtype=np.int64)
NO_MOMENT = -1
"""Number of a moment for an operation that waits for its lane alone."""

NO_FETCH = -1
"""Number of an event that is not a batch fetch."""

NO_GATE, OPENINGS, FETCHES, PRODUCED = range(4)
"""What is counted at a moment: nothing, an opening of the training thread, a batch fetch, or one of the production."""

STEP, INPUT_WAIT = SPAN_KINDS.index("step"), SPAN_KINDS.index("input_wait")
CHECKPOINT_SPAN = SPAN_KINDS.index("checkpoint")
PIPELINE, COLLECTIVE_SPAN = SPAN_KINDS.index("pipeline"), SPAN_KINDS.index("collective")
_NEVER = np.iinfo(np.int64).max
_KIND_OF_SPAN = {INPUT_WAIT: FETCH, CHECKPOINT_SPAN: CHECKPOINT, COLLECTIVE_SPAN: COLLECTIVE}
_EVENT_OF_SPAN = np.array([_KIND_OF_SPAN.get(code, NO_EVENT) for code in range(len(SPAN_KINDS))], dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingLoop:
    """The training loop of one rank: e events, disjoint and ascending, of which event 0 is the ENTRY.

    kind: int8 (e,). begin_ns, end_ns: (e,), recorded times. loader: int8 (e,), what makes the batch of a fetch.
    step_number, step_begin_ns, step_end_ns: (steps,), ascending. exit_ns: the end of the last step or event.
    input_waits: whether the batch fetches come from input waits; else each step fetches its batch when it begins.
    own_alone: whether all input waits are for I/O of the training thread itself, so that waits for others are not seen.
    made_begin_ns, made_end_ns: (fetches,), when the last thread of the input pipeline made the batch of each fetch;
    empty if no thread has one span a fetch.
    background_begin_ns, background_end_ns: (saves,), checkpoints that another thread writes: from the call that starts
    one to the end of the checkpoint event in which the training thread waits for it. Disjoint and ascending.
    """

    kind: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    loader: np.ndarray
    step_number: np.ndarray
    step_begin_ns: np.ndarray
    step_end_ns: np.ndarray
    exit_ns: int
    input_waits: bool
    own_alone: bool = False
    made_begin_ns: np.ndarray
    made_end_ns: np.ndarray
    background_begin_ns: np.ndarray = field(default_factory=NO_TIMES.copy)
    background_end_ns: np.ndarray = field(default_factory=NO_TIMES.copy)

    @property
    def shows_waits(self) -> bool:
        """Whether the recording shows when the training thread waits for what other threads read."""
        return self.input_waits and not self.own_alone

    @property
    def entry_ns(self) -> int:
        """Begin of the first step."""
        return int(self.end_ns[0])

    def events(self, *kinds: int) -> np.ndarray:
        """The events of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    @property
    def fetches(self) -> np.ndarray:
        return np.flatnonzero(self.kind == FETCH)

    @property
    def checkpoints(self) -> np.ndarray:
        return np.flatnonzero(self.kind == CHECKPOINT)

    @property
    def collectives(self) -> np.ndarray:
        return np.flatnonzero(self.kind == COLLECTIVE)

    @property
    def fetch_ends_ns(self) -> np.ndarray:
        """Times at which each step had its batch, ascending."""
        return self.end_ns[self.fetches]

    @property
    def pauses(self) -> Intervals:
        """Gaps between two steps, outside of all events, that are longer than steps."""
        begin, end = self.step_end_ns[:-1], self.step_begin_ns[1:]
        free = Intervals.union_of(begin, np.maximum(begin, end)).minus(Intervals.union_of(self.begin_ns, self.end_ns))
        long = free.ends - free.starts > PAUSE_STEPS * np.median(self.step_end_ns - self.step_begin_ns)
        return Intervals.union_of(free.starts[long], free.ends[long])

    def with_fetches(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> TrainingLoop:
        """The loop in which each step (steps,) fetches its batch from `begin_ns` to `end_ns`, with `input_waits`.

        A fetch that would have no duration or touch another event stays as it was.
        """
        begin, end = self.begin_ns.copy(), self.end_ns.copy()
        fetches, others = self.fetches, np.flatnonzero(self.kind != FETCH)
        step = np.searchsorted(self.step_begin_ns, begin[fetches], side="right") - 1
        taken = Intervals.union_of(begin[others], end[others])
        wanted = (step >= 0) & (begin_ns[step] < end_ns[step])
        wanted[wanted] &= taken.covered_within(begin_ns[step[wanted]], end_ns[step[wanted]]) == 0
        begin[fetches[wanted]], end[fetches[wanted]] = begin_ns[step[wanted]], end_ns[step[wanted]]
        return dataclasses.replace(self._with_events(self.kind, begin, end, self.loader), input_waits=True)

    def with_evaluations(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> TrainingLoop:
        """The loop with these pauses as events."""
        kind = np.append(self.kind, np.full(len(begin_ns), EVALUATION, dtype=np.int8))
        loader = np.append(self.loader, np.full(len(begin_ns), OTHER_LOADER, dtype=np.int8))
        return self._with_events(kind, np.append(self.begin_ns, begin_ns), np.append(self.end_ns, end_ns), loader)

    def _with_events(
        self, kind: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray, loader: np.ndarray
    ) -> TrainingLoop:
        order = np.lexsort((end_ns, begin_ns))
        return dataclasses.replace(
            self, kind=kind[order], begin_ns=begin_ns[order], end_ns=end_ns[order], loader=loader[order]
        )

    def step_at(self, times: np.ndarray) -> np.ndarray:
        """Step (int32) that contains each time, NO_STEP outside."""
        return step_at(times, self.step_begin_ns, self.step_end_ns, self.step_number)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """The m moments of a loop; arrays (m + 1,), of which the last one stands for NO_MOMENT.

    time_ns: recorded time of each; the smallest number for NO_MOMENT.
    gate: int8, the kind of counter that counts the moment. count: the value of that counter then.
    openings, fetches: the moments, ascending, that count as openings and as batch fetches.
    fetch_number: int64 (e,), the number of each event among the batch fetches, NO_FETCH for other events.
    """

    time_ns: np.ndarray
    gate: np.ndarray
    count: np.ndarray
    openings: np.ndarray
    fetches: np.ndarray
    fetch_number: np.ndarray

    @classmethod
    def of(cls, loop: TrainingLoop, produced_ns: np.ndarray = NO_TIMES) -> Moments:
        """The moments of a loop, and of its production at these times."""
        training = np.append(np.stack((loop.begin_ns, loop.end_ns), axis=1).ravel(), loop.exit_ns)
        is_fetch = loop.kind == FETCH
        openings = np.concatenate(([1], 2 * np.flatnonzero(IS_OPENING[loop.kind]), [len(training) - 1]))
        fetches = 2 * np.flatnonzero(is_fetch) + 1
        gate = np.zeros(len(training) + len(produced_ns) + 1, dtype=np.int8)
        count = np.zeros(len(gate), dtype=np.int64)
        of_production = np.arange(len(training), len(gate) - 1)
        for code, mine in ((OPENINGS, openings), (FETCHES, fetches), (PRODUCED, of_production)):
            gate[mine], count[mine] = code, np.arange(1, len(mine) + 1)
        return cls(
            time_ns=np.concatenate((training, produced_ns, [np.iinfo(np.int64).min])),
            gate=gate,
            count=count,
            openings=openings,
            fetches=fetches,
            fetch_number=np.where(is_fetch, np.cumsum(is_fetch) - 1, NO_FETCH),
        )

    def opened(self, times_ns: np.ndarray, most: np.ndarray | int = _NEVER) -> np.ndarray:
        """Number of openings up to each of these times, at most `most`."""
        found: np.ndarray = np.minimum(np.searchsorted(self.time_ns[self.openings], times_ns, side="right"), most)
        return found

    def fetched(self, times_ns: np.ndarray, most: np.ndarray | int = _NEVER) -> np.ndarray:
        """Number of batch fetches that had ended at each of these times, at most `most`."""
        found: np.ndarray = np.minimum(np.searchsorted(self.time_ns[self.fetches], times_ns, side="right"), most)
        return found

    def new_waits(self, follows: np.ndarray, awaited: dict[int, int] | None = None) -> np.ndarray:
        """bool (n,): which operations of a lane wait, because it has not waited for an equal or later moment of that
        kind. follows: their moments. awaited: by kind the last count that it has waited for, which is updated."""
        waits = np.zeros(len(follows), dtype=bool)
        gate, count = self.gate[follows], self.count[follows]
        awaited = {} if awaited is None else awaited
        for kind in (OPENINGS, FETCHES, PRODUCED):
            wanted = np.where(gate == kind, count, 0)
            reached = np.maximum.accumulate(np.concatenate(([awaited.get(kind, 0)], wanted)))
            waits |= wanted > reached[:-1]
            awaited[kind] = int(reached[-1])
        return waits


def nth(numbers: np.ndarray, index: np.ndarray) -> np.ndarray:
    """numbers[index]; NO_EVENT (which equals NO_MOMENT) for an index out of range."""
    inside = (index >= 0) & (index < len(numbers))
    return np.where(inside, np.append(numbers, NO_EVENT)[np.where(inside, index, -1)], NO_EVENT)


def containing(loop: TrainingLoop, events: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The one of `events` that contains each time (the end included), NO_EVENT for none."""
    if not len(events):
        return np.full(len(times), NO_EVENT, dtype=np.int64)
    found = np.searchsorted(loop.begin_ns[events], times, side="right") - 1
    inside = (found >= 0) & (times <= loop.end_ns[events[found]])
    return np.where(inside, events[found], NO_EVENT)


def training_loop(spans: pa.Table, origin_ns: int) -> TrainingLoop:
    """The loop of one rank from its rows of `SPANS_SCHEMA`; `origin_ns`: recorded time of the replay's start.

    A checkpoint of another thread does not block the loop and is not an event. Where events overlap, the later one
    begins when the earlier one ends, but a collective within a checkpoint divides it: what the ranks do before it
    need not wait for what one of them does after it, such as writing the metadata. The wait for a save in the
    background ends with a collective: the save has its own in its thread, where the profiler sees nothing.
    Raises: CaptureError without steps.
    """
    kind, thread = codes(spans, "kind"), spans["thread"].to_numpy()
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    steps = _steps(kind, start_ns)
    begins = start_ns[steps]
    entry_ns = max(int(begins[0]), origin_ns)
    chosen = np.isin(kind, list(_KIND_OF_SPAN)) & (end_ns > entry_ns)
    of_loop = np.isin(thread, thread[steps])
    chosen &= (kind != CHECKPOINT_SPAN) | of_loop
    if _loaders(spans, end_ns).any():
        saves = _union(start_ns, end_ns, (kind == CHECKPOINT_SPAN) & of_loop)
        of_saves = saves.covered_within(start_ns, end_ns) == end_ns - start_ns
        # Collectives on other threads run beside the backward pass (DistributedDataParallel): the training thread waits
        # only for the last one of a step. A thread that fetches no longer waits for other threads.
        hidden = (kind == COLLECTIVE_SPAN) & ~(of_loop | of_saves)
        mine = np.flatnonzero(hidden)
        mine = mine[np.argsort(end_ns[mine], kind="stable")]
        step = np.searchsorted(begins, start_ns[mine], side="right")
        hidden[mine[np.flatnonzero(np.diff(step, append=-1))]] = False
        chosen &= ~hidden
        waits = np.sort(start_ns[kind == INPUT_WAIT])
        later = np.append(waits, _NEVER)[np.searchsorted(waits, start_ns, side="right")]
        end_ns = np.where(kind == COLLECTIVE_SPAN, np.minimum(end_ns, later), end_ns)
    events = _events(kind[chosen], start_ns[chosen], end_ns[chosen], entry_ns)
    input_waits = bool((events[0] == FETCH).any())
    if not input_waits:  # each step fetches its batch when it begins
        outside = Intervals.union_of(*events[1:]).covered_within(begins, begins + 1) == 0
        events = _with_instants(*events, FETCH, begins[outside])
    background_begin, met_ns = _background_saves(spans.filter(pa.array(chosen & (kind == CHECKPOINT_SPAN))))
    background_end = met_ns
    if len(events[0]):  # within another event a save ends with it
        place = np.minimum(np.searchsorted(events[2], met_ns), len(events[0]) - 1)
        met_ns = np.where((events[1][place] < met_ns) & (met_ns < events[2][place]), events[2][place], met_ns)
    event_kind, event_begin, event_end = _with_instants(*events, COLLECTIVE, met_ns)
    made_begin, made_end = _made(spans.filter(pa.array(kind == PIPELINE)), event_end[event_kind == FETCH])
    event_loader = np.where(event_kind == FETCH, _loaders(spans, event_end), OTHER_LOADER)
    return TrainingLoop(
        kind=np.concatenate(([ENTRY], event_kind)).astype(np.int8),
        loader=np.concatenate(([OTHER_LOADER], event_loader)).astype(np.int8),
        begin_ns=np.concatenate(([origin_ns], event_begin)),
        end_ns=np.concatenate(([entry_ns], event_end)),
        step_number=spans["step"].to_numpy()[steps],
        step_begin_ns=begins,
        step_end_ns=end_ns[steps],
        exit_ns=max(int(end_ns[steps].max()), int(event_end.max(initial=0))),
        input_waits=input_waits,
        own_alone=input_waits and pc.all(pc.equal(spans.filter(pa.array(kind == INPUT_WAIT))["name"], OWN_IO)).as_py(),
        made_begin_ns=made_begin,
        made_end_ns=made_end,
        background_begin_ns=background_begin,
        background_end_ns=background_end,
    )


def known_loop(spans: pa.Table, origin_ns: int) -> TrainingLoop:
    """As `training_loop`, for a rank with dependency columns: its spans are not corrected.

    Each `input_wait` is a batch fetch and each `collective` a meeting, even without duration, so that their numbers
    match the capture. The entry ends with the first event if that is before the first step.
    Raises: CaptureError without steps.
    """
    kind = codes(spans, "kind")
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    steps = _steps(kind, start_ns)
    of_others = (kind == CHECKPOINT_SPAN) & ~np.isin(spans["thread"], spans["thread"].to_numpy()[steps])
    mine = np.flatnonzero((_EVENT_OF_SPAN[kind] != NO_EVENT) & ~of_others)
    mine = mine[np.lexsort((spans["step"].to_numpy()[mine], end_ns[mine], start_ns[mine]))]
    entry_ns = max(min(start_ns[steps[0]], start_ns[mine].min(initial=_NEVER)), origin_ns)
    until = np.maximum.accumulate(np.concatenate(([entry_ns], end_ns[mine])))
    saves = _background_saves(spans.filter(pa.array((kind == CHECKPOINT_SPAN) & ~of_others)))
    return TrainingLoop(
        kind=np.concatenate((np.array([ENTRY], dtype=np.int8), _EVENT_OF_SPAN[kind[mine]])),
        loader=np.full(len(until), OTHER_LOADER, dtype=np.int8),
        begin_ns=np.concatenate(([origin_ns], np.maximum(start_ns[mine], until[:-1]))),
        end_ns=until,
        step_number=spans["step"].to_numpy()[steps],
        step_begin_ns=start_ns[steps],
        step_end_ns=end_ns[steps],
        exit_ns=max(int(end_ns[steps].max()), int(until[-1])),
        input_waits=True,
        made_begin_ns=NO_TIMES,
        made_end_ns=NO_TIMES,
        background_begin_ns=saves[0],
        background_end_ns=saves[1],
    )


def _steps(kind: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
    """The spans that are steps, in the order of their begin. Raises: CaptureError without any."""
    steps = np.flatnonzero(kind == STEP)
    if not len(steps):
        raise CaptureError("the capture has no training steps, so its reads cannot follow a training loop")
    found: np.ndarray = steps[np.argsort(start_ns[steps], kind="stable")]
    return found


def _background_saves(checkpoints: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends of the saves in the background: from each call that starts one to the next wait for one. A save
    that nobody waits for is left out, as is one before it was waited for that another one follows."""
    name, order = checkpoints["name"].to_numpy(), np.argsort(checkpoints["start_ns"].to_numpy(), kind="stable")
    mine = order[np.isin(name[order], (BACKGROUND_SAVE, BACKGROUND_WAIT))]
    ended = np.flatnonzero((name[mine[:-1]] == BACKGROUND_SAVE) & (name[mine[1:]] == BACKGROUND_WAIT))
    start, end = checkpoints["start_ns"].to_numpy(), checkpoints["end_ns"].to_numpy()
    return start[mine[ended]], end[mine[ended + 1]]


def _loaders(spans: pa.Table, ends_ns: np.ndarray) -> np.ndarray:
    """int8: the kind of loader whose batch fetch ends at each of these times, OTHER_LOADER for none."""
    found = np.full(len(ends_ns), OTHER_LOADER, dtype=np.int8)
    for pattern, loader in _LOADERS:
        mine = spans.filter(pc.match_substring_regex(spans["name"], pattern))
        found[np.isin(ends_ns, mine["end_ns"].to_numpy())] = loader
    return found


def _made(pipeline: pa.Table, fetch_ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends of the spans that the input pipeline has once a fetch: those of one name, the k-th of which ended
    before fetch k. Of several names the one that ends last on average is the nearest to the loop. Empty without one."""
    found, latest, fetches = (NO_TIMES, NO_TIMES), -np.inf, len(fetch_ends_ns)
    names = pipeline["name"].combine_chunks().dictionary_encode()
    starts, ends, name = pipeline["start_ns"].to_numpy(), pipeline["end_ns"].to_numpy(), names.indices.to_numpy()
    for code, count in enumerate(np.bincount(name).tolist()):
        # The pipeline makes a few more batches than are fetched. Two or more spans a fetch are parts of a batch.
        if not fetches or not fetches <= count < 2 * fetches:
            continue
        mine = np.flatnonzero(name == code)
        mine = mine[np.argsort(ends[mine], kind="stable")][:fetches]
        if (ends[mine] <= fetch_ends_ns).all() and ends[mine].mean() > latest:
            found, latest = (starts[mine], ends[mine]), ends[mine].mean()
    return found


_Events = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Kinds, begins and ends of disjoint events in ascending order."""


def _events(span_kind: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, entry_ns: int) -> _Events:
    """Spans of one kind are joined where they overlap, and collectives within checkpoints divide these."""
    start_ns = np.maximum(start_ns, entry_ns)
    joined = {code: _union(start_ns, end_ns, span_kind == code) for code in _KIND_OF_SPAN}
    saves, met = joined[CHECKPOINT_SPAN], joined[COLLECTIVE_SPAN]
    inside = saves.covered_within(met.starts, met.ends) == met.ends - met.starts
    joined[CHECKPOINT_SPAN] = saves.minus(Intervals.union_of(met.starts[inside], met.ends[inside]))
    kinds = [np.full(len(each), _KIND_OF_SPAN[code], dtype=np.int8) for code, each in joined.items()]
    begins, ends = [each.starts for each in joined.values()], [each.ends for each in joined.values()]
    kind, begin, end = _in_order(*map(np.concatenate, (kinds, begins, ends)))
    begin = np.maximum(begin, np.concatenate(([entry_ns], np.maximum.accumulate(end)[:-1]))[: len(begin)])
    whole = begin < end
    return kind[whole], begin[whole], end[whole]


def _union(start_ns: np.ndarray, end_ns: np.ndarray, chosen: np.ndarray) -> Intervals:
    return Intervals.union_of(start_ns[chosen], end_ns[chosen])


def _in_order(kind: np.ndarray, begin: np.ndarray, end: np.ndarray) -> _Events:
    order = np.lexsort((end, begin))
    return kind[order], begin[order], end[order]


def _with_instants(kind: np.ndarray, begin: np.ndarray, end: np.ndarray, added: int, times_ns: np.ndarray) -> _Events:
    """The events, and events of the kind `added` without duration at these times."""
    kind = np.concatenate((kind, np.full(len(times_ns), added, dtype=np.int8)))
    return _in_order(kind, np.concatenate((begin, times_ns)), np.concatenate((end, times_ns)))
