"""How well `timed` keeps a schedule: drift and lag of 4 KiB reads at 20,000 per second, beside the jitter probe.

The gaps are exponential, one lane does them all, the file is in the page cache. Drift is the slope of the lag over the
time in which it was due (medians of 20 time bins). What the machine itself adds is measured at the same time by the
probe, which waits in the same way and does nothing. Where fio is installed, it replays the same operations (its iolog,
version 3) in the same round. Afterwards 2 and 8 lanes share the operations.

    python -m benchmarks.timed_accuracy [--json]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import finish
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, READ_AT, Completed, LoopPace, loop_items
from dxt_replay.replay.engine.jitter import JitterProbe
from dxt_replay.traces.records import percentiles_us

BLOCK_BYTES, FILE_BYTES = 4096, 64 << 20
RATE_PER_S, OPERATIONS, ROUNDS = 20_000, 200_000, 3
MAX_DRIFT_PPM, MAX_LAG_P50_US, MAX_LAG_P99_ABOVE_JITTER_US = 5.0, 1.0, 10.0


def measure() -> dict[str, Any]:
    """Per round: drift (ppm), lag and jitter (us: p50, p90, p99, max), starved_ns; fio's drift or why there is none."""
    generator = np.random.default_rng(5)
    due_ns = np.cumsum(generator.exponential(1e9 / RATE_PER_S, OPERATIONS)).astype(np.int64)
    offsets = generator.integers(0, FILE_BYTES // BLOCK_BYTES, OPERATIONS) * BLOCK_BYTES
    rounds = []
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as folder:
        data = Path(folder, "data")
        data.write_bytes(generator.bytes(FILE_BYTES))
        for _ in range(ROUNDS):
            row = _round(data, due_ns, offsets, 1)
            lag, jitter = row["lag_us"], row["jitter_us"]
            row["passed"] = (
                abs(row["drift_ppm"]) < MAX_DRIFT_PPM
                and lag["p50"] < MAX_LAG_P50_US
                and lag["p99"] <= jitter["p99"] + MAX_LAG_P99_ABOVE_JITTER_US
            )
            row["fio"] = _fio(Path(folder), data, due_ns, offsets)
            rounds.append(row)
        shared = {str(lanes): _round(data, due_ns, offsets, lanes) for lanes in (2, 8)}
    passed = 2 * sum(row["passed"] for row in rounds) > len(rounds)
    return {"operations": OPERATIONS, "rounds": rounds, "lanes": shared, "passed": passed}


def _round(data: Path, due_ns: np.ndarray, offsets: np.ndarray, lanes: int) -> dict[str, Any]:
    """So many lanes share the operations, at the same rate in all. Raises: RuntimeError where other work was done."""
    probe, start = JitterProbe(), StartGate()
    files = Files([FileSlot(path=bytes(data), uses=len(offsets))])
    fed = []
    for number in range(lanes):
        mine, at = due_ns[number::lanes], offsets[number::lanes]
        parts = [slice(begin, begin + BATCH_ITEMS) for begin in range(0, len(mine), BATCH_ITEMS)]
        batches = [
            loop_items(READ_AT, 0, len(at[part]), place=at[part], amount=BLOCK_BYTES, due_ns=mine[part])
            for part in parts
        ]
        fed.append((Lane(files, pace=LoopPace.ABSOLUTE, start=start, stop=StopFlag()), batches))
    completed: list[Completed] = []

    def pump() -> None:
        """Collect finished operations and fill the rings."""
        for lane, batches in fed:
            completed.extend(iter(lane.collect, None))
            while batches and lane.submit(batches[0]):
                batches.pop(0)
                if not batches:
                    lane.finish()

    bodies = [threading.Thread(target=lane.run) for lane, _ in fed]
    pump()
    for body in bodies:
        body.start()
    probe.start()
    start.open(time.monotonic_ns() + 20_000_000)
    while any(body.is_alive() for body in bodies):
        pump()
        time.sleep(0.02)
    probe.stop()
    pump()
    files.close_all()
    begin_ns, due, result = (np.concatenate([getattr(done, name) for done in completed]) for name in _COLUMNS)
    if len(due) != len(due_ns) or np.any(result != BLOCK_BYTES):
        raise RuntimeError("the replay did not do what was planned")
    found = dict(
        zip(("p50", "p90", "p99", "max"), np.percentile((begin_ns - due) / 1e3, (50, 90, 99, 100)), strict=True)
    )
    return {
        "drift_ppm": _drift_ppm(due, begin_ns - due),
        "lag_us": {name: float(value) for name, value in found.items()},
        "jitter_us": percentiles_us(probe.lateness_ns()) or {},
        "starved_ns": sum(lane.starved_ns for lane, _ in fed),
    }


_COLUMNS = ("begin_ns", "due_ns", "result")


def _drift_ppm(due_ns: np.ndarray, lag_ns: np.ndarray) -> float:
    """Slope of the medians of the lag in 20 stretches of time against time, in millionths."""
    edges = np.linspace(0, due_ns.max(), 21)[1:-1]
    order = np.argsort(due_ns, kind="stable")
    bins = np.split(order, np.searchsorted(due_ns[order], edges))
    points = np.array([(np.median(due_ns[rows]), np.median(lag_ns[rows])) for rows in bins if len(rows)])
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0] * 1e6)


def _fio(folder: Path, data: Path, due_ns: np.ndarray, offsets: np.ndarray) -> str:
    """The drift of fio's elapsed time against the schedule, or why there is none."""
    if shutil.which("fio") is None:
        return "fio is not installed"
    log = folder / "iolog"
    # Times of a version 3 log are in microseconds: what fio's own writer puts there (iolog.c, log_io_u).
    times = zip((due_ns // 1000).tolist(), offsets.tolist(), strict=True)
    lines = ["fio version 3 iolog", f"0 {data} add", f"0 {data} open"]
    lines += [f"{due} {data} read {offset} {BLOCK_BYTES}" for due, offset in times]
    log.write_text("\n".join([*lines, f"{due_ns[-1] // 1000} {data} close"]) + "\n")
    command = ["fio", "--name=replay", "--ioengine=psync", f"--read_iolog={log}", "--invalidate=0"]
    try:
        done = subprocess.run(
            [*command, "--output-format=json"], capture_output=True, text=True, cwd=folder, timeout=160
        )
    except subprocess.TimeoutExpired:
        return "fio was not done after 160 s"
    if done.returncode:
        return f"fio failed: {(done.stderr or done.stdout).strip()[-300:]}"
    elapsed_ms = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["runtime"]
    return f"{(elapsed_ms * 1e6 / float(due_ns[-1]) - 1) * 1e6:,.0f}"


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""

    def line(name: str, row: dict[str, Any], more: str = "") -> str:
        times = (
            " / ".join(f"{row[key][p]:.2f}" for p in ("p50", "p90", "p99", "max")) for key in ("lag_us", "jitter_us")
        )
        return f"{name:9s} {row['drift_ppm']:9.4f}  {next(times):31s} {next(times):31s} {row['starved_ns']:10d}  {more}"

    lines = [
        f"{result['operations']:,} reads of {BLOCK_BYTES} B at {RATE_PER_S:,} a second",
        "          drift ppm  lag us p50/p90/p99/max          jitter us p50/p90/p99/max       starved ns  fio ppm",
    ]
    lines += [line("1 lane", row, row["fio"]) for row in result["rounds"]]
    lines += [line(f"{lanes} lanes", row) for lanes, row in result["lanes"].items()]
    return "\n".join(
        [
            *lines,
            f"required: drift below {MAX_DRIFT_PPM} ppm, lag p50 below {MAX_LAG_P50_US} us, p99 at most "
            f"{MAX_LAG_P99_ABOVE_JITTER_US} us above the probe's: {'reached' if result['passed'] else 'NOT reached'}",
        ]
    )


if __name__ == "__main__":
    sys.exit(finish(__doc__, measure, table))
