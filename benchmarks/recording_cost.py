"""What marks cost a training: `python -m benchmarks.recording_cost --python PATH [--pairs N] [--jobs a,b]`.

Each job of `recording_jobs` runs alone and under `dxt-replay record --with marks`, in turn and with no line changed;
with `--library` and `--strace` also under Darshan and strace. Told are:

- thread: extra processor time of the loop's thread (Keras: of its process) in the best of a program's loops, percent,
  with its 95 % interval: Student's t over the differences of the pairs; and of the best of all runs against the best
  alone, which other programs on the machine disturb least. workers: the same of the worker processes.
- switched: the same of the loop's thread in one process under `record`, whose loops run in turn with marks and without:
  no other program, memory layout or frequency lies between the two.
- marks: records that the loop's process made, for each step, times the cost of one, measured in the same run by the
  same Python: the extra that is expected.
- loop, program: wall time beside alone; "not seen" inside the spread of alone beside the run alone before it. The
  program is the job's own process, without the merge that follows.
- memory: of the largest process, MiB more than alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.recording_jobs import ITEM_BYTES, JOBS, NEEDS, PASSES, SWITCHED
from dxt_replay.profiler_merge import recording
from dxt_replay.profiler_merge.profiles.marks import read_process

SCRIPT = Path(__file__).with_name("recording_jobs.py")
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t of 95 %, two-sided, by degrees of freedom from 1; 1.96 to 2.1 beyond."""

COST = """
import sys, time
sys.path.insert(0, sys.argv[1])
import recording
recording.start(sys.argv[2])
costs = []
for _ in range(5):
    began = time.thread_time_ns()
    for number in range(10_000):
        recording.mark(recording.TAKE, number, 1)
    costs.append((time.thread_time_ns() - began) / 10_000)
print(sorted(costs)[2])
"""


def cost_of_a_mark(python: str, place: Path) -> float:
    """Processor time of a mark, ns."""
    words = [python, "-c", COST, str(Path(recording.__file__).parent), str(place / "cost")]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def command(python: str, job: str, data: Path, steps: int) -> list[str]:
    """The job; its ranks by torch's launcher."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if job == "torchrun" else []
    return [python, *launcher, str(SCRIPT), job, str(data), str(steps)]


def run(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The measurements that a job printed. Raises: RuntimeError if it failed."""
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found |= json.loads(line.removeprefix("RESULT "))
    if done.returncode or found.get("status", 0) or not found:
        raise RuntimeError(f"{words[-3]} failed: {(done.stderr or done.stdout)[-800:]}")
    return found


def marks_of_loop(folder: Path) -> int:
    """Number of records of the loop's process (of rank 0 for several), without those at its begin and end."""
    processes = [read_process(path) for path in folder.glob("*.marks")]
    loops = [each for each in processes if each.loops and each.rank <= 0]
    return max((len(each.rows) for each in loops), default=0)


def measure(python: str, job: str, ways: dict[str, list[str]], pairs: int, steps: int) -> dict[str, Any]:
    """The runs of a job: by way, and the number of its marks."""
    environment = {name: value for name, value in os.environ.items() if name not in recording.RANK_VARIABLES}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    environment |= {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    runs: dict[str, list[dict[str, float]]] = {"alone": [], **{way: [] for way in ways}}
    with tempfile.TemporaryDirectory(prefix="recording-cost-") as name:
        data = Path(name) / "data.bin"
        data.write_bytes(os.urandom(64 * ITEM_BYTES))
        words = command(python, job, data, steps)
        timed = [python, str(SCRIPT), "--timed", *words]
        record = [sys.executable, "-m", "dxt_replay", "record", "-q", "-o"]
        switched = run([*record, f"{name}/switched.capture", *ways["marks"], "--", *words, "switched"], environment)
        marks = marks_of_loop(Path(name) / "switched.recording" / "profile") / (steps * (SWITCHED + 1))
        for number in range(pairs):
            order = list(runs)
            for way in order if number % 2 == 0 else order[::-1]:
                place = f"{name}/{way}-{number}.capture"
                recorded = [*record, place, *ways[way], "--", *timed] if way in ways else timed
                runs[way].append(run(recorded, environment))
    return {"runs": runs, "marks": marks, "switched": switched}


def extra(alone: list[float], recorded: list[float]) -> tuple[float, float]:
    """The mean difference of pairs, percent of the mean alone, and half of its 95 % interval."""
    differences = [after - before for before, after in zip(alone, recorded, strict=True)]
    mean = statistics.fmean(alone)
    if len(differences) < 2 or mean <= 0:
        return math.nan, math.nan
    t = T_95[len(differences) - 2] if len(differences) - 2 < len(T_95) else 2.1
    half = t * statistics.stdev(differences) / math.sqrt(len(differences))
    return 100 * statistics.fmean(differences) / mean, 100 * half / mean


def ratio(alone: list[float], recorded: list[float]) -> str:
    """The median ratio of the pairs, or "not seen", beside the spread of alone."""
    middle = statistics.median(after / before for before, after in zip(alone, recorded, strict=True))
    own = [later / earlier for earlier, later in itertools.pairwise(alone)]
    spread = f"{min(own):.2f} to {max(own):.2f}" if own else "-"
    seen = not own or not min(own) <= middle <= max(own)
    return f"{middle:.3f}, {'seen' if seen else 'not seen'} in {spread}"


def row(job: str, way: str, steps: int, found: dict[str, Any], cost_ns: float) -> list[str]:
    """A row of the table."""
    alone, recorded = found["runs"]["alone"], found["runs"][way]

    def both(key: str) -> tuple[list[float], list[float]]:
        return [each[key] for each in alone], [each[key] for each in recorded]

    def percent(one: list[float], other: list[float]) -> str:
        if len(one) < 2 or not all(one):
            return "-"
        middle, half = extra(one, other)
        return f"{middle:+.1f} ± {half:.1f}; best {100 * (min(other) / min(one) - 1):+.1f}"

    off, on, marks = found["switched"]["off"], found["switched"]["on"], found["marks"]
    cpu = statistics.median(off) / steps
    own = [percent(off, on), f"{marks:.1f} x {cost_ns / 1000:.1f} us = {marks * cost_ns / cpu / 1e7:.2f} %"]
    first = [job, way, f"{cpu * 1000:.2f} ms", *(own if way == "marks" else ["-", "-"])]
    if not alone:
        return [*first, *"-----"]
    memory = statistics.median(after - before for before, after in zip(*both("largest_mib"), strict=True))
    times = percent(*both("cpu_s")), percent(*both("workers_cpu_s"))
    return [*first, *times, ratio(*both("wall_s")), ratio(*both("program_s")), f"{memory:+.1f}"]


HEAD = ["job", "way", "a step", "switched, %", "marks", "thread, %", "workers, %", "loop", "program", "memory, MiB"]


def has(python: str, package: str) -> bool:
    """Whether the jobs' Python finds a package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Print the table, a row as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python that has the frameworks")
    parser.add_argument("--pairs", type=int, default=10, help="runs of each kind, in turn (default 10; 0: switched)")
    parser.add_argument("--steps", type=int, default=300, help="steps of each loop (default 300)")
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"of {', '.join(JOBS)}; default: all")
    parser.add_argument("--library", help="Darshan's library: its cost too")
    parser.add_argument("--strace", action="store_true", help="the cost of strace too")
    arguments = parser.parse_args(argv)
    steps = arguments.steps // PASSES * PASSES
    ways = {"marks": ["--with", "marks"]}
    if arguments.library:
        ways["darshan"] = ["--library", arguments.library]
    if arguments.strace:
        ways["strace"] = ["--with", "strace"]
    with tempfile.TemporaryDirectory() as name:
        cost_ns = cost_of_a_mark(arguments.python, Path(name))
    print(f"A mark takes {cost_ns / 1000:.2f} us of processor time. {arguments.pairs} runs of each.\n")
    print("|", " | ".join(HEAD), "|\n|" + "---|" * len(HEAD), flush=True)
    for job in arguments.jobs.split(","):
        if not has(arguments.python, NEEDS.get(job, "torch")):
            print(f"| {job} | left out: {arguments.python} has no {NEEDS.get(job, 'torch')} |", flush=True)
            continue
        found = measure(arguments.python, job, ways, arguments.pairs, steps)
        for way in ways:
            print("|", " | ".join(row(job, way, steps, found, cost_ns)), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
