"""Runs the trials of a calibration: the requests of each probe on files, and rounds of them until the time is over."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np

from dxt_replay.replay.calibration.fit import (
    Measured,
    Passed,
    ReadAhead,
    doubtful,
    passed,
    settled,
)
from dxt_replay.replay.calibration.probes import (
    BURST_IN_FLIGHT,
    BURST_SIZES,
    MAX_ITEMS,
    Issued,
    Kind,
    Probe,
    TimePlan,
    issue,
    lane_items,
    scouting_order,
    spread_offsets,
)
from dxt_replay.replay.calibration.scratch import MOST_DATA_BYTES, Scratch, write_data, write_pool
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, DELETE, LIST, OPEN, READ_AT, RENAME, STAT, SYNC, WRITE_AT
from dxt_replay.replay.engine.link_free import unlink_link_free
from dxt_replay.replay.regress.environment import target_environment
from dxt_replay.replay.simulation.model import Limit
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import MIB

MANY_USES = 1 << 40
"""Uses of a file that stays open until a trial is over."""

CACHED_BYTES = 32 * MIB
"""Bytes of the file whose pages stay in the cache."""

OFF_PAGE_BYTES = 57
"""Offset of the first write to a file, so that no write consists of whole pages: some file systems send parts of a page
one by one, and most written files have such parts."""

FILL_BYTES = MIB
"""Bytes of the reads that fill the page cache."""

FILL_SLICES = 4
"""Most time for filling the cache, in times of a trial. On slow storage fewer pages are cached then."""

MOST_WRITTEN_BYTES = 256 * MIB
"""Most bytes that a trial writes."""


class Bench(Protocol):
    """What issues the requests of a trial."""

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """The requests of one trial; None where the probe is not possible. `pause_ns`: of each lane between two
        requests. Raises: TargetError."""


class FileBench:
    """The files of trials: one that is read cold, one whose pages stay cached, small ones that are opened in turn, and
    new ones that are written.

    stayed_bytes, dropped_bytes: after drops of pages before cold reads, of bytes in all. warnings: of these drops.
    """

    def __init__(self, scratch: Scratch, random: np.random.Generator, seconds: float) -> None:
        self._scratch, self._random, self._made, self._turns = scratch, random, count(), count()
        self._pool = write_pool(scratch, 0.15 * seconds)
        self._cached, self.data = scratch.file("cached"), scratch.file("data")
        self._cached_bytes = write_data(self._cached, min(CACHED_BYTES, scratch.room_bytes // 8), 0.15 * seconds)
        self.data_bytes = write_data(self.data, min(MOST_DATA_BYTES, scratch.room_bytes // 2), 0.7 * seconds)
        self.stayed_bytes = self.dropped_bytes = 0
        self.warnings: dict[str, None] = {}

    def drop(self) -> None:
        """Drop the pages of the data, and note what stayed."""
        self.warnings |= dict.fromkeys(page_cache.drop([self.data]).warnings)
        residency = page_cache.resident([self.data])
        self.stayed_bytes += residency.resident_bytes
        self.dropped_bytes += residency.total_bytes

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """See `Bench.run`. None where the probe does not fit into the data or the free space."""
        kind, size, lanes = probe.kind, probe.size, probe.in_flight
        if kind is Kind.COLD_READ:
            places = spread_offsets(self.data_bytes, size, self._random)
            if len(places) < 2 * lanes:
                return None
            self.drop()
            return self._reads(_opened([self.data]), np.array_split(places, lanes), size, seconds, pause_ns)
        if kind is Kind.SEQUENTIAL_READ:
            self.drop()
            places = np.arange(self.data_bytes // size) * size
            return self._reads(_opened([self.data]), [places], size, seconds, pause_ns)
        if kind is Kind.CACHED_READ:
            files = _opened([self._cached])  # which stays open: its pages may not outlast a close
            filled = self._cached_bytes // FILL_BYTES
            items = lane_items(READ_AT, 0, filled, offset=np.arange(filled) * FILL_BYTES, length=FILL_BYTES)
            fits = FILL_BYTES * len(self._issue(files, [items], FILL_SLICES * seconds).end_ns) // size
            if not fits:
                files.close_all()
                return None
            cached = [size * self._random.integers(0, fits, MAX_ITEMS // 4) for _ in range(lanes)]
            return self._reads(files, cached, size, seconds, pause_ns)
        if kind in (Kind.WRITE, Kind.SYNC):
            most = min(MOST_WRITTEN_BYTES, self._scratch.room_bytes // 4)
            each = min(most // (size * lanes), MAX_ITEMS // 2)
            kinds = [WRITE_AT, SYNC] if kind is Kind.SYNC else [WRITE_AT]
            if not each:
                return None
            made = self._new(lanes)
            offset = OFF_PAGE_BYTES + np.repeat(np.arange(each) * size, len(kinds))
            length = np.tile([size, 0][: len(kinds)], each)
            writes = [
                lane_items(_tiled(kinds, each), lane, len(offset), offset=offset, length=length, pause_ns=pause_ns)
                for lane in range(lanes)
            ]
            return self._on_new_files(made, MANY_USES, writes, seconds, size)
        if kind is Kind.FILES:  # of the pool, the least recently used first
            each, kinds = max(len(self._pool) // lanes, 1), [OPEN, STAT, CLOSE]
            turns = [self._pool[next(self._turns) % len(self._pool)] for _ in range(each * lanes)]
            files = Files([FileSlot(path=path, uses=len(kinds)) for path in turns])
            return self._closed(files, _calls(lanes, each, kinds, pause_ns), seconds)
        each, kinds = max(len(self._pool) // lanes // 2, 1), [OPEN, CLOSE, RENAME]
        made = self._new(2 * each * lanes)  # the file of slot n gets the name of slot n + half
        return self._on_new_files(made, len(kinds), _calls(lanes, each, kinds, pause_ns, each * lanes), seconds)

    def _new(self, number: int) -> list[bytes]:
        return [self._scratch.file(f"made-{next(self._made)}") for _ in range(number)]

    def _issue(self, files: Files, lanes: Sequence[np.ndarray], seconds: float) -> Issued:
        # One at least: on a busy machine a lane may begin when the time of a short trial is over.
        return issue(files, lanes, seconds=seconds, doing=f"measure {self._scratch.path.parent}", least=1)

    def _closed(self, files: Files, lanes: Sequence[np.ndarray], seconds: float) -> Issued:
        try:
            return self._issue(files, lanes, seconds)
        finally:
            files.close_all()

    def _reads(self, files: Files, places: Sequence[np.ndarray], size: int, seconds: float, pause_ns: int) -> Issued:
        lanes = [lane_items(READ_AT, 0, len(each), offset=each, length=size, pause_ns=pause_ns) for each in places]
        return self._closed(files, lanes, seconds)

    def _on_new_files(
        self, paths: list[bytes], uses: int, lanes: Sequence[np.ndarray], seconds: float, payload: int = 0
    ) -> Issued:
        files = Files([FileSlot(path=path, writable=True, create=True, uses=uses) for path in paths])
        if payload:
            files.prepare_payload(payload)
        try:
            return self._closed(files, lanes, seconds)
        finally:
            for path in paths:
                with suppress(FileNotFoundError):
                    unlink_link_free(path)


def _opened(paths: Sequence[bytes]) -> Files:
    return Files([FileSlot(path=path, uses=MANY_USES) for path in paths])


def _tiled(kinds: Sequence[int], times: int) -> np.ndarray:
    return np.tile(np.array(kinds, dtype=np.uint8), times)


def _calls(lanes: int, each: int, kinds: Sequence[int], pause_ns: int, renamed_by: int = 0) -> list[np.ndarray]:
    """For each lane the calls `kinds` on each of its own slots."""
    slots = np.repeat(np.arange(each), len(kinds))
    return [
        lane_items(_tiled(kinds, each), slots + at, len(slots), offset=slots + at + renamed_by, pause_ns=pause_ns)
        for at in range(0, each * lanes, each)
    ]


STEP_BYTES = 64 << 10
"""Bytes of a read that looks for read-ahead."""

SETTLED_S, PATIENCE_S = 0.004, 2.0
"""The cache has settled when no page came for the longer of the first time and twice the slowest read. The second is
the longest wait for that."""


def measure_read_ahead(path: bytes, file_bytes: int, seconds: float) -> ReadAhead:
    """Read a file from its begin, for at most `seconds`. Its pages must have been dropped.

    The pages are looked at through the open file, as another open may drop them. Raises: OSError.
    """
    until = time.monotonic() + seconds
    largest, held, place, quiet, buffer = 0, 0, 0, SETTLED_S, bytearray(STEP_BYTES)
    with open(path, "rb", buffering=0) as file:

        def resident() -> int:
            return page_cache.resident_of(file.fileno(), path).resident_bytes

        if resident() or not page_cache.resident_of(file.fileno(), path).total_bytes:
            return ReadAhead()
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
    return ReadAhead(bytes=largest, dropped_at_open=held > 0 and again < held / 2)


IDLE_S = 0.3
"""Pause before a trial that looks for a throttle, s. The burst that the throttle allows is restored meanwhile."""

LEAST_TRIALS = 3
"""Least number of trials of a cold read with one in flight. They are made even after the time is over."""

REPEATS = 3
"""Further trials of a figure that others contradict. They are made even after the time is over."""

RESERVE = 0.97
"""Share of the time after which no trial begins."""

OnProgress = Callable[[float, float, str], None]
"""Called with seconds passed, seconds in all, and what is being measured."""

_CALLS = {
    Kind.COLD_READ: {READ_AT: ("read", "cold")},
    Kind.CACHED_READ: {READ_AT: ("read", "cached")},
    Kind.SEQUENTIAL_READ: {READ_AT: ("read", "sequential")},
    Kind.WRITE: {WRITE_AT: ("write", "")},
    Kind.SYNC: {WRITE_AT: ("write", "synced"), SYNC: ("sync", "")},
    Kind.FILES: {OPEN: ("open", ""), STAT: ("stat", ""), CLOSE: ("close", "")},
    Kind.CREATE: {OPEN: ("create", ""), RENAME: ("rename", "")},
    Kind.GET: {READ_AT: ("GET", "")},
    Kind.FIRST_BYTE: {READ_AT: ("GET", "first byte")},
    Kind.PUT: {CLOSE: ("PUT", "")},
    Kind.HEAD: {STAT: ("HEAD", "")},
    Kind.LIST: {LIST: ("LIST", "")},
    Kind.COPY: {RENAME: ("CopyObject and DELETE", ""), DELETE: ("DELETE", "")},
}
"""The items of each probe whose times are measured: kind of item -> (call, state)."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Runs trials until the time is over. target: for messages."""

    target: str | Path
    plan: TimePlan
    random: np.random.Generator
    on_progress: OnProgress
    objects: bool = False
    begun: float = field(default_factory=time.monotonic)
    trials: dict[tuple[str, str, int, int], list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    slow: list[Probe] = field(default_factory=list)
    left_out: dict[Probe, None] = field(default_factory=dict)
    rounds: int = 0

    @property
    def _reads(self) -> Kind:
        """The probe of single reads of the storage itself."""
        return Kind.GET if self.objects else Kind.COLD_READ

    @property
    def _needed(self) -> set[tuple[str, str]]:
        """(call, state) of what the model needs."""
        return {("GET", "")} if self.objects else {("read", "cold"), ("read", "cached")}

    @property
    def passed_s(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begun

    def report(self, what: str) -> None:
        """Say what is being measured."""
        self.on_progress(min(self.passed_s, self.plan.seconds), self.plan.seconds, what)

    def bursts(self, bench: Bench) -> list[Passed]:
        """How reads of some sizes pass after a pause."""
        found = []
        for size in BURST_SIZES:
            self.report("throttles")
            time.sleep(IDLE_S)
            issued = bench.run(Probe(self._reads, size, BURST_IN_FLIGHT), seconds=self.plan.burst_s)
            found.append(None if issued is None else passed(size, BURST_IN_FLIGHT, issued.end_ns))
        return [each for each in found if each is not None]

    def measure(self, bench: Bench, limits: Sequence[Limit]) -> tuple[tuple[Measured, ...], list[Measured]]:
        """Run trials; all figures, and those that others contradict.

        The first round goes on until there is what the model needs; that of an object store is always complete, because
        each of its few probes shows another request. Figures that others contradict are repeated: the median of several
        trials leaves out a disturbed one. Where storage is so slow that each single read had one trial, these are
        repeated, too, since one trial shows no spread.
        """
        order, over = scouting_order(self.plan.probes), False
        while not over:
            for probe in order:
                has_the_least = not self.objects and self._needed <= {place[:2] for place in self.trials}
                if self.passed_s > RESERVE * self.plan.seconds and (self.rounds or has_the_least):
                    over = True
                    break
                if probe in self.left_out or any(probe.exceeds(slow) for slow in self.slow):
                    self.left_out[probe] = None
                    continue
                if limits and probe.kind is self._reads and probe.in_flight > 1:
                    continue  # they would wait for the throttle and hide the storage
                self._trial(bench, probe, limits)
            else:
                self.rounds += 1
                # Random, so that drift of the machine affects all probes alike.
                listed = [probe for probe in self.plan.probes if probe not in self.left_out]
                order = [listed[place] for place in self.random.permutation(len(listed))]
        single = _CALLS[self._reads][READ_AT]
        lone = [each for each in self._measured() if (each.call, each.state) == single and each.in_flight == 1]
        if all(each.time_ns.trials == 1 for each in lone):
            for each in lone * (LEAST_TRIALS - 1):
                if each.time_ns.value < 1e9 * self.plan.slice_s:
                    self._trial(bench, Probe(self._reads, each.size), limits)
        for _ in range(REPEATS):
            for each in doubtful(self._measured()):
                kind = next(kind for kind, calls in _CALLS.items() if (each.call, each.state) in calls.values())
                self._trial(bench, Probe(kind, each.size, each.in_flight), limits)
        measured = self._measured()
        disturbed = doubtful(measured)
        return tuple(settled(each, disturbed=each in disturbed) for each in measured), disturbed

    def check(self, measured: Sequence[Measured]) -> None:
        """Raises: TargetError where the storage was too slow for the time."""
        if not self._needed <= {(each.call, each.state) for each in measured if each.in_flight == 1}:
            raise TargetError(
                f"{self.target} is too slow to be measured in {self.plan.seconds / 60:.3g} minutes: give more --minutes"
            )

    def _trial(self, bench: Bench, probe: Probe, limits: Sequence[Limit]) -> None:
        self.report(probe.kind.value)
        pause_s = 0.0  # after which a throttle lets the next read pass at once
        for limit in limits if probe.kind is self._reads else ():
            amount: float = probe.size
            if limit.counts_requests:
                amount = max(1, -(-probe.size // limit.request_bytes)) if limit.request_bytes else 1
            pause_s = max(pause_s, 1.5 * amount / limit.per_s)
        begun = time.monotonic()
        issued = bench.run(probe, seconds=self.plan.slice_s, pause_ns=round(pause_s * 1e9))
        took = time.monotonic() - begun
        if took > self.plan.slow_s and issued is not None:
            self.slow.append(probe)
        if issued is None or took > 2 * self.plan.slow_s:
            self.left_out[probe] = None  # once is enough
        if issued is not None:
            for kind, (call, state) in _CALLS[probe.kind].items():
                times = (issued.end_ns - issued.begin_ns)[issued.kind == kind]
                if len(times):
                    self.trials[call, state, probe.size, probe.in_flight].append(times)

    def _measured(self) -> tuple[Measured, ...]:
        return tuple(Measured.of(*place, trials) for place, trials in sorted(self.trials.items()))
