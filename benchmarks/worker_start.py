"""What the start of a worker asks of a file system, and its CPU time: `python -m benchmarks.worker_start [--json]`.

`summary` of a small capture of several pieces runs under strace with two workers: processes of this machine, MPI, and
Dask. Counted are successful and failed calls of all threads of the busiest of them: opens, and other calls with a path
("looks": stat, access, readlink). Apart are those below the capture, and those that no shared file system sees
(/proc, /sys, /dev). The CPU time is that of the imports, without strace.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.scale_table.captures import mixed_capture
from benchmarks.scale_table.measuring import OTHER_WORKERS, PROGRAM, available, mpiexec
from dxt_replay.traces.workers import OPERATIONS_PER_WORKER

OPERATIONS = 3 * OPERATIONS_PER_WORKER // 2
STARTS = 5
_IMPORTS = """
import time
import concurrent.futures.process, dxt_replay.traces.workers
import dxt_replay.profiler_merge.analysis.analyse
print(time.process_time())
"""
"""What a worker of a pass over a capture has loaded."""

PLACES = ("import", "capture", "machine")
_OPENS = ("open", "openat", "openat2")
_NO_CALLS = ("execve", "chdir", "unlink", "mkdir", "rmdir")


def calls_of(lines: list[str], capture: str) -> Counter[str]:
    """Number of opens and looks by place, as "import open", from lines of strace; a failed one has a "!" behind."""
    found: Counter[str] = Counter()
    for line in lines:
        call = re.match(r'(\w+)\((?:[\w-]+, )?"([^"]*)"', line)
        if call is None or call[1] in _NO_CALLS or not call[2]:
            continue
        local = call[2].startswith(("/proc", "/sys", "/dev"))
        place = PLACES[2] if local else PLACES[1] if call[2].startswith(capture) else PLACES[0]
        found[f"{place} {'open' if call[1] in _OPENS else 'look'}{'!' if ' = -1 ' in line else ''}"] += 1
    return found


def measure(operations: int = OPERATIONS) -> dict[str, Any]:
    """Calls of a worker in each way that this machine has, and the CPU seconds of a start."""
    with tempfile.TemporaryDirectory(prefix="worker-start-") as name:
        capture = Path(name) / "job.capture"
        mixed_capture(capture, operations)
        words = ["summary", str(capture), "--json"]
        ways = {
            "processes": [*PROGRAM, *words, "--workers", "3"],
            "MPI": [str(mpiexec()), "-n", "3", *PROGRAM, *words],
            "Dask": [*OTHER_WORKERS, "dask", "2", *words],
        }
        result = {way: _calls(each, Path(name) / way, capture) for way, each in ways.items() if available(way)}
    starts = [subprocess.run([sys.executable, "-c", _IMPORTS], check=True, capture_output=True) for _ in range(STARTS)]
    return {"calls": result, "cpu_s": min(float(start.stdout) for start in starts)}


def _calls(words: list[str], traces: Path, capture: Path) -> dict[str, int]:
    """The calls of the last process that opened the capture, with all its threads: a worker, which starts late."""
    traces.mkdir()
    command = ["strace", "-ff", "--seccomp-bpf", "-e", "trace=%file,clone,clone3,fork,vfork", "-o", str(traces / "of")]
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    texts = {path.suffix: path.read_text(errors="replace").splitlines() for path in traces.iterdir()}
    threads = {
        f".{found[1]}": parent
        for parent, lines in texts.items()
        for line in lines
        if "CLONE_THREAD" in line and (found := re.search(r" = (\d+)$", line))
    }
    processes: dict[str, Counter[str]] = {}
    for own, lines in texts.items():
        first = own
        while first in threads:
            first = threads[first]
        processes.setdefault(first, Counter()).update(calls_of(lines, str(capture)))
    opened = [own for own, calls in processes.items() if calls["capture open"]]
    return dict(sorted(processes[max(opened, key=lambda own: int(own[1:]))].items()))


def table(result: dict[str, Any]) -> str:
    """The result as Markdown: successful and failed calls."""
    heads = [f"{place}, {call}" for place in PLACES for call in ("open", "look")]
    lines = [f"| worker of | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for way, calls in result["calls"].items():
        pairs = [(calls.get(head.replace(",", ""), 0), calls.get(head.replace(",", "") + "!", 0)) for head in heads]
        lines.append(f"| {way} | {' | '.join(f'{done:,} + {failed:,}' for done, failed in pairs)} |")
    return "\n".join([*lines, "", f"A start takes {result['cpu_s']:.2f} s of CPU."])


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    if shutil.which("strace") is None:
        print("worker_start: strace is not installed", file=sys.stderr)
        return 2
    result = measure()
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
