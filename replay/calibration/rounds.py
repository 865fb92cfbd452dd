"""The rounds of trials of a calibration: decides their order, and when the time is over."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from dxt_replay.replay.calibration.estimates import Measured, at_most_p95, doubtful, without_disturbance
from dxt_replay.replay.calibration.issued import Issued
from dxt_replay.replay.calibration.probe_plan import (
    BURST_IN_FLIGHT,
    BURST_SIZES,
    Kind,
    Probe,
    TimePlan,
    random_order,
    scouting_order,
)
from dxt_replay.replay.calibration.throttle import Passed, passed
from dxt_replay.replay.engine.items import CLOSE, DELETE, LIST, OPEN, READ_AT, RENAME, STAT, SYNC, WRITE_AT
from dxt_replay.replay.simulation.model import Limit
from dxt_replay.traces.errors import TargetError

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


class Bench(Protocol):
    """What issues the requests of a trial."""

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """The requests of one trial; None where the probe is not possible. `pause_ns`: of each lane between two
        requests. Raises: TargetError."""


@dataclass(slots=True)
class Rounds:
    """Runs trials until the time is over. `reads`: the probe of single reads of the storage itself.
    `needed`: (call, state) of what the model needs. `target`: for messages."""

    reads: ClassVar[Kind]
    needed: ClassVar[frozenset[tuple[str, str]]]

    target: str | Path
    plan: TimePlan
    random: np.random.Generator
    on_progress: OnProgress
    begun: float = field(default_factory=time.monotonic)
    trials: dict[tuple[str, str, int, int], list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    slow: list[Probe] = field(default_factory=list)
    left_out: dict[Probe, None] = field(default_factory=dict)
    rounds: int = 0

    def bursts(self, bench: Bench) -> list[Passed]:
        found = []
        for size in BURST_SIZES:
            self.report("throttles")
            probe = Probe(kind=self.reads, size=size, in_flight=BURST_IN_FLIGHT)
            time.sleep(IDLE_S)
            issued = bench.run(probe, seconds=self.plan.burst_s)
            found.append(None if issued is None else passed(size, BURST_IN_FLIGHT, issued.end_ns))
        return [each for each in found if each is not None]

    def measure(self, bench: Bench, limits: Sequence[Limit]) -> None:
        """Run rounds of trials until the time is over. The first round goes on until there is what the model needs."""
        order = scouting_order(self.plan.probes)
        while True:
            for probe in order:
                if self._over() and (self.rounds or self.has_the_least()):
                    return
                if probe in self.left_out or any(probe.exceeds(slow) for slow in self.slow):
                    self.left_out[probe] = None
                    continue
                if limits and probe.kind is self.reads and probe.in_flight > 1:
                    continue  # they would wait for the throttle and hide the storage
                self._trial(bench, probe, limits)
            self.rounds += 1
            order = random_order([probe for probe in self.plan.probes if probe not in self.left_out], self.random)

    def _trial(self, bench: Bench, probe: Probe, limits: Sequence[Limit]) -> None:
        self.report(probe.kind.value)
        pause_ns = _pause_ns(probe, limits) if probe.kind is self.reads else 0
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

    def repeat(self, bench: Bench, limits: Sequence[Limit]) -> None:
        """Repeat figures that others contradict: the median of several trials leaves out a disturbed one. Where storage
        is so slow that each single cold read had one trial, repeat these too, since one trial shows no spread."""
        single = _CALLS[self.reads][READ_AT]
        lone = [each for each in self._measured() if (each.call, each.state) == single and each.in_flight == 1]
        if all(each.time_ns.trials == 1 for each in lone):
            for each in lone * (LEAST_TRIALS - 1):
                if each.time_ns.value < 1e9 * self.plan.slice_s:
                    self._trial(bench, Probe(kind=self.reads, size=each.size, in_flight=1), limits)
        for _ in range(REPEATS):
            for each in doubtful(self._measured()):
                self._trial(bench, Probe(kind=_kind_of(each), size=each.size, in_flight=each.in_flight), limits)

    def undisturbed(self) -> tuple[tuple[Measured, ...], list[Measured]]:
        """All figures, and those that others still contradict. The value of these is the median of their requests."""
        measured = self._measured()
        disturbed = doubtful(measured)
        settled = (without_disturbance(each) if each in disturbed else at_most_p95(each) for each in measured)
        return tuple(settled), disturbed

    def has_the_least(self) -> bool:
        """Whether the first round may end."""
        return self.needed <= {place[:2] for place in self.trials}

    def check(self, measured: Sequence[Measured]) -> None:
        """Raises: TargetError where the storage was too slow for the time."""
        if not self.needed <= {(each.call, each.state) for each in measured if each.in_flight == 1}:
            raise TargetError(
                f"{self.target} is too slow to be measured in {self.plan.seconds / 60:.3g} minutes: give more --minutes"
            )

    def _over(self) -> bool:
        return time.monotonic() - self.begun > RESERVE * self.plan.seconds

    def report(self, what: str) -> None:
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
