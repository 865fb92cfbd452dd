"""Checks predictions of a training job for storage on which it was not recorded, against the job itself there.

Each pipeline trains on fast and on slow storage in turn, without a profiler, and its loop is timed by itself. On each
storage one more run is recorded, and its loop's time is printed beside (`its loop`): its excess over the truth is the
cost of recording. Each recording is then replayed, `run --pace steps --cold`, on the storage where it was made and on
the others; with --simulate it is also simulated there, on a calibrated model of that storage. Data are cold at the
begin of each run, and outputs are written to the same storage.

Storages: an ext4 on a loop device (fast); the same through FUSE with libfuse's defaults, 10 ms for each open and read
request; the same for a control group with a limit of bytes, or of requests. Storages that this machine lacks are named
and skipped. For a reliable result nothing else should run; real-time priority is inherited: `chrt --rr 1 python -m
...`.

    python -m benchmarks.pipelines [--only NAME ...] [--storage fuse|bytes|requests ...] [--repeat 3] [--simulate]
        [--library LIBDARSHAN] [--directory DIR] [--keep DIR] [--python PYTHON] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.file_systems.mounted import UnavailableError, own_namespace, why_unavailable
from benchmarks.pipelines.job import PIPELINES
from benchmarks.pipelines.measuring import Pipeline, Place, calibrate, find_tracer, last_line
from benchmarks.pipelines.storages import FAST, SLOW, Storage, fast_folder
from benchmarks.pipelines.verdicts import conclusion, judge, lines, table
from benchmarks.slowed_storage import CannotThrottleError

FAILURES = (RuntimeError, ValueError, OSError, CannotThrottleError)
"""Errors with which a job, a recording or a prediction fails: the table shows the failure, and the others continue."""


class Measurement:
    """The requested pipelines, and the results so far."""

    def __init__(self, chosen: argparse.Namespace, scratch: Path, report: Callable[[str], None]) -> None:
        self._chosen, self._scratch, self._report = chosen, scratch, report
        self._models: dict[str, Path] = {}
        self.rows: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}

    def measure(self) -> dict[str, Any]:
        """All rows."""
        names = self._chosen.only or list(PIPELINES)
        tracer, which = find_tracer(self._chosen.library, self._scratch)
        with ExitStack() as stack:
            base, about = stack.enter_context(fast_folder(self._scratch))
            places = {FAST: Place(storage=Storage(name=FAST, about=about), shown=base, base=base)}
            self._show_slow(stack, base, places)
            if self._chosen.simulate:
                self._calibrate(places)
            for name in names:
                folder = (self._chosen.keep or self._scratch) / name
                self._measure_pipeline(Pipeline(name, self._chosen.python, tracer, folder), places)
        storages = {name: place.storage.about for name, place in places.items()}
        return {"storages": storages, "tracer": which, "rows": self.rows, "skipped": self.skipped}

    def _show_slow(self, stack: ExitStack, base: Path, places: dict[str, Place]) -> None:
        for storage in SLOW:
            if self._chosen.storage and storage.name not in self._chosen.storage:
                continue
            try:
                with storage.group(base):
                    shown = stack.enter_context(storage.shown(base))
            except CannotThrottleError as error:
                self.skipped[storage.name] = str(error)
                continue
            places[storage.name] = Place(storage=storage, shown=shown, base=base)

    def _calibrate(self, places: dict[str, Place]) -> None:
        for name, place in places.items():
            model = self._scratch / f"{name}.json"
            try:
                calibrate(place, model, self._chosen.minutes)
            except FAILURES as error:
                self.skipped[f"simulate on {name}"] = last_line(error)
                continue
            self._models[name] = model
            self._report(f"calibrated: {name}")

    def _measure_pipeline(self, pipeline: Pipeline, places: dict[str, Place]) -> None:
        truths: dict[str, list[float]] = {name: [] for name in places}
        failed: dict[str, str] = {}
        for _ in range(self._chosen.repeat):
            for name, place in places.items():
                try:
                    truths[name].append(pipeline.run(place))
                except FAILURES as error:
                    failed[name] = f"the job failed: {last_line(error)}"
        recorded = {name: _recorded(pipeline, place) for name, place in places.items()}
        for name, place in places.items():
            sources = [source for source in recorded if FAST in (source, name) or source == name]
            predicted = {source: self._predict(pipeline, recorded[source], source, place) for source in sources}
            row = {"pipeline": pipeline.name, "storage": name, "truth_s": truths[name], "predicted": predicted}
            if name in failed:
                row["failed"] = failed[name]
            self.rows.append(judge(row))
            for line in lines(self.rows[-1]):
                self._report(line)
        pipeline.remove_twins(places[FAST].base)

    def _predict(self, pipeline: Pipeline, recorded: dict[str, Any], source: str, place: Place) -> dict[str, Any]:
        if "failed" in recorded:
            return recorded
        found = dict(recorded)
        try:
            found["replayed_s"] = pipeline.replay(source, place)
        except FAILURES as error:
            return {"failed": f"the replay: {last_line(error)}"}
        if place.storage.name in self._models:
            try:
                found["simulated"] = pipeline.simulate(source, self._models[place.storage.name])
            except FAILURES as error:
                found["simulation_failed"] = last_line(error)
        return found


def _recorded(pipeline: Pipeline, place: Place) -> dict[str, Any]:
    """Record a pipeline; returns seconds of its loop, and the tool's statement about storage."""
    try:
        seconds = pipeline.record(place)
        return {"recorded_s": seconds, "opinion": pipeline.opinion(place.storage.name)}
    except FAILURES as error:
        return {"failed": f"the recording: {last_line(error)}"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PIPELINES, help="pipelines; all by default")
    slow = [storage.name for storage in SLOW]
    parser.add_argument("--storage", nargs="+", choices=slow, help="slow storages; all by default")
    parser.add_argument("--repeat", type=int, default=3, help="true runs of each pipeline on each storage")
    parser.add_argument("--simulate", action="store_true", help="calibrate each storage, and simulate on it")
    parser.add_argument("--minutes", type=float, default=3.0, help="time of each calibration")
    parser.add_argument("--library", help="libdarshan.so, where it is not found; without one strace records")
    parser.add_argument("--directory", type=Path, help="where file systems and results are made")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep captures and recordings below DIR, by pipeline")
    parser.add_argument("--python", default=sys.executable, help="interpreter with dxt-replay and the frameworks")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.keep:
        chosen.keep = chosen.keep.absolute()
    os.environ.pop("LD_PRELOAD", None)
    for one in (signal.SIGTERM, signal.SIGHUP):
        # unwinds, so that mounts and images are removed
        signal.signal(one, lambda number, frame: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="dxt-replay-pipelines-", dir=chosen.directory) as scratch:
            result = Measurement(chosen, Path(scratch), lambda line: print(line, file=sys.stderr, flush=True)).measure()
    except UnavailableError as error:
        print(f"not measured: {error}")
        return 0
    print(json.dumps(result | {"conclusion": conclusion(result["rows"])}, indent=2) if chosen.json else table(result))
    return 0


if __name__ == "__main__":
    if why_unavailable("ext4") is None:
        own_namespace([sys.executable, "-m", "benchmarks.pipelines", *sys.argv[1:]])
    sys.exit(main())
