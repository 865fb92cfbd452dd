"""What a replay did, kept while it runs and written as a capture when it has ended.

Results wait in a `RowQueue` per lane, so that the timed run pays for a memory copy and no more; encoding to Parquet,
and the merge of a rank's lanes into one stream in start order, happen afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from replay.causal.training_loop import CHECKPOINT, COLLECTIVE, FETCH
from replay.engine.items import ADD, MARK, READ_AT, SLEEP, SPIN, WRITE_AT, Completed
from replay.plan.plan_row import EVENT_ROW, GAP_ROW, MARK_ROW, NO_EVENT, is_operation, recorded_operations
from replay.plan.row_queue import CHUNK_ROWS, RowQueue, SpillFile
from traces.measures.distribution import Distribution, DistributionCollector
from traces.results import is_refused
from traces.schema import (
    OPS_SCHEMA,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    table_from_columns,
)

RESULT_ROW = np.dtype(
    [
        ("op", "i1"),
        ("api", "i1"),
        ("origin", "i1"),
        ("lane", "<i4"),
        ("file_id", "<i4"),
        ("step", "<i4"),
        ("offset", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("due_ns", "<i8"),
        ("result", "<i8"),
    ]
)
"""One issued operation; times from the run's start."""

_SPAN_OF_EVENT = {FETCH: "input_wait", CHECKPOINT: "checkpoint", COLLECTIVE: "collective"}


PENDING_TIMES = 1 << 17
"""How many times are sorted at once, in a few ms, in which the feeder does nothing else."""

_NO_TIMES = Distribution()


@dataclass(slots=True)
class Tally:
    """Totals of a run so far; those of several lanes or processes add.

    errors: failed operations by errno.
    refused: reconstructed operations that the storage refused, by errno; they are not failures (`traces.results`).
    close_errors: files by the errno of a close at the end of the run, after which written data may be lost.
    latency_by_op: by the code of the operation (OPS).
    """

    operations: int = 0
    failed: int = 0
    short: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_end_ns: int = 0
    starved_ns: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    close_errors: dict[int, int] = field(default_factory=dict)
    lag_ns: Distribution = field(default_factory=lambda: Distribution.of(np.empty(0, dtype=np.int64)))
    latency_ns: Distribution = field(default_factory=lambda: Distribution.of(np.empty(0, dtype=np.int64)))
    response_ns: Distribution = field(default_factory=lambda: Distribution.of(np.empty(0, dtype=np.int64)))
    latency_by_op: dict[int, Distribution] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            operations=self.operations + other.operations,
            failed=self.failed + other.failed,
            short=self.short + other.short,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            last_end_ns=max(self.last_end_ns, other.last_end_ns),
            starved_ns=self.starved_ns + other.starved_ns,
            errors=_added(self.errors, other.errors),
            refused=_added(self.refused, other.refused),
            close_errors=_added(self.close_errors, other.close_errors),
            lag_ns=self.lag_ns + other.lag_ns,
            latency_ns=self.latency_ns + other.latency_ns,
            response_ns=self.response_ns + other.response_ns,
            latency_by_op={
                op: self.latency_by_op.get(op, _NO_TIMES) + other.latency_by_op.get(op, _NO_TIMES)
                for op in sorted(self.latency_by_op.keys() | other.latency_by_op.keys())
            },
        )


def _added(counts: dict[int, int], others: dict[int, int]) -> dict[int, int]:
    return {code: counts.get(code, 0) + others.get(code, 0) for code in counts.keys() | others.keys()}


def _by_errno(results: np.ndarray) -> dict[int, int]:
    return {int(code): int(count) for code, count in zip(*np.unique(-results, return_counts=True), strict=True)}


class TimeCollector:
    """Distributions of lag, latency and response over all lanes of a process: one of each, since they are large."""

    def __init__(self) -> None:
        self._lag, self._response = (DistributionCollector(pending=PENDING_TIMES) for _ in range(2))
        self._latency: dict[int, DistributionCollector] = {}

    def add(self, rows: np.ndarray) -> None:
        """Count rows of `RESULT_ROW`."""
        self._lag.add(rows["begin_ns"] - rows["due_ns"])
        self._response.add(rows["end_ns"] - rows["due_ns"])
        latency, op = rows["end_ns"] - rows["begin_ns"], rows["op"]
        kinds = np.unique(op).tolist() if np.any(op != op[:1]) else op[:1].tolist()
        for kind in kinds:
            if kind not in self._latency:
                self._latency[kind] = DistributionCollector(pending=PENDING_TIMES)
            self._latency[kind].add(latency if len(kinds) == 1 else latency[op == kind])

    def tally(self) -> Tally:
        """The distributions; the totals are 0."""
        by_op = {op: collector.distribution() for op, collector in sorted(self._latency.items())}
        return Tally(
            lag_ns=self._lag.distribution(),
            latency_ns=sum(by_op.values(), _NO_TIMES),
            response_ns=self._response.distribution(),
            latency_by_op=by_op,
        )


class LaneRecorder:
    """Keeps what one I/O lane did: its rows until the run has ended, and the totals. `times`: where its times go."""

    def __init__(self, lane: int, spill: SpillFile | None = None, times: TimeCollector | None = None) -> None:
        self.lane = lane
        self.times = times or TimeCollector()
        self.rows = RowQueue(RESULT_ROW, spill=spill)
        self._tally = Tally()

    def record(self, planned: np.ndarray, done: Completed) -> None:
        """Keep the completed part of a batch; `planned` are its rows of `PLAN_ROW`."""
        planned = planned[: done.count]
        issued = is_operation(planned)
        operations = recorded_operations(planned)
        rows = np.empty(len(operations), dtype=RESULT_ROW)
        for name in ("op", "api", "origin", "file_id", "step", "offset"):
            rows[name] = operations[name]
        rows["lane"] = self.lane
        rows["begin_ns"], rows["end_ns"] = done.begin_ns[issued], done.end_ns[issued]
        rows["due_ns"], rows["result"] = done.due_ns[issued], done.result[issued]
        self.rows.append(rows)
        self._count(rows, operations)

    def _count(self, rows: np.ndarray, operations: np.ndarray) -> None:
        if not len(rows):
            return
        tally, result = self._tally, rows["result"]
        moved = np.maximum(result, 0)
        refused = is_refused(rows["op"], rows["origin"], result)
        failed = (result < 0) & ~refused
        tally.operations += len(rows)
        tally.failed += int(failed.sum())
        data = operations["kind"] <= WRITE_AT
        tally.short += int((data & (result >= 0) & (result < operations["length"])).sum())
        tally.bytes_read += int(moved[operations["kind"] == READ_AT].sum())
        tally.bytes_written += int(moved[operations["kind"] == WRITE_AT].sum())
        tally.last_end_ns = max(tally.last_end_ns, int(rows["end_ns"].max()))
        tally.errors = _added(tally.errors, _by_errno(result[failed]))
        tally.refused = _added(tally.refused, _by_errno(result[refused]))
        self.times.add(rows)

    def tally(self, starved_ns: int = 0) -> Tally:
        """Totals of the lane without the times; `starved_ns` is how long the loop waited to be fed."""
        return self._tally + Tally(starved_ns=starved_ns)


class NoRecorder:
    """For a lane whose times are not kept: other lanes wait for it, which is all that it is for."""

    def record(self, planned: np.ndarray, done: Completed) -> None:
        """Nothing."""


class ComputeRecorder:
    """Keeps what a rank's compute lane did: gaps and step borders with the times at which they happened."""

    def __init__(self) -> None:
        self._planned: list[np.ndarray] = []
        self._begin: list[np.ndarray] = []
        self._end: list[np.ndarray] = []

    def record(self, planned: np.ndarray, done: Completed) -> None:
        """Keep the completed part of a batch of the compute lane."""
        self._planned.append(planned[: done.count])
        self._begin.append(done.begin_ns[: done.count])
        self._end.append(done.end_ns[: done.count])

    def spans(self, rank: int, source: ComputeStructure) -> pa.Table:
        """`SPANS_SCHEMA` rows: steps between their marks; the compute of the source inside each gap, moved with it;
        under pace `steps` also input waits, collectives and checkpoints."""
        if not self._planned:
            return SPANS_SCHEMA.empty_table()
        planned = np.concatenate(self._planned)
        begin, end = np.concatenate(self._begin), np.concatenate(self._end)
        in_event = planned.view(EVENT_ROW)["event"] != NO_EVENT
        parts = [
            _step_spans(planned, begin),
            _compute_spans(planned[~in_event], begin[~in_event], end[~in_event], source),
            _event_spans(planned[in_event].view(EVENT_ROW), begin[in_event], end[in_event]),
        ]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        names = [SPAN_KINDS[kind] for kind in columns["kind"].tolist()]
        return table_from_columns({"rank": rank, "thread": UNION_THREAD, "name": names, **columns}, SPANS_SCHEMA)

    @property
    def last_end_ns(self) -> int:
        """When the last item ended, 0 without any."""
        return max((int(end.max()) for end in self._end if len(end)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeStructure:
    """The compute-busy intervals of one rank in the source, ascending, and the speed at which they are replayed.

    A gap is replayed as one stretch; which parts of it the application computed in is the source's knowledge, and is
    carried over so that source and replay can be compared like with like.
    """

    starts: np.ndarray
    ends: np.ndarray
    speed: float = 1.0


def _step_spans(planned: np.ndarray, begin: np.ndarray) -> dict[str, np.ndarray]:
    mark = planned["kind"] == MARK
    marks, begin = planned[mark].view(MARK_ROW), begin[mark]
    is_end = marks["is_end"] == 1
    steps, starts, ends = marks["step"][~is_end], begin[~is_end], begin[is_end]
    # A stopped run may lack the last end: a step without an end is not a step of the replay.
    whole = min(len(starts), len(ends))
    return _columns("step", steps[:whole], starts[:whole], ends[:whole])


def _event_spans(items: np.ndarray, begin: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """One span for each event of the training thread, from the first to the last of its items (`EVENT_ROW`).

    An event whose last item lets others go on was over when that item began: they may be awake before it ends.
    """
    first = np.flatnonzero(np.diff(items["event"], prepend=NO_EVENT))
    last = np.append(first[1:], len(items))[: len(first)] - 1
    event_kind = items["event_kind"][first]
    kinds = np.array([SPAN_KINDS.index(_SPAN_OF_EVENT.get(kind, "other")) for kind in event_kind.tolist()])
    shown = np.isin(event_kind, list(_SPAN_OF_EVENT))
    over = np.where(items["kind"] == ADD, begin, end)
    spans = _columns("other", items["step"][first], begin[first], over[last])
    spans["kind"] = kinds.astype(np.int8)
    return {name: values[shown] for name, values in spans.items()}


def _columns(kind: str, step: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> dict[str, np.ndarray]:
    kinds = np.full(len(step), SPAN_KINDS.index(kind), dtype=np.int8)
    return {"kind": kinds, "step": step, "start_ns": start_ns, "end_ns": end_ns}


def _compute_spans(
    planned: np.ndarray, begin: np.ndarray, end: np.ndarray, source: ComputeStructure
) -> dict[str, np.ndarray]:
    gap = np.isin(planned["kind"], (SLEEP, SPIN))
    gaps, begin, end = planned[gap].view(GAP_ROW), begin[gap], end[gap]
    recorded, duration = gaps["recorded_ns"], gaps["duration_ns"]
    starts, ends, steps = [], [], []
    first = np.searchsorted(source.ends, recorded, side="right")
    last = np.searchsorted(source.starts, recorded + np.rint(duration * source.speed).astype(np.int64), side="left")
    for at, low, high, moved, until, step in zip(
        recorded.tolist(), first.tolist(), last.tolist(), begin.tolist(), end.tolist(), gaps["step"].tolist(),
        strict=True,
    ):  # fmt: skip
        starts.append(np.clip(moved + (source.starts[low:high] - at) / source.speed, moved, until))
        ends.append(np.clip(moved + (source.ends[low:high] - at) / source.speed, moved, until))
        steps.append(np.full(high - low, step, dtype=np.int32))
    if not starts:
        none = np.empty(0, dtype=np.int64)
        return _columns("compute", none.astype(np.int32), none, none)
    return _columns(
        "compute",
        np.concatenate(steps),
        np.rint(np.concatenate(starts)).astype(np.int64),
        np.rint(np.concatenate(ends)).astype(np.int64),
    )


def rank_rows(rank: int, queues: Iterable[RowQueue]) -> Iterator[pa.Table]:
    """The operations of a rank's lanes as tables of `OPS_SCHEMA` in start order; empties the queues.

    Each lane is in order already, so a part of every lane is enough: what begins before the earliest of the parts' last
    rows is complete. Memory: CHUNK_ROWS a lane.
    """
    heads = [(queue, queue.pop(CHUNK_ROWS)) for queue in queues]
    heads = [(queue, rows) for queue, rows in heads if len(rows)]
    while heads:
        complete = min((int(rows["begin_ns"][-1]) for queue, rows in heads if len(queue)), default=None)
        ready, waiting = [], []
        for queue, rows in heads:
            cut = len(rows) if complete is None else int(np.searchsorted(rows["begin_ns"], complete, side="right"))
            ready.append(rows[:cut])
            rest = rows[cut:] if cut < len(rows) else queue.pop(CHUNK_ROWS)
            if len(rest):
                waiting.append((queue, rest))
        yield _ops_table(rank, np.concatenate(ready))
        heads = waiting


def _ops_table(rank: int, rows: np.ndarray) -> pa.Table:
    rows = rows[np.argsort(rows["begin_ns"], kind="stable")]
    columns = {
        name: rows[name] for name in ("lane", "op", "api", "origin", "file_id", "step", "offset", "due_ns", "result")
    }
    columns |= {"length": np.maximum(rows["result"], 0), "start_ns": rows["begin_ns"], "end_ns": rows["end_ns"]}
    return table_from_columns({"rank": np.full(len(rows), rank, dtype=np.int32), **columns}, OPS_SCHEMA)
