"""When the operations of each lane start: the gaps between them, and start times of source and replay side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from traces.measures.distribution import Distribution, DistributionCollector
from traces.measures.operation_rows import OperationRows
from traces.measures.stable_order import runs, stable_order
from traces.sums import Sums

MAX_SAMPLES = 1 << 20
"""Start times kept of one capture: 8 MiB."""


@dataclass(slots=True)
class _Lane:
    operations: int = 0
    last_start_ns: int = 0
    samples: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneStarts:
    """Start of every `stride`-th operation of one lane (int64 ns), and how many operations it has."""

    operations: int
    stride: int
    start_ns: np.ndarray


class LaneTimeCollector(Sums):
    """Collects gaps between starts, and samples of the starts, from rows of one rank after another.

    Every operation is a sample while they fit; then every second, every fourth and so on, alike on all lanes.
    """

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._gaps = DistributionCollector()
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._stride = 1
        self._samples = 0
        self._max_samples = max_samples

    def add(self, rows: OperationRows) -> None:
        """Add rows in start order, which continue the rank's earlier ones."""
        for lane, start_ns in _by_lane(rows):
            known = self._lanes.setdefault((rows.rank, lane), _Lane())
            if known.operations:
                self._gaps.add(np.diff(start_ns, prepend=known.last_start_ns))
            else:
                self._gaps.add(np.diff(start_ns))
            # a copy: a view would hold all starts of the batch
            sampled = start_ns[-known.operations % self._stride :: self._stride].copy()
            known.samples.append(sampled)
            known.operations += len(start_ns)
            known.last_start_ns = int(start_ns[-1])
            self._samples += len(sampled)
        while self._samples > self._max_samples and self._samples > len(self._lanes):
            self._thin_out()

    def merge(self, later: LaneTimeCollector) -> None:
        """As `Sums.merge`; the stride becomes the wider of both."""
        self._gaps.merge(later._gaps)
        while self._stride < later._stride:
            self._thin_out()
        while later._stride < self._stride:
            later._thin_out()
        self._lanes |= later._lanes
        self._samples += later._samples
        while self._samples > self._max_samples and self._samples > len(self._lanes):
            self._thin_out()

    def _thin_out(self) -> None:
        self._stride *= 2
        for lane in self._lanes.values():
            lane.samples = [np.concatenate(lane.samples)[::2].copy()]
        self._samples = sum(len(lane.samples[0]) for lane in self._lanes.values())

    def gaps_ns(self) -> Distribution:
        """Times from one start to the next on the same lane."""
        return self._gaps.distribution()

    def starts(self) -> dict[tuple[int, int], LaneStarts]:
        """The sampled starts, by (rank, lane)."""
        return {
            key: LaneStarts(operations=lane.operations, stride=self._stride, start_ns=np.concatenate(lane.samples))
            for key, lane in self._lanes.items()
        }


def _by_lane(rows: OperationRows) -> Iterator[tuple[int, np.ndarray]]:
    """Each lane of a batch with its starts."""
    if not len(rows):
        return
    order = stable_order(rows.lane)
    lanes, starts = rows.lane[order], rows.start_ns[order]
    first = runs(lanes).tolist()
    for begin, end in zip(first, [*first[1:], len(lanes)], strict=True):
        yield int(lanes[begin]), starts[begin:end]


def matched_starts(
    source: dict[tuple[int, int], LaneStarts], replay: dict[tuple[int, int], LaneStarts]
) -> tuple[np.ndarray, np.ndarray]:
    """Start times (ns) of the same operations in source and replay: the k-th of a lane matches the k-th.

    Lanes with different numbers of operations are left out: their k-th operations are not the same.
    """
    recorded, replayed = [], []
    for key, here in source.items():
        there = replay.get(key)
        if there is None or there.operations != here.operations:
            continue
        stride = max(here.stride, there.stride)
        recorded.append(here.start_ns[:: stride // here.stride])
        replayed.append(there.start_ns[:: stride // there.stride])
    if not recorded:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate(recorded), np.concatenate(replayed)
