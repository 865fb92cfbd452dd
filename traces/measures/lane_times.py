"""When the operations of each lane start: the gaps between them, and start times of source and replay side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dxt_replay.traces.measures._passes import KeyTable, follow_lanes
from dxt_replay.traces.measures.byte_planes import from_step_planes, step_planes
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.stable_order import places_in_groups, stable_order
from dxt_replay.traces.sums import Sums

MAX_SAMPLES = 1 << 20
"""Start times kept of one capture: 8 MiB."""

_LANE_BITS = 32
"""A lane's number is an int32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneStarts:
    """Start of every `stride`-th operation of each lane.

    rank, lane: (lanes,), in no order. operations: their number on each lane (lanes,).
    start_ns: starts of the samples, one lane after the other (samples,). All int64.
    """

    rank: np.ndarray
    lane: np.ndarray
    operations: np.ndarray
    stride: int
    start_ns: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[LaneStarts]) -> LaneStarts:
        """All lanes of at least one part; no two parts share a lane, and all have the same stride."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("rank", "lane", "operations", "start_ns")
        }
        return cls(stride=parts[0].stride, **columns)

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def samples(self) -> np.ndarray:
        """Number of samples of each lane (lanes,)."""
        counts: np.ndarray = -(-self.operations // self.stride)
        return counts

    def thinned(self, stride: int) -> LaneStarts:
        """The samples at a stride that is a multiple of this one."""
        if stride == self.stride:
            return self
        kept = places_in_groups(self.samples) % (stride // self.stride) == 0
        return replace(self, stride=stride, start_ns=self.start_ns[kept])

    def of_lanes(self, chosen: np.ndarray) -> np.ndarray:
        """The samples of some lanes, in the order of the indices `chosen`."""
        counts = self.samples
        first = np.cumsum(counts) - counts
        counts = counts[chosen]
        return self.start_ns[np.repeat(first[chosen], counts) + places_in_groups(counts)]


def _no_lanes(stride: int) -> LaneStarts:
    none = np.empty(0, dtype=np.int64)
    return LaneStarts(rank=none, lane=none, operations=none, stride=stride, start_ns=none)


class LaneTimeCollector(Sums):
    """Collects gaps between starts, and samples of the starts, from rows of one rank after another, or of several.

    Every operation is a sample while they fit; then every second, every fourth and so on, on all lanes alike. `stride`:
    the stride to begin with, at most the one needed in the end (`least_stride`); it saves memory meanwhile.
    """

    STAY = ("_open", "_open_samples", "_rank")

    def __init__(self, max_samples: int = MAX_SAMPLES, stride: int = 1) -> None:
        self._gaps = DistributionCollector()
        self._rank: int | None = None
        self._open = KeyTable(2)  # by lane of the current rank, as of `follow_lanes`
        self._open_samples: list[tuple[np.ndarray, np.ndarray]] = []  # lane and start, by start
        self._done: list[LaneStarts] = []
        self._stride = stride
        self._samples = self._lanes = 0
        self._max_samples = max_samples

    def add(self, rows: OperationRows) -> None:
        """Add rows in start order: more of the current rank, or all rows of several ranks."""
        if not len(rows):
            return
        if len(rows.ranks) or rows.rank != self._rank:
            self._end_rank()
        if len(rows.ranks):
            self._add_ranks(rows)
        else:
            self._rank = rows.rank
            self._continue(rows)
        self._thin_out()

    def _continue(self, rows: OperationRows) -> None:
        """Add rows of one rank, whose lanes may have earlier ones."""
        gaps, sampled = follow_lanes(self._open, rows.lane, rows.start_ns, self._stride)
        self._gaps.add(gaps)
        self._lanes += len(rows) - len(gaps)
        self._open_samples.append((rows.lane[sampled], rows.start_ns[sampled]))
        self._samples += len(sampled)

    def _add_ranks(self, rows: OperationRows) -> None:
        by_rank = rows.by_rank()
        place = by_rank.index
        by_lane = stable_order(rows.lane)
        order = by_lane[stable_order(place[by_lane])]
        place, lane, start = place[order], rows.lane[order], rows.start_ns[order]
        begins = np.concatenate(([True], (place[1:] != place[:-1]) | (lane[1:] != lane[:-1])))
        self._gaps.add((start[1:] - start[:-1])[~begins[1:]])
        first = np.flatnonzero(begins)
        found = LaneStarts(
            rank=by_rank.ranks[place[first]].astype(np.int64),
            lane=lane[first].astype(np.int64),
            operations=np.diff(first, append=len(start)),
            stride=1,
            start_ns=start,
        ).thinned(self._stride)
        self._done.append(found)
        self._lanes += len(found)
        self._samples += len(found.start_ns)

    def merge(self, later: LaneTimeCollector) -> None:
        """As `Sums.merge`; the stride becomes the wider of both."""
        self._gaps.merge(later._gaps)
        self._end_rank()
        later._end_rank()
        self._done += later._done
        self._lanes += later._lanes
        self._set_stride(max(self._stride, later._stride))
        self._thin_out()

    def __getstate__(self) -> dict[str, Any]:
        found = self.starts()
        sent = replace(found, start_ns=step_planes(found.start_ns))
        return super().__getstate__() | {"_done": [sent]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent = state["_done"][0]
        super().__setstate__(state | {"_done": [replace(sent, start_ns=from_step_planes(sent.start_ns))]})
        self._rank, self._open, self._open_samples = None, KeyTable(2), []

    def _end_rank(self) -> None:
        """Close the current rank."""
        if self._open_samples:
            self._done.append(self._open_lanes())
        self._rank, self._open, self._open_samples = None, KeyTable(2), []

    def _open_lanes(self) -> LaneStarts:
        """The lanes of the current rank."""
        lanes, counts = self._open.sorted()
        of_sample, start_ns = (np.concatenate(column) for column in zip(*self._open_samples, strict=True))
        return LaneStarts(
            rank=np.full(len(lanes), self._rank, dtype=np.int64),
            lane=lanes,
            operations=counts[:, 0],
            stride=self._stride,
            start_ns=start_ns[stable_order(of_sample)],
        )

    def _thin_out(self) -> None:
        while self._samples > self._max_samples and self._samples > self._lanes:
            self._set_stride(2 * self._stride)

    def _set_stride(self, stride: int) -> None:
        if self._open_samples:
            thin = self._open_lanes().thinned(stride)
            self._open_samples = [(np.repeat(thin.lane, thin.samples), thin.start_ns)]
        self._done = [lanes.thinned(stride) for lanes in self._done]
        self._stride = stride
        self._samples = sum(len(starts) for _, starts in self._open_samples)
        self._samples += sum(len(lanes.start_ns) for lanes in self._done)

    def gaps_ns(self) -> Distribution:
        """Times from one start to the next on the same lane."""
        return self._gaps.distribution()

    def starts(self) -> LaneStarts:
        """The sampled starts; call it after the last rank."""
        self._end_rank()
        return LaneStarts.joined([_no_lanes(self._stride), *self._done])


def least_stride(operations: int, most_lanes: int, max_samples: int = MAX_SAMPLES) -> int:
    """The smallest stride that `operations` can need, on at most `most_lanes` lanes."""
    stride = 1
    while operations > stride * max(max_samples, most_lanes):
        stride *= 2
    return stride


def matched_starts(source: LaneStarts, replay: LaneStarts) -> tuple[np.ndarray, np.ndarray]:
    """Start times (ns) of the same operations in source and replay: the k-th of a lane matches the k-th.

    Lanes with different numbers of operations are left out: their k-th operations are not the same.
    """
    stride = max(source.stride, replay.stride)
    sides = [lanes.thinned(stride) for lanes in (source, replay)]
    recorded, replayed = (_lane_keys(lanes) for lanes in sides)
    _, here, there = np.intersect1d(recorded, replayed, assume_unique=True, return_indices=True)
    same = sides[0].operations[here] == sides[1].operations[there]
    return sides[0].of_lanes(here[same]), sides[1].of_lanes(there[same])


def _lane_keys(lanes: LaneStarts) -> np.ndarray:
    keys: np.ndarray = (lanes.rank << _LANE_BITS) | lanes.lane
    return keys
