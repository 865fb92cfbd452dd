"""The requests of a calibration: which ones, in what order and for how long; and the issue loop that times them, with
one lane for each request in flight.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.replay.calibration.scratch import refused
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, RING_BATCHES, LoopPace, loop_items
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import MIB, NS_PER_MS

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


@dataclass(frozen=True, slots=True)
class Probe:
    """Requests of one kind, issued in a closed loop: each lane begins the next one when its last one has ended.

    size: bytes of a request; 0 where none are moved. in_flight: number of lanes.
    """

    kind: Kind
    size: int = 0
    in_flight: int = 1

    def exceeds(self, other: Probe) -> bool:
        """Whether this is the same kind of probe with larger requests, more of them in flight, or both."""
        larger = self.size >= other.size and self.in_flight >= other.in_flight
        return self.kind is other.kind and larger and self != other


SIZES = tuple(512 if not power else 1024 << 2 * power for power in range(8))
IN_FLIGHT, FEW = (1, 2, 4, 8, 16, 32, 64), (1, 8)
OBJECT_SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, OBJECT_BYTES)
PUT_SIZES = (4 * KIB, MIB, OBJECT_BYTES, 4 * OBJECT_BYTES)
"""Sizes, and numbers in flight, of a long calibration; a short one thins them out."""

_LEAST_SLICE_S, _MOST_SLICE_S = 0.05, 0.4
_LEAST_ROUNDS = 3

BURST_SIZES = (4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB)
"""Sizes of the cold reads that look for a throttle, bytes."""

BURST_IN_FLIGHT = 4
"""Lanes of these reads: few, so that a burst is larger than the number in flight."""


def _grid(thin: int, *, objects: bool) -> list[Probe]:
    """The probes with every `thin`-th size and number in flight: 1, 2 or 4."""
    some, few, two = IN_FLIGHT[::thin], FEW if thin < 4 else FEW[:1], min(thin, 2)
    if objects:
        table = [
            (Kind.GET, OBJECT_SIZES[::thin], some),
            (Kind.FIRST_BYTE, OBJECT_SIZES[:: len(OBJECT_SIZES) - 1], (1,)),
            (Kind.PUT, PUT_SIZES[::two], few[: 3 - two]),
            *((kind, (0,), few[: 3 - two]) for kind in (Kind.HEAD, Kind.LIST, Kind.COPY)),
        ]
    else:
        sizes = SIZES if thin == 1 else SIZES[1::thin]
        table = [
            (Kind.COLD_READ, sizes, some),
            (Kind.CACHED_READ, sizes, few),
            (Kind.WRITE, sizes, few),
            (Kind.SYNC, SIZES[1 :: 2 * two], few),
            (Kind.SEQUENTIAL_READ, (4 * KIB, 64 * KIB, MIB) if thin == 1 else (64 * KIB,), (1,)),
            (Kind.FILES, (0,), few),
            (Kind.CREATE, (0,), few),
        ]
    return [Probe(kind, size, count) for kind, sizes, counts in table for size in sizes for count in counts]


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


def plan_time(seconds: float, *, objects: bool = False) -> TimePlan:
    """The plan for a time in all. `objects`: on an object store.

    Raises: UsageError for a time that is too short or absurd.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(
            f"a calibration of {seconds / 60:g} minutes is not possible: give {LEAST_SECONDS / 60:.2g} to "
            f"{MOST_SECONDS / 60:.0f} minutes"
        )
    for thin in (1, 2, 4):
        probes = _grid(thin, objects=objects)
        slice_s = 0.5 * seconds / (_LEAST_ROUNDS * len(probes))
        if slice_s >= _LEAST_SLICE_S:
            break
    return TimePlan(
        seconds=seconds,
        probes=tuple(probes),
        slice_s=min(max(slice_s, _LEAST_SLICE_S), _MOST_SLICE_S),
        burst_s=min(max(0.04 * seconds, 0.25), 3.0),
        fill_s=0.12 * seconds,
        slow_s=max(SLOW_S, seconds / 30),
    )


def with_cold_size(plan: TimePlan, size: int) -> TimePlan:
    """The plan with cold reads of one more size."""
    counts = sorted({each.in_flight for each in plan.probes if each.kind is Kind.COLD_READ})
    more = [Probe(Kind.COLD_READ, size, count) for count in counts]
    return replace(plan, probes=tuple(dict.fromkeys([*plan.probes, *more])))


def scouting_order(probes: Collection[Probe]) -> list[Probe]:
    """The order of the first round: by bytes in flight, so that a slow file system shows before the largest probes."""
    return sorted(probes, key=lambda probe: (probe.size * probe.in_flight, probe.in_flight))


PAGE_BYTES = 4096
GAP_BYTES = 4 * PAGE_BYTES
"""Least distance of two cold reads, bytes."""


def spread_offsets(file_bytes: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Offsets of reads of `size` bytes that never touch each other's pages, in random order, int64.

    Between two of them lies a gap, and none is at the begin of the file: nothing then looks like a sequential reader,
    for whom the kernel would read ahead.
    """
    stride = -(-size // PAGE_BYTES) * PAGE_BYTES + GAP_BYTES
    return stride * (1 + random.permutation(max(file_bytes // stride - 1, 0)))


MAX_ITEMS = BATCH_ITEMS * RING_BATCHES
"""Most items of a lane."""

_AHEAD_NS = 12 * NS_PER_MS
"""Time until the start of the lanes, in which they wake and open their first files."""

_LOOK_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issued:
    """The completed items of all lanes, in the order of their ends. Arrays (n,).

    kind: uint8. begin_ns, end_ns: int64, from the start of the lanes. length: int64, requested bytes.
    """

    kind: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray


def lane_items(
    kind: np.ndarray | int,
    slot: np.ndarray | int,
    count: int,
    *,
    offset: np.ndarray | int = 0,
    length: np.ndarray | int = 0,
    pause_ns: int = 0,
) -> np.ndarray:
    """The items of one lane, `PLAN_ROW` (count,), at most MAX_ITEMS; a number stands for all of them."""
    count = min(count, MAX_ITEMS)
    columns = (each[:count] if isinstance(each, np.ndarray) else each for each in (kind, slot, offset, length))
    kind, slot, offset, length = columns
    return loop_items(kind, slot, count, place=offset, amount=length, due_ns=pause_ns)


def issue(files: Files, lanes: Sequence[np.ndarray], *, seconds: float, doing: str, least: int = 0) -> Issued:
    """Let each lane issue its items for `seconds`, and at least `least` of them; then wait for those in flight.

    doing: for the error, such as "read below /scratch".
    Raises: TargetError where the file system refuses an item; KeyboardInterrupt and the like after the lanes ended.
    """
    gate, stop = StartGate(), StopFlag()
    # Pauses begin with the end of the item before, as under the pace `think`; without any, that is a closed loop.
    made = [Lane(files, pace=LoopPace.THINK, start=gate, stop=stop) for _ in lanes]
    threads = []
    try:
        for lane, items in zip(made, lanes, strict=True):
            for at in range(0, len(items), BATCH_ITEMS):
                lane.submit(items[at : at + BATCH_ITEMS])
            lane.finish()
            threads.append(threading.Thread(target=lane.run, name="calibration", daemon=True))
            threads[-1].start()
        begin_ns = time.monotonic_ns() + _AHEAD_NS
        gate.open(begin_ns)
        until = begin_ns / 1e9 + seconds
        while any(thread.is_alive() for thread in threads) and (
            time.monotonic() < until or any(lane.items_done < least for lane in made)
        ):
            time.sleep(_LOOK_S)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    done = [completed for lane in made for completed in iter(lane.collect, None)]
    nothing = np.empty(0, dtype=np.int64)
    results, begin_ns_of, end_ns, kind, length = (
        np.concatenate([nothing, *each])
        for each in (
            [completed.result for completed in done],
            [completed.begin_ns for completed in done],
            [completed.end_ns for completed in done],
            [completed.items["kind"][: completed.count] for completed in done],
            [completed.items["_amount"][: completed.count] for completed in done],
        )
    )
    if len(results) and results.min() < 0:
        error = OSError(-int(results.min()), "")
        raise refused(error, doing) from error
    order = np.argsort(end_ns, kind="stable")
    return Issued(kind=kind[order], begin_ns=begin_ns_of[order], end_ns=end_ns[order], length=length[order])
