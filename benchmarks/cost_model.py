"""Models the time of a command with more workers: `python -m benchmarks.cost_model MEASURED.json ... [--bandwidth
GB_PER_S]`.

Each MEASURED.json is the output of `python -m benchmarks.scale --workers 1 2 --json`. The cost of a command is fitted
to the CPU time of the processes of each run. It is a constant, plus a cost per operation and per rank, for two kinds of
work. Only the first process opens the capture, reads the table of files, cuts the pieces and adds up their sums; any
worker can do the rest. The model gives the time of the command if each worker has a processor.

Assumptions: the pieces of a command cost the same; each worker has a core as fast as the measured one, and all start
at once; the sums travel in no time beside what the first process takes to add them; the first process does its part
before and after the workers, not meanwhile; all workers share the file system's bandwidth.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.traces.units import format_count
from dxt_replay.traces.workers.workers import PIECE_OPERATIONS

OPERATIONS, RANKS, WORKERS = (10**9, 10**11), 10_000, (1, 2, 64, 1024)
"""Predicted cases: numbers of operations, of ranks, and of workers."""

CAPTURES_READ = {"compare": 2}
"""Number of captures that a command reads, if it is not one."""

BANDWIDTH_GB_PER_S = 10.0
"""Bandwidth of a parallel file system for all workers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of CPU: once, for each operation, and for each rank."""

    once_s: float
    operation_s: float
    rank_s: float

    def seconds(self, operations: float, ranks: float) -> float:
        """CPU time of `operations` operations on `ranks` ranks."""
        return self.once_s + self.operation_s * operations + self.rank_s * ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command costs.

    first: the work of the first process if there are workers.
    shared: the work that workers share; its constant is the start of a worker.
    alone: all work of a process without workers.
    operation_bytes: bytes read from the disk per operation.
    is_shared: whether several workers can share the command.
    """

    first: Work
    shared: Work
    alone: Work
    operation_bytes: float
    is_shared: bool


def fit_work(operations: Sequence[float], ranks: Sequence[float], seconds: Sequence[float]) -> Work:
    """The work that best fits measured seconds, by relative error, without negative costs.

    Raises: ValueError for fewer than three runs.
    """
    if len(seconds) < 3:
        raise ValueError("a fit needs three runs of different size: give more --operations or --ranks")
    matrix = np.column_stack([np.ones(len(seconds)), operations, ranks]) / np.asarray(seconds)[:, None]
    kept = [0, 1, 2]
    while True:
        scale = np.abs(matrix[:, kept]).max(axis=0)
        found = np.linalg.lstsq(matrix[:, kept] / scale, np.ones(len(seconds)), rcond=None)[0] / scale
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * scale)))
    costs = dict.fromkeys(range(3), 0.0) | dict(zip(kept, found.tolist(), strict=True))
    return Work(once_s=costs[0], operation_s=costs[1], rank_s=costs[2])


def runs_of(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All runs of a result of `benchmarks.scale`."""
    return [*measured["by_operations"], *measured["by_ranks"]]


def fit(runs: Sequence[Mapping[str, Any]]) -> dict[str, Cost]:
    """The cost of each command in runs of `benchmarks.scale`. Raises: ValueError if a command has too few runs."""
    costs = {}
    for command in {run["command"]: None for run in runs}:
        own = [run for run in runs if run["command"] == command]
        alone = [run for run in own if run["workers"] == 1]
        together = [run for run in own if run["workers"] > 1 and run["busiest_s"]]
        by_alone = _fitted(alone, [run["cpu_s"] for run in alone])
        first = shared = by_alone
        if together:
            first = _fitted(together, [run["first_s"] for run in together])
            shared = _fitted(together, [run["cpu_s"] - run["first_s"] for run in together])
            # Each of the measured workers has started once.
            shared = Work(
                once_s=shared.once_s / max(run["workers"] for run in together),
                operation_s=shared.operation_s,
                rank_s=shared.rank_s,
            )
        last = own[-1]
        size = last["log_bytes"] if command == "merge" else last["capture_bytes"] * CAPTURES_READ.get(command, 1)
        costs[command] = Cost(
            first=first,
            shared=shared,
            alone=by_alone,
            operation_bytes=size / last["operations"],
            is_shared=bool(together),
        )
    return costs


def _fitted(runs: Sequence[Mapping[str, Any]], seconds: Sequence[float]) -> Work:
    return fit_work([run["operations"] for run in runs], [run["ranks"] for run in runs], seconds)


def predicted_s(cost: Cost, operations: float, ranks: float, workers: int, bytes_per_s: float) -> float:
    """Seconds that a command takes on `workers` workers, each with a processor, and a disk of `bytes_per_s`.

    A piece is whole ranks, some PIECE_OPERATIONS operations; more workers than pieces have nothing to do.
    """
    reading_s = operations * cost.operation_bytes / bytes_per_s
    pieces = min(math.ceil(operations / PIECE_OPERATIONS), int(ranks))
    if min(workers, pieces) <= 1 or not cost.is_shared:
        return max(cost.alone.seconds(operations, ranks), reading_s)
    share = math.ceil(pieces / min(workers, pieces)) / pieces
    shared_s = share * (cost.shared.seconds(operations, ranks) - cost.shared.once_s)
    return cost.first.seconds(operations, ranks) + cost.shared.once_s + max(shared_s, reading_s)


def table(runs: Sequence[Mapping[str, Any]], bytes_per_s: float) -> str:
    """Constants, the model beside the measured runs, and its predictions, as tables of Markdown."""
    costs = fit(runs)
    lines = ["| command | work of | once | an operation | a rank |", "|---|---|---|---|---|"]
    for command, cost in costs.items():
        works = {"first process": cost.first, "workers": cost.shared} if cost.is_shared else {}
        for name, work in {"one process": cost.alone, **works}.items():
            lines.append(
                f"| {command} | {name} | {work.once_s:.2f} s | {1e9 * work.operation_s:.0f} ns "
                f"| {1e3 * work.rank_s:.2f} ms |"
            )
    lines += ["", "| command | operations | ranks | workers | measured | model |", "|---|---|---|---|---|---|"]
    for run in runs:
        workers = run["workers"] if run["busiest_s"] else 1  # a small capture is not shared
        model_s = predicted_s(costs[run["command"]], run["operations"], run["ranks"], workers, math.inf)
        lines.append(
            f"| {run['command']} | {run['operations']:,} | {run['ranks']:,} | {workers} "
            f"| {run['first_s'] + run['busiest_s']:.1f} s | {model_s:.1f} s |"
        )
    heads = " | ".join(f"{workers:,} workers" for workers in WORKERS)
    lines += ["", f"| command | operations | ranks | {heads} |", "|---|---|---|" + "---|" * len(WORKERS)]
    for command, cost in costs.items():
        for operations in OPERATIONS:
            times = [predicted_s(cost, operations, RANKS, workers, bytes_per_s) for workers in WORKERS]
            cells = " | ".join(f"{seconds:,.0f} s" for seconds in times)
            lines.append(f"| {command} | {format_count(operations)} | {RANKS:,} | {cells} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+", metavar="MEASURED.json")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH_GB_PER_S, help="of the file system, in GB/s")
    arguments = parser.parse_args(argv)
    runs = [run for path in arguments.measured for run in runs_of(json.loads(path.read_text(encoding="utf-8")))]
    print(table(runs, arguments.bandwidth * 1e9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
