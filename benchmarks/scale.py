"""Large jobs from the log to the summary: `python -m benchmarks.scale [--operations N ...] [--ranks N ...] [--json]`.

A log of so many DXT segments is written (`large_log`), merged, summarised and compared by `dxt-replay` in processes of
their own. There are two series: --operations on the same number of ranks (--job-ranks), and --ranks with 300 segments
each. Both must be linear: an operation, or a rank, of the largest size takes little more CPU time than one of the
smallest. The peer is pydarshan, which decodes the segments of a log of the smallest size and does nothing else. CPU
time, of all processes of a command, is what other load disturbs least. A billion operations need 22 GB of disk space.
`benchmarks.cost_model` makes a model of the cost out of the JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.dxt_decode import PYDARSHAN
from benchmarks.large_log import FILES_PER_RANK, write_large_log
from benchmarks.measured_child import measured_child
from benchmarks.measured_command import measured_command
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import format_bytes

OPERATIONS = (250_000, 500_000, 1_000_000)
RANKS = (50, 100, 200)
"""Sizes for continuous integration; the requirement is for a billion operations, and for 10,000 ranks."""

JOB_RANKS = 20
SEGMENTS_PER_RANK = 300
BYTES_PER_OPERATION = 24
"""Bytes of disk space for an operation: log and capture, while both exist."""

MOST_GROWTH = 1.5
MOST_BYTES = 4 << 30

COMMANDS = {
    "merge": ("merge", "{log}", "-o", "{capture}", "--force", "--json"),
    "summary": ("summary", "{capture}", "--json"),
    "findings": ("summary", "{capture}", "--findings", "--json"),
    "compare": ("compare", "{capture}", "{capture}", "--different-runs", "--json"),
}
"""Name -> arguments of `dxt-replay`."""


def measure(
    operations: Sequence[int] = OPERATIONS,
    ranks: Sequence[int] = RANKS,
    *,
    job_ranks: int = JOB_RANKS,
    commands: Sequence[str] = tuple(COMMANDS),
    workers: Sequence[int] = (1,),
    folder: Path | None = None,
) -> dict[str, Any]:
    """Both series, ascending: `by_operations` and `by_ranks` are lists of runs, an object for each command and number
    of workers.

    growth: CPU time of an operation, or rank, of the largest size to that of the smallest, by "series command".
    pydarshan_cpu_s, pydarshan_ratio: of the segments of the smallest log, and to the CPU time of its merge.
    Raises: TargetError where the disk is too small; RuntimeError where a command fails or loses operations.
    """
    sizes = {
        "by_operations": [(count, job_ranks) for count in sorted(operations)],
        "by_ranks": [(count * SEGMENTS_PER_RANK, count) for count in sorted(ranks)],
    }
    result: dict[str, Any] = {
        series: [run for size in each for run in _runs(*size, commands, workers, folder)]
        for series, each in sizes.items()
    }
    result["growth"] = _growth(result["by_operations"], "operations") | _growth(result["by_ranks"], "ranks")
    smallest = sizes["by_operations"][:1] or sizes["by_ranks"][:1]
    for segments, count in smallest:
        result["pydarshan_cpu_s"] = _decoded(segments, count, folder)
        merge = next(run for run in result["by_operations"] + result["by_ranks"] if run["command"] == "merge")
        result["pydarshan_ratio"] = result["pydarshan_cpu_s"] / merge["cpu_s"]
    return result


def _runs(
    segments: int, ranks: int, commands: Sequence[str], workers: Sequence[int], folder: Path | None
) -> list[dict[str, Any]]:
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    if segments * BYTES_PER_OPERATION > free:
        needed = format_bytes(segments * BYTES_PER_OPERATION)
        raise TargetError(f"{needed} are needed and {format_bytes(free)} are free: set --folder")
    with tempfile.TemporaryDirectory(prefix="scale-", dir=folder) as name:
        log, capture = Path(name) / "job.darshan", Path(name) / "job.capture"
        written = write_large_log(log, segments, ranks)
        sizes = {"log_bytes": log.stat().st_size}
        runs = []
        for command in ("merge", *(each for each in COMMANDS if each in commands and each != "merge")):
            for count in workers:
                words = [word.format(log=log, capture=capture) for word in COMMANDS[command]]
                size = {"operations": written, "ranks": ranks, "workers": count}
                runs.append(size | _run(command, words, count, ranks))
            if command == "merge":
                log.unlink()
                sizes["capture_bytes"] = sum(file.stat().st_size for file in capture.rglob("*"))
    for run in runs:
        if run.pop("found") != written:
            raise RuntimeError(f"{run['command']} found fewer or more than the {written} operations of the log")
    return [run | sizes for run in runs]


def _run(command: str, words: Sequence[str], workers: int, ranks: int) -> dict[str, Any]:
    measured = measured_command([*words, "--workers", str(workers)])
    return {
        "command": command,
        "cpu_s": measured.cpu_s,
        "first_s": measured.first_s,
        "busiest_s": measured.busiest_s,
        "wall_s": measured.wall_s,
        "peak_bytes": measured.peak_bytes,
        "found": _found(command, json.loads(measured.printed), ranks),
    }


def _found(command: str, printed: dict[str, Any], ranks: int) -> int:
    """The number of traced operations that a command counted."""
    if command == "merge":
        return int(printed["operations"]["traced"])
    if command == "compare":  # including an open and a close of each file, from counters
        return int(printed["workload"]["operations"]["source"]) - 2 * FILES_PER_RANK * ranks
    return int(printed["operations"]["read"])


def _growth(runs: Sequence[dict[str, Any]], unit: str) -> dict[str, float]:
    found = {}
    for command in {run["command"]: None for run in runs}:
        own = [run["cpu_s"] / run[unit] for run in runs if run["command"] == command and run["workers"] == 1]
        if len(own) > 1:
            found[f"{unit} {command}"] = own[-1] / own[0]
    return found


def _decoded(segments: int, ranks: int, folder: Path | None) -> float:
    """CPU seconds of pydarshan. Raises: RuntimeError where it does not find all segments."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir=folder) as name:
        log = Path(name) / "peer.darshan"
        written = write_large_log(log, segments, ranks, version=1)
        found = measured_child(PYDARSHAN, log)
    if found["rows"] != written:
        raise RuntimeError(f"pydarshan found {found['rows']:.0f} segments, {written} were written")
    return found["cpu_s"]


def table(result: dict[str, Any]) -> str:
    """The result as a table of Markdown."""
    lines = [
        "| operations | ranks | command | workers | CPU s | wall s | peak memory | operations/CPU s | log, capture |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in result["by_operations"] + result["by_ranks"]:
        sizes = ", ".join(f"{run[name] / run['operations']:.1f}" for name in ("log_bytes", "capture_bytes"))
        lines.append(
            f"| {run['operations']:,} | {run['ranks']:,} | {run['command']} | {run['workers']} | {run['cpu_s']:.1f} "
            f"| {run['wall_s']:.1f} | {format_bytes(run['peak_bytes'])} | {run['operations'] / run['cpu_s']:,.0f} "
            f"| {sizes} B |"
        )
    grown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["growth"].items())
    lines.append(f"\nCPU time of one of the largest size to that of the smallest: {grown} (at most {MOST_GROWTH})")
    if "pydarshan_ratio" in result:
        lines.append(
            f"pydarshan decodes the segments of the smallest log in {result['pydarshan_cpu_s']:.1f} s of CPU, "
            f"{result['pydarshan_ratio']:.2f} times the whole merge"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 where a cost grows, or memory is above MOST_BYTES."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=float, nargs="*", default=OPERATIONS, help="as in 10e6 100e6 1e9")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS, help="as in 1000 4000 10000")
    parser.add_argument("--job-ranks", type=int, default=JOB_RANKS, help="ranks of the logs of --operations")
    parser.add_argument("--commands", nargs="*", default=tuple(COMMANDS), choices=COMMANDS, help="some, after merge")
    parser.add_argument("--workers", type=int, nargs="+", default=(1,), help="as in 1 2")
    parser.add_argument("--folder", type=Path, help="where there is room")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(
        [int(count) for count in arguments.operations],
        arguments.ranks,
        job_ranks=arguments.job_ranks,
        commands=arguments.commands,
        workers=arguments.workers,
        folder=arguments.folder,
    )
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    runs = result["by_operations"] + result["by_ranks"]
    within = all(run["peak_bytes"] < MOST_BYTES for run in runs)
    return 0 if within and all(ratio < MOST_GROWTH for ratio in result["growth"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
