"""How well `timed` keeps a schedule: drift and lag of 4 KiB reads at 20,000 per second, beside the jitter probe.

The gaps are exponential, one lane does them all, the file is in the page cache. Drift is the slope of the lag over
the time in which it was due (medians of 20 time bins), and the lag of the last operation over the duration. What the
machine itself adds is measured at the same time by the probe, which waits in the same way and does nothing. Where fio
is installed, it replays the same operations (its iolog, version 3) in the same round.

    python -m benchmarks.timed_accuracy [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from replay.backends.base import FileSlot
from replay.clock import StartGate, StopFlag
from replay.issue import make_files, make_lane
from replay.items import BATCH_ITEMS, READ, Batch, Completed, Pace
from replay.jitter import JitterProbe

BLOCK_BYTES = 4096
FILE_BYTES = 64 << 20
RATE_PER_S = 20_000
OPERATIONS = 200_000
ROUNDS = 3
TIME_BINS = 20
SEED = 5
MAX_DRIFT_PPM = 5.0
MAX_LAG_P50_US = 1.0
MAX_LAG_P99_ABOVE_JITTER_US = 10.0


def measure(rounds: int = ROUNDS, operations: int = OPERATIONS) -> dict[str, Any]:
    """Per round: drift (ppm), lag and jitter (us: p50, p90, p99, max), starved_ns; fio's drift or why there is none."""
    rng = np.random.default_rng(SEED)
    due_ns = np.cumsum(rng.exponential(1e9 / RATE_PER_S, operations)).astype(np.int64)
    offsets = rng.integers(0, FILE_BYTES // BLOCK_BYTES, operations) * BLOCK_BYTES
    found = []
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as folder:
        data = Path(folder, "data")
        data.write_bytes(rng.bytes(FILE_BYTES))
        for _ in range(rounds):
            row = _round(data, due_ns, offsets)
            row["fio"] = _fio(Path(folder), data, due_ns, offsets)
            found.append(row)
    return {
        "operations": operations,
        "rate_per_s": RATE_PER_S,
        "duration_s": float(due_ns[-1]) / 1e9,
        "required": {
            "drift_ppm": MAX_DRIFT_PPM,
            "lag_p50_us": MAX_LAG_P50_US,
            "lag_p99_above_jitter_us": MAX_LAG_P99_ABOVE_JITTER_US,
        },
        "rounds": found,
        "passed": sum(row["passed"] for row in found),
    }


def _round(data: Path, due_ns: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    probe = JitterProbe(core="compiled")
    completed, starved_ns = _replay(data, due_ns, offsets, probe)
    begin_ns = np.concatenate([done.begin_ns for done in completed])
    due = np.concatenate([done.due_ns for done in completed])
    result = np.concatenate([done.result for done in completed])
    if not np.array_equal(due, due_ns) or np.any(result != BLOCK_BYTES):
        raise RuntimeError("the replay did not do what was planned")
    lag_us = (begin_ns - due) / 1e3
    drift, last = _drift_ppm(due, begin_ns - due), float(begin_ns[-1] - due[-1]) / float(due[-1]) * 1e6
    lag = dict(zip(("p50", "p90", "p99"), np.percentile(lag_us, (50, 90, 99)).tolist(), strict=True))
    lag["max"] = float(lag_us.max())
    jitter = probe.result()
    return {
        "drift_ppm": drift,
        "last_drift_ppm": last,
        "lag_us": lag,
        "jitter_us": jitter,
        "starved_ns": starved_ns,
        "passed": abs(drift) < MAX_DRIFT_PPM
        and lag["p50"] < MAX_LAG_P50_US
        and lag["p99"] <= jitter["p99"] + MAX_LAG_P99_ABOVE_JITTER_US,
    }


def _drift_ppm(due_ns: np.ndarray, lag_ns: np.ndarray) -> float:
    """Slope of the medians of the lag in TIME_BINS stretches of time against time, in millionths."""
    edges = np.linspace(0, due_ns[-1], TIME_BINS + 1)[1:-1]
    bins = np.split(np.arange(len(due_ns)), np.searchsorted(due_ns, edges))
    middles = [float(np.median(due_ns[rows])) for rows in bins if len(rows)]
    medians = [float(np.median(lag_ns[rows])) for rows in bins if len(rows)]
    return float(np.polyfit(middles, medians, 1)[0]) * 1e6


def _replay(data: Path, due_ns: np.ndarray, offsets: np.ndarray, probe: JitterProbe) -> tuple[list[Completed], int]:
    """What one timed lane did, and how long it starved; batches are fed while it runs."""
    start = StartGate()
    files = make_files([FileSlot(path=bytes(data), uses=len(offsets))], core="compiled")
    lane = make_lane(files, pace=Pace.ABSOLUTE, start=start, stop=StopFlag())
    body = threading.Thread(target=lane.run)
    body.start()
    probe.start()
    start.open(time.monotonic_ns() + 20_000_000)
    completed: list[Completed] = []
    position, batch = 0, _batch(due_ns, offsets, 0)
    while body.is_alive():
        while position < len(offsets) and lane.submit(batch):
            position += BATCH_ITEMS
            if position < len(offsets):
                batch = _batch(due_ns, offsets, position)
            else:
                lane.finish()
        completed += iter(lane.collect, None)
        time.sleep(0.02)
    completed += iter(lane.collect, None)
    probe.stop()
    body.join()
    files.close_all()
    return completed, lane.starved_ns


def _batch(due_ns: np.ndarray, offsets: np.ndarray, begin: int) -> Batch:
    offset = offsets[begin : begin + BATCH_ITEMS]
    return Batch(
        kind=np.full(len(offset), READ, dtype=np.uint8),
        slot=np.zeros(len(offset), dtype=np.int32),
        offset=offset,
        length=np.full(len(offset), BLOCK_BYTES, dtype=np.int64),
        due_ns=due_ns[begin : begin + BATCH_ITEMS],
    )


def _fio(folder: Path, data: Path, due_ns: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    """fio's elapsed time for the same operations, and its drift against the schedule."""
    fio = shutil.which("fio")
    if fio is None:
        return {"version": None, "note": "fio is not installed"}
    version = subprocess.run([fio, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    log = folder / "iolog"
    lines = ["fio version 3 iolog", f"0 {data} add", f"0 {data} open"]
    # Times of a version 3 log are in microseconds: what fio's own writer puts there (iolog.c, log_io_u).
    lines += [
        f"{round(due / 1e3)} {data} read {offset} {BLOCK_BYTES}"
        for due, offset in zip(due_ns.tolist(), offsets.tolist(), strict=True)
    ]
    log.write_text("\n".join([*lines, f"{round(due_ns[-1] / 1e3)} {data} close"]) + "\n")
    command = [
        fio,
        "--name=replay",
        "--ioengine=psync",
        f"--read_iolog={log}",
        "--invalidate=0",
        "--output-format=json",
    ]
    patience_s = 60 + 10 * float(due_ns[-1]) / 1e9
    try:
        run = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return {"version": version, "note": f"fio was not done after {patience_s:.0f} s"}
    if run.returncode:
        return {"version": version, "note": f"fio failed: {(run.stderr or run.stdout).strip()[-300:]}"}
    job = json.loads(run.stdout[run.stdout.index("{") :])["jobs"][0]
    elapsed_ms = float(job["read"]["runtime"])
    return {
        "version": version,
        "operations": job["read"]["total_ios"],
        "elapsed_s": elapsed_ms / 1e3,
        "drift_ppm": (elapsed_ms * 1e6 / float(due_ns[-1]) - 1) * 1e6,
    }


def table(result: dict[str, Any]) -> str:
    """For a person."""

    def times(row: dict[str, float]) -> str:
        return " / ".join(f"{row[name]:.2f}" for name in ("p50", "p90", "p99", "max"))

    lines = [
        f"{result['operations']:,} reads of {BLOCK_BYTES} B in {result['duration_s']:.3f} s, one lane",
        "drift ppm  (last)  lag us p50/p90/p99/max          jitter us p50/p90/p99/max       starved ns  fio drift ppm",
    ]
    for row in result["rounds"]:
        fio = row["fio"]
        shown = f"{fio['drift_ppm']:,.0f} ({fio['version']})" if "drift_ppm" in fio else fio["note"]
        lines.append(
            f"{row['drift_ppm']:9.4f} {row['last_drift_ppm']:7.3f}  {times(row['lag_us']):31s} "
            f"{times(row['jitter_us']):31s} {row['starved_ns']:10d}  {shown}"
            + ("" if row["passed"] else "  NOT as required")
        )
    required = result["required"]
    lines.append(
        f"required: drift below {required['drift_ppm']} ppm, lag p50 below {required['lag_p50_us']} us, p99 at most "
        f"{required['lag_p99_above_jitter_us']} us above the probe's: {result['passed']} of {len(result['rounds'])} "
        "rounds"
    )
    return "\n".join(lines)


def main() -> int:
    """0 when most rounds are as required."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    print(json.dumps(result) if arguments.json else table(result))
    return 0 if 2 * result["passed"] > len(result["rounds"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
