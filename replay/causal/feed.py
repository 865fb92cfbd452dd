"""Which reads are the training loop's, and how many of their bytes a take consumes: the feed rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from replay.causal.training_loop import TrainingLoop
from replay.plan.plan_row import OperationBatch
from traces.schema import READ

NO_POINT = -1
"""Of the training thread (`replay.causal.training_loop`): none."""


Batches = Callable[[], Iterable[OperationBatch]]
"""A rank's operations from the first to the last; each call reads them again."""


def containing(loop: TrainingLoop, points: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The one of `points` within which each time lies (its end counts), NO_POINT for none."""
    if not len(points):
        return np.full(len(times), NO_POINT, dtype=np.int64)
    found = np.searchsorted(loop.begin_ns[points], times, side="right") - 1
    inside = (found >= 0) & (times <= loop.end_ns[points[found]])
    return np.where(inside, points[found], NO_POINT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopReads:
    """The loop's reads: of which files (bool by file id) and lanes; how many, also inside of an input wait; bytes."""

    loop_files: np.ndarray
    reads: int
    inside: int
    bytes: int
    lanes: tuple[int, ...]


def with_evaluations(loop: TrainingLoop, batches: Batches, files: int) -> tuple[TrainingLoop, np.ndarray]:
    """The loop with its evaluations, and which files are read in them alone (bool by file id)."""
    pauses = loop.pauses
    evaluated = np.zeros(files, dtype=bool)
    if not len(pauses):
        return loop, evaluated
    elsewhere = np.zeros(files, dtype=bool)
    last_end: dict[tuple[int, int], int] = {}
    for batch in batches():
        read = (batch.op == READ) & (batch.start_ns >= loop.entry_ns) & (batch.start_ns < loop.exit_ns)
        start, end, file_id = batch.start_ns[read], batch.end_ns[read], batch.file_id[read]
        pause = np.searchsorted(pauses.starts, start, side="right") - 1
        inside = (pause >= 0) & (end <= pauses.ends[pause])
        elsewhere[file_id[~inside]] = True
        pairs, place = np.unique(pause[inside] * files + file_id[inside], return_inverse=True)
        last = np.full(len(pairs), np.iinfo(np.int64).min)
        np.maximum.at(last, place, end[inside])
        for pair, at in zip(pairs.tolist(), last.tolist(), strict=True):
            last_end[divmod(pair, files)] = max(at, last_end.get(divmod(pair, files), at))
    middle = (pauses.starts + pauses.ends) // 2
    kept = np.zeros(len(pauses), dtype=bool)
    for (pause, file_id), end in last_end.items():
        kept[pause] |= not elsewhere[file_id] and end > middle[pause]
    for pause, file_id in last_end:
        evaluated[file_id] |= kept[pause] and not elsewhere[file_id]
    return loop.with_evaluations(pauses.starts[kept], pauses.ends[kept]), evaluated


def look(loop: TrainingLoop, batches: Batches, evaluated: np.ndarray) -> LoopReads:
    """Which files the loop reads, in which lanes (by their first read), how many reads lie inside of an input wait."""
    loop_files = np.zeros(len(evaluated), dtype=bool)
    lanes: dict[int, None] = {}
    reads = inside = moved = 0
    for batch in batches():
        chosen = (batch.op == READ) & (batch.start_ns >= loop.entry_ns) & (batch.start_ns < loop.exit_ns)
        chosen &= (containing(loop, loop.checkpoints, batch.start_ns) == NO_POINT) & ~evaluated[batch.file_id]
        loop_files[batch.file_id[chosen]] = True
        lanes.update(dict.fromkeys(batch.lane[chosen].tolist()))
        point = containing(loop, loop.takes, batch.start_ns[chosen])
        within = point != NO_POINT
        within[within] &= batch.end_ns[chosen][within] <= loop.end_ns[point[within]]
        reads += int(chosen.sum())
        inside += int(within.sum())
        moved += int(batch.length[chosen].sum())
    return LoopReads(loop_files=loop_files, reads=reads, inside=inside, bytes=moved, lanes=tuple(lanes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """`step_bytes`, `takes_before`, `loop_bytes` and `outside_bytes` of the model."""

    step_bytes: float = 0.0
    takes_before: float = 0.0
    loop_bytes: int
    outside_bytes: int = 0


def turns_of(loop: TrainingLoop, batches: Batches, loop_reads: LoopReads, feed: Feed) -> tuple[int, ...]:
    """The reader lanes in the order of their turns, if no read then ended after the take that it would have fed."""
    # Where batches are missing at the beginning, nobody knows how much of its own each lane had read.
    if len(loop_reads.lanes) < 2 or feed.takes_before < 0:
        return ()
    takes, before = loop.take_ends_ns, dict.fromkeys(loop_reads.lanes, 0)
    for batch in batches():
        reads = (batch.op == READ) & loop_reads.loop_files[batch.file_id]
        for turn, lane in enumerate(loop_reads.lanes):
            mine = reads & (batch.lane == lane)
            moved = batch.length[mine]
            fed = np.floor((before[lane] + np.cumsum(moved) - moved) / feed.step_bytes).astype(np.int64)
            fed = fed * len(loop_reads.lanes) + turn - round(feed.takes_before)
            before[lane] += int(moved.sum())
            in_loop = (fed >= 0) & (fed < len(takes))
            if (batch.end_ns[mine][in_loop] > takes[fed[in_loop]]).any():
                return ()
    return loop_reads.lanes


def feed_of(loop: TrainingLoop, batches: Batches, loop_files: np.ndarray) -> Feed:
    """Bytes that one take consumes: the largest for which every take had its bytes; and all bytes of the loop's files.

    Where that leaves more than half of the bytes until the loop's end unused (a first batch that did not wait for its
    bytes, a pipeline that ends far ahead of the loop), the mean over the takes.
    """
    takes = loop.take_ends_ns
    ended = np.zeros(len(takes) + 1, dtype=np.int64)
    early = late = 0
    for batch in batches():
        chosen = (batch.op == READ) & loop_files[batch.file_id]
        end, length = batch.end_ns[chosen], batch.length[chosen]
        by_take = np.searchsorted(takes, end, side="left")
        np.add.at(ended, by_take, length)
        early += int(length[end <= loop.entry_ns].sum())
        late += int(length[batch.start_ns[chosen] >= loop.exit_ns].sum())
    total = int(ended.sum())
    if not total or not len(takes):
        return Feed(loop_bytes=total)
    had = np.cumsum(ended)[:-1]
    number = np.arange(1, len(takes) + 1)
    largest, mean = float((had / number).min()), (total - late) / len(takes)
    step_bytes, takes_before = (largest if largest >= 0.5 * mean else mean), 0.0
    later = _later_feed(loop, had)
    if later is not None:
        step_bytes, takes_before = later
    consumed = min(early, round(step_bytes * max(takes_before, 0.0)))
    return Feed(step_bytes=step_bytes, takes_before=takes_before, loop_bytes=total, outside_bytes=consumed + late)


def _later_feed(loop: TrainingLoop, had: np.ndarray) -> tuple[float, float] | None:
    """Step bytes and the takes before the first, where the profile's first step is not the run's; else None.

    `had` (takes,): bytes that had been read when each take ended. By the steps' numbers there were so many takes
    before; they hold if the profiled takes consume about what they then did. Where reads are missing instead, as of a
    part of a capture, the buffer held some batches at its begin: as few as every take had its bytes with.
    """
    steps_before = int(loop.step_number[0])
    if steps_before <= 1 or len(had) < 2:  # many count from 1
        return None
    takes_before = round(steps_before * len(had) / len(loop.step_number))
    number = np.arange(1, len(had) + 1)
    largest, read_meanwhile = float((had / (takes_before + number)).min()), int(had[-1] - had[0])
    if largest * (len(had) - 1) >= 0.5 * read_meanwhile and largest > 0:
        return largest, float(takes_before)
    slope = read_meanwhile / (len(had) - 1)
    missing = float((had / slope - number).min()) if slope else 0.0
    return (slope, missing) if missing < 0 else None
