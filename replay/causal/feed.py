"""The feed rule: finds the reads of the training loop and the bytes that one batch fetch consumes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.loop import Batches, TrainingLoop, containing
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.operations import OperationBatch
from dxt_replay.traces.schema import READ


@dataclass(slots=True, kw_only=True, eq=False)
class LoopReads:
    """The reads of the loop: the files that they read, bool by file id; their number, and the number of those inside an
    input wait; and the lanes that issue them, in the order of their first reads."""

    loop_files: np.ndarray
    reads: int = 0
    inside: int = 0
    bytes: int = 0
    lanes: tuple[int, ...] = ()

    def add(self, loop: TrainingLoop, batch: OperationBatch, chosen: np.ndarray) -> None:
        """Count the operations `chosen` (bool) of a batch."""
        self.loop_files[batch.file_id[chosen]] = True
        lanes = batch.lane[chosen]
        self.lanes += tuple(dict.fromkeys(lanes[~np.isin(lanes, self.lanes)].tolist()))
        event = containing(loop, loop.fetches, batch.start_ns[chosen])
        within = event != NO_EVENT
        within[within] &= batch.end_ns[chosen][within] <= loop.end_ns[event[within]]
        self.reads += int(chosen.sum())
        self.inside += int(within.sum())
        self.bytes += int(batch.length[chosen].sum())


def look(loop: TrainingLoop, batches: Batches, evaluated: np.ndarray) -> LoopReads:
    """Find the reads of the loop. `evaluated`: files of evaluations, which are not the loop's, bool by file id."""
    found = LoopReads(loop_files=np.zeros(len(evaluated), dtype=bool))
    for batch in batches():
        chosen = (batch.op == READ) & (batch.start_ns >= loop.entry_ns) & (batch.start_ns < loop.exit_ns)
        chosen &= (containing(loop, loop.checkpoints, batch.start_ns) == NO_EVENT) & ~evaluated[batch.file_id]
        found.add(loop, batch, chosen)
    return found


def with_evaluations(loop: TrainingLoop, batches: Batches, files: int) -> tuple[TrainingLoop, np.ndarray]:
    """The loop with its evaluations, and the files that only evaluations read (bool by file id)."""
    pauses = loop.pauses
    evaluated, elsewhere = np.zeros(files, dtype=bool), np.zeros(files, dtype=bool)
    if not len(pauses):
        return loop, evaluated
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


def with_own_reads(loop: TrainingLoop, batches: Batches, loop_reads: LoopReads) -> TrainingLoop:
    """Take the reads of the training thread for batch fetches, if the profile has no input waits.

    A lane is the training thread if it is the only lane that reads for the loop and also issues the operations of the
    checkpoints. Without such a lane the loop stays as it is.
    """
    if loop.input_waits or len(loop_reads.lanes) != 1:
        return loop
    first = np.full(len(loop.step_begin_ns), np.iinfo(np.int64).max)
    last = np.zeros(len(first), dtype=np.int64)
    in_checkpoints: set[int] = set()
    for batch in batches():
        checkpoint = containing(loop, loop.checkpoints, batch.start_ns) != NO_EVENT
        in_checkpoints.update(np.unique(batch.lane[checkpoint]).tolist())
        step = np.searchsorted(loop.step_begin_ns, batch.start_ns, side="right") - 1
        read = (batch.op == READ) & loop_reads.loop_files[batch.file_id] & ~checkpoint & (step >= 0)
        read[read] &= batch.end_ns[read] <= loop.step_end_ns[step[read]]
        np.minimum.at(first, step[read], batch.start_ns[read])
        np.maximum.at(last, step[read], batch.end_ns[read])
    return loop.with_fetches(first, last) if in_checkpoints == set(loop_reads.lanes) else loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How bytes feed batch fetches (`replay.causal.model`).

    step_bytes: what a fetch consumes, 0 if that is not known. fetches_before: the fetches before the first; negative:
    batches that are missing at the begin. outside_bytes: of `loop_bytes`, those for steps outside of the profile.
    """

    step_bytes: float = 0.0
    fetches_before: float = 0.0
    loop_bytes: int = 0
    outside_bytes: int = 0


def turns_of(loop: TrainingLoop, batches: Batches, loop_reads: LoopReads, feed: Feed) -> tuple[int, ...]:
    """The reader lanes in the order of their turns; empty if a read would then end after the fetch that it feeds."""
    # If batches are missing at the beginning, the number that each lane had read is unknown.
    if not feed.step_bytes or len(loop_reads.lanes) < 2 or feed.fetches_before < 0:
        return ()
    fetches, before = loop.fetch_ends_ns, dict.fromkeys(loop_reads.lanes, 0)
    for batch in batches():
        reads = (batch.op == READ) & loop_reads.loop_files[batch.file_id]
        for turn, lane in enumerate(loop_reads.lanes):
            mine = reads & (batch.lane == lane)
            moved = batch.length[mine]
            fed = np.floor((before[lane] + np.cumsum(moved) - moved) / feed.step_bytes).astype(np.int64)
            fed = fed * len(loop_reads.lanes) + turn - round(feed.fetches_before)
            before[lane] += int(moved.sum())
            in_loop = (fed >= 0) & (fed < len(fetches))
            if (batch.end_ns[mine][in_loop] > fetches[fed[in_loop]]).any():
                return ()
    return loop_reads.lanes


def feed_of(loop: TrainingLoop, batches: Batches, loop_files: np.ndarray) -> Feed:
    """The bytes that one batch fetch consumes: the largest number with which every fetch had its bytes in time.

    If this leaves more than half of the bytes up to the loop's end unused, it is the mean over the fetches. Examples:
    a first batch that did not wait for its bytes, a pipeline that ends far ahead of the loop.
    """
    # A fetch after the last step met the end of the data and takes no bytes.
    fetches = loop.fetch_ends_ns[loop.begin_ns[loop.fetches] < loop.step_end_ns[-1]]
    ended = np.zeros(len(fetches) + 1, dtype=np.int64)
    early = late = 0
    for batch in batches():
        chosen = (batch.op == READ) & loop_files[batch.file_id]
        end, length = batch.end_ns[chosen], batch.length[chosen]
        np.add.at(ended, np.searchsorted(fetches, end, side="left"), length)
        early += int(length[end <= loop.entry_ns].sum())
        late += int(length[batch.start_ns[chosen] >= loop.exit_ns].sum())
    total = int(ended.sum())
    if not total or not len(fetches):
        return Feed(loop_bytes=total)
    had = np.cumsum(ended)[:-1]
    largest, mean = float((had / np.arange(1, len(had) + 1)).min()), (total - late) / len(fetches)
    step_bytes, before = _later_feed(loop, had) or (largest if largest >= 0.5 * mean else mean, 0.0)
    consumed = min(early, round(step_bytes * max(before, 0.0)))
    return Feed(step_bytes=step_bytes, fetches_before=before, loop_bytes=total, outside_bytes=consumed + late)


def _later_feed(loop: TrainingLoop, had: np.ndarray) -> tuple[float, float] | None:
    """Step bytes and the number of fetches before the first, where the run had steps before the profile; else None.

    `had` (fetches,): bytes that had been read when each fetch ended. The number of the first step gives the number of
    earlier fetches, if the profiled fetches then consume about the bytes that were read meanwhile. Otherwise reads are
    missing, as in a part of a capture. Then the buffer held some batches at the beginning: as few as possible, so that
    every fetch has its bytes.
    """
    steps_before = int(loop.step_number[0])
    if steps_before <= 1 or len(had) < 2:  # many programs count steps from 1
        return None
    fetches_before = round(steps_before * len(had) / len(loop.step_number))
    number = np.arange(1, len(had) + 1)
    largest, read_meanwhile = float((had / (fetches_before + number)).min()), int(had[-1] - had[0])
    if largest * (len(had) - 1) >= 0.5 * read_meanwhile and largest > 0:
        return largest, float(fetches_before)
    slope = read_meanwhile / (len(had) - 1)
    missing = float((had / slope - number).min()) if slope else 0.0
    return (slope, missing) if missing < 0 else None
