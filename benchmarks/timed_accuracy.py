"""How well `timed` keeps a schedule: drift and lag of 4 KiB reads at 20,000 per second, beside the jitter probe.

The gaps are exponential, one lane does them all, the file is in the page cache. Drift is the slope of the lag over
the time in which it was due (medians of 20 time bins), and the lag of the last operation over the duration. What the
machine itself adds is measured at the same time by the probe, which waits in the same way and does nothing. Where fio
is installed, it replays the same operations (its iolog, version 3) in the same round. Afterwards 1, 2 and 8 lanes share
the operations: where there are more lanes than processors, they also wait for each other.

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

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, READ_AT, Completed, LoopPace, loop_items
from dxt_replay.replay.engine.jitter import JitterProbe
from dxt_replay.traces.records import percentiles_us

BLOCK_BYTES = 4096
FILE_BYTES = 64 << 20
RATE_PER_S = 20_000
OPERATIONS = 200_000
ROUNDS = 3
LANES = (1, 2, 8)
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
        shared = {str(lanes): _of_lanes(data, due_ns, offsets, lanes) for lanes in LANES}
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
        "lanes": shared,
        "passed": sum(row["passed"] for row in found),
    }


def _round(data: Path, due_ns: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    probe = JitterProbe()
    (completed,), starved_ns = _replay(data, due_ns, offsets, probe)
    begin_ns = np.concatenate([done.begin_ns for done in completed])
    due = np.concatenate([done.due_ns for done in completed])
    result = np.concatenate([done.result for done in completed])
    if not np.array_equal(due, due_ns) or np.any(result != BLOCK_BYTES):
        raise RuntimeError("the replay did not do what was planned")
    lag_us = (begin_ns - due) / 1e3
    drift, last = _drift_ppm(due, begin_ns - due), float(begin_ns[-1] - due[-1]) / float(due[-1]) * 1e6
    lag = _percentiles(lag_us)
    jitter = percentiles_us(probe.lateness_ns()) or {}
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


def _of_lanes(data: Path, due_ns: np.ndarray, offsets: np.ndarray, lanes: int) -> dict[str, Any]:
    """Lag and jitter (us) where so many lanes share the operations, at the same rate in all."""
    probe = JitterProbe()
    completed, starved_ns = _replay(data, due_ns, offsets, probe, lanes)
    lag_us = np.concatenate([done.begin_ns - done.due_ns for lane in completed for done in lane]) / 1e3
    if len(lag_us) != len(due_ns):
        raise RuntimeError(f"{len(lag_us)} of {len(due_ns)} operations were done")
    return {"lag_us": _percentiles(lag_us), "jitter_us": percentiles_us(probe.lateness_ns()), "starved_ns": starved_ns}


def _percentiles(values: np.ndarray) -> dict[str, float]:
    found = dict(zip(("p50", "p90", "p99"), np.percentile(values, (50, 90, 99)).tolist(), strict=True))
    return {**found, "max": float(values.max())}


def _drift_ppm(due_ns: np.ndarray, lag_ns: np.ndarray) -> float:
    """Slope of the medians of the lag in TIME_BINS stretches of time against time, in millionths."""
    edges = np.linspace(0, due_ns[-1], TIME_BINS + 1)[1:-1]
    bins = np.split(np.arange(len(due_ns)), np.searchsorted(due_ns, edges))
    middles = [float(np.median(due_ns[rows])) for rows in bins if len(rows)]
    medians = [float(np.median(lag_ns[rows])) for rows in bins if len(rows)]
    return float(np.polyfit(middles, medians, 1)[0]) * 1e6


def _replay(
    data: Path, due_ns: np.ndarray, offsets: np.ndarray, probe: JitterProbe, lanes: int = 1
) -> tuple[list[list[Completed]], int]:
    """What each timed lane did, and how long they starved; batches are fed while they run. Operations go round."""
    start = StartGate()
    files = Files([FileSlot(path=bytes(data), uses=len(offsets))])
    fed = [
        _FedLane(Lane(files, pace=LoopPace.ABSOLUTE, start=start, stop=StopFlag()), due_ns[k::lanes], offsets[k::lanes])
        for k in range(lanes)
    ]
    bodies = [threading.Thread(target=one.lane.run) for one in fed]
    for one in fed:
        one.pump()
    for body in bodies:
        body.start()
    probe.start()
    start.open(time.monotonic_ns() + 20_000_000)
    while any(body.is_alive() for body in bodies):
        for one in fed:
            one.pump()
        time.sleep(0.02)
    probe.stop()
    for one, body in zip(fed, bodies, strict=True):
        body.join()
        one.pump()
    files.close_all()
    return [one.completed for one in fed], sum(one.lane.starved_ns for one in fed)


class _FedLane:
    """A lane, its operations still to be submitted, and the results of the others."""

    def __init__(self, lane: Lane, due_ns: np.ndarray, offsets: np.ndarray) -> None:
        self.lane = lane
        self.completed: list[Completed] = []
        self._batches = [_batch(due_ns, offsets, begin) for begin in range(0, len(offsets), BATCH_ITEMS)]

    def pump(self) -> None:
        """Collect finished operations and fill the lane's ring."""
        self.completed += iter(self.lane.collect, None)
        while self._batches and self.lane.submit(self._batches[0]):
            self._batches.pop(0)
            if not self._batches:
                self.lane.finish()


def _batch(due_ns: np.ndarray, offsets: np.ndarray, begin: int) -> np.ndarray:
    chosen = slice(begin, begin + BATCH_ITEMS)
    places = offsets[chosen]
    return loop_items(READ_AT, 0, len(places), place=places, amount=BLOCK_BYTES, due_ns=due_ns[chosen])


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
    """The result as a table for people."""

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
    for lanes, row in result["lanes"].items():
        name = f"{lanes} lanes" if lanes != "1" else "1 lane"
        lines.append(f"{name:18s} {times(row['lag_us']):31s} {times(row['jitter_us']):31s} {row['starved_ns']:10d}")
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
