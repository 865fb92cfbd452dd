"""Derives from a TensorFlow profile when batches were made, and from which reads. Pure.

The profile says which batch fetch first used the output of a thread of tf.data (`fetched_ns` of the `pipeline` spans).
So nothing is inferred from byte counts: a read belongs to the batch of the span around it. This holds for any pipeline
(parallel reads, interleave, shuffle, cache, repeat). A full shuffle buffer gives no slack: batch k waits for the reads
that refill the buffer while batch k is made.

The making of batch k is one entry of the *production*. It begins when batch k - 1 is made and the loop makes room for
batch k or asks for it. It ends when its reads have ended and its elements are processed:

    begin(k) = max(end(k - 1), room for k) + a delay
    end(k)   = max(begin(k) + head(k), its last read) + tail(k)

head and tail are the processing in front of and behind the last read, without the time in which the reads lasted. Where
no fetch waited for a batch, the loop computed meanwhile and took processors from the pipeline: on slower storage, where
it waits, the processing is as quick as in the quickest quarter of these batches.
A capture that knows its dependencies says the entries themselves (`known_production`).
Begins and ends of the entries are the *moments* of the production; reads begin behind the moment that they began behind
in the recording.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.loop import NO_FETCH, NO_MOMENT, PIPELINE, Batches, Moments, TrainingLoop, nth
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import OPS, READ, codes

CLOCK_SLACK_NS = 50_000
"""By how much a read may seem to lie outside of the span that issued it: the clocks of log and profile agree to some
microseconds."""

LEAST_PLACED = 0.9
"""Share of the loop's reads that must lie in spans of the pipeline for the production to be used."""

AT_ONCE_NS = 200_000
"""A batch whose making begins at most this long after that of the batch before ended was not held back by the loop."""

LEAST_BESIDE = 20
"""Batches that were made while the loop computed from which on the quickest of them tell how long it takes alone."""

_BATCHES_A_SPAN = 1.2
"""Spans a batch up to which a stage makes a batch in one span."""

MAKES_BATCH = "make batch"
"""Name of the `pipeline` spans, one a batch, in which a capture that knows its dependencies says its production."""

UNUSED, ELSEWHERE = -1, -2
_NEVER = np.iinfo(np.int64).max

PREPARES_READ = tuple(OPS.index(name) for name in ("open", "stat", "seek"))

_SPAN = np.dtype([(name, "<i8") for name in ("thread", "name", "start_ns", "end_ns", "fetch")])
"""A span of the pipeline, by thread and start, disjoint in a thread. thread: from 0. fetch: number of the batch fetch
that used its output, UNUSED for none."""


def pipeline_spans(spans: pa.Table, loop: TrainingLoop) -> np.ndarray | None:
    """_SPAN (n,) from a rank's rows of `SPANS_SCHEMA`; None if the profile does not say which fetches used them."""
    if spans["fetched_ns"].null_count == len(spans) or not len(loop.fetches):
        return None
    mine = np.flatnonzero(codes(spans, "kind") == PIPELINE)
    found = np.empty(len(mine), dtype=_SPAN)
    found["start_ns"], found["end_ns"] = (spans[name].to_numpy()[mine] for name in ("start_ns", "end_ns"))
    found["thread"] = np.unique(spans["thread"].to_numpy()[mine], return_inverse=True)[1]
    found["name"] = spans["name"].combine_chunks().dictionary_encode().indices.to_numpy()[mine]
    fetched = spans["fetched_ns"].fill_null(_NEVER).to_numpy()[mine]
    fetch = np.searchsorted(loop.fetch_ends_ns, fetched, side="left")
    found["fetch"] = np.where(fetch == len(loop.fetches), UNUSED, fetch)
    return found[np.lexsort((found["start_ns"], found["thread"]))]


def _holding(spans: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """The span that contains each operation, the shortest of the candidates; -1 for none."""
    found, shortest = np.full(len(start_ns), -1), np.full(len(start_ns), _NEVER)
    bounds = np.searchsorted(spans["thread"], np.arange(int(spans["thread"][-1]) + 2 if len(spans) else 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        begins, ends = spans["start_ns"], spans["end_ns"]
        place = first + np.searchsorted(begins[first:last], start_ns + CLOCK_SLACK_NS, side="right") - 1
        at = np.maximum(place, first)
        holds = (place >= first) & (begins[at] <= start_ns + CLOCK_SLACK_NS) & (end_ns <= ends[at] + CLOCK_SLACK_NS)
        lasted = ends[at] - begins[at]
        better = holds & (lasted < shortest)
        found[better], shortest[better] = at[better], lasted[better]
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Production:
    """The making of the batches of p fetches, one after the other; times in ns, arrays (p,).

    begin_ns, end_ns: when each was made; ascending, begin k is not before end k - 1.
    follows: the moment of the loop that lets it begin, NO_MOMENT for none; delay_ns: time from that moment.
    head_ns, tail_ns: processing before and after its last read.
    alone: duration of the processing while the loop waits, as a share of the recorded duration; at most 1.
    busy: when operations that feed batches were under way.
    """

    spans: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    follows: np.ndarray
    delay_ns: np.ndarray
    head_ns: np.ndarray
    tail_ns: np.ndarray
    alone: np.ndarray
    busy: Intervals

    def needs(self, loop: TrainingLoop, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """int64 (n,): the event of the batch fetch that needs each operation, NO_EVENT for none, ELSEWHERE where no
        span of the pipeline holds it."""
        held = _holding(self.spans, start_ns, end_ns)
        fetch = self.spans["fetch"][held]
        return np.where(held < 0, ELSEWHERE, np.where(fetch == UNUSED, NO_EVENT, loop.fetches[fetch]))

    def last_before(self, start_ns: np.ndarray, fed: np.ndarray) -> np.ndarray:
        """How many moments of the production each operation began behind; no read waits for the end of its own batch.

        fed: number of the batch fetch that needs it, NO_FETCH for none.
        """
        behind = np.searchsorted(self.moments_ns, start_ns, side="right")
        return np.where(fed == NO_FETCH, behind, np.minimum(behind, 2 * fed + 1))

    @property
    def moments_ns(self) -> np.ndarray:
        """(2 p,): the begin and the end of each entry."""
        return np.stack((self.begin_ns, self.end_ns), axis=1).ravel()


def production(loop: TrainingLoop, batches: Batches, spans: np.ndarray, loop_files: np.ndarray) -> Production | None:
    """The production of a loop; None if too few of its reads lie in spans of the pipeline.

    Holds the times of all operations of the loop.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    for batch in batches():
        chosen = (batch.op == READ) | np.isin(batch.op, PREPARES_READ)
        chosen &= loop_files[batch.file_id] & (batch.start_ns < loop.exit_ns)
        columns.append((batch.start_ns[chosen], batch.end_ns[chosen], batch.op[chosen] == READ))
    if not columns:
        return None
    start, end, is_read = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    held = _holding(spans, start, end)
    if not is_read.any() or (held[is_read] >= 0).mean() < LEAST_PLACED:
        return None
    fed = np.where(held >= 0, spans["fetch"][held], UNUSED)
    start, end, fed = start[fed != UNUSED], end[fed != UNUSED], fed[fed != UNUSED]
    made = _production(loop, spans, start, end, fed)
    processing_ns, alone = made.head_ns + made.tail_ns, np.ones(len(made.head_ns))
    waited = made.end_ns > loop.begin_ns[loop.fetches]
    beside = processing_ns[~waited & (processing_ns > 0)]
    if len(beside) >= LEAST_BESIDE:
        quick, usual = np.quantile(beside, (0.25, 0.5))
        alone[~waited] = quick / usual
    head, tail = (np.rint(each * alone).astype(np.int64) for each in (made.head_ns, made.tail_ns))
    return dataclasses.replace(made, head_ns=head, tail_ns=tail, alone=alone, busy=Intervals.union_of(start, end))


def known_production(loop: TrainingLoop, batches: Batches, spans: pa.Table) -> Production | None:
    """The production of a loop whose capture says its dependencies; None where it has no spans MAKES_BATCH.

    spans: the rank's rows of `SPANS_SCHEMA`. The column `feeds` says which batch each operation belongs to.
    """
    pipeline = pipeline_spans(spans.filter(pc.equal(spans["name"], MAKES_BATCH)), loop)
    if pipeline is None:
        return None
    columns = [(np.empty(0, dtype=np.int64),) * 3]
    for batch in batches():
        chosen = batch.known["feeds"] >= 0
        columns.append((batch.start_ns[chosen], batch.end_ns[chosen], batch.known["feeds"][chosen]))
    start, end, fed = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    inside = fed < len(loop.fetches)
    return _production(loop, pipeline, start[inside], end[inside], fed[inside])


def _production(
    loop: TrainingLoop, spans: np.ndarray, start: np.ndarray, end: np.ndarray, fed: np.ndarray
) -> Production:
    """The production as it was; start, end, fed: of each operation that feeds a fetch."""
    begin_ns, end_ns = _made(loop, spans)
    follows, delay_ns = _let_begin(loop, begin_ns, end_ns)
    head_ns, tail_ns = _processing(begin_ns, end_ns, start, end, fed)
    return Production(
        spans=spans,
        begin_ns=begin_ns,
        end_ns=end_ns,
        follows=follows,
        delay_ns=delay_ns,
        head_ns=head_ns,
        tail_ns=tail_ns,
        alone=np.ones(len(begin_ns)),
        busy=Intervals(),
    )


def _made(loop: TrainingLoop, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the making of each batch. A batch that no thread made takes no time, at its fetch."""
    asked_ns, fetched_ns = loop.begin_ns[loop.fetches], loop.fetch_ends_ns
    used = spans[spans["fetch"] != UNUSED]
    last, first = np.full(len(asked_ns), -_NEVER), np.full(len(asked_ns), _NEVER)
    np.maximum.at(last, used["fetch"], used["end_ns"])
    is_made = last > -_NEVER
    ending = used["end_ns"] == last[used["fetch"]]
    if ending.any():
        # The stage whose spans end last, if it makes a batch in one span.
        stage = int(np.bincount(used["name"][ending]).argmax())
        if np.count_nonzero(spans["name"] == stage) <= _BATCHES_A_SPAN * np.count_nonzero(is_made):
            used = used[used["name"] == stage]
    np.minimum.at(first, used["fetch"], used["start_ns"])
    end = np.maximum.accumulate(np.where(is_made, np.minimum(last, fetched_ns), asked_ns))
    begin = np.where(is_made, np.minimum(first, end), end)
    return np.maximum(begin, np.concatenate(([-_NEVER], end[:-1]))), end


def _let_begin(loop: TrainingLoop, begin_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moment that let each batch be made, and the delay of its making after that moment and the batch before."""
    moments, count = Moments.of(loop), len(begin_ns)
    number = np.searchsorted(loop.fetch_ends_ns, begin_ns, side="right")
    before_ns = np.concatenate(([loop.begin_ns[0]], end_ns[:-1]))
    asked = begin_ns >= loop.begin_ns[loop.fetches]
    held = begin_ns - before_ns > AT_ONCE_NS
    ahead = np.arange(count) - number
    # A batch that began at once could have begun earlier: let it run ahead as far as any batch did.
    number = np.where(held, number, np.clip(np.arange(count) - max(int(ahead.max(initial=0)), 0), 0, number))
    fetched = np.where(number > 0, nth(moments.fetches, number - 1), moments.openings[0])
    follows = np.where(asked & held, 2 * loop.fetches, fetched)
    follows[begin_ns < loop.entry_ns] = NO_MOMENT
    return follows, np.maximum(begin_ns - np.maximum(moments.time_ns[follows], before_ns), 0)


def _processing(
    begin_ns: np.ndarray, end_ns: np.ndarray, start: np.ndarray, end: np.ndarray, fed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Processing time of each batch before and after its last operation, without the operations."""
    last = begin_ns.copy()
    np.maximum.at(last, fed, np.minimum(end, end_ns[fed]))
    tail = np.where(last > begin_ns, end_ns - last, 0)
    # The operations of each batch within its making, shifted so that different batches do not overlap.
    width = int(end_ns[-1] - begin_ns.min()) + 2
    if len(begin_ns) * width >= 1 << 62:
        return end_ns - begin_ns - tail, tail
    shift = np.arange(len(begin_ns)) * width - int(begin_ns.min())
    first, until = np.maximum(start, begin_ns[fed]), np.minimum(end, end_ns[fed])
    inside = first < until
    busy = Intervals.union_of((first + shift[fed])[inside], (until + shift[fed])[inside])
    reading = busy.covered_within(begin_ns + shift, end_ns + shift)
    return np.maximum(end_ns - begin_ns - tail - reading, 0), tail
