"""Runs a calibration: decides the measurements, their order and duration, and makes the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.host import cache_bytes, dirty_bytes, file_system_of
from dxt_replay.replay.calibration.model_fit import fit_model
from dxt_replay.replay.calibration.object_figures import ObjectFigures
from dxt_replay.replay.calibration.probe_plan import (
    Kind,
    Probe,
    plan_time,
    with_cold_size,
)
from dxt_replay.replay.calibration.read_ahead import ReadAhead, measure_read_ahead
from dxt_replay.replay.calibration.rounds import OnProgress, Rounds
from dxt_replay.replay.calibration.scratch import MOST_DATA_BYTES, Scratch, scratch_below, write_data, write_pool
from dxt_replay.replay.calibration.throttle import Passed, throttles
from dxt_replay.replay.calibration.trials import Bench
from dxt_replay.replay.simulation.model import Limit, StorageModel, document_of
from dxt_replay.traces.units import MIB, format_bytes

CACHED_BYTES = 32 * MIB
"""Bytes of the file whose pages stay in the cache."""

DISTURBED = 0.25
"""Least uncertainty of the model, as a share, if a figure was disturbed in all of its trials."""

MOST_WINDOW_BYTES = MIB
"""A window of read-ahead up to this size is one more size of the cold reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a calibration of a file system, or of an object store.

    seconds: how long it took. data_bytes: size of the file that was read cold.
    model: the storage model for `simulate`. measured: each figure with its interval.
    burst: reads of each size after a pause, which show a throttle. read_ahead: observations of the page cache.
    resident_after_drop_pct: share of the pages that stayed in the cache when they were dropped; None if unknown.
    object_store: what is known of an object store alone; None for a file system.
    rounds: complete rounds of trials. left_out: probes that were too slow for the time or too large for the data.
    unseen: sentences on the limits of the calibration.
    """

    target: str | Path
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
    object_store: ObjectFigures | None = None

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
            "object_store": None if self.object_store is None else asdict(self.object_store),
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
        random = np.random.default_rng(seed)
        return _Run(target=target, plan=plan, random=random, on_progress=on_progress, scratch=scratch).result()


@dataclass(slots=True, kw_only=True)
class _Run(Rounds):
    reads: ClassVar[Kind] = Kind.COLD_READ
    needed: ClassVar[frozenset[tuple[str, str]]] = frozenset({("read", "cold"), ("read", "cached")})

    scratch: Scratch

    def result(self) -> Calibration:
        bench = self._bench()
        read_ahead = self._read_ahead(bench)
        if read_ahead.bytes and read_ahead.bytes <= MOST_WINDOW_BYTES:
            self.plan = with_cold_size(self.plan, read_ahead.bytes)  # the cache may cut larger reads so
        burst = self.bursts(bench)
        limits = throttles(burst)
        self.measure(bench, limits)
        self.repeat(bench, limits)
        measured, disturbed = self.undisturbed()
        self.check(measured)
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
        self.report("writing data to read")
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
        self.report("read-ahead")
        bench.drop()
        return measure_read_ahead(bench.data, bench.data_bytes, 0.05 * self.plan.seconds)


RESIDENT_PCT = 1.0
"""Share of the pages that stayed after a drop, per cent, above which a sentence reports it."""

WIDE = 0.25
"""Half the width of an interval, as a share of the value, above which a time counts as uncertain."""


def caveats(
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    warnings: Iterable[str],
    *,
    resident_pct: float | None,
    read_ahead: ReadAhead,
    disturbed: Sequence[Measured],
    data_bytes: int,
) -> tuple[str, ...]:
    """The limits of a model for its reader, the most important first. `warnings`: of the issue loop and of drops."""
    found = [_sentence(warning) for warning in warnings]
    if resident_pct is not None and resident_pct > RESIDENT_PCT:
        found.append(
            f"{resident_pct:.1f} % of the data stayed in the page cache when its pages were dropped: "
            "real cold reads are slower."
        )
    if resident_pct is None:
        found.append("This system does not show which pages are cached, so some cold reads may have been cached reads.")
    if read_ahead.dropped_at_open:
        found.append("On this file system an open drops the cached pages of the file. The model does so too.")
    if disturbed:
        names = ", ".join(
            dict.fromkeys(f"{each.state} {each.call}s of {format_bytes(each.size)}" for each in disturbed)
        )
        found.append(
            f"Other work disturbed each trial of {names}: the model has the median of single requests there. "
            "Calibrate again on an idle machine."
        )
    if read_ahead.bytes is None:
        found.append("How far the kernel reads ahead is not known: the model reads nothing ahead.")
    wide = [each for each in measured if each.state == "cold" and each.time_ns.half_width > WIDE]
    cold = [each for each in measured if each.state == "cold"]
    if 2 * len(wide) > len(cold):
        found.append(
            f"{len(wide)} of {len(cold)} times of cold reads are uncertain by more than {100 * WIDE:.0f} %: other work "
            "on this machine or on the storage disturbed the measurement, or --minutes was short."
        )
    if limits:
        found.append("The throttle of reads hid how many reads the storage serves at the same time.")
    found += (
        f"Caches of disks, servers and hosts cannot be dropped. The {format_bytes(data_bytes)} that were read had just "
        "been written, so such caches may have served the cold reads.",
        "Only this machine was in use: what other clients would do to a shared file system was not measured.",
        "A write without a sync ends in the page cache, if there is one. How fast the kernel writes it to the storage "
        "later was not measured.",
        "Burst credits that last longer than some seconds, as of a cloud disk, were measured as part of the storage's "
        "speed.",
    )
    return tuple(found)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
