"""The rows of one rank of a generated run: its operations and spans, computed from the times of all events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.traces.row_order import step_at
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
from dxt_replay.workloads.generate.checkpoints import FileOperations
from dxt_replay.workloads.generate.clock import Times
from dxt_replay.workloads.generate.plan import Pass
from dxt_replay.workloads.generate.readers import Loaders

BLOCK_OPERATIONS = 1 << 19
"""Operations that are computed at a time."""

_NONE = -1
_Columns = dict[str, np.ndarray]


class RankRows:
    """The rows of one rank. timeline: the times of its segments, moments (5, n), with its own pieces alone."""

    def __init__(self, loaders: Loaders, rank: int, timeline: Sequence[Times]) -> None:
        self._loaders, self._rank, self._timeline = loaders, rank, timeline
        self._numbers = [_numbers(each) for each in timeline]
        steps = [number != NO_STEP for number in self._numbers]
        self._steps = [
            np.concatenate([each.moments[row][mine] for each, mine in zip(timeline, steps, strict=True)])
            for row in (0, 4)
        ]
        self._steps.append(np.concatenate([each[mine] for each, mine in zip(self._numbers, steps, strict=True)]))

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
        generated = np.full(len(columns["op"]), ORIGINS.index("generated"))
        step = step_at(columns["start_ns"], *self._steps)
        every = {**columns, **nullable, "rank": np.int32(self._rank), "origin": generated, "step": step}
        return table_from_columns(every, OPS_SCHEMA)

    def _blocks(self) -> Iterator[tuple[int, Callable[[], _Columns]]]:
        """The first start of each block of operations, and the function that makes it."""
        for times in self._timeline:
            segment, left = times.segment, times.moments[3]
            if not isinstance(segment, Pass):
                if segment.saved is not None:
                    yield from self._saved(int(left[0]), segment.saved, loads=segment.loads)
                continue
            block = max(1, BLOCK_OPERATIONS // self._loaders.of(segment).fetch_operations)
            for first in range(0, segment.fetches, block):
                last = min(first + block, segment.fetches)
                low, high = np.searchsorted(times.pieces["fetch"], (first, last)).tolist()
                if high > low:
                    pieces = times.pieces[low:high]
                    yield int(pieces["begin_ns"].min()), partial(self._read, segment, pieces, first, last)
            for step, number in segment.saves:
                yield from self._saved(int(left[step - 1]), number, loads=False)

    def _read(self, segment: Pass, pieces: np.ndarray, first: int, last: int) -> _Columns:
        """The operations of the readers for the pieces of some fetches of a pass."""
        found = self._loaders.of(segment).operations(self._rank, first, last)
        piece = pieces[found["piece"]]
        duration = self._loaders.device.durations_ns(found["op"], found["length"])
        busy = np.concatenate(([0], np.cumsum(found["before_ns"] + duration)))
        first_of_piece = np.searchsorted(found["piece"], found["piece"], side="left")
        start = piece["begin_ns"] + busy[1:] - duration - busy[first_of_piece]
        return {
            **{name: found[name] for name in ("op", "file_id", "offset", "length")},
            "lane": piece["lane"],
            "api": np.full(len(start), APIS.index("POSIX"), dtype=np.int8),
            "start_ns": start,
            "end_ns": start + duration,
            "feeds": np.where(piece["needed"], segment.first_fetch + piece["fetch"], _NONE),
            "follows": segment.first_fetch + piece["follows"] // 2,
            "follows_end": piece["follows"] % 2,
            "ready_ns": np.where(found["ready_ns"] > 0, found["ready_ns"], _NONE),
        }

    def _saved(self, begin: int, number: int, *, loads: bool) -> Iterator[tuple[int, Callable[[], _Columns]]]:
        operations = self._loaders.files.checkpoint_operations(self._rank, loads=loads)
        if operations:
            yield begin, partial(self._checkpoint, begin, number, operations)

    def _checkpoint(self, begin: int, number: int, operations: Sequence[FileOperations]) -> _Columns:
        """The operations of a checkpoint that begins at `begin`: on the lane of the training thread, those of a load on
        a lane behind the readers' for each of its threads."""
        rows, counts = np.concatenate([each.rows for each in operations]), [len(each.rows) for each in operations]
        duration = self._loaders.device.durations_ns(rows["op"], rows["length"])
        end, lanes = np.zeros(len(rows), dtype=np.int64), self._loaders.lane_count - 1
        for thread in np.unique(rows["thread"]).tolist():
            mine = rows["thread"] == thread
            end[mine] = begin + np.cumsum(duration[mine])
        return {
            **{name: rows[name] for name in ("op", "offset", "length")},
            "lane": np.where(rows["thread"] > 0, lanes + rows["thread"], 0),
            "api": np.repeat([each.api for each in operations], counts).astype(np.int8),
            "file_id": np.repeat(self._loaders.files.saved_ids(self._rank, number, operations), counts),
            "start_ns": end - duration,
            "end_ns": end,
            **dict.fromkeys(("feeds", "follows", "follows_end", "ready_ns"), np.full(len(rows), _NONE, dtype=np.int64)),
        }

    def spans(self) -> pa.Table:
        """What the training thread did (`SPANS_SCHEMA`), by start; without spans of zero length beside the steps."""
        wait = "input_wait" if self._loaders.lanes else READING_WAITS[0]
        names, parts = ("step", "compute", "barrier", "checkpoint", wait), []
        for times, number in zip(self._timeline, self._numbers, strict=True):
            begin, fetched, computed, left, ended = times.moments
            in_steps = number != NO_STEP
            kinds = [
                (0, begin, ended, in_steps),
                (1, fetched, computed, in_steps),
                (2, computed, left, left > computed),
                (3, left, ended, ended > left),
            ]
            if isinstance(times.segment, Pass):
                kinds.insert(0, (4, begin, fetched, np.ones(len(number), dtype=bool)))
            for place, start, end, mine in kinds:
                parts.append(np.stack((np.full(mine.sum(), place), start[mine], end[mine], number[mine])))
        name, start, end, step = np.concatenate(parts, axis=1)
        order = np.lexsort((-end, start))
        codes = [SPAN_KINDS.index(each) for each in ("step", "compute", "collective", "checkpoint", "input_wait")]
        columns = {
            "rank": np.full(len(order), self._rank, dtype=np.int32),
            "thread": np.where(name[order] == names.index("compute"), UNION_THREAD, 0).astype(np.int64),
            "kind": np.array(codes, dtype=np.int8)[name[order]],
            "name": pa.DictionaryArray.from_arrays(pa.array(name[order]), pa.array(names)).cast(pa.string()),
            "step": step[order].astype(np.int32),
            "start_ns": start[order],
            "end_ns": end[order],
        }
        return table_from_columns(columns, SPANS_SCHEMA)


def _numbers(times: Times) -> np.ndarray:
    """Numbers of the steps; NO_STEP for spans outside of steps."""
    segment, place = times.segment, np.arange(times.moments.shape[1])
    if isinstance(segment, Pass):
        return np.where(place < segment.steps, segment.first_step + place, NO_STEP)
    return np.full(len(place), NO_STEP if segment.step is None else segment.step)
