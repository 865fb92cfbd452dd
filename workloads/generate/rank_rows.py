"""The rows of one rank of a generated run: its operations and spans, computed from the times of all events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import (
    APIS,
    DEPENDENCY_COLUMNS,
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
from dxt_replay.workloads.generate.read_ahead import PassReads
from dxt_replay.workloads.generate.run_clock import BEGIN, ENDED, LEFT, SegmentTimes
from dxt_replay.workloads.generate.run_plan import CheckpointStep, Pass, Save

BLOCK_OPERATIONS = 1 << 19
"""Operations that are computed at a time."""

_GENERATED = ORIGINS.index("generated")
_POSIX = APIS.index("POSIX")
_NONE = -1
_STEP, _COMPUTE, _WAIT, _CHECKPOINT, _COLLECTIVE = (
    SPAN_KINDS.index(name) for name in ("step", "compute", "input_wait", "checkpoint", "collective")
)
_Columns = dict[str, np.ndarray]


def timelines(times: Sequence[SegmentTimes], ranks: int) -> Iterator[list[SegmentTimes]]:
    """The segments' times of each of `ranks` ranks in order."""
    by_rank = [np.argsort(each.pieces.row, kind="stable") for each in times]
    rows = np.arange(ranks + 1)
    begins = [np.searchsorted(each.pieces.row[order], rows) for each, order in zip(times, by_rank, strict=True)]
    for row in range(ranks):
        yield [
            each.of_rank(row, order[begin[row] : begin[row + 1]])
            for each, order, begin in zip(times, by_rank, begins, strict=True)
        ]


class RankRows:
    """The rows of one rank."""

    def __init__(self, loaders: Loaders, rank: int, timeline: Sequence[SegmentTimes]) -> None:
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
                made = {name: np.concatenate((kept[name], made[name])) for name in made}
            order = np.argsort(made["start_ns"], kind="stable")
            made = {name: values[order] for name, values in made.items()}
            ready = len(order)
            if number + 1 < len(blocks):
                ready = int(np.searchsorted(made["start_ns"], later[number + 1], side="left"))
            kept = {name: values[ready:] for name, values in made.items()}
            if ready:
                yield self._table({name: values[:ready] for name, values in made.items()})

    def _table(self, columns: _Columns) -> pa.Table:
        nullable = {name: np.ma.masked_less(columns[name], 0) for name in DEPENDENCY_COLUMNS}
        return table_from_columns(
            {**columns, **nullable, "rank": np.int32(self._rank), "origin": np.full(len(columns["op"]), _GENERATED)},
            OPS_SCHEMA,
        )

    def _blocks(self) -> Iterator[tuple[int, Callable[[], _Columns]]]:
        """The first start of each block of operations, and the function that makes it."""
        for each in self._timeline:
            segment = each.segment
            if isinstance(segment, Pass):
                reads = self._loaders.of(segment)
                block = max(1, BLOCK_OPERATIONS // reads.fetch_operations)
                for first in range(0, segment.fetches, block):
                    last = min(first + block, segment.fetches)
                    low, high = np.searchsorted(each.pieces.fetch, (first, last)).tolist()
                    if high > low:
                        made = partial(self._read, segment, reads, each, (first, last), slice(low, high))
                        yield int(each.starts[low:high].min()), made
                for step, number in segment.saves:
                    yield from self._saved(int(each.moments[LEFT][step - 1]), number, loads=False)
            elif isinstance(segment, (Save, CheckpointStep)):
                loads = isinstance(segment, CheckpointStep) and segment.loads
                yield from self._saved(int(each.moments[LEFT][0]), segment.number, loads=loads)

    def _read(
        self, segment: Pass, reads: PassReads, times: SegmentTimes, fetches: tuple[int, int], pieces: slice
    ) -> _Columns:
        """The operations of the readers for the given pieces of some fetches of a pass."""
        found = reads.operations(self._rank, *fetches)
        duration = self._loaders.device.durations_ns(found.op, found.length)
        busy = np.concatenate(([0], np.cumsum(found.before_ns + duration)))
        first_of_piece = np.searchsorted(found.piece, found.piece, side="left")
        start = times.starts[pieces][found.piece] + busy[1:] - duration - busy[first_of_piece]
        piece = times.pieces.at(pieces).at(found.piece)
        return {
            "lane": piece.lane,
            "op": found.op,
            "api": np.full(len(start), _POSIX, dtype=np.int8),
            "file_id": found.file_id,
            "offset": found.offset,
            "length": found.length,
            "start_ns": start,
            "end_ns": start + duration,
            "step": self._step_at(start),
            "feeds": np.where(piece.needed, segment.first_fetch + piece.fetch, _NONE),
            "follows": segment.first_fetch + piece.follows // 2,
            "follows_end": piece.follows % 2,
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
            "follows_end": none,
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
        kinds, names, starts, ends, steps = zip(*parts, strict=True)
        counts = [len(each) for each in starts]
        kind, name = np.repeat(np.array(kinds, dtype=np.int8), counts), np.repeat(np.arange(len(names)), counts)
        start, end, step = (np.concatenate(columns) for columns in (starts, ends, steps))
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


_Spans = tuple[int, str, np.ndarray, np.ndarray, np.ndarray]
"""Spans of one kind and name: starts, ends and steps."""


def _spans_of(times: SegmentTimes, wait: str) -> Iterator[_Spans]:
    """The spans of a segment, without those of zero length."""
    number, (begin, fetched, computed, left, ended) = _numbers(times), times.moments
    if isinstance(times.segment, Pass):
        yield _WAIT, wait, begin, fetched, number
    in_steps = number != NO_STEP
    for kind, name, start, end, chosen in (
        (_STEP, "step", begin, ended, in_steps),
        (_COMPUTE, "compute", fetched, computed, in_steps),
        (_COLLECTIVE, "barrier", computed, left, left > computed),
        (_CHECKPOINT, "checkpoint", left, ended, ended > left),
    ):
        yield kind, name, start[chosen], end[chosen], number[chosen]


def _numbers(times: SegmentTimes) -> np.ndarray:
    """Numbers of the steps; NO_STEP for spans outside of steps."""
    segment, count = times.segment, times.moments.shape[1]
    if isinstance(segment, CheckpointStep):
        return np.full(count, segment.step)
    if isinstance(segment, Pass):
        place = np.arange(count)
        return np.where(place < segment.steps, segment.first_step + place, NO_STEP)
    return np.full(count, NO_STEP)


def _steps(timeline: Sequence[SegmentTimes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin, end and number of all steps."""
    numbers = [_numbers(each) for each in timeline]
    chosen = [number != NO_STEP for number in numbers]
    begin = np.concatenate([each.moments[BEGIN][mine] for each, mine in zip(timeline, chosen, strict=True)])
    end = np.concatenate([each.moments[ENDED][mine] for each, mine in zip(timeline, chosen, strict=True)])
    return begin, end, np.concatenate([number[mine] for number, mine in zip(numbers, chosen, strict=True)])
