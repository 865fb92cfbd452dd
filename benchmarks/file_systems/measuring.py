"""One comparison: mounts both sides, runs `dxt-replay regress` between them, and fio beside it if requested."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.file_systems.changes import Change
from benchmarks.file_systems.mounted import Mounted, Storage, mounted
from benchmarks.slowed_storage import limited, run_command, run_in
from dxt_replay.replay.regress.comparison import BASELINE
from dxt_replay.replay.regress.experiment import schedule
from dxt_replay.replay.regress.statistics import ALPHA, Rule, judge, paired_ratio

WORKLOADS = ("reading", "writing", "saving")
FIO_BYTES = "256m"


def generate(scratch: Path) -> dict[str, Path]:
    """The capture of each workload."""
    captures = {}
    for name in WORKLOADS:
        description = Path(__file__).with_name("workloads") / f"{name}.yaml"
        captures[name] = scratch / f"{name}.capture"
        run_command("generate", str(description), "--ranks", "1", "-o", str(captures[name]))
    return captures


def measure_change(
    change: Change, capture: Path, pairs: int, scratch: Path, on_mounted: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """The result of `regress`, and of fio if the change requests it. `on_mounted`: called before the first run.

    Raises: UnavailableError, CannotThrottleError.
    """
    with (
        mounted(change.baseline, scratch) as before,
        mounted(change.candidate, scratch) as after,
        _group({before: change.baseline, after: change.candidate}) as procs,
    ):
        on_mounted(change.name)
        found = regress(capture, before.folder / "twin", after.folder / "twin", pairs, procs)
        if change.peer is not None and shutil.which("fio"):
            found["fio"] = _fio(before.folder, after.folder, pairs, procs, change.peer)
    return {"change": change.name, "workload": change.workload, "expected": change.expected} | found


@contextmanager
def _group(sides: dict[Mounted, Storage]) -> Iterator[Path | None]:
    """The control group of the replays, which servers join meanwhile; None if nothing is limited."""
    limits = {side.device: storage.limits for side, storage in sides.items() if side.device and storage.limits}
    if not limits:
        yield None
        return
    with limited(limits) as procs:
        servers = [str(side.server) for side in sides if side.server is not None]
        for server in servers:
            procs.write_text(server, encoding="ascii")
        try:
            yield procs
        finally:
            for server in servers:
                (procs.parents[1] / procs.name).write_text(server, encoding="ascii")


def regress(capture: Path, baseline: Path, candidate: Path, pairs: int, procs: Path | None = None) -> dict[str, Any]:
    """The verdict of `dxt-replay regress` on the deciding metric, and its evidence."""
    begin = time.monotonic()
    sides = ("--baseline", str(baseline), "--candidate", str(candidate))
    printed = run_command(
        "regress", str(capture), *sides, "--repeats", str(pairs), "--json", "-q", procs=procs, statuses=(0, 1)
    )
    result = json.loads(printed)
    metric = result["metrics"][result["primary"]]
    return {
        "verdict": result["verdict"],
        "reason": result["reason"],
        "ratio": metric["ratio"],
        "ci": metric["ci"],
        "baseline_s": statistics.median(metric["baseline"]),
        "candidate_s": statistics.median(metric["candidate"]),
        "baseline": metric["baseline"],
        "candidate": metric["candidate"],
        "warnings": result["warnings"],
        "took_s": time.monotonic() - begin,
    }


def _fio(before: Path, after: Path, pairs: int, procs: Path | None, options: tuple[str, ...]) -> dict[str, Any]:
    """The time of fio's sequential read on both sides, in the same random pairs and judged by the same rule."""
    times: dict[str, list[float]] = {}
    for _, side in schedule(pairs):
        place = before if side == BASELINE else after
        command = ("fio", "--name=sequential", f"--directory={place}", "--rw=read", "--bs=1m", f"--size={FIO_BYTES}")
        printed = run_in([*command, "--ioengine=psync", "--output-format=json", *options], procs)
        job = json.loads(printed[printed.index("{") :])["jobs"][0]
        times.setdefault(side, []).append(1 / job["read"]["bw_bytes"])
    baseline, candidate = (values[1:] for values in (times[BASELINE], times["candidate"]))
    found = paired_ratio(baseline, candidate, ALPHA)
    return {
        "command": " ".join(command[2:]).replace(f"--directory={place} ", "") + " " + " ".join(options),
        "verdict": judge(found, Rule()).verdict.value,
        "ratio": found.ratio,
        "ci": [found.low, found.high],
    }


def measure_same(
    kind: str, captures: dict[str, Path], comparisons: int, pairs: int, scratch: Path
) -> Iterator[dict[str, Any]]:
    """A/A: `regress` between two new directories of one file system, `comparisons` times, a workload after the other.

    Raises: UnavailableError, CannotThrottleError.
    """
    workloads = WORKLOADS[:1] if kind == "nfs" else WORKLOADS  # its client writes in small pieces, which is slow
    with mounted(Storage(kind=kind), scratch) as side:
        for number in range(comparisons):
            workload = workloads[number % len(workloads)]
            places = [side.folder / f"{number}-{name}" for name in "ab"]
            found = regress(captures[workload], places[0], places[1], pairs)
            for place in places:
                shutil.rmtree(place)
            yield {"kind": kind, "workload": workload} | found


@contextmanager
def busy_processor() -> Iterator[None]:
    """A context in which another process keeps one processor busy."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass"], env=os.environ
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
