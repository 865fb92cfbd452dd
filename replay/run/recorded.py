"""From the results of lanes to totals, and to the rows and spans of the replay's capture.

Results wait in a `RowQueue` for each lane, so recording costs the run only a copy in memory. After the run the lanes of
a rank are merged into one stream in start order, and encoded to Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from dxt_replay.replay.engine.items import (
    ADD,
    EVENT_ROW,
    GAP_ROW,
    MARK,
    MARK_ROW,
    NO_EVENT,
    OPEN,
    OPERATION_ROW,
    PLAN_ROW,
    READ_AT,
    RENAME,
    RENAME_ROW,
    SLEEP,
    SPIN,
    WRITE_AT,
    Completed,
    is_operation,
)
from dxt_replay.replay.plan.operations import KNOWN_ROW
from dxt_replay.replay.plan.spill import CHUNK_ROWS, RowQueue, SpillFile
from dxt_replay.replay.run.result import FAILURE_ROW, MOST_FAILURES, RESULT_ROW, Tally
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.records import is_refused
from dxt_replay.traces.schema import (
    DEPENDENCY_COLUMNS,
    OPS_SCHEMA,
    RECONSTRUCTED,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    codes,
    table_from_columns,
)

_RESULT_WITH_KNOWN = np.dtype([*RESULT_ROW.descr, *KNOWN_ROW.descr])
"""With what the capture says that the operation waits for."""

PENDING_TIMES = 1 << 17  # How many times are sorted at once. It takes a few ms, in which the feeder does nothing else.


class TimeCollector:
    """Distributions of lag, latency and response. The lanes of a process share one collector, because it is large."""

    def __init__(self) -> None:
        self._lag, self._response = (DistributionCollector(pending=PENDING_TIMES) for _ in range(2))
        self._latency: dict[int, DistributionCollector] = {}

    def add(self, rows: np.ndarray) -> None:
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
            latency_ns=sum(by_op.values(), Distribution()),
            response_ns=self._response.distribution(),
            latency_by_op=by_op,
        )


class LaneRecorder:
    """Keeps the rows of one I/O lane until the end of the run, and its totals, without the times.

    `times`: collects its times. `known`: `KNOWN_ROW`s of its operations in order, which go into its rows.
    """

    def __init__(
        self, rank: int, lane: int, spill: SpillFile, times: TimeCollector, known: RowQueue | None = None
    ) -> None:
        self._rank, self._lane, self._times, self._known = rank, lane, times, known
        self.rows = RowQueue(RESULT_ROW if known is None else _RESULT_WITH_KNOWN, spill)
        self.tally = Tally()

    def record(self, done: Completed) -> None:
        planned = done.items[: done.count]
        issued = is_operation(planned)
        planned = planned[issued]
        if not len(planned):
            return
        own, kind = planned.view(OPERATION_ROW), planned["kind"]
        rows = np.empty(len(own), dtype=RESULT_ROW if self._known is None else _RESULT_WITH_KNOWN)
        for name in ("op", "api", "origin", "file_id", "step", "offset"):
            rows[name] = own[name]
        rows["lane"], rows["other_file_id"], length = self._lane, -1, own["length"]
        for name in ("due_ns", "begin_ns", "end_ns", "result"):
            rows[name] = getattr(done, name)[issued]
        if self._known is not None:
            known = self._known.pop(len(rows))
            for name in DEPENDENCY_COLUMNS:
                rows[name] = known[name]
        # As the capture has them: no advice in the place of an offset, and nothing of a rename's other name there.
        rows["offset"][(kind == OPEN) & (rows["offset"] < -1)] = -1
        renames = kind == RENAME
        if renames.any():
            rows["other_file_id"][renames] = planned.view(RENAME_ROW)["new_file_id"][renames]
            rows["offset"][renames], length[renames] = -1, 0
        self.rows.append(rows)
        self._times.add(rows)
        self._count(rows, kind, length)

    def _count(self, rows: np.ndarray, kind: np.ndarray, length: np.ndarray) -> None:
        tally, result = self.tally, rows["result"]
        refused = is_refused(rows["op"], rows["origin"], result)
        failed = (result < 0) & ~refused
        exact = (kind <= WRITE_AT) & (rows["origin"] != RECONSTRUCTED)
        short = exact & (result >= 0) & (result < length)
        moved = np.maximum(result, 0)
        tally.operations += len(rows)
        tally.failed += int(failed.sum())
        tally.short += int(short.sum())
        tally.bytes_read += int(moved[kind == READ_AT].sum())
        tally.bytes_written += int(moved[kind == WRITE_AT].sum())
        tally.last_end_ns = max(tally.last_end_ns, int(rows["end_ns"].max()))
        for counts, which in ((tally.errors, failed), (tally.refused, refused)):
            counts.update((-result[which]).tolist())
        # A lane issues its operations in order, so that the first ones that it notes are the earliest.
        noted = np.flatnonzero(failed | short)[: MOST_FAILURES - len(tally.failures)]
        if len(noted):
            failures = np.empty(len(noted), dtype=FAILURE_ROW)
            for name in RESULT_ROW.names or ():
                failures[name] = rows[name][noted]
            failures["rank"], failures["length"] = self._rank, length[noted]
            tally.failures = np.concatenate((tally.failures, failures))


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
        heads = waiting
        rows = np.concatenate(ready)
        rows = rows[np.argsort(rows["begin_ns"], kind="stable")]
        columns = {"rank": np.full(len(rows), rank, dtype=np.int32), "length": np.maximum(rows["result"], 0)}
        for name in rows.dtype.names or ():
            nullable = name == "other_file_id" or name in DEPENDENCY_COLUMNS
            columns[name] = np.ma.masked_less(rows[name], 0) if nullable else rows[name]
        columns["start_ns"] = columns.pop("begin_ns")
        yield table_from_columns(columns, OPS_SCHEMA)


# ------------------------------------------------------------------------------------- the spans of the training thread


class ComputeRecorder:
    """Keeps the results of the items of a rank's compute lane: gaps, borders of steps, and events."""

    def __init__(self) -> None:
        self._done: list[Completed] = []

    def record(self, done: Completed) -> None:
        self._done.append(done)

    @property
    def last_end_ns(self) -> int:
        return max((int(done.end_ns.max()) for done in self._done if done.count), default=0)

    def spans(self, rank: int, source: pa.Table, speed: float = 1.0) -> pa.Table:
        """The spans of the rank in the replay, rows of `SPANS_SCHEMA`, as are its spans in the `source`.

        A step lies between its two marks. A gap is replayed as one stretch: the parts of it in which the application
        computed are moved with it, at the `speed` of compute, so that source and replay can be compared. Under pace
        `steps` there are also input waits, collectives and checkpoints.
        """
        planned = np.concatenate([np.empty(0, dtype=PLAN_ROW), *(done.items[: done.count] for done in self._done)])
        begin, end = (
            np.concatenate([np.empty(0, dtype=np.int64), *(getattr(done, name) for done in self._done)])
            for name in ("begin_ns", "end_ns")
        )
        if not len(planned):
            return SPANS_SCHEMA.empty_table()
        in_event = planned.view(EVENT_ROW)["event"] != NO_EVENT
        parts = [
            _step_spans(planned, begin),
            _compute_spans(planned[~in_event], begin[~in_event], end[~in_event], source, speed),
        ]
        if in_event.any():
            parts.append(_event_spans(planned[in_event].view(EVENT_ROW), begin[in_event], end[in_event]))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        names = [SPAN_KINDS[kind] for kind in columns["kind"].tolist()]
        return table_from_columns({"rank": rank, "thread": UNION_THREAD, "name": names, **columns}, SPANS_SCHEMA)


def _columns(kind: str, step: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> dict[str, np.ndarray]:
    kinds = np.full(len(step), SPAN_KINDS.index(kind), dtype=np.int8)
    return {"kind": kinds, "step": step, "start_ns": start_ns, "end_ns": end_ns}


def _step_spans(planned: np.ndarray, begin: np.ndarray) -> dict[str, np.ndarray]:
    is_mark = planned["kind"] == MARK
    marks, begin = planned[is_mark].view(MARK_ROW), begin[is_mark]
    is_end = marks["is_end"] == 1
    steps, starts, ends = marks["step"][~is_end], begin[~is_end], begin[is_end]
    # A stopped run may lack the end of its last step, which then does not count.
    whole = min(len(starts), len(ends))
    return _columns("step", steps[:whole], starts[:whole], ends[:whole])


def _compute_spans(
    planned: np.ndarray, begin: np.ndarray, end: np.ndarray, source: pa.Table, speed: float
) -> dict[str, np.ndarray]:
    computed = codes(source, "kind") == SPAN_KINDS.index("compute")
    source_starts, source_ends = (source[name].to_numpy()[computed] for name in ("start_ns", "end_ns"))
    is_gap = np.isin(planned["kind"], (SLEEP, SPIN))
    gaps, begin, end = planned[is_gap].view(GAP_ROW), begin[is_gap], end[is_gap]
    recorded, duration = gaps["recorded_ns"], gaps["duration_ns"]
    first = np.searchsorted(source_ends, recorded, side="right")
    last = np.searchsorted(source_starts, recorded + np.rint(duration * speed).astype(np.int64), side="left")
    # A pair (gap, interval of the source that lies in it) each.
    number = np.maximum(last - first, 0)
    of_gap = np.repeat(np.arange(len(gaps)), number)
    inside = np.arange(len(of_gap)) - np.repeat(np.cumsum(number) - number, number) + first[of_gap]
    starts, ends = (
        np.clip(begin[of_gap] + (times[inside] - recorded[of_gap]) / speed, begin[of_gap], end[of_gap])
        for times in (source_starts, source_ends)
    )
    return _columns("compute", gaps["step"][of_gap], *(np.rint(each).astype(np.int64) for each in (starts, ends)))


def _event_spans(items: np.ndarray, begin: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """One span for each event of the training thread, from the first to the last of its items (`EVENT_ROW`).

    If the last item releases other lanes, the event ends when that item begins, because they may run before it ends.
    """
    from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, FETCH

    span_of = {FETCH: "input_wait", CHECKPOINT: "checkpoint", COLLECTIVE: "collective"}
    first = np.flatnonzero(np.diff(items["event"], prepend=NO_EVENT))
    last = np.append(first[1:], len(items))[: len(first)] - 1
    event_kind = items["event_kind"][first]
    kinds = np.array([SPAN_KINDS.index(span_of.get(kind, "other")) for kind in event_kind.tolist()])
    shown = np.isin(event_kind, list(span_of))
    over = np.where(items["kind"] == ADD, begin, end)
    spans = _columns("other", items["step"][first], begin[first], over[last])
    spans["kind"] = kinds.astype(np.int8)
    return {name: values[shown] for name, values in spans.items()}
