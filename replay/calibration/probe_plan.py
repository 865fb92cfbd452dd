"""Plans the requests and the time of a calibration. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import MIB

KIB = 1 << 10

OBJECT_BYTES = 8 * MIB
"""Bytes of an object that is written to be read, and of the largest range."""

LEAST_SECONDS, MOST_SECONDS = 1.0, 86_400.0
"""Least and most time of a calibration."""

SLOW_S = 1.0
"""Most time of a trial, s, or a thirtieth of the whole time if that is more. Slower probes are left out."""


class Kind(enum.Enum):
    """Kinds of probes: of a file system, then of an object store. The data of a cold read are not in the page cache,
    those of a cached read are."""

    COLD_READ = "cold read"
    CACHED_READ = "cached read"
    SEQUENTIAL_READ = "sequential cold read"
    WRITE = "write"
    SYNC = "write and sync"
    FILES = "open, stat, close"
    CREATE = "create, close, rename"
    GET = "GET"
    FIRST_BYTE = "GET up to the first byte"
    PUT = "PUT"
    HEAD = "HEAD"
    LIST = "LIST"
    COPY = "CopyObject, DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Requests of one kind, issued in a closed loop: each lane begins the next one when its last one has ended.

    size: bytes of a request; 0 where none are moved. in_flight: number of lanes.
    """

    kind: Kind
    size: int
    in_flight: int = 1

    def exceeds(self, other: Probe) -> bool:
        """Whether this is the same kind of probe with larger requests, more of them in flight, or both."""
        larger = self.size >= other.size and self.in_flight >= other.in_flight
        return self.kind is other.kind and larger and self != other

    @property
    def bytes_in_flight(self) -> int:
        """Bytes requested at the same time."""
        return self.size * self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    sizes: tuple[int, ...]
    in_flight: tuple[int, ...]
    few_in_flight: tuple[int, ...]
    sequential: tuple[int, ...]
    synced: tuple[int, ...]

    def probes(self) -> tuple[Probe, ...]:
        some, few = self.in_flight, self.few_in_flight
        return (
            *(Probe(kind=Kind.COLD_READ, size=size, in_flight=count) for size in self.sizes for count in some),
            *(Probe(kind=Kind.CACHED_READ, size=size, in_flight=count) for size in self.sizes for count in few),
            *(Probe(kind=Kind.WRITE, size=size, in_flight=count) for size in self.sizes for count in few),
            *(Probe(kind=Kind.SYNC, size=size, in_flight=count) for size in self.synced for count in few),
            *(Probe(kind=Kind.SEQUENTIAL_READ, size=size) for size in self.sequential),
            *(Probe(kind=kind, size=0, in_flight=count) for kind in (Kind.FILES, Kind.CREATE) for count in few),
        )


_GRIDS = (
    _Grid(
        sizes=(512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
        in_flight=(1, 2, 4, 8, 16, 32, 64),
        few_in_flight=(1, 8),
        sequential=(4 * KIB, 64 * KIB, MIB),
        synced=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
    ),
    _Grid(
        sizes=(4 * KIB, 64 * KIB, MIB, 8 * MIB),
        in_flight=(1, 4, 16, 64),
        few_in_flight=(1, 8),
        sequential=(64 * KIB,),
        synced=(4 * KIB, MIB),
    ),
    _Grid(
        sizes=(4 * KIB, MIB),
        in_flight=(1, 8),
        few_in_flight=(1,),
        sequential=(64 * KIB,),
        synced=(4 * KIB, MIB),
    ),
)
"""The probes of a long, a short and a very short calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObjectGrid:
    """Sizes of GETs and PUTs, bytes, and numbers of connections: of GETs, and of other requests."""

    sizes: tuple[int, ...]
    put_sizes: tuple[int, ...]
    connections: tuple[int, ...]
    few: tuple[int, ...]

    def probes(self) -> tuple[Probe, ...]:
        others = (Kind.HEAD, Kind.LIST, Kind.COPY)
        return (
            *(Probe(kind=Kind.GET, size=size, in_flight=count) for size in self.sizes for count in self.connections),
            *(Probe(kind=Kind.FIRST_BYTE, size=size) for size in (self.sizes[0], self.sizes[-1])),
            *(Probe(kind=Kind.PUT, size=size, in_flight=count) for size in self.put_sizes for count in self.few),
            *(Probe(kind=kind, size=0, in_flight=count) for kind in others for count in self.few),
        )


_OBJECT_GRIDS = (
    _ObjectGrid(
        sizes=(4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, OBJECT_BYTES),
        put_sizes=(4 * KIB, MIB, OBJECT_BYTES, 4 * OBJECT_BYTES),
        connections=(1, 2, 4, 8, 16, 32, 64),
        few=(1, 8),
    ),
    _ObjectGrid(
        sizes=(4 * KIB, MIB, OBJECT_BYTES),
        put_sizes=(4 * KIB, OBJECT_BYTES),
        connections=(1, 4, 16, 64),
        few=(1,),
    ),
    _ObjectGrid(sizes=(4 * KIB, OBJECT_BYTES), put_sizes=(4 * KIB, OBJECT_BYTES), connections=(1, 8), few=(1,)),
)
"""As `_GRIDS`."""

_LEAST_SLICE_S, _MOST_SLICE_S = 0.05, 0.4
_LEAST_ROUNDS = 3

BURST_SIZES = (4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB)
"""Sizes of the cold reads that look for a throttle, bytes."""

BURST_IN_FLIGHT = 4
"""Lanes of these reads: few, so that a burst is larger than the number in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlan:
    """The time plan of a calibration, seconds.

    probes: what each round issues. slice_s: time of a trial. burst_s: time of a trial that looks for a throttle.
    fill_s: most time for writing the data that are read. slow_s: a probe that takes longer is left out of later rounds.
    """

    seconds: float
    probes: tuple[Probe, ...]
    slice_s: float
    burst_s: float
    fill_s: float
    slow_s: float


def with_cold_size(plan: TimePlan, size: int) -> TimePlan:
    """The plan with cold reads of one more size."""
    counts = sorted({each.in_flight for each in plan.probes if each.kind is Kind.COLD_READ})
    more = [Probe(kind=Kind.COLD_READ, size=size, in_flight=count) for count in counts]
    return replace(plan, probes=tuple(dict.fromkeys([*plan.probes, *more])))


def plan_time(seconds: float, *, objects: bool = False) -> TimePlan:
    """The plan for a time in all. `objects`: on an object store.

    Raises: UsageError for a time that is too short or absurd.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(
            f"a calibration of {seconds / 60:g} minutes is not possible: give {LEAST_SECONDS / 60:.2g} to "
            f"{MOST_SECONDS / 60:.0f} minutes"
        )
    for grid in _OBJECT_GRIDS if objects else _GRIDS:
        probes = grid.probes()
        slice_s = 0.5 * seconds / (_LEAST_ROUNDS * len(probes))
        if slice_s >= _LEAST_SLICE_S:
            break
    return TimePlan(
        seconds=seconds,
        probes=probes,
        slice_s=min(max(slice_s, _LEAST_SLICE_S), _MOST_SLICE_S),
        burst_s=min(max(0.04 * seconds, 0.25), 3.0),
        fill_s=0.12 * seconds,
        slow_s=max(SLOW_S, seconds / 30),
    )


def scouting_order(probes: Collection[Probe]) -> list[Probe]:
    """The order of the first round: by bytes in flight, so that a slow file system shows before the largest probes."""
    return sorted(probes, key=lambda probe: (probe.bytes_in_flight, probe.in_flight))


def random_order(probes: Collection[Probe], random: np.random.Generator) -> list[Probe]:
    """The order of a later round: random, so that drift of the machine affects all probes alike."""
    listed = list(probes)
    return [listed[place] for place in random.permutation(len(listed))]


def spread_offsets(file_bytes: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Offsets of reads of `size` bytes that never touch each other's pages, in random order, int64.

    Between two of them lies a gap, and none is at the begin of the file: nothing then looks like a sequential reader,
    for whom the kernel would read ahead.
    """
    stride = -(-size // PAGE_BYTES) * PAGE_BYTES + GAP_BYTES
    return stride * (1 + random.permutation(max(file_bytes // stride - 1, 0)))


PAGE_BYTES = 4096
GAP_BYTES = 4 * PAGE_BYTES
"""Least distance of two cold reads, bytes."""
