"""Time and memory of one function in a process of its own, which imports everything before the measurement begins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_MEASURE = """
import json, os, resource, sys, time
import numpy, pandas, pyarrow.parquet
def resident(field):
    # Not ru_maxrss: it starts from the memory of the process that ran this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
{prepare}
memory = resident("VmRSS")
before = resource.getrusage(resource.RUSAGE_SELF)
wall = time.perf_counter()
rows = run({path!r})
wall = time.perf_counter() - wall
after = resource.getrusage(resource.RUSAGE_SELF)
json.dump({{
    "rows": rows,
    "wall_s": wall,
    "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    "start_bytes": memory,
    "peak_bytes": resident("VmHWM"),
}}, sys.stdout)
"""


def measured_child(setup: str, path: Path, prepare: str = "") -> dict[str, float]:
    """Run `run(path)`, which the Python text `setup` defines, in a new process; returns its result and cost.

    `prepare`: statements that run before the measurement. Keys: `rows` (what `run` returned), `wall_s`, `cpu_s`,
    `start_bytes` and `peak_bytes` (resident memory before, and the peak). Raises: RuntimeError when the process fails.
    """
    code = setup + _MEASURE.format(path=str(path), prepare=prepare)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"a child failed: {done.stderr.strip()[-500:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured
