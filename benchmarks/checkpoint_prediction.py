"""Does a replay with the pace `steps` predict what distributed checkpoints cost on slower storage?

`benchmarks.checkpoint_application` runs on an unlimited loop device under `record`, with 2 and with 4 ranks, saving in
the foreground and in the background. Then a control group limits the device. There the job itself runs, which is the
truth, and its capture is replayed. Compared are the time of the restore, and the stall: by how much a step with a save
is longer than the others.

    python -m benchmarks.checkpoint_prediction --python VENV/bin/python [--ranks N ...] [--repeat N] [--target DIR]
        [--rate BYTES_PER_S] [--json]

The interpreter needs torch, dxt-replay, and torchrun beside it. Needs root, strace, loop devices and the block I/O
controller.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
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
BYTES_PER_S = 12 << 20
LIMIT_PCT = 10.0
"""Largest error of a predicted time, per cent."""

Times = dict[str, float]
"""Seconds: `restore_s`, `stall_s` and `steps_s`, each the mean over the ranks."""


class _Jobs:
    """Runs of one application with its files on a device; `scratch` is elsewhere."""

    def __init__(self, background: bool, ranks: int, chosen: argparse.Namespace, device: Mounted, scratch: Path):
        self._training, self._ranks, self._device = CheckpointTraining(background=background), ranks, device
        self._python, self._output = Path(chosen.python), scratch / "output"
        assert device.device is not None
        self._limits = {device.device: {"rbps": chosen.rate, "wbps": chosen.rate}}
        self._config, self._capture = scratch / "config.json", scratch / "source.capture"
        self._files, self._twin = device.folder / "files", device.folder / "twin"
        self._files.mkdir()
        run_in(self._command(write=True), None)
        run_command("record", "--with", "strace", "-o", str(self._capture), "--", *self._command())

    def _command(self, *, write: bool = False) -> list[str]:
        shutil.rmtree(self._output, ignore_errors=True)
        self._output.mkdir()
        for saved in self._files.glob("step*"):
            shutil.rmtree(saved)
        chosen = {"training": asdict(self._training), "folder": str(self._files), "output": str(self._output)}
        self._config.write_text(json.dumps({**chosen, "write": write}), encoding="utf-8")
        start = [str(self._python.with_name("torchrun")), "--nproc-per-node", str(self._ranks)]
        return [*start, "-m", "benchmarks.checkpoint_application", str(self._config)]

    def truth(self) -> Times:
        """What the job itself takes, from a cold cache on the limited device."""
        drop(self._files)
        command = self._command()
        with limited(self._limits) as procs:
            run_in(command, procs)
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._output.glob("rank*.json"))]
        return self._times([each["restore_s"] for each in found], [each["steps_s"] for each in found])

    def replay(self) -> Times:
        """What the replay takes there."""
        capture, output = str(self._capture), self._capture.with_name("replay.capture")
        run_command("stage", capture, "--target", str(self._twin))
        drop(self._twin)
        with limited(self._limits) as procs:
            options = ("--pace", "steps", "--cold", "--force", "-o", str(output))
            run_command("run", capture, "--target", str(self._twin), *options, procs=procs)
        run_command("stage", capture, "--target", str(self._twin), "--remove")
        restores, steps = [], []
        for rank in range(self._ranks):
            spans = open_capture(output).spans.to_pandas().query(f"rank == {rank}")
            restore = spans[(spans["kind"] == "checkpoint") & (spans["step"] == 0)]
            restores.append((restore["end_ns"].max() - restore["start_ns"].min()) / 1e9)
            begun = spans[(spans["kind"] == "step") & (spans["step"] != NO_STEP)].sort_values("step")
            ends = begun["end_ns"].to_numpy()
            steps.append((np.diff(ends, prepend=restore["end_ns"].max()) / 1e9).tolist())
        return self._times(restores, steps)

    def _times(self, restores: list[float], steps: list[list[float]]) -> Times:
        """restores: seconds of each rank. steps: seconds of each step of each rank, the first without the restore."""
        training = self._training
        saves = np.array([training.saves(step) for step in range(training.steps)])
        times = np.array(steps)[:, : training.steps]
        usual = np.median(times[:, ~saves])
        return {
            "restore_s": float(np.mean(restores)),
            "stall_s": float(times[:, saves].mean() - usual),
            "steps_s": float(times.sum(axis=1).mean()),
        }


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Per application: the times of each true run and of each replay, and the errors of their medians."""
    rows = []
    for ranks in chosen.ranks:
        for background in (False, True):
            with ExitStack() as stack:
                place = tempfile.TemporaryDirectory(prefix="dxt-replay-checkpoint-", dir=chosen.target)
                scratch = Path(stack.enter_context(place))
                device = stack.enter_context(mounted(Storage(kind="ext4"), scratch))
                jobs = _Jobs(background, ranks, chosen, device, scratch)
                runs = [(jobs.truth(), jobs.replay()) for _ in range(chosen.repeat)]
            truths, replays = ([run[side] for run in runs] for side in (0, 1))
            rows.append({"ranks": ranks, "background": background, "truth": truths, "replayed": replays})
            rows[-1]["error_pct"] = {name: _error_pct(truths, replays, name) for name in truths[0]}
            print(line(rows[-1]), file=sys.stderr, flush=True)
    worst = max(abs(error) for row in rows for name, error in row["error_pct"].items())
    return {"rows": rows, "worst_error_pct": worst, "required_pct": LIMIT_PCT}


def _median(runs: list[Times], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _error_pct(truths: list[Times], replays: list[Times], name: str) -> float:
    return 100.0 * (_median(replays, name) / _median(truths, name) - 1.0)


def line(row: dict[str, Any]) -> str:
    """A row for people: predicted / true seconds, medians, and the error."""
    what = f"{row['ranks']} ranks, {'async_save' if row['background'] else 'save':<10}"
    for name, error in row["error_pct"].items():
        what += f"  {name[:-2]} {_median(row['replayed'], name):.2f} / {_median(row['truth'], name):.2f} {error:+.1f} %"
    return what


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
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
