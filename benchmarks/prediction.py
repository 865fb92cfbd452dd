"""Checks whether a replay with the pace `steps` predicts an application on slower storage, against the application
itself.

A training application (`benchmarks.training_application`) runs with its data in the page cache and records itself.
Then the storage is made slow: the block device is throttled by a control group, the page cache dropped. There the
application runs again, which is the truth, and its first capture is replayed there in each pace.

Needs root, the block I/O controller and a target on a block device; without them it reports what is missing.

    python -m benchmarks.prediction [--json] [--target DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.slowed_storage import CannotThrottleError, run_command, run_in, throttled
from benchmarks.training_application import READ_BYTES, Training

APPLICATIONS = {
    "serial": Training(),
    "prefetch 1": Training(depth=1),
    "prefetch 4": Training(depth=4),
    "four readers": Training(depth=8, readers=4),
    "two ranks, serial": Training(ranks=2, steps=40),
    "two ranks, prefetch 2": Training(ranks=2, steps=40, depth=2),
}
BYTES_PER_S = (20_000_000, 10_000_000)
"""Read rates that are so low that the controller's slices of 100 ms are short relative to a run."""
PACES = ("steps", "think", "timed")
LIMIT_PCT = 10.0
"""Largest error of the predicted time, per cent; a first trial reached 4 to 10 %."""


def measure(target: Path | None = None) -> dict[str, Any]:
    """Per application and rate: seconds in the cache, true seconds when throttled, and the predicted seconds of each
    pace."""
    with tempfile.TemporaryDirectory(prefix="dxt-replay-prediction-", dir=target) as folder:
        try:
            rows = [
                _row(name, training, rate, Path(folder))
                for name, training in APPLICATIONS.items()
                for rate in BYTES_PER_S
            ]
        except CannotThrottleError as error:
            return {"skipped": str(error), "rows": []}
    worst = max(abs(row["error_pct"]["steps"]) for row in rows)
    return {"rows": rows, "worst_steps_error_pct": worst, "required_pct": LIMIT_PCT}


def _row(name: str, training: Training, rate: int, folder: Path) -> dict[str, Any]:
    data, capture, twin = folder / "data", folder / "source.capture", folder / "twin"
    with data.open("wb") as file:
        rng = np.random.default_rng(3)
        for _ in range(training.blocks):
            file.write(rng.bytes(READ_BYTES))
        file.flush()
        os.fsync(file.fileno())
    cached = _train(training, data, capture, folder, cold=False)
    run_command("stage", str(capture), "--target", str(twin))
    replayed = {}
    # A group for each run: in a shared one, a run would also get the rate that the previous run left unused.
    with throttled(folder, rate) as procs:
        truth = _train(training, data, folder / "slow.capture", folder, cold=True, procs=procs)
    for pace in PACES:
        output = str(folder / "replay.capture")
        with throttled(folder, rate) as procs:
            printed = run_command(
                "run",
                str(capture),
                "--target",
                str(twin),
                "-o",
                output,
                "--pace",
                pace,
                "--cold",
                "--force",
                "--json",
                procs=procs,
            )
        replayed[pace] = json.loads(printed)["elapsed_s"]
    run_command("stage", str(capture), "--target", str(twin), "--remove")
    return {
        "application": name,
        "bytes_per_s": rate,
        "cached_s": cached,
        "truth_s": truth,
        "replayed_s": replayed,
        "error_pct": {pace: 100.0 * (seconds / truth - 1.0) for pace, seconds in replayed.items()},
    }


def _train(
    training: Training, data: Path, capture: Path, folder: Path, *, cold: bool, procs: Path | None = None
) -> float:
    config = folder / "config.json"
    chosen = {"training": asdict(training), "data": str(data), "capture": str(capture), "cold": cold}
    config.write_text(json.dumps(chosen), encoding="utf-8")
    return float(run_in([sys.executable, "-m", "benchmarks.training_application", str(config)], procs))


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    if "skipped" in result:
        return f"not measured: {result['skipped']}"
    lines = [f"{'application':<22} {'MB/s':>5} {'cached':>8} {'truth':>8}" + "".join(f" {p:>16}" for p in PACES)]
    for row in result["rows"]:
        replayed = "".join(f" {row['replayed_s'][p]:>7.2f}s {row['error_pct'][p]:>+6.1f}%" for p in PACES)
        rate = row["bytes_per_s"] / 1e6
        lines.append(
            f"{row['application']:<22} {rate:>5.0f} {row['cached_s']:>7.2f}s {row['truth_s']:>7.2f}s{replayed}"
        )
    lines.append(
        f"steps: at most {result['worst_steps_error_pct']:.1f} % off (required: {result['required_pct']:.0f} %)"
    )
    return "\n".join(lines)


def main() -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--target", type=Path, help="directory on the device to be throttled")
    arguments = parser.parse_args()
    result = measure(arguments.target)
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
