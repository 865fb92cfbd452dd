"""Writes Chrome's trace JSON, gzipped, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" of the Catapult project: `X` is an interval with `ts` and `dur` in microseconds, `i` an
instant, `M` names a process or a thread. Times have three decimals and so are exact.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.export._row_text import Part, Texts, row_text
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.gzip_pieces import GzipFile, Piece, PieceWriter
from dxt_replay.profiler_merge.export.numbers import MICROSECONDS, TRUTH, decimal_text, known_numbers
from dxt_replay.profiler_merge.export.time_parts import Weighted, time_cuts
from dxt_replay.profiler_merge.export.tracks import RankTracks
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.output import check_output, folder_beside, new_file, refusal
from dxt_replay.traces.schema import (
    DEPENDENCY_COLUMNS,
    NO_STEP,
    SPAN_KINDS,
    TRACED,
    UNION_THREAD,
    VOCABULARY,
    Job,
    codes,
)
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.rank_pieces import rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers

SUFFIX = ".json.gz"

EVENTS_PER_FILE = 1_000_000
"""Events that the viewers open easily; a longer trace is split by time."""

SLICE_ROWS = 1 << 14
"""Rows that are formatted at a time, some 4 MB."""

_SEPARATOR = b",\n"
_LANES = len(SPAN_KINDS)
_DUE = 1
_NAMES = {column: Texts([name.encode() for name in VOCABULARY[column]]) for column in ("op", "api", "origin")}


def write_chrome(
    capture: Capture,
    output: Path,
    *,
    events_per_file: int = EVENTS_PER_FILE,
    force: bool = False,
    workers: Workers = ALONE,
) -> Exported:
    """Write `capture` to `output`, or to parts of it: pid is the rank, tid the lane, spans have lines of their own.

    For a replay, a line beside each lane marks the due times of its operations. An event is in the part in which it
    starts.
    Memory: one row group, and the spans. Workers write pieces beside the output, which are then joined.
    Raises: UsageError for an `output` that is not named .json.gz; CaptureError when the capture is damaged; TargetError
    when a file exists and not `force`, or cannot be written.
    """
    if not output.name.endswith(SUFFIX):
        raise UsageError(f"--output {output}: a Chrome trace is gzipped JSON, give a name that ends in {SUFFIX}")
    cuts = _cuts(capture, events_per_file)
    names = _part_names(output, len(cuts) + 1)
    with ExitStack() as stack:
        for path in names:
            check_output(path, force=force)
        parts = [_Part(path, stack.enter_context(new_file(path, force=force))) for path in names]
        pieces = list(enumerate(rank_pieces(capture, workers.piece_operations)))
        write = _PieceWork(capture=capture, cuts=cuts, names=names)
        alone = len(pieces) == 1
        operations = write.into(pieces[0], parts) if alone else _join_pieces(write, pieces, parts, workers)
        for part in parts:
            part.finish()
    files = tuple(
        ExportedFile(path=str(part.path), entries=part.events, bytes=part.path.stat().st_size) for part in parts
    )
    return Exported(
        format="chrome",
        output=str(output),
        operations=operations,
        files=files,
        notes=_notes(parts, cuts, events_per_file),
    )


def _join_pieces(write: _PieceWork, pieces: list[RankPiece], parts: list[_Part], workers: Workers) -> int:
    """Have workers write the pieces, and append them to the parts; returns the number of operations."""
    operations = 0
    with folder_beside(parts[0].path) as folder:
        work = replace(write, folder=folder)
        with workers.results(work, pieces, operations=work_of(write.capture), named=_named) as results:
            for done in results:
                operations += done.operations
                for part, path, events, piece in zip(parts, done.paths, done.events, done.pieces, strict=True):
                    part.append(path, events, piece)
    return operations


class _Part:
    """One file being written."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.events = 0
        with _refused(path):
            self.text = GzipFile(file)

    def append(self, path: Path, events: int, piece: Piece) -> None:
        """Append the piece at `path`, and remove it."""
        with _refused(self.path):
            with open(path, "rb") as deflated:
                self.text.add(piece, deflated)
            path.unlink()
        self.events += events

    def finish(self) -> None:
        """End the JSON and the gzip stream."""
        with _refused(self.path):
            self.text.finish(b"\n]}\n")


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


RankPiece = tuple[int, tuple[int, ...]]
"""Number of a piece, and its ranks."""


def _named(piece: RankPiece) -> str:
    return f"ranks {piece[1][0]} to {piece[1][-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A piece of each part: its path, its events, and gzip's data about it; and the number of operations."""

    paths: list[Path]
    events: list[int]
    pieces: list[Piece]
    operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PieceWork:
    """Writes the events of some ranks. `names`: of the parts; `folder`: for pieces."""

    capture: Capture
    cuts: list[int]
    names: list[Path]
    folder: Path = Path()

    def __call__(self, piece: RankPiece) -> _Written:
        paths = [self.folder / f"{piece[0]}-{place}" for place in range(len(self.names))]
        with _refused(self.names[0]), ExitStack() as stack:
            texts = self._texts(piece[0], [stack.enter_context(open(path, "wb")) for path in paths])
            operations = self._write(piece[1], texts)
            return _Written(
                paths=paths,
                events=[text.events for text in texts],
                pieces=[text.finish() for text in texts],
                operations=operations,
            )

    def into(self, piece: RankPiece, parts: list[_Part]) -> int:
        """Write a piece to the parts themselves; returns the operations."""
        texts = self._texts(piece[0], [part.text.file for part in parts])
        operations = self._write(piece[1], texts)
        for part, text in zip(parts, texts, strict=True):
            part.events += text.events
            part.text.add(text.finish())
        return operations

    def _texts(self, number: int, files: list[IO[bytes]]) -> list[_PartText]:
        about = self.capture.path.name, self.capture.info.job
        heads = [None if number else _head(*about, place + 1) for place in range(len(files))]
        return [_PartText(path, file, head) for path, file, head in zip(self.names, files, heads, strict=True)]

    def _write(self, ranks: tuple[int, ...], texts: list[_PartText]) -> int:
        paths = Texts([json.dumps(path).encode() for path in self.capture.paths()])
        return sum(_write_rank(self.capture, rank, paths, texts, self.cuts) for rank in ranks)


def _head(name: str, job: Job, part: int) -> str:
    about = {"capture": name, "exe": job.exe, "nprocs": job.nprocs, "part": part}
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":['


class _PartText:
    """The text of a piece of one part. `head`: its beginning, for the first piece alone."""

    def __init__(self, path: Path, file: IO[bytes], head: str | None) -> None:
        self._path = path
        self.events = 0
        self._text = PieceWriter(file)
        self._is_first = head is not None
        if head is not None:
            self._write(head.encode())

    def add(self, text: bytes | memoryview, events: int) -> None:
        """Append the text of so many timed events, each with a separator before it."""
        self.events += events
        self._append(text)

    def name_lines(self, rank: int, tracks: RankTracks) -> None:
        """Append the names of a rank and its lines, in the order in which they are drawn."""
        about: list[tuple[str, int, str, object]] = [
            ("process_name", 0, "name", f"rank {rank}"),
            ("process_sort_index", 0, "sort_index", rank),
        ]
        for place, (thread, name) in enumerate(tracks.lines()):
            about.append(("thread_name", thread, "name", name))
            about.append(("thread_sort_index", thread, "sort_index", place))
        for what, thread, key, value in about:
            event = {"ph": "M", "pid": rank, "tid": thread, "name": what, "args": {key: value}}
            self._append(_SEPARATOR + json.dumps(event, separators=(",", ":")).encode())

    def finish(self) -> Piece:
        """End the piece."""
        with _refused(self._path):
            return self._text.finish()

    def _append(self, text: bytes | memoryview) -> None:
        # the first event of the array has no comma before it
        self._write(text[1:] if self._is_first else text)
        self._is_first = self._is_first and not text

    def _write(self, text: bytes | memoryview) -> None:
        with _refused(self._path):
            self._text.write(text)


def _write_rank(capture: Capture, rank: int, paths: Texts, parts: list[_PartText], cuts: list[int]) -> int:
    """Write a rank; returns its number of operations. `paths`: as JSON, by file_id."""
    tracks = RankTracks()
    for start_ns, event in _span_events(capture.spans, rank, tracks):
        parts[bisect_right(cuts, start_ns)].add(_SEPARATOR + event.encode(), 1)
    operations = 0
    for batch in capture.operations(rank):
        batch = _drawn_order(batch)
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            rows = batch.slice(begin, SLICE_ROWS)
            text, ends = row_text(rows.num_rows, _operation_events(rows, rank, paths, tracks))
            events = np.arange(1, rows.num_rows + 1) + np.cumsum(known_numbers(rows, "due_ns")[1])
            # rows are in start order, so each part gets one stretch of them
            edges = [0, *np.searchsorted(rows.column("start_ns").to_numpy(), cuts).tolist(), rows.num_rows]
            text_edges, event_edges = (np.append(0, sums)[edges].tolist() for sums in (ends, events))
            stretches = zip(text_edges, text_edges[1:], event_edges, event_edges[1:], strict=False)
            for part, (left, right, first, last) in zip(parts, stretches, strict=True):
                part.add(text[left:right], last - first)
        operations += batch.num_rows
    for part in parts:
        part.name_lines(rank, tracks)
    return operations


def _drawn_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a batch, which are in start order, so that of those that start together the longest comes first."""
    start, end = batch.column("start_ns").to_numpy(), batch.column("end_ns").to_numpy()
    if not np.any((start[1:] == start[:-1]) & (end[1:] > end[:-1])):
        return batch
    return batch.take(pa.array(np.lexsort((-end, start))))


def _span_events(spans: pa.Table, rank: int, tracks: RankTracks) -> Iterator[tuple[int, str]]:
    """(start, event) of each span of a rank."""
    left, right = np.searchsorted(spans["rank"].to_numpy(), [rank, rank + 1]).tolist()
    mine = spans.slice(left, right - left)
    start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
    order = np.lexsort((-end, start))
    mine, start, end = mine.take(pa.array(order)), start[order], end[order]
    columns = (
        codes(mine, "kind").tolist(),
        mine["thread"].to_pylist(),
        mine["name"].to_pylist(),
        mine["step"].to_pylist(),
    )
    for kind, thread, name, step, begin, stop in zip(*columns, start.tolist(), end.tolist(), strict=True):
        ts, dur = decimal_text(begin, MICROSECONDS), decimal_text(stop - begin, MICROSECONDS)
        label = SPAN_KINDS[kind] if thread == UNION_THREAD else f"{SPAN_KINDS[kind]}, thread {thread}"
        tid = tracks.thread((kind, thread, label), begin, stop)
        args = "" if step == NO_STEP else f',"args":{{"step":{step}}}'
        yield (
            begin,
            f'{{"ph":"X","pid":{rank},"tid":{tid},"ts":{ts},"dur":{dur},"cat":"{SPAN_KINDS[kind]}",'
            f'"name":{json.dumps(name or SPAN_KINDS[kind])}{args}}}',
        )


def _operation_events(rows: pa.RecordBatch, rank: int, paths: Texts, tracks: RankTracks) -> list[Part]:
    """The events of each row: its due time, if it has one, and the operation."""
    lane, file_id, offset, length, step, start, end = (
        rows.column(name).to_numpy() for name in ("lane", "file_id", "offset", "length", "step", "start_ns", "end_ns")
    )
    op, api, origin = (codes(rows, name) for name in ("op", "api", "origin"))
    due, is_due = known_numbers(rows, "due_ns")
    thread, due_thread = _lane_threads(tracks, lane, start, end, is_due)
    new_name, is_rename = known_numbers(rows, "other_file_id")
    return [
        Part(f',\n{{"ph":"i","s":"t","pid":{rank},"tid":'.encode(), due_thread, present=is_due),
        Part(b',"ts":', due, digits=MICROSECONDS, present=is_due),
        Part(b',"cat":"due","name":"', op, texts=_NAMES["op"], present=is_due),
        Part(b' due","args":{"lag_us":', start - due, digits=MICROSECONDS, present=is_due),
        Part(b"}}", present=is_due),
        Part(f',\n{{"ph":"X","pid":{rank},"tid":'.encode(), thread),
        Part(b',"ts":', start, digits=MICROSECONDS),
        Part(b',"dur":', end - start, digits=MICROSECONDS),
        Part(b',"cat":"io","name":"', op, texts=_NAMES["op"]),
        Part(b'","args":{"file":', file_id, texts=paths),
        Part(b',"length":', length),
        Part(b',"api":"', api, texts=_NAMES["api"]),
        Part(b'"'),
        Part(b',"new_name":', new_name, texts=paths, present=is_rename),
        Part(b',"offset":', offset, present=~is_rename & (offset >= 0)),
        Part(b',"step":', step, present=step != NO_STEP),
        Part(b',"origin":"', origin, texts=_NAMES["origin"], present=origin != TRACED),
        Part(b'"', present=origin != TRACED),
        *(
            Part(f',"{name}":'.encode(), values, texts=TRUTH if name == "follows_end" else None, present=known)
            for name in ("result", *DEPENDENCY_COLUMNS)
            for values, known in (known_numbers(rows, name),)
        ),
        Part(b',"due_us":', due, digits=MICROSECONDS, present=is_due),
        Part(b',"lag_us":', start - due, digits=MICROSECONDS, present=is_due),
        Part(b"}}"),
    ]


def _lane_threads(
    tracks: RankTracks, lane: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, is_due: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Thread ids (n,) of the lines of operations in start order, and of their due times: int64, 0 if none is due."""
    due_thread = np.zeros(len(lane), dtype=np.int64)
    order = stable_order(lane)
    lanes = {int(lane[rows[0]]): rows for rows in np.split(order, runs(lane[order])[1:])}
    keys = {number: (_LANES, number * 2, f"lane {number}") for number in lanes}
    first_due = {number: int(due[0]) for number, rows in lanes.items() if len(due := rows[is_due[rows]])}
    # an operation that overlaps none belongs on the first line; a lane's first one makes it, the last one leaves it
    asked = np.zeros(len(lane), dtype=bool)
    for number, rows in lanes.items():
        busy_until = np.maximum.accumulate(np.append(tracks.busy_until_ns(keys[number]), end_ns[rows]))
        is_apart = start_ns[rows] >= busy_until[:-1]
        asked[rows] = ~(is_apart & np.append(is_apart[1:], True))
        asked[rows[[0, -1]]] = True
    asked[list(first_due.values())] = True
    # in the order of their rows, because new lines are numbered as they come
    some = np.flatnonzero(asked)
    threads = []
    for row, number, begin, end in zip(
        *(column.tolist() for column in (some, lane[some], start_ns[some], end_ns[some])), strict=True
    ):
        threads.append(tracks.thread(keys[number], begin, end, preferred=number))
        if first_due.get(number) == row:
            due_thread[lanes[number]] = tracks.thread((_LANES, number * 2 + _DUE, f"lane {number} due"), begin, begin)
    thread = np.empty(len(lane), dtype=np.int64)
    for number, rows in lanes.items():
        thread[rows] = tracks.first_thread(keys[number])
    thread[some] = threads
    return thread, due_thread


def _cuts(capture: Capture, limit: int) -> list[int]:
    """Times at which the trace is cut; none for a capture whose events fit in one file."""
    span_starts = capture.spans["start_ns"].to_numpy()
    # an operation has one event, and one more if it has a due time
    least = capture.operation_count() + len(span_starts)
    if least + capture.operation_count() <= limit or (least <= limit and _count(capture) + len(span_starts) <= limit):
        return []

    def stream() -> Iterator[Weighted]:
        yield span_starts, np.ones(len(span_starts), dtype=np.int64)
        yield from _starts(capture)

    first, last = capture.time_span_ns
    return time_cuts(stream, first, last, limit)


def _starts(capture: Capture) -> Iterator[Weighted]:
    for batch in capture.operations(columns=["start_ns", "due_ns"]):
        yield batch.column("start_ns").to_numpy(), 1 + known_numbers(batch, "due_ns")[1]


def _count(capture: Capture) -> int:
    return sum(int(events.sum()) for _, events in _starts(capture))


def _part_names(output: Path, parts: int) -> list[Path]:
    if parts == 1:
        return [output]
    stem = output.name.removesuffix(SUFFIX)
    digits = len(str(parts))
    return [output.with_name(f"{stem}-{place:0{digits}d}of{parts}{SUFFIX}") for place in range(1, parts + 1)]


def _notes(parts: list[_Part], cuts: list[int], limit: int) -> tuple[str, ...]:
    if not cuts:
        return ()
    edges = ["the start", *(f"{decimal_text(cut, 9)} s" for cut in cuts), "the end"]
    return (
        f"more than {limit} events: split by time into {len(parts)} files, open one at a time",
        *(f"{part.path.name}: {left} to {right}" for part, left, right in zip(parts, edges, edges[1:], strict=False)),
    )
