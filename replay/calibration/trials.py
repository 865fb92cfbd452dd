"""The trials of a calibration: which requests, in what order and for how long; the issue loop that times them, with one
lane for each request in flight; the files they are made on; and rounds of them until the time is over.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dxt_replay.replay.calibration.fit import Measured, Passed, doubtful, passed, settled, throttles
from dxt_replay.replay.calibration.scratch import new_file, refused, write_data
from dxt_replay.replay.engine import items as kinds
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, RING_BATCHES, LoopPace, loop_items
from dxt_replay.replay.engine.link_free import unlink_link_free
from dxt_replay.replay.regress.environment import target_environment
from dxt_replay.replay.simulation.model import Limit
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.units import MIB, NS_PER_MS

KIB = 1 << 10

COLD, CACHED, SEQUENTIAL = "cold read", "cached read", "sequential cold read"
WRITE, SYNC, FILES, CREATE = "write", "write and sync", "open, stat, close", "create, close, rename"
GET, FIRST_BYTE, PUT, HEAD, LIST, COPY = "GET", "GET up to the first byte", "PUT", "HEAD", "LIST", "CopyObject, DELETE"

CALLS = {
    COLD: {kinds.READ_AT: ("read", "cold")},
    CACHED: {kinds.READ_AT: ("read", "cached")},
    SEQUENTIAL: {kinds.READ_AT: ("read", "sequential")},
    WRITE: {kinds.WRITE_AT: ("write", "")},
    SYNC: {kinds.WRITE_AT: ("write", "synced"), kinds.SYNC: ("sync", "")},
    FILES: {kinds.OPEN: ("open", ""), kinds.STAT: ("stat", ""), kinds.CLOSE: ("close", "")},
    CREATE: {kinds.OPEN: ("create", ""), kinds.RENAME: ("rename", "")},
    GET: {kinds.READ_AT: ("GET", "")},
    FIRST_BYTE: {kinds.READ_AT: ("GET", "first byte")},
    PUT: {kinds.CLOSE: ("PUT", "")},
    HEAD: {kinds.STAT: ("HEAD", "")},
    LIST: {kinds.LIST: ("LIST", "")},
    COPY: {kinds.RENAME: ("CopyObject and DELETE", ""), kinds.DELETE: ("DELETE", "")},
}
"""Kind of a probe -> the items of it whose times are measured: kind of item -> (call, state). The data of a cold read
are not in the page cache, those of a cached read are."""


class Probe(NamedTuple):
    """Requests of one kind, issued in a closed loop: each lane begins the next one when its last one has ended.

    size: bytes of a request; 0 where none are moved. in_flight: number of lanes."""

    kind: str
    size: int = 0
    in_flight: int = 1

    def exceeds(self, other: Probe) -> bool:
        """Whether this is the same kind of probe with larger requests, more of them in flight, or both."""
        larger = self.size >= other.size and self.in_flight >= other.in_flight
        return self.kind == other.kind and larger and self != other


# ------------------------------------------------------------------------------------------------------------ time plan

LEAST_SECONDS, MOST_SECONDS = 1.0, 86_400.0  # Least and most time of a calibration
SLOW_S = 1.0  # Most time of a trial, s, or a thirtieth of the whole time if that is more. Slower probes are left out.

SIZES = tuple(512 if not power else 1024 << 2 * power for power in range(8))
IN_FLIGHT, FEW = (1, 2, 4, 8, 16, 32, 64), (1, 8)
OBJECT_BYTES = 8 * MIB  # Bytes of an object that is written to be read, and of the largest range
OBJECT_SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, OBJECT_BYTES)
PUT_SIZES = (4 * KIB, MIB, OBJECT_BYTES, 4 * OBJECT_BYTES)
"""Sizes, and numbers in flight, of a long calibration; a short one thins them out."""

BURST_SIZES, BURST_IN_FLIGHT = (4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB), 4
"""Sizes of the cold reads that look for a throttle, bytes, and their lanes: few, so that a burst is larger."""

_LEAST_SLICE_S, _MOST_SLICE_S = 0.05, 0.4
_LEAST_ROUNDS = 3


def _grid(thin: int, *, objects: bool) -> list[Probe]:
    """The probes with every `thin`-th size and number in flight: 1, 2 or 4."""
    some, two = IN_FLIGHT[::thin], min(thin, 2)
    few: tuple[int, ...] = FEW if thin < 4 else FEW[:1]
    sizes = SIZES if thin == 1 else SIZES[1::thin]
    table = [
        (COLD, sizes, some),
        (CACHED, sizes, few),
        (WRITE, sizes, few),
        (SYNC, SIZES[1 :: 2 * two], few),
        (SEQUENTIAL, (4 * KIB, 64 * KIB, MIB) if thin == 1 else (64 * KIB,), (1,)),
        *((kind, (0,), few) for kind in (FILES, CREATE)),
    ]
    if objects:
        few = few[: 3 - two]
        table = [
            (GET, OBJECT_SIZES[::thin], some),
            (FIRST_BYTE, OBJECT_SIZES[:: len(OBJECT_SIZES) - 1], (1,)),
            (PUT, PUT_SIZES[::two], few),
            *((kind, (0,), few) for kind in (HEAD, LIST, COPY)),
        ]
    return [Probe(kind, size, lanes) for kind, sizes, counts in table for size in sizes for lanes in counts]


def plan_probes(seconds: float, *, objects: bool = False) -> tuple[list[Probe], float]:
    """What each round of a calibration of so many seconds issues, and the time of a trial, s.

    Raises: UsageError for a time that is too short or absurd."""
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
    return probes, min(max(slice_s, _LEAST_SLICE_S), _MOST_SLICE_S)


def scouting_order(probes: Collection[Probe]) -> list[Probe]:
    """The order of the first round: by bytes in flight, so that a slow file system shows before the largest probes."""
    return sorted(probes, key=lambda probe: (probe.size * probe.in_flight, probe.in_flight))


# ---------------------------------------------------------------------------------------------------------------- items

PAGE_BYTES = 4096
GAP_BYTES = 4 * PAGE_BYTES  # Least distance of two cold reads, bytes
MAX_ITEMS = BATCH_ITEMS * RING_BATCHES  # Most items of a lane
MANY_USES = 1 << 40  # Uses of a file that stays open until a trial is over
_AHEAD_NS = 12 * NS_PER_MS  # Time until the start of the lanes, in which they wake and open their first files
_LOOK_S = 0.002

Values = np.ndarray | int
Issued = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(kind, begin, end) of the completed items of all lanes, in the order of their ends: uint8, and int64 ns from their
start."""


def spread_offsets(file_bytes: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Offsets of reads of `size` bytes that never touch each other's pages, in random order, int64.

    Between two of them lies a gap, and none is at the begin of the file: nothing then looks like a sequential reader,
    for whom the kernel would read ahead."""
    stride = -(-size // PAGE_BYTES) * PAGE_BYTES + GAP_BYTES
    return stride * (1 + random.permutation(max(file_bytes // stride - 1, 0)))


def lane_items(
    kind: Values, slot: Values, many: int, *, offset: Values = 0, length: Values = 0, pause_ns: int = 0
) -> np.ndarray:
    """The items of one lane, `PLAN_ROW` (many,), at most MAX_ITEMS; a number stands for all of them."""
    many = min(many, MAX_ITEMS)
    kind, slot, offset, length = (e[:many] if isinstance(e, np.ndarray) else e for e in (kind, slot, offset, length))
    return loop_items(kind, slot, many, place=offset, amount=length, due_ns=pause_ns)


def calls(each: int, what: Sequence[int], first_slot: int = 0, renamed_by: int = 0, pause_ns: int = 0) -> np.ndarray:
    """The items of a lane that makes the calls `what` on each of `each` slots of its own."""
    slots = first_slot + np.repeat(np.arange(each), len(what))
    many = np.tile(np.array(what, dtype=np.uint8), each)
    return lane_items(many, slots, len(slots), offset=slots + renamed_by, pause_ns=pause_ns)


def issue(
    files: Files,
    lanes: Sequence[np.ndarray],
    *,
    seconds: float,
    doing: str,
    payload: int = 0,
    least: int = 1,
    close: bool = True,
) -> Issued:
    """Let each lane issue its items for `seconds`, and at least `least` of them: on a busy machine a lane may begin
    when the time of a short trial is over. Then wait for those in flight, and `close` the files.

    payload: the most bytes that an item writes. doing: for the error, such as "read below /scratch".

    Raises: TargetError where the file system refuses an item; KeyboardInterrupt and the like after the lanes ended."""
    if payload:
        files.prepare_payload(payload)
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
        if close:
            files.close_all()
    done = [completed for lane in made for completed in iter(lane.collect, None)]
    nothing = np.empty(0, dtype=np.int64)
    results, begins, ends = (
        np.concatenate([nothing, *(getattr(each, name) for each in done)]) for name in ("result", "begin_ns", "end_ns")
    )
    if len(results) and results.min() < 0:
        error = OSError(-int(results.min()), "")
        raise refused(error, doing) from error
    kind = np.concatenate([nothing, *(each.items["kind"][: each.count] for each in done)])
    order = np.argsort(ends, kind="stable")
    return kind[order], begins[order], ends[order]


# ------------------------------------------------------------------------------------------------- files that are tried

MOST_DATA_BYTES = 512 * MIB  # Most data that are read cold
CACHED_BYTES = 32 * MIB  # Bytes of the file whose pages stay in the cache
OFF_PAGE_BYTES = 57
"""Offset of the first write to a file, so that no write consists of whole pages: some file systems send parts of a page
one by one, and most written files have such parts."""

FILL_BYTES, FILL_SLICES = MIB, 4
"""Bytes of the reads that fill the page cache, and most time for it, in times of a trial. On slow storage fewer pages
are cached then."""

MOST_WRITTEN_BYTES = 256 * MIB  # Most bytes that a trial writes
POOL_FILES, SMALL_BYTES = 256, 4096  # Most small files that are opened, and their size


class Bench(Protocol):
    """What issues the requests of a trial."""

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """The requests of one trial; None where the probe is not possible. `pause_ns`: of each lane between two
        requests. Raises: TargetError."""


class FileBench:
    """The files of trials below `folder`: one that is read cold, one whose pages stay cached, small ones that are
    opened in turn, and new ones that are written.

    room: most bytes. stayed, dropped: bytes in all after drops of pages before cold reads. warnings: of these drops."""

    def __init__(self, folder: Path, room: int, random: np.random.Generator, seconds: float) -> None:
        self._folder, self._room, self._random, self._made, self._turns = folder, room, random, count(), count()
        self._doing = f"measure {folder.parent}"
        until = time.monotonic() + 0.15 * seconds
        self._pool: list[bytes] = []
        while len(self._pool) < POOL_FILES and (time.monotonic() < until or len(self._pool) < 4):
            self._pool.append(self._file(f"small-{len(self._pool)}"))
            with new_file(self._pool[-1]) as file:
                file.write(bytes(SMALL_BYTES))
        self._cached, self.data = self._file("cached"), self._file("data")
        self._cached_bytes = write_data(self._cached, min(CACHED_BYTES, room // 8), 0.15 * seconds)
        self.data_bytes = write_data(self.data, min(MOST_DATA_BYTES, room // 2), 0.7 * seconds)
        self.stayed = self.dropped = 0
        self.warnings: dict[str, None] = {}

    def _file(self, name: str) -> bytes:
        return os.fsencode(self._folder / name)

    def drop(self) -> None:
        """Drop the pages of the data, and note what stayed."""
        self.warnings |= dict.fromkeys(page_cache.drop([self.data]).warnings)
        residency = page_cache.resident([self.data])
        self.stayed += residency.resident_bytes
        self.dropped += residency.total_bytes

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """See `Bench.run`. None where the probe does not fit into the data or the free space."""
        kind, size, lanes = probe

        def reads(place: np.ndarray) -> np.ndarray:
            return lane_items(kinds.READ_AT, 0, len(place), offset=place, length=size, pause_ns=pause_ns)

        if kind in (COLD, SEQUENTIAL):
            places = spread_offsets(self.data_bytes, size, self._random)
            if kind == SEQUENTIAL:
                places = np.arange(self.data_bytes // size) * size
            elif len(places) < 2 * lanes:
                return None
            self.drop()
            return self._issue([self.data], [reads(each) for each in np.array_split(places, lanes)], seconds)
        if kind == CACHED:
            files = Files([FileSlot(path=self._cached, uses=MANY_USES)])  # once: its pages may not outlast a close
            filled = np.arange(self._cached_bytes // FILL_BYTES) * FILL_BYTES
            fill = lane_items(kinds.READ_AT, 0, len(filled), offset=filled, length=FILL_BYTES)
            done, *_ = issue(files, [fill], seconds=FILL_SLICES * seconds, doing=self._doing, close=False)
            fits = FILL_BYTES * len(done) // size
            if not fits:
                files.close_all()
                return None
            places = size * self._random.integers(0, fits, (lanes, MAX_ITEMS // 4))
            return issue(files, [reads(each) for each in places], seconds=seconds, doing=self._doing)
        if kind in (WRITE, SYNC):
            what = [kinds.WRITE_AT, kinds.SYNC] if kind == SYNC else [kinds.WRITE_AT]
            each = min(min(MOST_WRITTEN_BYTES, self._room // 4) // (size * lanes), MAX_ITEMS // 2)
            if not each:
                return None
            many = np.tile(np.array(what, dtype=np.uint8), each)
            offset = OFF_PAGE_BYTES + np.repeat(np.arange(each) * size, len(what))
            length = np.where(many == kinds.WRITE_AT, size, 0)
            writes = [
                lane_items(many, lane, len(many), offset=offset, length=length, pause_ns=pause_ns)
                for lane in range(lanes)
            ]
            return self._issue_on_new(lanes, MANY_USES, writes, seconds, size)
        each = max(len(self._pool) // lanes // (1 if kind == FILES else 2), 1)
        if kind == FILES:  # of the pool, the least recently used first
            what = [kinds.OPEN, kinds.STAT, kinds.CLOSE]
            turns = [self._pool[next(self._turns) % len(self._pool)] for _ in range(each * lanes)]
            one_each = [calls(each, what, lane * each, pause_ns=pause_ns) for lane in range(lanes)]
            return self._issue(turns, one_each, seconds, uses=len(what))
        what = [kinds.OPEN, kinds.CLOSE, kinds.RENAME]  # the file of slot n gets the name of slot n + half
        one_each = [calls(each, what, lane * each, each * lanes, pause_ns) for lane in range(lanes)]
        return self._issue_on_new(2 * each * lanes, len(what), one_each, seconds)

    def _issue(
        self,
        paths: Sequence[bytes],
        lanes: Sequence[np.ndarray],
        seconds: float,
        *,
        uses: int = MANY_USES,
        new: bool = False,
        payload: int = 0,
    ) -> Issued:
        files = Files([FileSlot(path=path, writable=new, create=new, uses=uses) for path in paths])
        return issue(files, lanes, seconds=seconds, doing=self._doing, payload=payload)

    def _issue_on_new(
        self, many: int, uses: int, lanes: Sequence[np.ndarray], seconds: float, payload: int = 0
    ) -> Issued:
        paths = [self._file(f"made-{next(self._made)}") for _ in range(many)]
        try:
            return self._issue(paths, lanes, seconds, uses=uses, new=True, payload=payload)
        finally:
            for path in paths:
                with suppress(FileNotFoundError):
                    unlink_link_free(path)


STEP_BYTES = 64 << 10  # Bytes of a read that looks for read-ahead
SETTLED_S, PATIENCE_S = 0.004, 2.0
"""The cache has settled when no page came for the longer of the first time and twice the slowest read. The second is
the longest wait for that."""


def measure_read_ahead(path: bytes, file_bytes: int, seconds: float) -> tuple[int | None, bool]:
    """Read a file from its begin, for at most `seconds`. Its pages must have been dropped.

    Returns the largest window that one read began to fetch beyond its own bytes, None where unknown; and whether a file
    that is opened again has lost its pages, as with libfuse's defaults. The pages are looked at through the open file,
    as another open may drop them. Raises: OSError."""
    until = time.monotonic() + seconds
    largest, held, place, quiet, buffer = 0, 0, 0, SETTLED_S, bytearray(STEP_BYTES)
    with open(path, "rb", buffering=0) as file:

        def resident() -> int:
            return page_cache.resident_of(file.fileno(), path).resident_bytes

        if resident() or not page_cache.resident_of(file.fileno(), path).total_bytes:
            return None, False
        while time.monotonic() < until and place + STEP_BYTES <= file_bytes:
            begun = time.monotonic()
            os.preadv(file.fileno(), [buffer], place)
            place, quiet = place + STEP_BYTES, max(quiet, 2 * (time.monotonic() - begun))
            since, now, patience = time.monotonic(), resident(), min(until, time.monotonic() + PATIENCE_S)
            while time.monotonic() - since < quiet and time.monotonic() < patience:
                time.sleep(SETTLED_S / 4)
                before, now = now, resident()
                since = since if before == now else time.monotonic()
            # What a read brought in beyond what it needed itself.
            largest, held = max(largest, now - max(held, place)), now
            if place > 2 * largest + 32 * STEP_BYTES:
                break
        held = resident()
    with open(path, "rb", buffering=0) as file:
        again = resident()
    # On a busy machine two windows may look like one.
    if (most_kib := target_environment(Path(os.fsdecode(path))).read_ahead_kib) is not None:
        largest = min(largest, most_kib << 10)
    return largest, held > 0 and again < held / 2


# --------------------------------------------------------------------------------------------------------------- rounds

DISTURBED = 0.25  # Least uncertainty of the model, as a share, if a figure was disturbed in all of its trials
IDLE_S = 0.3  # Pause before a trial that looks for a throttle, s: the burst that it allows is restored meanwhile
LEAST_TRIALS = 3  # Least number of trials of a cold read with one in flight. They are made even after the time is over.
REPEATS = 3  # Further trials of a figure that others contradict. They are made even after the time is over.
RESERVE = 0.97  # Share of the time after which no trial begins

OnProgress = Callable[[float, float, str], None]
"""Called with seconds passed, seconds in all, and what is being measured."""


class Rounds:
    """Runs trials until the time is over. target: for messages. Raises: UsageError for a time that is too short.

    burst, limits: how reads pass after a pause, and the throttles that this shows. measured: all figures; disturbed:
    those that others contradict. rounds: complete ones. left_out: probes that were too slow, or did not fit."""

    def __init__(
        self, target: str | Path, seconds: float, random: np.random.Generator, on_progress: OnProgress
    ) -> None:
        self._objects = isinstance(target, str)
        self.probes, self._slice_s = plan_probes(seconds, objects=self._objects)
        self._target, self._seconds, self._random, self._on_progress = target, seconds, random, on_progress
        self._single = GET if self._objects else COLD  # single reads of the storage itself
        self._needed = {("GET", "")} if self._objects else {("read", "cold"), ("read", "cached")}  # by the model
        self._slow_s, self._begun = max(SLOW_S, seconds / 30), time.monotonic()
        self._trials: dict[tuple[str, str, int, int], list[np.ndarray]] = defaultdict(list)
        self._slow: list[Probe] = []
        self.left_out: dict[Probe, None] = {}
        self.rounds = 0
        self.burst: list[Passed] = []
        self.limits: tuple[Limit, ...] = ()
        self.measured: tuple[Measured, ...] = ()
        self.disturbed: list[Measured] = []

    @property
    def passed_s(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._begun

    def described(self, name: str) -> dict[str, Any]:
        """The keywords of `fit_model` that say what was measured, and how well."""
        about = f"Measured by dxt-replay calibrate in {self.passed_s:.0f} s."
        return {"name": name, "about": about, "least_uncertainty": DISTURBED if self.disturbed else 0.0}

    def report(self, what: str) -> None:
        """Say what is being measured."""
        self._on_progress(min(self.passed_s, self._seconds), self._seconds, what)

    def run(self, bench: Bench) -> None:
        """Run all trials.

        The first round goes on until there is what the model needs; that of an object store is always complete, because
        each of its few probes shows another request. Figures that others contradict are repeated: the median of several
        trials leaves out a disturbed one. Where storage is so slow that each single read had one trial, these are
        repeated, too, since one trial shows no spread."""
        for size in BURST_SIZES:
            self.report("throttles")
            time.sleep(IDLE_S)
            burst_s = min(max(0.04 * self._seconds, 0.25), 3.0)
            issued = bench.run(Probe(self._single, size, BURST_IN_FLIGHT), seconds=burst_s)
            found = None if issued is None else passed(size, BURST_IN_FLIGHT, issued[2])
            self.burst += [] if found is None else [found]
        self.limits = throttles(self.burst)
        order = scouting_order(self.probes)
        while order and all(self._tried(bench, probe) for probe in order):
            self.rounds += 1
            # Random, so that drift of the machine affects all probes alike.
            listed = [probe for probe in self.probes if probe not in self.left_out]
            order = [listed[place] for place in self._random.permutation(len(listed))]
        single = CALLS[self._single][kinds.READ_AT]
        lone = [each for each in self._figures() if (each.call, each.state, each.in_flight) == (*single, 1)]
        if all(each.trials == 1 for each in lone):
            for each in lone * (LEAST_TRIALS - 1):
                if each.time_ns < 1e9 * self._slice_s:
                    self._trial(bench, Probe(self._single, each.size))
        for _ in range(REPEATS):
            for each in doubtful(self._figures()):
                kind = next(kind for kind, made in CALLS.items() if (each.call, each.state) in made.values())
                self._trial(bench, Probe(kind, each.size, each.in_flight))
        figures = self._figures()
        self.disturbed = doubtful(figures)
        self.measured = tuple(settled(each, disturbed=each in self.disturbed) for each in figures)

    def check(self) -> None:
        """Raises: TargetError where the storage was too slow for the time."""
        if not self._needed <= {(each.call, each.state) for each in self.measured if each.in_flight == 1}:
            minutes = f"{self._seconds / 60:.3g} minutes"
            raise TargetError(f"{self._target} is too slow to be measured in {minutes}: give more --minutes")

    def _tried(self, bench: Bench, probe: Probe) -> bool:
        """One probe of a round. Returns False, and does nothing, where the time is over."""
        has_the_least = not self._objects and self._needed <= {place[:2] for place in self._trials}
        if self.passed_s > RESERVE * self._seconds and (self.rounds or has_the_least):
            return False
        if probe in self.left_out or any(probe.exceeds(slow) for slow in self._slow):
            self.left_out[probe] = None
        elif not (self.limits and probe.kind == self._single and probe.in_flight > 1):
            self._trial(bench, probe)  # else it would wait for the throttle and hide the storage
        return True

    def _trial(self, bench: Bench, probe: Probe) -> None:
        self.report(probe.kind)
        pause_s = 0.0  # after which a throttle lets the next read pass at once
        for limit in self.limits if probe.kind == self._single else ():
            amount: float = probe.size
            if limit.counts_requests:
                amount = max(1, -(-probe.size // limit.request_bytes)) if limit.request_bytes else 1
            pause_s = max(pause_s, 1.5 * amount / limit.per_s)
        begun = time.monotonic()
        issued = bench.run(probe, seconds=self._slice_s, pause_ns=round(pause_s * 1e9))
        took = time.monotonic() - begun
        if issued is None or took > 2 * self._slow_s:
            self.left_out[probe] = None  # once is enough
        if issued is None:
            return
        if took > self._slow_s:
            self._slow.append(probe)
        of_item, begin_ns, end_ns = issued
        for kind, (call, state) in CALLS[probe.kind].items():
            times = (end_ns - begin_ns)[of_item == kind]
            if len(times):
                self._trials[call, state, probe.size, probe.in_flight].append(times)

    def _figures(self) -> tuple[Measured, ...]:
        return tuple(Measured.of(*place, trials) for place, trials in sorted(self._trials.items()))
