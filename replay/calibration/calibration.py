"""Calibrates a file system or an object store: measurements, in what order and for how long, and the model of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.calibration.fit import (
    Measured,
    Passed,
    ReadAhead,
    fit_model,
    fit_objects,
    throttles,
)
from dxt_replay.replay.calibration.objects import ObjectFigures, object_bench, object_caveats, object_figures
from dxt_replay.replay.calibration.probes import Probe, plan_time, with_cold_size
from dxt_replay.replay.calibration.scratch import cache_bytes, dirty_bytes, scratch_below
from dxt_replay.replay.calibration.trials import FileBench, OnProgress, Rounds, measure_read_ahead
from dxt_replay.replay.regress.environment import target_environment
from dxt_replay.replay.simulation.model import Limit, StorageModel, document_of
from dxt_replay.replay.target.object_store import parse_object_url
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.plain import Result
from dxt_replay.traces.units import MIB, format_bytes

DISTURBED = 0.25
"""Least uncertainty of the model, as a share, if a figure was disturbed in all of its trials."""

MOST_WINDOW_BYTES = MIB
"""A window of read-ahead up to this size is one more size of the cold reads."""

RESIDENT_PCT = 1.0
"""Share of the pages that stayed after a drop, per cent, above which a sentence reports it."""

WIDE = 0.25
"""Half the width of an interval, as a share of the value, above which a time counts as uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Result):
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


def _about(run: Rounds) -> str:
    return f"Measured by dxt-replay calibrate in {run.passed_s:.0f} s."


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
        run = Rounds(target=target, plan=plan, random=random, on_progress=on_progress)
        run.report("writing data to read")
        bench = FileBench(scratch, random, plan.fill_s)
        run.report("read-ahead")
        bench.drop()
        read_ahead = measure_read_ahead(bench.data, bench.data_bytes, 0.05 * seconds)
        if read_ahead.bytes and read_ahead.bytes <= MOST_WINDOW_BYTES:
            run.plan = with_cold_size(plan, read_ahead.bytes)  # the cache may cut larger reads so
        burst = run.bursts(bench)
        limits = throttles(burst)
        measured, disturbed = run.measure(bench, limits)
        run.check(measured)
        resident = 100.0 * bench.stayed_bytes / bench.dropped_bytes if bench.dropped_bytes else None
        file_system = target_environment(scratch.path).file_system or "file system"
        model = fit_model(
            f"{file_system} at {target}",
            _about(run),
            measured,
            limits,
            read_ahead=read_ahead,
            cache_bytes=cache_bytes(),
            dirty_bytes=dirty_bytes(),
            drops_pages=not bench.warnings,
            least_uncertainty=DISTURBED if disturbed else 0.0,
        )
        return Calibration(
            target=target,
            file_system=file_system,
            seconds=run.passed_s,
            data_bytes=bench.data_bytes,
            model=model,
            measured=measured,
            burst=tuple(burst),
            read_ahead=read_ahead,
            resident_after_drop_pct=resident,
            rounds=run.rounds,
            left_out=tuple(run.left_out),
            unseen=caveats(
                measured,
                limits,
                bench.warnings,
                resident_pct=resident,
                read_ahead=read_ahead,
                disturbed=disturbed,
                data_bytes=bench.data_bytes,
            ),
        )


def calibrate_objects(
    url: str, seconds: float, *, seed: int = 1, on_progress: OnProgress = lambda done, total, what: None
) -> Calibration:
    """Measure the object store of `url` for about `seconds`.

    It reads and writes objects of its own below the prefix, which are removed at the end, also after an error. Where it
    may not write, it reads the objects of a staged twin, and measures no PUT.
    Raises: UsageError for a time that is too short; TargetError for a store that refuses requests.
    """
    plan, place, random = plan_time(seconds, objects=True), parse_object_url(url), np.random.default_rng(seed)
    run = Rounds(target=url, plan=plan, random=random, on_progress=on_progress, objects=True)
    with object_bench(place, random, plan.fill_s, run.report) as bench:
        burst = run.bursts(bench)
        limits = throttles(burst)
        measured, disturbed = run.measure(bench, limits)
        if not any(each.call == "GET" for each in measured) and bench.refused:
            raise TargetError(f"cannot measure {bench.place.base}: {'; '.join(map(': '.join, bench.refused.items()))}")
        run.check(measured)
        model = fit_objects(
            f"object store {place.endpoint or 'of the environment'}, {place.base}",
            _about(run),
            measured,
            limits,
            opens_ask=place.opens_ask,
            least_uncertainty=DISTURBED if disturbed else 0.0,
        )
        return Calibration(
            target=place.url,
            file_system="s3",
            seconds=run.passed_s,
            data_bytes=int(bench.sizes.sum()),
            model=model,
            measured=measured,
            burst=tuple(burst),
            read_ahead=ReadAhead(),
            resident_after_drop_pct=None,
            rounds=run.rounds,
            left_out=tuple(run.left_out),
            unseen=object_caveats(bench.refused, disturbed, bench),
            object_store=object_figures(measured, own_objects=bench.own),
        )


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
    found = [text[:1].upper() + text[1:].rstrip(".") + "." for text in warnings]
    if resident_pct is None:
        found.append("This system does not show which pages are cached, so some cold reads may have been cached reads.")
    elif resident_pct > RESIDENT_PCT:
        found.append(
            f"{resident_pct:.1f} % of the data stayed in the page cache when its pages were dropped: "
            "real cold reads are slower."
        )
    if read_ahead.dropped_at_open:
        found.append("On this file system an open drops the cached pages of the file. The model does so too.")
    if disturbed:
        names = [f"{each.state} {each.call}s of {format_bytes(each.size)}" for each in disturbed]
        found.append(
            f"Other work disturbed each trial of {', '.join(dict.fromkeys(names))}: the model has the median of single "
            "requests there. Calibrate again on an idle machine."
        )
    if read_ahead.bytes is None:
        found.append("How far the kernel reads ahead is not known: the model reads nothing ahead.")
    cold = [each for each in measured if each.state == "cold"]
    wide = [each for each in cold if each.time_ns.half_width > WIDE]
    if 2 * len(wide) > len(cold):
        found.append(
            f"{len(wide)} of {len(cold)} times of cold reads are uncertain by more than {100 * WIDE:.0f} %: other work "
            "on this machine or on the storage disturbed the measurement, or --minutes was short."
        )
    if limits:
        found.append("The throttle of reads hid how many reads the storage serves at the same time.")
    return (
        *found,
        f"Caches of disks, servers and hosts cannot be dropped. The {format_bytes(data_bytes)} that were read had just "
        "been written, so such caches may have served the cold reads.",
        "Only this machine was in use: what other clients would do to a shared file system was not measured.",
        "A write without a sync ends in the page cache, if there is one. How fast the kernel writes it to the storage "
        "later was not measured.",
        "Burst credits that last longer than some seconds, as of a cloud disk, were measured as part of the storage's "
        "speed.",
    )
