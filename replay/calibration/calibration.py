"""Calibrates a file system or an object store: measurements, in what order and for how long, and the model of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.calibration.fit import Measured, Passed, fit_model, fit_objects
from dxt_replay.replay.calibration.objects import object_bench, object_caveats, object_figures
from dxt_replay.replay.calibration.scratch import scratch_below
from dxt_replay.replay.calibration.trials import COLD, FileBench, OnProgress, Probe, Rounds, measure_read_ahead
from dxt_replay.replay.regress.environment import target_environment, text_in
from dxt_replay.replay.simulation.model import PageCache, StorageModel, document_of
from dxt_replay.replay.target.object_store import parse_object_url
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.plain import Result
from dxt_replay.traces.units import MIB, format_bytes
from dxt_replay.traces.workers import available_bytes

FILL_SHARE = 0.12  # Most of the time for writing the data that are read
MOST_WINDOW_BYTES = MIB  # A window of read-ahead up to this size is one more size of the cold reads
RESIDENT_PCT = 1.0  # Share of the pages that stayed after a drop, per cent, above which a sentence reports it
WIDE = 0.25  # Half the width of an interval, as a share of the value, above which a time counts as uncertain


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Result):
    """The result of a calibration of a file system, or of an object store.

    seconds: how long it took. data_bytes: size of the file that was read cold.
    model: the storage model for `simulate`. measured: each figure with its interval.
    burst: reads of each size after a pause, which show a throttle.
    read_ahead_bytes, dropped_at_open: observations of the page cache (`measure_read_ahead`).
    resident_after_drop_pct: share of the pages that stayed in the cache when they were dropped; None if unknown.
    own_objects: of an object store: whether objects of its own were read, otherwise those of a staged twin.
    rounds: complete rounds of trials. left_out: probes that were too slow for the time or too large for the data.
    unseen: sentences on the limits of the calibration."""

    target: str | Path
    file_system: str
    seconds: float
    data_bytes: int
    model: StorageModel
    measured: tuple[Measured, ...]
    burst: tuple[Passed, ...]
    rounds: int
    left_out: tuple[Probe, ...]
    unseen: tuple[str, ...]
    read_ahead_bytes: int | None = None
    dropped_at_open: bool = False
    resident_after_drop_pct: float | None = None
    own_objects: bool = False

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
            "read_ahead_bytes": self.read_ahead_bytes,
            "dropped_at_open": self.dropped_at_open,
            "object_store": object_figures(self.measured, self.own_objects) if self.model.objects else None,
            "throttled": bool(self.model.limits),
            "after_a_pause": [
                {"size_bytes": size, "at_once": at_once, "per_s": per_s, "throttled": throttled, "step_s": step_s}
                for size, at_once, per_s, throttled, step_s in self.burst
            ],
            "times": [each.as_json() for each in self.measured],
            "left_out": [
                {"probe": probe, "size_bytes": size, "in_flight": in_flight} for probe, size, in_flight in self.left_out
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
    random = np.random.default_rng(seed)
    run = Rounds(target, seconds, random, on_progress)
    with scratch_below(target) as (folder, room):
        run.report("writing data to read")
        bench = FileBench(folder, room, random, FILL_SHARE * seconds)
        run.report("read-ahead")
        bench.drop()
        ahead, dropped_at_open = measure_read_ahead(bench.data, bench.data_bytes, 0.05 * seconds)
        if ahead and ahead <= MOST_WINDOW_BYTES:  # the cache may cut larger reads so
            counts = sorted({each.in_flight for each in run.probes if each.kind == COLD})
            run.probes = list(dict.fromkeys([*run.probes, *(Probe(COLD, ahead, count) for count in counts)]))
        run.run(bench)
        run.check()
        file_system = target_environment(folder).file_system or "file system"
    cache = None
    if not bench.warnings:
        cache = PageCache(
            size=cache_bytes(), read_ahead=ahead or 0, dirty=dirty_bytes(), dropped_at_open=dropped_at_open
        )
    model = fit_model(run.measured, run.limits, cache, **run.described(f"{file_system} at {target}"))
    resident = 100.0 * bench.stayed / bench.dropped if bench.dropped else None
    return _result(
        run,
        model,
        target=target,
        file_system=file_system,
        data_bytes=bench.data_bytes,
        unseen=_caveats(run, bench, resident, ahead, dropped_at_open=dropped_at_open),
        read_ahead_bytes=ahead,
        dropped_at_open=dropped_at_open,
        resident_after_drop_pct=resident,
    )


def calibrate_objects(
    url: str, seconds: float, *, seed: int = 1, on_progress: OnProgress = lambda done, total, what: None
) -> Calibration:
    """Measure the object store of `url` for about `seconds`.

    It reads and writes objects of its own below the prefix, which are removed at the end, also after an error. Where it
    may not write, it reads the objects of a staged twin, and measures no PUT.
    Raises: UsageError for a time that is too short; TargetError for a store that refuses requests."""
    place, random = parse_object_url(url), np.random.default_rng(seed)
    run = Rounds(url, seconds, random, on_progress)
    with object_bench(place, random, FILL_SHARE * seconds, run.report) as bench:
        run.run(bench)
        if not any(each.call == "GET" for each in run.measured) and bench.refused:
            raise TargetError(f"cannot measure {bench.place.base}: {'; '.join(map(': '.join, bench.refused.items()))}")
        run.check()
    named = run.described(f"object store {place.endpoint or 'of the environment'}, {place.base}")
    model = fit_objects(run.measured, run.limits, opens_ask=place.opens_ask, **named)
    unseen, data_bytes = object_caveats(run.disturbed, bench), int(bench.sizes.sum())
    return _result(
        run, model, target=place.url, file_system="s3", data_bytes=data_bytes, unseen=unseen, own_objects=bench.own
    )


def _result(run: Rounds, model: StorageModel, **found: Any) -> Calibration:
    return Calibration(
        seconds=run.passed_s,
        model=model,
        measured=run.measured,
        burst=tuple(run.burst),
        rounds=run.rounds,
        left_out=tuple(run.left_out),
        **found,
    )


def cache_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that a page cache can use, bytes; 1 GiB if /proc/meminfo does not tell."""
    return available_bytes(meminfo) or 1 << 30


def dirty_bytes(folder: Path = Path("/proc/sys/vm")) -> int:
    """Bytes of writes that the page cache holds before a writer has to wait (vm.dirty_bytes, vm.dirty_ratio)."""
    texts = [text_in(folder / name) for name in ("dirty_bytes", "dirty_ratio")]
    stated, percent = (int(text) if text.isdigit() else 0 for text in texts)
    return stated or cache_bytes() * (percent or 20) // 100  # 20: the default of Linux


def _caveats(
    run: Rounds, bench: FileBench, resident_pct: float | None, read_ahead: int | None, *, dropped_at_open: bool
) -> tuple[str, ...]:
    """The limits of a model for its reader, the most important first."""
    found = [text[:1].upper() + text[1:].rstrip(".") + "." for text in bench.warnings]
    if resident_pct is None:
        found.append("This system does not show which pages are cached, so some cold reads may have been cached reads.")
    elif resident_pct > RESIDENT_PCT:
        found.append(
            f"{resident_pct:.1f} % of the data stayed in the page cache when its pages were dropped: "
            "real cold reads are slower."
        )
    if dropped_at_open:
        found.append("On this file system an open drops the cached pages of the file. The model does so too.")
    if run.disturbed:
        names = [f"{each.state} {each.call}s of {format_bytes(each.size)}" for each in run.disturbed]
        found.append(
            f"Other work disturbed each trial of {', '.join(dict.fromkeys(names))}: the model has the median of single "
            "requests there. Calibrate again on an idle machine."
        )
    if read_ahead is None:
        found.append("How far the kernel reads ahead is not known: the model reads nothing ahead.")
    cold = [each for each in run.measured if each.state == "cold"]
    wide = [each for each in cold if each.high_ns - each.low_ns > 2 * WIDE * each.time_ns]
    if 2 * len(wide) > len(cold):
        found.append(
            f"{len(wide)} of {len(cold)} times of cold reads are uncertain by more than {100 * WIDE:.0f} %: other work "
            "on this machine or on the storage disturbed the measurement, or --minutes was short."
        )
    if run.limits:
        found.append("The throttle of reads hid how many reads the storage serves at the same time.")
    return (
        *found,
        f"Caches of disks, servers and hosts cannot be dropped. The {format_bytes(bench.data_bytes)} that were read "
        "had just been written, so such caches may have served the cold reads.",
        "Only this machine was in use: what other clients would do to a shared file system was not measured.",
        "A write without a sync ends in the page cache, if there is one. How fast the kernel writes it to the storage "
        "later was not measured.",
        "Burst credits that last longer than some seconds, as of a cloud disk, were measured as part of the storage's "
        "speed.",
    )
