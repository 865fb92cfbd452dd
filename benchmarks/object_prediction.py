"""Does a replay with the pace `steps` predict PyTorch jobs on a slower object store? The jobs themselves are the truth.

Each job of `benchmarks.object_jobs` runs against nginx, and `record` notes its requests. Then it runs again behind
`benchmarks.delaying_proxy`, and its first capture is replayed there. Compared is the time of the training loop; the
log of nginx is compared with the requests that were recorded.

    python -m benchmarks.object_prediction --python VENV/bin/python [--only NAME ...] [--repeat N] [--from-slow]
        [--first-byte-ms 20] [--mb-per-s 20] [--json]

The interpreter needs torch and the clients; nginx and cc must be on PATH. With --from-slow the jobs are recorded
behind the proxy and predicted without it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from benchmarks.delaying_proxy import delaying
from benchmarks.object_jobs.training import BUCKET, REGION, SKIPPED
from benchmarks.slowed_storage import run_command, run_in
from dxt_replay.traces.store.reader import open_capture
from tests.object_servers import Nginx, nginx

JOBS = ("s3fs_files", "boto3_records", "safetensors_ranges")
METHODS = {"read": "GET", "stat": "HEAD"}
LIMIT_PCT = 10.0
"""Largest error of the predicted time, per cent."""


class _Job:
    """A job, its store, and what was recorded of it in `folder`."""

    def __init__(self, name: str, python: str, server: Nginx, folder: Path) -> None:
        self._name, self._python, self._server, self._folder = name, python, server, folder
        self.capture = folder / "source.capture"
        for key, content in import_module(f"benchmarks.object_jobs.{name}").objects():
            path = server.root / BUCKET / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _command(self, endpoint: str) -> list[str]:
        output = self._folder / "output"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        training = ["-W", "ignore", "-m", "benchmarks.object_jobs.training", self._name, endpoint, str(output)]
        return [self._python, *training]

    def record(self, endpoint: str) -> float:
        """Train under `record`; seconds as `training.train` prints."""
        options = ["--with", "requests", "--force", "-q", "-o", str(self.capture)]
        profile = ["--profile", str(self._folder / "output" / "profile")]
        command = self._command(endpoint)
        return float(run_command("record", *options, *profile, "--", *command).split()[-1])

    def train(self, endpoint: str) -> float:
        """Train; seconds as `training.train` prints."""
        return float(run_in(self._command(endpoint), None).split()[-1])

    def stage(self) -> None:
        """Put the twin where nginx finds it."""
        (self._server.root / BUCKET / "twin").mkdir(parents=True, exist_ok=True)
        run_command("stage", str(self.capture), "--target", str(self._server.root / BUCKET / "twin"))

    def replay(self, endpoint: str) -> float:
        """Replay the capture; seconds as `train`."""
        output = self._folder / "replay.capture"
        target = f"s3://{BUCKET}/twin?endpoint={endpoint}&region={REGION}&skip_signature=true"
        options = ("--pace", "steps", "--force", "--json", "-o", str(output))
        run_command("run", str(self.capture), "--target", target, *options)
        spans = open_capture(output).spans
        steps = spans.filter(pc.equal(spans["kind"], "step"))
        ends = np.sort(steps["end_ns"].to_numpy())
        return float(ends[-1] - ends[SKIPPED - 1]) / 1e9

    def differences(self) -> tuple[int, int, int]:
        """Requests in the log of the server, and how many of them the capture lacks, and it has beyond them.

        Compared are method, key, status, and of a GET offset and length; the offset alone if it asked for no range.
        """
        log = self._server.requests()
        whole = {each.key for each in log if each.range is None}
        logged = Counter(
            (each.method, each.key, each.status, *_moved(each.method, each.key in whole, each.range, each.sent))
            for each in log
        )
        capture = open_capture(self.capture)
        paths = dict(zip(capture.files["file_id"].to_pylist(), capture.files["path"].to_pylist(), strict=True))
        found: Counter[tuple[Any, ...]] = Counter()
        for row in (row for batch in capture.operations() for row in batch.to_pylist()):
            method, key = METHODS[row["op"]], paths[row["file_id"]].removeprefix(f"s3://{BUCKET}/")
            span = (row["offset"], row["offset"] + row["length"] - 1)
            each = (method, key, row["status"], *_moved(method, key in whole, span, row["length"]))
            found[each] += 1
        return logged.total(), (logged - found).total(), (found - logged).total()


def _moved(method: str, whole: bool, span: tuple[int, int] | None, sent: int) -> tuple[int, ...]:
    if method != "GET":
        return ()
    offset = 0 if span is None else span[0]
    return (offset,) if whole else (offset, sent)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Per job: seconds as recorded, true seconds at the other store and those of the replay, with medians."""
    rows = []
    for name in arguments.only or JOBS:
        with (
            tempfile.TemporaryDirectory(prefix="dxt-replay-objects-", dir=arguments.scratch) as scratch,
            nginx(Path(scratch)) as server,
            delaying(server.endpoint, arguments.first_byte_ms, arguments.mb_per_s) as slow,
        ):
            here, there = (slow, server.endpoint) if arguments.from_slow else (server.endpoint, slow)
            rows.append(
                {"job": name, **_row(_Job(name, arguments.python, server, Path(scratch)), here, there, arguments)}
            )
            print(line(rows[-1]), flush=True, file=sys.stderr)
    return rows


def _row(job: _Job, here: str, there: str, arguments: argparse.Namespace) -> dict[str, Any]:
    recorded_s = job.record(here)
    logged, missing, beyond = job.differences()
    job.stage()
    pairs = [(job.train(there), job.replay(there)) for _ in range(arguments.repeat)]
    truth, replayed = (statistics.median(each) for each in zip(*pairs, strict=True))
    return {
        "recorded_s": recorded_s,
        "truth_s": [each for each, _ in pairs],
        "replayed_s": [each for _, each in pairs],
        "error_pct": 100.0 * (replayed / truth - 1.0),
        "requests": logged,
        "not_recorded": missing,
        "not_logged": beyond,
    }


def line(row: dict[str, Any]) -> str:
    """One result for people."""
    truths, replays = (" ".join(f"{each:.2f}" for each in row[name]) for name in ("truth_s", "replayed_s"))
    what = f"{row['job']:<20} recorded {row['recorded_s']:5.2f} s  truth {truths} s  replayed {replays} s"
    same = f"{row['requests']} requests, {row['not_recorded']} not recorded, {row['not_logged']} not in the log"
    return f"{what}  {row['error_pct']:+.1f} %  {same}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with torch and the clients")
    parser.add_argument("--only", nargs="*", choices=JOBS, help="jobs; all by default")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    parser.add_argument("--from-slow", action="store_true", help="record behind the proxy, and predict without it")
    parser.add_argument("--first-byte-ms", type=float, default=20.0)
    parser.add_argument("--mb-per-s", type=float, default=20.0, help="per connection; 1 MB is 1,000,000 bytes")
    parser.add_argument("--scratch", type=Path, help="directory for the objects and captures")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    rows = measure(chosen)
    if chosen.json:
        print(json.dumps(rows, indent=2))
    else:
        worst = max(abs(row["error_pct"]) for row in rows)
        print(f"at most {worst:.1f} % off (required: {LIMIT_PCT:.0f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
