"""The rows of one rank of a generated run: its operations and spans, from when everything happens. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import (
    APIS,
    NO_STEP,
    OPS_SCHEMA,
    ORIGINS,
    READING_WAITS,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    table_from_columns,
)
from dxt_replay.traces.steps import step_at
from dxt_replay.workloads.generate.checkpoint_files import FileOperations
from dxt_replay.workloads.generate.loaders import Loaders
from dxt_replay.workloads.generate.read_ahead import PassReads, Pieces
from dxt_replay.workloads.generate.run_clock import SegmentTimes
from dxt_replay.workloads.generate.run_plan import CheckpointStep, Pass, Save, Segment

BLOCK_OPERATIONS = 1 << 19
"""Operations that are worked out at a time."""

_GENERATED = ORIGINS.index("generated")
_POSIX = APIS.index("POSIX")
_NONE = -1
_STEP, _COMPUTE, _WAIT, _CHECKPOINT, _COLLECTIVE = (
    SPAN_KINDS.index(name) for name in ("step", "compute", "input_wait", "checkpoint", "collective")
)
_COLUMNS = (
    "lane",
    "op",
    "api",
    "file_id",
    "offset",
    "length",
    "start_ns",
    "end_ns",
    "step",
    "feeds",
    "follows",
    "ready_ns",
)


_Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTimeline:
    """When the parts of a segment happened on one rank: `SegmentTimes` of that rank alone, its columns (n,)."""

    segment: Segment
    begin: np.ndarray
    fetched: np.ndarray
    computed: np.ndarray
    left: np.ndarray
    ended: np.ndarray
    piece_fetch: np.ndarray
    piece_lane: np.ndarray
    piece_follows: np.ndarray
    piece_needed: np.ndarray
    starts: np.ndarray


def timelines(segments: Sequence[Segment], times: Sequence[SegmentTimes], ranks: int) -> Iterator[list[RankTimeline]]:
    """The timelines of each of `ranks` ranks in order."""
    orders = [None if each.pieces is None else _by_rank(each.pieces, ranks) for each in times]
    for row in range(ranks):
        yield [
            _timeline(segment, each, order, row) for segment, each, order in zip(segments, times, orders, strict=True)
        ]


def _by_rank(pieces: Pieces, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Order of the pieces by rank, and where each rank begins in it."""
    order = np.argsort(pieces.row, kind="stable")
    return order, np.searchsorted(pieces.row[order], np.arange(ranks + 1))


def _timeline(
    segment: Segment, times: SegmentTimes, order: tuple[np.ndarray, np.ndarray] | None, row: int
) -> RankTimeline:
    mine = np.empty(0, dtype=np.int64)
    if order is not None:
        mine = order[0][order[1][row] : order[1][row + 1]]
    pieces = times.pieces
    nothing = np.empty(0, dtype=np.int64)
    return RankTimeline(
        segment=segment,
        begin=times.begin[:, row],
        fetched=times.fetched[:, row],
        computed=times.computed[:, row],
        left=times.left[:, row],
        ended=times.ended[:, row],
        piece_fetch=nothing if pieces is None else pieces.fetch[mine],
        piece_lane=nothing if pieces is None else pieces.lane[mine],
        piece_follows=nothing if pieces is None else pieces.follows[mine],
        piece_needed=nothing if pieces is None else pieces.needed[mine],
        starts=times.starts[mine],
    )


class RankRows:
    """The rows of one rank."""

    def __init__(self, loaders: Loaders, rank: int, timeline: Sequence[RankTimeline]) -> None:
        self._loaders, self._rank, self._timeline = loaders, rank, timeline
        self._step_begin, self._step_end, self._step_number = _steps(timeline)

    def operations(self) -> Iterator[pa.Table]:
        """The operations (`OPS_SCHEMA`) in start order, a block at a time."""
        blocks = list(self._blocks())
        later = np.minimum.accumulate([begin for begin, _ in reversed(blocks)] or [0])[::-1]
        kept: _Columns | None = None
        for number, (_, make) in enumerate(blocks):
            made = make()
            if kept is not None:
                made = {name: np.concatenate((kept[name], made[name])) for name in _COLUMNS}
            order = np.argsort(made["start_ns"], kind="stable")
            made = {name: values[order] for name, values in made.items()}
            ready = len(order)
            if number + 1 < len(blocks):
                ready = int(np.searchsorted(made["start_ns"], later[number + 1], side="left"))
            kept = {name: values[ready:] for name, values in made.items()}
            if ready:
                yield self._table({name: values[:ready] for name, values in made.items()})

    def _table(self, columns: _Columns) -> pa.Table:
        nullable = {name: np.ma.masked_less(columns[name], 0) for name in ("feeds", "follows", "ready_ns")}
        return table_from_columns(
            {**columns, **nullable, "rank": np.int32(self._rank), "origin": np.full(len(columns["op"]), _GENERATED)},
            OPS_SCHEMA,
        )

    def _blocks(self) -> Iterator[tuple[int, Callable[[], _Columns]]]:
        """The first start of each block of operations, and what makes it."""
        for each in self._timeline:
            segment = each.segment
            if isinstance(segment, Pass):
                reads = self._loaders.of(segment)
                block = max(1, BLOCK_OPERATIONS // reads.fetch_operations)
                for first in range(0, segment.fetches, block):
                    last = min(first + block, segment.fetches)
                    low, high = np.searchsorted(each.piece_fetch, (first, last)).tolist()
                    if high > low:
                        made = partial(self._read, segment, reads, each, (first, last), slice(low, high))
                        yield int(each.starts[low:high].min()), made
                for step, number in segment.saves:
                    yield from self._saved(int(each.left[step - 1]), number, loads=False)
            elif isinstance(segment, (Save, CheckpointStep)):
                loads = isinstance(segment, CheckpointStep) and segment.loads
                yield from self._saved(int(each.left[0]), segment.number, loads=loads)

    def _read(
        self, segment: Pass, reads: PassReads, times: RankTimeline, fetches: tuple[int, int], pieces: slice
    ) -> _Columns:
        """The operations of the readers for some fetches of a pass, which are these pieces of it."""
        found = reads.operations(self._rank, *fetches)
        duration = self._loaders.device.durations_ns(found.op, found.length)
        busy = np.concatenate(([0], np.cumsum(found.before_ns + duration)))
        first_of_piece = np.searchsorted(found.piece, found.piece, side="left")
        start = times.starts[pieces][found.piece] + busy[1:] - duration - busy[first_of_piece]
        needed = times.piece_needed[pieces][found.piece]
        return {
            "lane": times.piece_lane[pieces][found.piece],
            "op": found.op,
            "api": np.full(len(start), _POSIX, dtype=np.int8),
            "file_id": found.file_id,
            "offset": found.offset,
            "length": found.length,
            "start_ns": start,
            "end_ns": start + duration,
            "step": self._step_at(start),
            "feeds": np.where(needed, segment.first_fetch + times.piece_fetch[pieces][found.piece], _NONE),
            "follows": 2 * segment.first_fetch + times.piece_follows[pieces][found.piece],
            "ready_ns": np.where(found.ready_ns > 0, found.ready_ns, _NONE),
        }

    def _saved(self, begin: int, number: int, *, loads: bool) -> Iterator[tuple[int, Callable[[], _Columns]]]:
        operations = self._loaders.files.checkpoint_operations(self._rank, loads=loads)
        if operations:
            yield begin, partial(self._checkpoint, begin, number, operations)

    def _checkpoint(self, begin: int, number: int, operations: tuple[FileOperations, ...]) -> _Columns:
        """The operations of a checkpoint that begins at `begin`, on the lane of the training thread."""
        ids = self._loaders.files.saved_ids(self._rank, number, operations)
        op, api, offset, length = (
            np.concatenate([getattr(each, name) for each in operations]) for name in ("op", "api", "offset", "length")
        )
        duration = self._loaders.device.durations_ns(op, length)
        end = begin + np.cumsum(duration)
        none = np.full(len(op), _NONE, dtype=np.int64)
        return {
            "lane": np.zeros(len(op), dtype=np.int64),
            "op": op,
            "api": api,
            "file_id": np.repeat(ids, [len(each.op) for each in operations]),
            "offset": offset,
            "length": length,
            "start_ns": end - duration,
            "end_ns": end,
            "step": self._step_at(end - duration),
            "feeds": none,
            "follows": none,
            "ready_ns": none,
        }

    def _step_at(self, times: np.ndarray) -> np.ndarray:
        return step_at(times, self._step_begin, self._step_end, self._step_number)

    def spans(self) -> pa.Table:
        """What the training thread did (`SPANS_SCHEMA`), by start."""
        itself = self._loaders.fetches_itself
        parts = [
            part for each in self._timeline for part in _spans_of(each, READING_WAITS[0] if itself else "input_wait")
        ]
        kind = np.concatenate([np.full(len(part.start), part.kind, dtype=np.int8) for part in parts])
        names = [part.name for part in parts]
        name = np.repeat(np.arange(len(names)), [len(part.start) for part in parts])
        start, end, step = (
            np.concatenate([getattr(part, column) for part in parts]) for column in ("start", "end", "step")
        )
        order = np.lexsort((-end, start))
        columns = {
            "rank": np.full(len(order), self._rank, dtype=np.int32),
            "thread": np.where(kind[order] == _COMPUTE, UNION_THREAD, 0).astype(np.int64),
            "kind": kind[order],
            "name": pa.DictionaryArray.from_arrays(pa.array(name[order]), pa.array(names)).cast(pa.string()),
            "step": step[order].astype(np.int32),
            "start_ns": start[order],
            "end_ns": end[order],
        }
        return table_from_columns(columns, SPANS_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spans:
    """Spans of one kind and name; arrays (n,)."""

    kind: int
    name: str
    start: np.ndarray
    end: np.ndarray
    step: np.ndarray


def _spans_of(times: RankTimeline, wait: str) -> Iterator[_Spans]:
    """The spans of a segment; what lasts no time is none."""
    segment = times.segment
    number = _numbers(times)
    if isinstance(segment, Pass):
        yield _Spans(kind=_WAIT, name=wait, start=times.begin, end=times.fetched, step=number)
    in_steps = number != NO_STEP
    columns = (
        (_STEP, "step", times.begin, times.ended, in_steps),
        (_COMPUTE, "compute", times.fetched, times.computed, in_steps),
        (_COLLECTIVE, "barrier", times.computed, times.left, times.left > times.computed),
        (_CHECKPOINT, "checkpoint", times.left, times.ended, times.ended > times.left),
    )
    for kind, name, start, end, chosen in columns:
        yield _Spans(kind=kind, name=name, start=start[chosen], end=end[chosen], step=number[chosen])


def _numbers(times: RankTimeline) -> np.ndarray:
    """Numbers of the steps, NO_STEP for what belongs to none."""
    segment, count = times.segment, len(times.begin)
    if isinstance(segment, CheckpointStep):
        return np.full(count, segment.step)
    if isinstance(segment, Pass):
        place = np.arange(count)
        return np.where(place < segment.steps, segment.first_step + place, NO_STEP)
    return np.full(count, NO_STEP)


def _steps(timeline: Sequence[RankTimeline]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin, end and number of all steps."""
    numbers = [_numbers(each) for each in timeline]
    chosen = [number != NO_STEP for number in numbers]
    begin = np.concatenate([each.begin[mine] for each, mine in zip(timeline, chosen, strict=True)])
    end = np.concatenate([each.ended[mine] for each, mine in zip(timeline, chosen, strict=True)])
    return begin, end, np.concatenate([number[mine] for number, mine in zip(numbers, chosen, strict=True)])
