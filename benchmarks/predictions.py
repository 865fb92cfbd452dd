"""How right are predictions from fast to slow storage, and from slow to fast storage? One table of jobs.

Each job (`prediction_jobs.py`) trains on fast and on slow storage, without a recorder, and times its own loop: the
truth. On each it is recorded once, `dxt-replay record -- python job`, without a change. Each recording is then replayed
on the other storage: `run --pace steps --cold`. Beside stands what `summary` says storage costs.

Fast storage is a folder of the local disk, whose files are dropped from the page cache; slow storage is the same folder
through FUSE, with a delay of each request, a limit of bytes or a limit of requests. So nothing but FUSE is needed, and
no root. Jobs, replays and FUSE run at a raised priority where that is allowed.

    python -m benchmarks.predictions --work DIR --python PYTHON [--keras-python PYTHON] [--library LIBDARSHAN]
        [--jobs NAME ...] [--short] [--runs 3] [--results FILE] [--public DIR] [--table]

What was measured is appended to the results at once, and not measured again: a stopped run continues. To measure a job
anew, take its lines away. Recordings stay in the working directory. `--short`: three jobs, some minutes.
`--public`: a folder with checkouts of public repositories, as PUBLIC names them; those that are not there are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.prediction_jobs import JOBS
from benchmarks.prediction_table import PLACES, key, latest, table
from benchmarks.slowed_storage import CannotThrottleError, delayed, run_command, run_in
from dxt_replay.traces.storage_limit import UNKNOWN, Doubt

SCRIPT = Path(__file__).with_name("prediction_jobs.py")

SLOW: dict[str, dict[str, int]] = {
    "latency": {"delay_us": 8_000},
    "bytes": {"delay_us": 0, "bytes": 10_000_000},
    "requests": {"delay_us": 0, "requests": 200},
}
"""Kinds of slow storage: microseconds that each open, read and write takes; or what all of them share in a second."""

PUBLIC: dict[str, tuple[str, str, list[str]]] = {
    "nanoGPT": (
        "tokens",
        "latency",
        [
            "train.py --dataset={data} --out_dir={output} --device=cpu --compile=False --eval_interval=20",
            "--eval_iters=2 --max_iters=60 --batch_size=8 --block_size=64 --n_layer=2 --n_head=2 --n_embd=64",
            "--dtype=float32 --gradient_accumulation_steps=1",
        ],
    ),
    "examples": (
        "images",
        "bytes",
        ["imagenet/main.py {data} --arch squeezenet1_1 --workers 2 --batch-size 4 --epochs 1 --no-accel"],
    ),
}
"""Scripts of github.com/karpathy/nanoGPT (commit 3adf61e1) and github.com/pytorch/examples (commit 77f55b91): the name
of the checkout, its data set and slow storage, and the command line."""

SHORT = ("npz_validation", "shuffle_buffer", "reads_in_step")
FAILURES = (RuntimeError, ValueError, OSError, CannotThrottleError)
PRIORITY = -10
_TIMES = ("replayed", "recorded")


class Measurement:
    """The cells of the table: those that the results file has, and those that are measured now."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._work: Path = chosen.work.absolute()
        self.results: Path = chosen.results or self._work / "results.jsonl"
        self.cells: list[dict[str, Any]] = []
        if self.results.exists():
            self.cells = [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]

    def measure(self, job: str) -> None:
        """All cells of a job that are not measured yet."""
        kind, slow = describe(job)[:2]
        base, captures = self._work / "fast" / job, self._work / job
        for folder in (base, captures):
            folder.mkdir(parents=True, exist_ok=True)
        with self._failures(job, "data", "fast"):
            if not (base / "data").exists():
                self._run_job(job, "make", str(base / "new"), kind)
                (base / "new").rename(base / "data")
        if not (base / "data").exists():
            return
        with delayed(base, calls="files", pages="dropped", **SLOW[slow]) as shown:
            places = dict(zip(PLACES, (base, shown), strict=True))
            for run in range(self._chosen.runs):
                for on, place in places.items():
                    self._cell(job, "truth", on, partial(self._truth, job, place, base), run)
            for on, place in places.items():
                self._cell(job, "recording", on, partial(self._record, job, on, place, base))
            for source, on in (PLACES, PLACES[::-1]):
                capture = captures / f"{source}.capture"
                self._cell(job, "prediction", on, partial(self._predict, capture, places[on], base))
        shutil.rmtree(base)

    def _cell(
        self, job: str, what: str, on: str, measure: Callable[[], dict[str, Any]], run: int | None = None
    ) -> None:
        known = latest(self.cells).get(key({"job": job, "what": what, "on": on, "run": run}))
        if known and "failed" not in known:
            return
        with self._failures(job, what, on, run):
            self._append({"job": job, "what": what, "on": on, "run": run, **measure()})

    @contextmanager
    def _failures(self, job: str, what: str, on: str, run: int | None = None) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            why = str(error).rpartition("rror: ")[2].strip().partition("\n")[0]
            self._append({"job": job, "what": what, "on": on, "run": run, "failed": why})

    def _append(self, cell: dict[str, Any]) -> None:
        self.cells.append(cell)
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell) + "\n")
        print(json.dumps(cell)[:200], file=sys.stderr, flush=True)

    def _command(self, job: str, *arguments: str) -> list[str]:
        python = self._chosen.keras_python if job.startswith("keras") else self._chosen.python
        return [str(python), "-W", "ignore", str(SCRIPT), *arguments]

    def _run_job(self, job: str, *arguments: str) -> dict[str, Any]:
        return _last(run_in(self._command(job, *arguments), None))

    def _training(self, job: str, place: Path, base: Path) -> list[str]:
        """The arguments of a training on cold data, whose output begins empty."""
        shutil.rmtree(base / "output", ignore_errors=True)
        (base / "output").mkdir()
        _drop(base)
        data, output = str(place / "data"), str(place / "output")
        if job in JOBS:
            return [job, data, output]
        script, *rest = " ".join(PUBLIC[job][2]).format(data=data, output=output).split()
        return ["public", output, str((self._chosen.public / job / script).absolute()), *rest]

    def _truth(self, job: str, place: Path, base: Path) -> dict[str, Any]:
        return self._run_job(job, *self._training(job, place, base))

    def _record(self, job: str, on: str, place: Path, base: Path) -> dict[str, Any]:
        capture = self._work / job / f"{on}.capture"
        library = ("--library", self._chosen.library) if self._chosen.library else ()
        command = self._command(job, *self._training(job, place, base))
        found = _last(run_command("record", "-o", str(capture), "--force", *library, "--", *command))
        limit = json.loads(run_command("summary", str(capture), "--json")).get("storage_limit") or {}
        return found | {"limit_pct": limit.get("limit_pct"), "limit_reason": limit.get("reason")}

    def _predict(self, capture: Path, place: Path, base: Path) -> dict[str, Any]:
        """The training loop of a replay on the other storage."""
        twin = base / "twin"
        shutil.rmtree(twin, ignore_errors=True)
        twin.mkdir()
        run_command("stage", str(capture), "--target", str(twin))
        _drop(base)
        output = capture.with_name(f"replay-of-{capture.name}")
        options = ["--target", str(place / twin.name), "-o", str(output), "--pace", "steps"]
        found = json.loads(run_command("run", str(capture), *options, "--cold", "--force", "--json", statuses=(0, 1)))
        if not found["training"]:
            raise RuntimeError("; ".join(found["warnings"]) or "the replay has no training steps")
        doubt, (predicted, recorded) = Doubt(**found["doubt"]), (found["training"][f"{name}_s"] for name in _TIMES)
        low, high = doubt.between(1e9 * predicted, 1e9 * predicted, 1e9 * recorded)
        return {
            "training_s": predicted,
            "recorded_training_s": recorded,
            "doubt": doubt.reason or None,
            "interval_s": None if doubt.state == UNKNOWN else [low / 1e9, high / 1e9],
            "failed_operations": found["failed"],
            "warnings": found["warnings"],
        }


def describe(job: str) -> tuple[str, str, Any]:
    """The kind of a job's data set, that of its slow storage, and what it does."""
    return JOBS[job] if job in JOBS else PUBLIC[job]


def _drop(folder: Path) -> None:
    """Drop all files below the folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _last(printed: str) -> dict[str, Any]:
    """The result of a job: the last line that it prints."""
    lines = printed.strip().splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="data, recordings and results; on a local disk")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON lines; by default results.jsonl in --work")
    parser.add_argument("--jobs", nargs="+", choices=[*JOBS, *PUBLIC], help="all by default")
    parser.add_argument("--short", action="store_true", help=f"the jobs {', '.join(SHORT)}")
    parser.add_argument("--runs", type=int, default=3, help="true runs of each job on each storage")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch, lightning, grain and jax")
    parser.add_argument("--keras-python", help="interpreter with TensorFlow; without one the job of Keras is skipped")
    parser.add_argument("--library", help="libdarshan.so, where it is not found")
    parser.add_argument("--public", type=Path, metavar="DIR", help="folder with checkouts of public repositories")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of the results")
    chosen = parser.parse_args(arguments)
    os.environ.pop("LD_PRELOAD", None)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        Path("/proc/self/autogroup").write_text(str(PRIORITY), encoding="ascii")  # else it holds in this session alone
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that FUSE is unmounted
    measurement = Measurement(chosen)
    for job in () if chosen.table else chosen.jobs or (SHORT if chosen.short else (*JOBS, *PUBLIC)):
        if job in PUBLIC and not (chosen.public and (chosen.public / job).is_dir()):
            print(f"{job}: skipped: no checkout in --public", file=sys.stderr)
        elif job.startswith("keras") and not chosen.keras_python:
            print(f"{job}: skipped: no --keras-python", file=sys.stderr)
        else:
            measurement.measure(job)
    print(table(measurement.cells, {job: describe(job)[1] for job in (*JOBS, *PUBLIC)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
