"""Does a recording predict what distributed checkpoints cost on slower storage, on each rank?

`benchmarks.checkpoint_application` runs on an unlimited loop device under `record`, with 2 and with 4 ranks, saving in
the foreground and in the background. Then a control group limits the device. There the job itself runs, which is the
truth, and its capture is replayed with the pace `steps`. Compared are, on each rank, the time of the restore, by how
much a step with a save is longer than the others (the stall), and the time of all steps. The time of restore and steps
together is also simulated, on a model of the limit.

    python -m benchmarks.checkpoint_prediction --python VENV/bin/python [--darshan LIB/libdarshan.so] [--ranks N ...]
        [--saves save async_save] [--repeat N] [--target DIR] [--rate BYTES_PER_S] [--json]

The interpreter needs torch, dxt-replay, and torchrun beside it. Without --darshan the job is recorded with strace,
whose own cost then counts as time of the job. Needs root, loop devices and the block I/O controller.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoint_application import CheckpointTraining
from benchmarks.file_systems.mounted import Mounted, Storage, mounted, own_namespace
from benchmarks.mapped_prediction import drop
from benchmarks.slowed_storage import limited, run_command, run_in
from dxt_replay.traces.schema import NO_STEP
from dxt_replay.traces.store.reader import open_capture

RANKS = (2, 4)
SAVES = ("save", "async_save")
BYTES_PER_S = 12 << 20
LIMIT_PCT = 10.0
"""Largest error of a predicted time of a rank, per cent."""

MODEL = """
storage_model: 1
name: limited device
operations: {{read: 50us, write: 50us, open: 50us, sync: 500us}}
limits:
  - {{each: system, of: [read], rate: {rate}B/s, step: 100ms}}
  - {{each: system, of: [write], rate: {rate}B/s, step: 100ms}}
cache: {{size: 4GiB, hit: {{latency: 5us, bandwidth: 5GB/s}}, dirty: 1GiB, read_ahead: 128KiB}}
"""
"""The limited device, for `simulate`."""

TIMES = ("restore", "stall", "steps")
"""What is compared, in seconds: a row of these for each rank."""


class _Jobs:
    """Runs of one application with its files on a device; `scratch` is elsewhere."""

    def __init__(self, save: str, ranks: int, chosen: argparse.Namespace, device: Mounted, scratch: Path) -> None:
        self._training, self._ranks = CheckpointTraining(background=save == "async_save"), ranks
        self._python, self._output = Path(chosen.python), scratch / "output"
        assert device.device is not None
        self._limits = {device.device: {"rbps": chosen.rate, "wbps": chosen.rate}}
        self._config, self._capture = scratch / "config.json", scratch / "source.capture"
        self._files, self._twin = device.folder / "files", device.folder / "twin"
        self._files.mkdir()
        run_in(self._command(write=True), None)
        tracer = ("--with", "darshan", "--library", chosen.darshan) if chosen.darshan else ("--with", "strace")
        run_command("record", *tracer, "-o", str(self._capture), "--", *self._command())

    def _command(self, *, write: bool = False) -> list[str]:
        shutil.rmtree(self._output, ignore_errors=True)
        self._output.mkdir()
        for saved in self._files.glob("step*"):
            shutil.rmtree(saved)
        chosen = {"training": asdict(self._training), "folder": str(self._files), "output": str(self._output)}
        self._config.write_text(json.dumps({**chosen, "write": write}), encoding="utf-8")
        start = [str(self._python.with_name("torchrun")), "--nproc-per-node", str(self._ranks)]
        return [*start, "-m", "benchmarks.checkpoint_application", str(self._config)]

    def truth(self) -> np.ndarray:
        """What the job itself takes, from a cold cache on the limited device: (ranks, TIMES)."""
        drop(self._files)
        command = self._command()
        with limited(self._limits) as procs:
            run_in(command, procs)
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._output.glob("rank*.json"))]
        return np.array([self._times(each["restore_s"], each["steps_s"]) for each in found])

    def replay(self) -> np.ndarray:
        """What the replay takes there, as `truth`."""
        capture, output = str(self._capture), self._capture.with_name("replay.capture")
        self._twin.mkdir(exist_ok=True)
        run_command("stage", capture, "--target", str(self._twin))
        drop(self._twin)
        with limited(self._limits) as procs:
            options = ("--pace", "steps", "--cold", "--force", "-o", str(output))
            run_command("run", capture, "--target", str(self._twin), *options, procs=procs)
        run_command("stage", capture, "--target", str(self._twin), "--remove")
        spans = open_capture(output).spans.to_pandas()
        found = []
        for rank in range(self._ranks):
            mine = spans[spans["rank"] == rank]
            restore = mine[(mine["kind"] == "checkpoint") & (mine["step"] == 0)]
            begun, restored = restore["start_ns"].min(), restore["end_ns"].max()
            steps = mine[(mine["kind"] == "step") & (mine["step"] != NO_STEP)].sort_values("step")
            lasted = np.diff(steps["end_ns"].to_numpy(), prepend=restored) / 1e9
            found.append(self._times((restored - begun) / 1e9, lasted))
        return np.array(found)

    def simulated(self, rate: int) -> float:
        """Seconds of restore and steps by `simulate`."""
        model = self._capture.with_name("model.yaml")
        model.write_text(MODEL.format(rate=rate), encoding="utf-8")
        found = json.loads(run_command("simulate", str(self._capture), "--storage", str(model), "--json"))
        return float(found["training_s"])

    def _times(self, restore_s: float, steps_s: Any) -> list[float]:
        """TIMES of a rank. steps_s: seconds of each step, the first without the restore."""
        training = self._training
        saves = np.array([training.saves(step) for step in range(training.steps)])
        steps = np.array(steps_s)[: training.steps]
        return [restore_s, float(steps[saves].mean() - np.median(steps[~saves])), float(steps.sum())]


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Per job: the times of each rank in each true run and each replay, and the errors of the medians."""
    rows = []
    for ranks in chosen.ranks:
        for save in chosen.saves:
            with ExitStack() as stack:
                place = tempfile.TemporaryDirectory(prefix="dxt-replay-checkpoint-", dir=chosen.target)
                scratch = Path(stack.enter_context(place))
                device = stack.enter_context(mounted(Storage(kind="ext4"), scratch))
                jobs = _Jobs(save, ranks, chosen, device, scratch)
                runs = np.array([(jobs.truth(), jobs.replay()) for _ in range(chosen.repeat)])
                simulated = jobs.simulated(chosen.rate)
            rows.append({"ranks": ranks, "save": save, **_row(runs, simulated)})
            print(line(rows[-1]), file=sys.stderr, flush=True)
    worst = max(abs(error) for row in rows for each in row["error_pct"] for error in each)
    return {"rows": rows, "worst_error_pct": worst, "required_pct": LIMIT_PCT}


def _row(runs: np.ndarray, simulated_s: float) -> dict[str, Any]:
    """runs: seconds, (runs, truth and replay, ranks, TIMES)."""
    truths, middle = runs[:, 0], np.median(runs, axis=0)
    training_s = float((middle[0, :, TIMES.index("restore")] + middle[0, :, TIMES.index("steps")]).mean())
    return {
        "simulated_error_pct": 100.0 * (simulated_s / training_s - 1.0),
        "truth_s": truths.tolist(),
        "replayed_s": runs[:, 1].tolist(),
        "median_s": middle.mean(axis=1).tolist(),
        "spread_pct": (100.0 * np.ptp(truths, axis=0) / middle[0]).max(axis=0).tolist(),
        "error_pct": (100.0 * (middle[1] / middle[0] - 1.0)).tolist(),
    }


def line(row: dict[str, Any]) -> str:
    """A row for people: of each time the predicted and true seconds (median of the runs, mean of the ranks), the
    smallest and largest error of a rank, and the widest spread of the true runs of a rank."""
    what = f"{row['ranks']} ranks, {row['save']:<10}"
    truth, replayed = row["median_s"]
    for number, name in enumerate(TIMES):
        errors = [each[number] for each in row["error_pct"]]
        what += f"  {name} {replayed[number]:.2f} / {truth[number]:.2f} s, {min(errors):+.1f} to {max(errors):+.1f} %"
        what += f" (truth +-{row['spread_pct'][number] / 2:.1f} %)"
    return f"{what}  simulated {row['simulated_error_pct']:+.1f} %"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--darshan", help="libdarshan.so, built without MPI")
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
    parser.add_argument("--saves", nargs="*", choices=SAVES, default=list(SAVES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rate", type=int, default=BYTES_PER_S, help="of the device, bytes/s")
    parser.add_argument("--target", type=Path, help="directory for the images of the devices")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    own_namespace([sys.executable, "-m", "benchmarks.checkpoint_prediction", *sys.argv[1:]])
    result = measure(chosen)
    print(json.dumps(result, indent=1) if chosen.json else f"worst error {result['worst_error_pct']:.1f} %")


if __name__ == "__main__":
    main()
