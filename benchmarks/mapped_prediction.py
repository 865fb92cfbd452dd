"""Does a recording of page faults predict mapped input on slower storage?

`benchmarks.mapped_application` runs on fast storage under `record`, with its data dropped from the page cache before.
Then it runs on slow storage, which is the truth. There its capture is replayed with the pace `steps`. Compared is the
time of the training loop.

    python -m benchmarks.mapped_prediction --python VENV/bin/python [--with TRACER] [--only DATA ...]
        [--storage STORAGE ...] [--recorded-on STORAGE] [--repeat N] [--target DIR] [--json]

A storage is `fast` (the target), microseconds that each FUSE request takes, or `device` (the target at 12 MiB/s).

The interpreter needs torch, numpy, safetensors and datasets. Needs root, FUSE and the block I/O controller.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.mapped_application import MappedTraining
from benchmarks.slowed_storage import delayed, run_command, run_in, throttled
from dxt_replay.traces.store.reader import open_capture

DATA = ("tokens", "tensors", "arrow")
STORAGES = ("3000", "15000", "device")
"""Those that are predicted if none is chosen."""
BYTES_PER_S = 12 << 20
LIMIT_PCT = 15.0
"""Largest error of the predicted time, per cent."""


class _Jobs:
    """Runs of one application; `folder` is on fast storage."""

    def __init__(self, data: str, arguments: argparse.Namespace, folder: Path) -> None:
        self._data, self._arguments, self._folder = data, arguments, folder
        self.files, self.twin = folder / "data", folder / "twin"
        for place in (self.files, self.twin):
            place.mkdir()
        self._train(self.files, write=True)
        drop(self.files)
        self.capture = str(folder / "mapped.capture")
        with slow(arguments.recorded_on, self.files) as (files, procs):
            command = self._command(files)
            run_command("record", "--with", arguments.tracer, "-o", self.capture, "--", *command, procs=procs)

    def _command(self, files: Path, *, write: bool = False) -> list[str]:
        config = self._folder / "config.json"
        training = asdict(MappedTraining(data=self._data))
        chosen = {"training": training, "folder": str(files), "output": str(self._folder / "output"), "write": write}
        config.write_text(json.dumps(chosen), encoding="utf-8")
        return [self._arguments.python, "-W", "ignore", "-m", "benchmarks.mapped_application", str(config)]

    def _train(self, files: Path, procs: Path | None = None, *, write: bool = False) -> str:
        return run_in(self._command(files, write=write), procs)

    def truth(self, storage: str) -> float:
        """Train on cold data on this storage; seconds of the training loop."""
        drop(self.files)
        with slow(storage, self.files) as (files, procs):
            return float(self._train(files, procs).split()[-1])

    def replay(self, storage: str) -> float:
        """Replay on a cold twin on this storage; seconds from the first step's begin to the last one's end."""
        capture, output = self.capture, self._folder / "replay.capture"
        self.twin.mkdir(exist_ok=True)
        run_command("stage", capture, "--target", str(self.twin))
        drop(self.twin)
        with slow(storage, self.twin) as (twin, procs):
            options = ("--pace", "steps", "--cold", "--force", "-o", str(output))
            run_command("run", capture, "--target", str(twin), *options, procs=procs)
        run_command("stage", capture, "--target", str(self.twin), "--remove")
        spans = open_capture(output).spans
        steps = spans.filter(pc.equal(spans["kind"], "step"))
        return float(pc.max(steps["end_ns"]).as_py() - pc.min(steps["start_ns"]).as_py()) / 1e9


@contextmanager
def slow(storage: str, folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """`folder` on a storage of this name (see above), and the control group to join."""
    if storage == "fast":
        yield folder, None
    elif storage == "device":
        with throttled(folder, BYTES_PER_S) as procs:
            yield folder, procs
    else:
        with delayed(folder, int(storage)) as mount:
            yield mount, None


def drop(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Per application and storage: true and predicted seconds."""
    rows: list[dict[str, Any]] = []
    for data in arguments.only or DATA:
        with tempfile.TemporaryDirectory(prefix="dxt-replay-mapped-", dir=arguments.target) as scratch:
            jobs = _Jobs(data, arguments, Path(scratch))
            for storage in arguments.storage:
                found: dict[str, list[float]] = {"truth_s": [], "replayed_s": []}
                for _ in range(arguments.repeat):
                    found["truth_s"].append(jobs.truth(storage))
                    found["replayed_s"].append(jobs.replay(storage))
                error = 100.0 * (statistics.median(found["replayed_s"]) / statistics.median(found["truth_s"]) - 1.0)
                rows.append({"data": data, "storage": storage, **found, "error_pct": error})
                print(line(rows[-1]), file=sys.stderr, flush=True)
    return {"rows": rows, "worst_error_pct": max(abs(row["error_pct"]) for row in rows), "required_pct": LIMIT_PCT}


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    times = "  ".join(f"{name[:-2]} {statistics.median(row[name]):.2f}" for name in row if name.endswith("_s"))
    return f"{row['data']:<8} {row['storage']:>7}  {times}  {row['error_pct']:+.1f} %"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--with", dest="tracer", default="darshan")
    parser.add_argument("--only", nargs="*", choices=DATA)
    parser.add_argument("--storage", nargs="*", default=STORAGES)
    parser.add_argument("--recorded-on", default="fast", metavar="STORAGE")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments)
    print(json.dumps(result, indent=1) if arguments.json else f"worst error {result['worst_error_pct']:.1f} %")


if __name__ == "__main__":
    main()
