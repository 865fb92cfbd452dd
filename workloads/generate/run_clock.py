"""The times of all events in a generated run: the rules of the pace `steps`, for many ranks at once. Pure.

A batch fetch ends when its pieces are done. A piece begins when its reader is free and the moment that it follows has
passed. Ranks leave a meeting when the last one has arrived. So all times follow from the durations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.workloads.generate.read_ahead import NO_PIECES, PassReads, Pieces
from dxt_replay.workloads.generate.run_plan import CheckpointStep, Meeting, Pass, Save, Segment

if TYPE_CHECKING:
    from dxt_replay.workloads.generate.loaders import Loaders

FETCH_NS = COMPUTE_NS = MEETING_NS = 1
"""Shortest duration of a batch fetch, a computation and a meeting: spans of one kind must not touch."""

BEGIN, FETCHED, COMPUTED, LEFT, ENDED = range(5)
"""Rows of `SegmentTimes.moments`."""

BLOCK_PIECES = 1 << 20
"""Pieces that are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentTimes:
    """Times of the parts of a segment, int64 ns; n steps or fetches (1 for other segments), r ranks.

    moments: (5, n, r), by BEGIN, FETCHED, COMPUTED, LEFT and ENDED: begin of the fetch, its end, the end of the
    computation, of the barrier and of the checkpoint after it. A part that a segment lacks lasts no time.
    pieces: its pieces, and starts: int64 (p,), when each begins; both are empty without fetches.
    """

    segment: Segment
    moments: np.ndarray
    pieces: Pieces
    starts: np.ndarray

    def of_rank(self, row: int, pieces: np.ndarray) -> SegmentTimes:
        """The times of one rank alone, moments (5, n); `pieces`: the numbers of its pieces."""
        return SegmentTimes(
            segment=self.segment,
            moments=self.moments[:, :, row],
            pieces=self.pieces.at(pieces),
            starts=self.starts[pieces],
        )


class RunClock:
    """Runs the ranks `ranks` through the plan of `loaders` from its beginning.

    meetings_ns: when all ranks of the run left each meeting, if that is known. Else these ranks stand for all, and
    `meetings_ns` is computed.
    """

    def __init__(self, loaders: Loaders, ranks: np.ndarray, *, meetings_ns: np.ndarray | None = None) -> None:
        self._plan, self._ranks, self._loaders = loaders.files.plan, ranks, loaders
        self._known = None if meetings_ns is None else iter(meetings_ns.tolist())
        self._now = np.zeros(len(ranks), dtype=np.int64)
        self._free = np.zeros((len(ranks), loaders.lane_count), dtype=np.int64)
        self.meetings_ns: list[int] = []

    def segments(self) -> Iterator[SegmentTimes]:
        """The times of each segment in order."""
        for segment in self._plan.segments:
            parts = list(self._segment(segment))
            yield SegmentTimes(
                segment=segment,
                moments=np.concatenate([each.moments for each in parts], axis=1),
                pieces=Pieces.joined([each.pieces for each in parts]),
                starts=np.concatenate([each.starts for each in parts]),
            )

    def run(self) -> int:
        """Run to the end without keeping the times; returns when the last rank ended."""
        for segment in self._plan.segments:
            for _ in self._segment(segment):
                pass
        return int(self._now.max(initial=0))

    def _segment(self, segment: Segment) -> Iterator[SegmentTimes]:
        if isinstance(segment, Pass):
            yield from self._pass(segment)
            return
        begin = self._now
        fetched = computed = begin
        if isinstance(segment, CheckpointStep):
            computed = begin + max(self._loaders.pause_ns(), COMPUTE_NS)
        elif isinstance(segment, Meeting):
            computed = begin + COMPUTE_NS
        left = computed if isinstance(segment, Save) else self._met(computed)
        loads = isinstance(segment, CheckpointStep) and segment.loads
        saving = not isinstance(segment, Meeting)
        ended = left + self._loaders.checkpoint_ns(self._ranks, loads=loads) if saving else left
        self._now = ended
        moments = np.stack((begin, fetched, computed, left, ended))[:, np.newaxis]
        yield SegmentTimes(segment=segment, moments=moments, pieces=NO_PIECES, starts=np.empty(0, dtype=np.int64))

    def _met(self, arrived: np.ndarray) -> np.ndarray:
        """When each rank leaves the next meeting, for these arrival times."""
        left = next(self._known) if self._known is not None else int(arrived.max()) + MEETING_NS
        self.meetings_ns.append(left)
        return np.full(len(arrived), left, dtype=np.int64)

    def _pass(self, segment: Pass) -> Iterator[SegmentTimes]:
        reads = self._loaders.of(segment)
        depth = min(reads.depth, segment.fetches) + 2
        moments = np.zeros((2 * depth, len(self._ranks)), dtype=np.int64)
        block = max(1, BLOCK_PIECES // (len(self._ranks) * reads.piece_count))
        for first in range(0, segment.fetches, block):
            yield self._block(segment, reads, moments, first, min(first + block, segment.fetches))

    def _block(self, segment: Pass, reads: PassReads, moments: np.ndarray, first: int, last: int) -> SegmentTimes:
        pieces = reads.pieces(self._ranks, first, last)
        starts = np.empty(len(pieces.row), dtype=np.int64)
        compute = np.zeros((last - first, len(self._ranks)), dtype=np.int64)
        steps = max(min(last, segment.steps) - first, 0)
        compute[:steps] = self._loaders.compute_ns(self._ranks, segment, first, first + steps)
        rounds = _rounds(pieces, first, last)
        times = np.empty((5, last - first, len(self._ranks)), dtype=np.int64)
        saves = {step for step, _ in segment.saves}
        for fetch in range(first, last):
            begin = self._now
            moments[2 * fetch % len(moments)] = begin
            fetched = begin + FETCH_NS
            for low, high in rounds[fetch - first]:
                self._do(pieces, low, high, moments, starts, fetched)
            moments[(2 * fetch + 1) % len(moments)] = fetched
            computed = left = ended = fetched
            if fetch < segment.steps:
                computed = fetched + np.maximum(compute[fetch - first], COMPUTE_NS)
                left = computed if segment.evaluation else self._met(computed)
                ended = left
                if fetch + 1 in saves:
                    ended = left + self._loaders.checkpoint_ns(self._ranks, loads=False)
            times[:, fetch - first] = (begin, fetched, computed, left, ended)
            self._now = ended
        return SegmentTimes(segment=segment, moments=times, pieces=pieces, starts=starts)

    def _do(
        self, pieces: Pieces, low: int, high: int, moments: np.ndarray, starts: np.ndarray, fetched: np.ndarray
    ) -> None:
        """Run the pieces [low, high), at most one of each rank, and move the ends of their fetches (`fetched`)."""
        row, lane = pieces.row[low:high], pieces.lane[low:high]
        begin = np.maximum(self._free[row, lane], moments[pieces.follows[low:high] % len(moments), row])
        end = begin + pieces.busy_ns[low:high]
        starts[low:high] = begin
        self._free[row, lane] = end
        awaited = np.where(pieces.needed[low:high], end, 0)
        fetched[row] = np.maximum(fetched[row], awaited)


def _rounds(pieces: Pieces, first: int, last: int) -> list[list[tuple[int, int]]]:
    """For each fetch, ranges of its pieces with at most one piece of each rank."""
    keys = (pieces.fetch - first) * (int(pieces.turn.max(initial=0)) + 1) + pieces.turn
    borders = np.flatnonzero(np.diff(keys)) + 1
    begins = np.concatenate((np.zeros(min(1, len(keys)), dtype=np.int64), borders))
    ends = np.append(borders, len(keys))[: len(begins)]
    found: list[list[tuple[int, int]]] = [[] for _ in range(last - first)]
    of_fetch = (pieces.fetch[begins] - first).tolist()
    for fetch, low, high in zip(of_fetch, begins.tolist(), ends.tolist(), strict=True):
        found[fetch].append((low, high))
    return found
