"""Does a replay with the pace `steps` predict a PyTorch job on slower storage? The job itself is the truth.

`benchmarks.torch_application` runs with its data in the page cache, under Darshan and torch.profiler, and is merged.
Then it runs again with cold data on a block device that a control group throttles, or on a file system on which each
open and read takes some ms, and its first capture is replayed there. Compared is the time of the training loop.

    python -m benchmarks.torch_prediction --python VENV/bin/python --darshan LIB/libdarshan.so
        [--target DIR] [--rate BYTES_PER_S ...] [--slow DIR ...] [--only NAME ...] [--repeat N] [--json]

The interpreter needs torch; --rate needs root, the block I/O controller and a target on a block device. --slow names a
directory on storage that is slow by itself, such as a FUSE file system that waits in open and read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.slowed_storage import CannotThrottleError, run_command, run_in, throttled
from benchmarks.torch_application import TorchTraining
from dxt_replay.traces.store.reader import open_capture

APPLICATIONS = {
    "files, 2 workers": TorchTraining(),
    "files, 2 workers, persistent": TorchTraining(persistent=True),
    "records, 3 workers, prefetch 4": TorchTraining(data="records", workers=3, prefetch=4, persistent=True),
    "shards, 2 workers": TorchTraining(data="shards"),
    "files, no workers": TorchTraining(workers=0),
}
LIMIT_PCT = 10.0
"""Largest error of the predicted time, per cent."""

DARSHAN_CONFIGURATION = r"""MODMEM 256
NAMEMEM 16
MAX_RECORDS 20000 POSIX,STDIO,DXT_POSIX,DXT_STDIO
NAME_EXCLUDE \.(py|pyc|so|pth)$ *
NAME_EXCLUDE ^/(usr|lib|proc|sys|dev|etc) *
MOD_ENABLE DXT_POSIX,DXT_STDIO
"""


class _Jobs:
    """Runs of one application: `folder` is on fast storage and has what is recorded."""

    def __init__(self, training: TorchTraining, arguments: argparse.Namespace, folder: Path) -> None:
        self._training, self._arguments, self._folder = training, arguments, folder
        self.capture = folder / "source.capture"

    def record(self) -> float:
        """Train with the data in the page cache and merge what was recorded; seconds of the training loop."""
        data = self._folder / "data"
        data.mkdir()
        self._training.write(data)
        seconds = self.train(data)
        logs, profile = str(self._folder / "logs"), str(self._folder / "output" / "profile")
        run_command("merge", logs, "--profile", profile, "-o", str(self.capture))
        return seconds

    def train(self, data: Path, procs: Path | None = None) -> float:
        """Train on `data`; seconds of the training loop."""
        logs, output = self._folder / "logs", self._folder / "output"
        for place in (logs, output):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        config, darshan = self._folder / "config.json", self._folder / "darshan.conf"
        chosen = {"training": asdict(self._training), "data": str(data), "output": str(output)}
        config.write_text(json.dumps(chosen), encoding="utf-8")
        darshan.write_text(DARSHAN_CONFIGURATION, encoding="utf-8")
        variables = {
            "DARSHAN_CONFIG_PATH": darshan,
            "DARSHAN_ENABLE_NONMPI": 1,
            "DARSHAN_LOGPATH": logs,
            "DXT_LOGDIR": logs,
            "LD_PRELOAD": self._arguments.darshan,
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        command = ["env", *settings, self._arguments.python, "-W", "ignore", "-m", "benchmarks.torch_application"]
        return float(run_in([*command, str(config)], procs).split()[-1])

    def truth(self, slow: Path, procs: Path | None = None) -> float:
        """Train on cold data in `slow`."""
        data = slow / "data"
        data.mkdir(exist_ok=True)
        for path in self._training.paths(self._folder / "data"):
            if not (data / path.name).exists():
                shutil.copyfile(path, data / path.name)
            _drop(data / path.name)
        return self.train(data, procs)

    def replay(self, slow: Path, procs: Path | None = None) -> float:
        """Replay the capture on cold data in `slow`; seconds from the first step's begin to the last one's end."""
        output = self._folder / "replay.capture"
        options = ("--pace", "steps", "--cold", "--force", "--json", "-o", str(output))
        run_command("run", str(self.capture), "--target", str(slow / "twin"), *options, procs=procs)
        spans = open_capture(output).spans
        steps = spans.filter(pc.equal(spans["kind"], "step"))
        return float(pc.max(steps["end_ns"]).as_py() - pc.min(steps["start_ns"]).as_py()) / 1e9


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Per application and storage: seconds in the cache, true seconds, and what the replay comes to, with medians."""
    rows = []
    for name in arguments.only or APPLICATIONS:
        with tempfile.TemporaryDirectory(prefix="dxt-replay-torch-", dir=arguments.target) as scratch:
            jobs = _Jobs(APPLICATIONS[name], arguments, Path(scratch))
            cached = jobs.record()
            for storage, place, rate in _storages(arguments, Path(scratch)):
                with place as slow:
                    try:
                        row = _row(jobs, slow, rate, arguments.repeat)
                    except CannotThrottleError as error:
                        row = {"skipped": str(error)}
                rows.append({"application": name, "storage": storage, "cached_s": cached, **row})
                print(line(rows[-1]), file=sys.stderr, flush=True)
    worst = max((abs(row["error_pct"]) for row in rows if "error_pct" in row), default=None)
    return {"rows": rows, "worst_error_pct": worst, "required_pct": LIMIT_PCT}


def _row(jobs: _Jobs, slow: Path, rate: int | None, repeat: int) -> dict[str, Any]:
    run_command("stage", str(jobs.capture), "--target", str(slow / "twin"))
    truths: list[float] = []
    replays: list[float] = []
    for _ in range(repeat):
        # A group for each run: in a common one, a run would also get the rate that the one before left unused.
        for runs, run in ((truths, jobs.truth), (replays, jobs.replay)):
            with throttled(slow, rate) if rate else nullcontext() as procs:
                runs.append(run(slow, procs))
    truth, replayed = statistics.median(truths), statistics.median(replays)
    return {
        "truth_s": truths,
        "replayed_s": replays,
        "error_pct": 100.0 * (replayed / truth - 1.0),
    }


def _storages(arguments: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Any, int | None]]:
    """Each storage to predict: its name, a context with a directory on it, and the rate of its control group."""
    for rate in arguments.rate:
        yield f"{rate / 1e6:g} MB/s", nullcontext(scratch), rate
    for slow in arguments.slow:
        yield str(slow), _directory(slow), None


def _drop(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dxt-replay-torch-", dir=parent) as place:
        yield Path(place)


def line(row: dict[str, Any]) -> str:
    """One result for people."""
    what = f"{row['application']:<32} {row['storage']:<24} cached {row['cached_s']:6.2f} s"
    if "skipped" in row:
        return f"{what}  not measured: {row['skipped']}"
    truths, replays = (" ".join(f"{each:.2f}" for each in row[name]) for name in ("truth_s", "replayed_s"))
    return f"{what}  truth {truths} s  replayed {replays} s  {row['error_pct']:+.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    parser.add_argument("--darshan", required=True, help="libdarshan.so, built without MPI")
    parser.add_argument("--target", type=Path, help="directory on the device to be throttled")
    parser.add_argument("--rate", type=int, nargs="*", default=[20_000_000, 8_000_000], help="read rates, bytes per s")
    parser.add_argument("--slow", type=Path, nargs="*", default=[], help="directories on slow storage")
    parser.add_argument("--only", nargs="*", choices=APPLICATIONS, help="applications; all by default")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    os.environ.pop("LD_PRELOAD", None)
    result = measure(chosen)
    if chosen.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"at most {result['worst_error_pct'] or 0.0:.1f} % off (required: {LIMIT_PCT:.0f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
