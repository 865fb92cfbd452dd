"""Runs a job, records it, and predicts it from its recordings on the same and on another storage."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.pipelines.job import PIPELINES
from benchmarks.pipelines.storages import Storage, drop_pages
from benchmarks.slowed_storage import run_command, run_in
from dxt_replay.traces.store.reader import open_capture

JOB = Path(__file__).with_name("job.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An existing storage: `shown` is its folder, `base` the same folder on the fast storage below it."""

    storage: Storage
    shown: Path
    base: Path

    @contextmanager
    def cold(self, name: str) -> Iterator[tuple[Path, Path | None]]:
        """A folder on it without any page in the page cache, and the control group to join."""
        drop_pages(self.shown / name, self.base / name)
        with self.storage.group(self.base) as procs:
            yield self.shown / name, procs


class Pipeline:
    """One job: its runs, its recordings (below `folder`) and its predictions. Raises: RuntimeError if one fails."""

    def __init__(self, name: str, python: str, tracer: tuple[str, ...], folder: Path) -> None:
        self.name = name
        self._python, self._tracer, self._folder = python, tracer, folder
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, place: Place) -> float:
        """Seconds of its training loop, without a profiler and a tracer."""
        with self._cold_data(place) as (data, procs):
            return _result(run_in(self._command(place, data), procs))

    def record(self, place: Place) -> float:
        """Record it; returns seconds of its training loop meanwhile."""
        capture = self.capture(place.storage.name)
        with self._cold_data(place) as (data, procs):
            options = ("-o", str(capture), "--force", *self._tracer, "--", *self._command(place, data), "--recording")
            return _result(run_command("record", *options, procs=procs))

    def capture(self, storage: str) -> Path:
        """Its recording on a storage."""
        return self._folder / f"{storage}.capture"

    def opinion(self, storage: str) -> dict[str, Any]:
        """The statement of `summary` about storage in the recording: `limit_pct`, or None and a `reason`."""
        summary = json.loads(run_command("summary", str(self.capture(storage)), "--json"))
        limit = summary.get("storage_limit") or {}
        return {"limit_pct": limit.get("limit_pct"), "reason": limit.get("reason")}

    def replay(self, recorded_on: str, place: Place) -> float:
        """Seconds from the first step's begin to the last one's end in a replay with the pace `steps`."""
        twin, output = f"twin-{recorded_on}", self._folder / "replay.capture"
        if not (place.base / twin).exists():
            (place.base / twin).mkdir()
            run_command("stage", str(self.capture(recorded_on)), "--target", str(place.base / twin))
        with place.cold(twin) as (target, procs):
            options = ("--target", str(target), "-o", str(output), "--pace", "steps", "--cold", "--force", "--json")
            run_command("run", str(self.capture(recorded_on)), *options, procs=procs)
        spans = open_capture(output).spans
        steps = spans.filter(pc.equal(spans["kind"], "step"))
        if not len(steps):
            raise RuntimeError("the replay has no training steps")
        return float(pc.max(steps["end_ns"]).as_py() - pc.min(steps["start_ns"]).as_py()) / 1e9

    def simulate(self, recorded_on: str, model: Path) -> dict[str, Any]:
        """Seconds of the training loop on a calibrated storage, and their interval."""
        return simulated_loop(
            json.loads(run_command("simulate", str(self.capture(recorded_on)), "--storage", str(model), "--json"))
        )

    def remove_twins(self, base: Path) -> None:
        """Remove what `replay` staged."""
        for twin in base.glob("twin-*"):
            shutil.rmtree(twin)

    @contextmanager
    def _cold_data(self, place: Place) -> Iterator[tuple[Path, Path | None]]:
        kind = PIPELINES[self.name][0]
        self._make_data(place.base, kind)
        (place.base / "output").mkdir(exist_ok=True)
        with place.cold(kind) as found:
            yield found

    def _make_data(self, base: Path, kind: str) -> None:
        """Write its data set, unless it exists. An error (a missing framework) stops only this job."""
        if not (base / kind).exists():
            begun = base / f"{kind}.new"
            shutil.rmtree(begun, ignore_errors=True)
            run_in([self._python, str(JOB), "make", str(begun), kind], None)
            begun.rename(base / kind)

    def _command(self, place: Place, data: Path) -> list[str]:
        return [self._python, "-W", "ignore", str(JOB), "train", str(data), self.name, str(place.shown / "output")]


def calibrate(place: Place, model: Path, minutes: float) -> None:
    """Measure a storage, for `Pipeline.simulate`."""
    with place.storage.group(place.base) as procs:
        options = ("-o", str(model), "--minutes", str(minutes), "--force", "-q")
        run_command("calibrate", "--target", str(place.shown), *options, procs=procs)


def find_tracer(library: str | None, scratch: Path) -> tuple[tuple[str, ...], str]:
    """Options of `record` for a tracer that works here, and its name: Darshan, else strace."""
    darshan = ("--library", library) if library else ()
    probe = [sys.executable, "-c", f"open({str(JOB)!r}).read()"]
    try:
        run_command("record", "-o", str(scratch / "probe.capture"), "--force", *darshan, "--", *probe)
    except RuntimeError as error:
        why = last_line(error).rpartition("error: ")[2]
        return ("--with", "strace"), f"strace, because Darshan cannot be used: {why}"
    return darshan, "darshan"


def last_line(error: Exception) -> str:
    """The last line of an error in a program's output, else the last line of the output."""
    said = str(error).strip().splitlines() or [""]
    return next((line for line in reversed(said) if "rror: " in line), said[-1])


def simulated_loop(result: Mapping[str, Any]) -> dict[str, Any]:
    """The training loop of a simulated run, without the time before and after it that `elapsed_s` includes."""
    return {"seconds": result["training_s"], "interval_s": result["training_interval_s"]}


def _result(printed: str) -> float:
    found = json.loads(printed.strip().splitlines()[-1])
    return float(found["loop_s"])
