"""Writes Chrome's trace JSON, gzipped, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" of the Catapult project: `X` is an interval with `ts` and `dur` in microseconds, `i` an
instant, `M` names a process or a thread. Times have three decimals and so are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from gzip import GzipFile
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.row_text import SLICE_ROWS, bytes_of, decimals, if_known, joined, known, names
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.output import check_output, new_file
from dxt_replay.traces.schema import (
    DEPENDENCY_COLUMNS,
    NO_STEP,
    SPAN_KINDS,
    UNION_THREAD,
    codes,
)
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S

SUFFIX = ".json.gz"

EVENTS_PER_FILE = 1_000_000
"""Events that the viewers open easily, about; a longer trace is split by time."""

LANE_THREADS = 1_000_000
"""Thread ids below it are lanes; other lines have ids from it on."""

_LEVEL = 1
"""zlib's level, the fastest: most of the time is spent there."""

_SAMPLES = 1 << 18
_MICROSECONDS = 3
_LANES = len(SPAN_KINDS)


def write_chrome(
    capture: Capture, output: Path, *, events_per_file: int = EVENTS_PER_FILE, force: bool = False
) -> Exported:
    """Write `capture` to `output`, or to parts of it: pid is the rank, tid the lane, spans have lines of their own.

    For a replay, a line beside each lane marks the due times of its operations. An event is in the part in which it
    starts. Memory: one row group, and the spans.
    Raises: UsageError for an `output` that is not named .json.gz; CaptureError when the capture is damaged; TargetError
    when a file exists and not `force`, or cannot be written.
    """
    if not output.name.endswith(SUFFIX):
        raise UsageError(f"--output {output}: a Chrome trace is gzipped JSON, give a name that ends in {SUFFIX}")
    cuts = _cuts(capture, events_per_file)
    job = {"capture": capture.path.name, "exe": capture.info.job.exe, "nprocs": capture.info.job.nprocs}
    with ExitStack() as stack:
        paths = _part_names(output, len(cuts) + 1)
        for path in paths:
            check_output(path, force=force)
        parts = [_Part(path, stack.enter_context(new_file(path, force=force))) for path in paths]
        for number, part in enumerate(parts, 1):
            about = json.dumps({**job, "part": number})
            part.file.write(f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":['.encode())
        file_names = pa.array([json.dumps(path) for path in capture.paths()], type=pa.string())
        for rank in capture.ranks:
            _write_rank(capture, rank, file_names, parts, cuts)
        for part in parts:
            part.file.write(b"\n]}\n")
            part.file.close()
    files = [ExportedFile(path=str(part.path), entries=part.events, bytes=part.path.stat().st_size) for part in parts]
    return Exported(
        format="chrome",
        output=str(output),
        operations=capture.operation_count(),
        files=tuple(files),
        notes=_notes(parts, cuts, events_per_file),
    )


class _Part:
    """One file being written; an event has a separator before it, which the first one loses."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.events = 0
        self._is_empty = True
        # without a time and a name, so that equal contents give equal bytes
        self.file = GzipFile("", "wb", _LEVEL, file, mtime=0)

    def add(self, text: bytes | memoryview, events: int) -> None:
        """Append the text of so many timed events."""
        self.events += events
        self.file.write(text[1:] if self._is_empty else text)
        self._is_empty = self._is_empty and not text


@dataclass(slots=True, kw_only=True)
class _Line:
    """A line of a timeline. `open_ends`: of the intervals that enclose the last one, the outermost first."""

    thread: int
    open_ends: list[int] = field(default_factory=list)


class _Lines:
    """The lines of one rank. A key, (group, number in the group, name), sorts as the lines are drawn."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int, str], list[_Line]] = {}
        self._next = LANE_THREADS

    def threads(
        self, key: tuple[int, int, str], start: np.ndarray, end: np.ndarray, lane: int = LANE_THREADS
    ) -> np.ndarray:
        """Thread ids of the lines for intervals (n,), which come in (start, -end) order over all calls.

        An interval that overlaps another without lying inside it goes to a further line of the same name, since no
        viewer can draw both on one. `lane`: the id of the key's first line, if it can be one.
        """
        lines = self._lines.setdefault(key, [])
        if not lines:
            lines.append(self._line(lane if lane < LANE_THREADS else None))
        first = lines[0]
        until = np.maximum.accumulate(np.append(first.open_ends[:1] or start[:1], end))
        if (start >= until[:-1]).all():
            first.open_ends = [int(until[-1])]
            return np.full(len(start), first.thread)
        return np.array([self._thread(lines, *interval) for interval in zip(start.tolist(), end.tolist(), strict=True)])

    def _thread(self, lines: list[_Line], start: int, end: int) -> int:
        for line in lines:
            ends = line.open_ends
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return line.thread
        lines.append(self._line())
        lines[-1].open_ends.append(end)
        return lines[-1].thread

    def _line(self, thread: int | None = None) -> _Line:
        self._next += thread is None
        return _Line(thread=self._next - 1 if thread is None else thread)

    def names(self) -> list[tuple[int, str]]:
        """(thread id, name) of all lines from the top down."""
        return [
            (line.thread, key[2] if number == 0 else f"{key[2]} (overlap {number})")
            for key, lines in sorted(self._lines.items())
            for number, line in enumerate(lines)
        ]


def _write_rank(capture: Capture, rank: int, file_names: pa.StringArray, parts: list[_Part], cuts: list[int]) -> None:
    lines = _Lines()
    left, right = np.searchsorted(capture.spans["rank"].to_numpy(), [rank, rank + 1]).tolist()
    spans = capture.spans.slice(left, right - left).combine_chunks()
    for rows in _slices(spans.to_batches()):
        _write(parts, cuts, rows, _span_events(rows, rank, lines))
    for rows in _slices(capture.operations(rank)):
        _write(parts, cuts, rows, _operation_events(rows, rank, file_names, lines), _has_due(rows))
    about: list[tuple[str, int, str, object]] = [
        ("process_name", 0, "name", f"rank {rank}"),
        ("process_sort_index", 0, "sort_index", rank),
    ]
    for place, (thread, name) in enumerate(lines.names()):
        about.append(("thread_name", thread, "name", name))
        about.append(("thread_sort_index", thread, "sort_index", place))
    for what, thread, key, value in about:
        event = {"ph": "M", "pid": rank, "tid": thread, "name": what, "args": {key: value}}
        for part in parts:
            part.add(b",\n" + json.dumps(event, separators=(",", ":")).encode(), 0)


def _slices(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, which are in start order, so that of those that start together the longest comes first."""
    for batch in batches:
        start, end = batch.column("start_ns").to_numpy(), batch.column("end_ns").to_numpy()
        if np.any((start[1:] == start[:-1]) & (end[1:] > end[:-1])):
            batch = batch.take(pa.array(np.lexsort((-end, start))))
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(begin, SLICE_ROWS)


def _has_due(rows: pa.RecordBatch) -> np.ndarray:
    """bool (n,): which operations have a due time."""
    due: np.ndarray = rows.column("due_ns").is_valid().to_numpy(zero_copy_only=False)
    return due


def _write(
    parts: list[_Part],
    cuts: list[int],
    rows: pa.RecordBatch,
    text: pa.StringArray,
    due: np.ndarray | None = None,
) -> None:
    """Append the text of each row, one event, or two where `due`, to the part in which it starts."""
    edges = [0, *np.searchsorted(rows.column("start_ns").to_numpy(), cuts).tolist(), rows.num_rows]
    for part, begin, end in zip(parts, edges, edges[1:], strict=False):
        if begin < end:
            more = 0 if due is None else int(due[begin:end].sum())
            part.add(bytes_of(text.slice(begin, end - begin)), end - begin + more)


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
    kinds, given = names(rows, "kind"), rows.column("name")
    shown = pc.if_else(pc.equal(given, ""), kinds, given).dictionary_encode()
    texts = pa.array([json.dumps(text) for text in shown.dictionary.to_pylist()], type=pa.string())
    return joined(
        f',\n{{"ph":"X","pid":{rank},"tid":', pa.array(thread), ',"ts":', decimals(start, _MICROSECONDS),
        ',"dur":', decimals(end - start, _MICROSECONDS), ',"cat":"', kinds, '","name":', texts.take(shown.indices),
        *if_known(',"args":{"step":', known(step, step != NO_STEP), "}"), "}",
    )  # fmt: skip


def _operation_events(rows: pa.RecordBatch, rank: int, file_names: pa.StringArray, lines: _Lines) -> pa.StringArray:
    """The events of each row: its due time, if it has one, and the operation."""
    lane, start, end, offset, step = (
        rows.column(name).to_numpy() for name in ("lane", "start_ns", "end_ns", "offset", "step")
    )
    thread, due_thread = _lane_threads(lines, lane, start, end, _has_due(rows))
    op, origin = names(rows, "op"), names(rows, "origin")
    due = decimals(rows.column("due_ns"), _MICROSECONDS)
    lag = decimals(pc.subtract(rows.column("start_ns"), rows.column("due_ns")), _MICROSECONDS)
    due_events: tuple[pa.Array | str, ...] = ()
    if due.null_count < len(due):
        due_events = (
            pc.binary_join_element_wise(
                f',\n{{"ph":"i","s":"t","pid":{rank},"tid":', pa.array(due_thread).cast(pa.string()), ',"ts":', due,
                ',"cat":"due","name":"', op, ' due","args":{"lag_us":', lag, "}}", "",
            ),
        )  # fmt: skip
    return joined(
        *due_events,
        f',\n{{"ph":"X","pid":{rank},"tid":', pa.array(thread), ',"ts":', decimals(start, _MICROSECONDS),
        ',"dur":', decimals(end - start, _MICROSECONDS), ',"cat":"io","name":"', op,
        '","args":{"file":', file_names.take(rows.column("file_id")), ',"length":', rows.column("length"),
        ',"api":"', names(rows, "api"), '"',
        *if_known(',"new_name":', file_names.take(rows.column("other_file_id"))),
        *if_known(',"offset":', known(offset, (offset >= 0) & rows.column("other_file_id").is_null().to_numpy(False))),
        *if_known(',"step":', known(step, step != NO_STEP)),
        *if_known(',"origin":"', pc.if_else(pc.equal(origin, "traced"), None, origin), '"'),
        *(each for name in ("result", *DEPENDENCY_COLUMNS) for each in if_known(f',"{name}":', rows.column(name))),
        *if_known(',"due_us":', due), *if_known(',"lag_us":', lag), "}}",
    )  # fmt: skip


def _lane_threads(
    lines: _Lines, lane: np.ndarray, start: np.ndarray, end: np.ndarray, due: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Thread ids (n,) of the lines of operations in start order, and of their due times: int64, 0 if none is due."""
    thread, due_thread = np.zeros((2, len(lane)), dtype=np.int64)
    order = stable_order(lane)
    for mine in np.split(order, runs(lane[order])[1:]):
        number = int(lane[mine[0]])
        thread[mine] = lines.threads((_LANES, 2 * number, f"lane {number}"), start[mine], end[mine], number)
        if due[mine].any():
            # instants never overlap
            moment = start[mine[:1]]
            due_thread[mine] = lines.threads((_LANES, 2 * number + 1, f"lane {number} due"), moment, moment)
    return thread, due_thread


def _cuts(capture: Capture, limit: int) -> list[int]:
    """Times at which the trace is cut into about equal parts, from a sample; none if all events fit in one file."""
    spans = capture.spans["start_ns"].to_numpy()
    # an operation has one event, and one more if it has a due time
    if 2 * capture.operation_count() + len(spans) <= limit:
        return []
    every, seen = -(-capture.operation_count() // _SAMPLES), 0
    starts, events = [spans], [np.ones(len(spans), dtype=np.int64)]
    for batch in capture.operations(columns=["start_ns", "due_ns"]):
        place = slice(-seen % every, None, every)
        starts.append(batch.column("start_ns").to_numpy()[place])
        events.append(every * (1 + _has_due(batch)[place].astype(np.int64)))
        seen += batch.num_rows
    start = np.concatenate(starts)
    order = np.argsort(start, kind="stable")
    until = np.cumsum(np.concatenate(events)[order])
    parts = -(-int(until[-1]) // limit)
    cuts = start[order][np.searchsorted(until, until[-1] * np.arange(1, parts) // parts, side="right")]
    found: list[int] = np.unique(cuts[cuts > start.min()]).tolist()
    return found


def _part_names(output: Path, parts: int) -> list[Path]:
    if parts == 1:
        return [output]
    stem = output.name.removesuffix(SUFFIX)
    digits = len(str(parts))
    return [output.with_name(f"{stem}-{place:0{digits}d}of{parts}{SUFFIX}") for place in range(1, parts + 1)]


def _notes(parts: list[_Part], cuts: list[int], limit: int) -> tuple[str, ...]:
    if not cuts:
        return ()
    edges = ["the start", *(f"{cut // NS_PER_S}.{cut % NS_PER_S:09d} s" for cut in cuts), "the end"]
    return (
        f"more than {limit} events: split by time into {len(parts)} files, open one at a time",
        *(f"{part.path.name}: {left} to {right}" for part, left, right in zip(parts, edges, edges[1:], strict=False)),
    )
