"""The times of a generated run: the assumed device, drawn times, and the rules of the pace `steps`. Pure.

A *piece* is the work of one reader for one batch fetch without a wait in between. A batch fetch ends when its pieces
are done. A piece begins when its reader is free and the moment that it follows has passed. Ranks leave a meeting when
the last one has arrived. So all times follow from the durations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.units import NS_PER_S, NS_PER_US, parse_bytes, parse_duration_ns
from dxt_replay.workloads.description import Distribution, Workload
from dxt_replay.workloads.generate.plan import Between, Pass

if TYPE_CHECKING:
    from dxt_replay.workloads.generate.readers import Loaders

PIECE = np.dtype(
    [(name, np.int64) for name in ("row", "fetch", "turn", "lane", "follows", "busy_ns", "begin_ns")]
    + [("needed", np.bool_)]
)
"""A piece of some ranks and fetches: by fetch, then by `turn`, its place among the rank's pieces of the fetch.

row: index of the rank in the request. Fetches and moments are counted from the begin of a pass: moment 2 n is the begin
of fetch n, 2 n + 1 its end. follows: the earliest moment at which the piece can begin. busy_ns: time that its reader
works on it. needed: whether the fetch waits for it. begin_ns: when it begins, which the clock finds."""

OPERATION = np.dtype(
    [("op", np.int8), ("file_id", np.int32)]
    + [(name, np.int64) for name in ("piece", "offset", "length", "before_ns", "ready_ns")]
)
"""An operation of one rank, piece after piece. piece: its number in the request. before_ns: work of the reader since
the previous operation of the piece; ready_ns: its work after the last operation of the piece, 0 for others."""

FETCH_NS = COMPUTE_NS = MEETING_NS = 1
"""Shortest duration of a batch fetch, a computation and a meeting: spans of one kind must not touch."""

BLOCK_PIECES = 1 << 20
"""Pieces that are computed at a time."""

DEFAULT_DEVICE = "latency=100us,bandwidth=1GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedDevice:
    """The duration of each operation, independent of its lane and of other operations.

    latency_ns: of every operation. bytes_per_s: of a read or write, in addition; infinite for no limit."""

    latency_ns: int = 100 * NS_PER_US
    bytes_per_s: float = 1e9

    def durations_ns(self, op: np.ndarray, length: np.ndarray) -> np.ndarray:
        """int64 (n,): duration of each operation."""
        data = (op == READ) | (op == WRITE)
        moving = np.rint(np.where(data, length, 0) * (NS_PER_S / self.bytes_per_s))
        found: np.ndarray = moving.astype(np.int64) + self.latency_ns
        return found

    def __str__(self) -> str:
        bandwidth = "none" if math.isinf(self.bytes_per_s) else f"{self.bytes_per_s:.12g}B/s"
        return f"latency={self.latency_ns}ns,bandwidth={bandwidth}"


def parse_device(text: str) -> AssumedDevice:
    """Parse `null` (no operation takes time) or `latency=100us,bandwidth=1GB/s`; a missing value has its default.

    Raises: UsageError for anything else.
    """
    if text.strip() == "null":
        return AssumedDevice(latency_ns=0, bytes_per_s=math.inf)
    found = AssumedDevice()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name == "latency" and not value.startswith("-"):
            found = replace(found, latency_ns=parse_duration_ns(value, f"--device {text}: latency"))
        elif name == "bandwidth" and value == "none":
            found = replace(found, bytes_per_s=math.inf)
        elif name == "bandwidth" and value.endswith("/s"):
            bytes_per_s = float(parse_bytes(value.removesuffix("/s"), f"--device {text}: bandwidth"))
            found = replace(found, bytes_per_s=bytes_per_s)
        else:
            raise UsageError(
                f"--device {text}: {part!r} is not a property of a device; give null, or latency=..,bandwidth=.. as in "
                "latency=100us,bandwidth=1GB/s"
            )
    return found


_STEPS, _EVALUATION, _PREPROCESSING = range(3)


def draw_alike(workload: Workload) -> bool:
    """Whether all ranks draw the same times: DLIO draws from NumPy's process-wide generator (its `utility.py`, sleep),
    which a shuffle of samples seeds alike on all ranks; without one it is not seeded."""
    return workload.reader.sample_shuffle != "off"


def compute_times_ns(
    workload: Workload, rank: int, epoch: int, count: int, *, seed: int, evaluation: bool = False
) -> np.ndarray:
    """int64[count]: compute times of the steps of an epoch (counted from 1) on a rank, or of its evaluation: absolute
    values of draws, as DLIO sleeps for them. A longer draw begins with the same values."""
    times = workload.evaluation.eval_time if evaluation else workload.train.computation_time
    which, who = _EVALUATION if evaluation else _STEPS, 0 if draw_alike(workload) else rank
    return _nanoseconds(times, np.random.default_rng([seed, which, epoch, who]), count)


def preprocess_times_ns(workload: Workload, rank: int, reader: int, count: int, *, seed: int) -> np.ndarray:
    """int64[count]: preprocessing times of the samples that a reader of a rank fetches, in its order. PyTorch seeds
    NumPy in each worker from a constant, so readers of one number draw alike on all ranks."""
    who = 0 if workload.reader.data_loader == "pytorch" else 1 + rank
    return _nanoseconds(
        workload.reader.preprocess_time, np.random.default_rng([seed, _PREPROCESSING, reader, who]), count
    )


def _nanoseconds(times: Distribution, generator: np.random.Generator, count: int) -> np.ndarray:
    if times.family == "constant":
        seconds = np.full(count, times.parameters[0])
    else:
        draw: Callable[..., np.ndarray] = getattr(generator, times.family)
        seconds = draw(*times.parameters, count)
    drawn: np.ndarray = np.rint(np.minimum(np.abs(seconds) * 1e9, float(1 << 62))).astype(np.int64)
    return drawn


class Times(NamedTuple):
    """Times of a segment, int64 ns; n steps or fetches (1 for what is between passes), r ranks.

    moments: (5, n, r): begin of the fetch, its end, the end of the computation, of the barrier, and of the checkpoint
    after it. A part that a segment lacks lasts no time. pieces: PIECE, none without fetches.
    """

    segment: Pass | Between
    moments: np.ndarray
    pieces: np.ndarray


class RunClock:
    """Runs the ranks `ranks` through the plan of `loaders` from its beginning.

    meetings_ns: when all ranks of the run left each meeting, if that is known. Else these ranks stand for all, and
    `meetings_ns` is computed.
    """

    def __init__(self, loaders: Loaders, ranks: np.ndarray, *, meetings_ns: np.ndarray | None = None) -> None:
        self._ranks, self._loaders = ranks, loaders
        self._known = None if meetings_ns is None else iter(meetings_ns.tolist())
        self._now = np.zeros(len(ranks), dtype=np.int64)
        self._free = np.zeros((len(ranks), loaders.lane_count), dtype=np.int64)
        self.meetings_ns: list[int] = []

    def segments(self) -> Iterator[Times]:
        """The times of each segment in order."""
        for segment in self._loaders.plan.segments:
            _, moments, pieces = zip(*self._blocks(segment), strict=True)
            yield Times(segment, np.concatenate(moments, axis=1), np.concatenate(pieces))

    def run(self) -> int:
        """Run to the end without keeping the times; returns when the last rank ended."""
        for segment in self._loaders.plan.segments:
            for _ in self._blocks(segment):
                pass
        return int(self._now.max(initial=0))

    def _blocks(self, segment: Pass | Between) -> Iterator[Times]:
        if isinstance(segment, Pass):
            reads = self._loaders.of(segment)
            ring = np.zeros((2 * (min(reads.depth, segment.fetches) + 2), len(self._ranks)), dtype=np.int64)
            block = max(1, BLOCK_PIECES // (len(self._ranks) * reads.piece_count))
            for first in range(0, segment.fetches, block):
                last = min(first + block, segment.fetches)
                yield self._block(segment, reads.pieces(self._ranks, first, last), ring, first, last)
            return
        begin = self._now
        if segment.saved is not None and segment.step is None:
            computed = left = begin
        else:
            pause = self._loaders.pause_ns if segment.step is not None else 0
            computed = begin + max(pause, COMPUTE_NS)
            left = self._met(computed)
        saves = segment.saved is not None
        self._now = left + self._loaders.checkpoint_ns(self._ranks, loads=segment.loads) if saves else left
        moments = np.stack((begin, begin, computed, left, self._now))[:, np.newaxis]
        yield Times(segment, moments, np.empty(0, dtype=PIECE))

    def _met(self, arrived: np.ndarray) -> np.ndarray:
        """When each rank leaves the next meeting, for these arrival times."""
        left = next(self._known) if self._known is not None else int(arrived.max()) + MEETING_NS
        self.meetings_ns.append(left)
        return np.full(len(arrived), left, dtype=np.int64)

    def _block(self, segment: Pass, pieces: np.ndarray, ring: np.ndarray, first: int, last: int) -> Times:
        """The fetches [first, last). ring: the latest moments of the ranks, as far back as a piece can follow."""
        compute = np.zeros((last - first, len(self._ranks)), dtype=np.int64)
        steps = max(min(last, segment.steps) - first, 0)
        compute[:steps] = self._loaders.compute_ns(self._ranks, segment, first, first + steps)
        rounds, saves = _rounds(pieces, first, last), {step for step, _ in segment.saves}
        times = np.empty((5, last - first, len(self._ranks)), dtype=np.int64)
        for fetch in range(first, last):
            begin = self._now
            ring[2 * fetch % len(ring)] = begin
            fetched = begin + FETCH_NS
            for low, high in rounds[fetch - first]:  # at most one piece of each rank
                mine = pieces[low:high]
                row, lane = mine["row"], mine["lane"]
                began = np.maximum(self._free[row, lane], ring[mine["follows"] % len(ring), row])
                end = began + mine["busy_ns"]
                mine["begin_ns"] = began
                self._free[row, lane] = end
                fetched[row] = np.maximum(fetched[row], np.where(mine["needed"], end, 0))
            ring[(2 * fetch + 1) % len(ring)] = fetched
            computed = left = ended = fetched
            if fetch < segment.steps:
                computed = fetched + np.maximum(compute[fetch - first], COMPUTE_NS)
                left = ended = computed if segment.evaluation else self._met(computed)
                if fetch + 1 in saves:
                    ended = left + self._loaders.checkpoint_ns(self._ranks, loads=False)
            times[:, fetch - first] = (begin, fetched, computed, left, ended)
            self._now = ended
        return Times(segment, times, pieces)


def _rounds(pieces: np.ndarray, first: int, last: int) -> list[list[tuple[int, int]]]:
    """For each fetch, ranges of its pieces with at most one piece of each rank."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(last - first)]
    if len(pieces):
        keys = (pieces["fetch"] - first) * (int(pieces["turn"].max()) + 1) + pieces["turn"]
        begins = np.append(0, np.flatnonzero(np.diff(keys)) + 1).tolist()
        for low, high in zip(begins, [*begins[1:], len(keys)], strict=True):
            found[int(pieces["fetch"][low]) - first].append((low, high))
    return found
