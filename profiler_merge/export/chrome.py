"""Writes Chrome's trace JSON, gzipped, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" of the Catapult project: `X` is an interval with `ts` and `dur` in microseconds, `i` an
instant, `M` names a process or a thread. Times have three decimals and so are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from gzip import GzipFile
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import (
    SLICE_ROWS,
    Exported,
    ExportedFile,
    bytes_of,
    decimals,
    if_known,
    joined,
    known,
    names_of,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.output import new_file
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS, NO_STEP, SPAN_KINDS, UNION_THREAD, codes
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

SUFFIX = ".json.gz"

EASY_EVENTS = 1_000_000
"""Events that the viewers open easily, about."""

LANE_THREADS = 1_000_000
"""Thread ids below it are lanes; other lines have ids from it on."""

_US = 3
_LANES = len(SPAN_KINDS)


def write_chrome(capture: Capture, output: Path, *, force: bool = False) -> Exported:
    """Write `capture` to `output`: pid is the rank, tid the lane, spans have lines of their own.

    For a replay, a line beside each lane marks the due times of its operations. Memory: one row group, and the spans.
    Raises: UsageError for an `output` that is not named .json.gz; CaptureError when the capture is damaged; TargetError
    when `output` exists and not `force`, or cannot be written.
    """
    if not output.name.endswith(SUFFIX):
        raise UsageError(f"--output {output}: a Chrome trace is gzipped JSON, give a name that ends in {SUFFIX}")
    job = {"capture": capture.path.name, "exe": capture.info.job.exe, "nprocs": capture.info.job.nprocs}
    file_names = pa.array([json.dumps(path) for path in capture.paths()], type=pa.string())
    events, separator = 0, 1
    # Without a time and a name, so that equal contents give equal bytes; level 1, as most of the time is spent there.
    with new_file(output, force=force) as file, GzipFile("", "wb", 1, file, mtime=0) as packed:
        packed.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(job)},"traceEvents":['.encode())
        for rank in capture.ranks:
            for number, text in _rank_events(capture, rank, file_names):
                events += number
                packed.write(text[separator:])  # each event has a comma before it, which the first one loses
                separator = 0
        packed.write(b"\n]}\n")
    notes: tuple[str, ...] = ()
    if events > EASY_EVENTS:
        notes = (
            f"{format_count(events)} events: the viewers open about {format_count(EASY_EVENTS)} easily. They load "
            "larger traces slowly, or need trace_processor beside them",
        )
    written = ExportedFile(path=str(output), entries=events, bytes=output.stat().st_size)
    operations = capture.operation_count()
    return Exported(format="chrome", output=str(output), operations=operations, files=(written,), notes=notes)


def _rank_events(capture: Capture, rank: int, file_names: pa.StringArray) -> Iterator[tuple[int, bytes | memoryview]]:
    """Texts of a rank's events, and the number of timed ones in each."""
    lines = _Lines()
    left, right = np.searchsorted(capture.spans["rank"].to_numpy(), [rank, rank + 1]).tolist()
    for rows in _slices(capture.spans.slice(left, right - left).combine_chunks().to_batches()):
        yield rows.num_rows, bytes_of(_span_events(rows, rank, lines))
    for rows in _slices(capture.operations(rank)):
        text = _operation_events(rows, rank, file_names, lines)
        yield 2 * rows.num_rows - rows.column("due_ns").null_count, bytes_of(text)
    about = [("process", 0, f"rank {rank}", rank)]
    about += [("thread", thread, name, place) for place, (thread, name) in enumerate(lines.names())]
    for what, thread, name, place in about:
        for key, value in (("name", name), ("sort_index", place)):
            event = {"ph": "M", "pid": rank, "tid": thread, "name": f"{what}_{key}", "args": {key: value}}
            yield 0, b",\n" + json.dumps(event, separators=(",", ":")).encode()


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, which are in start order, so that of those that start together the longest comes first."""
    for batch in batches:
        start, end = batch.column("start_ns").to_numpy(), batch.column("end_ns").to_numpy()
        if np.any((start[1:] == start[:-1]) & (end[1:] > end[:-1])):
            batch = batch.take(pa.array(np.lexsort((-end, start))))
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(begin, SLICE_ROWS)


class _Lines:
    """The lines of one rank: by (group, number in the group, name), which sort as the lines are drawn, the thread of
    each and the ends of the intervals that enclose its last one, the outermost first."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int, str], list[tuple[int, list[int]]]] = {}
        self._ids = count(LANE_THREADS)

    def threads(
        self, key: tuple[int, int, str], start: np.ndarray, end: np.ndarray, lane: int = LANE_THREADS
    ) -> np.ndarray:
        """Thread ids of the lines for intervals (n,), which come in (start, -end) order over all calls.

        An interval that overlaps another without lying inside it goes to a further line of the same name, since no
        viewer can draw both on one. `lane`: the id of the key's first line, if it can be one.
        """
        lines = self._lines.setdefault(key, [])
        if not lines:
            lines.append((lane if lane < LANE_THREADS else next(self._ids), []))
        thread, ends = lines[0]
        until = np.maximum.accumulate(np.append(ends[:1] or start[:1], end))
        if (start >= until[:-1]).all():
            ends[:] = [int(until[-1])]
            return np.full(len(start), thread)
        return np.array([self._thread(lines, *interval) for interval in zip(start.tolist(), end.tolist(), strict=True)])

    def _thread(self, lines: list[tuple[int, list[int]]], start: int, end: int) -> int:
        for thread, ends in lines:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return thread
        lines.append((next(self._ids), [end]))
        return lines[-1][0]

    def names(self) -> list[tuple[int, str]]:
        """(thread id, name) of all lines from the top down."""
        return [
            (thread, name if number == 0 else f"{name} (overlap {number})")
            for (_, _, name), lines in sorted(self._lines.items())
            for number, (thread, _) in enumerate(lines)
        ]


def _span_events(rows: pa.RecordBatch, rank: int, lines: _Lines) -> pa.StringArray:
    """One event of each span."""
    start, end, owner, step = (rows.column(name).to_numpy() for name in ("start_ns", "end_ns", "thread", "step"))
    kind, thread = codes(rows, "kind"), np.empty(rows.num_rows, dtype=np.int64)
    order = np.lexsort((owner, kind))
    new_line = (owner[order][1:] != owner[order][:-1]) | (kind[order][1:] != kind[order][:-1])
    for mine in np.split(order, np.flatnonzero(new_line) + 1):
        code, number = int(kind[mine[0]]), int(owner[mine[0]])
        label = SPAN_KINDS[code] if number == UNION_THREAD else f"{SPAN_KINDS[code]}, thread {number}"
        thread[mine] = lines.threads((code, number, label), start[mine], end[mine])
    kinds, given = names_of(rows, "kind"), rows.column("name")
    shown = pc.if_else(pc.equal(given, ""), kinds, given).dictionary_encode()
    texts = pa.array([json.dumps(text) for text in shown.dictionary.to_pylist()], type=pa.string())
    return joined(
        f',\n{{"ph":"X","pid":{rank},"tid":', pa.array(thread), ',"ts":', decimals(start, _US),
        ',"dur":', decimals(end - start, _US), ',"cat":"', kinds, '","name":', texts.take(shown.indices),
        *if_known(',"args":{"step":', known(step, step != NO_STEP), "}"), "}",
    )  # fmt: skip


def _operation_events(rows: pa.RecordBatch, rank: int, file_names: pa.StringArray, lines: _Lines) -> pa.StringArray:
    """The events of each row: its due time, if it has one, and the operation."""
    lane, start, end, offset, step = (
        rows.column(name).to_numpy() for name in ("lane", "start_ns", "end_ns", "offset", "step")
    )
    is_due = rows.column("due_ns").is_valid().to_numpy(zero_copy_only=False)
    thread, due_thread = np.zeros((2, len(lane)), dtype=np.int64)
    order = stable_order(lane)
    for mine in np.split(order, runs(lane[order])[1:]):
        number = int(lane[mine[0]])
        thread[mine] = lines.threads((_LANES, 2 * number, f"lane {number}"), start[mine], end[mine], number)
        if is_due[mine].any():
            moment = start[mine[:1]]  # instants never overlap
            due_thread[mine] = lines.threads((_LANES, 2 * number + 1, f"lane {number} due"), moment, moment)
    op, origin = names_of(rows, "op"), names_of(rows, "origin")
    due = decimals(rows.column("due_ns"), _US)
    lag = decimals(pc.subtract(rows.column("start_ns"), rows.column("due_ns")), _US)
    due_events: tuple[pa.Array, ...] = ()
    if is_due.any():
        due_events = (
            pc.binary_join_element_wise(
                f',\n{{"ph":"i","s":"t","pid":{rank},"tid":', pa.array(due_thread).cast(pa.string()), ',"ts":', due,
                ',"cat":"due","name":"', op, ' due","args":{"lag_us":', lag, "}}", "",
            ),
        )  # fmt: skip
    return joined(
        *due_events,
        f',\n{{"ph":"X","pid":{rank},"tid":', pa.array(thread), ',"ts":', decimals(start, _US),
        ',"dur":', decimals(end - start, _US), ',"cat":"io","name":"', op,
        '","args":{"file":', file_names.take(rows.column("file_id")), ',"length":', rows.column("length"),
        ',"api":"', names_of(rows, "api"), '"',
        *if_known(',"new_name":', file_names.take(rows.column("other_file_id"))),
        *if_known(',"offset":', known(offset, (offset >= 0) & rows.column("other_file_id").is_null().to_numpy(False))),
        *if_known(',"step":', known(step, step != NO_STEP)),
        *if_known(',"origin":"', pc.if_else(pc.equal(origin, "traced"), None, origin), '"'),
        *(each for name in ("result", *DEPENDENCY_COLUMNS) for each in if_known(f',"{name}":', rows.column(name))),
        *if_known(',"due_us":', due), *if_known(',"lag_us":', lag), "}}",
    )  # fmt: skip
