"""The one way to measure: a command with all its processes, or a function in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

SAMPLE_S = 0.05
THREADS = 64
"""Threads of a process that are asked for children: a replay has thousands, which start none."""


class Measured(NamedTuple):
    """One run of a program: seconds until its end, CPU seconds and peak resident bytes of all its processes (shared
    pages count for each), and its standard output."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    printed: bytes


def measured_command(words: Sequence[str]) -> Measured:
    """Run a program; memory is sampled. Raises: RuntimeError for an exit status other than 0 and 1."""
    began, peaks = time.perf_counter(), [0]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        watching = threading.Thread(target=_watch, args=(child.pid, peaks))
        watching.start()
        said: list[bytes] = []
        assert child.stdout is not None
        assert child.stderr is not None
        reading = threading.Thread(target=lambda: said.append(child.stderr.read()))  # type: ignore[union-attr]
        reading.start()
        printed = child.stdout.read()
        reading.join()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        watching.join()
    if child.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(words)}: {said[0].decode(errors='replace')[-500:]}")
    return Measured(wall_s, used.ru_utime + used.ru_stime, max(peaks), printed)


def _watch(pid: int, peaks: list[int]) -> None:
    """Note the resident memory of a process and its children, until it ends."""
    while resident := list(_resident(pid)):
        peaks[0] = max(peaks[0], sum(resident))
        time.sleep(SAMPLE_S)


def _resident(pid: int) -> Iterator[int]:
    """Resident bytes of a process and of its descendants (proc_pid_stat(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = islice(Path(f"/proc/{pid}/task").iterdir(), THREADS)
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return
    if fields[0] not in "ZX":
        yield int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        for child in children:
            yield from _resident(int(child))


_CALL = """
import json, resource, sys, time
def resident(field):
    # Not ru_maxrss: it starts from the memory of the process that ran this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
run({warm!r})
memory, before, wall = resident("VmRSS"), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
rows = run({path!r})
wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
json.dump({{"rows": rows, "wall_s": wall, "cpu_s": cpu, "grown_bytes": resident("VmHWM") - memory}}, sys.stdout)
"""


def measured_call(setup: str, path: Path, warm: Path) -> dict[str, float]:
    """`run(path)`, which the Python text `setup` defines, in a new process, after `run(warm)` has imported everything.

    Keys: `rows` (what `run` returned), `wall_s`, `cpu_s`, `grown_bytes` (peak of resident memory above the start).
    Raises: RuntimeError when the process fails.
    """
    code = setup + _CALL.format(path=str(path), warm=str(warm))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"a child failed: {done.stderr.strip()[-500:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def finish(about: str | None, measure: Callable[[], dict[str, Any]], table: Callable[[dict[str, Any]], str]) -> int:
    """The main function of a benchmark: print its table, or JSON; 1 where its result has not `passed`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = measure()
    print(json.dumps(result) if arguments.json else table(result))
    return 0 if result["passed"] else 1
