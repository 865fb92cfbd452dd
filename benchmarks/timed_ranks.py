"""Replaying many ranks on a few processes at their recorded times.

    TMPDIR=/dev/shm python -m benchmarks.timed_ranks [--ranks 1024] [--processes 2] [--json]

So many ranks read 4 KiB 100 times a second for 10 s at pace `timed`, as MPI processes. The peer is a C program
(timed_threads.c) in as many processes, with a thread for each rank: with a timer slack of 1 ns, and with the kernel's
50 us. Run as root, all of them have the priority of an autogroup of nice -20 (sched(7)) before other work.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.traces.files import record_id
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    segment_dtype,
    write_log,
)

READS, READ_BYTES, SLACKS_NS = 1_000, 4096, (1, 50_000)
MOST_ELAPSED_RATIO, MOST_LAG_P99_US = 1.01, 100_000.0

_FIRST = 'if [ "$(id -u)" = 0 ]; then echo -20 > /proc/self/autogroup; fi; exec "$@"'
"""A shell program that runs a command before other work, where it may."""


def measure(ranks: int, processes: int = 2) -> dict[str, Any]:
    """elapsed_s, lag_us and cpu_us (of an operation) of a timed replay, and of the C program by its timer slack.

    Raises: RuntimeError where a program fails, or without a C compiler or mpiexec.
    """
    compiler, mpiexec = shutil.which("cc"), shutil.which("mpiexec")
    if compiler is None or mpiexec is None:
        raise RuntimeError("this measurement needs cc and mpiexec on PATH")
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as name:
        folder = Path(name)
        peer = folder / "peer"
        source = Path(__file__).with_name("timed_threads.c")
        subprocess.run([compiler, "-O2", "-pthread", "-o", str(peer), str(source)], check=True)
        write_timed(folder / "job.darshan", ranks)
        program = [sys.executable, "-m", "dxt_replay.replay.commands.main"]
        _printed([*program, "merge", str(folder / "job.darshan"), "-o", str(folder / "job.capture")])
        place = [str(folder / "job.capture"), "--target", str(folder / "twin")]
        (folder / "twin").mkdir()
        _printed([*program, "stage", *place])
        launched = [mpiexec, "-n", str(processes), "sh", "-c", _FIRST, "first", *program, "run", *place]
        found = json.loads(_printed([*launched, "--pace", "timed", "--json", "-o", str(folder / "replay.capture")]))
        processors = len(os.sched_getaffinity(0))
        cpu_s = found["processors_pct"] / 100 * found["elapsed_s"] * processors
        replay = {**{key: found[key] for key in ("elapsed_s", "lag_us", "starved_ms")}, "cpu_s": cpu_s}
        files = sorted(map(str, (folder / "twin").rglob("*.bin")))
        peers = {str(slack): _peers(peer, slack, files, processes) for slack in SLACKS_NS}
    for one in (replay, *peers.values()):
        one["cpu_us"] = 1e6 * one.pop("cpu_s") / (ranks * READS)
    passed = replay["elapsed_s"] < MOST_ELAPSED_RATIO * 10 and replay["lag_us"]["p99"] < MOST_LAG_P99_US
    return {"ranks": ranks, "processes": processes, "replay": replay, "peers": peers, "passed": passed}


def _printed(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:8])} failed: {done.stderr[-500:]}")
    return done.stdout


def _peers(program: Path, slack_ns: int, files: Sequence[str], processes: int) -> dict[str, Any]:
    """The C program in so many processes at once: CPU time of all, and the others of the latest."""
    words = ["setsid", "--wait", "sh", "-c", _FIRST, "first", str(program), str(READS), str(slack_ns)]
    running = [
        subprocess.Popen([*words, *files[k::processes]], stdout=subprocess.PIPE, text=True) for k in range(processes)
    ]
    found = [json.loads(one.communicate()[0]) for one in running]
    latest: dict[str, Any] = max(found, key=lambda one: one["lag_us"]["p99"])
    return {**latest, "cpu_s": sum(one["cpu_s"] for one in found)}


def write_timed(path: Path, ranks: int) -> None:
    """Write a log in which each rank reads a file of its own, once in each 10 ms at a random instant, for 10 s."""
    rng, names, segments, counters = np.random.default_rng(1), {}, [], []
    number = np.arange(READS)
    for rank in range(ranks):
        name = f"/scratch/data/{rank:05d}.bin".encode()
        names[record_id(name)] = name
        reads = np.zeros(READS, dtype=segment_dtype("DXT_POSIX", 2))
        reads["offset"], reads["length"] = number % 16 * READ_BYTES, READ_BYTES
        reads["start_s"] = 1 + 0.01 * (number + 0.9 * rng.random(READS))
        reads["end_s"], reads["pthread_id"] = reads["start_s"] + 1e-4, 1_000
        own = [DxtRecord(record_id=record_id(name), rank=rank, reads=reads)]
        segments.append(encode_dxt(own, "DXT_POSIX", 2))
        counters.append(encode_counters("POSIX", posix_rows(own), 4))
    modules = {"DXT_POSIX": ModuleSpec(version=2, streams=segments), "POSIX": ModuleSpec(version=4, streams=counters)}
    write_log(path, job=JobSpec(nprocs=ranks), names=names, modules=modules)


def table(result: dict[str, Any]) -> str:
    """The result of `measure` as a table for people."""
    named = {"replay": result["replay"]} | {f"C, slack {slack} ns": one for slack, one in result["peers"].items()}
    return "\n".join(
        [
            f"{result['ranks']:,d} ranks on {result['processes']} processes",
            f"{'':18}{'elapsed':>10}{'lag p50':>11}{'lag p99':>11}{'lag max':>11}{'CPU an operation':>18}",
            *(
                f"{name:18}{one['elapsed_s']:8.2f} s"
                + "".join(f"{one['lag_us'][key] / 1e3:8.2f} ms" for key in ("p50", "p99", "max"))
                + f"{one['cpu_us']:15.1f} us"
                for name, one in named.items()
            ),
        ]
    )


def main() -> int:
    """Print the result: 0 if the ranks kept their times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    result = measure(arguments.ranks, arguments.processes)
    print(json.dumps(result) if arguments.json else table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
