"""Runs a calibration: decides the measurements, their order and duration, and makes the model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.calibration.caveats import caveats
from dxt_replay.replay.calibration.doubts import doubtful, without_disturbance
from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.host import cache_bytes, dirty_bytes, file_system_of
from dxt_replay.replay.calibration.issued import Issued
from dxt_replay.replay.calibration.model_fit import fit_model
from dxt_replay.replay.calibration.probe_plan import (
    BURST_IN_FLIGHT,
    BURST_SIZES,
    Kind,
    Probe,
    TimePlan,
    plan_time,
    random_order,
    scouting_order,
    with_cold_size,
)
from dxt_replay.replay.calibration.read_ahead import ReadAhead, measure_read_ahead
from dxt_replay.replay.calibration.scratch import MOST_DATA_BYTES, Scratch, scratch_below, write_data, write_pool
from dxt_replay.replay.calibration.throttle import Passed, passed, throttles
from dxt_replay.replay.calibration.trials import Bench
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, STAT, SYNC, WRITE_AT
from dxt_replay.replay.simulation.model_file import document_of
from dxt_replay.replay.simulation.storage_model import Limit, StorageModel
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import MIB

CACHED_BYTES = 32 * MIB
"""Bytes of the file whose pages stay in the cache."""

IDLE_S = 0.3
"""Pause before a trial that looks for a throttle, s. The burst that the throttle allows is restored meanwhile."""

DISTURBED = 0.25
"""Least uncertainty of the model, as a share, if a figure was disturbed in all of its trials."""

LEAST_TRIALS = 3
"""Least number of trials of a cold read with one in flight. They are made even after the time is over."""

MOST_WINDOW_BYTES = MIB
"""A window of read-ahead up to this size is one more size of the cold reads."""

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
}
"""The items of each probe whose times are measured: kind of item -> (call, state)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a calibration.

    seconds: how long it took. data_bytes: size of the file that was read cold.
    model: the storage model for `simulate`. measured: each figure with its interval.
    burst: reads of each size after a pause, which show a throttle. read_ahead: observations of the page cache.
    resident_after_drop_pct: share of the pages that stayed in the cache when they were dropped; None if unknown.
    rounds: complete rounds of trials. left_out: probes that were too slow for the time or too large for the data.
    unseen: sentences on the limits of the calibration.
    """

    target: Path
    file_system: str
    seconds: float
    data_bytes: int
    model: StorageModel
    measured: tuple[Measured, ...]
    burst: tuple[Passed, ...]
    read_ahead: ReadAhead
    resident_after_drop_pct: float | None
    rounds: int
    left_out: tuple[Probe, ...]
    unseen: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The contents of the model file: the storage model, and the figures under the key `measured`."""
        return document_of(self.model) | {"measured": self.as_json()}

    def as_json(self) -> dict[str, Any]:
        """The figures besides the model."""
        return {
            "target": str(self.target),
            "file_system": self.file_system,
            "seconds": round(self.seconds, 3),
            "data_bytes": self.data_bytes,
            "rounds": self.rounds,
            "resident_after_drop_pct": self.resident_after_drop_pct,
            "read_ahead_bytes": self.read_ahead.bytes,
            "dropped_at_open": self.read_ahead.dropped_at_open,
            "throttled": bool(self.model.limits),
            "after_a_pause": [
                {
                    "size_bytes": each.size,
                    "at_once": each.burst,
                    "per_s": each.per_s,
                    "throttled": each.throttled,
                    "step_s": each.step_s,
                }
                for each in self.burst
            ],
            "times": [each.as_json() for each in self.measured],
            "left_out": [
                {"probe": probe.kind.value, "size_bytes": probe.size, "in_flight": probe.in_flight}
                for probe in self.left_out
            ],
            "unseen": list(self.unseen),
        }


def calibrate(
    target: Path, seconds: float, *, seed: int = 1, on_progress: OnProgress = lambda done, total, what: None
) -> Calibration:
    """Measure the file system of `target` for about `seconds`.

    It works in a directory of its own below the target, which is removed at the end, also after an error.
    Raises: UsageError for a time that is too short; TargetError for a target that is absent, full or refuses requests.
    """
    plan = plan_time(seconds)
    with scratch_below(target) as scratch:
        return _Run(target, plan, scratch, np.random.default_rng(seed), on_progress).result()


@dataclass(slots=True)
class _Run:
    target: Path
    plan: TimePlan
    scratch: Scratch
    random: np.random.Generator
    on_progress: OnProgress
    begun: float = field(default_factory=time.monotonic)
    trials: dict[tuple[str, str, int, int], list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    slow: list[Probe] = field(default_factory=list)
    left_out: dict[Probe, None] = field(default_factory=dict)
    rounds: int = 0

    def result(self) -> Calibration:
        bench = self._bench()
        read_ahead = self._read_ahead(bench)
        if read_ahead.bytes and read_ahead.bytes <= MOST_WINDOW_BYTES:
            self.plan = with_cold_size(self.plan, read_ahead.bytes)  # the cache may cut larger reads so
        burst = self._bursts(bench)
        limits = throttles(burst)
        self._measure(bench, limits)
        self._repeat(bench, limits)
        measured, disturbed = self._undisturbed()
        self._check(measured)
        dropped = bench.dropped
        resident = 100.0 * dropped.stayed_bytes / dropped.total_bytes if dropped.total_bytes else None
        file_system = file_system_of(self.scratch.path)
        unseen = caveats(
            measured,
            limits,
            dropped.warnings,
            resident_pct=resident,
            read_ahead=read_ahead,
            disturbed=disturbed,
            data_bytes=bench.data_bytes,
        )
        model = fit_model(
            f"{file_system} at {self.target}",
            f"Measured by dxt-replay calibrate in {time.monotonic() - self.begun:.0f} s.",
            measured,
            limits,
            read_ahead=read_ahead.bytes or 0,
            dropped_at_open=read_ahead.dropped_at_open,
            cache_bytes=cache_bytes(),
            dirty_bytes=dirty_bytes(),
            drops_pages=not dropped.warnings,
            least_uncertainty=DISTURBED if disturbed else 0.0,
        )
        return Calibration(
            target=self.target,
            file_system=file_system,
            seconds=time.monotonic() - self.begun,
            data_bytes=bench.data_bytes,
            model=model,
            measured=measured,
            burst=tuple(burst),
            read_ahead=read_ahead,
            resident_after_drop_pct=resident,
            rounds=self.rounds,
            left_out=tuple(self.left_out),
            unseen=unseen,
        )

    def _bench(self) -> Bench:
        """Write the files that the trials read."""
        plan, scratch = self.plan, self.scratch
        self._report("writing data to read")
        pool = write_pool(scratch, 0.15 * plan.fill_s)
        cached = scratch.file("cached")
        cached_bytes = write_data(cached, min(CACHED_BYTES, scratch.room_bytes // 8), 0.15 * plan.fill_s)
        data = scratch.file("data")
        data_bytes = write_data(data, min(MOST_DATA_BYTES, scratch.room_bytes // 2), 0.7 * plan.fill_s)
        return Bench(
            scratch=scratch,
            data=data,
            data_bytes=data_bytes,
            cached=cached,
            cached_bytes=cached_bytes,
            pool=tuple(pool),
            random=self.random,
        )

    def _read_ahead(self, bench: Bench) -> ReadAhead:
        self._report("read-ahead")
        bench.drop()
        return measure_read_ahead(bench.data, bench.data_bytes, 0.05 * self.plan.seconds)

    def _bursts(self, bench: Bench) -> list[Passed]:
        found = []
        for size in BURST_SIZES:
            self._report("throttles")
            probe = Probe(kind=Kind.COLD_READ, size=size, in_flight=BURST_IN_FLIGHT)
            time.sleep(IDLE_S)
            issued = bench.run(probe, seconds=self.plan.burst_s)
            found.append(None if issued is None else passed(size, BURST_IN_FLIGHT, issued.end_ns))
        return [each for each in found if each is not None]

    def _measure(self, bench: Bench, limits: Sequence[Limit]) -> None:
        """Run rounds of trials until the time is over. The first round goes on until there are times of cold and of
        cached reads."""
        order = scouting_order(self.plan.probes)
        while True:
            for probe in order:
                if self._over() and (self.rounds or self._has_the_least()):
                    return
                if probe in self.left_out or any(probe.exceeds(slow) for slow in self.slow):
                    self.left_out[probe] = None
                    continue
                if limits and probe.kind is Kind.COLD_READ and probe.in_flight > 1:
                    continue  # they would wait for the throttle and hide the storage
                self._trial(bench, probe, limits)
            self.rounds += 1
            order = random_order([probe for probe in self.plan.probes if probe not in self.left_out], self.random)

    def _trial(self, bench: Bench, probe: Probe, limits: Sequence[Limit]) -> None:
        self._report(probe.kind.value)
        pause_ns = _pause_ns(probe, limits) if probe.kind is Kind.COLD_READ else 0
        begun = time.monotonic()
        issued = bench.run(probe, seconds=self.plan.slice_s, pause_ns=pause_ns)
        if issued is None:
            self.left_out[probe] = None
            return
        if time.monotonic() - begun > self.plan.slow_s:
            self.slow.append(probe)
            if time.monotonic() - begun > 2 * self.plan.slow_s:
                self.left_out[probe] = None  # once is enough
        self._keep(probe, issued)

    def _keep(self, probe: Probe, issued: Issued) -> None:
        for kind, (call, state) in _CALLS[probe.kind].items():
            times = issued.of_kind(kind).latency_ns
            if len(times):
                self.trials[call, state, probe.size, probe.in_flight].append(times)

    def _measured(self) -> tuple[Measured, ...]:
        return tuple(Measured.of(*place, trials) for place, trials in sorted(self.trials.items()))

    def _repeat(self, bench: Bench, limits: Sequence[Limit]) -> None:
        """Repeat figures that others contradict: the median of several trials leaves out a disturbed one. Where storage
        is so slow that each single cold read had one trial, repeat these too, since one trial shows no spread."""
        lone = [each for each in self._measured() if each.state == "cold" and each.in_flight == 1]
        if all(each.time_ns.trials == 1 for each in lone):
            for each in lone * (LEAST_TRIALS - 1):
                if each.time_ns.value < 1e9 * self.plan.slice_s:
                    self._trial(bench, Probe(kind=Kind.COLD_READ, size=each.size, in_flight=1), limits)
        for _ in range(REPEATS):
            for each in doubtful(self._measured()):
                self._trial(bench, Probe(kind=_kind_of(each), size=each.size, in_flight=each.in_flight), limits)

    def _undisturbed(self) -> tuple[tuple[Measured, ...], list[Measured]]:
        """All figures, and those that others still contradict. The value of these is the median of their requests."""
        measured = self._measured()
        disturbed = doubtful(measured)
        return tuple(without_disturbance(each) if each in disturbed else each for each in measured), disturbed

    def _has_the_least(self) -> bool:
        """Whether cold and cached reads were measured, which a model needs."""
        return all(any(place[:2] == ("read", state) for place in self.trials) for state in ("cold", "cached"))

    def _check(self, measured: Sequence[Measured]) -> None:
        """Raises: TargetError where the storage was too slow for the time."""
        alone = {each.state for each in measured if each.call == "read" and each.in_flight == 1}
        if not {"cold", "cached"} <= alone:
            raise TargetError(
                f"{self.target} is too slow to be measured in {self.plan.seconds / 60:.3g} minutes: give more --minutes"
            )

    def _over(self) -> bool:
        return time.monotonic() - self.begun > RESERVE * self.plan.seconds

    def _report(self, what: str) -> None:
        self.on_progress(min(time.monotonic() - self.begun, self.plan.seconds), self.plan.seconds, what)


def _kind_of(measured: Measured) -> Kind:
    """The kind of probe that measures a figure."""
    return next(kind for kind, calls in _CALLS.items() if (measured.call, measured.state) in calls.values())


def _pause_ns(probe: Probe, limits: Sequence[Limit]) -> int:
    """A pause between reads after which a throttle lets the next one pass at once."""
    seconds = 0.0
    for limit in limits:
        amount: float = probe.size
        if limit.counts_requests:
            amount = max(1, -(-probe.size // limit.request_bytes)) if limit.request_bytes else 1
        seconds = max(seconds, 1.5 * amount / limit.per_s)
    return round(seconds * 1e9)
