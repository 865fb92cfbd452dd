"""Records the operations of a replay while it runs, and turns them into rows of a capture after its end.

Results wait in a `RowQueue` for each lane, so recording costs the run only a copy in memory. After the run the lanes of
a rank are merged into one stream in start order, and encoded to Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, FETCH
from dxt_replay.replay.engine.items import ADD, MARK, READ_AT, SLEEP, SPIN, WRITE_AT, Completed
from dxt_replay.replay.plan.plan_row import (
    EVENT_ROW,
    GAP_ROW,
    KNOWN_ROW,
    MARK_ROW,
    NO_EVENT,
    is_operation,
    new_file_ids,
    recorded_operations,
)
from dxt_replay.replay.plan.row_queue import CHUNK_ROWS, RowQueue, SpillFile
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.records import is_refused
from dxt_replay.traces.schema import (
    DEPENDENCY_COLUMNS,
    OPS_SCHEMA,
    RECONSTRUCTED,
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
        ("other_file_id", "<i4"),
        ("offset", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("due_ns", "<i8"),
        ("result", "<i8"),
    ]
)
"""One issued operation. Times are in ns from the start of the run. `other_file_id`: -1 for null."""

_RESULT_WITH_KNOWN = np.dtype([*RESULT_ROW.descr, *KNOWN_ROW.descr])
"""With what the capture says that the operation waits for."""

_SPAN_OF_EVENT = {FETCH: "input_wait", CHECKPOINT: "checkpoint", COLLECTIVE: "collective"}


PENDING_TIMES = 1 << 17
"""How many times are sorted at once. It takes a few ms, in which the feeder does nothing else."""

_NO_TIMES = Distribution()

MOST_FAILURES = 20
"""How many failed operations of a run are named. All of them are in its capture, with a negative `result`."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Failure:
    """An operation that failed, or moved fewer bytes than recorded.

    `begin_ns`: from the start of the run.
    `op`: code of the operation (OPS).
    `result`: bytes moved, or -errno.
    """

    begin_ns: int
    lane: int
    op: int
    file_id: int
    offset: int
    length: int
    step: int
    result: int
    rank: int = -1


def _earliest(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    return tuple(sorted(failures)[:MOST_FAILURES])


@dataclass(slots=True)
class Tally:
    """Totals of a run so far. Tallies of several lanes or processes can be added.

    operations, failed: issued operations, and those that returned an error.
    short: traced reads and writes that moved fewer bytes than recorded.
    bytes_read, bytes_written: bytes moved.
    last_end_ns: when the last operation ended, from the start of the run.
    starved_ns: time in which lanes had no items because the feeder was late.
    errors: errno -> failed operations.
    refused: errno -> reconstructed operations that the storage refused; these are not failures (`traces.records`).
    close_errors: errno -> files whose close failed at the end of the run; written data may be lost.
    lag_ns, latency_ns, response_ns: distributions over all operations.
    latency_by_op: code of the operation (OPS) -> distribution of its latency.
    failures: the earliest of the failed and the short ones, MOST_FAILURES at most.
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
    failures: tuple[Failure, ...] = ()

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
            failures=_earliest((*self.failures, *other.failures)),
        )


def _added(counts: dict[int, int], others: dict[int, int]) -> dict[int, int]:
    return {code: counts.get(code, 0) + others.get(code, 0) for code in counts.keys() | others.keys()}


def _by_errno(results: np.ndarray) -> dict[int, int]:
    return {int(code): int(count) for code, count in zip(*np.unique(-results, return_counts=True), strict=True)}


class TimeCollector:
    """Distributions of lag, latency and response. The lanes of a process share one collector, because it is large."""

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
    """Keeps the rows of one I/O lane until the end of the run, and its totals.

    `times`: the collector of its times. `known`: `KNOWN_ROW`s of its operations in order, which go into its rows.
    """

    def __init__(
        self,
        lane: int,
        spill: SpillFile,
        times: TimeCollector | None = None,
        known: RowQueue | None = None,
    ) -> None:
        self.lane = lane
        self.times = times or TimeCollector()
        self._known = known
        self._row = RESULT_ROW if known is None else _RESULT_WITH_KNOWN
        self.rows = RowQueue(self._row, spill)
        self._tally = Tally()

    def record(self, planned: np.ndarray, done: Completed) -> None:
        """Keep the completed part of a batch. `planned`: the rows of the batch, of dtype `PLAN_ROW`."""
        planned = planned[: done.count]
        issued = is_operation(planned)
        operations = recorded_operations(planned)
        rows = np.empty(len(operations), dtype=self._row)
        for name in ("op", "api", "origin", "file_id", "step", "offset"):
            rows[name] = operations[name]
        rows["lane"], rows["other_file_id"] = self.lane, new_file_ids(planned)
        rows["begin_ns"], rows["end_ns"] = done.begin_ns[issued], done.end_ns[issued]
        rows["due_ns"], rows["result"] = done.due_ns[issued], done.result[issued]
        if self._known is not None:
            known = self._known.pop(len(rows))
            for name in DEPENDENCY_COLUMNS:
                rows[name] = known[name]
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
        exact = (operations["kind"] <= WRITE_AT) & (rows["origin"] != RECONSTRUCTED)
        short = exact & (result >= 0) & (result < operations["length"])
        tally.short += int(short.sum())
        self._name(rows, operations, failed | short)
        tally.bytes_read += int(moved[operations["kind"] == READ_AT].sum())
        tally.bytes_written += int(moved[operations["kind"] == WRITE_AT].sum())
        tally.last_end_ns = max(tally.last_end_ns, int(rows["end_ns"].max()))
        tally.errors = _added(tally.errors, _by_errno(result[failed]))
        tally.refused = _added(tally.refused, _by_errno(result[refused]))
        self.times.add(rows)

    def _name(self, rows: np.ndarray, operations: np.ndarray, failed: np.ndarray) -> None:
        """Note the earliest failed operations; a lane issues its operations in order."""
        found = np.flatnonzero(failed)[: MOST_FAILURES - len(self._tally.failures)]
        columns = ("begin_ns", "op", "file_id", "offset", "step", "result")
        self._tally.failures += tuple(
            Failure(
                lane=self.lane,
                length=int(operations["length"][at]),
                **{name: int(rows[name][at]) for name in columns},
            )
            for at in found.tolist()
        )

    def tally(self, starved_ns: int = 0) -> Tally:
        """Totals of the lane without the times. `starved_ns`: how long the loop waited to be fed."""
        return self._tally + Tally(starved_ns=starved_ns)


class NoRecorder:
    """The recorder of a lane that only serves other lanes: it records nothing."""

    def record(self, planned: np.ndarray, done: Completed) -> None:
        """Do nothing."""


class ComputeRecorder:
    """Keeps the times of the items of a rank's compute lane: gaps, borders of steps, and events."""

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
        """The spans of the replay, rows of `SPANS_SCHEMA`.

        A step lies between its two marks. The compute of the source inside a gap is moved with the gap. Under pace
        `steps` there are also input waits, collectives and checkpoints.
        """
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
        """When the last item ended, in ns from the start of the run; 0 without items."""
        return max((int(end.max()) for end in self._end if len(end)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeStructure:
    """The compute of one rank in the source, and the speed at which it is replayed.

    A gap is replayed as one stretch. The source knows the parts of it in which the application computed. They are
    copied, so that source and replay can be compared.
    `starts`, `ends`: int64 (n,), the intervals of compute in ns of the source's clock, ascending.
    `speed`: how much faster than recorded.
    """

    starts: np.ndarray
    ends: np.ndarray
    speed: float = 1.0


def _step_spans(planned: np.ndarray, begin: np.ndarray) -> dict[str, np.ndarray]:
    mark = planned["kind"] == MARK
    marks, begin = planned[mark].view(MARK_ROW), begin[mark]
    is_end = marks["is_end"] == 1
    steps, starts, ends = marks["step"][~is_end], begin[~is_end], begin[is_end]
    # A stopped run may lack the end of its last step, which then does not count.
    whole = min(len(starts), len(ends))
    return _columns("step", steps[:whole], starts[:whole], ends[:whole])


def _event_spans(items: np.ndarray, begin: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """One span for each event of the training thread, from the first to the last of its items (`EVENT_ROW`).

    If the last item releases other lanes, the event ends when that item begins, because they may run before it ends.
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
    """The operations of a rank's lanes as tables of `OPS_SCHEMA` in start order. Empties the queues.

    The rows of each lane are in order already, so CHUNK_ROWS of each lane are merged at a time. All operations that
    begin before the earliest last row of these parts are known by then.
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
    for name in {"other_file_id", *DEPENDENCY_COLUMNS}.intersection(rows.dtype.names or ()):
        columns[name] = np.ma.masked_less(rows[name], 0)
    columns |= {"length": np.maximum(rows["result"], 0), "start_ns": rows["begin_ns"], "end_ns": rows["end_ns"]}
    return table_from_columns({"rank": np.full(len(rows), rank, dtype=np.int32), **columns}, OPS_SCHEMA)
