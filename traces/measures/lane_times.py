"""When the operations of each lane start: the gaps between them, and start times of source and replay side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dxt_replay.traces.measures._passes import KeyTable, follow_lanes
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.row_order import distinct
from dxt_replay.traces.stable_order import places_in_groups, stable_order
from dxt_replay.traces.sums import Sums

MAX_SAMPLES = 1 << 20
"""Start times kept of one capture: 8 MiB."""

_NO_TIMES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneStarts:
    """Start of every `stride`-th operation of each lane.

    key: (lanes,), rank << 32 | lane, in no order. operations: their number on each lane (lanes,).
    start_ns: starts of the samples, one lane after the other (samples,). All int64.
    """

    key: np.ndarray
    operations: np.ndarray
    stride: int
    start_ns: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[LaneStarts]) -> LaneStarts:
        """All lanes of at least one part; no two parts share a lane, and all have the same stride."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in ("key", "operations", "start_ns")
        }
        return cls(stride=parts[0].stride, **columns)

    def __len__(self) -> int:
        return len(self.key)

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


class LaneTimeCollector(Sums):
    """Collects gaps between starts, and samples of the starts, from rows of one rank after another, or of several.

    Every operation is a sample while they fit; then every second, every fourth and so on, on all lanes alike. `stride`:
    the stride to begin with, at most the one needed in the end (`least_stride`); it saves memory meanwhile.
    """

    STAY = ("_lanes", "_numbers", "_samples")

    def __init__(self, max_samples: int = MAX_SAMPLES, stride: int = 1) -> None:
        self._gaps = DistributionCollector()
        self._max_samples = max_samples
        self._stride = stride
        self._merged = LaneStarts(key=_NO_TIMES, operations=_NO_TIMES, stride=stride, start_ns=_NO_TIMES)
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[int, int] = {}  # of lanes, by their keys
        self._lanes = KeyTable(2)  # by these numbers, as of `follow_lanes`
        self._samples = [(np.empty(0, dtype=np.int32), _NO_TIMES)]  # number of the lane and start, by start

    def add(self, rows: OperationRows) -> None:
        """Add rows in start order: more of the current rank, or all rows of several ranks."""
        if not len(rows):
            return
        rank = rows.ranks.astype(np.int64) if len(rows.ranks) else np.int64(rows.rank)
        keys, _, inverse = distinct((rank << 32) | rows.lane)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in keys.tolist()]
        lanes = np.array(numbers, dtype=np.int32)[inverse]
        gaps, sampled = follow_lanes(self._lanes, lanes, rows.start_ns, self._stride)
        self._gaps.add(gaps)
        self._samples.append((lanes[sampled], rows.start_ns[sampled]))
        self._thin_out()

    def merge(self, later: LaneTimeCollector) -> None:
        """As `Sums.merge`; the stride becomes the wider of both."""
        self._gaps.merge(later._gaps)
        found = later.starts()
        self._set_stride(max(self._stride, found.stride))
        self._merged = LaneStarts.joined([self._merged, found.thinned(self._stride)])
        self._thin_out()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_merged": self.starts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def _thin_out(self) -> None:
        while True:
            samples = len(self._merged.start_ns) + sum(len(starts) for _, starts in self._samples)
            if samples <= max(self._max_samples, len(self._numbers) + len(self._merged)):
                return
            self._set_stride(2 * self._stride)

    def _set_stride(self, stride: int) -> None:
        thin = self._own().thinned(stride)
        self._samples = [(np.repeat(np.arange(len(thin), dtype=np.int32), thin.samples), thin.start_ns)]
        self._merged = self._merged.thinned(stride)
        self._stride = stride

    def _own(self) -> LaneStarts:
        """The lanes that were added here."""
        of_sample, start_ns = (np.concatenate(column) for column in zip(*self._samples, strict=True))
        return LaneStarts(
            key=np.array(list(self._numbers), dtype=np.int64),
            operations=self._lanes.sorted()[1][:, 0],
            stride=self._stride,
            start_ns=start_ns[stable_order(of_sample)],
        )

    def gaps_ns(self) -> Distribution:
        """Times from one start to the next on the same lane."""
        return self._gaps.distribution()

    def starts(self) -> LaneStarts:
        """The sampled starts."""
        return LaneStarts.joined([self._merged, self._own()])


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
    _, here, there = np.intersect1d(sides[0].key, sides[1].key, assume_unique=True, return_indices=True)
    same = sides[0].operations[here] == sides[1].operations[there]
    return sides[0].of_lanes(here[same]), sides[1].of_lanes(there[same])
